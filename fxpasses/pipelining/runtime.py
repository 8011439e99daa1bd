"""The bridge to ``torch.distributed.pipelining``; imported only when a stage is built for a process group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.utils import _pytree as pytree

from fxpasses.pipelining.stages import StageModule

__all__ = ["RunningStage", "running_stage"]


class RunningStage(PipelineStage):
    """torch's stage, for outputs of any structure: what is kept for the backward is their tensors."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run one micro-batch."""
        output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        made, taken = self.fwd_cache[fwd_chunk_id]
        tensors = tuple(leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, torch.Tensor))
        self.fwd_cache[fwd_chunk_id] = (tensors, taken)
        return output


def running_stage(
    stage: StageModule,
    index: int,
    count: int,
    device: torch.device,
    group: dist.ProcessGroup | None,
    inputs: tuple[torch.Tensor, ...],
    outputs: tuple[torch.Tensor, ...],
) -> PipelineStage:
    """Torch's stage around one of ours, with its sizes known ahead."""
    return RunningStage(stage, index, count, device, input_args=inputs, output_args=outputs, group=group)
