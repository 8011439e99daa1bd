"""Units that only pass a value on, as views do: a bound need not know where they run.

Take a unit that costs nothing, uses one value, and makes values that are no cheaper to send. Leave it out, and let its
users use its input. A device that used what the unit made paid for that, or for the input if the unit ran there; the
input's maker sent it, or what was made of it. So no device carries more without the unit, and what no placement is
below then, none is below with it. Each layer of an exported transformer has such views of the rotary tables, and each
of them is one more thing that may run anywhere.
"""

from __future__ import annotations

import attrs
import numpy as np

from fxpasses.partitioners.solvers.contiguous.ideals.device_class import DeviceClass
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["beside_first_users", "passed_on", "without_passing_on"]


def passed_on(units: Units, classes: tuple[DeviceClass, ...]) -> dict[int, int]:
    """The units that only pass a value on, in order, with that value. Time O((units + uses) × classes)."""
    free = (np.where(np.isfinite(units.seconds), units.seconds, 0.0) == 0).all(axis=1) & (units.kept == 0)
    costs = np.stack([each for group in classes for each in (group.leaving, group.entering)])
    found = {}
    for unit in np.flatnonzero(free).tolist():
        if len(units.used[unit]) != 1 or not units.made[unit] or units.keys[unit]:
            continue
        value = units.used[unit][0]
        is_no_cheaper = (costs[:, list(units.made[unit])] >= costs[:, [value]]).all()
        if is_no_cheaper and units.predecessors[unit] == (int(units.source[value]),):
            found[unit] = value
    return found


def without_passing_on(units: Units, passed: dict[int, int]) -> Units:
    """The users of such units become users of their inputs; the units themselves are leaves then."""
    value_of, needed = np.arange(len(units.source)), np.arange(units.size)
    for unit, value in passed.items():  # in topological order: a view of a view comes later
        value_of[list(units.made[unit])] = value_of[value]
        needed[unit] = units.source[value_of[value]]
    before = np.stack([needed[units.before[:, 0]], units.before[:, 1]], axis=1)
    uses = np.stack([value_of[units.uses[:, 0]], units.uses[:, 1]], axis=1)
    uses = uses[~np.isin(uses[:, 1], list(passed)) & (units.source[uses[:, 0]] != uses[:, 1])]
    uses = np.unique(uses, axis=0)
    return _without_unused_values(attrs.evolve(units, before=np.unique(before, axis=0), uses=uses))


def beside_first_users(units: Units, passed: dict[int, int], home: Ints, place: Ints) -> Ints:
    """Where units run with each that passes a value on beside the first of its users; ``place[d]`` is d's turn."""
    home = home.copy()
    for unit in reversed(passed):
        users = (user for value in units.made[unit] for user in units.users[value])
        home[unit] = min((int(home[user]) for user in users), key=lambda device: int(place[device]))
    return home


def _without_unused_values(units: Units) -> Units:
    """The same without values that nobody uses."""
    is_used = np.zeros(len(units.source), dtype=bool)
    is_used[units.uses[:, 0]] = True
    number, outputs = np.cumsum(is_used) - 1, units.outputs[is_used[units.outputs[:, 0]]]
    return attrs.evolve(
        units,
        source=units.source[is_used],
        uses=np.stack([number[units.uses[:, 0]], units.uses[:, 1]], axis=1),
        outputs=np.stack([number[outputs[:, 0]], outputs[:, 1]], axis=1),
    )
