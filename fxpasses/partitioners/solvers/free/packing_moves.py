"""Move units from device to device until every budget holds: quick, and no proof where it does not come to that.

Each step takes the move from a device that is over after which all are over by the fewest bytes together, though it may
be more than before; what has just moved stays for a while (tabu search: Glover, "Tabu Search, Part I", ORSA Journal on
Computing 1, 1989).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["packed_by_moves"]

STEPS_A_UNIT, MOST_STEPS = 20, 2000
"""How many moves are made, for each unit, and the most."""
STAYS = (3, 12)
"""For how many steps what has moved stays, at least, and fewer than."""


def packed_by_moves(model: LoadModel, home: Ints, draw: np.random.Generator) -> Ints | None:
    """An assignment that keeps every budget, or None where moves from ``home`` have not come to one.

    Args:
        model: What units need, and what devices have.
        home: The device of each unit, ``(m,)``; one that cannot run it is left for the largest that can.
        draw: For how long units stay.
    """
    moving, free_from = _Moving(model, home), np.zeros(model.size, dtype=np.int64)
    for step in range(min(STEPS_A_UNIT * model.size, MOST_STEPS)):
        if not moving.over.any():
            return moving.home
        unit = moving.best(free_from <= step)
        if unit is None:  # all that could move has just moved
            unit = moving.best(free_from >= 0)
        if unit is None:
            return None
        free_from[unit] = step + int(draw.integers(*STAYS))
    return None


class _Moving:
    """An assignment whose units move, and what its devices need.

    Attributes:
        home: The device of each unit, ``(m,)``.
        need: The bytes of each device, ``(k,)``.
    """

    def __init__(self, model: LoadModel, home: Ints) -> None:
        astray = model.banned[np.arange(model.size), home]
        largest = np.argmax(np.where(model.banned, -np.inf, model.memory), axis=1)
        self.model, self.home = model, np.where(astray, largest, home)
        self.need = model.needs(self.home[None])[0]
        self._holders = model.holders(self.home[None])[0].astype(np.int64)
        self._unit, self._block = model.held

    @property
    def over(self) -> Floats:
        """By how many bytes each device passes its budget, ``(k,)``."""
        over: Floats = np.maximum(self.need - self.model.memory, 0.0)
        return over

    def best(self, may_move: NDArray[np.bool_]) -> int | None:
        """Make the best move of those of some units; which unit moved, None where no move is left."""
        model, over, room = self.model, self.over, self.model.memory
        leaves, enters = self._bytes()
        here = np.maximum(self.need[self.home] - leaves - room[self.home], 0.0) - over[self.home]
        after = np.where(model.banned, np.inf, here[:, None] + np.maximum(self.need + enters - room, 0.0) - over)
        after[np.arange(model.size), self.home] = np.inf
        after[~may_move | (over[self.home] == 0.0) | (leaves == 0.0)] = np.inf
        unit, target = divmod(int(np.argmin(after)), model.devices)
        if np.isinf(after[unit, target]):
            return None
        source = self.home[unit]
        self.need[source] -= leaves[unit]
        self.need[target] += enters[unit, target]
        self._holders[model.holds[unit], source] -= 1
        self._holders[model.holds[unit], target] += 1
        self.home[unit] = target
        return unit

    def _bytes(self) -> tuple[Floats, Floats]:
        """What each unit would leave free where it is, ``(m,)``, and take on each other device, ``(m, k)``."""
        model, unit, block = self.model, self._unit, self._block
        alone = self._holders[block, self.home[unit]] == 1
        leaves = model.kept + np.bincount(unit, model.shared[block] * alone, model.size)
        enters = np.repeat(model.kept[:, None], model.devices, axis=1)
        for device in range(model.devices):
            absent = self._holders[block, device] == 0
            enters[:, device] += np.bincount(unit, model.shared[block] * absent, model.size)
            most, next_most = self._most_live(device)
            enters[:, device] += np.maximum(model.live - most, 0.0)
            leaves += np.where((self.home == device) & (model.live == most), most - next_most, 0.0)
        return leaves, enters

    def _most_live(self, device: int) -> tuple[float, float]:
        """The most that one unit of a device needs while it runs, and the second most."""
        *_, second, first = (0.0, 0.0, *np.sort(self.model.live[self.home == device])[-2:])
        return first, second
