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

from fxpasses.partitioners.solvers.contiguous.ideals.device_class import DeviceClass
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats

__all__ = ["absorbed", "ordered"]

Bools = NDArray[np.bool_]


def absorbed(units: Units, classes: tuple[DeviceClass, ...]) -> Bools:
    """Which units cost a device nothing when an earlier one runs them, ``(m,)``. Time O((units + uses) × classes)."""
    fine = np.ones(units.size, dtype=bool)
    ahead, back = ordered(units, back=False), ordered(units, back=True)
    only = (np.bincount(units.uses[:, 0], minlength=len(units.source)) == 1)[units.uses[:, 0]]
    for group in {group.costs: group for group in classes}.values():
        fine &= _saves(units, group, ahead, back, only)
    return fine


def ordered(units: Units, *, back: bool) -> Bools:
    """For each use of a value, whether the maker is on no later device than the user in any case, or the reverse."""
    maker, user = units.source[units.uses[:, 0]], units.uses[:, 1]
    first, second = (user, maker) if back else (maker, user)
    pairs = units.before[:, 0] * units.size + units.before[:, 1]
    return np.isin(first * units.size + second, pairs)


def _saves(units: Units, group: DeviceClass, ahead: Bools, back: Bools, only: Bools) -> Bools:
    """Whether what a device of one class saves with each unit is at least what it pays."""
    value, user = units.uses[:, 0], units.uses[:, 1]
    maker = units.source[value]
    pays: Floats = np.zeros(units.size)
    pays += np.bincount(units.source, weights=group.entering, minlength=units.size)
    pays += np.bincount(user[~ahead], weights=group.leaving[value[~ahead]], minlength=units.size)
    links: dict[tuple[int, int], float] = {}
    for use in np.flatnonzero(ahead & only).tolist():
        pair = int(maker[use]), int(user[use])
        links[pair] = links.get(pair, 0.0) + float(group.entering[value[use]])
    for use in np.flatnonzero(back & only).tolist():
        pair = int(user[use]), int(maker[use])
        links[pair] = links.get(pair, 0.0) + float(group.leaving[value[use]])
    has: Floats = np.where(group.banned, np.inf, group.weight)
    for (first, second), saved in sorted(links.items(), key=lambda each: each[0][1]):  # has[first] is known before
        has[second] += max(0.0, min(float(has[first] - pays[first]) + saved, saved))
    return has >= pays
