"""The best way from nothing to everything, one device a step: a dynamic program over places and sets of devices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.ideals.states import States
from fxpasses.partitioners.solvers.reduced.tables import Floats

__all__ = ["Step", "every_walk", "reaching", "smallest_walk"]

Step = tuple[int, int, int]
"""A device, and the places from which and to which it runs."""


def smallest_walk(states: States, loads: Sequence[Floats], *, in_turn: bool) -> tuple[list[Step], float] | None:
    """The steps of the smallest value, and that value; None: there is no way.

    Args:
        states: In which order devices may be used.
        loads: For each class of devices what one takes from a place to a later one, ``inf`` where it must not run that,
            ``(f, f)``; the first place is nothing, the last is everything.
        in_turn: Whether what the devices take adds up; else the largest counts.

    Time O(states × classes × places²).
    """
    count = len(loads[0])
    table = _Table(np.full((len(states.moves), count), np.inf), np.full((len(states.moves), count, 3), -1))
    table.best[0, 0] = 0.0
    for state, moves in enumerate(states.moves):
        own = table.best[state]
        alive = np.flatnonzero(np.isfinite(own))
        if states.skips[state] >= 0:
            table.offer(states.skips[state], own, state, -1, np.arange(count))
        for kind, there in moves if alive.size else ():
            values = (np.add if in_turn else np.maximum)(loads[kind][alive], own[alive, None])
            place = values.argmin(axis=0)
            table.offer(there, values[place, np.arange(count)], state, kind, alive[place])
    state, place = int(np.argmin(table.best[:, -1])), count - 1
    value = float(table.best[state, -1])
    if not math.isfinite(value):
        return None
    path = []
    while place:
        before, kind, first = table.source[state, place].tolist()
        if kind >= 0:
            path.append((states.device(state, kind), first, place))
        state, place = before, first
    return path[::-1], value


def every_walk(states: States, loads: Sequence[Floats], below: float) -> Iterator[list[Step]]:
    """All ways on which no device takes as much as a limit; the arguments are those of :func:`smallest_walk`.

    Depth first, small loads first, and only where the end can still be reached: what does not lead there takes no time.
    """
    reaches, fits = reaching(states, loads, below)
    count = len(loads[0])
    waiting: list[tuple[int, int, list[Step]]] = [(0, 0, [])]
    while waiting:
        state, place, steps = waiting.pop()
        if place == count - 1:
            yield steps
            continue
        following = [
            (float(loads[kind][place, later]), kind, there, later)
            for kind, there in states.moves[state]
            for later in np.flatnonzero(fits[kind][place] & reaches[there]).tolist()
        ]
        for _load, kind, there, later in sorted(following, reverse=True):
            waiting.append((there, later, [*steps, (states.device(there, kind), place, later)]))


def reaching(
    states: States, loads: Sequence[Floats], below: float
) -> tuple[NDArray[np.bool_], list[NDArray[np.bool_]]]:
    """Whether the end can be reached from each state at each place, and which steps take less than a limit.

    Time O(states × classes × places²).
    """
    fits = [load < below for load in loads]
    reaches = np.zeros((len(states.moves), len(loads[0])), dtype=bool)
    reaches[:, -1] = True
    for state in reversed(range(len(states.moves))):
        for kind, there in states.moves[state]:
            reaches[state] |= fits[kind] @ reaches[there]
    return reaches, fits


@attrs.frozen(eq=False)
class _Table:
    """The best value of each state at each place, and the state, the class and the place before."""

    best: Floats
    source: NDArray[np.int64]

    def offer(self, there: int, values: Floats, state: int, kind: int, place: NDArray[np.int64]) -> None:
        better = np.flatnonzero(values < self.best[there])
        self.best[there, better] = values[better]
        self.source[there, better, 0], self.source[there, better, 1] = state, kind
        self.source[there, better, 2] = place[better]
