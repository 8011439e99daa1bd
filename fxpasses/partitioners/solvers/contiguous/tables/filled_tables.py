"""The best pipeline that a filled table of the dynamic program holds.

The table says how well the devices used in a state can run an ideal, not who ran what. So one walks back from the whole
graph: to an ideal and a state that reach the best value.
"""

from __future__ import annotations

import math
from functools import cached_property

import attrs
import numpy as np

from fxpasses.partitioners.solvers.contiguous.ideals.spans import Spans
from fxpasses.partitioners.solvers.contiguous.ideals.states import States
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["FilledTable", "Pipeline", "Table"]

LAST = 2
"""How many devices at the end tell one pipeline from another."""
ROUNDING = 1 + 1e-12
"""What a sum may be larger than the same sum in another order."""


@attrs.frozen
class Pipeline:
    """Runs as (position of a device, its units), in execution order, with the value that the program found."""

    runs: tuple[tuple[int, tuple[int, ...]], ...]
    value: float


@attrs.define(eq=False)
class Table:
    """For each state the ideals from ``start`` on that it may have run, and the best value of each.

    Args:
        start: The first ideal of each state, ``(s,)``.
        stop: The one behind its last, ``(s,)``.
        offset: Where its values begin among all of them, ``(s,)``.
        values: The best values of all states.
        steps: What it took so far.
    """

    start: Ints
    stop: Ints
    offset: Ints
    values: Floats
    steps: float = 0.0

    @classmethod
    def of(cls, start: Ints, stop: Ints) -> Table:
        """A table that knows of no way to any ideal."""
        ends = np.concatenate([[0], np.cumsum(np.maximum(stop - start, 0))])
        return cls(start, stop, ends[:-1], np.full(int(ends[-1]), np.inf))

    @cached_property
    def best(self) -> list[Floats]:
        """The values of each state."""
        sizes = np.maximum(self.stop - self.start, 0)
        return [self.values[first : first + size] for first, size in zip(self.offset, sizes, strict=True)]

    @property
    def flat(self) -> tuple[Floats, Ints, Ints, Ints]:
        """As compiled code takes it."""
        return self.values, self.offset, self.start, self.stop

    def between(self, state: int, first: int, last: int) -> tuple[int, Floats]:
        """The values of a state from an ideal to before another one, and the number of the first of them."""
        begin = max(first, int(self.start[state]))
        end = min(last, int(self.stop[state]))
        own = begin - int(self.start[state])
        return begin, self.best[state][own : own + max(0, end - begin)]

    def value(self, state: int, ideal: int) -> float:
        """The best value of an ideal, ``inf`` where the state cannot have run it."""
        first = int(self.start[state])
        value = float(self.best[state][ideal - first]) if first <= ideal < self.stop[state] else math.inf
        return math.inf if math.isnan(value) else value

    def up_to(self, state: int, ideal: int, most: float) -> Ints:
        """The ideals before one that a state can have run with values up to ``most``."""
        first = int(self.start[state])
        values = self.best[state][: max(0, ideal - first)]
        found: Ints = np.flatnonzero((values <= most) & (values < math.inf)) + first
        return found


@attrs.frozen(eq=False)
class _Steps:
    """Ways to get to an ideal in some state by one device, or by leaving it out.

    Args:
        before: The state before.
        kind: The class of the device, -1 where it is left out.
        ideals: From which ideals, ``(i,)``.
        values: The best value of each.
        loads: What the device weighs; all finite.
    """

    before: int
    kind: int
    ideals: Ints
    values: Floats
    loads: Floats


@attrs.frozen
class _Way:
    """The end of a pipeline, as what devices run from an ideal on, the last of them first; its value at least."""

    value: float
    state: int
    ideal: int
    runs: tuple[tuple[int, tuple[int, ...]], ...]


@attrs.frozen(eq=False, slots=False)
class FilledTable:
    """What the dynamic program found.

    Args:
        spans: The ideals, and what a device that runs from one to another weighs.
        states: In which numbers or order the devices are used.
        table: The best value of each ideal in each state.
        below: The threshold.
        fewest: Whether a pipeline of fewer devices is better than one of a smaller value.
        in_turn: Whether loads add up, or the largest counts.
    """

    spans: Spans
    states: States
    table: Table
    below: float
    fewest: bool
    in_turn: bool

    def best(self) -> Pipeline | None:
        """The best pipeline, or None where none is under the threshold; the loads on the way are computed anew."""
        if not self._ends:
            return None
        devices = self.states.used.sum(axis=1)
        value = dict(self._ends)
        state = min(value, key=lambda each: (int(devices[each]) if self.fewest else 0, value[each], int(devices[each])))
        return self._back(_Way(value[state], state, self._whole, ()))

    def others(self, count: int) -> list[Pipeline]:
        """The best pipelines under the threshold that use or end with other devices; not where loads add up."""
        ways = [_Way(value, state, self._whole, ()) for state, value in self._ends]
        for _device in range(LAST):
            ways = sorted(ways, key=lambda way: way.value)[:count]
            ways = [longer for way in ways for longer in self._longer(way)]
        return [self._back(way) for way in sorted(ways, key=lambda way: way.value)[:count]]

    def _longer(self, way: _Way) -> list[_Way]:
        """A way with one more device before it, the best for each."""
        if not way.ideal:
            return [way]
        found = []
        for step in self._steps(way.state, way.ideal, self.below):
            total = np.maximum(step.values, step.loads)
            best = int(np.argmin(total))
            first, runs = int(step.ideals[best]), way.runs
            if step.kind >= 0:
                runs = (*runs, (self.states.device(way.state, step.kind), self._members(first, way.ideal)))
            value = max(way.value if way.runs else 0.0, float(total[best]))
            found.append(_Way(value, step.before, first, runs))
        return found

    def _back(self, way: _Way) -> Pipeline:
        """The best pipeline of which the end is known."""
        total, state, ideal, runs = way.value, way.state, way.ideal, list(way.runs)
        while ideal:
            before, kind, first = self._best_step(state, ideal)
            if kind >= 0:
                runs.append((self.states.device(state, kind), self._members(first, ideal)))
            state, ideal = before, first
        return Pipeline(tuple(reversed(runs)), total)

    @property
    def _whole(self) -> int:
        return self.spans.family.count - 1

    @cached_property
    def _ends(self) -> list[tuple[int, float]]:
        """The states that can have run the whole graph, with their values."""
        values = ((state, self.table.value(state, self._whole)) for state in range(len(self.table.best)))
        return [(state, value) for state, value in values if value < math.inf]

    @cached_property
    def _sources(self) -> list[list[tuple[int, int]]]:
        """For each state, pairs (state before it, class of the device between them)."""
        sources: list[list[tuple[int, int]]] = [[] for _ in self.states.moves]
        for before, moves in enumerate(self.states.moves):
            for kind, there in moves:
                sources[there].append((before, kind))
        return sources

    def _members(self, first: int, last: int) -> tuple[int, ...]:
        inside = self.spans.family.inside
        return tuple(np.flatnonzero(inside[:, last] & ~inside[:, first]).tolist())

    def _best_step(self, state: int, ideal: int) -> tuple[int, int, int]:
        """The state, the class and the ideal before the last device of the best pipeline into an ideal."""
        goal, found = self.table.value(state, ideal), (math.inf, 0, 0, 0)
        for way in self._steps(state, ideal, goal):
            if way.kind < 0:
                return way.before, way.kind, ideal
            total = way.values + way.loads if self.in_turn else np.maximum(way.values, way.loads)
            best = int(np.argmax(total <= total.min() * ROUNDING))
            if total[best] < found[0]:
                found = (float(total[best]), way.before, way.kind, int(way.ideals[best]))
        return found[1:]

    def _steps(self, state: int, ideal: int, most: float) -> list[_Steps]:
        """The last steps into an ideal from values up to ``most``, by the state before and the class of the device."""
        found, table = list[_Steps](), self.table
        rows = {before: table.up_to(before, ideal, most) for before, _kind in self._sources[state]}
        every = np.unique(np.concatenate(list(rows.values()) or [np.zeros(0, dtype=np.int64)]))
        below = self.below * ROUNDING if table.value(state, ideal) < self.below else self.below
        every = every[self.spans.may_weigh(every, ideal, below)]
        rows = {before: np.intersect1d(own, every, assume_unique=True) for before, own in rows.items()}
        asked = [kind for _before, kind in self._sources[state]]
        loads = self.spans.loads(every, np.array([ideal]), below, asked)
        for (before, kind), load in zip(self._sources[state], loads, strict=True):
            if self.states.skips[before] == state and table.value(before, ideal) <= most:
                found.append(_Steps(before, -1, np.array([ideal]), np.zeros(1), np.zeros(1)))
            own = load[np.searchsorted(every, rows[before]), 0]
            fine = np.isfinite(own)
            ideals = rows[before][fine]
            if ideals.size:
                values = table.best[before][ideals - int(table.start[before])]
                found.append(_Steps(before, kind, ideals, values, own[fine]))
        return found
