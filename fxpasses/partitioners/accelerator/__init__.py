"""The partitioner of ``torch.fx.experimental``: a model over several accelerators, by memory or by latency.

All names of ``accelerator_partitioner`` and ``partitioner_utils``, and the size functions of
``torch.fx.passes.graph_manipulation``, are here, ``Partition`` and ``Device`` included. ``fxpasses.partitioners`` has
them as well, but there ``Partition`` is the one of the capability partitioner.
"""

from .bookkeeping import (
    check_dependency,
    combine_two_partitions,
    get_bfs_level_partition,
    get_device_partition_stats,
    get_device_to_partitions_mapping,
    get_logical_id_to_device,
    get_node_to_partition_mapping,
    reorganize_partitions,
    reset_partition_device,
    set_parents_and_children,
)
from .latency import (
    estimate_latencies,
    get_comm_latency_between,
    get_latency_of_one_partition,
    get_latency_of_partitioned_graph,
    get_partition_to_latency_mapping,
)
from .partitioner import Partitioner
from .recording import get_tensor_meta
from .retargeting import replace_target_nodes_with
from .sizes import (
    get_extra_size_of,
    get_size_of_all_nodes,
    get_size_of_node,
    size_bytes,
)
from .structures import (
    DAG,
    DAGNode,
    Device,
    NodeLatency,
    Partition,
    PartitionerConfig,
    PartitionLatency,
    PartitionMode,
    PartitionResult,
)

__all__ = [
    "DAG",
    "DAGNode",
    "Device",
    "NodeLatency",
    "Partition",
    "PartitionLatency",
    "PartitionMode",
    "PartitionResult",
    "Partitioner",
    "PartitionerConfig",
    "check_dependency",
    "combine_two_partitions",
    "estimate_latencies",
    "get_bfs_level_partition",
    "get_comm_latency_between",
    "get_device_partition_stats",
    "get_device_to_partitions_mapping",
    "get_extra_size_of",
    "get_latency_of_one_partition",
    "get_latency_of_partitioned_graph",
    "get_logical_id_to_device",
    "get_node_to_partition_mapping",
    "get_partition_to_latency_mapping",
    "get_size_of_all_nodes",
    "get_size_of_node",
    "get_tensor_meta",
    "reorganize_partitions",
    "replace_target_nodes_with",
    "reset_partition_device",
    "set_parents_and_children",
    "size_bytes",
]
