"""The ideals at which a pipeline under a threshold can be cut: from a coarse problem to the given one.

Branches side by side make ideals by the million, though none of them matters much: views of one mask, experts, keys and
values of a decoder. So the search starts with a core of the units that stands nearly in a row, and treats the others as
a fluid (:mod:`~fxpasses.partitioners.solvers.contiguous.refined.spare`). That says for each ideal of the core after
which devices it can come. Then some units join the core, the ideals that are left are split by them, and the question
is put again, until all units are in the core, or no ideal is left (coarse-to-fine dynamic programming: Raphael 2001).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import attrs
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fxpasses.partitioners.solvers.contiguous.ideals.cutting import CutFamily, Words, by_weight, pack, unpack
from fxpasses.partitioners.solvers.contiguous.ideals.device_class import DeviceClass
from fxpasses.partitioners.solvers.contiguous.ideals.lifetimes import Lifetimes
from fxpasses.partitioners.solvers.contiguous.ideals.spans import Spans
from fxpasses.partitioners.solvers.contiguous.ideals.states import States
from fxpasses.partitioners.solvers.contiguous.long_graphs import is_long
from fxpasses.partitioners.solvers.contiguous.refined.arc_lists import ArcLists
from fxpasses.partitioners.solvers.contiguous.refined.cores import Core, held_by, mattering, widest_first
from fxpasses.partitioners.solvers.contiguous.refined.joining import Joining
from fxpasses.partitioners.solvers.contiguous.refined.parallel_paths import parallel_paths
from fxpasses.partitioners.solvers.contiguous.refined.spare import Fluid, Payment, Question
from fxpasses.partitioners.solvers.contiguous.refined.subset_sums import SubsetSums
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["Refined", "Refining"]

Bools = NDArray[np.bool_]
FIRST = 250
"""Ideals of the first core."""
GROWTH, GRADUAL = 2, 1.5
"""How many times as many ideals the next core has, at least, before the question is put; where some are dropped."""
SCARCE, HARDLY, RISES, BACK = 0.05, 0.2, 8, 2
"""Parts of the promising ideals, and of all of a core, of which at least one should be left; in how many steps the
threshold rises where it is not, and how many cores back the search goes."""
CORE, PICKING = 0.5e6, 1.5e6
"""Steps that a core takes, however few ideals it has, and those that it takes besides to pick the most promising."""
ENDING, LAST = 1.5, 4
"""How many times its steps it may take where ever fewer ideals are left, or so few units left out: it ends soon."""
FALLING, NEAR = 0.65, 1.3
"""The share of the ideals of a core below which ever fewer are left after the next ones, and how many times then."""
FUTILE, MANY = 0.95, 3000
"""Share of the ideals of a core that are left where it does not help to go on, with so many or where they grow fast."""
RESERVE, AGAIN, TWICE = 0.1, 8, 2
"""What is left once the threshold is lowered: a share of all steps, or so many times what the first core took, up to
twice all steps."""
REACH = 0.4
"""The share of that which one core may take."""
KEPT = 0.6
"""Share of the ideals that a lower threshold should leave; the second time that of this share, and so on."""
PREPARING, PREPARING_LONG = 7, 20
"""Steps that it takes to prepare an ideal, for each unit, and in long graphs, where these do not stay in the cache."""
SLACK = 1e-9


@attrs.frozen
class Refined:
    """What is known of the ideals at which a pipeline can be cut.

    Args:
        words: Those that are left; None: there were too many, or too few steps.
        steps: What it took.
        below: The threshold: the given one, or a lower one where the steps did not reach.
    """

    words: Words | None
    steps: float
    below: float


@attrs.frozen(eq=False)
class _Level:
    """The ideals of a core that are left.

    Args:
        chosen: The units of the core, ``(m,)``.
        words: The ideals, as bits of all units, ``(f, w)``.
        allowed: In which states each may be, ``(f, s)``.
        arcs: Between which ideals of the core before a device can run, ``(g, g)``; None: between all.
        parent: The ideal of that core that each comes from, ``(f,)``.
    """

    chosen: Bools
    words: Words
    allowed: csr_array[np.int8]
    arcs: csr_array[np.int8] | None
    parent: Ints

    @property
    def left_out(self) -> int:
        """How many units have not joined the core."""
        return int(np.count_nonzero(~self.chosen))

    @property
    def work(self) -> float:
        """How many pairs of ideals and states may have to be looked at: pairs come from those of the core before."""
        if self.arcs is None:
            return 0.0
        children = len(self.words) / self.arcs.shape[0]
        return float(self.arcs.nnz) * children**2 * float(self.allowed.nnz) / len(self.words)


@attrs.frozen(eq=False)
class _Asked:
    """What was left of a core, and what it took to find out.

    Args:
        left: The ideals that are left.
        spare: What the devices can take along at most beside all that is left out, by way of each, ``(f,)``.
        spent: The steps.
        pair: Those of them for a pair of ideals.
        share: The share of its ideals that is left.
    """

    left: _Level
    spare: Floats
    spent: float
    pair: float
    share: float


@attrs.frozen(eq=False)
class Refining:
    """A problem.

    Args:
        units: The units.
        classes: The devices.
        states: In which numbers they are used.
        weight: What each unit weighs by the prices, ``(m,)``.
        load: What a device of each class pays for a second.
        lives: What is on a device while it runs, where that is known.
    """

    units: Units
    classes: tuple[DeviceClass, ...]
    states: States
    weight: Floats
    load: Floats
    lives: Lifetimes | None = None
    _cores: dict[bytes, Core] = attrs.field(factory=dict, init=False)

    @cached_property
    def _held(self) -> Bools:
        """Which units the ideals that hold another one hold."""
        return held_by(self.units)

    @cached_property
    def _matters(self) -> Floats:
        """How much each unit matters to where pipelines are cut."""
        return mattering(self.units, self.classes, self.load, self.weight, self._held)

    @cached_property
    def _in_row(self) -> Bools:
        """The units of the first core."""
        chosen = np.ones(self.units.size, dtype=bool)
        chosen[widest_first(self._held, self._matters)] = False
        return chosen

    @cached_property
    def _stands_for(self) -> dict[int, int]:
        """Which values units left out should stand in for."""
        prices = [pays * (group.leaving + group.entering) for pays, group in zip(self.load, self.classes, strict=True)]
        return parallel_paths(self.units, self._in_row, self.weight, np.mean(prices, axis=0))

    def ideals(
        self,
        pays: Callable[[float], Payment],
        below: float,
        steps: float,
        limit: int,
        least: float,
        look: Callable[[float], float] | None = None,
    ) -> Refined:
        """All ideals that a pipeline under a threshold may be cut at, and perhaps some more.

        ``pays`` is what devices pay under a threshold. Where the steps do not reach, it is lowered, but not to
        ``least``, and a core is asked again that did not take much. ``look`` is told the steps taken before each core,
        and tells the threshold: a lower one where something better was found meanwhile.
        """
        level, asked = self._split(self._row(), GROWTH), list[_Asked]()
        taken, most, kept, is_lowered = 0.0, steps, 1.0, False
        while True:
            if look is not None:
                below = min(below, look(taken))
            found, reach = None, REACH if is_lowered else 1.0
            expected, left = self._expected(asked, level), reach * (most - taken)
            is_vain = least < below and _is_vain(asked, level, expected, left, is_lowered)
            if len(level.words) <= limit and expected <= left and not is_vain:
                found, spare, spent = self._possible(level, pays(below), below, most - taken)
                taken += spent
            if found is None or _is_futile(level, found, limit):
                if not is_lowered and asked:
                    reserve = max(RESERVE * steps, min(AGAIN * asked[0].spent, TWICE * steps))
                    most, is_lowered = max(most, taken + reserve), True
                while asked and asked[-1].spent > REACH * (most - taken):
                    asked.pop()
                if below <= least or not asked:
                    return Refined(None, taken, below)
                again, kept = asked.pop(), kept * KEPT
                below = self._lower(float(np.quantile(again.spare, 1 - kept)), pays(below).load, below, least)
                level = again.left
            elif found.left_out and len(found.words):
                if asked and not is_lowered:
                    is_ending = found.left_out <= LAST or len(found.words) < len(asked[-1].left.words)
                    is_near = len(found.words) < FALLING * len(level.words)
                    most = steps * (ENDING if is_ending else NEAR if is_near else 1.0)
                pair = (spent - self._preparing(level)) / level.work if level.work else 0.0
                asked.append(_Asked(found, spare, spent, pair, len(found.words) / len(level.words)))
                level = self._split(found, GROWTH)
            else:
                return Refined(found.words, taken, below)

    def promising(
        self, pays: Callable[[float], Payment], least: float, below: float, most: int, steps: float = math.inf
    ) -> Refined:
        """Some ideals that a pipeline under a threshold may be cut at: of each core only the most promising are left.

        Where hardly any are left, the search goes back a few cores under a higher threshold.

        Args:
            pays: What devices pay under a threshold.
            least: The first threshold.
            below: The last one.
            most: About how many ideals go from core to core.
            steps: How many there are.
        """
        levels, taken, reached = [self._split(self._row(), GRADUAL)], 0.0, least
        while taken < steps:
            level = levels[-1]
            found, _spare, spent = self._possible(level, pays(reached), reached, math.inf, most)
            taken += PICKING + spent
            if found is None:
                return Refined(None, taken, reached)
            enough = min(SCARCE * most, HARDLY * len(level.words)) if found.left_out else 2.0
            if len(found.words) < enough and reached < below:
                reached = min(below, reached + (below - least) / RISES)
                del levels[max(1, len(levels) - BACK) :]
            elif found.left_out and len(found.words):
                levels.append(self._split(found, GRADUAL))
            else:
                return Refined(found.words, taken, reached)
        return Refined(None, taken, reached)

    def _expected(self, asked: list[_Asked], level: _Level) -> float:
        """The steps that a core may take, by what the one before it took for its pairs; of the first what is known."""
        return self._preparing(level) + (asked[-1].pair * level.work if asked else 0.0)

    def _preparing(self, level: _Level) -> float:
        each = PREPARING_LONG if is_long(self.units) else PREPARING
        return CORE + each * float(len(level.words)) * self.units.size

    def _lower(self, spare: float, load: Floats, below: float, least: float) -> float:
        """The threshold at which the devices could take so much less along, or halfway to the least."""
        paid = float((self.states.used.max(axis=0) * load).sum())
        return max(below - spare / paid if paid > 0 else -math.inf, (below + least) / 2)

    def _row(self) -> _Level:
        """The ideals of units that stand in a row."""
        chosen = self._in_row
        rows = np.zeros((int(chosen.sum()) + 1, self.units.size), dtype=bool)
        for count, unit in enumerate(np.flatnonzero(chosen).tolist()):
            rows[count + 1 :, unit] = True
        allowed = csr_array(np.ones((len(rows), len(self.states.moves)), dtype=np.int8))
        numbers = np.arange(len(rows))
        return _Level(chosen, pack(rows), allowed, None, numbers)

    def _split(self, level: _Level, growth: float) -> _Level:
        """Let units join the core: each ideal is split in two where it need not hold a unit, but may."""
        enough, words = max(FIRST, growth * len(level.words)), level.words
        chosen, origin, joining = (
            level.chosen.copy(),
            np.arange(len(words)),
            Joining(self.units, self._matters, level.chosen, words),
        )
        while not chosen.all() and len(words) < enough:
            unit, core = joining.next(), pack(chosen[None])
            may = ~(pack(self._held[:, unit][None]) & core & ~words).any(axis=1)
            need_not = ~(pack(self._held[unit][None]) & core & words).any(axis=1)
            larger = words[may]
            larger[:, unit // 64] |= np.uint64(1 << unit % 64)
            words, origin = np.concatenate([words[need_not], larger]), np.concatenate([origin[need_not], origin[may]])
            chosen[unit] = True
        return _Level(chosen, words, level.allowed[origin], level.arcs, level.parent[origin])

    def _possible(
        self, level: _Level, pays: Payment, below: float, steps: float, most: int | None = None
    ) -> tuple[_Level | None, Floats, float]:
        """The ideals between which pipelines of the core stay under the threshold, what is to spare, the steps.

        About ``most`` of them, those with the most to spare, if that is given.
        """
        question, order = self._question(level, pays, below)
        begun = self._preparing(level)
        arcs, spent = ArcLists.of(question, steps - begun)
        if arcs is None:
            return None, np.zeros(0), begun + spent
        left = arcs.left(steps - begun)
        if left is None:
            return None, np.zeros(0), begun + arcs.steps
        more = arcs.taken + left - question.fluid.total
        fine = more >= -question.fluid.slack
        if most is not None:
            fine &= self._promising(question.allowed, more, most)
        number = np.repeat(np.arange(len(order)), np.diff(question.allowed.indptr))  # the ideal of each state of one
        some = np.bincount(number[fine], minlength=len(order)) > 0
        some &= some[0] & some[-1]  # every pipeline begins with nothing and ends with everything
        fine &= some[number]
        begins = np.searchsorted(number[fine], np.flatnonzero(some))
        allowed = csr_array(
            (np.ones(int(fine.sum()), dtype=np.int8), question.allowed.indices[fine], np.append(begins, fine.sum())),
            shape=(len(begins), len(self.states.moves)),
        )
        possible = _Level(level.chosen, level.words[order[some]], allowed, arcs.between(some), np.arange(len(begins)))
        spare = np.maximum.reduceat(more[fine], begins) if len(begins) else np.zeros(0)
        return possible, spare, begun + arcs.steps

    def _question(self, level: _Level, pays: Payment, below: float) -> tuple[Question, Ints]:
        """What is asked of the ideals of a core, by weight, and which of them each is."""
        core, weight, rest = self._core(level.chosen)
        words = pack(unpack(level.words, self.units.size)[:, level.chosen])
        order = by_weight(words, weight)
        family = CutFamily.of(words[order], weight)
        needed, ready = core.after @ family.inside > 0, core.before @ ~family.inside == 0
        passing, along = core.along(rest)
        fluid = Fluid(
            needed=rest @ needed,
            ready=rest @ ready,
            total=float(rest.sum()),
            slack=SLACK * float(self.weight.sum()),
            passing=passing,
            along=along @ (ready & ~needed),
            toll=core.toll,
            sums=SubsetSums.of(rest, float(pays.room.max())),
        )
        question = Question(
            Spans.of(core.units, family, core.classes),
            self.states,
            level.allowed[order],
            pays,
            below,
            fluid,
            level.arcs,
            level.parent[order],
            None if self.lives is None else self.lives.of_core(level.chosen),
        )
        return question, order

    def _promising(self, allowed: csr_array[np.int8], more: Floats, most: int) -> Bools:
        """Where the most can be taken along: about as many ideals and states for each number of devices."""
        used = self.states.used.sum(axis=1)
        ideal, state = np.repeat(np.arange(allowed.shape[0]), np.diff(allowed.indptr)), allowed.indices
        chosen: Bools = (ideal == 0) & (state == 0) | (ideal == allowed.shape[0] - 1)
        few = max(1, most // int(used.max()))
        for count in range(1, int(used.max())):
            layer = np.flatnonzero(used[state] == count)
            best = np.lexsort((ideal[layer], state[layer], -more[layer]))[:few]
            chosen[layer[best]] = True
        return chosen

    def _core(self, chosen: Bools) -> tuple[Core, Floats, Floats]:
        """The core of some units, what they weigh, and what the others do; searches come by the same cores."""
        key = chosen.tobytes()
        if (core := self._cores.get(key)) is None:
            core = Core.of(self.units, self.classes, chosen, self._stands_for)
            if not is_long(self.units):  # those take much memory
                self._cores[key] = core
        return core, self.weight[chosen], self.weight[~chosen]


def _is_vain(asked: list[_Asked], level: _Level, expected: float, steps: float, is_lowered: bool) -> bool:
    """Whether the core after this one is expected to take too many steps: it grows once more as from the last one on.

    A core grows so where nearly all ideals of the last one are left; under a lowered threshold, which only gives a
    bound, that is not waited for. There is one after this core where more units are left out than have just joined.
    """
    if not asked or not (is_lowered or asked[-1].share > FUTILE):
        return False
    joined = asked[-1].left.left_out - level.left_out
    return level.left_out > joined and expected**2 > (steps - expected) * asked[-1].spent


def _is_futile(level: _Level, found: _Level, limit: int) -> bool:
    """Whether nearly all ideals of a core are left, in nearly all states, and may be split beyond the limit."""
    is_left = MANY < len(level.words) * FUTILE < len(found.words)
    in_states = level.allowed.nnz * FUTILE < found.allowed.nnz
    return is_left and in_states and len(found.words) << found.left_out > limit
