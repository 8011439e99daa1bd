"""Devices that are alike, and what units and values weigh on each of them."""

from __future__ import annotations

from functools import cached_property

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.reduced.tables import Floats

__all__ = ["DeviceClass"]

Bools = NDArray[np.bool_]


@attrs.frozen(eq=False, slots=False)
class DeviceClass:
    """Devices that are alike: what a unit and a crossing value weigh on each of them.

    Args:
        devices: Their positions.
        weight: Seconds of each unit, ``(m,)``; 0 where they cannot run it.
        banned: Whether they cannot run a unit, ``(m,)``.
        memory: Bytes that each has.
        leaving: What each value adds when it leaves, ``(q,)``.
        entering: What each value adds when it enters, ``(q,)``.
        to_next: What a value adds beside that when it goes to the device that comes next, ``(q,)``; None for nothing.
        from_last: What it adds when it comes from the device before.
        passed: Whether some local value must pass them by, or none may; None for either.
        local: The values that this is about, ``(q,)``.
    """

    devices: tuple[int, ...]
    weight: Floats
    banned: Bools
    memory: float
    leaving: Floats
    entering: Floats
    to_next: Floats | None = None
    from_last: Floats | None = None
    passed: bool | None = None
    local: Bools | None = None

    @cached_property
    def charges(self) -> tuple[bytes, ...]:
        """What tells the crossings of two classes apart."""
        every = (self.leaving, self.entering, self.to_next, self.from_last)
        return tuple(b"" if each is None else each.tobytes() for each in every)

    @cached_property
    def costs(self) -> tuple[object, ...]:
        """What tells two classes apart, but for their memory."""
        return (*self.charges, self.weight.tobytes(), self.banned.tobytes(), self.passed)
