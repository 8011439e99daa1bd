"""List schedules of many nodes: some milliseconds each, and near the bound where much can run side by side."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

import attrs
import numpy as np

from fxpasses.partitioners.solvers.latency.joining import order_of_groups
from fxpasses.partitioners.solvers.latency.levels import LatencyAnswer, Level
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

if TYPE_CHECKING:
    from fxpasses.partitioners.solvers.latency.listing import Costs, Spaces

__all__ = ["ManyNodes"]

SPARES = (math.inf, 0.02)
"""How much fuller a device may get than the share of all bytes that is placed, in shares of its memory."""
LONGER = 1.2
"""How many times the shortest schedule those on fewer devices may take for still fewer to be tried."""


@attrs.frozen(eq=False)
class ManyNodes:
    """The nodes of a problem, to be listed by compiled code.

    Args:
        level: The problem, placed freely.
    """

    level: Level

    @cached_property
    def costs(self) -> Costs:
        """What nodes cost."""
        from fxpasses.partitioners.solvers.latency.listing import costs_of  # numba is heavy

        return costs_of(self.level.tables)

    @cached_property
    def spaces(self) -> Spaces:
        """What units need."""
        from fxpasses.partitioners.solvers.latency.listing import spaces_of  # numba is heavy

        return spaces_of(self.level.model, self.level.unit_of)

    @cached_property
    def topological(self) -> Ints:
        """The nodes, each after what it needs."""
        return np.array(order_of_groups(np.arange(len(self.level.unit_of)), self.level.tables), dtype=np.int64)

    @property
    def longest_path(self) -> float:
        """The longest path when each node is on its fastest device and nothing is sent."""
        return float(self._ranks(self.level.tables.seconds.min(axis=1)).max(initial=0.0))

    def listed(self) -> list[LatencyAnswer]:
        """Some list schedules, those on the most devices first; ``inf`` where one does not keep the budgets.

        On all devices, on half of them, the fastest, and so on until that takes far longer; with transfers that count
        in ranks, and without; where bytes matter, also with devices that get full at one pace, so that none is full
        while much is to come. Time O((nodes + edges) · devices) each.
        """
        fastest = np.argsort(self.level.model.weight.sum(axis=0), kind="stable")
        counts = sorted({min(2**power, len(fastest)) for power in range(8)}, reverse=True)
        spares = SPARES if np.isfinite(self.level.model.memory).any() else SPARES[:1]
        orders = [self._by_rank(share) for share in (1.0, 0.0)]
        found: list[LatencyAnswer] = []
        best = math.inf
        for count in counts:
            some = [self._listed(order, fastest[:count], spare) for spare in spares for order in orders]
            found += some
            value = min(answer.value for answer in some)
            if value > LONGER * best:
                break
            best = min(best, value)
        return found

    def scheduled(self, home: Ints, order: Ints) -> LatencyAnswer:
        """What an assignment of units costs in an order of the nodes."""
        from fxpasses.partitioners.solvers.latency.listing import run_in_order, run_of  # numba is heavy

        state = run_of(self.costs, self.spaces, home)
        run_in_order(self.costs, state, order)
        value = float(state.end.max(initial=0.0)) if self.level.legal(home[None])[0] else math.inf
        return LatencyAnswer(home, order, state.start, value)

    def _listed(self, order: Ints, devices: Ints, spare: float) -> LatencyAnswer:
        """Each node in turn where it ends first and fits, among some devices where it can."""
        from fxpasses.partitioners.solvers.latency.listing import put_first, run_of  # numba is heavy

        much = 1e9 * (1.0 + float(self.costs.seconds.max(axis=1).sum()))
        beside = np.full(self.level.model.devices, much)
        beside[devices] = 0.0
        home = np.full(self.level.model.size, -1, dtype=np.int64)
        state = run_of(self.costs, self.spaces, home)
        put_first(self.costs, self.spaces, state, order, beside, much, spare)
        fits = bool((state.need + state.live <= self.spaces.memory).all())
        value = float(state.end.max(initial=0.0)) if fits else math.inf
        return LatencyAnswer(home, order, state.start, value)

    def _by_rank(self, share: float) -> Ints:
        """Nodes by the longest way from their start to the end of all, with mean seconds and a share of transfers."""
        tables = self.level.tables
        sent = tables.fixed + tables.latency.mean() * (tables.output > 0) + tables.output * tables.per_byte.mean()
        rank = self._ranks(self.costs.seconds.mean(axis=1) + share * sent)
        place = np.empty_like(self.topological)
        place[self.topological] = np.arange(len(place))
        return np.lexsort((place, -rank))

    def _ranks(self, own: Floats) -> Floats:
        from fxpasses.partitioners.solvers.latency.listing import ranks  # numba is heavy

        rank = np.zeros(len(own))
        ranks(self.costs, np.ascontiguousarray(own), self.topological, rank)
        return rank
