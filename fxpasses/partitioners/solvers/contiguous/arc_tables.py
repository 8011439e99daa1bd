"""Pairs of ideals as tables, made anew for each number of devices: for many pairs and few states of the devices."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fxpasses.partitioners.solvers.contiguous.blocks import blocks_of, larger
from fxpasses.partitioners.solvers.contiguous.pairs import Pairs
from fxpasses.partitioners.solvers.contiguous.spare import NOTHING, ROUNDING, Question, ends_of
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["ArcTables"]

Bools = NDArray[np.bool_]
BLOCK, COLUMNS = 256, 4096
"""Rows and columns of the pairs that are looked at together: their matrices stay in a few megabytes."""
PAIR = 10
"""Steps that one pair of ideals costs, beside one for each of its moves between states."""
CALL = 8_000
"""Steps that one move costs beside its pairs, for each block."""


@attrs.define(eq=False)
class ArcTables:
    """A question with the steps taken so far, and which pairs were found to be left."""

    question: Question
    steps: float = 0.0
    _arcs: list[NDArray[np.int32]] = attrs.field(init=False, factory=list)

    def forth(self, most: Floats, layer: list[int], allowed: Bools, steps: float) -> bool:
        """Let one more device run from the ideals of each state of a layer."""
        moves, ends = self.question.states.moves, ends_of(allowed)
        rows = np.flatnonzero(np.logical_or.reduce(most[layer] > NOTHING, axis=0))
        for block, columns, spare in self._tables(rows, np.logical_or.reduce(allowed[self._after(layer)], axis=0)):
            near = np.searchsorted(columns, ends).tolist()
            for state in layer:
                value = most[state, block]
                own = np.flatnonzero(value > NOTHING)
                for kind, there in moves[state] if own.size else ():
                    first, last = near[there]
                    if first < last:
                        found = (spare[kind][own, first:last] + value[own][:, None]).max(axis=0)
                        most[there, columns[first:last]] = np.maximum(most[there, columns[first:last]], found)
                        self.steps += len(own) * len(found) + CALL
            if self.steps > steps:
                return False
        return True

    def back(self, most: Floats, layer: list[int], taken: Floats, enough: float, steps: float) -> bool:
        """Let one device run from the ideals of a layer's states to those from which the others go on."""
        possible = most > NOTHING
        rows = np.flatnonzero(np.logical_or.reduce(taken[layer] > NOTHING, axis=0))
        ends = ends_of(possible)
        for block, columns, spare in self._tables(rows, np.logical_or.reduce(possible[self._after(layer)], axis=0)):
            fine, near = np.zeros((len(block), len(columns)), dtype=bool), np.searchsorted(columns, ends).tolist()
            for state in layer:
                self._precede(most, state, block, columns, spare, near, taken, fine, enough)
            first, last = np.nonzero(fine)
            self._arcs.append(np.stack([block[first], columns[last]]).astype(np.int32))
            if self.steps > steps:
                return False
        return True

    def between(self, some: Bools) -> csr_array[np.int8]:
        """Between which of some ideals a device can run and pipelines go on; known after all layers went back."""
        number = (np.cumsum(some) - 1).astype(np.int32)
        first, last = np.concatenate([np.zeros((2, 0), dtype=np.int32), *self._arcs], axis=1)
        chosen = some[first] & some[last]
        ends = number[first[chosen]], number[last[chosen]]
        return csr_array((np.ones(len(ends[0]), dtype=np.int8), ends), shape=(int(some.sum()),) * 2)

    def _after(self, layer: list[int]) -> list[int]:
        """The states that follow those of a layer."""
        return sorted({there for state in layer for _kind, there in self.question.states.moves[state]})

    def _tables(self, rows: Ints, ends: Bools) -> Iterator[tuple[Ints, Ints, list[Floats]]]:
        """Blocks of pairs of ideals with what a device of each class has to spare between them."""
        family = self.question.spans.family
        for block in blocks_of(family, rows, BLOCK):
            columns = larger(family, block, self._near(block) & ends, self.question.reach)
            for first in range(0, len(columns), COLUMNS):
                part = columns[first : first + COLUMNS]
                self.steps += float(len(block)) * len(part) * PAIR
                yield block, part, self._spare(block, part)

    def _near(self, block: Ints) -> Bools:
        """The ideals that may come a device after some of a block, as far as the coarser core tells."""
        coarse, parent = self.question.coarse, self.question.parent
        if coarse is None:
            return np.ones(len(parent), dtype=bool)
        parents = np.unique(parent[block])
        reached = np.zeros(coarse.shape[0], dtype=bool)
        reached[parents] = True
        reached[coarse[parents].indices] = True
        near: Bools = reached[parent]
        return near

    def _spare(self, block: Ints, columns: Ints) -> list[Floats]:
        """What a device of each class has left between each pair of ideals; -inf where it cannot run what is there."""
        spans, pays, below = self.question.spans, self.question.pays, self.question.below
        found = spans.left(block, columns, below)
        never = [spare < -ROUNDING * below for spare in found]
        some = Pairs.where(~np.logical_and.reduce(never)) if spans.is_tight else None
        size = None if some is None else spans.sizes(block, columns, some, is_exact=bool(pays.byte.any()))
        for kind, (group, spare) in enumerate(zip(spans.classes, found, strict=True)):
            spare *= pays.load[kind]
            if some is not None and size is not None:
                never[kind].ravel()[some.cells[size > group.memory]] = True
                if pays.byte[kind]:
                    spare.ravel()[some.cells] += pays.byte[kind] * (group.memory - size)
            np.copyto(spare, NOTHING, where=never[kind])
        return found

    def _precede(
        self,
        most: Floats,
        state: int,
        block: Ints,
        columns: Ints,
        spare: list[Floats],
        near: list[list[int]],
        taken: Floats,
        fine: Bools,
        enough: float,
    ) -> None:
        own = np.flatnonzero(taken[state, block] > NOTHING)
        if own.size:
            lacking = enough - taken[state, block[own]]
            for kind, there in self.question.states.moves[state]:
                first, last = near[there]
                if first < last:
                    found = spare[kind][own, first:last] + most[there, columns[first:last]][None, :]
                    fine[own, first:last] |= found >= lacking[:, None]
                    most[state, block[own]] = np.maximum(most[state, block[own]], found.max(axis=1))
                    self.steps += len(own) * (last - first) + CALL
