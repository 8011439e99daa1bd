"""Anneal schedules of one problem; what is compiled is in :mod:`.trials`."""

from __future__ import annotations

import attrs
import numpy as np

from fxpasses.partitioners.solvers.latency.holdings import rooms_of
from fxpasses.partitioners.solvers.latency.levels import Level
from fxpasses.partitioners.solvers.latency.timelines import Cooling, timeline_of
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["Annealing", "Found"]

COLD = 0.002
"""The temperature at which each annealing ends, in seconds of a usual node."""


@attrs.frozen(eq=False)
class Found:
    """The device of each unit, the order of the nodes, and the makespan."""

    home: Ints
    order: Ints
    value: float


@attrs.frozen(eq=False)
class Annealing:
    """Annealing of one problem.

    Args:
        level: The problem.
        goal: A schedule that needs no more search.
        draw: For everything that is drawn.
    """

    level: Level
    goal: float
    draw: np.random.Generator

    def improved(self, found: Found, work: float, hot: float, nodes: slice = slice(None)) -> Found:
        """The best schedule on the way from one that keeps the budgets.

        Args:
            found: Where to start.
            work: How many nodes are looked at, about.
            hot: The first temperature, in seconds of a usual node.
            nodes: Places in the order of the nodes at which changes begin.
        """
        from fxpasses.partitioners.solvers.latency.trials import anneal  # numba is heavy

        level, network, needs = self.level, self.level.network, self.level.needs
        topological = level.scheduler.topological
        number = np.empty_like(topological)
        number[topological] = np.arange(len(number))
        order, home, key = number[found.order], found.home.astype(np.int64), np.zeros(len(number))
        value = anneal(
            network,
            timeline_of(network, home),
            needs,
            rooms_of(needs, home),
            order,
            np.ascontiguousarray(order[nodes]),
            Cooling(float(work), level.usual * hot, level.usual * COLD, self.goal),
            self.draw.integers(1, 2**63, 2).astype(np.uint64),
            home,
            key,
        )
        return Found(home, topological[np.argsort(key, kind="stable")], value)
