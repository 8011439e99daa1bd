"""Devices that no unit and no value of a placement problem can tell apart."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.ideals.device_class import DeviceClass
from fxpasses.partitioners.solvers.contiguous.ideals.states import States
from fxpasses.partitioners.solvers.reduced.columns import equal_columns
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Floats

__all__ = ["Sending", "device_classes", "optimistic"]

FEW_STATES = 200


def device_classes(tables: CostTables, units: Units, chosen: Collection[int] | None = None) -> tuple[DeviceClass, ...]:
    """Group devices that are alike, all or some, links between these at their best.

    Time O(units × devices + values × kinds of links).
    """
    devices = range(len(tables.memory)) if chosen is None else sorted(chosen)
    sending = Sending(tables, units, {})
    groups: dict[tuple[object, ...], DeviceClass] = {}
    first, kinds = equal_columns(units.seconds)
    columns = [_weight_of(units.seconds[:, device]) for device in first.tolist()]
    for device in devices:
        kind = int(kinds[device])
        others = [other for other in devices if other != device]
        leaving = sending.best([(device, other) for other in others])
        entering = sending.best([(other, device) for other in others])
        weight, banned = columns[kind]
        memory = float(tables.memory[device])
        key = (kind, memory, id(leaving), id(entering))
        known = groups.get(key)
        alike = (device,) if known is None else (*known.devices, device)
        groups[key] = DeviceClass(alike, weight, banned, memory, leaving, entering)
    return tuple(groups.values())


def _weight_of(seconds: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """The seconds of units on a device, 0 where it cannot run them; and which these are."""
    banned = ~np.isfinite(seconds)
    return np.where(banned, 0.0, seconds), banned


def optimistic(classes: tuple[DeviceClass, ...]) -> tuple[DeviceClass, ...]:
    """Fewer classes that are as good as the best of what they stand for: no placement costs more on them."""
    found = sorted(classes, key=lambda group: (float(group.weight.sum()), group.devices))
    while States.count(found) > FEW_STATES and len(found) > 1:
        speed = [float(group.weight.sum()) for group in found]
        near = min(range(len(found) - 1), key=lambda index: (speed[index + 1] - speed[index], index))
        found[near : near + 2] = [_as_good_as(*found[near : near + 2])]
    return tuple(found)


def _as_good_as(first: DeviceClass, second: DeviceClass) -> DeviceClass:
    weights = [np.where(group.banned, np.inf, group.weight) for group in (first, second)]
    weight = np.minimum(*weights)
    return DeviceClass(
        tuple(sorted(first.devices + second.devices)),
        np.where(np.isfinite(weight), weight, 0.0),
        first.banned & second.banned,
        max(first.memory, second.memory),
        np.minimum(first.leaving, second.leaving),
        np.minimum(first.entering, second.entering),
    )


class Sending:
    """Seconds of each value of the reduced problem over the best of some links, each kind of links once."""

    def __init__(self, tables: CostTables, units: Units, known: dict[tuple[tuple[float, float], ...], Floats]) -> None:
        self.tables, self.known = tables, known
        self.distinct: dict[bytes, Floats] = {}
        self.count = len(units.source)
        self.value, self.makers = units.outputs[:, 0], units.outputs[:, 1]

    def best(self, links: list[tuple[int, int]]) -> Floats:
        """``(q,)``; 0 when there is no link. The same array each time for the same seconds."""
        tables = self.tables
        kinds = tuple(sorted({(float(tables.latency[link]), float(tables.per_byte[link])) for link in links}))
        if kinds not in self.known:
            output, fixed = tables.output[self.makers], tables.fixed[self.makers]
            each = [fixed + np.where(output > 0, latency + output * per_byte, 0.0) for latency, per_byte in kinds]
            taken = np.min(each, axis=0) if each else np.zeros(len(self.makers))
            values = np.bincount(self.value, weights=taken, minlength=self.count).astype(np.float64)
            self.known[kinds] = self.distinct.setdefault(values.tobytes(), values)
        return self.known[kinds]
