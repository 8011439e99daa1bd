"""Why a graph does not go onto the devices: by how many bytes, and which nodes; and configurations that make no sense.

Each error is also a ``RuntimeError``, which is what torch raises there.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

from torch.fx import GraphModule, Node

from fxpasses.devices import Device
from fxpasses.errors import InfeasibleError, PlacementError, also_as, came_from
from fxpasses.units import format_bytes
from fxpasses.wording import listed

from .bookkeeping import memory_of
from .structures import PartitionerConfig
from .workload import Filling, Group, Workload

__all__ = [
    "check_complete",
    "check_nodes",
    "check_room",
    "no_room_left",
    "none_found",
    "refused",
    "shared_out_in_vain",
    "too_large",
    "unmappable",
]


def check_nodes(mapping: Mapping[Node, int], graph_module: GraphModule) -> None:
    """Look at the nodes that ``aot_based`` got partitions for.

    Raises:
        PlacementError: There are none, or one is not a node of this graph, or the output, or its partition is a list.
    """
    if not mapping:
        raise refused("aot_based needs node_to_partition_mapping={node: partition}; it is empty")
    for node, partition in mapping.items():
        if not isinstance(node, Node) or node.graph is not graph_module.graph or node._erased:
            raise refused(f"node_to_partition_mapping names {node!r}, which is not a node of this graph", KeyError)
        if node.op == "output":
            raise refused(f"node_to_partition_mapping names {node.name}, which stays at the top level", KeyError)
        if not isinstance(partition, Hashable):
            raise refused(f"node_to_partition_mapping puts {node.name} into {partition!r}; write a number", TypeError)


def check_complete(mapping: Mapping[Node, int], workload: Workload, config: PartitionerConfig) -> None:
    """Look whether ``aot_based`` knows the partition of each node, and the devices of each partition.

    Raises:
        PlacementError: A mapping leaves something out, or names a device that is not there.
    """
    if missing := [node.name for node in sorted(workload.atom_of) if node not in mapping]:
        raise refused(f"node_to_partition_mapping has no partition for {listed(missing, 5)}", KeyError)
    devices = config.partition_to_logical_device_mapping
    known = [device.logical_id for device in config.devices]
    for partition in dict.fromkeys(mapping.values()):
        if partition not in devices:
            raise refused(f"partition_to_logical_device_mapping has no devices for partition {partition!r}", KeyError)
        if not isinstance(devices[partition], Collection) or isinstance(devices[partition], str):
            raise refused(
                f"partition_to_logical_device_mapping puts partition {partition!r} on {devices[partition]!r}, which is "
                f"no list; write {{{partition!r}: [{devices[partition]!r}]}}",
                TypeError,
            )
        for logical_id in devices[partition]:
            if logical_id not in known:
                raise refused(
                    f"partition_to_logical_device_mapping puts partition {partition!r} on the logical device "
                    f"{logical_id!r}; there are {', '.join(map(str, known))}",
                    KeyError,
                )


def check_room(workload: Workload, total: int, devices: Sequence[Device]) -> None:
    """Refuse what no mode can place.

    Raises:
        InfeasibleError: All devices together are too small, or no device takes some node.
    """
    largest = max(devices, key=memory_of)
    needs = [Filling(workload).extra(atom) for atom in range(len(workload.atoms))]
    hungriest = max(range(len(needs)), key=needs.__getitem__)
    if (everything := sum(map(memory_of, devices))) < total:
        raise _infeasible(
            f"Devices do not have enough memory for the module: it needs {format_bytes(total)}, they have "
            f"{format_bytes(int(everything))} together; {format_bytes(int(total - everything))} are missing",
            int(total - everything),
        )
    if needs[hungriest] > memory_of(largest):
        raise too_large(workload, hungriest, needs[hungriest], devices)


def too_large(workload: Workload, atom: int, needed: int, devices: Sequence[Device]) -> InfeasibleError:
    """The error for an atom that fits none of all devices."""
    largest = max(devices, key=memory_of)
    message = f"{_oversized(workload, atom, needed)}the largest device that is left, {_sized(largest)}"
    return _infeasible(message, int(needed - memory_of(largest)), workload.atoms[atom][0])


def no_room_left(workload: Workload, atom: int, needed: int, idle: Sequence[Device]) -> PlacementError:
    """The error for an atom that fits none of the devices that have nothing on them yet."""
    largest = max(idle, key=memory_of)
    message = f"{_oversized(workload, atom, needed)}the largest device that is left, {_sized(largest)}"
    return none_found(message, workload.atoms[atom][0])


def _oversized(workload: Workload, atom: int, needed: int) -> str:
    members = workload.atoms[atom]
    where = came_from(members[0])
    together = f", which stays together with {listed((node.name for node in members[1:]), 5)}," if members[1:] else ""
    return (
        f"{members[0].name}{where}{together} is too large to fit any device: it needs {format_bytes(needed)} with its "
        "inputs, and "
    )


def _sized(device: Device) -> str:
    return f"{device.name!r}, has {format_bytes(int(memory_of(device)))}"


def unmappable(groups: Sequence[Group], devices: Sequence[Device]) -> PlacementError:
    """The error for partitions of which some find no device with room."""
    homeless = next(group for group in groups if not group.device_ids)
    return none_found(
        f"Cannot Get a Valid Partition to Logical Device Mapping: a partition with "
        f"{listed((node.name for node in homeless.nodes()), 5)} needs {format_bytes(homeless.used)} and finds no room "
        f"beside the others on {_all_sized(devices)}",
        homeless.nodes()[0],
    )


def shared_out_in_vain(workload: Workload, devices: Sequence[Device]) -> InfeasibleError:
    """The error for a graph that was shared out in all ways, none of which fits."""
    return _infeasible(
        f"Cannot Get a Valid Partition to Logical Device Mapping: the module needs "
        f"{format_bytes(workload.total_bytes())} on one device, more where values are sent, and each way to share it "
        f"out over {_all_sized(devices)} needs more than some device has; give a device more memory",
        None,
    )


def _all_sized(devices: Sequence[Device]) -> str:
    return listed((f"{device.name!r} of {format_bytes(int(memory_of(device)))}" for device in devices), 8)


def none_found(message: str, node: Node | None = None) -> PlacementError:
    """A PlacementError for a search that ended without an answer and without a proof."""
    advice = "It is not proven that no placement exists: give a device more memory."
    return also_as(PlacementError, RuntimeError())(f"{message}. {advice}", node=node, reason=message)


def _infeasible(message: str, missing_bytes: int | None, node: Node | None = None) -> InfeasibleError:
    """An InfeasibleError that ``except RuntimeError`` catches, too."""
    return also_as(InfeasibleError, RuntimeError())(message, missing_bytes=missing_bytes, node=node)


def refused(message: str, kind: type[Exception] = RuntimeError) -> PlacementError:
    """A PlacementError for what makes no sense, which ``except kind`` catches, too."""
    return also_as(PlacementError, kind())(message)
