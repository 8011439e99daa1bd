"""Which device each group goes to, and how long the graph then takes; ``cost_aware`` and ``kl_based`` ask often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch.fx import Node

from fxpasses.devices import Device

from .bookkeeping import memory_of
from .structures import NodeLatency
from .workload import Group, Workload

__all__ = ["Clock", "Placed", "map_to_devices"]


def map_to_devices(workload: Workload, groups: Sequence[Group], devices: Sequence[Device]) -> bool:
    """Give each group without devices the fullest one that takes it; whether all found one."""
    numbers = {device.logical_id: number for number, device in enumerate(devices)}
    given = [numbers[group.device_ids[0]] if group.device_ids else -1 for group in groups]
    found = best_fit(groups, workload.homes(groups), [memory_of(device) for device in devices], given)
    for group, number in zip(groups, found, strict=True):
        if number >= 0 and not group.device_ids:
            group.device_ids = [devices[number].logical_id]
    return -1 not in found


def best_fit(
    groups: Sequence[Group], home: Sequence[int], memory: Sequence[float], given: Sequence[int] | None = None
) -> list[int]:
    """The device of each group: of those with more bytes left than it needs there, the one with the fewest.

    What a device holds already is not sent to it. Groups are taken in their order; from the first that finds no room
    on, -1.

    Args:
        groups: The groups.
        home: The group of each atom.
        memory: Bytes of each device.
        given: The devices that are settled before, -1 where not.
    """
    device_of = list(given) if given is not None else [-1] * len(groups)
    left = list(memory)
    for group, device in zip(groups, device_of, strict=True):
        if device >= 0:
            left[device] -= group.used
    fullest_first = list(range(len(memory)))
    for number, group in enumerate(groups):
        if device_of[number] >= 0:
            continue
        fullest_first.sort(key=left.__getitem__)
        there: dict[int, int] = {}
        for atom, size in group.reads.items():
            source = device_of[home[atom]]
            there[source] = there.get(source, 0) + size
        for device in fullest_first:
            needed = group.used - there.get(device, 0)
            if needed < left[device]:
                left[device] -= needed
                device_of[number] = device
                break
        else:
            return device_of
    return device_of


Placed = tuple[float, list[Group], list[int]]
"""Seconds, groups, and the place of each group's device."""


class Clock:
    """Predicts the latency of groups: what ``get_latency_of_partitioned_graph`` will say.

    Args:
        workload: The graph.
        devices: The devices.
        latencies: The latency of each node.
        rate: Bytes per second between devices.
    """

    def __init__(
        self,
        workload: Workload,
        devices: Sequence[Device],
        latencies: Mapping[Node, NodeLatency],
        rate: float,
    ) -> None:
        self.workload = workload
        self.devices = devices
        self.memory = [memory_of(device) for device in devices]
        self.latencies = latencies
        self.rate = rate
        self._tasks = workload.tasks(latencies)

    def of(self, workload: Workload) -> Clock:
        """The same clock for the same graph with other atoms."""
        return Clock(workload, self.devices, self.latencies, self.rate)

    def try_out(self, groups: Sequence[Group]) -> tuple[float, list[int]] | None:
        """Seconds of the groups on the devices that :func:`best_fit` gives them; None if they cannot run so."""
        order = self.workload.order(groups)
        if order is None:
            return None
        home = self.workload.homes(groups)
        device_of = best_fit(groups, home, self.memory)
        if -1 in device_of:
            return None
        return self._longest(groups, home, order, device_of), device_of

    def seconds(self, groups: Sequence[Group], device_of: Sequence[int]) -> float:
        """Seconds of the groups on given devices, -1 where there is none yet; ``inf`` if they cannot run."""
        order = self.workload.order(groups)
        if order is None:
            return float("inf")
        return self._longest(groups, self.workload.homes(groups), order, device_of)

    def placed(self, groups: list[Group]) -> Placed:
        """The groups on the devices that they have."""
        numbers = {device.logical_id: number for number, device in enumerate(self.devices)}
        device_of = [numbers[group.device_ids[0]] for group in groups]
        return self.seconds(groups, device_of), groups, device_of

    def place(self, groups: Sequence[Group], device_of: Sequence[int]) -> None:
        """Write the devices down at the groups."""
        for group, number in zip(groups, device_of, strict=True):
            group.device_ids = [self.devices[number].logical_id]

    def _longest(
        self, groups: Sequence[Group], home: Sequence[int], order: Sequence[int], device_of: Sequence[int]
    ) -> float:
        done = [0.0] * len(groups)
        sizes = self.workload.sizes
        longest = 0.0
        for number in order:
            group = groups[number]
            sent: dict[int, int] = {}
            for value, atom in group.values.items():
                source = home[atom]
                sent[source] = sent.get(source, 0) + sizes[value].output_size
            start = 0.0
            for source, size in sent.items():
                arrived = done[source]
                if device_of[source] < 0 or device_of[source] != device_of[number]:
                    shared = sum(sizes[node].output_size for node in group.pulled if node in groups[source].pulled)
                    arrived += (size + shared) / self.rate
                if arrived > start:
                    start = arrived
            done[number] = start + group.seconds(self._tasks)
            if done[number] > longest:
                longest = done[number]
        return longest
