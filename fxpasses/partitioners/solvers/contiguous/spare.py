"""How much weight of units left out the devices can take along at most, up to each ideal of a core and from it on.

By the prices a device pays for its load and its bytes (see :mod:`~fxpasses.partitioners.solvers.proofs.bounds`). What
units of the core leave of that, under a threshold on the load, is there for units left out, as if they were a fluid:
they may be split, go to any device, and nothing that they send, share or need while they run is charged. Only two
things hold them back: a unit left out is not taken before what it needs, nor after what needs it.

The most that is taken up to an ideal and the most from it on are dynamic programs over pairs of ideals, as the best
pipeline is. Where both together are less than all that is left out, no pipeline under the threshold cuts at ideals with
these units of the core. The same sum for a device that runs from one ideal to another says which pairs are left; when
units join the core, only pairs that come from these are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.blocks import blocks_of, larger
from fxpasses.partitioners.solvers.contiguous.spans import Spans
from fxpasses.partitioners.solvers.contiguous.states import States
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["NOTHING", "Payment", "Spare"]

Bools = NDArray[np.bool_]
BLOCK, COLUMNS = 256, 4096
"""Rows and columns of the pairs that are looked at together: their matrices stay in a few megabytes."""
PAIR = 10
"""Steps that one pair of ideals costs, beside one for each of its moves between states."""
CALL = 8_000
"""Steps that one move costs beside its pairs, for each block."""
ROUNDING = 1e-12
"""The share of the threshold that a load may be above it, as the order of its sum has it."""
NOTHING = -np.inf
"""What is taken along where no pipeline comes."""


@attrs.frozen(eq=False)
class Payment:
    """What a device of each class pays: ``room`` at most, ``load`` for a second and ``byte`` for a byte at least."""

    room: Floats
    load: Floats
    byte: Floats


@attrs.define(eq=False)
class Spare:
    """The ideals of a core and the devices.

    Args:
        spans: The ideals.
        states: How many devices of each class are used.
        pays: What they pay.
        below: The threshold on the load.
        needed: The weight of units left out that each ideal needs, ``(f,)``.
        ready: The weight of those that each ideal allows, ``(f,)``.
        total: The weight of all that is left out.
        slack: What sums of weights may be off by.
        coarse: Between which ideals of a coarser core a device can run, ``(g, g)``; None: between all.
        parent: The ideal of the coarser core that each ideal comes from, ``(f,)``.
        steps: Steps taken so far.
    """

    spans: Spans
    states: States
    pays: Payment
    below: float
    needed: Floats
    ready: Floats
    total: float
    slack: float
    coarse: csr_array[np.int8] | None
    parent: Ints
    steps: float = 0.0
    _arcs: list[NDArray[np.int32]] = attrs.field(init=False, factory=list)

    def taken(self, allowed: Bools, steps: float) -> Floats | None:
        """The most that devices took along up to each ideal, ``(states, f)``; -inf where they cannot have run it.

        ``allowed`` are the states that each ideal may be in. None if that takes more than some steps.
        """
        most, ends = np.full(allowed.shape, NOTHING), _ends(allowed)
        most[0, 0] = 0.0
        for layer, after in self._layers():
            for state in layer:
                own = np.minimum(most[state], self.ready)
                most[state] = np.where(allowed[state] & (own >= self.needed - self.slack), own, NOTHING)
                for kind, there in self.states.moves[state]:  # a device without a unit of the core
                    np.maximum(most[there], most[state] + self.pays.room[kind], out=most[there])
            rows = np.flatnonzero(_any(most > NOTHING, layer))
            for block, columns, spare in self._pairs(rows, _any(allowed, after)):
                near = np.searchsorted(columns, ends).tolist()
                for state in layer:
                    self._extend(most, state, block, columns, spare, near)
                if self.steps > steps:
                    return None
        return most

    def left(self, taken: Floats, steps: float) -> Floats | None:
        """The same for the devices that are left, from each ideal on."""
        allowed, most = taken > NOTHING, np.full(taken.shape, NOTHING)
        most[:, -1] = 0.0
        for layer, after in reversed(list(self._layers())):
            for state in layer:
                for kind, there in self.states.moves[state]:
                    np.maximum(most[state], most[there] + self.pays.room[kind], out=most[state])
            rows = np.flatnonzero(_any(allowed, layer))
            possible = most > NOTHING
            ends = _ends(possible)
            for block, columns, spare in self._pairs(rows, _any(possible, after)):
                fine, near = np.zeros((len(block), len(columns)), dtype=bool), np.searchsorted(columns, ends).tolist()
                for state in layer:
                    self._precede(most, state, block, columns, spare, near, taken, fine)
                first, last = np.nonzero(fine)
                self._arcs.append(np.stack([block[first], columns[last]]).astype(np.int32))
                if self.steps > steps:
                    return None
            for state in layer:
                own = np.minimum(most[state], self.total - self.needed)
                fine = allowed[state] & (own >= self.total - self.ready - self.slack)
                most[state] = np.where(fine, own, NOTHING)
        return most

    def arcs(self, some: Bools) -> csr_array[np.int8]:
        """Between which of some ideals a device can run and the others can, too; known after ``left``."""
        from scipy.sparse import csr_array

        number = (np.cumsum(some) - 1).astype(np.int32)
        first, last = np.concatenate([np.zeros((2, 0), dtype=np.int32), *self._arcs], axis=1)
        chosen = some[first] & some[last]
        ends = number[first[chosen]], number[last[chosen]]
        shape = (int(some.sum()),) * 2
        return csr_array((np.ones(len(ends[0]), dtype=np.int8), ends), shape=shape)

    def _layers(self) -> Iterator[tuple[list[int], list[int]]]:
        """The states with each number of devices, and the states that follow these."""
        used = self.states.used.sum(axis=1)
        for count in range(int(used.max()) + 1):
            layer = np.flatnonzero(used == count).tolist()
            yield layer, sorted({there for state in layer for _kind, there in self.states.moves[state]})

    def _pairs(self, rows: Ints, ends: Bools) -> Iterator[tuple[Ints, Ints, list[Floats]]]:
        """Blocks of pairs of ideals with what a device of each class has to spare between them."""
        family, reach = self.spans.family, float(self.pays.room.max()) + self.slack
        for block in blocks_of(family, rows, BLOCK):
            columns = larger(family, block, self._near(block) & ends, reach)
            for first in range(0, len(columns), COLUMNS):
                part = columns[first : first + COLUMNS]
                self.steps += float(len(block)) * len(part) * PAIR
                yield block, part, self._spare(block, part)

    def _near(self, block: Ints) -> Bools:
        """The ideals that may come a device after some of a block, as far as the coarser core tells."""
        if self.coarse is None:
            return np.ones(len(self.parent), dtype=bool)
        parents = np.unique(self.parent[block])
        reached = np.zeros(self.coarse.shape[0], dtype=bool)
        reached[parents] = True
        reached[self.coarse[parents].indices] = True
        near: Bools = reached[self.parent]
        return near

    def _spare(self, block: Ints, columns: Ints) -> list[Floats]:
        """What a device of each class has left between each pair of ideals; -inf where it cannot run what is there."""
        spans = self.spans
        found = spans.left(block, columns, self.below)
        never = [spare < -ROUNDING * self.below for spare in found]
        is_exact, some = bool(self.pays.byte.any()), ~np.logical_and.reduce(never)
        size = spans.sizes(block, columns, some, is_exact=is_exact) if spans.is_tight else None
        for kind, (group, spare) in enumerate(zip(spans.classes, found, strict=True)):
            spare *= self.pays.load[kind]
            if size is not None:
                never[kind] |= size > group.memory
                spare += self.pays.byte[kind] * (group.memory - size) if self.pays.byte[kind] else 0.0
            np.copyto(spare, NOTHING, where=never[kind])
        return found

    def _extend(
        self, most: Floats, state: int, block: Ints, columns: Ints, spare: list[Floats], near: list[list[int]]
    ) -> None:
        """Let one more device run from some ideals of a state to the columns that are near each state's ideals."""
        value = most[state, block]
        own = np.flatnonzero(value > NOTHING)
        if own.size:
            for kind, there in self.states.moves[state]:
                first, last = near[there]
                if first < last:
                    found = (spare[kind][own, first:last] + value[own][:, None]).max(axis=0)
                    self.steps += len(own) * len(found) + CALL
                    most[there, columns[first:last]] = np.maximum(most[there, columns[first:last]], found)

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
    ) -> None:
        """Let one device run from some ideals of a state to those from which the others go on."""
        own = np.flatnonzero(taken[state, block] > NOTHING)
        if own.size:
            enough = self.total - self.slack - taken[state, block[own]]
            for kind, there in self.states.moves[state]:
                first, last = near[there]
                if first < last:
                    found = spare[kind][own, first:last] + most[there, columns[first:last]][None, :]
                    fine[own, first:last] |= found >= enough[:, None]
                    self.steps += len(own) * (last - first) + CALL
                    most[state, block[own]] = np.maximum(most[state, block[own]], found.max(axis=1))


def _any(ideals: Bools, states: list[int]) -> Bools:
    """The ideals that are in some of the states."""
    found: Bools = np.logical_or.reduce(ideals[states], axis=0)
    return found


def _ends(ideals: Bools) -> Ints:
    """The first ideal of each state and the one after its last, ``(states, 2)``; the same where it has none."""
    first = ideals.argmax(axis=1)
    last = ideals.shape[1] - ideals[:, ::-1].argmax(axis=1)
    return np.stack([first, np.where(ideals.any(axis=1), last, first)], axis=1)
