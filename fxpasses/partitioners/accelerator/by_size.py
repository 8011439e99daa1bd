"""``size_based``: fill one device after the other, in graph order.

Nodes join the current partition while its device has room; then the next device that is large enough is opened. When
none is left, each further node is a partition of its own, and goes to the fullest device that still takes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from fxpasses.devices import Device
from fxpasses.errors import PlacementError

from .bookkeeping import memory_of
from .mapping import map_to_devices
from .refusing import no_room_left, unmappable
from .workload import Filling, Group, Workload

__all__ = ["partition_by_size"]


def partition_by_size(workload: Workload, devices: Sequence[Device]) -> list[Group]:
    """Fill devices in their order; where that ends without room, pack them another way.

    Raises:
        InfeasibleError: There is no way.
        PlacementError: No way was found; the message says what does not fit.
    """
    try:
        return _filled(workload, devices)
    except PlacementError as error:
        unplaced = error
    from .packing import pack  # here: solvers are many, and seldom needed

    if (packed := pack(workload, devices)) is None:
        raise unplaced
    return packed


def _filled(workload: Workload, devices: Sequence[Device]) -> list[Group]:
    filled: list[tuple[list[int], Device]] = []
    singles: list[int] = []
    idle = list(devices)
    filling = Filling(workload)
    for atom in range(len(workload.atoms)):
        if singles:
            singles.append(atom)
            continue
        if not filled or filling.extra(atom) > memory_of(filled[-1][1]) - filling.used:
            if not idle:
                singles.append(atom)
                continue
            filling = Filling(workload)
            filled.append(([], _first_that_takes(workload, atom, filling.extra(atom), idle)))
            idle.remove(filled[-1][1])
        filling.add(atom)
        filled[-1][0].append(atom)
    groups = [workload.group(atoms) for atoms, _ in filled]
    for group, (_, device) in zip(groups, filled, strict=True):
        group.device_ids = [device.logical_id]
    groups += [workload.group([atom]) for atom in singles]
    if not map_to_devices(workload, groups, devices):
        raise unmappable(groups, devices)
    return groups


def _first_that_takes(workload: Workload, atom: int, needed: int, idle: Sequence[Device]) -> Device:
    for device in idle:
        if memory_of(device) >= needed:
            return device
    raise no_room_left(workload, atom, needed, idle)
