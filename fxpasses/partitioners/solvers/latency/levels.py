"""The problem of the shortest latency as a search sees it: nodes in units, or groups of both."""

from __future__ import annotations

import math
from functools import cached_property

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.latency.holdings import Needs, needs_of
from fxpasses.partitioners.solvers.latency.joining import Joined
from fxpasses.partitioners.solvers.latency.scheduling import Scheduler, in_order
from fxpasses.partitioners.solvers.latency.timelines import Network, network_of
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Floats, Ints

__all__ = ["Flow", "LatencyAnswer", "Level"]


@attrs.frozen(eq=False)
class LatencyAnswer:
    """An assignment of units, an order of nodes, and when they start; ``inf`` when no legal assignment was found."""

    home: Ints
    order: Ints
    start: Floats
    value: float


@attrs.frozen(eq=False)
class Flow:
    """Which units must not be on later devices than others: pairs (before, after), ``(e, 2)``."""

    pairs: Ints
    devices: int

    @classmethod
    def of(cls, units: Units, devices: int) -> Flow:
        """Take the precedence of the units."""
        pairs = [(before, unit) for unit, needs in enumerate(units.predecessors) for before in needs]
        return cls(np.array(pairs, dtype=np.int64).reshape(-1, 2), devices)

    def joined(self, unit: Ints) -> Flow:
        """The same for groups of units."""
        pairs = np.unique(unit[self.pairs], axis=0)
        return Flow(pairs[pairs[:, 0] != pairs[:, 1]], self.devices)

    def is_acyclic(self, homes: Ints) -> NDArray[np.bool_]:
        """Which assignments are pipelines: no device needs a value back from a later one, ``(p,)``."""
        kinds = self.devices
        reach = np.zeros((len(homes), kinds, kinds), dtype=np.float32)
        rows = np.arange(len(homes))[:, None]
        reach[rows, homes[:, self.pairs[:, 0]], homes[:, self.pairs[:, 1]]] = 1
        own = np.arange(kinds)
        reach[:, own, own] = 0
        for _ in range(max(1, math.ceil(math.log2(kinds + 1)))):
            reach = np.minimum(reach + reach @ reach, 1)
        acyclic: NDArray[np.bool_] = reach[:, own, own].sum(axis=1) == 0
        return acyclic


@attrs.frozen(eq=False)
class Level:
    """A problem: nodes in units, or groups of both.

    Args:
        tables: What nodes cost.
        model: What units need, and where they may be.
        unit_of: The unit of each node.
        flow: Which units must not be on later devices than others, for pipelines.
    """

    tables: CostTables
    model: LoadModel
    unit_of: Ints
    flow: Flow | None

    @cached_property
    def scheduler(self) -> Scheduler:
        """The nodes, to be scheduled in numpy."""
        return Scheduler.of(self.tables)

    @cached_property
    def network(self) -> Network:
        """The nodes, as compiled annealing reads them."""
        return network_of(self.scheduler, self.unit_of)

    @cached_property
    def needs(self) -> Needs:
        """The units, as compiled annealing reads them."""
        return needs_of(self.model, None if self.flow is None else self.flow.pairs)

    @property
    def usual(self) -> float:
        """Seconds of a usual node: the mean over seconds, not over nodes. Of a copy where no node takes any."""
        seconds = self.scheduler.seconds.mean(axis=1)
        if not seconds.any():
            seconds = self.scheduler.send.mean(axis=(1, 2))
        return float((seconds**2).sum() / (seconds.sum() or 1.0)) or 1.0

    def joined(self, joined: Joined) -> Level:
        """The problem of the groups."""
        flow = None if self.flow is None else self.flow.joined(joined.unit)
        return Level(joined.tables(self.tables), joined.model(self.model), joined.unit_of(self.unit_of), flow)

    def legal(self, homes: Ints) -> NDArray[np.bool_]:
        """Which assignments of units keep the budgets and are pipelines if they have to be, ``(p,)``."""
        legal = self.model.legal(homes)
        return legal if self.flow is None else np.logical_and(legal, self.flow.is_acyclic(homes))

    def scheduled(self, home: Ints, order: Ints) -> LatencyAnswer:
        """What an assignment costs in an order of the nodes."""
        times = self.scheduler.times(home[None, self.unit_of], order[None])
        value = float(times.makespan[0]) if self.legal(home[None])[0] else math.inf
        return LatencyAnswer(home, order, times.start[0], value)

    def started(self, home: Ints, start: Floats) -> LatencyAnswer:
        """What an assignment costs when its nodes run in the order of some starts."""
        scheduler = self.scheduler
        start = np.append(start, -math.inf)
        for node in scheduler.topological.tolist():  # a program is right to about 1e-7 only
            start[node] = max(start[node], start[scheduler.before[node]].max())
        return self.scheduled(home, in_order(start[None, :-1], scheduler.topological)[0])
