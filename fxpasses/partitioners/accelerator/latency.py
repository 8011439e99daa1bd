"""How long partitions take: along the critical path in each, and along the critical path of the whole graph.

Partitions that do not wait for each other run at the same time; a value costs its bytes over the transfer rate when
its two ends are not on the same devices. Everything is a longest path in a graph without cycles: O(nodes + edges).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real

from torch.fx import GraphModule, Node

from fxpasses.devices import Device
from fxpasses.errors import CycleError, PlacementError, also_as
from fxpasses.guards import is_guard
from fxpasses.partitioners.costs.node_costs import NodeCost, measure_node
from fxpasses.partitioners.grouping.keep_together import is_getitem
from fxpasses.partitioners.symbol_bounds import note_limits
from fxpasses.wording import listed

from .kinds import is_pulled, writes_back
from .recording import refuse_unknown, valued
from .sizes import size_of
from .structures import NodeLatency, Partition, PartitionLatency

__all__ = [
    "estimate_latencies",
    "get_comm_latency_between",
    "get_latency_of_one_partition",
    "get_latency_of_partitioned_graph",
    "get_partition_to_latency_mapping",
]

_NOTHING = PartitionLatency(0.0, 0.0, 0.0)
_FREE = NodeLatency(0.0, 0.0)


def estimate_latencies(fx_module: GraphModule, device: Device) -> dict[Node, NodeLatency]:
    """Latencies by the cost model, for who has not measured any.

    Args:
        fx_module: A module whose nodes have recorded values, or shapes as ``get_size_of_all_nodes`` records them.
        device: Its peak rates are what nodes run at.

    Returns:
        Seconds of each node that computes, the launch included: the longer ones are those of
        :func:`~fxpasses.partitioners.costs.node_costs.seconds_on`.

    Raises:
        MissingMetadataError: Nodes have neither (also a ``RuntimeError``).
        PlacementError: The device tells no rates (also a ``TypeError``): those of torch have none.
    """
    if not isinstance(device, Device):
        raise also_as(PlacementError, TypeError())(
            f"the device is {device!r}; write an fxpasses.Device, which tells how fast it is"
        )
    refuse_unknown(fx_module)
    note_limits(fx_module)
    return {
        node: _estimated(measure_node(twin), device)
        for node, twin in valued(fx_module).items()
        if node.op not in ("placeholder", "get_attr", "output") and not is_guard(node)
    }


def _estimated(cost: NodeCost, device: Device) -> NodeLatency:
    if not cost.flops and not cost.bytes_written:
        return _FREE
    moved = cost.bytes_read + cost.bytes_written
    return NodeLatency(
        device.overhead + moved / device.bandwidth, device.overhead + cost.flops / device.peak_flops(cost.dtype)
    )


def get_latency_of_one_partition(
    partition: Partition, node_to_latency_mapping: Mapping[Node, NodeLatency]
) -> PartitionLatency:
    """The latency of the critical path in one partition.

    Args:
        partition: The partition.
        node_to_latency_mapping: The latency of each of its nodes that computes.

    Raises:
        PlacementError: Nodes have no latency (also a ``KeyError``).
    """
    nodes = sorted(node for node in partition.nodes if node.op not in ("placeholder", "get_attr"))
    check_latencies(nodes, node_to_latency_mapping)
    return critical_path(nodes, partition.nodes, node_to_latency_mapping)


def critical_path(
    nodes: Sequence[Node], members: Iterable[Node], latencies: Mapping[Node, NodeLatency]
) -> PartitionLatency:
    """The longest path through ``nodes``, which stand in graph order; of several, the one that ends first."""
    reached: dict[Node, PartitionLatency] = {}
    longest = _NOTHING
    inside = set(members)
    for node in nodes:
        before = _NOTHING
        for used in node.all_input_nodes:
            if used in reached and reached[used].overall_latency_sec > before.overall_latency_sec:
                before = reached[used]
        own = latencies.get(node, _FREE)
        here = reached[node] = PartitionLatency(
            before.mem_latency_sec + own.mem_latency_sec,
            before.computer_latency_sec + own.computer_latency_sec,
            before.overall_latency_sec + max(own.computer_latency_sec, own.mem_latency_sec),
        )
        if here.overall_latency_sec > longest.overall_latency_sec and inside.isdisjoint(node.users):
            longest = here
    return longest


def check_latencies(nodes: Iterable[Node], latencies: Mapping[Node, NodeLatency]) -> None:
    """Refuse missing and negative latencies, and what is none.

    Elements of tuples, views of attributes, and copies to inputs and attributes may be left out.

    Raises:
        PlacementError: It names the nodes (also a ``KeyError``, where the type is wrong a ``TypeError``).
    """
    missing = [node for node in nodes if node not in latencies and not _may_be_free(node)]
    if missing:
        names = listed((node.name for node in missing), 5)
        strange = next((key for key in latencies if getattr(key, "graph", None) is not missing[0].graph), None)
        elsewhere = "" if strange is None else f"; it has {strange!r}, which is not a node of this graph"
        raise also_as(PlacementError, KeyError())(
            f"node_to_latency_mapping has no latency for {names}{elsewhere}; give a NodeLatency for each node that "
            "computes, for example with estimate_latencies(module, device)",
            node=missing[0],
        )
    for node in nodes:
        if node in latencies:
            _check_latency(node, latencies[node])


def _check_latency(node: Node, latency: object) -> None:
    if not isinstance(latency, tuple) or getattr(latency, "_fields", ()) != NodeLatency._fields:
        raise also_as(PlacementError, TypeError())(
            f"the latency of {node.name} is {latency!r}; write NodeLatency(mem_latency_sec, computer_latency_sec)",
            node=node,
        )
    if not all(isinstance(seconds, Real) and seconds == seconds for seconds in latency):  # NaN is not itself
        raise also_as(PlacementError, TypeError())(
            f"the latency of {node.name} is {tuple(latency)}; seconds are numbers", node=node
        )
    if not all(seconds >= 0 for seconds in latency):
        raise PlacementError(f"the latency of {node.name} is {tuple(latency)}; seconds are not negative", node=node)


def _may_be_free(node: Node) -> bool:
    return is_getitem(node) or is_pulled(node) or writes_back(node)


def get_partition_to_latency_mapping(
    partitions: Iterable[Partition], node_to_latency_mapping: Mapping[Node, NodeLatency]
) -> dict[Partition, PartitionLatency]:
    """The latency of each partition; see :func:`get_latency_of_one_partition`."""
    return {partition: get_latency_of_one_partition(partition, node_to_latency_mapping) for partition in partitions}


def get_comm_latency_between(
    parent_partition: Partition, child_partition: Partition, transfer_rate_bytes_per_sec: float
) -> float:
    """Seconds that the values take from one partition to another; 0 on the same devices.

    Each value of the parent that the child uses goes over once. As in torch, an input of the graph that both use counts
    as sent.

    Raises:
        PlacementError: The rate is not positive (also a ``ZeroDivisionError``).
    """
    devices = parent_partition.logical_device_ids
    if devices and devices == child_partition.logical_device_ids:
        return 0.0
    check_rate(transfer_rate_bytes_per_sec)
    sent = {used for node in child_partition.nodes for used in node.all_input_nodes if used in parent_partition.nodes}
    return sum(size_of(node).output_size for node in sent) / transfer_rate_bytes_per_sec


def check_rate(transfer_rate_bytes_per_sec: float) -> None:
    """Refuse a rate at which nothing arrives.

    Raises:
        PlacementError: It is not positive (also a ``ZeroDivisionError``), or no number (also a ``TypeError``).
    """
    is_number = isinstance(transfer_rate_bytes_per_sec, Real)
    if not is_number or not transfer_rate_bytes_per_sec > 0:
        raise also_as(PlacementError, ZeroDivisionError() if is_number else TypeError())(
            f"transfer_rate_bytes_per_sec is {transfer_rate_bytes_per_sec!r}; give the bytes per second between devices"
        )


def get_latency_of_partitioned_graph(
    partitions: Iterable[Partition],
    partition_to_latency_mapping: Mapping[Partition, PartitionLatency],
    transfer_rate_bytes_per_sec: float,
) -> float:
    """The latency of the critical path through partitions and what they send to each other.

    Args:
        partitions: All partitions; their ``children`` are followed.
        partition_to_latency_mapping: The latency of each.
        transfer_rate_bytes_per_sec: Bytes per second between devices.

    Raises:
        CycleError: Partitions wait for each other (also a ``RecursionError``).
        PlacementError: Partitions have no latency (also a ``KeyError``).
    """
    order = run_order(partitions)
    if missing := [str(partition) for partition in order if partition not in partition_to_latency_mapping]:
        raise also_as(PlacementError, KeyError())(
            f"partition_to_latency_mapping has no latency for partitions {', '.join(missing)}; "
            "get_partition_to_latency_mapping gives those of all"
        )
    arrived: dict[Partition, float] = {}
    last = 0.0
    for partition in order:
        done = arrived.get(partition, 0.0) + partition_to_latency_mapping[partition].overall_latency_sec
        last = max(last, done)
        for child in partition.children:
            sent = done + get_comm_latency_between(partition, child, transfer_rate_bytes_per_sec)
            arrived[child] = max(arrived.get(child, 0.0), sent)
    return last


def run_order(partitions: Iterable[Partition]) -> list[Partition]:
    """The partitions and all that wait for them, parents before children.

    Raises:
        CycleError: Partitions wait for each other (also a ``RecursionError``).
    """
    members = dict.fromkeys(partitions)
    queue = list(members)
    for partition in queue:  # grows while it is walked
        fresh = [child for child in _by_number(partition.children) if child not in members]
        members.update(dict.fromkeys(fresh))
        queue += fresh
    waiting = {partition: len(partition.parents & members.keys()) for partition in members}
    order = [partition for partition, count in waiting.items() if not count]
    for partition in order:  # grows while it is walked
        for child in _by_number(partition.children):
            waiting[child] -= 1
            if waiting[child] == 0:
                order.append(child)
    if stuck := [str(partition) for partition, count in waiting.items() if count]:
        raise also_as(CycleError, RecursionError())(
            f"partitions {', '.join(stuck)} wait for each other, or for one on such a circle; "
            "move the nodes of a circle into one partition",
            path=stuck,
        )
    return order


def _by_number(partitions: Iterable[Partition]) -> list[Partition]:
    return sorted(partitions, key=lambda partition: partition.partition_id)
