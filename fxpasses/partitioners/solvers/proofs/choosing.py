"""Sets of devices to choose from, each once where devices are alike."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Floats, Ints

__all__ = ["distinct_sets"]


def distinct_sets(tables: CostTables, units: Units, count: int) -> Iterator[tuple[int, ...]]:
    """All sets of so many devices, but one of those that differ only in devices that are alike.

    Of a class of alike devices a set takes the first ones, so what comes out is a choice of numbers. Those with the
    most memory come first. Time O(units × devices + devices³), and O(devices) for each set.
    """
    classes = _classes(tables, units)
    classes.sort(key=lambda devices: (-tables.memory[devices[0]], devices))
    left = np.cumsum([len(devices) for devices in reversed(classes)])[::-1].tolist()
    waiting: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    while waiting:
        place, chosen = waiting.pop()
        missing = count - len(chosen)
        if not missing:
            yield tuple(sorted(chosen))
        elif place < len(classes) and left[place] >= missing:
            devices = classes[place]
            takes = range(min(len(devices), missing) + 1)
            waiting += ((place + 1, (*chosen, *devices[:number])) for number in takes)


def _classes(tables: CostTables, units: Units) -> list[list[int]]:
    """Devices that are alike, links included, together."""
    classes: list[list[int]] = []
    for device in range(len(tables.memory)):
        for known in classes:
            if _are_alike(tables, units, known[0], device):
                known.append(device)
                break
        else:
            classes.append([device])
    return classes


def _are_alike(tables: CostTables, units: Units, first: int, second: int) -> bool:
    """Whether nothing changes when two devices swap their places."""
    order = np.arange(len(tables.memory))
    order[[first, second]] = second, first
    return (
        bool((units.seconds[:, first] == units.seconds[:, second]).all())
        and bool(tables.memory[first] == tables.memory[second])
        and _is_kept(tables.latency, order)
        and _is_kept(tables.per_byte, order)
    )


def _is_kept(links: Floats, order: Ints) -> bool:
    """Whether links look the same in another order of the devices; those of a device to itself do not count."""
    apart = ~np.eye(len(links), dtype=bool)
    return bool((links == links[np.ix_(order, order)])[apart].all())
