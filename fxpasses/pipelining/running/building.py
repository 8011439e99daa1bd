"""A stage for torch's schedules: moved to its device, with the sizes of what goes in and out known ahead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import torch
from torch.fx import GraphModule

from fxpasses.errors import StageError
from fxpasses.pipelining.running.materializing import refuse_empty
from fxpasses.pipelining.running.micro_batches import StageSizes
from fxpasses.pipelining.sizes import hints_of
from fxpasses.pipelining.stages import StageModule

if TYPE_CHECKING:
    import torch.distributed as dist

    from fxpasses.pipelining.running.runtime import RunningStage

__all__ = ["built_stage"]


def built_stage(
    stage: StageModule,
    index: int,
    count: int,
    split_gm: GraphModule,
    device: torch.device,
    group: dist.ProcessGroup | None,
) -> RunningStage:
    """Make one stage ready to run.

    Args:
        stage: Its module.
        index: Its number.
        count: How many stages there are.
        split_gm: The graph that calls all stages.
        device: Where it runs.
        group: The processes of the pipeline; all by default.

    Raises:
        StageError: Its state is on ``meta``, the model was captured for another kind of device, or there is no process
            group or one with more processes than stages.
    """
    _refuse_other_kind(split_gm, device)
    refuse_empty(stage, index)
    from fxpasses.pipelining.running.runtime import running_stage  # torch.distributed.pipelining is heavy

    sizes = StageSizes(
        tuple(_user_values(split_gm, "placeholder") if stage.route.is_first else ()),
        stage.route.received,
        tuple(_user_values(split_gm, "output") if stage.route.leaving is not None else ()),
        stage.route.sent,
        hints_of(size for value in _user_values(split_gm, "placeholder") for size in value.shape),
        stage.contract,
    )
    built = running_stage(stage.to(device), index, count, device, group, sizes.inputs(), sizes.outputs())
    built.sizes = sizes
    return built


def _user_values(split_gm: GraphModule, op: Literal["placeholder", "output"]) -> Iterator[torch.Tensor]:
    """The recorded tensors that go into or come out of the whole model."""
    ends = split_gm.graph.find_nodes(op=op)
    for node in ends if op == "placeholder" else ends[0].all_input_nodes:
        if isinstance(value := node.meta.get("val"), torch.Tensor):
            yield value


def _refuse_other_kind(split_gm: GraphModule, device: torch.device) -> None:
    """Exported graphs name their device, in ``arange`` for example; moving parameters alone would not do."""
    graphs = [split_gm, *(part for part in split_gm.children() if isinstance(part, GraphModule))]
    for node in [node for graph_module in graphs for node in graph_module.graph.nodes]:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.device.type != device.type:
            raise StageError(
                f"the model was captured on {value.device.type}, and a stage was asked for on {device.type}; "
                f"move the model and its inputs there before calling pipeline()",
                node=node,
            )
