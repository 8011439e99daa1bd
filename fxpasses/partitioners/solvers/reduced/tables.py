"""The costs of a placement problem as arrays, and what an assignment costs by them."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.devices import Device, Link, as_given
from fxpasses.errors import PlacementError
from fxpasses.partitioners.solvers.problem import Node, PlacementProblem
from fxpasses.partitioners.solvers.reduced.attributes import check_attributes

__all__ = ["CostTables", "Figures", "Floats", "Ints", "evaluate", "tables_of"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FLOATS = frozenset({float, np.float64})
NUMBERS = FLOATS | {int}
"""Types of numbers that need no look each."""
MOST_BYTES = 2.0**53
"""Bytes up to which floats are exact."""


@attrs.frozen(eq=False)
class CostTables:
    """The costs of a problem as arrays: ``n`` nodes, ``k`` devices, ``p`` shared keys.

    Args:
        nodes: The nodes in the order of the graph.
        seconds: ``(n, k)``; ``inf`` where the device cannot run the node, or must not.
        kept: Bytes, ``(n,)``.
        live: Bytes alive while each node runs, ``(n,)``.
        shared: Bytes of each shared key, ``(p,)``.
        shares: Pairs (key, node that names it), ``(·, 2)``.
        output: Bytes of each output, ``(n,)``.
        fixed: Seconds of each output over any link, ``(n,)``.
        latency: Seconds between each pair of devices, ``(k, k)``.
        per_byte: Seconds per byte between each pair of devices, ``(k, k)``.
        memory: The budget of each device, ``(k,)``.
        edges: Positions of the ends of each edge: who makes a value and who uses it, ``(e, 2)``.
        forward: The forward node of each backward node, -1 for the others, ``(n,)``.
        replicable: Whether a node may be computed on several devices, ``(n,)``.
    """

    nodes: tuple[Node, ...]
    seconds: Floats
    kept: Ints
    live: Ints
    shared: Ints
    shares: Ints
    output: Floats
    fixed: Floats
    latency: Floats
    per_byte: Floats
    memory: Floats
    edges: Ints
    forward: Ints
    replicable: NDArray[np.bool_]

    def sending(self, source: int, target: int) -> Floats:
        """Seconds that the output of each node takes from one device to another, ``(n,)``."""
        over_link = self.latency[source, target] + self.output * self.per_byte[source, target]
        return self.fixed + np.where(self.output > 0, over_link, 0.0)

    @property
    def precedence(self) -> Ints:
        """Pairs (a, b) of nodes: in a pipeline, b is not on an earlier device than a.

        Those are the edges between forward nodes, and the edges between backward nodes the other way round. A backward
        node may use what any forward node made: it runs later.
        """
        is_backward = self.forward[self.edges] >= 0
        there = self.edges[~is_backward.any(axis=1)]
        back = self.edges[is_backward.all(axis=1)][:, ::-1]
        return np.concatenate([there, back]) if len(back) else there


def tables_of(problem: PlacementProblem) -> CostTables:
    """Read the attributes of the nodes. Time O(nodes × devices + edges).

    Raises:
        PlacementError: a negative or missing number, a name that is no device, a key of two sizes, a backward node
            without its forward one, an attribute that looks like one that is read, no cost at all.
    """
    check_attributes(problem.graph)
    nodes = tuple(problem.graph)
    position = {node: index for index, node in enumerate(nodes)}
    latency, per_byte = _links(problem)
    shared, shares = _shared(problem)
    ends = [position[end] for edge in problem.graph.edges for end in edge]
    edges = np.array(ends, dtype=np.int64).reshape(-1, 2)
    tables = CostTables(
        nodes,
        _seconds(problem, position),
        _bytes_of(problem, "kept_bytes"),
        _bytes_of(problem, "live_bytes"),
        shared,
        shares,
        _numbers(problem, "output_bytes"),
        _numbers(problem, "output_seconds"),
        latency,
        per_byte,
        np.array([_budget(device) for device in problem.devices], dtype=np.float64),
        edges,
        _forward(problem, position, edges),
        _replicable(problem),
    )
    _check_sums(tables)
    return tables


def _budget(device: Device) -> float:
    """Its bytes; what nothing that nodes keep, share and have alive can fill is no limit: sums may overflow."""
    return device.memory if device.memory <= 3 * MOST_BYTES else math.inf


def _check_sums(tables: CostTables) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        nodes = np.where(np.isfinite(tables.seconds), tables.seconds, 0.0).max(axis=1, initial=0.0)
        values = tables.fixed + tables.latency.max(initial=0.0) + tables.output * tables.per_byte.max(initial=0.0)
        total = float((nodes + 2 * len(tables.memory) * values).sum())
    if not math.isfinite(total):
        raise PlacementError(
            "The seconds of all nodes and values together are more than a float can hold; give smaller ones, or faster "
            "links."
        )


def _links(problem: PlacementProblem) -> tuple[Floats, Floats]:
    index = {device.name: place for place, device in enumerate(problem.devices)}
    usual = Link("a", "b")
    latency = np.full((len(index), len(index)), float(usual.latency))
    per_byte = np.full((len(index), len(index)), 1 / usual.bandwidth)
    given = {(index[link.first], index[link.second]): link for link in problem.links}
    for (source, target), link in given.items():
        for ends in ((source, target), (target, source)):
            own = given.get(ends, link)  # a link counts both ways, unless another leads the other way
            latency[ends], per_byte[ends] = own.latency, 1 / own.bandwidth
    return latency, per_byte


def _seconds(problem: PlacementProblem, position: Mapping[Node, int]) -> Floats:
    index = {device.name: place for place, device in enumerate(problem.devices)}
    seconds = np.empty((len(position), len(index)))
    given = [facts.get("seconds", 0.0) for _node, facts in problem.graph.nodes(data=True)]
    if (alike := _plain(given)) is not None:
        seconds[:] = alike[:, None]
    elif (each := _plain_by_name(given, index)) is not None:
        seconds[:] = each
    else:
        for row, (node, own) in enumerate(zip(position, given, strict=True)):
            seconds[row] = (
                _seconds_by_name(node, own, index) if isinstance(own, Mapping) else _checked(node, "seconds", own)
            )
    for node, devices in problem.forbidden.items():
        seconds[position[node], [index[device] for device in devices]] = np.inf
    for node, home in problem.pinned.items():
        seconds[position[node], np.arange(len(index)) != index[home]] = np.inf
    return seconds


def _plain_by_name(given: Sequence[Any], index: Mapping[str, int]) -> Floats | None:
    """Numbers for each device, looked at together; None where each needs a look."""
    if len(index) < 2 or not all(type(own) is dict and len(own) == len(index) for own in given):
        return None
    try:
        found = _plain(list(itertools.chain.from_iterable(map(operator.itemgetter(*index), given))))
    except KeyError:
        return None
    return None if found is None else found.reshape(-1, len(index))


def _seconds_by_name(node: Node, given: Mapping[str, Any], index: Mapping[str, int]) -> list[float]:
    found: list[Any] = [given.get(name) for name in index]
    if len(given) == len(index) and FLOATS.issuperset(map(type, found)) and min(found) >= 0 <= sum(found):
        return found  # what nearly all are, looked at together; a sum with nan is not at least 0
    for name in given:
        if name not in index:
            there = ", ".join(index)
            raise PlacementError(f"Node {node!r} has seconds for the device {as_given(name)}; there are {there}.")
    return [math.inf if given.get(name) is None else _checked(node, "seconds", given[name]) for name in index]


def _numbers(problem: PlacementProblem, key: str) -> Floats:
    given = [facts.get(key, 0) for _node, facts in problem.graph.nodes(data=True)]
    if (found := _plain(given)) is not None and np.isfinite(found).all():
        return found
    looked = [_number(node, key, value) for node, value in zip(problem.graph, given, strict=True)]
    return np.array(looked, dtype=np.float64)


def _plain(given: Sequence[Any]) -> Floats | None:
    """Numbers that are not negative, looked at together; None where each needs a look."""
    if not NUMBERS.issuperset(map(type, given)):
        return None
    try:
        found = np.array(given, dtype=np.float64)
    except OverflowError:
        return None
    return found if (found >= 0).all() else None


def _bytes_of(problem: PlacementProblem, key: str) -> Ints:
    return _whole(_numbers(problem, key), lambda row: f"node {tuple(problem.graph)[row]!r} has {key}")


def _whole(sizes: Floats, name: Callable[[int], str]) -> Ints:
    """Bytes, rounded up; ``name`` says which number is the largest."""
    whole = np.ceil(sizes)
    with np.errstate(over="ignore"):
        total = whole.sum()
    if total > MOST_BYTES:
        row = int(np.argmax(sizes))
        raise PlacementError(
            f"All bytes together must be 2**53 at most, or their sums are not exact; {name(row)}={sizes[row]:g}."
        )
    return whole.astype(np.int64)


def _number(node: Node, key: str, value: Any) -> float:
    if math.isinf(checked := _checked(node, key, value)):
        raise PlacementError(f"Node {node!r} has {key}={value!r}; give a finite number.")
    return checked


def _checked(node: Node, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not value >= 0:
        raise PlacementError(f"Node {node!r} has {key}={value!r}; give a number that is not negative.")
    try:
        held = float(value)
    except OverflowError:
        held = math.inf
    if math.isinf(held) and value != math.inf:
        raise PlacementError(f"Node {node!r} has a number of {key} that no float can hold; give a smaller one.")
    return held


def _shared(problem: PlacementProblem) -> tuple[Ints, Ints]:
    """Bytes of each shared key, and pairs (key, node); keys in the order in which they are named first."""
    number: dict[Any, int] = {}
    sizes: list[float] = []
    pairs: list[int] = []
    for row, (node, facts) in enumerate(problem.graph.nodes(data=True)):
        if not (given := facts.get("shared_bytes")):
            continue
        if not isinstance(given, Mapping):
            raise PlacementError(f"Node {node!r} has shared_bytes={given!r}; give a mapping of keys to bytes.")
        for key, value in given.items():
            size = _number(node, f"shared_bytes[{key!r}]", value)
            known = number.setdefault(key, len(sizes))
            if known == len(sizes):
                sizes.append(size)
            if sizes[known] != size:
                raise PlacementError(
                    f"Node {node!r} says that the shared key {key!r} has {size:.15g} bytes; a node before it says "
                    f"{sizes[known]:.15g}. Give one size."
                )
            pairs += (known, row)
    keys = tuple(number)
    whole = _whole(np.array(sizes, dtype=np.float64), lambda key: f"the shared key {keys[key]!r} has a size")
    return whole, np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _replicable(problem: PlacementProblem) -> NDArray[np.bool_]:
    given = [facts.get("replicable", False) for _node, facts in problem.graph.nodes(data=True)]
    for node, value in zip(problem.graph, given, strict=True):
        if not isinstance(value, (bool, np.bool_)):
            raise PlacementError(f"Node {node!r} has replicable={value!r}; give True or False.")
    return np.array(given, dtype=bool)


def _forward(problem: PlacementProblem, position: Mapping[Node, int], edges: Ints) -> Ints:
    forward = np.full(len(position), -1, dtype=np.int64)
    for row, (node, facts) in enumerate(problem.graph.nodes(data=True)):
        if (partner := facts.get("backward_of")) is None:
            continue
        if not problem.graph.has_node(partner) or partner == node:
            raise PlacementError(f"Node {node!r} is backward_of {partner!r}, which is no other node of the graph.")
        if problem.graph.nodes[partner].get("backward_of") is not None:
            raise PlacementError(
                f"Node {node!r} is backward_of {partner!r}, which is a backward node itself; name the forward one."
            )
        forward[row] = position[partner]
    names = tuple(position)
    wrong = (forward[edges[:, 0]] >= 0) & (forward[edges[:, 1]] < 0)
    for backward, other in edges[wrong][:1].tolist():
        raise PlacementError(
            f"Node {names[other]!r} needs {names[backward]!r}, a backward node, and says not whose backward it is "
            "itself; give it backward_of, too."
        )
    return forward


@attrs.frozen(eq=False)
class Figures:
    """What one assignment costs: seconds and bytes per device, ``(k,)`` each."""

    load: Floats
    compute: Floats
    kept: Ints
    used: int

    def value(self, objective: str) -> float:
        """The number that the objective makes small."""
        if objective == "devices":
            return float(self.used)
        return float(self.kept.max() if objective == "memory" else self.load.max())

    def rank(self, objective: str) -> tuple[float, float]:
        """What decides between two assignments: the objective, then the largest load."""
        return self.value(objective), float(self.load.max())


def evaluate(tables: CostTables, device_of: Ints) -> Figures:
    """Cost of an assignment given as the position of each node's device; ``inf`` where a device cannot run a node.

    Time O((nodes + edges) log(edges) + k).
    """
    count = len(tables.memory)
    compute = np.bincount(
        device_of, weights=tables.seconds[np.arange(len(device_of)), device_of], minlength=count
    ).astype(np.float64)
    source, target = tables.edges[:, 0], device_of[tables.edges[:, 1]]
    crossing = device_of[source] != target
    pairs = np.unique(source[crossing] * count + target[crossing])  # each value once to each device
    node, device = pairs // count, pairs % count
    home = device_of[node]
    over_link = tables.latency[home, device] + tables.output[node] * tables.per_byte[home, device]
    taken = tables.fixed[node] + np.where(tables.output[node] > 0, over_link, 0.0)
    load = compute + np.bincount(device, weights=taken, minlength=count)
    slowest = np.zeros(len(device_of))
    np.maximum.at(slowest, node, taken)
    load += np.bincount(device_of, weights=slowest, minlength=count)
    return Figures(load, compute, _bytes(tables, device_of), len(np.unique(device_of)))


def _bytes(tables: CostTables, device_of: Ints) -> Ints:
    count = len(tables.memory)
    kept = np.zeros(count, dtype=np.int64)
    np.add.at(kept, device_of, tables.kept)
    pairs = np.unique(tables.shares[:, 0] * count + device_of[tables.shares[:, 1]])
    np.add.at(kept, pairs % count, tables.shared[pairs // count])
    live = np.zeros(count, dtype=np.int64)
    np.maximum.at(live, device_of, tables.live)
    return kept + live
