"""Whether a pipeline stays under a threshold: device by device, the ideals that they can run; the largest go on.

Of two nested ideals that the same devices can run, the larger one is better where all that it has more is *absorbed*
(see :mod:`~fxpasses.partitioners.solvers.contiguous.absorbing`). So only ideals go on to which no absorbed unit can be
added. On a grid of cells, as a recurrent net is, these are one layer of the lattice instead of all that lie in a
window.
"""

from __future__ import annotations

import math

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.ideals.cutting import CutFamily
from fxpasses.partitioners.solvers.contiguous.ideals.device_class import DeviceClass
from fxpasses.partitioners.solvers.contiguous.ideals.spans import Spans
from fxpasses.partitioners.solvers.contiguous.ideals.states import States
from fxpasses.partitioners.solvers.contiguous.ideals.weighing import weighed
from fxpasses.partitioners.solvers.contiguous.long_graphs import is_long
from fxpasses.partitioners.solvers.contiguous.tables.blocks import blocks_of, larger
from fxpasses.partitioners.solvers.contiguous.tables.dynamic_program import Measure, Outcome
from fxpasses.partitioners.solvers.contiguous.tables.filled_tables import Pipeline
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["Covers", "Decision"]

SLACK = 1e-9
ROUNDING = 1e-12
BLOCK = 128
COLUMNS = 8192
PAIR, CLASS, CHARGED, TIGHT, BACK, IN_LONG = 6, 0.4, 2, 8, 1.2, 12
"""Steps that one pair of ideals costs, more for each class of devices, for each further way to charge values, and where
bytes are counted, too; how many times as many it costs where values flow back, and in a long graph, where the ideals of
a block have other values open each."""

Bools = NDArray[np.bool_]


@attrs.frozen(eq=False)
class Covers:
    """Pairs of ideals of a family of which the second has one absorbed unit more, sorted by the first.

    Args:
        first: The smaller ideals that have such a pair, each once, ``(a,)``.
        start: Where the pairs of each begin, ``(a,)``.
        larger: The larger ideal of each pair, ``(p,)``.
    """

    first: Ints
    start: Ints
    larger: Ints

    @classmethod
    def of(cls, units: Units, family: CutFamily, absorbed: Bools) -> Covers:
        """Look up the larger ideals by a sum of random numbers. Time O(pairs log ideals)."""
        number = np.random.default_rng(0).integers(2**62, size=units.size).astype(np.uint64)
        code = np.zeros(family.count, dtype=np.uint64)
        for unit in range(units.size):
            code[family.inside[unit]] ^= number[unit]
        order = np.argsort(code, kind="stable")
        ranked = code[order]
        small, large = [], []
        for unit in np.flatnonzero(absorbed).tolist():
            ready = ~family.inside[unit]
            for before in units.predecessors[unit]:
                ready &= family.inside[before]
            ideals = np.flatnonzero(ready)
            wanted = code[ideals] ^ number[unit]
            place = np.minimum(np.searchsorted(ranked, wanted), family.count - 1)
            known = ranked[place] == wanted
            small.append(ideals[known])
            large.append(order[place[known]])
        if not small:
            return cls(*(np.zeros(0, dtype=np.int64) for _ in range(3)))
        pairs = np.concatenate(small)
        order = np.argsort(pairs, kind="stable")
        first, start = np.unique(pairs[order], return_index=True)
        return cls(first, start, np.concatenate(large)[order])

    def largest(self, ideals: Bools) -> Ints:
        """The ideals of a set of which no pair leads to another one of the set."""
        own = ideals.copy()
        if len(self.first):
            own[self.first] &= ~np.logical_or.reduceat(ideals[self.larger], self.start)
        return np.flatnonzero(own)


@attrs.frozen(eq=False)
class Decision:
    """A family of cuts and the devices, as for ``PipelineSearch``; windows follow from each of some measures."""

    units: Units
    classes: tuple[DeviceClass, ...]
    states: States
    measures: tuple[Measure, ...]
    absorbed: Bools
    credit: tuple[float, ...] | None = None

    def run(self, words: NDArray[np.uint64], below: float, steps: float = math.inf) -> Outcome:
        """Find some pipeline whose loads are all under ``below``, or prove that there is none."""
        if not len(words):
            return Outcome(None, True, 0.0)
        family = CutFamily.of(words, self.measures[0].weight)
        if family.words[0].any() or not family.inside[:, -1].all():
            return Outcome(None, True, 0.0)
        spans = Spans.of(self.units, family, self.classes, self.credit)
        covers = Covers.of(self.units, family, self.absorbed)
        allowed = self._windows(family)
        self._finishing(spans, allowed, below)
        return self._layers(spans, covers, allowed, below, steps)

    def _windows(self, family: CutFamily) -> list[Bools]:
        """Which ideals each state may have run by all measures."""
        allowed = [np.ones(family.count, dtype=bool) for _state in self.states.moves]
        for measure in self.measures:
            place = weighed(measure.weight, family.inside)
            low, high = measure.window(self.states, float(place[-1]))
            for state, own in enumerate(allowed):
                own &= (place >= low[state]) & (place <= high[state])
        return allowed

    def _finishing(self, spans: Spans, allowed: list[Bools], below: float) -> None:
        """Where one device is left, keep the ideals whose rest it can run."""
        whole = np.array([spans.family.count - 1])
        left = self.states.used.sum(axis=1).max() - self.states.used.sum(axis=1)
        last = np.flatnonzero(left == 1).tolist()
        rows = np.flatnonzero(np.logical_or.reduce([allowed[state] for state in last])[:-1])
        fine = {kind: np.zeros(spans.family.count, dtype=bool) for kind in range(len(self.classes))}
        for first in range(0, len(rows), COLUMNS):
            part = rows[first : first + COLUMNS]
            for kind, own in enumerate(spans.under(part, whole, below * (1 + ROUNDING))):
                fine[kind][part] = own[:, 0]
        for state in last:
            goes_on = np.zeros(spans.family.count, dtype=bool)
            goes_on[-1] = True
            for kind, _there in self.states.moves[state]:
                goes_on |= fine[kind]
            allowed[state] &= goes_on

    def _layers(self, spans: Spans, covers: Covers, allowed: list[Bools], below: float, steps: float) -> Outcome:
        devices = self.states.used.sum(axis=1)
        empty = np.zeros(spans.family.count, dtype=bool)
        ideals = {0: empty.copy()}
        ideals[0][0] = allowed[0][0]
        going_on: dict[int, Ints] = {}
        taken = 0.0
        for used in range(int(devices.max()) + 1):
            layer = [state for state in np.flatnonzero(devices == used).tolist() if state in ideals]
            for state in layer:
                ideals[state] &= allowed[state]
                if ideals[state][-1]:
                    return Outcome(self._pipeline(spans, going_on, state, below), True, taken)
                going_on[state] = covers.largest(ideals[state])
            for state in layer:
                skip = self.states.skips[state]
                if skip >= 0:
                    ideals.setdefault(skip, empty.copy())[going_on[state]] = True
                for _kind, there in self.states.moves[state]:
                    ideals.setdefault(there, empty.copy())
            taken += self._extend(spans, layer, going_on, ideals, allowed, below, steps - taken)
            if taken > steps:
                return Outcome(None, False, taken)
        return Outcome(None, True, taken)

    def _extend(
        self,
        spans: Spans,
        layer: list[int],
        going_on: dict[int, Ints],
        ideals: dict[int, Bools],
        allowed: list[Bools],
        below: float,
        steps: float,
    ) -> float:
        """Let one more device run from each ideal that goes on to each that it can reach; it ends with the steps."""
        family = spans.family
        if not layer:
            return 0.0
        member = np.zeros((len(layer), family.count), dtype=bool)
        for row, state in enumerate(layer):
            member[row, going_on[state]] = True
        targets = sorted({there for state in layer for _kind, there in self.states.moves[state]})
        if not targets:
            return 0.0
        open_to = np.logical_or.reduce([allowed[there] for there in targets])
        rows = np.flatnonzero(member.any(axis=0))
        taken = 0.0
        charges = len({group.charges for group in self.classes})
        pair = PAIR + CLASS * len(self.classes) + CHARGED * (charges - 1) + TIGHT * spans.is_tight
        pair *= (BACK if spans.transfers.flows_back else 1) * (IN_LONG if is_long(self.units) else 1)
        reach = float(self.measures[0].room.max()) + SLACK * float(family.position[-1])
        for block in blocks_of(family, rows, BLOCK):
            if taken > steps:
                break
            columns = larger(family, block, open_to, reach)
            for first in range(0, len(columns), COLUMNS):
                if taken > steps:
                    break
                part = columns[first : first + COLUMNS]
                taken += float(len(block) * len(part)) * pair
                self._reach(spans, block, part, layer, member, ideals, below)
        return taken

    def _reach(
        self,
        spans: Spans,
        block: Ints,
        columns: Ints,
        layer: list[int],
        member: Bools,
        ideals: dict[int, Bools],
        below: float,
    ) -> None:
        packed = [np.packbits(fine, axis=1) for fine in spans.under(block, columns, below)]
        for row, state in enumerate(layer):
            own = np.flatnonzero(member[row, block])
            if not own.size:
                continue
            for kind, there in self.states.moves[state]:
                hit = np.bitwise_or.reduce(packed[kind][own], axis=0)
                found = columns[np.unpackbits(hit, count=len(columns)).astype(bool)]
                ideals[there][found] = True

    def _pipeline(self, spans: Spans, going_on: dict[int, Ints], state: int, below: float) -> Pipeline:
        """Walk back from the whole graph, over the least load of each device."""
        ideal, runs, total = spans.family.count - 1, [], 0.0
        while ideal:
            before, kind, first, load = self._origin(spans, going_on, state, ideal, below)
            if kind >= 0:
                inside = spans.family.inside[:, ideal] & ~spans.family.inside[:, first]
                runs.append((self.states.device(state, kind), tuple(np.flatnonzero(inside).tolist())))
                total = max(total, load)
            state, ideal = before, first
        return Pipeline(tuple(reversed(runs)), total)

    def _origin(
        self, spans: Spans, going_on: dict[int, Ints], state: int, ideal: int, below: float
    ) -> tuple[int, int, int, float]:
        found = (math.inf, 0, 0, 0)
        for before, ideals in going_on.items():
            if self.states.skips[before] == state and (ideals == ideal).any():
                return before, -1, ideal, 0.0
            kinds = [kind for kind, there in self.states.moves[before] if there == state]
            rows = ideals[ideals < ideal]
            if not kinds or not rows.size:
                continue
            loads = spans.loads(rows, np.array([ideal]), below * (1 + ROUNDING), kinds)[:, :, 0]
            for kind, load in zip(kinds, loads, strict=True):
                best = int(np.argmin(load))
                if load[best] < found[0]:
                    found = (float(load[best]), before, kind, int(rows[best]))
        return found[1], found[2], found[3], found[0]
