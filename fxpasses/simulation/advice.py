"""What would help most: the objective of a placement if one device were larger or faster, or one link faster.

Each change is evaluated with the operators where they are. A larger memory then holds parameters that were loaded in
each run; else it only helps once operators move, so those changes, and the others as far as the graph is small enough,
are placed again as well; the better answer counts. Where such a placement is better on the devices as they are, too, it
was the search that missed it, and that is said.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import attrs
from torch.fx import GraphModule, Node

from fxpasses.devices import Device, Topology
from fxpasses.errors import PlacementError
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.device_times import predict_makespan, predict_times
from fxpasses.partitioners.costs.graph_figures import no_bytes, value_bytes
from fxpasses.partitioners.costs.memory_facts import MemoryFacts
from fxpasses.partitioners.costs.node_costs import seconds_of
from fxpasses.partitioners.costs.parameter_loads import ParameterUses
from fxpasses.partitioners.costs.shared_state import sent_state, shared_state
from fxpasses.partitioners.costs.single_loads import ParameterLoad
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.partitioners.placing.objective_values import objective_text
from fxpasses.simulation.faster_links import with_faster_link
from fxpasses.units import format_bytes

__all__ = ["Advice", "Placed", "Replace", "what_helps"]

MORE = 1.25
"""How much larger a memory and how much faster a device is tried."""

LINK = 2.0
"""How much faster a link is tried."""

MOST_WORK, LEAST_ROUNDS, LARGEST = 2_500, 2, 20_000
"""Operators times changes that are placed again; at least so many changes, unless the graph is larger than this."""

MOST_HELD = 32
"""Parts of which it is asked whether a larger memory holds them."""

LEAST_GAIN = 0.002
"""Share of the objective below which a change is not worth a sentence."""

_SEARCH = "another placement on the same devices, which a larger time_budget or another seed may find"

Placed = tuple[GraphModule, Assignment, Mapping[str, Device]]
"""The graph (or a copy of it with replicas), its parts, and the device of each."""

Replace = Callable[[Topology, Mapping[str, float]], Placed]
"""Place the same graph on other devices, some of them so many times as fast as they are, by name; what was measured
there is not in the topology. May raise PlacementError."""


@attrs.frozen
class Advice:
    """One change of the machine, and what it would do to the objective.

    Args:
        what: ``memory``, ``device`` or ``link``; or ``search``, where another placement does it on the same devices.
        name: The device, or the two ends of the link.
        change: The change in words.
        objective: What ``before`` and ``after`` are: seconds (``latency``, ``throughput``), bytes (``memory``) or
            devices.
        before: The objective now.
        after: The objective then.
        how: ``placed again``, or ``same placement`` where the operators stay where they are.
        run: What takes the seconds: a ``run``, or a ``training step``.
    """

    what: Literal["memory", "device", "link", "search"]
    name: str
    change: str
    objective: str
    before: float
    after: float
    how: Literal["placed again", "same placement"]
    run: str = "run"

    @property
    def gain(self) -> float:
        """By which share the objective would shrink."""
        return 1 - self.after / self.before if self.before else 0.0

    def sentence(self) -> str:
        """The change and what it does, in words."""
        before, after = objective_text(self.objective, self.before), objective_text(self.objective, self.after)
        subject = {
            "latency": f"one {self.run} would take",
            "throughput": "the busiest device would work",
            "memory": "the fullest device would hold",
            "devices": "it would need",
        }[self.objective]
        moved = ", operators placed again" if self.how == "placed again" else ", operators where they are"
        return f"With {self.change}, {subject} {after} instead of {before} ({-100 * self.gain:+.1f}%{moved})."


@attrs.frozen(eq=False)
class _Facts:
    """What graphs need in memory: each is measured once, whatever is placed again."""

    _known: dict[GraphModule, MemoryFacts]

    def __getitem__(self, graph_module: GraphModule) -> MemoryFacts:
        if graph_module not in self._known:
            self._known[graph_module] = MemoryFacts.of(graph_module)
        return self._known[graph_module]


@attrs.frozen(eq=False)
class _Now:
    """The placement as it is, and what its devices do."""

    graph_module: GraphModule
    assignment: Assignment
    device_of: Mapping[str, Device]
    topology: Topology
    objective: str
    seconds: float
    load: Mapping[str, float]
    peaks: Mapping[str, int]
    loads: Sequence[ParameterLoad]
    step: TrainingStep | None
    uses: ParameterUses
    facts: _Facts
    offloaded: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        return _value(self.objective, self.seconds, self.load, self.peaks)


@attrs.frozen
class _Change:
    what: Literal["memory", "device", "link"]
    name: str
    words: str
    topology: Topology
    urgency: float


def what_helps(
    graph_module: GraphModule,
    assignment: Assignment,
    device_of: Mapping[str, Device],
    topology: Topology,
    *,
    objective: str,
    replace: Replace | None = None,
    step: TrainingStep | None = None,
    offloaded: Collection[str] = (),
    memory: MemoryFacts | None = None,
) -> list[Advice]:
    """Try each change of the machine, one at a time.

    Args:
        graph_module: The graph.
        assignment: Which node is in which part.
        device_of: The device of each part.
        topology: Devices and links.
        objective: ``latency``, ``throughput``, ``memory`` or ``devices``.
        replace: How the graph is placed; without it, operators stay where they are, and no larger memory is tried.
        step: For training: times and memory are those of the training step.
        offloaded: The parts that load their parameters from main memory.
        memory: What some graph needs in memory, if it is measured already: this one, or what ``replace`` gives.

    Returns:
        The changes that help, those that help most first. How many are placed again depends on the size of the graph
        only, so that the answer is the same on every machine.
    """
    facts = _Facts({} if memory is None else {memory.graph_module: memory})
    now = _now(graph_module, assignment, device_of, topology, objective, step, facts, offloaded)
    if not now.value:
        return []
    size = max(1, len(assignment.partition_of))
    rounds = 0 if replace is None or size > LARGEST else max(LEAST_ROUNDS, MOST_WORK // size)
    found, unchanged = [], now.value
    for index, change in enumerate(_most_urgent_first(_changes(now))):
        after, how = _with_same_placement(now, change), "same placement"
        if replace is not None and index < rounds and (again := _placed_again(now, change, replace)) is not None:
            after, how = (again.value, "placed again") if again.value < after * (1 - 1e-6) else (after, how)
            unchanged = min(unchanged, _without_change(now, again))
        found.append(Advice(change.what, change.name, change.words, objective, now.value, after, how))  # type: ignore[arg-type]
    found.append(Advice("search", "", _SEARCH, objective, now.value, unchanged, "placed again"))
    run = "run" if step is None else "training step"
    helping = [attrs.evolve(advice, run=run) for advice in found if advice.gain > LEAST_GAIN]
    return sorted(helping, key=lambda advice: -advice.gain)


def _now(
    graph_module: GraphModule,
    assignment: Assignment,
    device_of: Mapping[str, Device],
    topology: Topology,
    objective: str,
    step: TrainingStep | None,
    facts: _Facts,
    offloaded: Collection[str] = (),
    faster: str | None = None,
) -> _Now:
    uses = ParameterUses.of(graph_module, assignment, device_of, facts[graph_module], step)
    peaks, loads = {name: held.peak for name, held in uses.memory(offloaded).items()}, uses.loads(offloaded)
    seconds, load = _times(graph_module, assignment, device_of, topology, objective, step, loads, faster)
    placed = (graph_module, assignment, device_of, topology, objective, seconds, load, peaks, loads, step)
    return _Now(*placed, uses, facts, tuple(offloaded))


def _value(objective: str, seconds: float, load: Mapping[str, float], peaks: Mapping[str, int]) -> float:
    if objective == "latency":
        return seconds
    if objective == "throughput":
        return max(load.values(), default=0.0)
    if objective == "memory":
        return max(peaks.values(), default=0)
    return len(peaks)


def _changes(now: _Now) -> Iterator[_Change]:
    """One change a device and link; the urgency says which are worth placing again first."""
    for device in now.topology.devices:
        if device.available_mem_bytes:
            more = int(device.available_mem_bytes * MORE)
            words = f"{format_bytes(more)} instead of {format_bytes(device.memory)} on {device.name}"
            fullness = 1 + now.peaks.get(device.name, 0) / device.memory
            yield _Change("memory", device.name, words, _replaced(now.topology, device, memory=more), fullness)
        if now.objective in ("latency", "throughput"):
            words = f"{device.name} {100 * (MORE - 1):.0f}% faster"
            share = now.load[device.name] / (now.seconds or 1.0)
            yield _Change("device", device.name, words, _replaced(now.topology, device, speed=MORE), share)
    if now.objective in ("latency", "throughput"):
        for first, second in _used_links(now):
            name = f"{first}:{second}"
            faster = with_faster_link(now.topology, first, second, LINK)
            yield _Change("link", name, f"the link {name} twice as fast", faster, 0.0)


def _most_urgent_first(changes: Iterable[_Change]) -> Iterator[_Change]:
    """Memories and speeds by turns, of each kind the most urgent one first."""
    ordered = sorted(changes, key=lambda change: -change.urgency)
    kinds = ([change for change in ordered if (change.what == "memory") is wanted] for wanted in (True, False))
    for pair in itertools.zip_longest(*kinds):
        yield from (change for change in pair if change is not None)


def _replaced(topology: Topology, device: Device, *, memory: int | None = None, speed: float = 1.0) -> Topology:
    changed = attrs.evolve(
        device,
        available_mem_bytes=device.available_mem_bytes if memory is None else memory,
        flops=device.flops * speed,
        flops_by_dtype={dtype: rate * speed for dtype, rate in device.flops_by_dtype.items()},
        bandwidth=device.bandwidth * speed,
        overhead=device.overhead / speed,
    )
    devices = tuple(changed if each.name == device.name else each for each in topology.devices)
    return Topology(devices, topology.links)


def _used_links(now: _Now) -> Sequence[tuple[str, str]]:
    """The links that were given, and the pairs without one between which something crosses; a route is no link."""
    links = now.topology.links
    pairs: dict[tuple[str, str], None] = {(link.first, link.second): None for link in links if not link.via}
    known = {frozenset((link.first, link.second)) for link in links}
    home = {node: now.device_of[str(part)].name for node, part in now.assignment.partition_of.items()}
    crossing = [(home[node], home.get(user)) for node in home if value_bytes(node) for user in node.users]
    state = sent_state(shared_state(now.graph_module), now.assignment, now.device_of, now.loads)
    crossing += [(each.source, target) for each in state for target in each.users]
    for source, target in crossing:
        if target not in (None, source) and frozenset((source, target)) not in known:
            known.add(frozenset((source, target)))
            pairs[source, target] = None
    return list(pairs)


def _with_same_placement(now: _Now, change: _Change) -> float:
    if change.what == "memory":
        return _with_fewer_loads(now, change.topology[change.name])
    faster = change.name if change.what == "device" else None
    there = {part: now.topology[device.name] for part, device in now.device_of.items()}
    seconds, load = _times(
        now.graph_module, now.assignment, there, change.topology, now.objective, now.step, now.loads, faster
    )
    return _value(now.objective, seconds, load, now.peaks)


def _with_fewer_loads(now: _Now, larger: Device) -> float:
    """The objective where a larger memory holds parameters that are loaded now: of the largest parts first."""
    own = [part for part in now.offloaded if now.device_of[part].name == larger.name]
    if not own:
        return now.value
    uses, offloaded = now.uses, list(now.offloaded)
    for part in sorted(own, key=lambda part: -uses.bytes_of(part))[:MOST_HELD]:
        fewer = [each for each in offloaded if each != part]
        if uses.memory(fewer)[larger.name].peak <= larger.memory:
            offloaded = fewer
    seconds, load = _times(
        now.graph_module,
        now.assignment,
        now.device_of,
        now.topology,
        now.objective,
        now.step,
        uses.loads(offloaded),
    )
    peaks = {name: held.peak for name, held in uses.memory(offloaded).items()}
    return _value(now.objective, seconds, load, peaks)


def _times(
    graph_module: GraphModule,
    assignment: Assignment,
    device_of: Mapping[str, Device],
    topology: Topology,
    objective: str,
    step: TrainingStep | None,
    loads: Sequence[ParameterLoad],
    faster: str | None = None,
) -> tuple[float, dict[str, float]]:
    """Seconds of one run as the objective counts them, and the load of each device; measured seconds scale as well."""
    known: dict[Node, float] = {}
    measured, returned = (seconds_of, no_bytes) if step is None else (step.seconds, step.returned)

    def seconds(node: Node, device: Device) -> float:
        if node not in known:
            known[node] = measured(node, device) / (MORE if device.name == faster else 1.0)
        return known[node]

    shared = shared_state(graph_module)
    total, load = predict_times(
        graph_module, assignment, device_of, topology, seconds=seconds, returned=returned, loads=loads, shared=shared
    )
    if objective == "latency":
        total = predict_makespan(
            assignment,
            device_of,
            topology,
            seconds=seconds,
            returned=returned,
            loads=loads,
            shared=shared,
            share=None if step is None else step.backward_share,
        )
    return total, load


def _placed_again(now: _Now, change: _Change, replace: Replace) -> _Now | None:
    faster = change.name if change.what == "device" else None
    try:
        graph_module, assignment, device_of = replace(change.topology, {} if faster is None else {faster: MORE})
    except PlacementError:
        return None
    step = _step_of(now, graph_module)
    there = {part: now.topology[device.name] for part, device in device_of.items()}  # as it is: it may be measured
    return _now(graph_module, assignment, there, change.topology, now.objective, step, now.facts, faster=faster)


def _step_of(now: _Now, graph_module: GraphModule) -> TrainingStep | None:
    """The same training of a graph; one with other replicas is traced again."""
    if now.step is None or graph_module is now.graph_module:
        return now.step
    return TrainingStep.of(graph_module, now.step.training)


def _without_change(now: _Now, again: _Now) -> float:
    """The objective of a new placement on the devices as they are; infinite if it passes a budget."""
    there = {part: now.topology[device.name] for part, device in again.device_of.items()}
    same = _now(again.graph_module, again.assignment, there, now.topology, now.objective, again.step, now.facts)
    fits = all(peak <= now.topology[name].memory for name, peak in same.peaks.items())
    return same.value if fits else math.inf
