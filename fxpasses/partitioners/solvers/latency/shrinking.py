"""Latency of graphs that are too large to be searched node by node: joined first, scheduled as they are at the end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fxpasses.partitioners.solvers.latency.joining import Joined, join_until
from fxpasses.partitioners.solvers.latency.levels import LatencyAnswer, Level
from fxpasses.partitioners.solvers.latency.list_schedules import by_paths, on_one_device
from fxpasses.partitioners.solvers.latency.many_nodes import ManyNodes
from fxpasses.partitioners.solvers.reduced.columns import equal_columns
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Ints

__all__ = ["is_large", "shrunk", "simple_starts", "widened"]

MAX_NODES = 4000
MAX_SENDING = 4_000_000
"""Nodes, and nodes times pairs of devices, up to which all nodes are searched."""
GROUPS = 2000
ALONE = 4
"""How many devices are tried alone, of those that differ."""


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


def widened(nodes: ManyNodes, joined: Joined, answer: LatencyAnswer) -> LatencyAnswer:
    """The schedule of all nodes from one of the groups."""
    return nodes.scheduled(answer.home[joined.unit], joined.order(answer.order, nodes.topological))


def simple_starts(groups: Level) -> list[Ints]:
    """Assignments of groups that simple rules give: list schedules, paths, everything on one of the fastest devices."""
    listed = ManyNodes(groups).listed()
    fastest = np.argsort(groups.model.weight.sum(axis=0), kind="stable")
    different = fastest[np.sort(equal_columns(groups.model.weight[:, fastest])[0])[:ALONE]]
    return [*(answer.home for answer in listed), by_paths(groups), *on_one_device(groups.model, different.tolist())]
