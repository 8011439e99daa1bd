"""Units that the devices before may as well take over: what makes a larger ideal better than a smaller one.

Let some devices run an ideal, or a larger one that differs by units ``X``. From the larger one, the devices after can
do what they would have done from the smaller one, less ``X``. A device that gives up a unit of ``X`` saves its seconds;
it pays for the unit's values, which now enter, and for the values of backward nodes that it must now send to it. Where
a unit has a value of which another one is the only user, the two are looked at together: either both are given up, and
the seconds of both are saved, or only the user, and then its input need not enter any more. (Values that backward nodes
send the other way are the same, with leaving for entering.) If no unit of ``X`` can cost more than it saves, whatever
can follow the smaller ideal can follow the larger one. Bytes only get fewer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.reducing import Units
from fxpasses.partitioners.solvers.spans import DeviceClass
from fxpasses.partitioners.solvers.tables import Floats, Ints

__all__ = ["absorbed"]


def absorbed(units: Units, classes: tuple[DeviceClass, ...]) -> NDArray[np.bool_]:
    """Which units cost a device nothing when an earlier one runs them, ``(m,)``. Time O((units + uses) × classes)."""
    fine = np.ones(units.size, dtype=bool)
    ahead = _is_ahead(units)
    only = (np.bincount(units.uses[:, 0], minlength=len(units.source)) == 1)[units.uses[:, 0]]
    back = _is_back(units)
    for group in classes:
        fine &= _saves(units, group, ahead & only, back, only)
    return fine


def _is_ahead(units: Units) -> NDArray[np.bool_]:
    """For each use of a value, whether the maker is on no later device in any case."""
    return _ordered(units, units.source[units.uses[:, 0]], units.uses[:, 1])


def _is_back(units: Units) -> NDArray[np.bool_]:
    """For each use of a value, whether the user is on no later device in any case."""
    return _ordered(units, units.uses[:, 1], units.source[units.uses[:, 0]])


def _ordered(units: Units, first: Ints, second: Ints) -> NDArray[np.bool_]:
    pairs = units.before[:, 0] * units.size + units.before[:, 1]
    return np.isin(first * units.size + second, pairs)


def _saves(
    units: Units, group: DeviceClass, ahead: NDArray[np.bool_], back: NDArray[np.bool_], only: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    value, user = units.uses[:, 0], units.uses[:, 1]
    maker = units.source[value]
    always_ahead = _is_ahead(units)
    pays: Floats = np.bincount(units.source, weights=group.entering, minlength=units.size)
    pays = pays + np.bincount(user[~always_ahead], weights=group.leaving[value[~always_ahead]], minlength=units.size)
    links: dict[tuple[int, int], float] = {}
    for use in np.flatnonzero(ahead).tolist():
        pair = int(maker[use]), int(user[use])
        links[pair] = links.get(pair, 0.0) + float(group.entering[value[use]])
    for use in np.flatnonzero(back & only).tolist():
        pair = int(user[use]), int(maker[use])
        links[pair] = links.get(pair, 0.0) + float(group.leaving[value[use]])
    has: Floats = np.where(group.banned, np.inf, group.weight)
    for (first, second), saved in sorted(links.items(), key=lambda each: each[0][1]):  # has[first] is known before
        has[second] += max(0.0, min(float(has[first] - pays[first]) + saved, saved))
    return has >= pays
