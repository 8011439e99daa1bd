"""Pairs of ideals between which a device can run, and what all devices can take along by way of them."""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fxpasses.partitioners.solvers.contiguous.refined.arc_facts import Facts, Indices, facts_of
from fxpasses.partitioners.solvers.contiguous.refined.live_facts import LiveFacts, live_facts_of
from fxpasses.partitioners.solvers.contiguous.refined.spare import NOTHING, Question
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["ArcLists"]

Bools = NDArray[np.bool_]
TOGETHER = 100_000
"""Pairs that are looked for at a time."""
IDEAL, PAIR, FOUND = 300, 16, 2
"""Steps that it costs to begin with an ideal, to look at a pair, and to find one, for each class of devices."""
OPEN, USUAL = 1.5, 32
"""Steps that each value costs that is open at the first ideal of a pair, beyond so many that :data:`PAIR` knows of."""
MOVE, BACK = 0.5, 0.2
"""Steps that it costs to go along a pair in one state of the devices, and back in one for each class of them."""
OPERATOR = 0.4
"""What it costs for each operator, and what may come from elsewhere, to find out what is there between two ideals."""
MOST = 250_000_000
"""Pairs, each class of devices for itself, that are kept."""


@attrs.frozen(eq=False)
class _Arcs:
    """The pairs of some ideals in a row, sorted by the first.

    Args:
        first: The first of these ideals.
        begins: Where the pairs of each begin, and end, ``(a + 1,)``.
        last: The larger ideal of each pair, ``(n,)``.
        spare: What a device of each class has to spare, by the prices that it pays; -inf where it cannot run what is
            between, ``(n, k)``.
        left: Which of them pipelines may take, known once the devices went back, ``(n,)``.
    """

    first: int
    begins: Ints
    last: Indices
    spare: Floats
    left: Bools


@attrs.define(eq=False)
class ArcLists:
    """The pairs of a family of ideals that pipelines may take, with the steps taken so far.

    Args:
        facts: The ideals and the devices.
        lives: What is there while devices run, where that is known.
        arcs: The pairs.
        taken: The most that devices took along up to each ideal in each of its states, ``(e,)``; -inf where they cannot
            have run it.
        steps: What it took.
    """

    facts: Facts
    lives: LiveFacts
    arcs: list[_Arcs]
    taken: Floats
    steps: float

    @classmethod
    def of(cls, question: Question, steps: float) -> tuple[ArcLists | None, float]:
        """Find them, and how many steps that took; None where it takes too many, or too many pairs are found.

        All states go along each pair as soon as it is found, so none is kept that no state can take.
        """
        from fxpasses.partitioners.solvers.contiguous.refined.arc_runs import forth, stay  # numba is heavy

        facts, size, classes = facts_of(question), question.spans.family.count, len(question.spans.classes)
        stay(facts)
        most = np.full(question.allowed.nnz, NOTHING)
        most[0] = 0.0  # nothing, by no device
        many = np.maximum(np.diff(facts.open_start) - USUAL, 0)
        count, room = np.zeros(size, dtype=np.int64), max(TOGETHER, size)
        last, spare = np.empty(room, dtype=np.uint32), np.empty((room, classes))
        found, ideal, taken, kept = list[_Arcs](), 0, 0.0, 0
        while ideal < size:
            begun, (ideal, seen, moved) = ideal, forth(facts, ideal, most, count, last, spare)
            begins = np.concatenate([[0], np.cumsum(count[begun:ideal])])
            pairs = int(begins[-1])
            found.append(_Arcs(begun, begins, last[:pairs].copy(), spare[:pairs].copy(), np.zeros(pairs, dtype=bool)))
            taken += IDEAL * float(ideal - begun) + PAIR * float(seen) + FOUND * float(pairs) * classes + MOVE * moved
            taken += OPEN * float(count[begun:ideal] @ many[begun:ideal])
            kept += pairs * classes
            if taken > steps or kept > MOST:
                return None, taken
        return cls(facts, live_facts_of(question.lives, len(question.spans.family.inside)), found, most, taken), taken

    def left(self, steps: float) -> Floats | None:
        """The most that the devices which are left take along from each ideal on in each of its states, ``(e,)``.

        None where it takes too many steps.
        """
        from fxpasses.partitioners.solvers.contiguous.refined.arc_runs import back  # numba is heavy

        most = np.full(self.taken.shape, NOTHING)
        most[self.facts.state_start[-2] :] = 0.0
        for part in reversed(self.arcs):
            moved, asked = back(
                self.facts, self.lives, part.first, part.begins, part.last, part.spare, self.taken, most, part.left
            )
            self.steps += BACK * moved * part.spare.shape[1]
            self.steps += OPERATOR * asked * (len(self.lives.unit) + len(self.lives.arrives))
            if self.steps > steps:
                return None
        return most

    def between(self, some: Bools) -> csr_array[np.int8]:
        """Between which of some ideals a device can run and pipelines go on."""
        first, last = (np.concatenate(ends) for ends in zip(*(_left(part) for part in self.arcs), strict=True))
        both = some[first] & some[last]
        number, size = np.cumsum(some) - 1, int(some.sum())
        begins = np.searchsorted(number[first[both]], np.arange(size + 1))
        return csr_array((np.ones(int(both.sum()), dtype=np.int8), number[last[both]], begins), shape=(size, size))


def _left(part: _Arcs) -> tuple[Ints, Indices]:
    """The ends of the pairs that are left."""
    first = part.first + np.repeat(np.arange(len(part.begins) - 1), np.diff(part.begins))
    return first[part.left], part.last[part.left]
