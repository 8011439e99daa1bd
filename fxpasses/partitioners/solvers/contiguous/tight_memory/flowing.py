"""Whether values can flow through the devices at all, whatever the memories: exactly, and for graphs of any width.

One device after the other runs all that it can: to run more never hurts those after it. So only the order of the
devices is to be tried, and of several orders of the same ones only what they have run together that no other has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from fxpasses.partitioners.solvers.contiguous.ideals.cutting import bits_of
from fxpasses.partitioners.solvers.contiguous.ideals.device_class import DeviceClass
from fxpasses.partitioners.solvers.reduced.reducing import Units

__all__ = ["can_flow"]

MOST = 2000
"""Devices that are asked what they can run, each after some others; up to 40,320 orders of eight would be too many."""


def can_flow(units: Units, classes: Sequence[DeviceClass]) -> bool | None:
    """Whether some order of the devices runs all units, each in one turn; None where too many would have to be tried.

    What else may hinder a pipeline is left out, so that only False is a proof. Time O(``MOST`` × (units + edges)).
    """
    if not all(group.banned.any() for group in classes):  # one may run everything
        return True
    count = Counter[int]()
    for group in classes:
        count[bits_of(np.flatnonzero(~group.banned).tolist())] += len(group.devices)
    everything = (1 << units.size) - 1
    before = [bits_of(needed) for needed in units.predecessors]
    kinds, asked = list(count), 0
    reached: dict[tuple[int, ...], list[int]] = {(0,) * len(kinds): [0]}
    for _turn in range(count.total()):
        after: dict[tuple[int, ...], list[int]] = {}
        for used, ideals in reached.items():
            for place, kind in enumerate(kinds):
                if used[place] == count[kind]:
                    continue
                if (asked := asked + len(ideals)) > MOST:
                    return None
                found = [_more(ideal, kind, before) for ideal in ideals]
                if everything in found:
                    return True
                after.setdefault((*used[:place], used[place] + 1, *used[place + 1 :]), []).extend(found)
        reached = {used: _largest(ideals) for used, ideals in after.items()}
    return False


def _more(ideal: int, allowed: int, before: Sequence[int]) -> int:
    """All that is run once a device has run what it may of what is left; units are in topological order."""
    left = allowed & ~ideal
    while left:
        lowest = left & -left
        left ^= lowest
        if not before[lowest.bit_length() - 1] & ~ideal:
            ideal |= lowest
    return ideal


def _largest(ideals: Iterable[int]) -> list[int]:
    """Those that no other one holds."""
    found: list[int] = []
    for ideal in sorted(set(ideals), key=int.bit_count, reverse=True):
        if all(ideal & ~other for other in found):
            found.append(ideal)
    return found
