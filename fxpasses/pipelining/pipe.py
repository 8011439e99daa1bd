"""From a model to a ``Pipe``: capture, cut, split, and a module for each stage."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import attrs
import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from fxpasses.attributes import find_attribute, install_attribute
from fxpasses.capture import capture
from fxpasses.devices import Device
from fxpasses.errors import StageError
from fxpasses.input_contract import InputContract
from fxpasses.partitioners.assignment import Assignment
from fxpasses.passes.splitting import Split, split
from fxpasses.pipelining.balancing import Balance, balanced_stages
from fxpasses.pipelining.split_points import (
    SplitPoint,
    annotations_of,
    check_spec,
    compute_nodes,
    cuts_at_modules,
    pipe_split,
    stages_from_cuts,
    take_markers,
)
from fxpasses.pipelining.stages import StageModule, make_routes, refuse_torn_writes

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage

__all__ = ["Pipe", "PipeInfo", "PipeSequential", "pipeline"]

SplitPolicy = Callable[[GraphModule], GraphModule]


@attrs.frozen
class PipeInfo:
    """What a pipe is: its graph of stage calls, how many stages, and whether it holds loss and backward."""

    graph: Graph
    num_stages: int
    has_loss_and_backward: bool


class PipeSequential(torch.nn.Sequential):
    """A ``Sequential`` of which every module is a stage of its own."""

    @classmethod
    def from_sequential(cls, sequential: torch.nn.Sequential) -> PipeSequential:
        """The same modules, with a split between each two."""
        return cls(*sequential)

    def forward(self, value: Any) -> Any:
        """Run one module after the other."""
        for index, module in enumerate(self):
            if index:
                pipe_split()
            value = module(value)
        return value


class Pipe(torch.nn.Module):
    """A model in stages; :func:`pipeline` makes it.

    Calling it runs all stages one after the other in this process, with the same values travelling between them as
    between processes.

    Args:
        program: The captured model.
        cut: The split of its graph; its parts are the stages.

    Attributes:
        balance: Loads of an automatic cut, and how far the slowest stage may be from the best; None for other cuts.
    """

    balance: Balance | None = None

    def __init__(self, program: ExportedProgram, cut: Split) -> None:
        super().__init__()
        self.split_gm = cut.graph_module
        self._program = program
        self._cut = cut
        contract = InputContract.of(program)
        aliases = _aliases(cut.source)
        parts = list(cut.parts.values())
        _give_unused_state(cut, parts, aliases)
        self._stages = [
            StageModule(part, route, contract, program.call_spec.out_spec, _held(aliases, part))
            for part, route in zip(parts, make_routes(cut), strict=True)
        ]

    @property
    def num_stages(self) -> int:
        """How many stages there are."""
        return len(self._stages)

    @property
    def has_loss_and_backward(self) -> bool:
        """Whether the graph holds a loss and its backward: never, schedules do both."""
        return False

    @property
    def loss_spec(self) -> None:
        """Which output is the loss: none, the schedule is given a loss function."""
        return

    @property
    def replicated_params(self) -> list[dict[str, str]]:
        """Parameters that several stages hold: for each the model's name of it, by the name of the stage's module.

        In processes of their own these are copies, whose gradients have to be added up after each step.
        """
        parameters = dict(self.split_gm.named_parameters(remove_duplicate=False))
        stages = set(self._cut.part_names.values())
        original = self._cut.original_names
        groups = [
            {name.partition(".")[0]: original.get(name, name) for name in names if name.partition(".")[0] in stages}
            for names in self._cut.shared
            if names[0] in parameters
        ]
        return [group for group in groups if len(group) > 1]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run all stages in this process."""
        first, *others = self._stages
        value = first(*args, **kwargs)
        for stage in others:
            value = stage(*value)
        return value

    def get_stage_module(self, stage_idx: int) -> StageModule:
        """The module of one stage, which holds only that stage's parameters and buffers.

        Raises:
            StageError: There is no such stage.
        """
        if isinstance(stage_idx, bool) or not isinstance(stage_idx, int) or not 0 <= stage_idx < self.num_stages:
            raise StageError(f"there is no stage {stage_idx!r}; the stages are 0 to {self.num_stages - 1}")
        return self._stages[stage_idx]

    def build_stage(
        self, stage_index: int, device: torch.device | str, group: dist.ProcessGroup | None = None
    ) -> PipelineStage:
        """One stage for torch's schedules, moved to a device.

        Args:
            stage_index: Which one.
            device: Where it runs; of the kind that the model was captured on.
            group: The processes of the pipeline; all by default.

        Returns:
            A ``torch.distributed.pipelining.PipelineStage`` that knows its sizes ahead.

        Raises:
            StageError: There is no such stage, or the model was captured for another kind of device.
        """
        stage = self.get_stage_module(stage_index)
        device = torch.device(device)
        _refuse_other_kind(self._cut.source, device)
        from fxpasses.pipelining.runtime import running_stage  # torch.distributed.pipelining is heavy

        inputs = stage.route.received
        entering = self._user_values("placeholder") if stage_index == 0 else ()
        leaving = self._user_values("output") if stage_index == self.num_stages - 1 else ()
        return running_stage(
            stage.to(device),
            stage_index,
            self.num_stages,
            device,
            group,
            (*entering, *(traveller.example() for traveller in inputs)),
            (*leaving, *(traveller.example() for traveller in stage.route.sent)),
        )

    def _user_values(self, op: Literal["placeholder", "output"]) -> tuple[torch.Tensor, ...]:
        """The tensors that go into or come out of the whole model, without data."""
        ends = self.split_gm.graph.find_nodes(op=op)
        nodes = ends if op == "placeholder" else ends[0].all_input_nodes
        values = [node.meta.get("val") for node in nodes]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        return tuple(torch.empty(value.shape, dtype=value.dtype, device="meta") for value in tensors)

    def info(self) -> PipeInfo:
        """The graph, the number of stages, and whether there is a loss."""
        return PipeInfo(self.split_gm.graph, self.num_stages, self.has_loss_and_backward)

    def print_readable(self) -> None:
        """Print the code of the pipe and of its stages."""
        self.split_gm.print_readable()

    def __repr__(self) -> str:
        sizes = ", ".join(
            f"{len(stage.route.received)} values in, {sum(p.numel() for p in stage.parameters())} parameters"
            for stage in self._stages
        )
        return f"Pipe({self.num_stages} stages: {sizes})"


def _aliases(source: GraphModule) -> dict[str, tuple[str, ...]]:
    """The other names of each tensor of the state that has several."""
    groups: dict[int, list[str]] = {}
    for name, value in source.state_dict(keep_vars=True).items():
        groups.setdefault(id(value), []).append(name)
    tied = [names for names in groups.values() if len(names) > 1]
    return {name: tuple(other for other in names if other != name) for names in tied for name in names}


def _give_unused_state(cut: Split, parts: Sequence[GraphModule], aliases: Mapping[str, Sequence[str]]) -> None:
    """Put state that no operator uses into the stage with its nearest relatives, so that no checkpoint misses it."""
    names = [list(part.state_dict()) for part in parts]
    used = {name for held in names for name in held}
    for name in cut.source.state_dict():
        if name in used or used.intersection(aliases.get(name, ())):
            continue
        near = [max((_common_atoms(name, other) for other in held), default=0) for held in names]
        install_attribute(parts[near.index(max(near))], name, find_attribute(cut.source, name))


def _common_atoms(first: str, second: str) -> int:
    pairs = zip(first.split("."), second.split("."), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _held(aliases: Mapping[str, Sequence[str]], part: GraphModule) -> dict[str, Sequence[str]]:
    held = part.state_dict()
    return {name: [other for other in aliases[name] if other not in held] for name in held if name in aliases}


def _refuse_other_kind(source: GraphModule, device: torch.device) -> None:
    """Exported graphs name their device, in ``arange`` for example; moving parameters alone would not do."""
    for node in source.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.device.type != device.type:
            raise StageError(
                f"the model was captured on {value.device.type}, and a stage was asked for on {device.type}; "
                f"move the model and its inputs there before calling pipeline()",
                node=node,
            )


def pipeline(
    module: torch.nn.Module | ExportedProgram,
    mb_args: tuple[Any, ...] | None = None,
    mb_kwargs: dict[str, Any] | None = None,
    split_spec: Mapping[str, SplitPoint] | Literal["auto"] | None = None,
    split_policy: SplitPolicy | None = None,
    *,
    num_stages: int | None = None,
    devices: Sequence[Device] | None = None,
) -> Pipe:
    """Cut a model into stages.

    Args:
        module: The model, which stays exactly as it is; its parameters are shared, not copied.
        mb_args: Example inputs of one micro-batch.
        mb_kwargs: Example keyword inputs of one micro-batch.
        split_spec: Where to cut, by module name; or ``"auto"``, for the slowest stage as fast as can be.
        split_policy: Puts ``pipe_split`` calls into the captured graph and gives the graph back.
        num_stages: How many stages, for ``"auto"``.
        devices: What the stages run on, for ``"auto"``: speeds and memory count. Instead of ``num_stages``.

    Returns:
        The pipe. Without any split point it has one stage.

    Raises:
        StageError: A split point that names no module or no single place, both a spec and a policy, more stages than
            can be cut, or a cut through an in-place write.
        CaptureError: torch cannot export the model.
    """
    if split_spec is not None and split_policy is not None:
        raise StageError("pipeline() takes split_spec or split_policy, not both; they would cut twice")
    if split_spec != "auto" and (num_stages is not None or devices is not None):
        raise StageError('num_stages and devices are for split_spec="auto"; split points say themselves how many')
    if not (split_spec is None or split_spec == "auto" or isinstance(split_spec, Mapping)):
        raise StageError(f'split_spec is a dict of split points or "auto", not {split_spec!r}')
    spec: dict[str, SplitPoint] = {}
    if isinstance(split_spec, Mapping) and isinstance(module, torch.nn.Module):
        check_spec(module, split_spec)
    if isinstance(module, torch.nn.Module) and split_spec != "auto":
        spec.update(annotations_of(module))
    if isinstance(split_spec, Mapping):
        spec.update(split_spec)
    program = capture(module, mb_args, mb_kwargs)
    source: Any = program.module(check_guards=False)
    balance: Balance | None = None
    if split_spec == "auto":
        take_markers(source)
        balance = balanced_stages(source, num_stages, devices)
        stage_of = dict(balance.stage_of)
    else:
        stage_of = _stage_of(source, spec, split_policy)
    pipe = _split_into_stages(program, source, stage_of)
    pipe.balance = balance
    return pipe


def _stage_of(
    source: GraphModule,
    spec: Mapping[str, SplitPoint],
    split_policy: SplitPolicy | None,
) -> dict[Node, int]:
    if split_policy is not None:
        given = split_policy(source)
        if given is not source:
            raise StageError(
                f"the split policy gave back {_what(given)}; it must put pipe_split calls into the graph module it "
                "gets, and give that back"
            )
    marked = take_markers(source)
    nodes = compute_nodes(source)
    return stages_from_cuts(nodes, [*marked, *cuts_at_modules(nodes, spec)])


def _what(given: Any) -> str:
    return "another graph module" if isinstance(given, GraphModule) else f"a {type(given).__name__}"


def _split_into_stages(program: ExportedProgram, source: GraphModule, stage_of: dict[Node, int]) -> Pipe:
    for node in stage_of:  # a tuple is taken apart where it is made
        if node.op == "call_function" and node.target is operator.getitem:
            made_by = node.all_input_nodes[0]
            stage_of[node] = stage_of.get(made_by, stage_of[node])
    refuse_torn_writes(source, stage_of)
    count = max(stage_of.values(), default=0) + 1
    assignment = Assignment.of(source, stage_of, order=range(count) if stage_of else None)
    return Pipe(program, split(source, assignment))
