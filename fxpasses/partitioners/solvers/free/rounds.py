"""Search in families of annealings: from nothing, from clusters of units, from two good answers, and around the best.

One annealing often ends near a good assignment that is not the best, whatever its heat; several of different kinds do
not end at the same, and what they have found is annealed again with little heat. Where two of them agree is mostly
right, so what they keep together stays together while the rest is annealed. This comes in rounds, each twice as long as
the one before it.

Answers of a few rounds become alike, and what they are like by then is luck: more rounds seldom change it. So a new
family starts from nothing, and when it is done, the best of all is crossed with its answers. How many rounds a family
needs depends on the graph; those of every length get about the same time (Luby, Sinclair & Zuckerman, "Optimal speedup
of Las Vegas algorithms", Information Processing Letters 47(4), 1993). None knows the budget, so a larger budget goes on
where a smaller one stops; only the last annealing takes what is left.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Literal

import attrs
import numpy as np

from fxpasses.partitioners.solvers.annealing.annealer import STEPS_PER_SECOND, Annealer, Best
from fxpasses.partitioners.solvers.annealing.graphs import Cooling
from fxpasses.partitioners.solvers.free.coarsening import agreed, chopped, clustered
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["Rounds", "rounds_of"]

SHORTEST, MOVES = 3e6, 650
"""Steps of a family's first round: so many at least, and those of so many moves of each unit."""
AROUND_RUN, AROUND_UNIT = 0.4e6, 2e3
"""Steps that a run takes besides its annealing (clusters, lists, the figures of what is found), and so many a unit."""
GROWTH = 2.0
"""How much longer each round is than the one before it."""
ROUNDS = 4
"""The fewest rounds of a family."""
OTHERS = 6
"""Answers that are kept to be crossed with the best."""
LARGEST_CLUSTER = 0.3
"""The most that a cluster weighs, as a share of the average load."""


Start = Literal["best", "nothing", "matched", "chopped", "crossed"]


@attrs.frozen
class _Run:
    """One annealing, maybe with another one before it.

    Args:
        cooling: The annealing of the units; its steps are a share.
        start: Where it starts. ``best``: from the best. Else from what ``before`` leads to: from nothing, from nothing
            with clusters of units that talk to each other or are runs of the sequence of units, or from the best with
            clusters on which it agrees with another answer.
        before: The annealing before it.
        share: How many clusters it anneals, as a share of the units.
    """

    cooling: Cooling
    start: Start = "best"
    before: Cooling | None = None
    share: float = 1.0

    @property
    def steps(self) -> float:
        """The share of the round."""
        return self.cooling.steps + (0.0 if self.before is None else self.before.steps)


LAST, LAST_FROM_NOTHING = Cooling(1.0, 0.004, 2e-5, 4), Cooling(1.0, 0.05, 1e-4, 3)
"""What is left in the end goes to an annealing around the best, or from nothing where there is no best."""
CLUSTERS, UNITS = Cooling(0.05, 0.05, 5e-4, 4), Cooling(0.05, 0.004, 2e-5, 4)
CROSSED, BOTH = Cooling(0.03, 0.03, 5e-4, 4), Cooling(0.03, 0.004, 2e-5, 4)
AROUND = _Run(Cooling(0.05, 0.004, 2e-5, 4))
CROSSINGS = (_Run(BOTH, "crossed", CROSSED),) * 6
ROUND = (
    _Run(Cooling(0.04, 0.002, 2e-5, 4), "nothing", Cooling(0.1, 0.08, 2e-3, 3)),
    _Run(UNITS, "matched", CLUSTERS, 0.15),
    AROUND,
    _Run(Cooling(0.04, 0.002, 2e-5, 4), "nothing", Cooling(0.1, 0.015, 3e-4, 3)),
    _Run(UNITS, "chopped", CLUSTERS, 0.3),
    _Run(UNITS, "chopped", CLUSTERS, 0.5),
    AROUND,
    *CROSSINGS,
)
"""Units settle at a temperature of about 0.05 where a few of them carry all, at 0.005 where hundreds do; so there are
annealings for both."""
MEETING = (*CROSSINGS, AROUND)
"""What the best of all families does with the answers of each that has ended, in the steps of its last round."""


def rounds_of(index: int) -> int:
    """How many rounds a family has, by its place from 1 on: one more for each time that 2 divides it."""
    return ROUNDS + (index & -index).bit_length() - 1


@attrs.frozen(eq=False)
class _Family:
    """The best answer of some annealings, and others to cross it with."""

    best: Best
    others: list[Best] = attrs.field(factory=list)

    def remember(self, found: Best) -> None:
        """Keep an answer for crossing if it is one of the best, and of another value than those."""
        if math.isfinite(found.value) and all(found.value != other.value for other in self.others):
            self.others.append(found)
            self.others.sort(key=lambda each: each.value)
            del self.others[OTHERS:]


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
        around = AROUND_RUN + AROUND_UNIT * self.model.size
        shortest = max(SHORTEST, MOVES * float(annealer.graph.unit_steps.sum()))
        for family, run, steps in _endless(best, shortest):
            if best.value <= self.bound * (1 + 1e-9):
                return
            if run.steps * steps + around > left:
                break
            left -= run.steps * steps + around
            found = annealer.improved(self._start(annealer, family, run, steps), _spend(run.cooling, steps), self.draw)
            family.best.take(found)
            best.take(found)
            if run.start != "best":
                family.remember(found)
        last = LAST if math.isfinite(best.value) else LAST_FROM_NOTHING
        start = self._start(annealer, _Family(best), _Run(last), left)
        best.take(annealer.improved(start, _spend(last, left), self.draw))

    def _start(self, annealer: Annealer, family: _Family, run: _Run, steps: float) -> Ints:
        """The best, or what the annealing before leads to; anything where there is neither."""
        home = family.best.home if math.isfinite(family.best.value) else annealer.anywhere(self.draw)
        if run.before is None:
            return home
        before = _spend(run.before, steps)
        if run.start == "nothing":
            return annealer.along(annealer.anywhere(self.draw), before, self.draw)
        cluster = self._clusters(family, run)
        small = self.model.merged(cluster)
        if small.banned.all(axis=1).any():  # no device can run some cluster
            return home
        coarse = Annealer(small)
        first = home[np.unique(cluster, return_index=True)[1]] if run.start == "crossed" else coarse.anywhere(self.draw)
        return coarse.along(first, before, self.draw)[cluster]

    def _clusters(self, family: _Family, run: _Run) -> Ints:
        """The clusters of the units; each is one where there is no other answer to cross the best with."""
        model = self.model
        if run.start == "crossed":
            others = [other.home for other in family.others if other.value != family.best.value]
            if not others:
                return np.arange(model.size)
            return agreed(model, family.best.home, others[int(self.draw.integers(len(others)))])
        count = max(2 * model.devices, int(run.share * model.size))
        if run.start == "chopped":
            return chopped(model, count, self.draw)
        largest = LARGEST_CLUSTER * float(model.weight.mean(axis=1).sum()) / model.devices
        return clustered(model, count, largest, self.draw)


def _endless(best: Best, shortest: float) -> Iterator[tuple[_Family, _Run, float]]:
    """Runs of one family after the other, with the steps of the round; the first starts from what is known."""
    family = _Family(attrs.evolve(best))
    for index in itertools.count(1):
        rounds = rounds_of(index)
        for number in range(rounds):
            for run in ROUND:
                yield family, run, shortest * GROWTH**number
        meeting = _Family(best, family.others)
        for run in MEETING:
            yield meeting, run, shortest * GROWTH ** (rounds - 1)
        family = _Family(Best(math.inf, best.home))


def _spend(cooling: Cooling, steps: float) -> Cooling:
    return cooling._replace(steps=max(1.0, cooling.steps * steps))
