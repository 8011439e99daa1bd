"""See a schedule before anything runs: who waits when, what each rank holds, and how evenly the work lies."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import attrs

from fxpasses.devices import Device, Link, Topology
from fxpasses.errors import InputError, StageError
from fxpasses.files import write_text
from fxpasses.pipelining.scheduling.actions import Action, Kind
from fxpasses.pipelining.scheduling.schedules import Schedule, find_schedule
from fxpasses.pipelining.scheduling.simulating import Run, Simulation, simulate
from fxpasses.pipelining.stage_costs import StageCost, StageFigures, stage_figures
from fxpasses.timeline import Span, Timeline
from fxpasses.units import format_bytes, format_seconds, parse_bytes

if TYPE_CHECKING:
    from fxpasses.pipelining.pipe import Pipe

__all__ = ["COLUMNS", "RankPreview", "SchedulePreview", "preview"]

COLUMNS = ("rank", "stages", "busy", "idle", "under way", "parameters", "gradients", "optimizer", "activations", "peak")
"""The columns of :meth:`SchedulePreview.table`."""

Optimizer = Literal["adam", "momentum", "sgd"]
_STATES = {"adam": 2, "momentum": 1, "sgd": 0}
_KINDS = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.BACKWARD_INPUT: "backward",
    Kind.BACKWARD_WEIGHT: "weight",
}


@attrs.frozen
class RankPreview:
    """What one rank does and holds.

    Args:
        rank: Which one.
        device: What it runs on.
        stages: The stages it runs.
        busy: Seconds in which it computes.
        idle: Its share of the whole time in which it waits.
        in_flight: Most micro-batches that it holds for their backward at one time, all its stages together.
        parameters: Bytes of parameters and buffers.
        gradients: Bytes of gradients.
        optimizer: Bytes of the optimizer's state.
        exchanged: Bytes of what it receives: torch's runtime has a place for each micro-batch from the first step on.
        activations: Most bytes of activations at one time, ``exchanged`` included.
    """

    rank: int
    device: Device
    stages: tuple[int, ...]
    busy: float
    idle: float
    in_flight: int
    parameters: int
    gradients: int
    optimizer: int
    exchanged: int
    activations: int

    @property
    def track(self) -> str:
        """What it is called in a timeline."""
        return (
            f"rank {self.rank}" if self.device.name == f"rank{self.rank}" else f"rank {self.rank} ({self.device.name})"
        )

    @property
    def peak(self) -> int:
        """The most bytes that it holds at one time."""
        return self.parameters + self.gradients + self.optimizer + self.activations

    @property
    def missing(self) -> int:
        """Bytes that its budget lacks; 0 where all fits."""
        budget = self.device.available_mem_bytes
        return 0 if budget is None else max(0, self.peak - budget)


@attrs.frozen
class SchedulePreview:
    """A schedule on given stages and devices, simulated.

    Args:
        schedule: Which one.
        num_microbatches: How many micro-batches a step has.
        costs: The cost of each stage.
        ranks: What each rank does and holds.
        simulation: When each action and each transfer runs.
        curves: For each rank its memory, as steps ``(second, bytes)``.
    """

    schedule: Schedule
    num_microbatches: int
    costs: tuple[StageCost, ...]
    ranks: tuple[RankPreview, ...]
    simulation: Simulation = attrs.field(repr=False)
    curves: tuple[tuple[tuple[float, int], ...], ...] = attrs.field(repr=False)

    @property
    def seconds(self) -> float:
        """How long one step takes, without loss and optimizer."""
        return self.simulation.seconds

    @property
    def bubble(self) -> float:
        """The share of all ranks' time in which they wait: ``(p - 1) / (m + p - 1)`` for GPipe with equal stages."""
        whole = self.seconds * len(self.ranks)
        return 1 - sum(rank.busy for rank in self.ranks) / whole if whole else 0.0

    @property
    def overhead(self) -> float:
        """Waiting over working: ``(p - 1) / (v m)`` for interleaved 1F1B with ``v`` equal stages a rank."""
        return self.bubble / (1 - self.bubble) if self.bubble < 1 else 0.0

    @property
    def imbalance(self) -> float:
        """The busiest rank's work over the mean; 1 where all have the same."""
        work = [rank.busy for rank in self.ranks]
        return max(work) * len(work) / sum(work) if sum(work) else 1.0

    @property
    def peak(self) -> int:
        """The most bytes that any rank holds."""
        return max(rank.peak for rank in self.ranks)

    @property
    def missing(self) -> int:
        """The bytes that the worst rank lacks; 0 where all fit."""
        return max(rank.missing for rank in self.ranks)

    def actions(self, rank: int) -> tuple[Action, ...]:
        """What a rank does, in order."""
        return tuple(run.action for run in self.simulation.runs[rank])

    def table(self) -> list[tuple[str, ...]]:
        """One row of text a rank, under :data:`COLUMNS`."""
        return [_row(rank) for rank in self.ranks]

    def timeline(self, *, transfers: bool = True, short: bool = False) -> Timeline:
        """The preview as spans and memory curves.

        Args:
            transfers: Whether transfers are there, on tracks of their own below the ranks.
            short: Whether spans are called by their micro-batch alone, as in the papers' figures.
        """
        spans = [self._span(run, short=short) for runs in self.simulation.runs for run in runs]
        tracks = [rank.track for rank in self.ranks]
        if transfers:
            spans += [
                Span(f"{move.source} to {move.target}", str(move.action), move.start, move.end - move.start, "copy")
                for move in sorted(self.simulation.moves, key=lambda move: (move.source, move.target, move.start))
                if move.end > move.start
            ]
        budgets = {rank.track: rank.device.available_mem_bytes for rank in self.ranks}
        return Timeline(tuple(spans), dict(zip(tracks, self.curves, strict=True)), budgets, tuple(tracks))

    def _span(self, run: Run, *, short: bool) -> Span:
        name = str(run.action.microbatch) if short else str(run.action)
        return Span(self.ranks[run.rank].track, name, run.start, run.end - run.start, _KINDS[run.action.kind])

    def chrome_trace(self) -> dict[str, Any]:
        """For Perfetto and ``chrome://tracing``."""
        return self.timeline().chrome_trace()

    def svg(self, *, width: int = 1000) -> str:
        """A picture of the ranks and their memory."""
        return self.timeline(transfers=False, short=True).svg(title=self.title, width=width)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a file that ends in ``.svg``, and the trace to any other.

        Raises:
            InputError: The file cannot be written.
        """
        write_text(path, self.svg() if os.fspath(path).endswith(".svg") else self.timeline().trace_text())

    @property
    def title(self) -> str:
        """The schedule and what comes of it, in a line."""
        return (
            f"{self.schedule.torch_name}, {self.num_microbatches} micro-batches: {format_seconds(self.seconds)} "
            f"a step, {self.bubble:.0%} waiting, at most {format_bytes(self.peak)} on a rank"
        )

    def to_json(self) -> dict[str, Any]:
        """The figures, for a program to read; times in seconds, sizes in bytes."""
        return {
            "schedule": self.schedule.name,
            "torch": self.schedule.torch_name,
            "microbatches": self.num_microbatches,
            "seconds": self.seconds,
            "bubble": self.bubble,
            "imbalance": self.imbalance,
            "peak": self.peak,
            "missing": self.missing,
            "ranks": [
                {
                    **attrs.asdict(rank, filter=lambda attribute, _value: attribute.name != "device"),
                    "device": rank.device.name,
                    "budget": rank.device.available_mem_bytes,
                    "peak": rank.peak,
                    "actions": " ".join(map(str, self.actions(rank.rank))),
                }
                for rank in self.ranks
            ],
        }

    def __str__(self) -> str:
        return self.title


def preview(
    stages: Pipe | Sequence[StageCost],
    schedule: str | Schedule = "1f1b",
    *,
    num_microbatches: int,
    ranks: int | None = None,
    devices: Topology | Iterable[Device] | None = None,
    links: Iterable[Link] = (),
    memory: int | str | None = None,
    backward: float = 2.0,
    optimizer: Optimizer | float = "adam",
    return_outputs: bool = True,
) -> SchedulePreview:
    """Simulate one training step of a pipe under a schedule; nothing is started and nothing runs.

    The order of each rank's actions is that of torch's runtime. Seconds are those of the cost model (roofline), or
    whatever the given costs say; :func:`~fxpasses.pipelining.stage_costs.measure_stage_costs` times them here.

    Args:
        stages: A pipe, or the cost of each stage.
        schedule: Its name, here or in torch.
        num_microbatches: How many micro-batches a step has.
        ranks: How many processes; as many as devices, or one a stage (two stages a rank for V schedules), by default.
        devices: What each rank runs on, in the order of ranks.
        links: The connections between them; they may name ranks' devices only.
        memory: The budget of every rank that has none of its own, in bytes or as ``"40GiB"``.
        backward: How many times a forward's seconds a backward takes, where the cost model says.
        optimizer: Which one, or how many bytes of state it holds for each byte of gradients.
        return_outputs: Whether the last stage collects the model's output, as ``schedule.step`` does by default.

    Returns:
        The preview. Loss and optimizer step are not in it.

    Raises:
        StageError: No such schedule, or torch's runtime would refuse these numbers.
        InputError: Devices, links, sizes, a backward or an optimizer that make no sense.
    """
    found = find_schedule(schedule)
    factor = _factor_of(optimizer)
    _check_number("backward", "how many forwards a backward takes", backward)
    figures = _figures_of(stages)
    topology, count = _ranks_of(found, len(figures), ranks, devices, links, memory)
    orders = found.orders(count, len(figures), num_microbatches)
    places = [topology.devices[found.rank_of(stage, count)] for stage in range(len(figures))]
    costs: list[StageCost] = [
        figure.cost_on(device, backward) if isinstance(figure, StageFigures) else figure
        for figure, device in zip(figures, places, strict=True)
    ]
    simulation = simulate(
        orders,
        len(costs),
        lambda action: _seconds_of(action, costs),
        lambda action, source, target: topology.seconds(
            topology.devices[source].name, topology.devices[target].name, _bytes_of(action, costs)
        ),
    )
    held = [
        _hold(rank, topology.devices[rank], costs, simulation, num_microbatches, factor, return_outputs)
        for rank in range(count)
    ]
    seen, curves = zip(*held, strict=True)
    return SchedulePreview(found, num_microbatches, tuple(costs), seen, simulation, curves)


def _factor_of(optimizer: Optimizer | float) -> float:
    """How many bytes of state an optimizer holds for each byte of gradients."""
    if isinstance(optimizer, str):
        if optimizer not in _STATES:
            raise InputError(
                f"There is no optimizer {optimizer!r}; there are {', '.join(_STATES)}, or give the bytes of state that "
                "it holds for each byte of gradients."
            )
        return _STATES[optimizer]
    _check_number("optimizer", "the bytes of state for each byte of gradients", optimizer)
    return optimizer


def _check_number(name: str, meaning: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise InputError(f"`{name}` is {meaning}, a number from 0 on, not {value!r}.")


def _figures_of(stages: Any) -> Sequence[StageFigures | StageCost]:
    if isinstance(stages, Sequence):
        if not stages or not all(isinstance(stage, (StageCost, StageFigures)) for stage in stages):
            raise StageError("preview() takes a pipe or a StageCost for each stage, and at least one stage")
        return list(stages)
    return stage_figures(stages)


def _ranks_of(
    schedule: Schedule,
    num_stages: int,
    ranks: int | None,
    devices: Topology | Iterable[Device] | None,
    links: Iterable[Link],
    memory: int | str | None,
) -> tuple[Topology, int]:
    """A device for each rank, and how many ranks there are."""
    if devices is None:
        count = max(1, num_stages // (schedule.per_rank or 1)) if ranks is None else ranks
        given: Topology | list[Device] = [Device(f"rank{rank}") for rank in range(count)]
    else:
        given = devices if isinstance(devices, Topology) else list(devices)
    topology = Topology.of(given, links)
    if ranks not in (None, len(topology.devices)):
        raise StageError(f"there are {ranks} ranks, but {len(topology.devices)} devices; give one device for each rank")
    budget = parse_bytes(memory) if isinstance(memory, str) else memory
    filled = [
        attrs.evolve(device, available_mem_bytes=budget) if device.available_mem_bytes is None else device
        for device in topology.devices
    ]
    return attrs.evolve(topology, devices=tuple(filled)), len(filled)


def _seconds_of(action: Action, costs: Sequence[StageCost]) -> float:
    """How long an action takes; torch's runtime leaves all of stage 0's backward to its second half, if any."""
    cost = costs[action.stage]
    both = cost.backward_inputs + cost.backward_weights
    first = action.stage == 0 and cost.backward_weights > 0
    return {
        Kind.FORWARD: cost.forward,
        Kind.BACKWARD: both,
        Kind.BACKWARD_INPUT: 0.0 if first else cost.backward_inputs,
        Kind.BACKWARD_WEIGHT: both if first else cost.backward_weights,
    }[action.kind]


def _bytes_of(action: Action, costs: Sequence[StageCost]) -> int:
    cost = costs[action.stage]
    return cost.sent if action.kind is Kind.FORWARD else cost.received


def _hold(
    rank: int,
    device: Device,
    costs: Sequence[StageCost],
    simulation: Simulation,
    num_microbatches: int,
    factor: float,
    return_outputs: bool,
) -> tuple[RankPreview, tuple[tuple[float, int], ...]]:
    """What a rank holds over time."""
    runs = simulation.runs[rank]
    stages = tuple(sorted({run.action.stage for run in runs}))
    own = [costs[stage] for stage in stages]
    parameters, gradients = sum(cost.parameters for cost in own), sum(cost.gradients for cost in own)
    exchanged = num_microbatches * sum(cost.received + cost.sent for cost in own)
    optimizer = int(factor * gradients)
    always = parameters + gradients + optimizer + exchanged
    steps, in_flight = _steps(runs, costs, always, return_outputs)
    busy = simulation.busy(rank)
    whole = simulation.seconds
    found = RankPreview(
        rank,
        device,
        stages,
        busy,
        1 - busy / whole if whole else 0.0,
        in_flight,
        parameters,
        gradients,
        optimizer,
        exchanged,
        max(size for _, size in steps) - always + exchanged,
    )
    return found, steps


def _steps(
    runs: Sequence[Run], costs: Sequence[StageCost], always: int, return_outputs: bool
) -> tuple[tuple[tuple[float, int], ...], int]:
    """The memory curve of a rank, and how many micro-batches it holds at most."""
    held, flying, most = always, 0, 0
    steps = [(0.0, held)]
    for run in runs:
        cost, kind = costs[run.action.stage], run.action.kind
        if kind is Kind.FORWARD:
            held += cost.kept
            flying += 1
        most = max(most, flying)
        steps.append((run.start, held + cost.working))
        if kind is Kind.BACKWARD_INPUT and run.action.stage:
            held += cost.between
        if kind is Kind.BACKWARD_WEIGHT and run.action.stage:
            held -= cost.between
        if kind.frees:
            held -= cost.kept - (cost.output if return_outputs else 0)
            flying -= 1
        steps.append((run.end, held))
    return tuple(steps), most


def _row(rank: RankPreview) -> tuple[str, ...]:
    budget = rank.device.available_mem_bytes
    of = "" if budget is None else f" of {format_bytes(budget)}"
    over = f", {format_bytes(rank.missing)} too much" if rank.missing else ""
    return (
        rank.track.removeprefix("rank "),
        ", ".join(map(str, rank.stages)),
        format_seconds(rank.busy),
        f"{rank.idle:.0%}",
        str(rank.in_flight),
        format_bytes(rank.parameters),
        format_bytes(rank.gradients),
        format_bytes(rank.optimizer),
        format_bytes(rank.activations),
        f"{format_bytes(rank.peak)}{of}{over}",
    )
