"""Pairs of ideals as lists that are made once: for many states of the devices, which all go along the same pairs.

Of all pairs of nested ideals few are left under a threshold and by what a coarser core allows. They are found block by
block; then each state goes through the list of each class of devices that it has left.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fxpasses.partitioners.solvers.contiguous.blocks import larger
from fxpasses.partitioners.solvers.contiguous.pairs import Pairs
from fxpasses.partitioners.solvers.contiguous.spare import NOTHING, ROUNDING, Question, ends_of
from fxpasses.partitioners.solvers.contiguous.states import States
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["ArcLists"]

Bools = NDArray[np.bool_]
BLOCK, CELLS = 128, 1_000_000
"""Ideals, and pairs of them, that are looked at together: their tables stay in a few megabytes."""
CALL, PAIR, CLASS, BACK = 60_000, 8, 6, 1.5
"""Steps that a block costs, each pair of its ideals, and each class of devices for a pair that the coarser core allows;
how many times as many a pair costs where values flow back."""
ASKED, MOVE, ARC = 2_000, 8_000, 1.2
"""Steps that it costs to ask for a move between states, to make it, and each arc that it may take."""
MOST = 30_000_000
"""Arcs of all classes together that are kept."""


@attrs.frozen(eq=False)
class _OfClass:
    """Pairs of ideals that a device of one class can run, sorted by the first.

    Args:
        number: Their numbers among the pairs of all classes, ``(n,)``.
        last: The larger ideal of each.
        spare: What the device has to spare, by the prices that it pays.
        ends: The ideals that are the first of some, ``(e,)``.
        begins: Where the arcs of each begin, ``(e + 1,)``.
    """

    number: Ints
    last: Ints
    spare: Floats
    ends: Ints
    begins: Ints

    @classmethod
    def of(cls, first: Ints, last: Ints, spare: Floats) -> _OfClass:
        """Those of all pairs where something is to spare."""
        number = np.flatnonzero(spare > NOTHING)
        ranked = first[number]
        begins = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1])[: len(ranked)])
        return cls(number, last[number], spare[number], ranked[begins], np.append(begins, len(ranked)))

    def within(self, first: int, last: int) -> tuple[slice, slice]:
        """From one ideal to another: which of the ends they are, and their arcs."""
        begin, end = np.searchsorted(self.ends, (first, last)).tolist()
        return slice(begin, end), slice(int(self.begins[begin]), int(self.begins[end]))


@attrs.define(eq=False)
class ArcLists:
    """The pairs of a family of ideals, with the steps taken so far.

    Args:
        states: How many devices of each class are used.
        first: The smaller ideal of each, sorted, ``(n,)``.
        last: The larger one.
        kinds: Those of each class of devices.
        left: Which of them pipelines may take, known after all layers went back.
    """

    states: States
    first: Ints
    last: Ints
    kinds: list[_OfClass]
    left: Bools
    steps: float

    @classmethod
    def of(cls, question: Question, steps: float) -> tuple[ArcLists | None, float]:
        """Find them, and how many steps that took; None where it takes too many, or too many pairs are found."""
        spans, classes = question.spans, len(question.spans.classes)
        ends, found = [np.zeros((2, 0), dtype=np.int64)], [np.zeros((classes, 0))]
        pair, taken, kept = PAIR * (BACK if spans.transfers.flows_back else 1), 0.0, 0
        for block, columns, pairs in _candidates(question):
            spare = _spare(question, block, columns, pairs)
            ends.append(np.stack([pairs.by_first(block), columns[pairs.last]]))
            found.append(spare)
            kept += spare.size
            taken += CALL + pair * float(len(block)) * len(columns) + CLASS * float(spare.size)
            if taken > steps or kept > MOST:
                return None, taken
        first, last = np.concatenate(ends, axis=1)
        kinds = [_OfClass.of(first, last, each) for each in np.concatenate(found, axis=1)]
        return cls(question.states, first, last, kinds, np.zeros(len(first), dtype=bool), taken), taken

    def forth(self, most: Floats, layer: list[int], allowed: Bools, steps: float) -> bool:
        """Let one more device run from the ideals of each state of a layer."""
        for state, ends in zip(layer, ends_of(most[layer] > NOTHING), strict=True):
            for kind, there in self.states.moves[state]:
                self._extend(self.kinds[kind], most[state], most[there], ends)
        return self.steps <= steps

    def back(self, most: Floats, layer: list[int], taken: Floats, enough: float, steps: float) -> bool:
        """Let one device run from the ideals of a layer's states to those from which the others go on."""
        for state, ends in zip(layer, ends_of(taken[layer] > NOTHING), strict=True):
            for kind, there in self.states.moves[state]:
                self._precede(self.kinds[kind], most[state], most[there], ends, taken[state], enough)
        return self.steps <= steps

    def between(self, some: Bools) -> csr_array[np.int8]:
        """Between which of some ideals a device can run and pipelines go on."""
        first, last = self.first[self.left], self.last[self.left]
        both = some[first] & some[last]
        number = np.cumsum(some) - 1
        first, last, size = number[first[both]], number[last[both]], int(some.sum())
        begins = np.searchsorted(first, np.arange(size + 1))
        return csr_array((np.ones(len(last), dtype=np.int8), last, begins), shape=(size, size))

    def _extend(self, arcs: _OfClass, before: Floats, after: Floats, ends: list[int]) -> None:
        some, own = arcs.within(*ends)
        if own.start < own.stop:
            found = np.repeat(before[arcs.ends[some]], np.diff(arcs.begins[some.start : some.stop + 1]))
            found += arcs.spare[own]
            np.maximum.at(after, arcs.last[own], found)
            self.steps += MOVE + ARC * len(found)
        self.steps += ASKED

    def _precede(
        self, arcs: _OfClass, before: Floats, after: Floats, ends: list[int], taken: Floats, enough: float
    ) -> None:
        some, own = arcs.within(*ends)
        if own.start < own.stop:
            found = after[arcs.last[own]]
            found += arcs.spare[own]
            ideals, begins = arcs.ends[some], arcs.begins[some.start : some.stop + 1]
            before[ideals] = np.maximum(before[ideals], np.maximum.reduceat(found, begins[:-1] - own.start))
            found += np.repeat(taken[ideals], np.diff(begins))
            self.left[arcs.number[own][found >= enough]] = True
            self.steps += MOVE + ARC * len(found)
        self.steps += ASKED


def _candidates(question: Question) -> Iterator[tuple[Ints, Ints, Pairs]]:
    """Blocks of ideals and sets of larger ones, with the nested pairs that the coarser core allows."""
    spans, coarse, parent = question.spans, question.coarse, question.parent
    family = spans.family
    for begin in range(0, family.count, BLOCK):
        block = np.arange(begin, min(begin + BLOCK, family.count))
        near = None if coarse is None else _near(coarse, parent[block])
        open_to = np.ones(family.count, dtype=bool) if near is None else np.logical_or.reduce(near, axis=0)[parent]
        columns = larger(family, block, open_to, question.reach)
        few = max(1, CELLS // max(1, len(columns)))
        for first in range(0, len(block), few):
            part = slice(first, first + few)
            fine = spans.nested(block[part], columns)
            if near is not None:
                fine &= near[part][:, parent[columns]]
            yield block[part], columns, Pairs.where(fine)


def _near(coarse: csr_array[np.int8], parents: Ints) -> Bools:
    """For each ideal, by that of the coarser core it comes from, those that one after it may come from."""
    rows = coarse[parents]
    near = np.zeros(rows.shape, dtype=bool)
    near[np.repeat(np.arange(len(parents)), np.diff(rows.indptr)), rows.indices] = True
    near[np.arange(len(parents)), parents] = True
    return near


def _spare(question: Question, block: Ints, columns: Ints, pairs: Pairs) -> Floats:
    """What a device of each class has left between some nested pairs; -inf where it cannot run what is there."""
    spans, pays, below = question.spans, question.pays, question.below
    size = spans.sizes(block, columns, pairs, is_exact=bool(pays.byte.any())) if spans.is_tight else None
    found = np.full((len(spans.classes), len(pairs.last)), NOTHING)
    for kind, (group, seconds) in enumerate(zip(spans.classes, spans.seconds(block, columns, pairs), strict=True)):
        can = seconds <= below * (1 + ROUNDING)
        if size is not None:
            can &= size <= group.memory
        own = np.flatnonzero(can)
        spare = (below - seconds[own]) * pays.load[kind]
        if size is not None and pays.byte[kind]:
            spare += pays.byte[kind] * (group.memory - size[own])
        found[kind, own] = spare
    return found
