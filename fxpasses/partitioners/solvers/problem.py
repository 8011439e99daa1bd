"""A placement problem without torch: a graph with costs, devices and links; and what a solver answers.

The load of a device is the seconds of its nodes, plus each value that leaves it, once (over the slowest of the links
that it takes), plus each value that enters it, once: the cost model of Tarnawski et al., "Efficient algorithms for
device placement of DNN graph operators", NeurIPS 2020, with links. Its memory is the sum of what its nodes keep.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any

import attrs
import networkx as nx
import numpy as np
from numpy.typing import NDArray

from fxpasses.devices import Device, Link, Topology
from fxpasses.errors import PlacementError

__all__ = ["CostTables", "Figures", "PlacementProblem", "PlacementSolution", "evaluate", "tables_of"]

Floats = NDArray[np.float64]
Node = Hashable

OBJECTIVES = ("throughput", "memory")
CONTIGUITIES = ("pipeline",)
NOT_YET = ("latency", "convex", "free")


def _as_tuples(groups: Iterable[Iterable[Node]]) -> tuple[tuple[Node, ...], ...]:
    return tuple(tuple(group) for group in groups)


@attrs.frozen(eq=False)
class PlacementProblem:
    """What to place, where, and what counts.

    The attributes of a node of ``graph``, all optional:

    * ``seconds``: a number, or a mapping from device names to numbers; a device that the mapping leaves out, or gives
      as None or ``inf``, cannot run the node;
    * ``kept_bytes``: what the node keeps on its device;
    * ``output_bytes`` (which go over the links) or ``output_seconds`` (the same over each link): its output.

    Args:
        graph: The nodes; an edge says that one needs the other's output. Nodes on a cycle stay together.
        devices: Their names and memory count; a node's seconds are its own.
        links: Bandwidth and latency between devices; pairs left out use the default link.
        objective: ``throughput``: the smallest largest load of a device; ``memory``: the smallest largest number of
            bytes that a device keeps. Budgets are kept under both.
        contiguity: ``pipeline``: each device takes a convex set, and the devices need no value back from later ones.
        colocate: Groups of nodes that share a device.
        pinned: The device of a node, by name.
        forbidden: Devices that a node must not be on, by name.
        time_budget: About how many seconds the exact search may take. It is turned into a number of steps, so that
            the answer does not depend on how fast the machine is; 0 leaves the exact search out.
        seed: For the random ones among the linear orders.

    Raises:
        PlacementError: a node, a device, a number or an option that makes no sense, or that is not there yet.
        InputError: no device, two of one name, or a link to a device that is not there.
    """

    graph: nx.DiGraph[Any]
    devices: tuple[Device, ...] = attrs.field(converter=tuple)
    links: tuple[Link, ...] = attrs.field(default=(), converter=tuple)
    objective: str = "throughput"
    contiguity: str = attrs.field(default="pipeline", kw_only=True)
    colocate: tuple[tuple[Node, ...], ...] = attrs.field(default=(), kw_only=True, converter=_as_tuples)
    pinned: Mapping[Node, str] = attrs.field(factory=dict, kw_only=True)
    forbidden: Mapping[Node, Collection[str]] = attrs.field(factory=dict, kw_only=True)
    time_budget: float = attrs.field(default=2.0, kw_only=True)
    seed: int = attrs.field(default=0, kw_only=True)

    def __attrs_post_init__(self) -> None:
        Topology.of(self.devices, self.links)
        if not isinstance(self.graph, nx.DiGraph):
            raise PlacementError(f"The graph is a networkx.DiGraph, not {type(self.graph).__name__}.")
        _check_choice("objective", self.objective, OBJECTIVES)
        _check_choice("contiguity", self.contiguity, CONTIGUITIES)
        if isinstance(self.time_budget, bool) or not 0 <= self.time_budget < math.inf:
            raise PlacementError(f"The time budget is a number of seconds, not {self.time_budget!r}.")
        self._check_nodes("colocate", (node for group in self.colocate for node in group))
        self._check_nodes("pinned", self.pinned)
        self._check_nodes("forbidden", self.forbidden)
        for node, device in self.pinned.items():
            self._check_device("pinned", node, device)
        for node, devices in self.forbidden.items():
            if isinstance(devices, str):
                raise PlacementError(f"`forbidden` maps {node!r} to {devices!r}; give a list of device names.")
            for device in devices:
                self._check_device("forbidden", node, device)

    def _check_nodes(self, field: str, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if node not in self.graph:
                raise PlacementError(f"`{field}` names {node!r}, which is not a node of the graph.")

    def _check_device(self, field: str, node: Node, device: str) -> None:
        if all(device != known.name for known in self.devices):
            names = ", ".join(known.name for known in self.devices)
            raise PlacementError(f"`{field}` puts {node!r} together with the device {device!r}; there are {names}.")


def _check_choice(field: str, value: str, known: tuple[str, ...]) -> None:
    if value in known:
        return
    if value in NOT_YET:
        raise PlacementError(f"There is no solver for {field}={value!r} yet; there is one for {', '.join(known)}.")
    raise PlacementError(f"There is no {field} {value!r}; there is {', '.join(known)}.")


@attrs.frozen
class PlacementSolution:
    """Where each node goes, and what that is predicted to cost.

    Args:
        device_of: The device of each node, by name, in the order of the graph.
        order: The devices that are used, in the order in which values flow through them.
        objective_value: Seconds of the busiest device (``throughput``), or bytes of the fullest (``memory``).
        bound: No placement of this kind can be below it.
        load: Seconds of each device: its nodes and the values that leave and enter it.
        compute: Seconds of each device's nodes alone.
        kept_bytes: Bytes that each device keeps.
    """

    device_of: Mapping[Node, str]
    order: tuple[str, ...]
    objective_value: float
    bound: float
    load: Mapping[str, float]
    compute: Mapping[str, float]
    kept_bytes: Mapping[str, int]

    @property
    def gap(self) -> float:
        """How far above the bound the answer is, as a share of it: 0 is proven optimal."""
        if self.objective_value <= self.bound:
            return 0.0
        return self.objective_value / self.bound - 1 if self.bound > 0 else math.inf

    @property
    def is_optimal(self) -> bool:
        """Whether the bound proves that no placement of this kind is better (up to rounding)."""
        return self.gap <= 1e-9

    def nodes(self, device: str) -> list[Node]:
        """The nodes on one device, in the order of the graph."""
        return [node for node, name in self.device_of.items() if name == device]


@attrs.frozen(eq=False)
class CostTables:
    """The costs of a problem as arrays: ``n`` nodes, ``k`` devices.

    Args:
        nodes: The nodes in the order of the graph.
        seconds: ``(n, k)``; ``inf`` where the device cannot run the node, or must not.
        kept: Bytes, ``(n,)``.
        output: Bytes of each output, ``(n,)``.
        fixed: Seconds of each output over any link, ``(n,)``.
        latency: Seconds between each pair of devices, ``(k, k)``.
        per_byte: Seconds per byte between each pair of devices, ``(k, k)``.
        memory: The budget of each device, ``(k,)``.
        edges: Positions of the ends of each edge, ``(e, 2)``.
    """

    nodes: tuple[Node, ...]
    seconds: Floats
    kept: NDArray[np.int64]
    output: Floats
    fixed: Floats
    latency: Floats
    per_byte: Floats
    memory: Floats
    edges: NDArray[np.int64]

    def sending(self, source: int, target: int) -> Floats:
        """Seconds that the output of each node takes from one device to another, ``(n,)``."""
        over_link = self.latency[source, target] + self.output * self.per_byte[source, target]
        return self.fixed + np.where(self.output > 0, over_link, 0.0)


def tables_of(problem: PlacementProblem) -> CostTables:
    """Read the attributes of the nodes.

    Raises:
        PlacementError: a negative or missing number, or a name that is no device.
    """
    names = [device.name for device in problem.devices]
    nodes = tuple(problem.graph)
    position = {node: index for index, node in enumerate(nodes)}
    seconds = np.empty((len(nodes), len(names)))
    for row, (node, facts) in zip(seconds, problem.graph.nodes(data=True), strict=True):
        row[:] = _seconds_of(node, facts.get("seconds", 0.0), names)
        row[[names.index(device) for device in problem.forbidden.get(node, ())]] = np.inf
        if (home := problem.pinned.get(node)) is not None:
            row[np.arange(len(names)) != names.index(home)] = np.inf
    topology = Topology.of(problem.devices, problem.links)
    links = [[topology.link(source, target) for target in names] for source in names]
    facts_of = problem.graph.nodes
    return CostTables(
        nodes,
        seconds,
        np.array([_number(node, facts_of[node], "kept_bytes") for node in nodes], dtype=np.int64),
        np.array([_number(node, facts_of[node], "output_bytes") for node in nodes], dtype=np.float64),
        np.array([_number(node, facts_of[node], "output_seconds") for node in nodes], dtype=np.float64),
        np.array([[link.latency for link in row] for row in links], dtype=np.float64),
        np.array([[1 / link.bandwidth for link in row] for row in links], dtype=np.float64),
        np.array([device.memory for device in problem.devices], dtype=np.float64),
        np.array([(position[a], position[b]) for a, b in problem.graph.edges], dtype=np.int64).reshape(-1, 2),
    )


def _seconds_of(node: Node, given: Any, names: list[str]) -> list[float]:
    if not isinstance(given, Mapping):
        return [_checked(node, "seconds", given)] * len(names)
    for name in given:
        if name not in names:
            raise PlacementError(f"Node {node!r} has seconds for the device {name!r}; there are {', '.join(names)}.")
    return [math.inf if given.get(name) is None else _checked(node, "seconds", given[name]) for name in names]


def _number(node: Node, facts: Mapping[str, Any], key: str) -> float:
    value = _checked(node, key, facts.get(key, 0))
    if math.isinf(value):
        raise PlacementError(f"Node {node!r} has {key}={value!r}; give a finite number.")
    return value


def _checked(node: Node, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not value >= 0:
        raise PlacementError(f"Node {node!r} has {key}={value!r}; give a number that is not negative.")
    return value  # type: ignore[return-value]  # np.number is a number too


@attrs.frozen(eq=False)
class Figures:
    """What one assignment costs: seconds and bytes per device, ``(k,)`` each."""

    load: Floats
    compute: Floats
    kept: NDArray[np.int64]

    def value(self, objective: str) -> float:
        """The number that the objective makes small."""
        return float(self.kept.max() if objective == "memory" else self.load.max())


def evaluate(tables: CostTables, device_of: NDArray[np.int64]) -> Figures:
    """Cost of an assignment given as the position of each node's device; ``inf`` where a device cannot run a node.

    Time O(nodes + edges + k²).
    """
    count = len(tables.memory)
    rows = np.arange(len(device_of))
    compute: Floats = np.zeros(count)
    np.add.at(compute, device_of, tables.seconds[rows, device_of])
    kept = np.zeros(count, dtype=np.int64)
    np.add.at(kept, device_of, tables.kept)
    load = compute.copy()
    source, target = tables.edges[:, 0], device_of[tables.edges[:, 1]]
    crossing = device_of[source] != target
    pairs = np.unique(np.stack([source[crossing], target[crossing]], axis=1), axis=0)
    slowest = np.zeros(len(device_of))
    for node, device in pairs.tolist():
        home = int(device_of[node])
        over_link = tables.latency[home, device] + tables.output[node] * tables.per_byte[home, device]
        taken = float(tables.fixed[node] + (over_link if tables.output[node] > 0 else 0.0))
        load[device] += taken
        slowest[node] = max(slowest[node], taken)
    np.add.at(load, device_of, slowest)
    return Figures(load, compute, kept)
