"""The ideals at which a pipeline under a threshold can be cut: from a coarse problem to the given one.

Branches side by side make ideals by the million, though none of them matters much: views of one mask, experts, keys and
values of a decoder. So the search starts with a core of the units that stands nearly in a row, and treats the others as
a fluid (:mod:`~fxpasses.partitioners.solvers.contiguous.spare`). That says for each ideal of the core after which
devices it can come. Then some units join the core, the ideals that are left are split by them, and the question is put
again, until all units are in the core, or no ideal is left (coarse-to-fine dynamic programming: Raphael 2001).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.arc_lists import ArcLists
from fxpasses.partitioners.solvers.contiguous.arc_tables import ArcTables
from fxpasses.partitioners.solvers.contiguous.cores import Core, held_by, widest_first
from fxpasses.partitioners.solvers.contiguous.cutting import CutFamily, Words, by_weight, pack, unpack
from fxpasses.partitioners.solvers.contiguous.device_class import DeviceClass
from fxpasses.partitioners.solvers.contiguous.spans import Spans
from fxpasses.partitioners.solvers.contiguous.spare import Arcs, Payment, Question, Spare
from fxpasses.partitioners.solvers.contiguous.states import States
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["Refined", "Refining"]

Bools = NDArray[np.bool_]
FIRST = 250
"""Ideals of the first core."""
GROWTH = 2
"""How many times as many ideals the next core has, at least, before the question is put."""
FUTILE, MANY = 0.95, 3000
"""Share of so many ideals of a core that are left where it does not help to go on."""
ENDING = 1.5
"""How many times its steps it may take where ever fewer ideals are left: it ends soon."""
LISTED = 1.3
"""States that an ideal may be in, in the mean, from which on pairs are listed."""
PREPARING = 5
"""Steps that it takes to prepare an ideal, for each unit."""
SLACK = 1e-9


@attrs.frozen
class Refined:
    """The ideals that are left (None: there were too many, or too few steps), and the steps that it took."""

    words: Words | None
    steps: float


@attrs.frozen(eq=False)
class _Level:
    """The ideals of a core that are left.

    Args:
        words: They, as bits of all units, ``(f, w)``.
        allowed: In which states each may be, ``(states, f)``.
        arcs: Between which ideals of the core before a device can run, ``(g, g)``; None: between all.
        parent: The ideal of that core that each comes from, ``(f,)``.
    """

    words: Words
    allowed: Bools
    arcs: csr_array[np.int8] | None
    parent: Ints

    @property
    def work(self) -> float:
        """How many pairs of ideals and states may have to be looked at: pairs come from those of the core before."""
        if self.arcs is None:
            return 0.0
        children = len(self.words) / self.arcs.shape[0]
        return float(self.arcs.nnz) * children**2 * float(self.allowed.sum()) / len(self.words)


@attrs.frozen(eq=False)
class Refining:
    """A problem.

    Args:
        units: The units.
        classes: The devices.
        states: In which numbers they are used.
        weight: What each unit weighs by the prices, ``(m,)``.
    """

    units: Units
    classes: tuple[DeviceClass, ...]
    states: States
    weight: Floats

    @cached_property
    def _held(self) -> Bools:
        """Which units the ideals that hold another one hold."""
        return held_by(self.units)

    @cached_property
    def _left_out(self) -> list[int]:
        """Those that are not in the first core, the last one to join it first."""
        return widest_first(self._held, self.weight)

    def ideals(self, pays: Payment, below: float, steps: float, limit: int) -> Refined:
        """All ideals that a pipeline under a threshold may be cut at, and perhaps some more."""
        taken, spent, work, left_out = 0.0, 0.0, 0.0, list(self._left_out)
        chosen = np.ones(self.units.size, dtype=bool)
        chosen[left_out] = False
        level = self._row(chosen)
        most, before = steps, 0
        while True:
            level = self._split(level, chosen, left_out)
            expected = spent * level.work / work if work else 0.0
            if len(level.words) > limit or expected > most - taken:
                return Refined(None, taken)
            work = level.work
            possible, spent = self._possible(level, chosen, pays, below, most - taken)
            taken += spent
            if possible is None:
                return Refined(None, taken)
            if not left_out or not len(possible.words):
                return Refined(possible.words, taken)
            most, before = steps * (ENDING if len(possible.words) < before else 1.0), len(possible.words)
            if MANY < len(level.words) * FUTILE < len(possible.words) and len(possible.words) << len(left_out) > limit:
                return Refined(None, taken)
            level = possible

    def _row(self, chosen: Bools) -> _Level:
        """The ideals of units that stand in a row."""
        rows = np.zeros((int(chosen.sum()) + 1, self.units.size), dtype=bool)
        for count, unit in enumerate(np.flatnonzero(chosen).tolist()):
            rows[count + 1 :, unit] = True
        return _Level(pack(rows), np.ones((len(self.states.moves), len(rows)), dtype=bool), None, np.arange(len(rows)))

    def _split(self, level: _Level, chosen: Bools, left_out: list[int]) -> _Level:
        """Let units join the core: each ideal is split in two where it need not hold a unit, but may."""
        enough, words = max(FIRST, GROWTH * len(level.words)), level.words
        origin = np.arange(len(words))
        while left_out and len(words) < enough:
            unit, core = left_out.pop(), pack(chosen[None])
            may = ~(pack(self._held[:, unit][None]) & core & ~words).any(axis=1)
            need_not = ~(pack(self._held[unit][None]) & core & words).any(axis=1)
            larger = words[may]
            larger[:, unit // 64] |= np.uint64(1 << unit % 64)
            words, origin = np.concatenate([words[need_not], larger]), np.concatenate([origin[need_not], origin[may]])
            chosen[unit] = True
        return _Level(words, level.allowed[:, origin], level.arcs, level.parent[origin])

    def _possible(
        self, level: _Level, chosen: Bools, pays: Payment, below: float, steps: float
    ) -> tuple[_Level | None, float]:
        """The ideals between which pipelines of the core stay under the threshold, and the steps that it took."""
        core, weight = Core.of(self.units, self.classes, chosen), self.weight[chosen]
        words = pack(unpack(level.words, self.units.size)[:, chosen])
        order = by_weight(words, weight)
        family = CutFamily.of(words[order], weight)
        question = Question(
            Spans.of(core.units, family, core.classes),
            self.states,
            pays,
            below,
            self._slack,
            level.arcs,
            level.parent[order],
        )
        allowed = level.allowed[:, order]
        begun = PREPARING * float(family.count) * self.units.size
        steps -= begun
        arcs, spent = self._arcs(question, allowed, steps)
        if arcs is None:
            return None, begun + spent
        spare = Spare(
            arcs,
            self.states,
            pays.room,
            needed=self.weight[~chosen] @ (core.after @ family.inside > 0),
            ready=self.weight[~chosen] @ (core.before @ ~family.inside == 0),
            total=float(self.weight[~chosen].sum()),
            slack=self._slack,
        )
        taken = spare.taken(allowed, steps)
        left = None if taken is None else spare.left(taken, steps)
        if taken is None or left is None:
            return None, begun + arcs.steps
        allowed = taken + left >= spare.total - self._slack
        some: Bools = np.logical_or.reduce(allowed, axis=0)
        some &= some[0] & some[-1]  # every pipeline begins with nothing and ends with everything
        numbers = np.arange(int(some.sum()))
        return _Level(level.words[order[some]], allowed[:, some], arcs.between(some), numbers), begun + arcs.steps

    @staticmethod
    def _arcs(question: Question, allowed: Bools, steps: float) -> tuple[Arcs | None, float]:
        """As lists where many states go along the same pairs; with the steps that it took."""
        if allowed.sum() > LISTED * allowed.shape[1]:
            return ArcLists.of(question, steps)
        return ArcTables(question), 0.0

    @property
    def _slack(self) -> float:
        """What sums of weights may be off by."""
        return SLACK * float(self.weight.sum())
