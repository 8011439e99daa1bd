"""Find a pipeline that fits the memories, whatever it takes in seconds, or how far the nearest one is from that.

Where all devices are different and memory is tight, the question is what fits: which devices, in which order, and what
each of them is filled with. A beam search goes device by device (Lowerre, "The HARPY speech recognition system", 1976).
A state is an ideal and the devices that it took. It is followed by filling one more device: a walk along a random
topological order takes each unit that is ready and that still fits. Only such full devices are of interest, since
whoever runs less leaves more to the rest. The states that have the most room left for what is left go on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import cached_property

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.ideals.orders import linear_orders
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["Filling", "Runs"]

Bools = NDArray[np.bool_]
Runs = tuple[tuple[int, tuple[int, ...]], ...]
"""Pairs (position of a device, its units) in execution order."""

WIDTHS = ((30, 6), (300, 8), (1500, 12))
"""States that are kept for each number of devices, and orders along which each is followed; from cheap to thorough."""
AGAIN = (300, 8)
STEP_SECONDS, ROW_SECONDS = 10e-6, 6e-9
"""About how long it takes to offer a unit to devices, and to each of them."""
HALVINGS = 12
CLOSE = 0.01
MUCH = 10_000
"""Units times devices from which on it is worth to load compiled code."""


@attrs.frozen(eq=False)
class _States:
    """Ideals and the devices that they took.

    Args:
        inside: Whether an ideal holds a unit, ``(m, s)``.
        used: Whether a device is taken, ``(s, k)``.
    """

    inside: Bools
    used: Bools

    def at(self, chosen: Ints) -> _States:
        return _States(self.inside[:, chosen], self.used[chosen])


@attrs.frozen(eq=False, slots=False)
class Filling:
    """The bytes of units and devices.

    Args:
        units: The reduced problem, numbered in a topological order.
        memory: Bytes of each device, ``(k,)``.
        seed: For the orders, and for which states are kept beside the best.
    """

    units: Units
    memory: Floats
    seed: int = 0

    def found(self, budget: float) -> Runs | None:
        """Runs that fit, in execution order; searches get wider until about so many seconds are spent."""
        for width, count, seed in self._tries(budget):
            runs = self.beam(width, count, seed)
            if runs is not None:
                return runs
        return None

    def anywhere(self) -> Runs | None:
        """Runs that would do if each device had any memory, if a narrow search finds some."""
        return attrs.evolve(self, memory=np.full(len(self.memory), np.inf)).beam(*WIDTHS[0], self.seed)

    def nearest(self, best: Runs) -> Runs:
        """Runs of which the fullest device lacks as few bytes as narrow searches find, from some that lack more."""
        low, high = 0.0, self.lacking(best)
        for _halving in range(HALVINGS):
            if high - low <= CLOSE * high:
                break
            middle = (low + high) / 2
            runs = attrs.evolve(self, memory=self.memory + middle).beam(*WIDTHS[0], self.seed)
            if runs is None:
                low = middle
            else:
                best, high = runs, self.lacking(runs)
        return best

    def lacking(self, runs: Runs) -> float:
        """Bytes that the device needs more that needs most more."""
        return max(self.needed(members) - float(self.memory[device]) for device, members in runs)

    def needed(self, members: tuple[int, ...]) -> int:
        """Bytes of one run."""
        own, units = list(members), self.units
        keys = list(dict.fromkeys(key for unit in members for key in self.units.keys[unit]))
        return int(units.kept[own].sum() + units.shared[keys].sum() + units.live[own].max(initial=0))

    def _tries(self, budget: float) -> Iterator[tuple[int, int, int]]:
        """Widths, orders and seeds; the first whatever it takes."""
        kinds, spent, again = len(self.memory), 0.0, 0
        widths = list(WIDTHS)
        while True:
            width, count = widths.pop(0) if widths else AGAIN
            steps = kinds * count * self.units.size
            spent += steps * (STEP_SECONDS + width * kinds * ROW_SECONDS)
            if spent > budget and (width, count) != WIDTHS[0]:
                return
            yield width, count, self.seed + 1000 * again
            again += not widths

    def beam(self, width: int, count: int, seed: int) -> Runs | None:
        """One search.

        Args:
            width: States that are kept for each number of devices.
            count: Orders along which each of them is followed.
            seed: For what is drawn.

        Returns:
            The runs in execution order, or None. Time O(width × devices² × orders × (units + edges)).
        """
        states = _States(np.zeros((self.units.size, 1), dtype=bool), np.zeros((1, len(self.memory)), dtype=bool))
        draw = np.random.default_rng(seed)
        history: list[tuple[_States, Ints]] = []
        for step in range(len(self.memory)):
            source, after = self._followed(states, linear_orders(self.units, count, seed + step))
            chosen = self._best(after, width, draw)
            if not chosen.size:
                return None
            states = after.at(chosen)
            history.append((states, source[chosen]))
            done = np.flatnonzero(states.inside.all(axis=0))
            if done.size:
                return self._back(history, int(done[0]))
        return None

    def _followed(self, states: _States, orders: list[list[int]]) -> tuple[Ints, _States]:
        """Each state with one more device, filled along each order; the same ideal with the same devices once."""
        source, device = np.nonzero(~states.used & self._is_next(states.used))
        used = states.used[source]
        used[np.arange(len(source)), device] = True
        before = states.inside[:, source]
        compiled = self.compiles
        inside = np.concatenate([self.filled(before, device, order, compiled=compiled) for order in orders], axis=1)
        source, used = np.concatenate([source] * len(orders)), np.concatenate([used] * len(orders))
        fresh = np.flatnonzero((inside != states.inside[:, source]).any(axis=0))
        codes = np.random.default_rng(0).integers(2**62, size=len(inside) + used.shape[1])
        code = codes[: len(inside)] @ inside[:, fresh] + used[fresh] @ codes[len(inside) :]
        chosen = fresh[np.sort(np.unique(code, return_index=True)[1])]
        return source[chosen], _States(inside[:, chosen], used[chosen])

    def _is_next(self, used: Bools) -> Bools:
        """Of devices that are alike only the first that is free."""
        first = np.ones_like(used)
        for device, other in self._alike:
            first[:, device] &= used[:, other]
        return first

    @property
    def compiles(self) -> bool:
        """Whether devices are filled by compiled code: where it is loaded, or there is much to fill."""
        return "numba" in sys.modules or self.units.size * len(self.memory) >= MUCH

    def filled(self, before: Bools, device: Ints, order: list[int], *, compiled: bool) -> Bools:
        """Let one device for each column take along an order what is ready and fits, ``(m, columns)``.

        What is taken is the same, compiled or not.
        """
        if not compiled:
            return self._in_numpy(before, device, order)
        from fxpasses.partitioners.solvers.contiguous.tight_memory.filling_runs import fill  # numba is heavy

        inside, units = before.T.copy(order="C"), self.units
        fill(
            inside,
            self.memory[device],
            np.ascontiguousarray(self._allowed[:, device].T),
            np.array(order, dtype=np.int64),
            self._predecessors,
            (units.kept, units.live),
            self._keys,
            units.shared,
            np.full(len(units.shared), -1, dtype=np.int64),
        )
        return inside.T

    def _in_numpy(self, before: Bools, device: Ints, order: list[int]) -> Bools:
        units, inside = self.units, before.copy()
        room, has_bans = self.memory[device], not self._allowed.all()
        size, live = np.zeros(len(device)), np.zeros(len(device))
        held = np.zeros((len(units.shared), len(device)), dtype=bool)
        for unit in order:
            fits = ~inside[unit]
            for other in units.predecessors[unit]:
                fits &= inside[other]
            if has_bans:
                fits &= self._allowed[unit, device]
            more, most = size + units.kept[unit], np.maximum(live, units.live[unit])
            for key in self.units.keys[unit]:
                more += np.where(held[key], 0, units.shared[key])
            fits &= more + most <= room
            inside[unit] |= fits
            np.copyto(size, more, where=fits)
            np.copyto(live, most, where=fits)
            for key in self.units.keys[unit]:
                held[key] |= fits
        return inside

    def _best(self, states: _States, width: int, draw: np.random.Generator) -> Ints:
        """The states with the most room left over, and some others; none that has not enough."""
        free = np.where(states.used, 0.0, self.memory).sum(axis=1)
        done = states.inside.all(axis=0)
        over = np.where(done, np.inf, free - self._left(states.inside))
        order = np.argsort(-over, kind="stable")
        order = order[over[order] >= 0]
        best, rest = np.split(order, [width - width // 4])
        others = rest[np.sort(draw.permutation(len(rest))[: width // 4])]
        return np.concatenate([best, others])

    def _left(self, inside: Bools) -> Floats:
        """Bytes of what is outside of each ideal, each shared key once."""
        outside = ~inside
        size: Floats = self.units.kept.astype(np.float64) @ outside
        for key, own in enumerate(self.units.sharers):
            size = size + self.units.shared[key] * outside[list(own)].any(axis=0)
        return size

    @cached_property
    def _allowed(self) -> Bools:
        """Whether a device can run a unit, ``(m, k)``."""
        return np.isfinite(self.units.seconds)

    @cached_property
    def _predecessors(self) -> tuple[Ints, Ints]:
        return _rows(self.units.predecessors)

    @cached_property
    def _keys(self) -> tuple[Ints, Ints]:
        return _rows(self.units.keys)

    @cached_property
    def _alike(self) -> list[tuple[int, int]]:
        """Pairs of a device and one before it that is alike."""
        pairs = ((device, other) for device in range(len(self.memory)) for other in range(device))
        same = self._allowed
        return [
            (device, other)
            for device, other in pairs
            if self.memory[device] == self.memory[other] and (same[:, device] == same[:, other]).all()
        ]

    def _back(self, history: list[tuple[_States, Ints]], state: int) -> Runs:
        runs = []
        for (states, source), before in zip(reversed(history), [*reversed(history[:-1]), None], strict=True):
            inside, used = states.inside[:, state], states.used[state]
            state = int(source[state])
            if before is not None:
                inside, used = inside & ~before[0].inside[:, state], used & ~before[0].used[state]
            runs.append((int(np.argmax(used)), tuple(np.flatnonzero(inside).tolist())))
        return tuple(reversed(runs))


def _rows(lists: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Where each list begins and ends, and all of them in a row."""
    lengths = [len(each) for each in lists]
    everything = np.array([number for each in lists for number in each], dtype=np.int64)
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), everything
