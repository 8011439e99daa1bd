"""Units that a best placement may as well put beside their one neighbour: a rule that makes problems smaller.

Take a unit with one neighbour. Beside it, the unit adds its seconds there, and what went between the two is no longer
charged there; every other device carries less. So where the unit takes no longer than those values, and needs no bytes
that are not needed there anyway, no placement gets worse. Inputs of a recurrent net, views of parameters and the like
are such units, and each of them that is left doubles the number of ideals.
"""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.ideals.classes import device_classes
from fxpasses.partitioners.solvers.problem import PlacementProblem
from fxpasses.partitioners.solvers.reduced.reducing import Units, merge
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Floats, Ints

__all__ = ["fold_leaves", "fold_leaves_without_bytes"]

MAX_ROUNDS = 20
LARGE = 20_000


def fold_leaves(problem: PlacementProblem, tables: CostTables, units: Units) -> Units:
    """Apply the rule until it changes nothing. Time O(rounds × (units × devices + uses)); few rounds where large."""
    for _round in range(MAX_ROUNDS if units.size <= LARGE else 1):
        leaf, neighbour = _leaves(units)
        cheap = _is_quick(tables, units, leaf, neighbour) & _is_light(problem, tables, units, leaf, neighbour)
        if not cheap.any():
            break
        units = merge(units, leaf[cheap], neighbour[cheap])
    return units


def fold_leaves_without_bytes(tables: CostTables, units: Units) -> Units:
    """The same for leaves of any size, whose bytes no longer count: a problem whose bound holds for the given one.

    An answer to the given problem stays one when such a leaf moves beside its neighbour and leaves its bytes behind.
    """
    for _round in range(MAX_ROUNDS):
        leaf, neighbour = _leaves(units)
        cheap = _is_quick(tables, units, leaf, neighbour)
        if not cheap.any():
            break
        units = merge(_without_bytes(units, leaf[cheap]), leaf[cheap], neighbour[cheap])
    return units


def _without_bytes(units: Units, chosen: Ints) -> Units:
    gone = np.zeros(units.size, dtype=bool)
    gone[chosen] = True
    kept, live = np.where(gone, 0, units.kept), np.where(gone, 0, units.live)
    return attrs.evolve(units, kept=kept, live=live, shares=units.shares[~gone[units.shares[:, 1]]])


def _leaves(units: Units) -> tuple[Ints, Ints]:
    """The units with one neighbour, and that neighbour; of two that have only each other, the later one."""
    values = np.stack([units.source[units.uses[:, 0]], units.uses[:, 1]], axis=1)
    pairs = np.sort(np.concatenate([units.before, values]), axis=1)
    codes = np.unique(pairs[:, 0] * units.size + pairs[:, 1])
    pairs = np.stack([codes // units.size, codes % units.size], axis=1)
    degree = np.bincount(pairs.ravel(), minlength=units.size)
    near = np.zeros(units.size, dtype=np.int64)
    near[pairs[:, 0]], near[pairs[:, 1]] = pairs[:, 1], pairs[:, 0]
    leaf = np.flatnonzero(degree == 1)
    leaf = leaf[(degree[near[leaf]] > 1) | (leaf > near[leaf])]
    return leaf, near[leaf]


def _is_quick(tables: CostTables, units: Units, leaf: Ints, neighbour: Ints) -> NDArray[np.bool_]:
    """Whether a leaf takes no longer beside its neighbour than what is saved there."""
    allowed = np.isfinite(units.seconds[neighbour])
    saved = _saved(tables, units, leaf)
    fits: NDArray[np.bool_] = np.all(np.where(allowed, units.seconds[leaf], 0.0) <= saved, axis=1)
    return fits  # seconds are inf where only the neighbour can run


def _is_light(
    problem: PlacementProblem, tables: CostTables, units: Units, leaf: Ints, neighbour: Ints
) -> NDArray[np.bool_]:
    """Whether a leaf needs no bytes beside its neighbour that are not needed there anyway."""
    if problem.objective == "throughput" and np.isinf(tables.memory).all():
        return np.ones(len(leaf), dtype=bool)
    fits: NDArray[np.bool_] = (units.kept[leaf] == 0) & (units.live[leaf] <= units.live[neighbour])
    named = set(map(tuple, units.shares[:, ::-1].tolist()))
    keys: dict[int, list[int]] = {}
    for key, unit in units.shares.tolist():
        keys.setdefault(unit, []).append(key)
    there = zip(leaf.tolist(), neighbour.tolist(), strict=True)
    fits &= np.array([all((to, key) in named for key in keys.get(unit, ())) for unit, to in there], dtype=bool)
    return fits


def _saved(tables: CostTables, units: Units, leaf: Ints) -> Floats:
    """Seconds that each device no longer spends when a leaf moves beside its neighbour there, a row for each leaf.

    Its own values need not enter, and the values that only it uses need not leave.
    """
    saved = np.zeros((len(leaf), units.seconds.shape[1]))
    users = np.bincount(units.uses[:, 0], minlength=len(units.source))
    only = units.uses[users[units.uses[:, 0]] == 1]
    for group in device_classes(tables, units):
        each = np.bincount(units.source, weights=group.entering, minlength=units.size)
        each = each + np.bincount(only[:, 1], weights=group.leaving[only[:, 0]], minlength=units.size)
        saved[:, list(group.devices)] = each[leaf, None]
    return saved
