"""Which devices a pipeline has used so far: how many of each class, or the first ones of a given order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import attrs
import numpy as np

from fxpasses.partitioners.solvers.contiguous.ideals.device_class import DeviceClass
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["States"]


@attrs.frozen(eq=False)
class States:
    """States in an order in which each move leads to a later one; the first has used no device.

    Args:
        used: How many devices of each class a state has used, ``(s, classes)``.
        moves: For each state, pairs (class of the next device, state after it).
        device: For each state reached by a move: the device that the move uses, by class.
        skips: For each state, the one that leaves the next device out; -1 for none.
        column: For each class the column of ``used`` in which its devices are counted; None: its own.
    """

    used: Ints
    moves: tuple[tuple[tuple[int, int], ...], ...]
    devices: tuple[tuple[int, ...], ...]
    skips: tuple[int, ...]
    column: tuple[int, ...] | None = None

    @staticmethod
    def count(classes: Sequence[DeviceClass], most: int | None = None) -> int:
        """How many states :meth:`of` would have."""
        if most is None:
            return math.prod(len(group.devices) + 1 for group in classes)
        ways = [1, *[0] * most]  # by how many devices are used
        for group in classes:
            ways = [sum(ways[max(0, used - len(group.devices)) : used + 1]) for used in range(most + 1)]
        return sum(ways)

    @classmethod
    def of(cls, classes: Sequence[DeviceClass], most: int | None = None) -> States:
        """All numbers of devices of each class, of ``most`` devices in total."""
        used = np.zeros((1, 0), dtype=np.int64)
        for group in classes:  # the last one counts most in the order of states
            more = np.arange(len(group.devices) + 1)
            used = np.column_stack([np.tile(used, (len(more), 1)), np.repeat(more, len(used))])
            used = used if most is None else used[used.sum(axis=1) <= most]
        number = {state.tobytes(): place for place, state in enumerate(used)}
        moves = list[list[tuple[int, int]]]([] for _ in used)
        for kind in range(len(classes)):
            after = used.copy()
            after[:, kind] += 1
            for own, state in zip(moves, after, strict=True):
                if (there := number.get(state.tobytes())) is not None:
                    own.append((kind, there))
        return cls(used, tuple(map(tuple, moves)), tuple(group.devices for group in classes), (-1,) * len(used))

    @classmethod
    def along(cls, classes: Sequence[DeviceClass], order: Sequence[int]) -> States:
        """The devices in one order, each used or left out."""
        kind_of = {device: kind for kind, group in enumerate(classes) for device in group.devices}
        used = np.zeros((len(order) + 1, len(classes)), dtype=np.int64)
        for step, device in enumerate(order):
            used[step + 1 :, kind_of[device]] += 1
        moves = tuple(((kind_of[device], step + 1),) for step, device in enumerate(order))
        in_order = tuple(tuple(device for device in order if kind_of[device] == kind) for kind in range(len(classes)))
        return cls(used, (*moves, ()), in_order, (*range(1, len(order) + 1), -1))

    @cached_property
    def flat(self) -> tuple[Ints, Ints, Ints, Ints]:
        """As compiled code takes it: ``skips``; where the moves of each state begin; their classes, and where to."""
        begins = np.cumsum([0, *map(len, self.moves)])
        kinds, targets = np.array([move for own in self.moves for move in own], dtype=np.int64).reshape(-1, 2).T
        return np.array(self.skips), begins, np.ascontiguousarray(kinds), np.ascontiguousarray(targets)

    def device(self, state: int, kind: int) -> int:
        """The device of a class that is used on the way into a state."""
        column = kind if self.column is None else self.column[kind]
        return self.devices[kind][int(self.used[state, column]) - 1]
