"""The nouns of the accelerator partitioner: partitions, latencies, the configuration, and the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple

from torch.fx import GraphModule, Node

from fxpasses.devices import Device

from .kinds import is_pulled
from .sizes import get_extra_size_of, state_items

__all__ = [
    "DAG",
    "DAGNode",
    "Device",
    "NodeLatency",
    "Partition",
    "PartitionLatency",
    "PartitionMode",
    "PartitionResult",
    "PartitionerConfig",
    "pulled_by",
]


class PartitionMode(Enum):
    """How the partitions are found; see :class:`~fxpasses.partitioners.accelerator.Partitioner`."""

    size_based = 0
    sparse_nn = 1
    cost_aware = 2
    kl_based = 3
    aot_based = 4


class NodeLatency(NamedTuple):
    """Seconds of one node; the longer of the two is what it takes.

    Attributes:
        mem_latency_sec: Seconds of moving its bytes.
        computer_latency_sec: Seconds of computing.
    """

    mem_latency_sec: float
    computer_latency_sec: float


class PartitionLatency(NamedTuple):
    """Seconds along the critical path of a partition.

    Attributes:
        mem_latency_sec: Sum of the memory seconds of the path's nodes.
        computer_latency_sec: Sum of the computing seconds of the path's nodes.
        overall_latency_sec: Sum of the longer of the two, node by node.
    """

    mem_latency_sec: float
    computer_latency_sec: float
    overall_latency_sec: float


_EMPTY: Mapping[Any, Any] = MappingProxyType({})
"""Stands for a mapping of its own."""


class _ConfigFields(NamedTuple):
    devices: Sequence[Device]
    mode: PartitionMode
    transfer_rate_bytes_per_sec: float
    node_to_latency_mapping: Mapping[Node, NodeLatency]
    node_to_partition_mapping: Mapping[Node, int]
    partition_to_logical_device_mapping: Mapping[int, Sequence[int]]
    saturate_host: bool


class PartitionerConfig(_ConfigFields):
    """What to partition for; each has mappings of its own.

    Attributes:
        devices: The devices, each with its own ``logical_id``.
        mode: How partitions are found.
        transfer_rate_bytes_per_sec: Bytes per second between any two devices (``cost_aware``, ``kl_based``).
        node_to_latency_mapping: Seconds of each node that computes (``cost_aware``, ``kl_based``).
        node_to_partition_mapping: The partition of each node that computes (``aot_based``).
        partition_to_logical_device_mapping: The logical devices of each partition (``aot_based``).
        saturate_host: Put copies of the partitions on devices that are left over.
    """

    __slots__ = ()

    def __new__(
        cls,
        devices: Sequence[Device],
        mode: PartitionMode = PartitionMode.size_based,
        transfer_rate_bytes_per_sec: float = 0.0,
        node_to_latency_mapping: Mapping[Node, NodeLatency] = _EMPTY,
        node_to_partition_mapping: Mapping[Node, int] = _EMPTY,
        partition_to_logical_device_mapping: Mapping[int, Sequence[int]] = _EMPTY,
        saturate_host: bool = False,
    ) -> PartitionerConfig:
        """Fill in what is left out."""
        return super().__new__(
            cls,
            devices,
            mode,
            transfer_rate_bytes_per_sec,
            {} if node_to_latency_mapping is _EMPTY else node_to_latency_mapping,
            {} if node_to_partition_mapping is _EMPTY else node_to_partition_mapping,
            {} if partition_to_logical_device_mapping is _EMPTY else partition_to_logical_device_mapping,
            saturate_host,
        )


class Partition:
    """A group of nodes that runs on one device, or is copied to several.

    This is the partition of ``torch.fx.experimental.partitioner_utils``; the one of the capability partitioner is
    :class:`fxpasses.partitioners.Partition`.

    Attributes:
        partition_id: Its number.
        nodes: Its nodes. Inputs, attributes and views of attributes are in each partition that uses them.
        parents: The partitions whose values it takes.
        children: The partitions that take its values.
        bfs_level: The number of partitions before it on the longest way to it; -1 until it is known.
        used_mem_bytes: Bytes of its results, its state, and what it takes from other partitions.
        logical_device_ids: The devices it is on.
    """

    def __init__(self, partition_id: int) -> None:
        self.nodes: set[Node] = set()
        self.partition_id = partition_id
        self.parents: set[Partition] = set()
        self.children: set[Partition] = set()
        self.bfs_level = -1
        self.used_mem_bytes = 0
        self.logical_device_ids: list[int] = []

    def __str__(self) -> str:
        return str(self.partition_id)

    def __repr__(self) -> str:
        return f"<Partition {self.partition_id}: {len(self.nodes)} nodes on {self.logical_device_ids}>"

    def recalculate_mem_size(self) -> None:
        """Add up ``used_mem_bytes``; tensors that several of its nodes hold count once."""
        seen: set[object] = set()
        self.used_mem_bytes = 0
        for node in self.nodes:
            self.used_mem_bytes += get_extra_size_of(node, self.nodes)
            owner = node.graph.owning_module
            if owner is None or node.op not in ("get_attr", "call_module"):
                continue
            for key, held in state_items(owner, node).items():
                self.used_mem_bytes -= held if key in seen else 0
                seen.add(key)

    def add_node(self, node: Node) -> None:
        """Add a node, with the inputs and attributes that it uses."""
        self.nodes.update([node, *pulled_by(node)])
        self.recalculate_mem_size()

    def remove_node(self, node: Node) -> None:
        """Remove a node, with the inputs and attributes that nothing else here uses; foreign nodes are ignored."""
        if node not in self.nodes:
            return
        self.nodes.remove(node)
        for used in pulled_by(node):
            if self.nodes.isdisjoint(used.users):
                self.nodes.discard(used)
        self.recalculate_mem_size()


def pulled_by(node: Node) -> list[Node]:
    """The inputs, attributes and views of attributes that a node uses, users before what they use."""
    found: dict[Node, None] = {}
    waiting = [node]
    for user in waiting:  # grows while it is walked
        fresh = [used for used in user.all_input_nodes if used not in found and is_pulled(used)]
        found.update(dict.fromkeys(fresh))
        waiting += fresh
    return list(found)


class DAGNode:
    """One partition in the graph of partitions.

    Attributes:
        submodule_node: The node that calls it.
        input_nodes: What it takes.
        output_nodes: The nodes that take its results, if there are several; else the node itself.
        logical_device_ids: The devices it is on.
        size_bytes: Bytes that it needs there.
    """

    def __init__(
        self,
        submodule_node: Node,
        input_nodes: list[Node],
        output_nodes: list[Node],
        logical_device_ids: list[int],
        size_bytes: int,
    ) -> None:
        self.submodule_node = submodule_node
        self.input_nodes = input_nodes
        self.output_nodes = output_nodes
        self.logical_device_ids = logical_device_ids
        self.size_bytes = size_bytes

    def __str__(self) -> str:
        return str(self.submodule_node)

    def __repr__(self) -> str:
        return f"<DAGNode {self.submodule_node}: {self.size_bytes} bytes on {self.logical_device_ids}>"


class DAG:
    """The graph of partitions: ``nodes`` in the order in which they run."""

    def __init__(self) -> None:
        self.nodes: list[DAGNode] = []

    def create_node(
        self,
        submodule_node: Node,
        input_nodes: list[Node],
        output_nodes: list[Node],
        logical_devices: list[int],
        size_bytes: int,
    ) -> None:
        """Append a node."""
        self.nodes.append(DAGNode(submodule_node, input_nodes, output_nodes, logical_devices, size_bytes))


class PartitionResult(NamedTuple):
    """What ``partition_graph`` gives.

    Attributes:
        dag: The partitions, as they depend on each other.
        module_with_submodules: The module that calls one submodule per partition.
    """

    dag: DAG
    module_with_submodules: GraphModule
