"""What torch's users do to lists of partitions: join them, number them, and give them devices.

The names and answers are those of ``torch.fx.experimental.accelerator_partitioner``.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from torch.fx import Node

from fxpasses.devices import Device
from fxpasses.errors import PlacementError, also_as

from .latency import run_order
from .sizes import get_extra_size_of
from .structures import Partition

__all__ = [
    "check_dependency",
    "combine_two_partitions",
    "get_bfs_level_partition",
    "get_device_partition_stats",
    "get_device_to_partitions_mapping",
    "get_logical_id_to_device",
    "get_node_to_partition_mapping",
    "reorganize_partitions",
    "reset_partition_device",
    "saturate_devices",
    "set_parents_and_children",
]


def reset_partition_device(partitions: Iterable[Partition]) -> None:
    """Take all partitions from their devices."""
    for partition in partitions:
        partition.logical_device_ids = []


def combine_two_partitions(partition_0: Partition, partition_1: Partition, partitions: list[Partition]) -> None:
    """Replace two partitions by one that holds the nodes of both and stands at the end of the list."""
    joined = Partition(len(partitions))
    joined.nodes = partition_0.nodes | partition_1.nodes
    joined.recalculate_mem_size()
    partitions.append(joined)
    partitions.remove(partition_0)
    partitions.remove(partition_1)
    reorganize_partitions(partitions)


def set_parents_and_children(partitions: Sequence[Partition]) -> None:
    """Find out which partition takes values of which. O(nodes + edges)."""
    homes: dict[Node, list[Partition]] = {}
    for partition in partitions:
        partition.parents, partition.children = set(), set()
        for node in partition.nodes:
            homes.setdefault(node, []).append(partition)
    for partition in partitions:
        for node in partition.nodes:
            for user in node.users:
                for home in homes.get(user, ()):
                    if home is not partition and node not in home.nodes:
                        partition.children.add(home)
                        home.parents.add(partition)


def reorganize_partitions(partitions: Sequence[Partition]) -> None:
    """Number the partitions by their place in the list, and set parents and children."""
    for number, partition in enumerate(partitions):
        partition.partition_id = number
    set_parents_and_children(partitions)


def get_bfs_level_partition(partitions: Sequence[Partition]) -> None:
    """Set ``bfs_level``: how many partitions are before each on the longest way to it.

    Raises:
        CycleError: Partitions wait for each other.
    """
    for partition in (order := run_order(partitions)):
        partition.bfs_level = 0
    for partition in order:
        for child in partition.children:
            child.bfs_level = max(child.bfs_level, partition.bfs_level + 1)


def get_node_to_partition_mapping(partitions: Iterable[Partition]) -> dict[Node, int]:
    """The number of the partition of each node; of the last one, for inputs and attributes that are in several."""
    return {node: partition.partition_id for partition in partitions for node in sorted(partition.nodes)}


def get_logical_id_to_device(devices: Iterable[Device]) -> dict[int, Device]:
    """The devices by their logical ids."""
    return {device.logical_id: device for device in devices}


def memory_of(device: Device) -> float:
    """Bytes of a device; ``inf`` without a limit."""
    return float("inf") if device.available_mem_bytes is None else device.available_mem_bytes


def get_device_partition_stats(
    partitions: Iterable[Partition], devices: Sequence[Device]
) -> tuple[dict[Device, list[Partition]], dict[Device, float], list[Partition]]:
    """Who is where.

    Returns:
        The partitions of each device, the bytes that each device has left, and the partitions without a device.

    Raises:
        PlacementError: A partition is on a device that is not there (also a ``KeyError``).
    """
    by_id = get_logical_id_to_device(devices)
    held: dict[Device, list[Partition]] = {device: [] for device in devices}
    left = {device: memory_of(device) for device in devices}
    homeless = []
    for partition in partitions:
        if not partition.logical_device_ids:
            homeless.append(partition)
        for logical_id in partition.logical_device_ids:
            if logical_id not in by_id:
                raise also_as(PlacementError, KeyError())(
                    f"partition {partition} is on the logical device {logical_id}, but there are only "
                    f"{', '.join(map(str, by_id))}"
                )
            held[by_id[logical_id]].append(partition)
            left[by_id[logical_id]] -= partition.used_mem_bytes
    return held, left, homeless


class _Union(Container[Node]):
    """Membership in a set or another one, without making their union."""

    def __init__(self, one: set[Node], other: set[Node]) -> None:
        self.one, self.other = one, other

    def __contains__(self, node: object) -> bool:
        return node in self.one or node in self.other


def get_device_to_partitions_mapping(partitions: Sequence[Partition], devices: Sequence[Device]) -> bool:
    """Put each partition without a device on the fullest one that has more bytes left than it needs there.

    What is on a device already need not be sent to it.

    Returns:
        Whether all found a device; the first that did not, and all after it, stay without.
    """
    held, left, homeless = get_device_partition_stats(partitions, devices)
    nodes = {device: {node for partition in held[device] for node in partition.nodes} for device in devices}
    for partition in homeless:
        left = dict(sorted(left.items(), key=lambda entry: entry[1]))
        for device, room in left.items():
            needed = _needed_beside(partition, nodes[device])
            if needed < room:
                break
        else:
            return False
        partition.logical_device_ids.append(device.logical_id)
        left[device] -= needed
        nodes[device] |= partition.nodes
    return True


def _needed_beside(partition: Partition, others: set[Node]) -> int:
    if not others:
        return partition.used_mem_bytes
    everything = _Union(partition.nodes, others)
    return sum(get_extra_size_of(node, everything) for node in partition.nodes)


def check_dependency(partition: Partition) -> bool:
    """Whether a partition waits for itself, through others."""
    seen = {partition}
    waiting = [partition]
    for other in waiting:  # grows while it is walked
        if partition in other.children:
            return True
        fresh = [child for child in other.children if child not in seen]
        waiting += fresh
        seen.update(fresh)
    return False


def saturate_devices(partitions: Sequence[Partition], devices: Sequence[Device]) -> None:
    """Put copies of all partitions on devices that are left over, as often as there are enough of them.

    A used device is copied to the smallest idle one that holds what is on it; in a round, all used devices are copied
    or none is.

    Raises:
        PlacementError: A partition has no device (also an ``AssertionError``).
    """
    held, left, homeless = get_device_partition_stats(partitions, devices)
    if homeless:
        raise also_as(PlacementError, AssertionError())(
            f"partitions {', '.join(map(str, homeless))} have no device, so there is nothing to copy; place them first"
        )
    used = [device for device in devices if held[device]]
    idle = sorted((device for device in devices if not held[device]), key=memory_of)
    while len(used) <= len(idle):
        chosen: list[Device] = []
        for device in used:
            needed = (
                memory_of(device) - left[device] if device.available_mem_bytes is not None else _bytes_on(held, device)
            )
            roomy = next((other for other in idle if other not in chosen and memory_of(other) >= needed), None)
            if roomy is None:
                return
            chosen.append(roomy)
        for device, replica in zip(used, chosen, strict=True):
            for partition in held[device]:
                partition.logical_device_ids.append(replica.logical_id)
        idle = [device for device in idle if device not in chosen]


def _bytes_on(held: dict[Device, list[Partition]], device: Device) -> float:
    return sum(partition.used_mem_bytes for partition in held[device])
