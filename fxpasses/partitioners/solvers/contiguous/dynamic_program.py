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

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.cutting import CutFamily
from fxpasses.partitioners.solvers.contiguous.device_class import DeviceClass
from fxpasses.partitioners.solvers.contiguous.spans import Spans
from fxpasses.partitioners.solvers.contiguous.states import States
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["Measure", "Outcome", "Pipeline", "PipelineSearch"]

SLACK = 1e-9
MAX_BLOCK = 256
CELLS = 1_000_000
CALL = 1000
"""Steps that one call costs beside the cells that it looks at."""


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
class Pipeline:
    """Runs as (position of a device, its units), in execution order, with the value that the program found."""

    runs: tuple[tuple[int, tuple[int, ...]], ...]
    value: float


@attrs.frozen
class Outcome:
    """The best pipeline under a threshold (None: there is none), whether all was looked at, and the steps it took."""

    pipeline: Pipeline | None
    finished: bool
    steps: float


@attrs.define(eq=False)
class _Table:
    """For each state the ideals from ``start`` on that it may have run, and the best value of each."""

    start: Ints
    stop: Ints
    best: list[Floats]
    steps: float = 0.0


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
        if not len(words):  # no ideal is left under the threshold
            return Outcome(None, True, 0.0)
        family = CutFamily.of(words, self.measure.weight)
        low, high = self._windows(family)
        start, stop = np.searchsorted(family.position, low), np.searchsorted(family.position, high, side="right")
        change = np.zeros(family.count + 1, dtype=np.int64)
        full = start < stop
        np.add.at(change, start[full], 1)
        np.add.at(change, stop[full], -1)
        family = family.kept(np.cumsum(change)[:-1] > 0)
        if not family.count or family.words[0].any() or not family.inside[:, -1].all():
            return Outcome(None, True, 0.0)
        spans = Spans.of(self.units, family, self.classes, self.credit)
        table = self._table(spans, low, high)
        for first, last in self._blocks(family):
            self._extend(spans, table, first, last, below)
            if table.steps > steps:
                return Outcome(None, False, table.steps)
        return Outcome(self._pipeline(spans, table, below), True, table.steps)

    def _windows(self, family: CutFamily) -> tuple[Floats, Floats]:
        return self.measure.window(self.states, float(family.position[-1]))

    def _table(self, spans: Spans, low: Floats, high: Floats) -> _Table:
        """Empty values; ``nan`` never wins, and marks what the memory of the devices rules out."""
        position, kept = spans.family.position, spans.bytes.kept
        start, stop = np.searchsorted(position, low), np.searchsorted(position, high, side="right")
        memory = np.array([group.memory for group in self.classes])
        size = Measure(self.units.kept.astype(np.float64), memory).window(self.states, float(kept[-1]))
        best = []
        for first, last, least, most in zip(start.tolist(), stop.tolist(), *size, strict=True):
            own = kept[first:last]
            best.append(np.where((own >= least) & (own <= most), np.inf, np.nan))
        if len(best[0]) and start[0] == 0:
            best[0][0] = 0.0
        return _Table(start, stop, best)

    def _blocks(self, family: CutFamily) -> list[tuple[int, int]]:
        """Ranges of ideals, each with the columns that its members reach."""
        reach = np.searchsorted(
            family.position, family.position + self._reach(float(family.position[-1])), side="right"
        )
        blocks, first = [], 0
        while first < family.count:
            wide = max(1, int(reach[first]) - first)
            last = min(family.count, first + max(8, min(MAX_BLOCK, CELLS // wide)))
            blocks.append((first, last))
            first = last
        return blocks

    def _reach(self, total: float) -> float:
        return float(self.measure.room.max()) + SLACK * total

    def _extend(self, spans: Spans, table: _Table, first: int, last: int, below: float) -> None:
        """Let one more device run from each ideal of a block to each ideal that it can reach."""
        states = [
            state
            for state in np.flatnonzero((table.start < last) & (table.stop > first)).tolist()
            if self.states.moves[state]
        ]
        position = spans.family.position
        end = int(np.searchsorted(position, position[last - 1] + self._reach(float(position[-1])), side="right"))
        if not states or end <= first + 1:
            return
        loads: list[Floats] | None = None
        for state in states:
            own_first, own_last = max(first, int(table.start[state])), min(last, int(table.stop[state]))
            skip = self.states.skips[state]
            if skip >= 0:
                self._leave_out(table, state, skip, own_first, own_last)
            value = table.best[state][own_first - table.start[state] : own_last - table.start[state]]
            alive = np.flatnonzero(value < np.inf)
            if not alive.size:
                continue
            if loads is None:
                loads = spans.loads(slice(first, last), slice(first + 1, end), below)
                table.steps += (last - first) * (end - first) * 6.0 * (len(self.classes) + 2 * spans.is_tight)
            rows = alive + own_first - first
            self._relax(table, loads, state, rows, value[alive], (first + 1, end))

    def _leave_out(self, table: _Table, state: int, skip: int, first: int, last: int) -> None:
        first, last = max(first, int(table.start[skip])), min(last, int(table.stop[skip]))
        if first < last:
            own = table.best[state][first - table.start[state] : last - table.start[state]]
            other = table.best[skip][first - table.start[skip] : last - table.start[skip]]
            np.copyto(other, own, where=own < other)

    def _relax(
        self, table: _Table, loads: list[Floats], state: int, rows: Ints, value: Floats, columns: tuple[int, int]
    ) -> None:
        for kind, there in self.states.moves[state]:
            first = max(columns[0] + int(rows[0]), int(table.start[there]))
            last = min(columns[1], int(table.stop[there]))
            if first >= last:
                continue
            own = loads[kind][:, first - columns[0] : last - columns[0]]
            own = own[rows[0] : rows[-1] + 1] if len(rows) == rows[-1] - rows[0] + 1 else own[rows]
            found = self._combined(own, value[:, None]).min(axis=0)
            target = table.best[there][first - table.start[there] : last - table.start[there]]
            np.copyto(target, found, where=found < target)
            table.steps += own.size + CALL

    def _combined(self, load: Floats, so_far: Floats) -> Floats:
        both: Floats = np.add(load, so_far) if self.in_turn else np.maximum(load, so_far)
        return both

    def _pipeline(self, spans: Spans, table: _Table, below: float) -> Pipeline | None:
        """Walk back from the whole graph; the loads on the way are computed anew."""
        ideal = spans.family.count - 1
        ends = [
            float(best[ideal - start]) if start <= ideal < start + len(best) else math.inf
            for start, best in zip(table.start.tolist(), table.best, strict=True)
        ]
        reached = [state for state, value in enumerate(ends) if value < math.inf]
        if not reached:
            return None
        devices = self.states.used.sum(axis=1)
        state = min(
            reached, key=lambda each: (int(devices[each]) if self.fewest else 0, ends[each], int(devices[each]))
        )
        total, runs = ends[state], []
        sources: list[list[tuple[int, int]]] = [[] for _ in ends]
        for before, moves in enumerate(self.states.moves):
            for kind, there in moves:
                sources[there].append((before, kind))
        while ideal:
            before, kind, first = self._origin(spans, table, sources, state, ideal, below)
            if kind >= 0:
                members = np.flatnonzero(spans.family.inside[:, ideal] & ~spans.family.inside[:, first])
                runs.append((self.states.device(state, kind), tuple(members.tolist())))
            state, ideal = before, first
        return Pipeline(tuple(reversed(runs)), total)

    def _origin(
        self, spans: Spans, table: _Table, sources: list[list[tuple[int, int]]], state: int, ideal: int, below: float
    ) -> tuple[int, int, int]:
        """The state, the class and the ideal before the last device of the best pipeline into an ideal."""
        goal = float(table.best[state][ideal - table.start[state]])
        found: tuple[float, int, int, int] = (math.inf, 0, 0, 0)
        for before, kind in sources[state]:
            if self.states.skips[before] == state and table.start[before] <= ideal < table.stop[before]:
                value = float(table.best[before][ideal - table.start[before]])
                if value <= goal:
                    return before, -1, ideal
            values = table.best[before][: max(0, ideal - int(table.start[before]))]
            rows = np.flatnonzero(values <= goal)
            if not rows.size:
                continue
            loads = spans.loads(
                rows + int(table.start[before]), np.array([ideal]), below * (1 + 1e-12) if goal < below else below
            )
            total = self._combined(loads[kind][:, 0], values[rows])
            best = int(np.argmax(total <= total.min() * (1 + 1e-12)))
            if total[best] < found[0]:
                found = (float(total[best]), before, kind, int(rows[best] + table.start[before]))
        return found[1:]
