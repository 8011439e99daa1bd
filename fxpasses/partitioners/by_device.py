"""Propose which device runs which node: capability, memory and speed, on the order that the graph already has.

The nodes keep their order; each device takes runs of consecutive nodes, so the parts can never wait for each other.
What must stay together (a tuple and its ``getitem``, all that touches a storage up to its last write) is never cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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

__all__ = ["DevicePlacement", "Objective", "place_by_device"]

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
    """

    assignment: Assignment
    device_of: Mapping[str, Device]
    topology: Topology
    objective: Objective
    seconds: float
    load: Mapping[str, float]


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
    """

    nodes: Sequence[Node]
    costs: Sequence[NodeCost]
    constants: Sequence[Mapping[int, int]]
    live: NDArray[np.int64]
    crossing: NDArray[np.int64]
    glued: NDArray[np.bool_]

    @classmethod
    def of(cls, graph_module: GraphModule, effects: EffectAnalysis | None = None) -> GraphFigures:
        """Measure a graph in one walk over its nodes and edges."""
        effects = effects or analyze_effects(graph_module)
        nodes = [node for node in graph_module.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
        position = {node: index for index, node in enumerate(nodes)}
        return cls(
            nodes,
            [measure_node(node) for node in nodes],
            [_constants_of(node, effects) for node in nodes],
            _live_bytes(graph_module, nodes, position, effects),
            _crossing_bytes(nodes, position),
            _glued(nodes, position, effects),
        )


def _constants_of(node: Node, effects: EffectAnalysis) -> dict[int, int]:
    """Storages of the attributes that a node uses, with their bytes; tied tensors share a storage."""
    found: dict[int, int] = {}
    for used in node.all_input_nodes:
        if used.op == "get_attr" and (tensors := tensors_in(used.meta.get("val"))):
            for storage in effects.storages(used)[:1]:
                found[storage] = max(found.get(storage, 0), storage_bytes(tensors[0]))
    return found


def _last_use(node: Node, position: Mapping[Node, int], end: int) -> int:
    return max((position.get(user, end) for user in node.users), default=-1)


def _live_bytes(
    graph_module: GraphModule, nodes: Sequence[Node], position: Mapping[Node, int], effects: EffectAnalysis
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
        storages = effects.storages(node) or (-1 - len(first),)
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


def _need_of(figures: GraphFigures, index: int) -> int:
    """Bytes that must be on a device while one node runs there: what it reads and what it makes."""
    node = figures.nodes[index]
    inputs = sum(
        tensor_bytes(tensor)
        for used in node.all_input_nodes
        if used.op != "get_attr"
        for tensor in tensors_in(used.meta.get("val"))
    )
    return inputs + sum(figures.constants[index].values()) + figures.costs[index].bytes_written


def _refuse_oversized(figures: GraphFigures, topology: Topology, allowed: NDArray[np.bool_]) -> None:
    memory = np.array([device.memory for device in topology.devices])
    for index, node in enumerate(figures.nodes):
        need = _need_of(figures, index)
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
    return DevicePlacement(assignment, device_of, topology, objective, seconds, loads)
