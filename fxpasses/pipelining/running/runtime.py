"""The bridge to ``torch.distributed.pipelining``; imported only when a stage is built for a process group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.utils import _pytree as pytree

from fxpasses.errors import StageError
from fxpasses.pipelining.running.sized_stage import SizedStage
from fxpasses.pipelining.stages import StageModule
from fxpasses.pipelining.weight_uses import uses_weights_once

__all__ = ["RunningStage", "running_stage"]

_SPLITS_BACKWARDS = hasattr(PipelineStage, "_get_grad_send_meta")
"""Whether torch takes the backward of a stage apart, for inputs and for weights, as 2.13 does.

Before, it refuses results without a gradient and counts what two paths share twice (2.12), or adds up the gradients of
different results of an operator (2.11). There the first half is the whole backward: schedules run in their order, and
gradients are right, but no bubble is filled.
"""


class _Departure(torch.autograd.Function):
    """One node of the autograd graph behind all that a stage sends.

    Schedules with a backward in halves need it: torch looks for parameters that meet what depends on the stage's
    inputs, and would miss those of a value that depends on none of them; and it cannot take the results of views apart.
    """

    @staticmethod
    def forward(ctx: Any, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sent = tuple(value.detach() for value in values)
        pairs = zip(values, sent, strict=True)
        ctx.mark_non_differentiable(*(made for value, made in pairs if not value.requires_grad))
        return sent

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return gradients


class RunningStage(SizedStage):
    """torch's stage, for outputs of any structure: what is kept for the backward is their tensors."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run one micro-batch."""
        output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        made, taken = self.fwd_cache[fwd_chunk_id]
        tensors = tuple(leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, torch.Tensor))
        if self.is_last and self.has_backward:
            tensors = self._let_go(output, tensors)
        elif not self.is_last and any(tensor.requires_grad for tensor in tensors):
            tensors = _Departure.apply(*tensors)  # type: ignore[no-untyped-call]  # torch's
        self.fwd_cache[fwd_chunk_id] = (tensors, taken)
        return output

    def _let_go(self, output: Any, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """What is kept of the model's output without its autograd graph, which the loss holds.

        Else torch detaches it in place after the first half of a backward, and the second half needs it.
        """
        if self.output_chunks and self.output_chunks[-1] is output:
            self.output_chunks[-1] = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, output)
        return tuple(tensor.detach() for tensor in tensors)


def running_stage(
    stage: StageModule,
    index: int,
    count: int,
    device: torch.device,
    group: dist.ProcessGroup | None,
    inputs: tuple[torch.Tensor, ...],
    outputs: tuple[torch.Tensor, ...],
) -> RunningStage:
    """Torch's stage around one of ours, with its sizes known ahead.

    Raises:
        StageError: There is no process group, or it has more processes than there are stages.
    """
    if not dist.is_initialized():
        raise StageError(
            "there is no process group; start the script with torchrun and call torch.distributed.init_process_group()"
        )
    if (ranks := dist.get_world_size(group)) > count:
        raise StageError(
            f"there are {count} stages for {ranks} processes, and so {ranks - count} would have none; start {count} "
            f"processes, or cut the model into {ranks} stages"
        )
    weights = None if _SPLITS_BACKWARDS and uses_weights_once(stage) else _nothing_left_to_do
    return RunningStage(
        stage, index, count, device, input_args=inputs, output_args=outputs, group=group, dw_builder=weights
    )


def _nothing_left_to_do() -> Callable[[], None]:
    """The second half of a backward, where the first one did all."""
    return lambda: None
