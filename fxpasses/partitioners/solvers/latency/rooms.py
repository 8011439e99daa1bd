"""What is on each device, kept up to date unit by unit: bytes under budgets, and whether devices form a pipeline."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np

from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["Rooms"]


class Rooms:
    """An assignment of units, with changes that can be taken back.

    Args:
        model: What units need, and where they may be.
        flow: For pipelines, pairs of units (before, after), ``(e, 2)``; None when values may flow anywhere.
        homes: The device of each unit.

    ``home`` is the device of each unit, ``may`` where it may be, ``flows`` whether devices have to form a pipeline.
    """

    def __init__(self, model: LoadModel, flow: Ints | None, homes: Sequence[int]) -> None:
        self.home = list(homes)
        self.may = [[device for device, no in enumerate(row) if not no] for row in model.banned.tolist()]
        self._kept, self._live = model.kept.tolist(), model.live.tolist()
        self._blocks = [tuple(blocks.tolist()) for blocks in model.holds]
        self._size, self._memory = model.shared.tolist(), model.memory.tolist()
        self._bounded = bool(np.isfinite(model.memory).any())
        self._has_live = bool(model.live.any())
        self._need = [0.0] * model.devices
        self._most: list[list[float]] = [[] for _ in self._need]
        self._holders = [[0] * model.devices for _ in self._size]
        self._earlier: list[list[int]] = [[] for _ in self.home]
        self._later: list[list[int]] = [[] for _ in self.home]
        self.flows = flow is not None
        for before, after in [] if flow is None else flow.tolist():
            if before != after:
                self._earlier[after].append(before)
                self._later[before].append(after)
        self._crossing = [[0] * model.devices for _ in self._need]
        self._moved: list[tuple[int, int]] = []
        self._fill()

    def _fill(self) -> None:
        for unit, home in enumerate(self.home):
            self._add(unit, home)
            for other in self._later[unit]:
                self._crossing[home][self.home[other]] += 1

    def move(self, unit: int, device: int) -> None:
        """Put a unit on a device, whatever that breaks."""
        self._moved.append((unit, self.home[unit]))
        self._put(unit, device)

    def fits(self) -> bool:
        """Whether no device that was changed has too much, and values flow one way."""
        if self._bounded:
            for unit, was in self._moved:
                if self._over(was) or self._over(self.home[unit]):
                    return False
        return not self.flows or self._is_acyclic()

    def keep(self) -> None:
        """The moves stay."""
        self._moved.clear()

    def revert(self) -> None:
        """Take the moves back."""
        for unit, device in reversed(self._moved):
            self._put(unit, device)
        self._moved.clear()

    def _over(self, device: int) -> bool:
        most = self._most[device]
        need = self._need[device] + (most[-1] if most else 0.0)
        return bool(need > self._memory[device])

    def _put(self, unit: int, device: int) -> None:
        was = self.home[unit]
        if self._bounded:
            self._take(unit, was)
            self._add(unit, device)
        if self.flows:
            crossing, home = self._crossing, self.home
            for other in self._later[unit]:
                crossing[was][home[other]] -= 1
                crossing[device][home[other]] += 1
            for other in self._earlier[unit]:
                crossing[home[other]][was] -= 1
                crossing[home[other]][device] += 1
        self.home[unit] = device

    def _add(self, unit: int, device: int) -> None:
        self._need[device] += self._kept[unit]
        if self._has_live:
            insort(self._most[device], self._live[unit])
        for block in self._blocks[unit]:
            holders = self._holders[block]
            if not holders[device]:
                self._need[device] += self._size[block]
            holders[device] += 1

    def _take(self, unit: int, device: int) -> None:
        self._need[device] -= self._kept[unit]
        if self._has_live:
            most = self._most[device]
            del most[bisect_left(most, self._live[unit])]
        for block in self._blocks[unit]:
            holders = self._holders[block]
            holders[device] -= 1
            if not holders[device]:
                self._need[device] -= self._size[block]

    def _is_acyclic(self) -> bool:
        """Whether devices that need values of each other can be put into an order."""
        left = list(range(len(self._need)))
        while left:
            free = [one for one in left if not any(self._crossing[other][one] for other in left if other != one)]
            if not free:
                return False
            left = [one for one in left if one not in free]
        return True
