"""The best pipeline over a family of cuts: a dynamic program over ideals, pruned by memory and by a threshold.

``best[s][i]`` is the smallest largest load with which the devices used in state ``s`` run ideal ``i``; a step runs the
difference of two nested ideals on one more device (Tarnawski et al., "Efficient algorithms for device placement of DNN
graph operators", NeurIPS 2020, section 5.1; over the prefixes of one order it is Narayanan et al., "PipeDream", SOSP
2019, section 3.1).

What makes it fast: under a threshold on the load, the devices used must have room for the ideal, and those left for the
rest. With prices of seconds and bytes on each device (the duals of the fractional relaxation) that leaves each state a
narrow window of ideals when the threshold is near the fractional bound.
"""

from __future__ import annotations

import math
import sys

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.ideals.cutting import CutFamily
from fxpasses.partitioners.solvers.contiguous.ideals.device_class import DeviceClass
from fxpasses.partitioners.solvers.contiguous.ideals.spans import Spans
from fxpasses.partitioners.solvers.contiguous.ideals.states import States
from fxpasses.partitioners.solvers.contiguous.tables.filled_tables import FilledTable, Pipeline, Table
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["MAX_BLOCK", "Measure", "Outcome", "PipelineSearch"]

SLACK = 1e-9
MAX_BLOCK, CELLS, FEW_CLASSES = 256, 300_000, 8
"""Ideals that are gone on from at once, and pairs of ideals, of so many classes of devices; fewer pairs of more."""
CALL, CELL, PAIR = 300.0, 0.1, 2.0
"""Steps that a move between states costs for some ideals, and each pair of ideals that it looks at; and those that the
loads of a pair cost for each class of devices."""
MANY_PAIRS = 30e6
"""Pairs of ideals, with their states, from which on it is worth to load compiled code."""


@attrs.frozen(eq=False)
class Measure:
    """A weight of each unit, and how much weight one device of each class can take at most.

    ``limits`` are the windows where more is known about them than that.
    """

    weight: Floats
    room: Floats
    limits: tuple[Floats, Floats] | None = None

    def window(self, states: States, total: float) -> tuple[Floats, Floats]:
        """Between which weights the ideals of each state lie: what it used has room, and what is left for the rest."""
        if self.limits is not None:
            return self.limits
        with np.errstate(invalid="ignore"):
            used = np.where(states.used > 0, states.used * self.room, 0.0).sum(axis=1)
            left = states.used.max(axis=0) - states.used
            most_left = np.where(left > 0, left * self.room, 0.0).sum(axis=1)
        slack = SLACK * total
        return total - most_left - slack, used + slack


@attrs.frozen
class Outcome:
    """The best pipeline under a threshold (None: there is none), whether all was looked at, and the steps it took."""

    pipeline: Pipeline | None
    finished: bool
    steps: float


@attrs.frozen(eq=False)
class PipelineSearch:
    """A family of cuts and the devices.

    Args:
        units: The reduced problem.
        classes: Its devices.
        states: In which numbers or order they are used.
        measure: What the windows are taken from; valid under the threshold that is given to :meth:`run`.
        credit: For each class, bytes that do not count, if the load is bytes.
        fewest: Whether a pipeline of fewer devices is better than one of a smaller load.
        in_turn: Whether one sample counts, for which the devices work one after the other: loads add up.
    """

    units: Units
    classes: tuple[DeviceClass, ...]
    states: States
    measure: Measure
    credit: tuple[float, ...] | None = None
    fewest: bool = False
    in_turn: bool = False

    def run(self, words: NDArray[np.uint64], below: float, steps: float = math.inf) -> Outcome:
        """Find the pipeline of the smallest value under ``below`` that cuts at ideals of a family.

        ``steps`` bounds the number of pairs of ideals that are looked at, times the states of the devices.
        """
        filled = self._filled(words, below, steps)
        if filled is None:
            return Outcome(None, True, 0.0)
        taken = filled.table.steps
        return Outcome(None, False, taken) if taken > steps else Outcome(filled.best(), True, taken)

    def others(self, words: NDArray[np.uint64], below: float, count: int, steps: float = math.inf) -> list[Pipeline]:
        """Some of the best under a threshold, which use or end with other devices; none if that takes long."""
        filled = self._filled(words, below, steps)
        return [] if filled is None or filled.table.steps > steps else filled.others(count)

    def _filled(self, words: NDArray[np.uint64], below: float, steps: float = math.inf) -> FilledTable | None:
        """All that is known of pipelines under ``below`` that cut at ideals of a family; None where there are none.

        It is not complete where it took more than ``steps``.
        """
        if not len(words):  # no ideal is left under the threshold
            return None
        family = CutFamily.of(words, self.measure.weight)
        low, high = self._windows(family)
        start, stop = np.searchsorted(family.position, low), np.searchsorted(family.position, high, side="right")
        change = np.zeros(family.count + 1, dtype=np.int64)
        full = start < stop
        np.add.at(change, start[full], 1)
        np.add.at(change, stop[full], -1)
        family = family.kept(np.cumsum(change)[:-1] > 0)
        if not family.count or family.words[0].any() or not family.inside[:, -1].all():
            return None
        spans = Spans.of(self.units, family, self.classes, self.credit)
        table = self._table(spans, low, high)
        for first, last in self._blocks(family):
            self._extend(spans, table, first, last, below)
            if table.steps > steps:
                break
        return FilledTable(spans, self.states, table, below, self.fewest, self.in_turn)

    def _windows(self, family: CutFamily) -> tuple[Floats, Floats]:
        return self.measure.window(self.states, float(family.position[-1]))

    def _table(self, spans: Spans, low: Floats, high: Floats) -> Table:
        """Empty values; ``nan`` never wins, and marks what the memory of the devices rules out."""
        position, kept = spans.family.position, spans.bytes.kept
        start, stop = np.searchsorted(position, low), np.searchsorted(position, high, side="right")
        memory = np.array([group.memory for group in self.classes])
        size = Measure(self.units.kept.astype(np.float64), memory).window(self.states, float(kept[-1]))
        table = Table.of(start, stop)
        for best, first, last, least, most in zip(table.best, start, stop, *size, strict=True):
            own = kept[first:last]
            best[(own < least) | (own > most)] = np.nan
        if len(table.best[0]) and start[0] == 0:
            table.best[0][0] = 0.0
        return table

    def _blocks(self, family: CutFamily) -> list[tuple[int, int]]:
        """Ranges of ideals, each with the columns that its members reach."""
        reach = np.searchsorted(
            family.position, family.position + self._reach(float(family.position[-1])), side="right"
        )
        blocks, first, most = [], 0, CELLS // max(1, len(self.classes) // FEW_CLASSES)
        while first < family.count:
            wide = max(1, int(reach[first]) - first)
            last = min(family.count, first + max(8, min(MAX_BLOCK, most // wide)))
            blocks.append((first, last))
            first = last
        return blocks

    def _reach(self, total: float) -> float:
        return float(self.measure.room.max()) + SLACK * total

    def _pairs(self, table: Table) -> float:
        """How many pairs of ideals are looked at, each move between states for itself, at most."""
        size, moves = (table.stop - table.start).astype(np.float64), self.states.moves
        return float(sum(size[state] * size[there] / 2 for state, after in enumerate(moves) for _kind, there in after))

    def _extend(self, spans: Spans, table: Table, first: int, last: int, below: float) -> None:
        """Let one more device run from each ideal of a block to each ideal that it can reach."""
        position = spans.family.position
        end = int(np.searchsorted(position, position[last - 1] + self._reach(float(position[-1])), side="right"))
        if end <= first + 1 or not self._is_alive(table, first, last):
            return
        block = slice(first, last), slice(first + 1, end)
        asked = self._asked(table, first, last)
        loads = spans.loads(*block, below, asked)
        each = PAIR * (len(asked) + 2 * spans.is_tight) + spans.transfers.steps(*block)
        table.steps += (last - first) * (end - first) * each
        place = np.full(len(self.classes), -1)
        place[asked] = np.arange(len(asked))
        (self._compiled if self._is_worth_compiling(table) else self._in_numpy)(table, loads, place, first)

    def _asked(self, table: Table, first: int, last: int) -> Ints:
        """The classes of devices that come next where a state may have run an ideal of a block."""
        _skips, begins, kinds, _targets = self.states.flat
        here = (table.start < last) & (table.stop > first)
        return np.unique(kinds[np.repeat(here, np.diff(begins))])

    def _is_alive(self, table: Table, first: int, last: int) -> bool:
        """Whether some state has run an ideal of a block, and goes on from it."""
        states = np.flatnonzero((table.start < last) & (table.stop > first)).tolist()
        return any(
            self.states.moves[state] and (table.between(state, first, last)[1] < np.inf).any() for state in states
        )

    def _is_worth_compiling(self, table: Table) -> bool:
        """Whether compiled code is loaded, or so much is to do that it should be; the numbers are the same."""
        return "numba" in sys.modules or self._pairs(table) >= MANY_PAIRS

    def _compiled(self, table: Table, loads: Floats, place: Ints, first: int) -> None:
        """The same as :meth:`_in_numpy`."""
        from fxpasses.partitioners.solvers.contiguous.tables.table_runs import extend  # numba is heavy

        kinds, rows, _columns = loads.shape
        scratch = np.empty((kinds, rows, 2), dtype=np.int64), np.empty(rows, dtype=np.int64), np.empty(rows)
        costs = (CALL, CELL, table.steps)
        skips, begins, each, targets = self.states.flat
        moves = skips, begins, place[each], targets
        table.steps = extend(loads, first, table.flat, moves, scratch, self.in_turn, costs)

    def _in_numpy(self, table: Table, loads: Floats, place: Ints, first: int) -> None:
        """Go on from each ideal of a block; ``place`` says where the loads of each class are, ``(classes,)``."""
        for state, moves in enumerate(self.states.moves):
            low, value = table.between(state, first, first + loads.shape[1])
            if not moves or not len(value):
                continue
            if self.states.skips[state] >= 0:
                self._leave_out(table, self.states.skips[state], low, value)
            alive = np.flatnonzero(value < np.inf)
            if not alive.size:
                continue
            rows = alive + low - first
            for kind, there in moves:
                begin, best = table.between(there, first + 1 + int(rows[0]), first + 1 + loads.shape[2])
                if len(best):
                    own = loads[place[kind]][rows, begin - first - 1 : begin - first - 1 + len(best)]
                    found = (np.add if self.in_turn else np.maximum)(own, value[alive, None]).min(axis=0)
                    np.copyto(best, found, where=found < best)
                    table.steps += CELL * len(rows) * len(best) + CALL

    @staticmethod
    def _leave_out(table: Table, skip: int, low: int, value: Floats) -> None:
        """What a state has run from an ideal on, the one that leaves its next device out has run, too."""
        first, other = table.between(skip, low, low + len(value))
        own = value[first - low : first - low + len(other)]
        np.copyto(other, own, where=own < other)
