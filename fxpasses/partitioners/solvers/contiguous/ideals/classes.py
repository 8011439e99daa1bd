"""Devices that no unit and no value of a placement problem can tell apart."""

from __future__ import annotations

import numpy as np

from fxpasses.partitioners.solvers.contiguous.ideals.device_class import DeviceClass
from fxpasses.partitioners.solvers.contiguous.ideals.states import States
from fxpasses.partitioners.solvers.problem import PlacementProblem
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Floats

__all__ = ["Sending", "device_classes", "optimistic"]

FEW_STATES = 200


def device_classes(problem: PlacementProblem, tables: CostTables, units: Units) -> tuple[DeviceClass, ...]:
    """Group devices that are alike, links at their best. Time O(units × devices + values × kinds of links)."""
    sending = Sending(tables, units, {})
    groups: dict[tuple[object, ...], DeviceClass] = {}
    for device in range(len(problem.devices)):
        others = [other for other in range(len(problem.devices)) if other != device]
        leaving = sending.best([(device, other) for other in others])
        entering = sending.best([(other, device) for other in others])
        banned = ~np.isfinite(units.seconds[:, device])
        weight = np.where(banned, 0.0, units.seconds[:, device])
        memory = float(tables.memory[device])
        key = (weight.tobytes(), banned.tobytes(), memory, leaving.tobytes(), entering.tobytes())
        known = groups.get(key)
        devices = (device,) if known is None else (*known.devices, device)
        groups[key] = DeviceClass(devices, weight, banned, memory, leaving, entering)
    return tuple(groups.values())


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
        self.count = len(units.source)
        self.value, self.makers = units.outputs[:, 0], units.outputs[:, 1]

    def best(self, links: list[tuple[int, int]]) -> Floats:
        """``(q,)``; 0 when there is no link."""
        tables = self.tables
        kinds = tuple(sorted({(float(tables.latency[link]), float(tables.per_byte[link])) for link in links}))
        if kinds not in self.known:
            output, fixed = tables.output[self.makers], tables.fixed[self.makers]
            each = [fixed + np.where(output > 0, latency + output * per_byte, 0.0) for latency, per_byte in kinds]
            taken = np.min(each, axis=0) if each else np.zeros(len(self.makers))
            self.known[kinds] = np.bincount(self.value, weights=taken, minlength=self.count).astype(np.float64)
        return self.known[kinds]
