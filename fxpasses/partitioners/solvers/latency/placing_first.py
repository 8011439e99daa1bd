"""Each node in turn where it ends first: what list schedules of all sizes have in common."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["where_first"]

Comes = Callable[[int, Floats, Ints], Floats]
"""When all that a node needs is on each device, by the ends and the devices of the nodes before it, ``(k,)``."""


def where_first(
    model: LoadModel, unit_of: Ints, order: Ints, seconds: Floats, comes: Comes, much: float, beside: Floats
) -> Ints:
    """The device of each unit where each node goes where it ends first and fits (HEFT, without insertion).

    Args:
        model: What units need, and where they may be.
        unit_of: The unit of each node.
        order: All nodes, each after what it needs.
        seconds: Of each node on each device, ``(n, k)``, finite.
        comes: When what a node needs is there.
        much: What it counts that a device is full: more than any schedule takes.
        beside: What it counts to be on each device at all, ``(k,)``.
    """
    count, kinds = seconds.shape
    home, device_of = np.full(model.size, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    need, free, end = np.zeros(kinds), np.zeros(kinds), np.zeros(count)
    for node, unit in zip(order.tolist(), unit_of[order].tolist(), strict=True):
        done = np.maximum(comes(node, end, device_of), free) + seconds[node]
        if home[unit] < 0:
            full = need + model.kept[unit] + model.live[unit] > model.memory
            cost = np.where(model.banned[unit], np.inf, done + np.where(full, much, 0.0) + beside)
            home[unit] = int(np.argmin(cost))
            need[home[unit]] += model.kept[unit]
        device_of[node] = target = home[unit]
        end[node] = done[target]
        if seconds[node, target] > 0:
            free[target] = max(free[target], end[node])
    return home
