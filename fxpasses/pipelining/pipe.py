"""From a model to a ``Pipe``: capture, cut, split, and a module for each stage."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import attrs
import torch
from torch.export import ExportedProgram
from torch.fx import Graph

from fxpasses.devices import Device, Link
from fxpasses.errors import StageError, also_as
from fxpasses.pipelining.capturing import capture_model
from fxpasses.pipelining.cuts.balancing import Balance
from fxpasses.pipelining.cuts.cutting import Recompute, SplitPolicy, Stages, cut_into_stages
from fxpasses.pipelining.cuts.multi_use import MultiUseParamSpec
from fxpasses.pipelining.cuts.split_points import SplitPoint, annotations_of, check_program_spec, check_spec
from fxpasses.pipelining.losses import LossOutput, find_loss
from fxpasses.pipelining.routes import make_routes
from fxpasses.pipelining.running.building import built_stage
from fxpasses.pipelining.running.materializing import StateSource, materialize
from fxpasses.pipelining.stage_by_stage import run_forward, run_forward_and_backward
from fxpasses.pipelining.stage_state import aliases_in, copied_parameters, give_unused_state, tied_names
from fxpasses.pipelining.stages import StageModule
from fxpasses.pipelining.traffic import Traffic
from fxpasses.programs.input_contract import InputContract

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage

    from fxpasses.pipelining.running.runtime import RunningStage
    from fxpasses.pipelining.running.tied import TiedParameters

__all__ = ["Pipe", "PipeInfo", "pipeline"]

_FACTS = ("balance", "traffic", "_program", "_cut", "_loss", "_copied")
"""What a pipe knows and never changes."""


@attrs.frozen
class PipeInfo:
    """What a pipe is: its graph of stage calls, how many stages, and whether it holds loss and backward."""

    graph: Graph
    num_stages: int
    has_loss_and_backward: bool


class Pipe(torch.nn.Module):
    """A model in stages; :func:`pipeline` makes it.

    Calling it runs all stages one after the other in this process, with the same values travelling between them as
    between processes.

    Args:
        program: The captured model.
        stages: The split of its graph, and how it was cut.
        loss: Which output is the loss, if one is.

    Attributes:
        balance: Loads of an automatic cut, and how far the slowest stage may be from the best; None for other cuts.
        traffic: What travels between the stages, and what they compute again instead.
    """

    balance: Balance | None
    traffic: Traffic

    def __init__(self, program: ExportedProgram, stages: Stages, loss: LossOutput | None = None) -> None:
        super().__init__()
        cut = stages.cut
        self.split_gm = cut.graph_module
        self.balance = stages.balance
        self._program = program
        self._cut = cut
        self._loss = loss
        self._made: dict[tuple[int, torch.device], torch.Tensor] = {}
        contract = InputContract.of(program)
        aliases = tied_names(cut.source)
        parts = list(cut.parts.values())
        give_unused_state(cut, parts, aliases)
        self._copied = copied_parameters(cut)
        routes = make_routes(cut)
        self.traffic = Traffic.of(routes, stages.recomputed)
        self._stages = [
            StageModule(part, route, contract, program.call_spec.out_spec, aliases_in(part, aliases))
            for part, route in zip(parts, routes, strict=True)
        ]

    @staticmethod
    def from_tracing(
        mod: torch.nn.Module,
        example_args: tuple[Any, ...],
        example_kwargs: dict[str, Any] | None = None,
        split_policy: SplitPolicy | None = None,
        **options: Any,
    ) -> Pipe:
        """Capture a model and cut it at its ``pipe_split()`` calls, its annotations, or by a policy.

        Args:
            mod: The model.
            example_args: Example inputs of one micro-batch.
            example_kwargs: Example keyword inputs.
            split_policy: Puts ``pipe_split`` calls into the captured graph.
            **options: The keyword-only arguments of :func:`pipeline`.
        """
        return pipeline(mod, example_args, example_kwargs, None, split_policy, **options)

    @property
    def num_stages(self) -> int:
        """How many stages there are."""
        return len(self._stages)

    @property
    def has_loss_and_backward(self) -> bool:
        """Whether an output of the model is its loss, so that :meth:`forward_and_backward` can run."""
        return self._loss is not None

    @property
    def loss_spec(self) -> Any:
        """Which output is the loss: True at its place in the structure of the output; None if there is no loss."""
        return None if self._loss is None else self._loss.spec

    @property
    def replicated_params(self) -> list[dict[str, str]]:
        """Parameters that several stages hold: for each the model's name of it, by the name of the stage's module.

        In processes of their own these are copies, which :meth:`tie_parameters` keeps in step.
        """
        return [dict(names) for names in self._copied]

    @property
    def transmitted_params(self) -> dict[str, int]:
        """The stage that holds each parameter whose value travels to other stages, by the model's name."""
        return {name: index for index, stage in enumerate(self._stages) for _, name in stage.route.held}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run all stages in this process."""
        return run_forward(self._stages, args, kwargs)

    def loss_fn(self, output: Any, target: Any = None) -> torch.Tensor:
        """The loss in an output of the model, which computes it itself: the loss function for a schedule.

        Args:
            output: What the model gives.
            target: Not looked at; schedules hand one over.

        Raises:
            StageError: No output of the model is its loss.
        """
        if self._loss is None:
            raise StageError(
                "no output of the model is its loss; wrap the model in a LossWrapper, or name the output with "
                "output_loss_value_spec"
            )
        return self._loss.of(output)

    def forward_and_backward(self, *args: Any, **kwargs: Any) -> Any:
        """Run all stages, and then the backward of each from the last to the first, as processes of their own do.

        Returns:
            The model's output. Gradients are added to those of the parameters.

        Raises:
            StageError: No output of the model is its loss.
        """
        return run_forward_and_backward(self._stages, self.loss_fn, args, kwargs)

    def get_stage_module(self, stage_idx: int) -> StageModule:
        """The module of one stage, which holds only that stage's parameters and buffers.

        Raises:
            StageError: There is no such stage (also a ValueError).
        """
        if isinstance(stage_idx, bool) or not isinstance(stage_idx, int) or not 0 <= stage_idx < self.num_stages:
            raise also_as(StageError, ValueError())(
                f"there is no stage {stage_idx!r}; the stages are 0 to {self.num_stages - 1}"
            )
        return self._stages[stage_idx]

    def materialize(
        self, stage_index: int, device: torch.device | str = "cpu", state: StateSource | None = None
    ) -> StageModule:
        """Give one stage of a model on ``meta`` its parameters and buffers; no other stage gets any.

        Args:
            stage_index: Which one.
            device: Where they go.
            state: Where the values come from: tensors by the model's names (a checkpoint), or a function of name and
                an empty tensor which fills it or gives the value. What is not on ``meta`` keeps its value.

        Returns:
            The stage's module.

        Raises:
            StageError: There is no such stage; or a value is missing, or of another shape.
        """
        stage = self.get_stage_module(stage_index)
        materialize(stage, stage_index, torch.device(device), state, self._made)
        return stage

    def build_stage(
        self, stage_index: int, device: torch.device | str, group: dist.ProcessGroup | None = None
    ) -> RunningStage:
        """One stage for torch's schedules, moved to a device.

        Args:
            stage_index: Which one.
            device: Where it runs; of the kind that the model was captured on.
            group: The processes of the pipeline; all by default.

        Returns:
            A ``torch.distributed.pipelining.PipelineStage`` that knows its sizes ahead.

        Raises:
            StageError: There is no such stage, its state is on ``meta``, the model was captured for another kind of
                device, or there is no process group or one with more processes than stages.
        """
        stage = self.get_stage_module(stage_index)
        return built_stage(stage, stage_index, self.num_stages, self.split_gm, torch.device(device), group)

    def tie_parameters(
        self, stages: Sequence[PipelineStage] | PipelineStage, group: dist.ProcessGroup | None = None
    ) -> TiedParameters:
        """Keep the copies of parameters that several stages hold in step; see :attr:`replicated_params`.

        To be called on every rank of the pipeline, after its schedule is made (which says where each stage runs).

        Args:
            stages: This rank's stages, as :meth:`build_stage` gave them.
            group: The processes of the pipeline; all by default.

        Returns:
            What adds up gradients: ``synchronize_gradients()`` after each step.
        """
        from fxpasses.pipelining.running.tied import TiedParameters, ties_of  # torch.distributed is heavy

        own = list(stages) if isinstance(stages, Sequence) else [stages]
        return TiedParameters.of(ties_of(self._copied, list(self._cut.part_names.values())), own, group)

    def __deepcopy__(self, memo: dict[int, Any]) -> Pipe:
        """A pipe with stages and state of its own; the program, and what is known of the cut, is the same."""
        new = self.__class__.__new__(self.__class__)
        memo[id(self)] = new
        for name, value in self.__dict__.items():
            new.__dict__[name] = value if name in _FACTS else copy.deepcopy(value, memo)
        return new

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


def pipeline(
    module: torch.nn.Module | ExportedProgram,
    mb_args: tuple[Any, ...] | None = None,
    mb_kwargs: dict[str, Any] | None = None,
    split_spec: Mapping[str, SplitPoint] | Literal["auto"] | None = None,
    split_policy: SplitPolicy | None = None,
    *,
    num_stages: int | None = None,
    devices: Sequence[Device] | None = None,
    links: Iterable[Link] = (),
    multi_use_param_spec: MultiUseParamSpec | None = None,
    output_loss_value_spec: Any = None,
    dynamic_shapes: Any = None,
    recompute: Recompute = "cheaper",
) -> Pipe:
    """Cut a model into stages.

    Args:
        module: The model, which stays exactly as it is; its parameters are shared, not copied.
        mb_args: Example inputs of one micro-batch.
        mb_kwargs: Example keyword inputs of one micro-batch.
        split_spec: Where to cut, by module name; or ``"auto"``, for the slowest stage as fast as can be.
        split_policy: Puts markers into the captured graph module and gives it back: calls of :func:`pipe_split`, of
            ``torch.ops.fxpasses.pipe_split``, or of torch's two. A warning says so if there is none.
        num_stages: How many stages, for ``"auto"``.
        devices: What the stages run on, one for each: speeds and memory count for ``"auto"`` (instead of
            ``num_stages``), speeds for what is computed again.
        links: The connections between devices; pairs without one use the default.
        multi_use_param_spec: What becomes of parameters that several stages use: ``MultiUseParameterConfig.REPLICATE``
            (the default) or ``TRANSMIT``, or a dict of these by parameter name.
        output_loss_value_spec: Which output is the loss: True, or a tuple, list or dict with True there. By default the
            ``loss_spec`` of the model, or an output called ``"loss"``.
        dynamic_shapes: Which sizes may change, as ``torch.export.export`` takes them; or ``"batch"`` for the first
            dimension of all inputs that have the size of the first one's.
        recompute: ``"cheaper"`` lets a stage compute a value again where that costs less than to have it sent;
            ``"never"`` sends all.

    Returns:
        The pipe. Without any split point it has one stage.

    Raises:
        StageError: A split point that names no module or no single place, both a spec and a policy (also a
            ValueError), a policy that is no function or gives something else back, more stages than can be cut, or a
            cut through an in-place write.
        CaptureError: torch cannot export the model.
    """
    _check_options(split_spec, split_policy, num_stages, recompute)
    spec: dict[str, SplitPoint] = {}
    if isinstance(split_spec, Mapping) and isinstance(module, torch.nn.Module):
        check_spec(module, split_spec)
    if isinstance(split_spec, Mapping) and isinstance(module, ExportedProgram):
        check_program_spec(module, split_spec)
    if isinstance(module, torch.nn.Module) and split_spec != "auto":
        spec.update(annotations_of(module))
    if isinstance(split_spec, Mapping):
        spec.update(split_spec)
    captured = capture_model(module, mb_args, mb_kwargs, dynamic_shapes)
    stages = cut_into_stages(
        captured.source,
        "auto" if split_spec == "auto" else spec,
        split_policy,
        num_stages=num_stages,
        devices=devices,
        links=links,
        multi_use_param_spec=multi_use_param_spec,
        recompute=recompute,
    )
    loss = find_loss(module, captured.program.call_spec.out_spec, output_loss_value_spec)
    return Pipe(captured.program, stages, loss)


def _check_options(split_spec: Any, split_policy: Any, num_stages: int | None, recompute: Any) -> None:
    if split_spec is not None and split_policy is not None:
        raise also_as(StageError, ValueError())(
            "pipeline() takes split_spec or split_policy, not both; they would cut twice"
        )
    if split_policy is not None and not callable(split_policy):
        raise also_as(StageError, TypeError())(
            f"split_policy is {split_policy!r}; give a function that puts pipe_split calls into the graph module it "
            "gets, and gives that back"
        )
    if split_spec != "auto" and num_stages is not None:
        raise StageError('num_stages is for split_spec="auto"; split points say themselves how many')
    if not (split_spec is None or split_spec == "auto" or isinstance(split_spec, Mapping)):
        raise StageError(f'split_spec is a dict of split points or "auto", not {split_spec!r}')
    if recompute not in ("cheaper", "never"):
        raise StageError(f'recompute is "cheaper" or "never", not {recompute!r}')
