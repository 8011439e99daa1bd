"""What is not charged between ideals each of which holds the one before: as many steps as pairs, however many values.

Along such a row of ideals a value is made at one of them and used at some; between two of these nothing happens to it.
A device that runs from one ideal of such a stretch to another neither takes the value nor is the last to send it. So
what is saved between two ideals is a sum over all stretches that begin at the first or before it and end behind the
second: running sums over a table of both ends, where a product of matrices would go through all values that are open.
"""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.ideals.device_class import DeviceClass
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["Stretches", "places_of"]

Bools = NDArray[np.bool_]


def places_of(inside: Bools) -> Ints:
    """The first of the ideals, each of which holds the one before, that holds each unit; their number if none does."""
    places: Ints = inside.shape[1] - np.count_nonzero(inside, axis=1)
    return places


@attrs.frozen(eq=False)
class Stretches:
    """From which ideal up to which one (that is not meant) nothing happens to a value.

    Args:
        idle: Of values that are open, or that were used and not made yet, between two users: (value, begin, end),
            ``(s, 3)``.
        sent: Of values that are made and not used by all yet, the whole time, ``(t, 3)``.
        taken_back: Of values that are used before they are made, by when they are used first, when they are made, and
            when they are made and used by all: (value, first, made, whole), ``(b, 4)``.
        count: How many ideals there are.
    """

    idle: Ints
    sent: Ints
    taken_back: Ints
    count: int

    @classmethod
    def of(cls, units: Units, inside: Bools) -> Stretches:
        """Go along the users of each value. Time O(uses log uses + units × ideals)."""
        place = places_of(inside)
        made = place[units.source]
        value, used = units.uses[:, 0], place[units.uses[:, 1]]
        order = np.lexsort((used, value))
        value, used = value[order], used[order]
        is_first = np.diff(value, prepend=-1) != 0
        is_last = np.append(is_first[1:], True)[: len(value)]
        first, last, owner = used[is_first], used[is_last], value[is_first]
        # before the first user there is something to save once the value is made, between two users always
        begin = np.where(is_first, made[value], np.maximum(np.append(0, used[:-1])[: len(used)], made[value]))
        after = np.where(is_last, inside.shape[1], np.append(used[1:], 0)[: len(used)])
        idle = [
            np.stack([value, begin, used], axis=1),
            np.stack([value, used, np.minimum(after, made[value])], axis=1),  # used already, made later
        ]
        sent = np.stack([owner, made[owner], last], axis=1)
        back = np.stack([owner, first, made[owner], np.maximum(last, made[owner])], axis=1)
        return cls(_not_empty(np.concatenate(idle)), _not_empty(sent), back[back[:, 1] < back[:, 2]], inside.shape[1])

    def saved(self, group: DeviceClass, rows: Ints, columns: Ints) -> Floats:
        """What is not charged between some ideals and some later ones, both sorted. Time O(pairs + stretches log)."""
        value, first, made, whole = self.taken_back.T
        never = np.full(len(value), self.count)
        less = -group.leaving[value]
        begin = np.concatenate([self.idle[:, 1], self.sent[:, 1], first, made, first, made])
        end = np.concatenate([self.idle[:, 2], self.sent[:, 2], never, never, whole, whole])
        weight = [group.entering[self.idle[:, 0]], group.leaving[self.sent[:, 0]], less, -less, -less, less]
        return _summed(begin, end, np.concatenate(weight), rows, columns)


def _not_empty(stretches: Ints) -> Ints:
    return stretches[stretches[:, 1] < stretches[:, 2]]


def _summed(begin: Ints, end: Ints, weight: Floats, rows: Ints, columns: Ints) -> Floats:
    """For each row and column the weights of what begins at the row or before it and ends behind the column."""
    row, column = np.searchsorted(rows, begin), np.searchsorted(columns, end)
    counts = (row < len(rows)) & (column > 0)
    cells = row[counts] * len(columns) + column[counts] - 1
    summed = np.bincount(cells, weight[counts], len(rows) * len(columns)).astype(np.float64, copy=False)
    table: Floats = summed.reshape(len(rows), len(columns))
    np.cumsum(table, axis=0, out=table)
    np.cumsum(table[:, ::-1], axis=1, out=table[:, ::-1])
    return table
