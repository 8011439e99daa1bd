"""Propose which device runs which node: capability, memory and speed, for any fx graph whose nodes carry values.

The graph becomes a problem for :func:`~fxpasses.partitioners.solve_placement`; its answer is checked against the memory
that is predicted, and comes back as parts that can run one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal

import attrs
from torch.fx import GraphModule, Node

from fxpasses.devices import Device, Link, Topology
from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.colocation import Selector
from fxpasses.partitioners.cost import seconds_of
from fxpasses.partitioners.device_reasons import does_not_fit, reasons_of, refuse_impossible
from fxpasses.partitioners.device_search import Found, Wish, search
from fxpasses.partitioners.graph_figures import GraphFigures, value_bytes
from fxpasses.partitioners.memory import predict_memory

__all__ = ["Contiguity", "DevicePlacement", "Objective", "place_by_device", "predict_times"]

Objective = Literal["latency", "throughput", "memory", "devices"]
Contiguity = Literal["pipeline", "convex", "free"]
_OBJECTIVES = ("latency", "throughput", "memory", "devices")
_CONTIGUITIES = ("pipeline", "convex", "free")


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
        contiguity: What a device may take: one run of a pipeline, a convex part, or anything.
        objective_value: What was made small, as it is predicted: seconds of the busiest device (``throughput``),
            seconds from the first operator to the last (``latency``), bytes of the fullest device (``memory``), or how
            many devices are used (``devices``).
        bound: No placement of this kind can be below it; 0 where nobody asked.
    """

    assignment: Assignment
    device_of: Mapping[str, Device]
    topology: Topology
    objective: Objective
    seconds: float
    load: Mapping[str, float]
    reasons: Mapping[str, str]
    contiguity: Contiguity = "pipeline"
    objective_value: float = math.nan
    bound: float = 0.0

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
) -> DevicePlacement:
    """Give each operator of a graph a device.

    Args:
        graph_module: A graph whose nodes carry ``val``: exported, traced with values, from ``make_fx`` or dynamo.
        devices: Where it may run.
        links: Connections; pairs without one use the default.
        objective: ``latency`` (one sample from its first operator to its last), ``throughput`` (the busiest device),
            ``memory`` (the fullest device) or ``devices`` (as few as hold it).
        contiguity: ``pipeline`` (each device has one turn), ``convex`` or ``free`` (a device may have several). By
            default a pipeline; where some device cannot run everything, the better of ``pipeline`` and ``free``.
        supports: Whether a device can run a node; by default each device answers for itself.
        pinned: The device of a node, or of all operators of a module, given by its path.
        forbidden: The devices that a node or a module must not be on.
        colocate: Groups of nodes and modules that share a device.
        time_budget: About how many seconds the search may take; more may find better, or prove that nothing is.
        seed: For what the search draws; the same seed gives the same proposal.

    Returns:
        The proposal, every budget kept as :func:`~fxpasses.partitioners.memory.predict_memory` predicts it. It never
        mutates the graph.

    Raises:
        PlacementError: an option that makes no sense; or no placement was found, and none is proven not to exist.
        InfeasibleError: an op too large for every device, or a model too large for all of them.
        MissingMetadataError: a node has neither a value nor a cost.
    """
    topology = Topology.of(devices, links)
    _check_option("objective", objective, _OBJECTIVES)
    if contiguity is not None:
        _check_option("contiguity", contiguity, _CONTIGUITIES)
    figures = GraphFigures.of(graph_module)
    everywhere = refuse_impossible(figures, topology, supports)
    wish = Wish(
        topology,
        objective,
        supports,
        [tuple(group) for group in colocate],
        dict(pinned or {}),
        dict(forbidden or {}),
        time_budget,
        seed,
    )
    kinds: tuple[Contiguity, ...] = ("pipeline",) if everywhere else ("pipeline", "free")
    found = _best(figures, wish, kinds if contiguity is None else (contiguity,))
    return _as_placement(figures, wish, found)


def _check_option(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise PlacementError(f"There is no {name} {value!r}; there are {', '.join(known)}.")


def _best(figures: GraphFigures, wish: Wish, kinds: tuple[Contiguity, ...]) -> Found:
    """The best answer over several kinds of placements; the first of those that are as good."""
    answers: list[Found] = []
    failures: list[PlacementError] = []
    for kind in kinds:
        try:
            if wish.objective == "latency":
                from fxpasses.partitioners.linear_placement import linear_search

                return linear_search(figures, wish)
            answers.append(search(figures, wish, kind))
        except InfeasibleError as error:
            failures.append(does_not_fit(figures, wish.topology, error, kind))
        except PlacementError as error:
            failures.append(error)
    if not answers:
        raise failures[-1]
    return min(answers, key=lambda found: found.solution.objective_value)


def _as_placement(figures: GraphFigures, wish: Wish, found: Found) -> DevicePlacement:
    assignment, topology = found.runs.assignment, wish.topology
    device_of = {part: topology[name] for part, name in found.runs.device_of.items()}
    seconds, load = _times(figures.measured, assignment, device_of, topology)
    value = found.solution.objective_value
    if wish.objective == "memory":  # what the solver counts is less than what is there
        held = predict_memory(figures.graph_module, assignment, device_of, figures.effects)
        value = float(max((memory.peak for memory in held.values()), default=0))
    is_optimal = value <= found.bound * (1 + 1e-9)
    reasons = reasons_of(figures, assignment, device_of, wish.objective, is_optimal)
    return DevicePlacement(
        assignment,
        device_of,
        topology,
        wish.objective,
        seconds,
        load,
        dict(zip(device_of, reasons, strict=True)),
        found.contiguity,
        value,
        found.bound,
    )


def predict_times(
    graph_module: GraphModule,
    assignment: Assignment,
    device_of: Mapping[str, Device],
    topology: Topology,
    *,
    seconds: Mapping[Node, float] | None = None,
) -> tuple[float, dict[str, float]]:
    """Predict seconds of one run, parts one after the other, and the busy seconds of each device.

    Args:
        graph_module: The unsplit graph.
        assignment: Which node is in which part.
        device_of: The device of each part.
        topology: Devices and links.
        seconds: What each node takes where it is, if that is known already.

    Returns:
        Seconds of one run with all transfers, and seconds by device: its nodes, each value that enters it, and each
        value that leaves it, once, over the slowest link that it takes.
    """
    known = seconds_of if seconds is None else lambda node, _device: seconds[node]
    return _times(known, assignment, device_of, topology)


def _times(
    seconds_on: Callable[[Node, Device], float],
    assignment: Assignment,
    device_of: Mapping[str, Device],
    topology: Topology,
) -> tuple[float, dict[str, float]]:
    load = {device.name: 0.0 for device in topology.devices}
    total = 0.0
    home: dict[Node, str] = {node: device_of[str(part)].name for node, part in assignment.partition_of.items()}
    for node, part in assignment.partition_of.items():
        busy = seconds_on(node, device_of[str(part)])
        load[home[node]] += busy
        total += busy
        targets = dict.fromkeys(home[user] for user in node.users if user in home and home[user] != home[node])
        if not targets or not (size := value_bytes(node)):
            continue
        taken = {target: topology.seconds(home[node], target, size) for target in targets}
        load[home[node]] += max(taken.values())
        for target, seconds in taken.items():
            load[target] += seconds
            total += seconds
    return total, load
