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

from fxpasses.partitioners.solvers.contiguous.spans import Spans
from fxpasses.partitioners.solvers.contiguous.states import States
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from fxpasses.partitioners.solvers.contiguous.arc_lists import ArcLists

__all__ = ["NOTHING", "Payment", "Question", "Spare", "ends_of"]

Bools = NDArray[np.bool_]
NOTHING = -np.inf
"""What is taken along where no pipeline comes, and left where a device cannot run what is there."""


@attrs.frozen(eq=False)
class Payment:
    """What a device of each class pays: ``room`` at most, ``load`` for a second and ``byte`` for a byte at least."""

    room: Floats
    load: Floats
    byte: Floats


@attrs.frozen(eq=False)
class Question:
    """Between which ideals of a core a device can run.

    Args:
        spans: The ideals.
        states: How many devices of each class are used.
        pays: What they pay.
        below: The threshold on the load.
        slack: What sums of weights may be off by.
        coarse: Between which ideals of a coarser core a device can run, ``(g, g)``; None: between all.
        parent: The ideal of the coarser core that each ideal comes from, ``(f,)``.
    """

    spans: Spans
    states: States
    pays: Payment
    below: float
    slack: float
    coarse: csr_array[np.int8] | None
    parent: Ints

    @property
    def reach(self) -> float:
        """How much more than the first ideal of a pair the last one weighs at most."""
        return float(self.pays.room.max()) + self.slack


@attrs.frozen(eq=False)
class Spare:
    """The ideals of a core and the devices.

    Args:
        arcs: Between which ideals a device can run.
        states: How many devices of each class are used.
        room: What a device of each class can take at most.
        needed: The weight of units left out that each ideal needs, ``(f,)``.
        ready: The weight of those that each ideal allows, ``(f,)``.
        total: The weight of all that is left out.
        slack: What sums of weights may be off by.
    """

    arcs: ArcLists
    states: States
    room: Floats
    needed: Floats
    ready: Floats
    total: float
    slack: float

    def taken(self, allowed: Bools, steps: float) -> Floats | None:
        """The most that devices took along up to each ideal, ``(states, f)``; -inf where they cannot have run it.

        ``allowed`` are the states that each ideal may be in. None if that takes more than some steps.
        """
        most = np.full(allowed.shape, NOTHING)
        most[0, 0] = 0.0
        for layer in self._layers():
            for state in layer:
                own = np.minimum(most[state], self.ready)
                most[state] = np.where(allowed[state] & (own >= self.needed - self.slack), own, NOTHING)
                for kind, there in self.states.moves[state]:  # a device without a unit of the core
                    np.maximum(most[there], most[state] + self.room[kind], out=most[there])
            if not self.arcs.forth(most, layer, steps):
                return None
        return most

    def left(self, taken: Floats, steps: float) -> Floats | None:
        """The same for the devices that are left, from each ideal on."""
        allowed, most = taken > NOTHING, np.full(taken.shape, NOTHING)
        most[:, -1] = 0.0
        for layer in reversed(list(self._layers())):
            for state in layer:
                for kind, there in self.states.moves[state]:
                    np.maximum(most[state], most[there] + self.room[kind], out=most[state])
            if not self.arcs.back(most, layer, taken, self.total - self.slack, steps):
                return None
            for state in layer:
                own = np.minimum(most[state], self.total - self.needed)
                fine = allowed[state] & (own >= self.total - self.ready - self.slack)
                most[state] = np.where(fine, own, NOTHING)
        return most

    def _layers(self) -> Iterator[list[int]]:
        """The states with each number of devices."""
        used = self.states.used.sum(axis=1)
        for count in range(int(used.max()) + 1):
            yield np.flatnonzero(used == count).tolist()


def ends_of(ideals: Bools) -> list[tuple[int, int]]:
    """The first ideal of each state and the one after its last; the same where it has none."""
    first = ideals.argmax(axis=1)
    last = ideals.shape[1] - ideals[:, ::-1].argmax(axis=1)
    return list(zip(first.tolist(), np.where(ideals.any(axis=1), last, first).tolist(), strict=True))
