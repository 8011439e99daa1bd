"""Bytes on devices, compiled: what units keep, each thing that they share once, and the most that is alive.

Annealings of free placements and of schedules have arrays of their own; numba only asks that these have the fields.
"""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from fxpasses.partitioners.solvers.compiling import inlined

__all__ = ["Held", "Kept", "drop", "held_bytes", "hold", "over_budget"]


class Kept(Protocol):
    """What units need; the blocks that unit ``u`` shares with others stand from ``hold_start[u]`` on."""

    @property
    def kept(self) -> NDArray[Any]:
        """Bytes of each unit, ``(m,)``."""

    @property
    def hold_start(self) -> NDArray[Any]:
        """Where each unit's blocks start, ``(m + 1,)``."""

    @property
    def hold(self) -> NDArray[Any]:
        """The blocks."""

    @property
    def shared(self) -> NDArray[Any]:
        """Bytes of each block, ``(s,)``."""

    @property
    def rank(self) -> NDArray[Any]:
        """Of each unit's live bytes among the sizes, ``(m,)``."""

    @property
    def sizes(self) -> NDArray[Any]:
        """What units have alive, each size once, smallest first."""

    @property
    def memory(self) -> NDArray[Any]:
        """Bytes that each device has, ``(k,)``."""


class Held(Protocol):
    """What is on each device."""

    @property
    def bytes(self) -> NDArray[Any]:
        """Of each device but for what is live, ``(k,)``."""

    @property
    def holders(self) -> NDArray[Any]:
        """How many units on a device name a block, ``(s, k)``."""

    @property
    def ranks(self) -> NDArray[Any]:
        """How many units on a device are of a rank, ``(k, sizes)``."""

    @property
    def top(self) -> NDArray[Any]:
        """The highest rank on each device, ``(k,)``."""


@inlined
def hold(units: Kept, devices: Held, unit: int, device: int) -> None:
    """Put a unit's bytes on a device."""
    devices.bytes[device] += units.kept[unit]
    for place in range(units.hold_start[unit], units.hold_start[unit + 1]):
        block = units.hold[place]
        if devices.holders[block, device] == 0:
            devices.bytes[device] += units.shared[block]
        devices.holders[block, device] += 1
    devices.ranks[device, units.rank[unit]] += 1
    devices.top[device] = max(devices.top[device], units.rank[unit])


@inlined
def drop(units: Kept, devices: Held, unit: int, device: int) -> None:
    """Take a unit's bytes from a device."""
    devices.bytes[device] -= units.kept[unit]
    for place in range(units.hold_start[unit], units.hold_start[unit + 1]):
        block = units.hold[place]
        devices.holders[block, device] -= 1
        if devices.holders[block, device] == 0:
            devices.bytes[device] -= units.shared[block]
    devices.ranks[device, units.rank[unit]] -= 1
    top = devices.top[device]
    while top > 0 and devices.ranks[device, top] == 0:
        top -= 1
    devices.top[device] = top


@inlined
def held_bytes(units: Kept, devices: Held, device: int) -> float:
    """The bytes of a device, with the most that is alive there."""
    size: float = devices.bytes[device] + units.sizes[devices.top[device]]
    return size


@inlined
def over_budget(units: Kept, devices: Held) -> float:
    """By which shares of the budgets they are passed, all together."""
    over = 0.0
    for device in range(len(units.memory)):
        need = held_bytes(units, devices, device)
        if need > units.memory[device]:
            over += (need - units.memory[device]) / max(units.memory[device], 1.0)
    return over
