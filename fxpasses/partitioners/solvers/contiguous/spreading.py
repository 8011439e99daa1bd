"""Move all cuts of a coarse answer at once: what one device takes more, those after it take less.

Cuts on a coarse grid leave room on each device. What is gained adds up from device to device, until the last cuts
belong far from where they are, which no search near them finds. Where seconds and bytes simply add up along the order,
the best cuts are found at once: under a threshold each device runs as far as it can, and the threshold is found by
bisection. What does not add up (transfers, shared and live bytes) is taken from the coarse answer.
"""

from __future__ import annotations

import math

import attrs
import numpy as np

from fxpasses.partitioners.solvers.contiguous.searching import Answer, Search
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints, evaluate

__all__ = ["spread"]

HALVINGS = 20


def spread(search: Search, answer: Answer, order: Ints, cuts: Ints, bound: float) -> Ints:
    """After how many units of the order devices would stop, if all but units cost what it costs in the answer.

    Args:
        search: The problem with all units.
        answer: An answer along the order.
        order: The units, ``(m,)``.
        cuts: After how many units of the order each device of the answer stops, ``(d,)``.
        bound: Thresholds are looked at between it and the value of the answer.

    Returns:
        Up to ``d`` places, sorted. Time O(m × classes + d log m).
    """
    runs = _Runs.of(search, answer, order, cuts)
    low, high = bound, answer.goal(search)
    for _halving in range(HALVINGS if math.isfinite(high) else 0):
        middle = (low + high) / 2
        low, high = (low, middle) if runs.under(middle)[-1] == len(order) else (middle, high)
    found = np.unique(runs.under(high))
    return found[found > 0]


@attrs.frozen
class _Run:
    """What one device can run, by sums over the units before each place of the order.

    Args:
        seconds: ``(m + 1,)``.
        kept: Bytes, ``(m + 1,)``.
        banned: The places of units that it cannot run.
        beside: Seconds and bytes of it that are not those of its units.
        memory: Its bytes.
    """

    seconds: Floats
    kept: Ints
    banned: Ints
    beside: tuple[float, float]
    memory: float

    def end(self, begin: int, seconds: float, size: float) -> int:
        """How far it comes in so much time and so many bytes."""
        ends = [
            np.searchsorted(self.seconds, self.seconds[begin] + seconds - self.beside[0], side="right") - 1,
            np.searchsorted(self.kept, self.kept[begin] + min(size, self.memory) - self.beside[1], side="right") - 1,
            *self.banned[self.banned >= begin][:1],
        ]
        return max(begin, int(min(ends)))


@attrs.frozen
class _Runs:
    """The devices of an answer in execution order; what counts are their bytes, or their seconds."""

    devices: list[_Run]
    by_bytes: bool

    @classmethod
    def of(cls, search: Search, answer: Answer, order: Ints, cuts: Ints) -> _Runs:
        figures, units = evaluate(search.tables, answer.device_of), search.units
        kept = np.append(0, np.cumsum(units.kept[order]))
        sums = [np.append(0.0, np.cumsum(group.weight[order])) for group in search.classes]
        banned = [np.flatnonzero(group.banned[order]) for group in search.classes]
        kind_of = {device: kind for kind, group in enumerate(search.classes) for device in group.devices}
        devices, begin = [], 0
        for device, end in zip(answer.order, cuts.tolist(), strict=True):
            kind = kind_of[device]
            seconds = float(figures.load[device] - (sums[kind][end] - sums[kind][begin]))
            size = float(figures.kept[device] - (kept[end] - kept[begin]))
            memory = float(search.tables.memory[device])
            devices.append(_Run(sums[kind], kept, banned[kind], (seconds, size), memory))
            begin = end
        return cls(devices, search.problem.objective == "memory")

    def under(self, threshold: float) -> Ints:
        """Where each device stops that runs as much as it can."""
        seconds, size = (math.inf, threshold) if self.by_bytes else (threshold, math.inf)
        at, found = 0, []
        for device in self.devices:
            at = device.end(at, seconds, size)
            found.append(at)
        return np.array(found)
