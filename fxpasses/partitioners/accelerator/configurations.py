"""Read a ``PartitionerConfig`` as people write it: torch's own is one, too, and an iterator of devices is a list."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from enum import Enum
from numbers import Real
from typing import Any

from fxpasses.devices import Device

from .bookkeeping import memory_of
from .refusing import refused
from .structures import PartitionerConfig, PartitionMode

__all__ = ["read_config"]

_MAPPINGS = ("node_to_latency_mapping", "node_to_partition_mapping", "partition_to_logical_device_mapping")


def read_config(given: object) -> PartitionerConfig:
    """The configuration, its devices as a list; those of ``torch.fx.experimental.partitioner_utils`` are taken.

    Raises:
        PlacementError: It is none, there is no device, two share a logical id, or a number makes no sense.
    """
    fields: Any = getattr(given, "_fields", ())
    if not isinstance(given, tuple) or fields != PartitionerConfig._fields:
        raise refused(f"partitioner_config is {given!r}; write PartitionerConfig(devices=[...], mode=...)", TypeError)
    config = PartitionerConfig(*given)
    for name in _MAPPINGS:
        if not isinstance(getattr(config, name), Mapping):
            raise refused(f"{name} is {getattr(config, name)!r}; write a dict", TypeError)
    return config._replace(devices=_devices(config.devices), mode=_mode(config.mode))


def _devices(given: Any) -> list[Device]:
    if not isinstance(given, Iterable):
        raise refused(f"devices is {given!r}; write a list of fxpasses.Device(name, bytes, logical_id)", TypeError)
    devices = list(given)
    if not devices:
        raise refused("No devices: PartitionerConfig(devices=[...]) needs at least one fxpasses.Device")
    known: dict[Hashable, Device] = {}
    names: set[str] = set()
    for device in devices:
        if not hasattr(device, "logical_id"):
            raise refused(f"devices holds {device!r}; write fxpasses.Device(name, bytes, logical_id)", TypeError)
        if not isinstance(device.logical_id, Hashable):
            raise refused(f"device {device.name!r} has the logical id {device.logical_id!r}; write a number", TypeError)
        if device.logical_id in known:
            raise refused(
                f"devices {known[device.logical_id].name!r} and {device.name!r} both have the logical id "
                f"{device.logical_id}; give each its own: Device(name, bytes, logical_id)"
            )
        known[device.logical_id] = device
        if device.name in names:
            raise refused(f"Two devices are called {device.name!r}; give each its own name")
        names.add(device.name)
        if not isinstance(memory_of(device), Real):
            raise refused(f"device {device.name!r} has {memory_of(device)!r} bytes; write a number of bytes", TypeError)
        if not memory_of(device) >= 0:
            raise refused(f"device {device.name!r} has {device.available_mem_bytes} bytes; write a number from 0 on")
    return devices


def _mode(given: object) -> PartitionMode:
    """The mode; of torch's enum, which is another class, the one of the same name."""
    if isinstance(given, PartitionMode):
        return given
    if isinstance(given, Enum) and type(given).__name__ == "PartitionMode" and given.name in PartitionMode.__members__:
        return PartitionMode[given.name]
    raise refused(f"the mode is {given!r}; there are {', '.join(map(str, PartitionMode))}")
