"""Pairs of ideals between which a device can run, found once: all states of the devices go along them."""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fxpasses.partitioners.solvers.contiguous.arc_facts import Indices, facts_of
from fxpasses.partitioners.solvers.contiguous.spare import NOTHING, Question, ends_of
from fxpasses.partitioners.solvers.contiguous.states import States
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["ArcLists"]

Bools = NDArray[np.bool_]
TOGETHER = 250_000
"""Pairs that are looked for at a time."""
IDEAL, PAIR, FOUND = 300, 16, 2
"""Steps that it costs to begin with an ideal, to look at a pair, and to find one, for each class of devices."""
MOVE, ARC = 4_000, 0.4
"""Steps that a move between states costs, and each pair that it may take."""
MOST = 60_000_000
"""Pairs, each class of devices for itself, that are kept."""


@attrs.define(eq=False)
class ArcLists:
    """The pairs of a family of ideals, sorted by the first, with the steps taken so far.

    Args:
        states: How many devices of each class are used.
        begins: Where the pairs of each ideal begin, and end, ``(f + 1,)``.
        last: The larger ideal of each, ``(n,)``.
        spare: What a device of each class has to spare, by the prices that it pays; -inf where it cannot run what is
            between, ``(k, n)``.
        left: Which of them pipelines may take, known after all layers went back, ``(n,)``.
    """

    states: States
    begins: Ints
    last: Indices
    spare: Floats
    left: Bools
    steps: float

    @classmethod
    def of(cls, question: Question, steps: float) -> tuple[ArcLists | None, float]:
        """Find them, and how many steps that took; None where it takes too many, or too many pairs are found."""
        from fxpasses.partitioners.solvers.contiguous.arc_runs import find  # numba is heavy

        facts, classes, size = facts_of(question), len(question.spans.classes), question.spans.family.count
        count, room = np.zeros(size, dtype=np.int64), max(TOGETHER, size)
        last, spare = [np.zeros(0, dtype=np.uint32)], [np.zeros((classes, 0))]
        ideal, taken, kept = 0, 0.0, 0
        while ideal < size:
            some, each = np.empty(room, dtype=np.uint32), np.empty((classes, room))
            begun, (ideal, seen, found) = ideal, find(facts, ideal, count, some, each)
            last.append(some[:found].copy())
            spare.append(each[:, :found].copy())
            taken += IDEAL * float(ideal - begun) + PAIR * float(seen) + FOUND * float(found) * classes
            kept += found * classes
            if taken > steps or kept > MOST:
                return None, taken
        begins = np.concatenate([[0], np.cumsum(count)])
        left = np.zeros(int(begins[-1]), dtype=bool)
        return cls(question.states, begins, np.concatenate(last), np.concatenate(spare, axis=1), left, taken), taken

    def forth(self, most: Floats, layer: list[int], steps: float) -> bool:
        """Let one more device run from the ideals of each state of a layer."""
        from fxpasses.partitioners.solvers.contiguous.arc_runs import extend  # numba is heavy

        for state, ends in zip(layer, ends_of(most[layer] > NOTHING), strict=True):
            for kind, there in self.states.moves[state]:
                count = extend(*ends, self.begins, self.last, self.spare[kind], most[state], most[there])
                self.steps += MOVE + ARC * count
        return self.steps <= steps

    def back(self, most: Floats, layer: list[int], taken: Floats, enough: float, steps: float) -> bool:
        """Let one device run from the ideals of a layer's states to those from which the others go on.

        A pair is left where both sides and the device take ``enough``.
        """
        from fxpasses.partitioners.solvers.contiguous.arc_runs import precede  # numba is heavy

        for state, ends in zip(layer, ends_of(taken[layer] > NOTHING), strict=True):
            for kind, there in self.states.moves[state]:
                sides = most[state], most[there], taken[state]
                count = precede(*ends, self.begins, self.last, self.spare[kind], *sides, enough, self.left)
                self.steps += MOVE + ARC * count
        return self.steps <= steps

    def between(self, some: Bools) -> csr_array[np.int8]:
        """Between which of some ideals a device can run and pipelines go on."""
        first, last = np.repeat(np.arange(len(some)), np.diff(self.begins))[self.left], self.last[self.left]
        both = some[first] & some[last]
        number, size = np.cumsum(some) - 1, int(some.sum())
        begins = np.searchsorted(number[first[both]], np.arange(size + 1))
        return csr_array((np.ones(int(both.sum()), dtype=np.int8), number[last[both]], begins), shape=(size, size))
