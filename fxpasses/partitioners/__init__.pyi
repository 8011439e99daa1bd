from .assignment import Assignment
from .by_backend import BackendAssignment, Transfer, partition_for_backends
from .by_capability import CapabilityBasedPartitioner, Partition, partition_by_capability
from .by_pattern import (
    GroupBasedPartitioner,
    generate_grouped_partitions_from_list_of_nodes,
    generate_partitions_from_list_of_nodes,
    generate_pattern_op_partitions,
    partition_by_pattern,
)
from .by_source import (
    SourcePartition,
    check_subgraphs_connected,
    get_module_partitions,
    get_source_partitions,
    partition_by_source,
)
from .cost import COST, SECONDS, NodeCost, cost_of, measure_node, seconds_of, seconds_on
from .coverage import Coverage, measure_coverage
from .fusing import constants_by_size, fuse_by_partitions, topo_sort, validate_partition
from .matching import (
    InternalMatch,
    SubgraphMatcher,
    SubgraphMatcherWithNameNodeMap,
)
from .memory import DeviceMemory, predict_memory
from .proposing import CapabilityOptions
from .small_parts import TransferCost
from .solvers import PlacementProblem, PlacementSolution, solve_placement
from .support import (
    OperatorSupport,
    OperatorSupportBase,
    OpSupports,
    any_chain,
    chain,
    create_op_support,
    create_pattern_support,
)
from .training_memory import Training, predict_training_memory

__all__ = [
    "COST",
    "SECONDS",
    "Assignment",
    "BackendAssignment",
    "CapabilityBasedPartitioner",
    "CapabilityOptions",
    "Coverage",
    "DeviceMemory",
    "GroupBasedPartitioner",
    "InternalMatch",
    "NodeCost",
    "OpSupports",
    "OperatorSupport",
    "OperatorSupportBase",
    "Partition",
    "PlacementProblem",
    "PlacementSolution",
    "SourcePartition",
    "SubgraphMatcher",
    "SubgraphMatcherWithNameNodeMap",
    "Training",
    "Transfer",
    "TransferCost",
    "any_chain",
    "chain",
    "check_subgraphs_connected",
    "constants_by_size",
    "cost_of",
    "create_op_support",
    "create_pattern_support",
    "fuse_by_partitions",
    "generate_grouped_partitions_from_list_of_nodes",
    "generate_partitions_from_list_of_nodes",
    "generate_pattern_op_partitions",
    "get_module_partitions",
    "get_source_partitions",
    "measure_coverage",
    "measure_node",
    "partition_by_capability",
    "partition_by_pattern",
    "partition_by_source",
    "partition_for_backends",
    "predict_memory",
    "predict_training_memory",
    "seconds_of",
    "seconds_on",
    "solve_placement",
    "topo_sort",
    "validate_partition",
]
