"""Search in rounds of annealings: from nothing, from clusters of units, and around the best.

One annealing often ends near a good assignment that is not the best, whatever its heat; several of different kinds do
not end at the same, and what they have found is annealed again with little heat. Each round is twice as long as the one
before it, and none knows the budget, so a larger budget goes on where a smaller one stops; only the last annealing
takes what is left.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import attrs
import numpy as np

from fxpasses.partitioners.solvers.free.annealing import Annealer, Best
from fxpasses.partitioners.solvers.free.coarsening import chopped, clustered
from fxpasses.partitioners.solvers.free.graphs import Plan
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["Rounds"]

STEPS_PER_SECOND = 700e6
"""Elementary steps of annealing on one core of 2024 in a second."""
SHORTEST, PER_UNIT = 10e6, 50e3
"""Steps of the first round: so many at least, and so many for each unit."""
GROWTH = 2.0
"""How much longer each round is than the one before it."""
LARGEST_CLUSTER = 0.3
"""The most that a cluster weighs, as a share of the average load."""


@attrs.frozen
class _Run:
    """One annealing, maybe with one from nothing before it.

    Args:
        plan: The annealing of the units, from what ``before`` leads to, or from the best; its steps are a share.
        before: An annealing from nothing.
        share: How many clusters it anneals, as a share of the units.
        is_chopped: Whether clusters are runs of the sequence of units.
    """

    plan: Plan
    before: Plan | None = None
    share: float = 1.0
    is_chopped: bool = False

    @property
    def steps(self) -> float:
        """The share of the round."""
        return self.plan.steps + (0.0 if self.before is None else self.before.steps)


LAST, LAST_FROM_NOTHING = Plan(1.0, 0.004, 2e-5, 4), Plan(1.0, 0.05, 1e-4, 3)
"""What is left in the end goes to an annealing around the best, or from nothing where there is no best."""
CLUSTERS, UNITS = Plan(0.05, 0.05, 5e-4, 4), Plan(0.05, 0.004, 2e-5, 4)
ROUND = (
    _Run(Plan(0.04, 0.002, 2e-5, 4), Plan(0.2, 0.08, 2e-3, 3)),
    _Run(UNITS, CLUSTERS, 0.15),
    _Run(Plan(0.11, 0.004, 2e-5, 4)),
    _Run(Plan(0.04, 0.002, 2e-5, 4), Plan(0.2, 0.015, 3e-4, 3)),
    _Run(UNITS, CLUSTERS, 0.3, is_chopped=True),
    _Run(UNITS, CLUSTERS, 0.5, is_chopped=True),
    _Run(Plan(0.11, 0.004, 2e-5, 4)),
)
"""Units settle at a temperature of about 0.05 where a few of them carry all, at 0.005 where hundreds do; so there are
annealings for both."""


@attrs.frozen(eq=False)
class Rounds:
    """A search for better assignments of one model.

    Args:
        model: What units and values cost.
        bound: No assignment has a smaller largest load.
        draw: For everything that is drawn.
    """

    model: LoadModel
    bound: float
    draw: np.random.Generator

    def search(self, best: Best, seconds: float) -> None:
        """Improve ``best`` for about so many seconds, or until it is at the bound."""
        annealer, left = Annealer(self.model), seconds * STEPS_PER_SECOND
        for run, steps in _endless(max(SHORTEST, PER_UNIT * self.model.size)):
            if best.value <= self.bound * (1 + 1e-9):
                return
            if run.steps * steps > left:
                break
            left -= run.steps * steps
            annealer.improve(best, self._start(annealer, best, run, steps), _spend(run.plan, steps), self.draw)
        last = LAST if math.isfinite(best.value) else LAST_FROM_NOTHING
        annealer.improve(best, self._start(annealer, best, _Run(last), left), _spend(last, left), self.draw)

    def _start(self, annealer: Annealer, best: Best, run: _Run, steps: float) -> Ints:
        """The best, or what annealing from nothing leads to; anything where there is neither."""
        if run.before is None and math.isfinite(best.value):
            return best.home
        home = annealer.anywhere(self.draw)
        if run.before is None:
            return home
        before = _spend(run.before, steps)
        if run.share == 1.0:
            return annealer.along(home, before, self.draw)
        cluster = self._clusters(run)
        small = self.model.merged(cluster)
        if small.banned.all(axis=1).any():  # no device can run some cluster
            return home
        coarse = Annealer(small)
        return coarse.along(coarse.anywhere(self.draw), before, self.draw)[cluster]

    def _clusters(self, run: _Run) -> Ints:
        """The clusters of the units."""
        model = self.model
        count = max(2 * model.devices, int(run.share * model.size))
        if run.is_chopped:
            return chopped(model, count, self.draw)
        largest = LARGEST_CLUSTER * float(model.weight.mean(axis=1).sum()) / model.devices
        return clustered(model, count, largest, self.draw)


def _endless(shortest: float) -> Iterator[tuple[_Run, float]]:
    """Runs of ever longer rounds, with the steps of the round."""
    for index in itertools.count():
        for run in ROUND:
            yield run, shortest * GROWTH**index


def _spend(plan: Plan, steps: float) -> Plan:
    return plan._replace(steps=max(1.0, plan.steps * steps))
