"""Keep units off devices that are too small for them, and join those that only one device can run.

A table that fits the memory of the host only must run there, and with it whatever lies between two such tables. A
fractional bound does not know that by itself: it puts a part of a table where there is room for a part.
"""

from __future__ import annotations

import attrs
import numpy as np

from fxpasses.partitioners.solvers.reduced.reducing import Units, merge, only_there
from fxpasses.partitioners.solvers.reduced.tables import Floats

__all__ = ["kept_off", "needed_alone", "where_they_fit"]


def where_they_fit(units: Units, memory: Floats) -> Units | None:
    """The same pipelines, with fewer units or fewer devices for some; None where nothing changes.

    It is None, too, where a unit fits nowhere, so that no pipeline exists: that is told better about the given units.
    Time O(rounds × (units × devices + uses)), with at most a round for each device.
    """
    fitted = kept_off(units, memory)
    while fitted is not None and len(alone := only_there(fitted.seconds)):
        fitted = kept_off(merge(fitted, alone[:, 0], alone[:, 1]), memory)
    if fitted is None or (fitted.size == units.size and np.array_equal(fitted.seconds, units.seconds)):
        return None
    return fitted


def needed_alone(units: Units) -> Floats:
    """Bytes of a device that runs one unit only, ``(m,)``."""
    need = (units.kept + units.live).astype(np.float64)
    np.add.at(need, units.shares[:, 1], units.shared[units.shares[:, 0]])
    return need


def kept_off(units: Units, memory: Floats) -> Units | None:
    """No unit may run where there is no room for it alone; None where one has room nowhere."""
    seconds = np.where(needed_alone(units)[:, None] <= memory, units.seconds, np.inf)
    return attrs.evolve(units, seconds=seconds) if np.isfinite(seconds).any(axis=1).all() else None
