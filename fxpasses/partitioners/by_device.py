"""Propose which device runs which node: capability, memory and speed, for any fx graph whose nodes carry values.

The graph becomes a problem for :func:`~fxpasses.partitioners.solve_placement`; its answer is checked against the memory
that is predicted, and comes back as parts that can run one after the other.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import get_args

import attrs
from torch.fx import GraphModule, Node

from fxpasses.devices import Device, Link, Topology
from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.device_times import predict_times, times_of
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.costs.training_course import Training
from fxpasses.partitioners.placing.budget_checks import check_budgets, training_figures
from fxpasses.partitioners.placing.device_reasons import (
    TOO_LARGE_TOGETHER,
    alone_reason,
    does_not_fit,
    reasons_of,
    refuse_impossible,
    replica_reason,
)
from fxpasses.partitioners.placing.device_replicas import Replicate, Replicated, add_device_replicas
from fxpasses.partitioners.placing.device_runs import runs_of
from fxpasses.partitioners.placing.device_search import search
from fxpasses.partitioners.placing.found_placements import Found
from fxpasses.partitioners.placing.objective_values import Objective
from fxpasses.partitioners.placing.one_device import is_fastest_everywhere, on_one_device
from fxpasses.partitioners.placing.requests import Contiguity, Request
from fxpasses.partitioners.placing.selectors import Selector, as_bans, as_pins
from fxpasses.partitioners.placing.state_nodes import state_nodes
from fxpasses.partitioners.placing.training_budgets import refuse_too_large_to_step
from fxpasses.partitioners.solvers.problem import as_groups
from fxpasses.partitioners.solvers.solving import bound_in_turn, solve_in_turn, solve_whole_parts

__all__ = ["Contiguity", "DevicePlacement", "Objective", "place_by_device", "predict_times"]

_REPLICATE = ("cheaper", "always", "never")
ENOUGH = 0.005
"""A pipeline that is proven to take at most this share more than the best is not searched further."""


@attrs.frozen(eq=False)
class DevicePlacement:
    """A proposal: which part of the graph runs where.

    Args:
        assignment: Parts in execution order, named after their device (``left``, ``left_1`` for its second run).
        device_of: The device of each part.
        topology: Devices and links.
        objective: What was made small.
        seconds: Predicted seconds of one run, one part after the other, transfers included.
        load: Predicted busy seconds of each device.
        reasons: For each part, why it is where it is and why it ends where it ends.
        contiguity: What a device may take: one run of a pipeline, a convex part, or anything; None where
            nobody searched.
        objective_value: What was made small, as it is predicted: seconds of the busiest device (``throughput``),
            seconds from the first operator to the last (``latency``), bytes of the fullest device (``memory``), or how
            many devices are used (``devices``).
        bound: No placement of this kind can be below it; 0 where nobody asked. Without replicas it is about placements
            that compute each operator once, with replicas about all.
        saved: For each part that computes something again (``assignment.replicas``), the bytes that cross less in one
            run because of it.
    """

    assignment: Assignment
    device_of: Mapping[str, Device]
    topology: Topology
    objective: Objective
    seconds: float
    load: Mapping[str, float]
    reasons: Mapping[str, str]
    contiguity: Contiguity | None = "pipeline"
    objective_value: float = math.nan
    bound: float = 0.0
    saved: Mapping[str, int] = attrs.field(factory=dict)

    @property
    def gap(self) -> float:
        """How far above the bound it is at most, as a share of the bound: 0 is proven optimal."""
        if self.objective_value <= self.bound:
            return 0.0
        return self.objective_value / self.bound - 1 if self.bound > 0 else math.inf

    @property
    def is_optimal(self) -> bool:
        """Whether the bound proves that no placement of this kind is better, up to rounding."""
        return self.gap <= 1e-9


def place_by_device(
    graph_module: GraphModule,
    devices: Topology | Iterable[Device],
    links: Iterable[Link] = (),
    *,
    objective: Objective = "latency",
    contiguity: Contiguity | None = None,
    supports: Callable[[Device, Node], bool] | None = None,
    pinned: Mapping[Selector, str] | None = None,
    forbidden: Mapping[Selector, Collection[str]] | None = None,
    colocate: Iterable[Iterable[Selector]] = (),
    time_budget: float = 0.5,
    seed: int = 0,
    training: Training | None = None,
    replicate: Replicate = "never",
    sends_state: bool = True,
) -> DevicePlacement:
    """Give each operator of a graph a device.

    Args:
        graph_module: A graph whose nodes carry ``val``: exported, traced with values, from ``make_fx`` or dynamo.
        devices: Where it may run.
        links: Connections; pairs without one use the default.
        objective: ``latency`` (one sample from its first operator to its last), ``throughput`` (the busiest device),
            ``memory`` (the fullest device) or ``devices`` (as few as hold it).
        contiguity: ``pipeline`` (each device has one turn), ``convex`` or ``free`` (a device may have several). By
            default a pipeline, and ``free`` where none keeps the budgets and pins; where some device cannot run
            everything, the better of ``pipeline`` and ``free``. For latency by default a device that holds everything
            takes it alone where none is faster: several are quicker only where branches run side by side, and are tried
            if a contiguity is given.
        supports: Whether a device can run a node; by default each device answers for itself.
        pinned: The device of a node, or of all operators of a module, given by its path.
        forbidden: The devices that a node or a module must not be on.
        colocate: Groups of nodes and modules that share a device.
        time_budget: About how many seconds the search may take; more may find better, or prove that nothing is.
        seed: For what the search draws; the same seed gives the same proposal.
        training: Place for training steps: budgets hold with gradients, the optimizer's state and what autograd saves;
            seconds are those of forward and backward.
        replicate: Whether a device computes again what is pure, needs no parameter, and would else be sent there (a
            mask, position ids, a rotary table, a view): ``cheaper`` where that takes fewer seconds and the objective
            gets no worse, ``always`` where it is cheap by itself, so that as few bytes as possible cross, or ``never``.
            ``assignment.replicas`` says what; budgets and figures count it.
        sends_state: Whether a parameter that several devices use (tied weights) lives on one of them, which sends it to
            the others in each run, as ``PlaceOnDevices`` does it; else each has its own.

    Returns:
        The proposal, every budget kept as :func:`~fxpasses.partitioners.costs.memory.predict_memory` predicts it (or
        :func:`~fxpasses.partitioners.predict_training_memory`). It never mutates the graph.

    Raises:
        PlacementError: an option that makes no sense; or no placement was found, and none is proven not to exist.
        InfeasibleError: an op too large for every device, or a model too large for all of them.
        MissingMetadataError: a node has neither a value nor a cost.
    """
    topology = Topology.of(devices, links)
    _check_option("objective", objective, get_args(Objective))
    if contiguity is not None:
        _check_option("contiguity", contiguity, get_args(Contiguity))
    _check_option("replicate", replicate, _REPLICATE)
    figures, step = GraphFigures.of(graph_module, sends_state=sends_state), None
    everywhere = refuse_impossible(figures, topology, supports)
    if training is not None:
        plain = figures
        figures, step = training_figures(figures, training)
        refuse_impossible(figures, topology, supports)
        refuse_too_large_to_step(plain, topology, step)
    request = Request(
        topology,
        objective,
        supports,
        as_groups(colocate),
        as_pins(pinned),
        as_bans(forbidden),
        time_budget,
        seed,
        step,
    )
    if not figures.nodes:
        return _nothing(figures, request, contiguity or "pipeline")
    kinds: tuple[Contiguity, ...] = ("pipeline",) if everywhere else ("pipeline", "free")
    alone = on_one_device(figures, request) if contiguity is None and objective == "latency" else None
    if alone is not None and everywhere and is_fastest_everywhere(figures, request, alone):
        return _on_one(figures, request, alone)
    if contiguity is None:
        found = _best_or_free(figures, request, kinds, alone)
    else:
        found = _best(figures, request, (contiguity,), None)
    again = add_device_replicas(figures, request, found, replicate)
    return _described(figures, request, found) if again is None else _with_replicas(request, again)


def _nothing(figures: GraphFigures, request: Request, contiguity: Contiguity) -> DevicePlacement:
    """A model that only hands on what it gets has no parts; what is asked for is checked all the same."""
    request.problem(figures, contiguity, figures.needs)
    return _described(
        figures, request, Found(runs_of(figures.graph_module, {}, figures.dependencies), contiguity, 0.0, 0.0)
    )


def _on_one(figures: GraphFigures, request: Request, alone: Found) -> DevicePlacement:
    """Nothing is sent then, and nothing waits; that parts on several devices may still win is said in the reason."""
    placement = _described(figures, request, alone)
    ((part, device),) = placement.device_of.items()
    others = len(request.topology.devices) - 1
    return attrs.evolve(placement, reasons={part: alone_reason(device, others, placement.bound, placement.is_optimal)})


def _check_option(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise PlacementError(f"There is no {name} {value!r}; there are {', '.join(known)}.")


def _best(figures: GraphFigures, request: Request, kinds: tuple[Contiguity, ...], alone: Found | None) -> Found:
    """The best answer over several kinds of placements; the first of those that are as good."""
    answers = [] if alone is None else [alone]
    failures: list[PlacementError] = []
    for kind in kinds:
        try:
            is_in_turn = request.objective == "latency" and kind != "free"
            answers += _in_turn(figures, request, kind) if is_in_turn else [search(figures, request, kind)]
        except InfeasibleError as error:
            failures.append(does_not_fit(figures, request.topology, error, kind))
        except PlacementError as error:
            failures.append(error)
    if not answers:
        raise failures[-1]
    return min(answers, key=lambda found: found.value)


def _best_or_free(figures: GraphFigures, request: Request, kinds: tuple[Contiguity, ...], alone: Found | None) -> Found:
    """Where no pipeline keeps the budgets, a free placement may; if none does, what the pipelines lack is told.

    Pins may be what no pipeline can keep, whatever the memory: then it is told what the free ones lack.
    """
    try:
        return _best(figures, request, kinds, alone)
    except PlacementError as error:
        if "free" in kinds or error.reason == TOO_LARGE_TOGETHER:
            raise
        try:
            return _best(figures, request, ("free",), None)
        except InfeasibleError:
            if isinstance(error, InfeasibleError) and error.missing_bytes is None:
                raise
            raise error from None


def _in_turn(figures: GraphFigures, request: Request, kind: Contiguity) -> list[Found]:
    """The pipeline whose parts take the least time one after the other; where that is far from proven, searched ones.

    Each part runs as a whole, so parts seldom gain by running side by side, as the operators of the search do. Where
    they may, pipelines of whole parts are annealed, from those that are known.
    """
    found: list[Found] = []
    with contextlib.suppress(PlacementError):
        found.append(search(figures, request, "pipeline", solve_in_turn, fallbacks=False))
    bound = _bound_in_turn(figures, request, found) if kind == "pipeline" else 0.0
    if not found or _least(found) > bound * (1 + ENOUGH):
        with contextlib.suppress(PlacementError) if found else contextlib.nullcontext():
            found.append(search(figures, request, kind))
            bound = max(bound, found[-1].bound)
    if _least(found) > bound * (1 + ENOUGH):
        starts = [*map(_homes, found)]
        whole = functools.partial(solve_whole_parts, starts=starts, parameters=state_nodes(figures).keys())
        told = attrs.evolve(request, state_with_first_user=True)  # these send a parameter from there
        with contextlib.suppress(PlacementError):
            found.append(search(figures, told, "pipeline", whole, fallbacks=False))
    bound = max([bound, *(each.bound for each in found if each.contiguity == kind)])
    return [attrs.evolve(each, contiguity=kind, bound=min(bound, each.value)) for each in found]


def _bound_in_turn(figures: GraphFigures, request: Request, found: list[Found]) -> float:
    plain = attrs.evolve(figures, sends_state=False) if figures.shared_state else figures
    problem = request.problem(plain, "pipeline", plain.needs)  # a parameter is sent beside the work
    return bound_in_turn(problem, _least(found))


def _least(found: list[Found]) -> float:
    return min((each.value for each in found), default=math.inf)


def _homes(found: Found) -> dict[Hashable, str]:
    """The device of each operator."""
    return {node: found.runs.device_of[str(part)] for node, part in found.runs.assignment.partition_of.items()}


def _with_replicas(request: Request, again: Replicated) -> DevicePlacement:
    """The figures are those of the graph with the replicas written into it; the assignment is of the graph itself."""
    runs = attrs.evolve(again.found.runs, assignment=again.assignment)
    written = _described(again.figures, request, attrs.evolve(again.found, runs=runs))
    assignment, reasons = again.found.runs.assignment, dict(written.reasons)
    for part, nodes in assignment.replicas.items():
        reasons[str(part)] += f"; {replica_reason(nodes, again.saved.get(str(part), 0))}"
    return attrs.evolve(written, assignment=assignment, reasons=reasons, saved=again.saved)


def _described(figures: GraphFigures, request: Request, found: Found) -> DevicePlacement:
    assignment, topology, value = found.runs.assignment, request.topology, found.value
    device_of = found.runs.devices(topology)
    seconds, load = times_of(figures, assignment, device_of, topology)
    is_optimal = value <= found.bound * (1 + 1e-9)
    reasons = reasons_of(assignment, device_of, _whole_bytes(figures, request), request.objective, is_optimal)
    return DevicePlacement(
        assignment,
        device_of,
        topology,
        request.objective,
        seconds,
        load,
        dict(zip(device_of, reasons, strict=True)),
        found.contiguity,
        value,
        found.bound,
    )


def _whole_bytes(figures: GraphFigures, request: Request) -> int:
    """What one device would need for everything."""
    if request.training is None:
        return figures.bytes_of(range(len(figures.nodes)))
    homes = dict.fromkeys(figures.nodes, request.topology.devices[0].name)
    runs = runs_of(figures.graph_module, homes, figures.dependencies)
    return check_budgets(figures, request.topology, runs, request.training, always=True).fullest
