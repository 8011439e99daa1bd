"""Latency of graphs that are too large to be searched node by node: joined first, scheduled as they are at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fxpasses.partitioners.solvers.flat_lists import flat_lists
from fxpasses.partitioners.solvers.latency.joining import Joined, join_until
from fxpasses.partitioners.solvers.latency.levels import LatencyAnswer, Level
from fxpasses.partitioners.solvers.latency.placing_first import where_first
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Floats, Ints

__all__ = ["is_large", "listed", "run_in_order", "shortest_path", "shrunk", "widened"]

MAX_NODES = 4000
MAX_SENDING = 4_000_000
"""Nodes, and nodes times pairs of devices, up to which all nodes are searched."""
GROUPS = 2000


def is_large(tables: CostTables) -> bool:
    """Whether a graph has to be made smaller."""
    count, kinds = tables.seconds.shape
    return bool(count > MAX_NODES or count * kinds**2 > MAX_SENDING)


def shrunk(level: Level, topological: Ints, starts: Sequence[Ints]) -> tuple[Level, Joined]:
    """Join nodes that no start keeps apart, until there are about 2,000 groups, or fewer on many devices."""
    place = np.zeros(level.model.size, dtype=np.int64)
    if starts:
        place = np.unique(np.stack(starts), axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)
    goal = max(200, min(GROUPS, MAX_SENDING // level.model.devices**2))

    joined = join_until(level.tables, level.model, level.unit_of, topological, goal, place)
    return level.joined(joined), joined


def widened(level: Level, joined: Joined, topological: Ints, answer: LatencyAnswer) -> LatencyAnswer:
    """The schedule of all nodes from one of the groups."""
    home, order = answer.home[joined.unit], joined.order(answer.order, topological)
    start, makespan = run_in_order(level.tables, home[level.unit_of], order)
    return LatencyAnswer(home, order, start, makespan if np.isfinite(answer.value) else answer.value)


def listed(level: Level, topological: Ints) -> LatencyAnswer:
    """The schedule of all nodes, each by falling rank where it ends first and fits.

    Time O((nodes + edges) · devices).
    """
    tables = level.tables
    seconds = np.where(np.isfinite(tables.seconds), tables.seconds, 0.0)
    begins, needs = _needs(tables)
    fixed, output = tables.fixed.tolist(), tables.output.tolist()

    def comes(node: int, end: Floats, device_of: Ints) -> Floats:
        there = np.zeros(seconds.shape[1])
        for need in needs[begins[node] : begins[node + 1]]:
            source, size, made = device_of[need], output[need], end[need]
            own = max(there[source], made)
            sent = tables.latency[source] + size * tables.per_byte[source] if size else 0.0
            there = np.maximum(there, made + fixed[need] + sent)
            there[source] = own
        return there

    order = _by_rank(tables, topological)
    much = 1e9 * (1.0 + float(seconds.max(axis=1).sum()))
    home = where_first(level.model, level.unit_of, order, seconds, comes, much, np.zeros(seconds.shape[1]))
    start, makespan = run_in_order(tables, home[level.unit_of], order)
    return LatencyAnswer(home, order, start, makespan if level.legal(home[None])[0] else math.inf)


def _by_rank(tables: CostTables, topological: Ints) -> Ints:
    """Nodes by the longest way from their start to the end of all, with mean seconds and mean transfers."""
    own = np.where(np.isfinite(tables.seconds), tables.seconds, 0.0).mean(axis=1)
    own += tables.fixed + tables.latency.mean() * (tables.output > 0) + tables.output * tables.per_byte.mean()
    begins, needs = _needs(tables)
    rank = [0.0] * len(own)
    seconds = own.tolist()
    for node in topological[::-1].tolist():
        rank[node] += seconds[node]
        for need in needs[begins[node] : begins[node + 1]]:
            rank[need] = max(rank[need], rank[node])
    place = np.empty(len(topological), dtype=np.int64)
    place[topological] = np.arange(len(topological))
    return np.lexsort((place, -np.array(rank)))


def run_in_order(tables: CostTables, home: Ints, order: Ints) -> tuple[Floats, float]:
    """When each node starts, and when the last one ends. Time O(nodes + edges)."""
    end = [0.0] * len(order)
    start = np.zeros(len(order))
    free = [0.0] * len(tables.memory)
    begins, needs = _needs(tables)
    own, latency, per_byte = home.tolist(), tables.latency.tolist(), tables.per_byte.tolist()
    fixed, output, seconds = tables.fixed.tolist(), tables.output.tolist(), _seconds_at(tables, home)
    for node in order.tolist():
        device, begin = own[node], 0.0
        for need in needs[begins[node] : begins[node + 1]]:
            there, source = end[need], own[need]
            if source != device:
                size = output[need]
                there += fixed[need] + (latency[source][device] + size * per_byte[source][device] if size else 0.0)
            begin = max(begin, there)
        if seconds[node]:
            begin = max(begin, free[device])
            free[device] = begin + seconds[node]
        start[node], end[node] = begin, begin + seconds[node]
    return start, max(end, default=0.0)


def shortest_path(tables: CostTables, topological: Ints) -> float:
    """The longest path when each node is on its fastest device and nothing is sent. Time O(nodes · devices + edges)."""
    seconds = tables.seconds.min(axis=1).tolist()
    end = [0.0] * len(seconds)
    begins, needs = _needs(tables)
    for node in topological.tolist():
        end[node] = max(map(end.__getitem__, needs[begins[node] : begins[node + 1]]), default=0.0) + seconds[node]
    return max(end, default=0.0)


def _seconds_at(tables: CostTables, home: Ints) -> list[float]:
    found: list[float] = tables.seconds[np.arange(len(home)), home].tolist()
    return found


def _needs(tables: CostTables) -> tuple[list[int], list[int]]:
    """Where what each node needs begins, and what all need; many small lists would keep the garbage collector busy."""
    need, node = tables.edges[tables.edges[:, 0] != tables.edges[:, 1]].T
    begins, needs = flat_lists(node, need, len(tables.nodes))
    return begins.tolist(), needs.tolist()
