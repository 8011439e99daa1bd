"""What a stage costs: seconds forward and backward, and bytes held, kept for the backward, and sent."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fxpasses.checks.evaluation import tensors_kept
from fxpasses.devices import Device
from fxpasses.effects import analyze_effects
from fxpasses.errors import InputError, PlacementError
from fxpasses.partitioners.costs.node_costs import NodeCost, measure_node, seconds_on
from fxpasses.partitioners.costs.training.backward_traces import trace_backward
from fxpasses.partitioners.tensor_sizes import storage_bytes, tensor_bytes, tensors_in
from fxpasses.partitioners.vmap_rows import note_rows
from fxpasses.pipelining.running.materializing import refuse_empty
from fxpasses.pipelining.weight_uses import meetings, uses_weights_once
from fxpasses.seeding import seeded

if TYPE_CHECKING:
    from fxpasses.pipelining.pipe import Pipe
    from fxpasses.pipelining.stages import StageModule

__all__ = ["StageCost", "StageFigures", "measure_stage_costs", "stage_figures"]


def _not_negative(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise InputError(f"A stage's {attribute.name} is a number from 0 on, not {value!r}.")


def _number() -> Any:
    return attrs.field(default=0, validator=_not_negative)


@attrs.frozen
class StageCost:
    """One stage on one micro-batch.

    Args:
        forward: Seconds of the forward.
        backward_inputs: Seconds of the backward's half for what the stage received.
        backward_weights: Seconds of the half for its parameters.
        parameters: Bytes of parameters and buffers.
        gradients: Bytes of the gradients of its parameters.
        kept: Bytes that the forward keeps until the backward is through.
        working: Bytes that one operator needs while it runs.
        received: Bytes from the stage before; as many go back as gradients.
        sent: Bytes to the next stage; as many come back as gradients.
        output: Bytes of the model's own output, part of ``kept``; only the last stage has it.
        between: Bytes of gradients that a backward in halves keeps from the first half to the second.

    Raises:
        InputError: A number below 0.
    """

    forward: float = attrs.field(validator=_not_negative)
    backward_inputs: float = attrs.field(validator=_not_negative)
    backward_weights: float = attrs.field(validator=_not_negative)
    parameters: int = _number()
    gradients: int = _number()
    kept: int = _number()
    working: int = _number()
    received: int = _number()
    sent: int = _number()
    output: int = _number()
    between: int = _number()

    @property
    def seconds(self) -> float:
        """Forward and backward together."""
        return self.forward + self.backward_inputs + self.backward_weights


@attrs.frozen
class StageFigures:
    """A stage before it is known where it runs: what its operators do, and a cost without seconds.

    ``halves`` says whether its backward can be taken apart.
    """

    work: tuple[NodeCost, ...]
    bytes_only: StageCost
    halves: bool

    def cost_on(self, device: Device, backward: float) -> StageCost:
        """The cost on a device, by the roofline model; the backward is that many times the forward."""
        forward = sum(seconds_on(cost, device) for cost in self.work)
        return self.cost(forward, forward * backward)

    def cost(self, forward: float, backward: float) -> StageCost:
        """The cost for some seconds: half of the backward is for the weights; nothing, where that is all in one."""
        late = backward / 2 if self.halves else 0.0
        return attrs.evolve(self.bytes_only, forward=forward, backward_inputs=backward - late, backward_weights=late)


def stage_figures(pipe: Pipe) -> list[StageFigures]:
    """Count what each stage of a pipe does and holds.

    What a forward keeps for the backward is not guessed: each stage runs once on tensors without data, and autograd
    says what it saves.
    """
    return [_figures(pipe.get_stage_module(index)) for index in range(pipe.num_stages)]


def _figures(stage: StageModule) -> StageFigures:
    part: Any = stage.part
    note_rows(part)
    compute = [node for node in part.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    state = {id(value): value for value in (*stage.parameters(), *stage.buffers())}
    route = stage.route
    held = StageCost(
        0.0,
        0.0,
        0.0,
        parameters=sum(map(storage_bytes, state.values())),
        gradients=sum(tensor_bytes(value) for value in stage.parameters() if value.requires_grad),
        kept=kept_for_backward(stage),
        working=max(map(_touched, compute), default=0),
        received=sum(traveller.bytes for traveller in route.received),
        sent=sum(traveller.bytes for traveller in route.sent),
        output=0 if route.leaving is None else sum(map(tensor_bytes, _made_by(part))),
    )
    if halves := uses_weights_once(stage):
        met = tensors_in([node.meta.get("val") for node in meetings(stage)])
        held = attrs.evolve(held, between=sum(tensor_bytes(value) for value in met if value.is_floating_point()))
    return StageFigures(tuple(map(measure_node, compute)), held, halves)


def _made_by(part: GraphModule) -> list[Tensor]:
    return tensors_in([node.meta.get("val") for node in part.graph.output_node().all_input_nodes])


def _touched(node: Node) -> int:
    """Bytes of activations that one operator reads and makes; its backward needs as many for their gradients."""
    values = [used.meta.get("val") for used in node.all_input_nodes if used.op != "get_attr"]
    return sum(map(tensor_bytes, tensors_in([*values, node.meta.get("val")])))


def kept_for_backward(stage: StageModule) -> int:
    """Bytes that autograd saves in one forward of a stage, and its results; what it received is not counted.

    Where an operator cannot run without data, all results of the stage are counted, which is at least as much.
    """
    part: Any = stage.part
    try:
        needs = trace_backward(part, inputs_need_gradients=not stage.route.is_first)
    except PlacementError:
        return sum(cost.output_bytes for cost in map(measure_node, part.graph.nodes) if cost.flops)
    effects = analyze_effects(part)
    given = {
        storage
        for node in part.graph.nodes
        if node.op in ("placeholder", "get_attr")
        for storage in effects.storages(node)
    }
    saved = dict.fromkeys(itertools.chain(*needs.saved.values(), part.graph.output_node().all_input_nodes))
    sizes: dict[int, int] = {}
    for node in saved:
        for storage in effects.storages(node):
            if storage not in given:
                sizes[storage] = max([sizes.get(storage, 0), *map(storage_bytes, tensors_in(node.meta.get("val")))])
    return sum(sizes.values()) + sum(needs.extra.values())


def measure_stage_costs(
    pipe: Pipe,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    rounds: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> list[StageCost]:
    """Time every stage forward and backward, here and now, one after the other.

    Args:
        pipe: The pipe, where it can run as a whole. Gradients, buffers and inputs that it writes to are left as they
            were, and so are random numbers.
        args: Inputs of one micro-batch.
        kwargs: Keyword inputs of one micro-batch.
        rounds: How often; the quickest counts, after one round to warm up.
        clock: Seconds from some moment on.

    Returns:
        The costs; bytes are those of :func:`stage_figures`, and the backward is split in half where it can be.

    Raises:
        StageError: A parameter or buffer is on ``meta``.
        InputError: The inputs do not fit, or ``rounds`` is no number of rounds.
    """
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise InputError(f"`rounds` is how often each stage is timed, a whole number from 1 on, not {rounds!r}.")
    stages = [pipe.get_stage_module(index) for index in range(pipe.num_stages)]
    for index, stage in enumerate(stages):
        refuse_empty(stage, index)
    written = [*itertools.chain.from_iterable(stage.buffers() for stage in stages), *tensors_in((args, kwargs))]
    with tensors_kept(written), seeded(), torch.enable_grad():
        runs = [_timed_round(pipe, args, kwargs or {}, clock) for _ in range(rounds + 1)][1:]
    costs = []
    for index, figures in enumerate(stage_figures(pipe)):
        forward, backward = (min(run[index][which] for run in runs) for which in (0, 1))
        costs.append(figures.cost(forward, backward))
    return costs


def _timed_round(
    pipe: Pipe, args: Sequence[Any], kwargs: Mapping[str, Any], clock: Callable[[], float]
) -> list[tuple[float, float]]:
    """Seconds forward and backward of each stage, from which nothing is left behind."""
    seconds: list[tuple[float, float]] = []
    values: Any = tuple(args)
    gpus = dict.fromkeys(value.device for value in (*pipe.parameters(), *tensors_in((args, kwargs))) if value.is_cuda)
    for index in range(pipe.num_stages):
        stage = pipe.get_stage_module(index)
        begin = _now(clock, gpus)
        made = stage(*values, **(kwargs if index == 0 else {}))
        forward = _now(clock, gpus) - begin
        results = [value for value in tensors_in(_leaves(made)) if value.requires_grad]
        sources = [value for value in (*stage.parameters(), *tensors_in(values)) if value.requires_grad]
        begin = _now(clock, gpus)
        if results and sources:
            torch.autograd.grad(results, sources, [torch.ones_like(value) for value in results], allow_unused=True)
        seconds.append((forward, _now(clock, gpus) - begin))
        values = made if stage.route.leaving is not None else tuple(_leaf(value) for value in made)
    return seconds


def _leaves(made: Any) -> list[Any]:
    leaves: list[Any] = torch.utils._pytree.tree_leaves(made)
    return leaves


def _leaf(value: Tensor) -> Tensor:
    """What arrives on another rank: the values, and no history."""
    return value.detach().requires_grad_(value.is_floating_point() or value.is_complex())


def _now(clock: Callable[[], float], gpus: Iterable[torch.device]) -> float:
    """The time when all that GPUs were asked for is done."""
    for gpu in gpus:
        torch.cuda.synchronize(gpu)
    return clock()
