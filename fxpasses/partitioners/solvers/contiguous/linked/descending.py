"""Better pipelines around one under the links that values really take: move units, or let two change places.

The searches before count links at their best, or with the devices in one order; a move is counted as it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.annealed_pipelines import answer_of
from fxpasses.partitioners.solvers.contiguous.searching import Answer, Search
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["descended"]

WORK, MORE_WORK = 15e6, 10e6
"""Numbers that are looked at whatever the budget, and for each second of it: about a tenth of a second each."""
BATCH = 256
KICKS, DRAWN, ALONE = 3, 32, 0.5
"""Moves at random in a row, how many are drawn for each, and how often one unit goes alone."""
LESS = 1 - 1e-12
"""How much smaller a load has to become, for sums round."""


def descended(search: Search, best: Answer, bound: float) -> Answer:
    """The best of all moves, as long as one makes the sorted loads smaller; with work left again from near it.

    A few moves at random lead away from the best; where those after them end lower, that is the best (iterated local
    search: Lourenço, Martin & Stützle 2003).
    """
    model = LoadModel.of(search.units, search.tables)
    moves = _Moves(model, search.units.before, _reach(model.size, search.units.successors))
    account = _Account(WORK / moves.cost)
    home = search.units.homes(best.device_of)
    if model.size * model.devices > account.left or not moves.legal(home[None])[0]:
        return best
    draw = np.random.default_rng([search.problem.seed, model.size])
    home, rank = moves.descended(home, bound, account)
    account.left = MORE_WORK * search.problem.time_budget / moves.cost
    while account.left > 0 and rank[0] > bound:
        near = home
        for _ in range(KICKS):
            near = moves.any_of(near, draw, account)
        near, other = moves.descended(near, bound, account)
        if not _is_smaller(rank, other):
            home, rank = near, other
    return min(best, answer_of(search, home), key=Answer.by_rank)


@attrs.define
class _Account:
    """How many assignments may still be looked at."""

    left: float


def _is_smaller(falling: Floats, rank: Floats) -> bool:
    """Whether the first loads that differ by more than rounding say so."""
    differ = np.flatnonzero((falling < rank * LESS) | (rank < falling * LESS))
    return bool(differ.size) and bool(falling[differ[0]] < rank[differ[0]])


def _reach(size: int, successors: tuple[tuple[int, ...], ...]) -> NDArray[np.bool_]:
    """Which units are behind each one, itself too; units are in a topological order. Time O(units × edges)."""
    behind = np.eye(size, dtype=bool)
    for unit in reversed(range(size)):
        for after in successors[unit]:
            behind[unit] |= behind[after]
    return behind


@attrs.frozen(eq=False)
class _Moves:
    """Pipelines that differ from one by a move.

    Args:
        model: What units and values cost.
        before: Pairs of units of which the second must not be on an earlier device.
        behind: Which units are behind each one, itself too.
    """

    model: LoadModel
    before: Ints
    behind: NDArray[np.bool_]

    @property
    def cost(self) -> float:
        """Numbers that are looked at for one move."""
        model = self.model
        rounds = max(1, math.ceil(math.log2(model.devices)))
        values = len(model.source) * model.devices
        return 20.0 + model.size + len(self.before) + 2 * values + len(model.uses) + rounds * model.devices**3

    def ranks(self, homes: Ints) -> Floats:
        """The loads of each assignment from the largest down."""
        falling: Floats = -np.sort(-self.model.loads(homes), axis=1)
        return falling

    def legal(self, homes: Ints) -> NDArray[np.bool_]:
        """Which assignments keep every rule, and let values flow one way between devices."""
        count = self.model.devices
        reach = np.zeros((len(homes), count, count), dtype=bool)
        rows = np.arange(len(homes))[:, None]
        reach[rows, homes[:, self.before[:, 0]], homes[:, self.before[:, 1]]] = True
        own = np.arange(count)
        reach[:, own, own] = False
        for _ in range(max(1, math.ceil(math.log2(count)))):
            reach |= reach @ reach
        in_circles = np.any(reach[:, own, own], axis=1)
        legal: NDArray[np.bool_] = np.logical_and(self.model.legal(homes), np.logical_not(in_circles))
        return legal

    def descended(self, home: Ints, bound: float, account: _Account) -> tuple[Ints, Floats]:
        """What the best of all moves lead to, and its loads from the largest down."""
        rank: Floats = self.ranks(home[None])[0]
        while rank[0] > bound:
            better, moved = None, self.around(home)
            while account.left > 0 and (batch := list(itertools.islice(moved, BATCH))):
                account.left -= len(batch)
                homes = np.stack(batch)
                homes = homes[self.legal(homes)]
                for each, falling in zip(homes, self.ranks(homes) if len(homes) else (), strict=True):
                    if _is_smaller(falling, rank):
                        rank, better = falling, each
            if better is None:
                break
            home = better
        return home, rank

    def any_of(self, home: Ints, draw: np.random.Generator, account: _Account) -> Ints:
        """The first of some moves at random that keeps all rules; the same again where none does."""
        account.left -= DRAWN
        units = draw.integers(self.model.size, size=DRAWN)
        homes = np.repeat(home[None], DRAWN, axis=0)
        alone = (draw.random(DRAWN) < ALONE)[:, None]
        behind = self.behind[units] & (homes == home[units, None])
        groups = np.where(alone, np.arange(self.model.size) == units[:, None], behind)
        homes = np.where(groups, draw.integers(self.model.devices, size=DRAWN)[:, None], homes)
        fine = np.flatnonzero(np.logical_and(self.legal(homes), np.any(homes != home, axis=1)))
        chosen: Ints = homes[fine[0]] if fine.size else home
        return chosen

    def around(self, home: Ints) -> Iterator[Ints]:
        """Take a unit, or it and all behind or before it on its device, elsewhere; or let two change places.

        One of these two exchanges values with the busiest device, or is on it.
        """
        busiest = int(np.argmax(self.model.loads(home[None])[0]))
        number = np.arange(self.model.size)
        for unit in range(self.model.size):
            own = home == home[unit]
            alone = number == unit
            for part in (alone, self.behind[unit] & own, self.behind[:, unit] & own):
                if part is not alone and part.sum() == 1:
                    continue
                for device in np.flatnonzero(~self.model.banned[part].any(axis=0)).tolist():
                    if device != home[unit]:
                        yield np.where(part, device, home)
        near = self._near(home == busiest)
        for unit in np.flatnonzero(near).tolist():
            for other in np.flatnonzero((home != home[unit]) & ~(near & (number < unit))).tolist():
                moved = home.copy()
                moved[[unit, other]] = home[[other, unit]]
                yield moved

    def _near(self, own: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Some units, and those that exchange values with them."""
        maker, user = self.model.source[self.model.uses[:, 0]], self.model.uses[:, 1]
        near = own.copy()
        near[maker[own[user]]] = True
        near[user[own[maker]]] = True
        return near
