"""Names of parts: that of their device, then with a number."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["PartNames"]


class PartNames:
    """Gives each part of a device another name, which is no other device's.

    >>> names = PartNames(["gpu", "gpu_1"])
    >>> names.fresh("gpu"), names.fresh("gpu"), names.fresh("gpu_1"), names.fresh("gpu")
    ('gpu', 'gpu_2', 'gpu_1', 'gpu_3')
    """

    def __init__(self, devices: Iterable[str], taken: Iterable[str] = ()) -> None:
        """Start with the names of all devices, and those of parts that have one already."""
        self._devices = frozenset(devices)
        self._taken = set(taken)
        self._count: dict[str, int] = {}

    def fresh(self, device: str) -> str:
        """The name of one more part of a device. Time O(1), but for names that are taken."""
        name, count = device, self._count.get(device, 0)
        while name in self._taken or (name != device and name in self._devices):
            count += 1
            name = f"{device}_{count}"
        self._count[device] = count
        self._taken.add(name)
        return name
