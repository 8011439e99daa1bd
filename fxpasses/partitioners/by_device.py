"""Propose which device runs which node: capability, memory and speed, on the order that the graph already has.

The nodes keep their order; each device takes runs of consecutive nodes, so the parts can never wait for each other.
What must stay together (a tuple and its ``getitem``, all that touches a storage up to its last write) is never cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import attrs
import numpy as np
from numpy.typing import NDArray
from torch.fx import GraphModule, Node

from fxpasses.devices import Device, Link, Topology
from fxpasses.effects import EffectAnalysis, analyze_effects
from fxpasses.errors import InfeasibleError, PlacementError, user_line
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.cost import (
    NodeCost,
    measure_node,
    seconds_on,
    storage_bytes,
    tensor_bytes,
    tensors_in,
)
from fxpasses.partitioners.linear_cuts import ChainProblem, Run, solve_chain
from fxpasses.units import format_bytes

__all__ = ["DevicePlacement", "Objective", "place_by_device", "predict_times"]

Objective = Literal["latency", "throughput", "memory"]
_OBJECTIVES = ("latency", "throughput", "memory")


@attrs.frozen(eq=False)
class DevicePlacement:
    """A proposal: which part of the graph runs where.

    Args:
        assignment: Parts in execution order, named after their device (``left``, ``left_1`` for its second run).
        device_of: The device of each part.
        topology: Devices and links.
        objective: What was made small.
        seconds: Predicted seconds of one run, transfers included.
        load: Predicted busy seconds of each device.
        reasons: For each part, why it is where it is and why it ends where it ends.
    """

    assignment: Assignment
    device_of: Mapping[str, Device]
    topology: Topology
    objective: Objective
    seconds: float
    load: Mapping[str, float]
    reasons: Mapping[str, str]


@attrs.frozen(eq=False)
class GraphFigures:
    """The numbers of a graph that placing needs, one entry per compute node in graph order.

    Args:
        nodes: The compute nodes.
        costs: What each does.
        constants: For each node, the storages of the parameters, buffers and constants it uses, with their bytes.
        live: Bytes of activations that are alive while each node runs (counted over the whole graph).
        crossing: Bytes that a cut right before each node would send.
        glued: Whether a cut right before a node is forbidden.
        needs: Bytes that must be on a device while one node runs there: what it reads and what it makes.
    """

    nodes: Sequence[Node]
    costs: Sequence[NodeCost]
    constants: Sequence[Mapping[int, int]]
    live: NDArray[np.int64]
    crossing: NDArray[np.int64]
    glued: NDArray[np.bool_]
    needs: Sequence[int]

    @classmethod
    def of(cls, graph_module: GraphModule, effects: EffectAnalysis | None = None) -> GraphFigures:
        """Measure a graph in one walk over its nodes and edges."""
        effects = effects or analyze_effects(graph_module)
        nodes = [node for node in graph_module.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
        sizes = _constant_sizes(graph_module, effects)
        position = {node: index for index, node in enumerate(nodes)}
        costs = [measure_node(node) for node in nodes]
        constants = [_constants_of(node, effects, sizes) for node in nodes]
        return cls(
            nodes,
            costs,
            constants,
            _live_bytes(graph_module, nodes, position, effects, sizes),
            _crossing_bytes(nodes, position),
            _glued(nodes, position, effects),
            [
                _read_bytes(node, effects, sizes) + sum(held.values()) + cost.bytes_written
                for node, cost, held in zip(nodes, costs, constants, strict=True)
            ],
        )


def _constant_sizes(graph_module: GraphModule, effects: EffectAnalysis) -> dict[int, int]:
    """Bytes of each storage that parameters, buffers and constants live in; tied tensors share a storage."""
    sizes: dict[int, int] = {}
    for node in graph_module.graph.find_nodes(op="get_attr"):
        if tensors := tensors_in(node.meta.get("val")):
            for storage in effects.storages(node):
                sizes[storage] = max(sizes.get(storage, 0), storage_bytes(tensors[0]))
    return sizes


def _constants_of(node: Node, effects: EffectAnalysis, sizes: Mapping[int, int]) -> dict[int, int]:
    """The constants that a node reads, directly or through a view."""
    return {
        storage: sizes[storage]
        for used in node.all_input_nodes
        for storage in effects.storages(used)
        if storage in sizes
    }


def _read_bytes(node: Node, effects: EffectAnalysis, constants: Mapping[int, int]) -> int:
    """Bytes of the activations that a node reads."""
    return sum(
        tensor_bytes(tensor)
        for used in node.all_input_nodes
        if not any(storage in constants for storage in effects.storages(used))
        for tensor in tensors_in(used.meta.get("val"))
    )


def _last_use(node: Node, position: Mapping[Node, int], end: int) -> int:
    return max((position.get(user, end) for user in node.users), default=-1)


def _live_bytes(
    graph_module: GraphModule,
    nodes: Sequence[Node],
    position: Mapping[Node, int],
    effects: EffectAnalysis,
    constants: Mapping[int, int],
) -> NDArray[np.int64]:
    """Bytes alive while each node runs: a storage lives from its first value to the last use of its last alias."""
    end = len(nodes)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    size: dict[int, int] = {}
    for node in graph_module.graph.nodes:
        if node.op in ("get_attr", "output"):
            continue
        tensors = tensors_in(node.meta.get("val"))
        if not tensors:
            continue
        here = position.get(node, 0)
        storages = [storage for storage in effects.storages(node) if storage not in constants]
        share = max(1, len(storages))
        for storage in storages:
            first.setdefault(storage, here)
            last[storage] = max(last.get(storage, here), here, _last_use(node, position, end))
            size[storage] = max(size.get(storage, 0), sum(map(tensor_bytes, tensors)) // share)
    change = np.zeros(end + 2, dtype=np.int64)
    for storage, start in first.items():
        change[start] += size[storage]
        change[min(last[storage], end) + 1] -= size[storage]
    return np.cumsum(change)[:end]


def _crossing_bytes(nodes: Sequence[Node], position: Mapping[Node, int]) -> NDArray[np.int64]:
    """What a cut right before each node would send: values made before it and used at or after it."""
    end = len(nodes)
    change = np.zeros(end + 2, dtype=np.int64)
    for index, node in enumerate(nodes):
        last = min(_last_use(node, position, -1), end - 1)
        if last > index:
            size = sum(map(tensor_bytes, tensors_in(node.meta.get("val"))))
            change[index + 1] += size
            change[last + 1] -= size
    return np.cumsum(change)[:end]


def _glued(nodes: Sequence[Node], position: Mapping[Node, int], effects: EffectAnalysis) -> NDArray[np.bool_]:
    """Where a cut would separate what belongs together: spans from a first to a last member are never cut."""
    spans: list[tuple[int, int]] = []
    touched: dict[int, int] = {}
    last_write: dict[int, int] = {}
    for index, node in enumerate(nodes):
        for storage in (*effects.storages(node), *effects.of(node).reads, *effects.of(node).writes):
            touched.setdefault(storage, index)
        for storage in effects.of(node).writes:
            last_write[storage] = index
        if not tensors_in(node.meta.get("val")) or isinstance(node.meta.get("val"), (tuple, list)):
            last = _last_use(node, position, -1)
            spans.append((index, min(last, len(nodes) - 1)) if _is_container(node) else (index, index))
        opened = effects.region_stack(node)
        if opened and opened[-1] in position:
            spans.append((position[opened[-1]], index))
    spans += [(touched[storage], index) for storage, index in last_write.items() if _holds_data(storage, effects)]
    change = np.zeros(len(nodes) + 2, dtype=np.int64)
    for start, stop in spans:
        if stop > start:
            change[start + 1] += 1
            change[stop + 1] -= 1
    return np.cumsum(change)[: len(nodes)] > 0


def _is_container(node: Node) -> bool:
    return isinstance(node.meta.get("val"), (tuple, list))


def _holds_data(storage: int, effects: EffectAnalysis) -> bool:
    """Whether a storage id stands for memory; the random generator and the outside world are no reason to glue."""
    return storage >= 0


def place_by_device(
    graph_module: GraphModule,
    devices: Topology | Iterable[Device],
    links: Iterable[Link] = (),
    *,
    objective: Objective = "latency",
    supports: Callable[[Device, Node], bool] | None = None,
) -> DevicePlacement:
    """Cut a graph into runs of consecutive nodes and give each run a device.

    Args:
        graph_module: A graph whose nodes carry ``val``.
        devices: Where it may run.
        links: Connections; pairs without one use the default.
        objective: ``latency`` (one sample through all devices), ``throughput`` (the busiest device) or ``memory`` (as
            few devices as hold it, then balanced).
        supports: Whether a device can run a node; by default each device answers for itself.

    Returns:
        The proposal. It never mutates the graph.

    Raises:
        PlacementError: an unknown objective.
        InfeasibleError: an op too large for every device, or a model too large for all of them.
    """
    topology = Topology.of(devices, links)
    if objective not in _OBJECTIVES:
        raise PlacementError(f"There is no objective {objective!r}; there are {', '.join(_OBJECTIVES)}.")
    effects = analyze_effects(graph_module)
    figures = GraphFigures.of(graph_module, effects)
    allowed = _allowed(graph_module, figures.nodes, topology, supports)
    _refuse_oversized(figures, topology, allowed)
    problem = ChainProblem(
        seconds=np.array([[seconds_on(cost, device) for cost in figures.costs] for device in topology.devices]),
        allowed=allowed,
        constants=figures.constants,
        live=figures.live,
        crossing=figures.crossing,
        glued=figures.glued,
        memory=[device.memory for device in topology.devices],
        transfer=[[_transfer(topology, a, b) for b in topology.devices] for a in topology.devices],
        objective=objective,
    )
    solution = solve_chain(problem)
    if solution is None:
        raise _does_not_fit(figures, topology)
    return _as_placement(graph_module, figures, topology, objective, solution.runs, solution.seconds, solution.load)


def _transfer(topology: Topology, source: Device, target: Device) -> tuple[float, float]:
    """Seconds of latency and seconds per byte between two devices."""
    if source.name == target.name:
        return 0.0, 0.0
    link = topology.link(source.name, target.name)
    return link.latency, 1.0 / link.bandwidth


def _allowed(
    graph_module: GraphModule,
    nodes: Sequence[Node],
    topology: Topology,
    supports: Callable[[Device, Node], bool] | None,
) -> NDArray[np.bool_]:
    submodules: dict[str, Any] = dict(graph_module.named_modules())
    allowed = np.ones((len(topology.devices), len(nodes)), dtype=bool)
    for row, device in enumerate(topology.devices):
        if device.supports is not None or supports is not None:
            for column, node in enumerate(nodes):
                answer = supports(device, node) if supports is not None else device.runs(submodules, node)
                allowed[row, column] = answer
    nowhere = np.flatnonzero(~allowed.any(axis=0))
    if nowhere.size:
        node = nodes[int(nowhere[0])]
        raise InfeasibleError(
            f"No device supports {node.name} ({node.target}); allow it on one of "
            f"{', '.join(device.name for device in topology.devices)}, or add a device that runs everything.",
            node=node,
        )
    return allowed


def _refuse_oversized(figures: GraphFigures, topology: Topology, allowed: NDArray[np.bool_]) -> None:
    memory = np.array([device.memory for device in topology.devices])
    for index, node in enumerate(figures.nodes):
        need = figures.needs[index]
        largest = float(memory[allowed[:, index]].max())
        if need > largest:
            line = user_line(node)
            raise InfeasibleError(
                f"{node.name} ({node.target}) needs {format_bytes(need)} on one device for what it reads and makes, "
                f"but the largest device that can run it has {format_bytes(largest)}"
                + (f"; it comes from {line}." if line else "."),
                node=node,
                missing_bytes=int(need - largest),
                reason="a single op is too large for every device",
            )


def _does_not_fit(figures: GraphFigures, topology: Topology) -> InfeasibleError:
    unique: dict[int, int] = {}
    for constants in figures.constants:
        unique.update(constants)
    need = sum(unique.values()) + int(figures.live.max(initial=0))
    have = sum(device.memory for device in topology.devices)
    budgets = ", ".join(f"{device.name} {format_bytes(device.memory)}" for device in topology.devices)
    if need > have:
        return InfeasibleError(
            f"The model needs {format_bytes(need)} (parameters, buffers and the largest set of live activations), but "
            f"all devices together have {format_bytes(have)} ({budgets}): {format_bytes(need - have)} are missing.",
            missing_bytes=int(need - have),
            reason="the model is too large for all devices together",
        )
    return InfeasibleError(
        f"The model needs {format_bytes(need)} and all devices together have {format_bytes(have)} ({budgets}), but no "
        "cut into runs of consecutive operators keeps every budget; give one device more memory.",
        reason="no cut keeps every budget",
    )


def _as_placement(
    graph_module: GraphModule,
    figures: GraphFigures,
    topology: Topology,
    objective: Objective,
    runs: Sequence[Run],
    seconds: float,
    load: Sequence[float],
) -> DevicePlacement:
    partition_of: dict[Node, str] = {}
    device_of: dict[str, Device] = {}
    taken: dict[str, int] = {}
    for run in runs:
        device = topology.devices[run.device]
        count = taken.get(device.name, 0)
        taken[device.name] = count + 1
        part = device.name if count == 0 else f"{device.name}_{count}"
        device_of[part] = device
        partition_of.update((node, part) for node in figures.nodes[run.start : run.stop])
    assignment = Assignment.of(graph_module, partition_of, order=list(device_of))
    loads = {device.name: load[index] for index, device in enumerate(topology.devices)}
    reasons = dict(zip(device_of, _reasons(figures, topology, objective, runs), strict=True))
    return DevicePlacement(assignment, device_of, topology, objective, seconds, loads, reasons)


def _bytes_of(figures: GraphFigures, start: int, stop: int) -> int:
    """Constants of a run of nodes, each storage once, and the most bytes alive during it."""
    constants: dict[int, int] = {}
    for uses in figures.constants[start:stop]:
        constants.update(uses)
    return sum(constants.values()) + int(figures.live[start:stop].max(initial=0))


def _reasons(figures: GraphFigures, topology: Topology, objective: str, runs: Sequence[Run]) -> Iterator[str]:
    """A sentence for each run: what forced the cut, or what it saves."""
    whole = _bytes_of(figures, 0, len(figures.nodes))
    for index, run in enumerate(runs):
        device = topology.devices[run.device]
        if len(runs) == 1:
            yield f"the whole model fits {device.name}, and no other choice has a smaller {objective}"
        elif whole > device.memory:
            end = _cut_text(figures, runs[index + 1]) if index + 1 < len(runs) else "it ends with the model"
            yield f"the whole model ({format_bytes(whole)}) does not fit {device.name}; {end}"
        else:
            end = _cut_text(figures, runs[index + 1]) if index + 1 < len(runs) else "it ends with the model"
            yield f"{device.name} runs these operators for the smallest {objective}; {end}"


def _cut_text(figures: GraphFigures, following: Run) -> str:
    sent = int(figures.crossing[following.start])
    return f"it ends before {figures.nodes[following.start].name}, where {format_bytes(sent)} cross"


def predict_times(
    graph_module: GraphModule, assignment: Assignment, device_of: Mapping[str, Device], topology: Topology
) -> tuple[float, dict[str, float]]:
    """Predict seconds of one run, parts one after the other, and the busy seconds of each device.

    Args:
        graph_module: The unsplit graph.
        assignment: Which node is in which part.
        device_of: The device of each part.
        topology: Devices and links.

    Returns:
        Seconds of one run with all transfers, and seconds by device; a transfer keeps both ends busy.
    """
    load = {device.name: 0.0 for device in topology.devices}
    total = 0.0
    sent: dict[tuple[Node, str], None] = {}
    for node, part in assignment.partition_of.items():
        device = device_of[str(part)]
        busy = seconds_on(measure_node(node), device)
        load[device.name] += busy
        total += busy
        for used in node.all_input_nodes:
            source = assignment.partition_of.get(used)
            if source is None or device_of[str(source)].name == device.name or (used, device.name) in sent:
                continue
            sent[used, device.name] = None
            size = sum(map(tensor_bytes, tensors_in(used.meta.get("val"))))
            seconds = topology.seconds(device_of[str(source)].name, device.name, size)
            load[device.name] += seconds
            load[device_of[str(source)].name] += seconds
            total += seconds
    return total, load
