"""Search in rounds of annealings: from nothing, from clusters of units, from two good answers, and around the best.

One annealing often ends near a good assignment that is not the best, whatever its heat; several of different kinds do
not end at the same, and what they have found is annealed again with little heat. Where two of them agree is mostly
right, so what they keep together stays together while the rest is annealed. Each round is twice as long as the one
before it, and none knows the budget, so a larger budget goes on where a smaller one stops; only the last annealing
takes what is left.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Literal

import attrs
import numpy as np

from fxpasses.partitioners.solvers.free.annealing import Annealer, Best
from fxpasses.partitioners.solvers.free.coarsening import agreed, chopped, clustered
from fxpasses.partitioners.solvers.free.graphs import Plan
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["Rounds"]

STEPS_PER_SECOND = 1000e6
"""Elementary steps of annealing on one core of 2024 in a second."""
SHORTEST, PER_UNIT = 10e6, 50e3
"""Steps of the first round: so many at least, and so many for each unit."""
GROWTH = 2.0
"""How much longer each round is than the one before it."""
OTHERS = 6
"""Answers that are kept to be crossed with the best."""
LARGEST_CLUSTER = 0.3
"""The most that a cluster weighs, as a share of the average load."""


Start = Literal["best", "nothing", "matched", "chopped", "crossed"]


@attrs.frozen
class _Run:
    """One annealing, maybe with another one before it.

    Args:
        plan: The annealing of the units; its steps are a share.
        start: Where it starts. ``best``: from the best. Else from what ``before`` leads to: from nothing, from nothing
            with clusters of units that talk to each other or are runs of the sequence of units, or from the best with
            clusters on which it agrees with another answer.
        before: The annealing before it.
        share: How many clusters it anneals, as a share of the units.
    """

    plan: Plan
    start: Start = "best"
    before: Plan | None = None
    share: float = 1.0

    @property
    def steps(self) -> float:
        """The share of the round."""
        return self.plan.steps + (0.0 if self.before is None else self.before.steps)


LAST, LAST_FROM_NOTHING = Plan(1.0, 0.004, 2e-5, 4), Plan(1.0, 0.05, 1e-4, 3)
"""What is left in the end goes to an annealing around the best, or from nothing where there is no best."""
CLUSTERS, UNITS = Plan(0.05, 0.05, 5e-4, 4), Plan(0.05, 0.004, 2e-5, 4)
CROSSED, BOTH = Plan(0.03, 0.03, 5e-4, 4), Plan(0.03, 0.004, 2e-5, 4)
ROUND = (
    _Run(Plan(0.04, 0.002, 2e-5, 4), "nothing", Plan(0.1, 0.08, 2e-3, 3)),
    _Run(UNITS, "matched", CLUSTERS, 0.15),
    _Run(Plan(0.05, 0.004, 2e-5, 4)),
    _Run(Plan(0.04, 0.002, 2e-5, 4), "nothing", Plan(0.1, 0.015, 3e-4, 3)),
    _Run(UNITS, "chopped", CLUSTERS, 0.3),
    _Run(UNITS, "chopped", CLUSTERS, 0.5),
    _Run(Plan(0.05, 0.004, 2e-5, 4)),
    *[_Run(BOTH, "crossed", CROSSED)] * 6,
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
    _others: list[Best] = attrs.field(factory=list, init=False)

    def search(self, best: Best, seconds: float) -> None:
        """Improve ``best`` for about so many seconds, or until it is at the bound."""
        annealer, left = Annealer(self.model), seconds * STEPS_PER_SECOND
        for run, steps in _endless(max(SHORTEST, PER_UNIT * self.model.size)):
            if best.value <= self.bound * (1 + 1e-9):
                return
            if run.steps * steps > left:
                break
            left -= run.steps * steps
            found = annealer.improve(best, self._start(annealer, best, run, steps), _spend(run.plan, steps), self.draw)
            if run.start != "best":
                self._remember(found)
        last = LAST if math.isfinite(best.value) else LAST_FROM_NOTHING
        annealer.improve(best, self._start(annealer, best, _Run(last), left), _spend(last, left), self.draw)

    def _remember(self, found: Best) -> None:
        """Keep an answer for crossing if it is one of the best, and of another value than those."""
        if math.isfinite(found.value) and all(found.value != other.value for other in self._others):
            self._others.append(found)
            self._others.sort(key=lambda each: each.value)
            del self._others[OTHERS:]

    def _start(self, annealer: Annealer, best: Best, run: _Run, steps: float) -> Ints:
        """The best, or what the annealing before leads to; anything where there is neither."""
        home = best.home if math.isfinite(best.value) else annealer.anywhere(self.draw)
        if run.before is None:
            return home
        before = _spend(run.before, steps)
        if run.start == "nothing":
            return annealer.along(annealer.anywhere(self.draw), before, self.draw)
        cluster = self._clusters(best, run)
        small = self.model.merged(cluster)
        if small.banned.all(axis=1).any():  # no device can run some cluster
            return home
        coarse = Annealer(small)
        first = home[np.unique(cluster, return_index=True)[1]] if run.start == "crossed" else coarse.anywhere(self.draw)
        return coarse.along(first, before, self.draw)[cluster]

    def _clusters(self, best: Best, run: _Run) -> Ints:
        """The clusters of the units; each is one where there is no other answer to cross the best with."""
        model = self.model
        if run.start == "crossed":
            others = [other.home for other in self._others if other.value != best.value]
            if not others:
                return np.arange(model.size)
            return agreed(model, best.home, others[int(self.draw.integers(len(others)))])
        count = max(2 * model.devices, int(run.share * model.size))
        if run.start == "chopped":
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
