"""The best pipeline over a family of cuts: a dynamic program over ideals, pruned by memory and by a threshold.

``best[s, i]`` is the smallest largest load with which the devices counted by ``s`` run ideal ``i``; a step runs the
difference of two nested ideals on one more device (Tarnawski et al., "Efficient algorithms for device placement of DNN
graph operators", NeurIPS 2020, section 5.1; over the prefixes of one order it is Narayanan et al., "PipeDream", SOSP
2019, section 3.1). Ideals are sorted by work, so a threshold on the load leaves each a window of numpy columns.
"""

from __future__ import annotations

import math

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.cutting import CutFamily
from fxpasses.partitioners.solvers.tables import Floats
from fxpasses.partitioners.solvers.reducing import Units

__all__ = ["DeviceClass", "Pipeline", "PipelineSearch"]


@attrs.frozen(eq=False)
class DeviceClass:
    """Devices that are alike: what a unit and a crossing value weigh on each of them.

    Args:
        devices: Their positions.
        weight: What each unit adds to the load, ``(m,)``; 0 where they cannot run it.
        banned: Whether they cannot run a unit, ``(m,)``.
        memory: Bytes that each may keep.
        leaving: What each value adds when it leaves, ``(q,)``.
        entering: What each value adds when it enters, ``(q,)``.
        credit: What is taken off the load in the end, down to 0.
    """

    devices: tuple[int, ...]
    weight: Floats
    banned: NDArray[np.bool_]
    memory: float
    leaving: Floats
    entering: Floats
    credit: float = 0.0


@attrs.frozen
class Pipeline:
    """Runs as (position of a device, its units), in execution order, with the value that the program found."""

    runs: tuple[tuple[int, tuple[int, ...]], ...]
    value: float


@attrs.frozen(eq=False)
class PipelineSearch:
    """One family of cuts prepared for the dynamic program.

    ``steps`` bounds the number of pairs of ideals that are looked at, times the states of the devices.
    """

    units: Units
    family: CutFamily
    classes: tuple[DeviceClass, ...]

    def run(self, below: float, steps: float = math.inf) -> tuple[Pipeline | None, bool]:
        """Find the pipeline of the smallest value under ``below``.

        Returns:
            The pipeline, None if there is none under ``below``; and whether the search came to its end.
        """
        table = _Table.of(self)
        spent = 0.0
        for first in range(self.family.count):
            states = np.flatnonzero(np.isfinite(table.best[:, first]))
            if not states.size:
                continue
            chosen, window = self._supersets(table, first, below)
            spent += window * (1 + len(states) / 8)
            if spent > steps:
                return None, False
            if chosen.size:
                self._extend(table, first, states, chosen, below)
        return table.pipeline(self), True

    def _supersets(self, table: _Table, first: int, below: float) -> tuple[NDArray[np.int64], int]:
        reach = table.work[first] + below + table.credit + 1e-8 * table.work[-1]  # sums of floats round
        stop = int(np.searchsorted(table.work, reach, side="right"))
        if self.family.is_nested:
            return np.arange(first + 1, max(stop, first + 1)), max(0, stop - first - 1)
        own = self.family.words[first]
        later = self.family.words[first + 1 : stop]
        held = np.ones(len(later), dtype=bool)
        for word in np.flatnonzero(own):
            held &= (later[:, word] & own[word]) == own[word]
        return np.flatnonzero(held) + first + 1, len(later)

    def _extend(
        self, table: _Table, first: int, states: NDArray[np.int64], chosen: NDArray[np.int64], below: float
    ) -> None:
        entering = _entering(self.units, self.family, first, chosen)
        staying = table.open[:, first].nonzero()[0]
        still_open = table.open[np.ix_(staying, chosen)]
        for kind, group in enumerate(self.classes):
            load = table.weight[kind][chosen] - table.weight[kind][first]
            load += table.leaving[kind][chosen] - group.leaving[staying] @ still_open
            for value, crosses in entering:
                load[crosses] += group.entering[value]
            load = np.maximum(load - group.credit, 0.0)
            legal = (table.banned[kind][chosen] == table.banned[kind][first]) & (
                table.kept[chosen] - table.kept[first] <= group.memory
            )
            legal &= load < below
            sources = states[table.used[states, kind] < len(group.devices)]
            if sources.size and legal.any():
                table.relax(kind, first, sources, chosen[legal], load[legal], below)


def _entering(
    units: Units, family: CutFamily, first: int, chosen: NDArray[np.int64]
) -> list[tuple[int, NDArray[np.bool_]]]:
    """The values made in ideal ``first``, each with where the difference to a chosen ideal uses it."""
    if not len(units.uses):
        return []
    value, user = units.uses[:, 0], units.uses[:, 1]
    open_uses = np.flatnonzero(family.inside[units.source[value], first] & ~family.inside[user, first])
    if not open_uses.size:
        return []
    used = family.inside[np.ix_(user[open_uses], chosen)]
    made, starts = np.unique(value[open_uses], return_index=True)
    return list(zip(made.tolist(), np.logical_or.reduceat(used, starts, axis=0), strict=True))


@attrs.frozen(eq=False)
class _Table:
    """The tables of one run: per class sums over ideals, per state and ideal the best value and where it came from."""

    work: Floats  # (f,) the least that each ideal weighs; never falls
    weight: tuple[Floats, ...]
    banned: tuple[NDArray[np.int64], ...]
    kept: NDArray[np.int64]
    open: NDArray[np.bool_]  # (q, f) whether a value is made inside and used outside
    leaving: tuple[Floats, ...]
    used: NDArray[np.int64]  # (s, classes) devices of each class that a state has used
    stride: NDArray[np.int64]
    credit: float
    best: Floats  # (s, f)
    origin: NDArray[np.int64]  # (s, f) ideal * classes + class

    @classmethod
    def of(cls, search: PipelineSearch) -> _Table:
        units, inside, classes = search.units, search.family.inside, search.classes
        sizes = np.array([len(group.devices) + 1 for group in classes])
        stride = np.concatenate([[1], np.cumprod(sizes)[:-1]])
        used = np.arange(int(np.prod(sizes)))[:, None] // stride % sizes
        weight = tuple(group.weight @ inside for group in classes)
        least = np.min([np.where(group.banned, np.inf, group.weight) for group in classes], axis=0)
        still_used = np.zeros((len(units.source), inside.shape[1]), dtype=bool)
        for value, user in units.uses.tolist():
            still_used[value] |= ~inside[user]
        still_open = still_used & inside[units.source]
        best = np.full((len(used), inside.shape[1]), np.inf)
        best[0, 0] = 0.0
        return cls(
            np.maximum.accumulate(np.where(np.isfinite(least), least, 0.0) @ inside),
            weight,
            tuple(group.banned.astype(np.int64) @ inside for group in classes),
            units.kept @ inside,
            still_open,
            tuple(group.leaving @ still_open for group in classes),
            used,
            stride,
            max(group.credit for group in classes),
            best,
            np.full(best.shape, -1, dtype=np.int64),
        )

    def relax(
        self,
        kind: int,
        first: int,
        sources: NDArray[np.int64],
        chosen: NDArray[np.int64],
        load: Floats,
        below: float,
    ) -> None:
        """Let one more device of a class run from ideal ``first`` to each chosen one."""
        target = np.ix_(sources + self.stride[kind], chosen)
        value = np.maximum(self.best[sources, first][:, None], load[None, :])
        left = self.used[-1].sum() - self.used[sources].sum(axis=1) - 1
        rest = self.work[-1] - self.work[chosen]
        if math.isfinite(below) and not self.credit:  # what is left must fit the devices that are left
            value[rest[None, :] > left[:, None] * below * (1 + 1e-9)] = np.inf
        before = self.best[target]
        better = value < before
        self.best[target] = np.where(better, value, before)
        self.origin[target] = np.where(better, first * len(self.weight) + kind, self.origin[target])

    def pipeline(self, search: PipelineSearch) -> Pipeline | None:
        """Walk back from the whole graph."""
        ideal = search.family.count - 1
        state = int(np.argmin(self.best[:, ideal]))
        value = float(self.best[state, ideal])
        if not math.isfinite(value):
            return None
        runs = []
        while ideal:
            first, kind = divmod(int(self.origin[state, ideal]), len(search.classes))
            group = search.classes[kind]
            device = group.devices[int(self.used[state, kind]) - 1]
            members = np.flatnonzero(search.family.inside[:, ideal] & ~search.family.inside[:, first])
            runs.append((device, tuple(members.tolist())))
            state, ideal = state - int(self.stride[kind]), first
        return Pipeline(tuple(reversed(runs)), value)
