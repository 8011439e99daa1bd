"""What is on each device, compiled: bytes under budgets, and whether devices form a pipeline."""

from __future__ import annotations

from fxpasses.partitioners.solvers.compiling import inlined
from fxpasses.partitioners.solvers.device_bytes import drop, hold, over_budget
from fxpasses.partitioners.solvers.latency.holdings import Needs, Rooms

__all__ = ["fill", "fits", "give", "give_back", "over"]


@inlined
def _count(rooms: Rooms, before: int, after: int, sign: int) -> None:
    """Count a pair of units on two devices; with the first one values flow there, with the last one none do."""
    pairs = rooms.crossing[before, after]
    rooms.crossing[before, after] = pairs + sign
    if before != after and (pairs == 0 or pairs + sign == 0):
        rooms.givers[after] += sign
        rooms.takers[before] += sign
        if sign > 0:
            rooms.is_new[0] = True


@inlined
def _cross(needs: Needs, rooms: Rooms, unit: int, home: int, sign: int) -> None:
    """Count the pairs of units that a unit on a device is in."""
    for place in range(needs.later_start[unit], needs.later_start[unit + 1]):
        _count(rooms, home, rooms.home[needs.later[place]], sign)
    for place in range(needs.earlier_start[unit], needs.earlier_start[unit + 1]):
        _count(rooms, rooms.home[needs.earlier[place]], home, sign)


@inlined
def _put(needs: Needs, rooms: Rooms, unit: int, device: int) -> None:
    """A unit goes to a device, whatever that breaks."""
    home = rooms.home[unit]
    if needs.is_bounded:
        drop(needs, rooms, unit, home)
        hold(needs, rooms, unit, device)
    if needs.flows:
        _cross(needs, rooms, unit, home, -1)
        _cross(needs, rooms, unit, device, 1)
    rooms.home[unit] = device


@inlined
def _is_acyclic(rooms: Rooms) -> bool:
    """Whether devices that need values of each other can be put into an order. Time O(devices × those that give)."""
    kinds, found, place = len(rooms.givers), 0, 0
    for device in range(kinds):
        rooms.waits[device] = rooms.givers[device]
        if rooms.givers[device] == 0:
            rooms.ready[found] = device
            found += 1
    while place < found < kinds:
        device = rooms.ready[place]
        place += 1
        for other in range(kinds if rooms.takers[device] > 0 else 0):
            if other != device and rooms.crossing[device, other] > 0:
                rooms.waits[other] -= 1
                if rooms.waits[other] == 0:
                    rooms.ready[found] = other
                    found += 1
    return found == kinds


@inlined
def over(needs: Needs, rooms: Rooms) -> float:
    """By which shares of the budgets they are passed, all together."""
    return over_budget(needs, rooms) if needs.is_bounded else 0.0


@inlined
def fits(needs: Needs, rooms: Rooms) -> bool:
    """Whether budgets are passed by no more than is allowed, and values flow one way.

    They do before each change, so it is asked where they flow to another device only.
    """
    return over(needs, rooms) <= rooms.most[0] and (not rooms.is_new[0] or _is_acyclic(rooms))


@inlined
def give(needs: Needs, rooms: Rooms, unit: int, device: int) -> None:
    """A unit goes to a device if it may run there."""
    if rooms.home[unit] == device or needs.banned[unit, device]:
        return
    rooms.moved[rooms.changed[0]], rooms.was[rooms.changed[0]] = unit, rooms.home[unit]
    rooms.changed[0] += 1
    _put(needs, rooms, unit, device)


@inlined
def give_back(needs: Needs, rooms: Rooms) -> None:
    """All units go back to where they were."""
    while rooms.changed[0] > 0:
        rooms.changed[0] -= 1
        _put(needs, rooms, rooms.moved[rooms.changed[0]], rooms.was[rooms.changed[0]])
    rooms.is_new[0] = False


@inlined
def fill(needs: Needs, rooms: Rooms) -> None:
    """Make the sums of an assignment that has none yet."""
    for unit in range(len(rooms.home)):
        hold(needs, rooms, unit, rooms.home[unit])
        for place in range(needs.later_start[unit], needs.later_start[unit + 1]):
            _count(rooms, rooms.home[unit], rooms.home[needs.later[place]], 1)
    rooms.is_new[0] = False
