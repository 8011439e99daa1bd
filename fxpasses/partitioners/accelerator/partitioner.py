"""``Partitioner().partition_graph(...)``: put a model that is too large for one accelerator on several of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from fxpasses.devices import Device
from fxpasses.errors import CycleError, PlacementError, also_as
from fxpasses.guards import is_guard
from fxpasses.outlining.outline_plan import Constants
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.grouping.keep_together import is_getitem
from fxpasses.programs.program_modules import module_of_program

from .bookkeeping import get_node_to_partition_mapping, memory_of, saturate_devices, set_parents_and_children
from .by_cost import partition_by_cost
from .by_embedding import partition_by_embedding
from .by_size import partition_by_size
from .by_swapping import partition_by_swapping
from .configurations import read_config
from .kinds import writes_back
from .latency import check_latencies, check_rate, run_order
from .mapping import Clock
from .recording import check_graph, record_values, refuse_unknown, unknown_nodes
from .refusing import check_complete, check_nodes, check_room
from .structures import DAG, DAGNode, Partition, PartitionerConfig, PartitionMode, PartitionResult, pulled_by
from .workload import Group, Workload

__all__ = ["Partitioner"]


class Partitioner:
    """Cuts a graph into partitions, gives each its devices, and makes a submodule of each.

    A module that fits the largest device becomes one partition. Otherwise the mode decides:

    * ``size_based`` fills one device after the other, in graph order;
    * ``sparse_nn`` spreads embedding tables over devices of equal memory, and copies the rest to each of these;
    * ``cost_aware`` joins nodes while the graph becomes faster by the latencies that are given;
    * ``kl_based`` begins with ``size_based``, and moves and swaps nodes while the graph becomes faster;
    * ``aot_based`` takes nodes and devices as they are given.

    Attributes:
        partitions: The partitions of the last call.
        node_to_partition: The partition of each node.
        devices: The devices of the last call.
        graph_module: The graph of the last call; there once something was partitioned.
        torch_module: What came with it.
    """

    def __init__(self) -> None:
        self.partitions: list[Partition] = []
        self.node_to_partition: dict[Node, int] = {}
        self.devices: list[Device] = []

    def partition_graph(
        self,
        fx_module: GraphModule | ExportedProgram,
        torch_module: torch.nn.Module | None,
        partitioner_config: PartitionerConfig,
        *,
        example_inputs: Sequence[Any] | None = None,
        constants: Constants = "pass_in",
    ) -> PartitionResult:
        """Partition a graph.

        Args:
            fx_module: The graph, from any tracer; it stays as it is. Of an ExportedProgram, its ``module()`` is
                partitioned, and mappings may be over the nodes of either. What the module copies to inputs and
                buffers in addition may be left out of them: it costs nothing then, and goes with the last of what it
                waits for.
            torch_module: Not used; there because torch's method has it.
            partitioner_config: Devices, mode, and what the mode needs; torch's own is taken, too.
            example_inputs: Inputs for a graph without recorded values, which then gets some; ``get_size_of_all_nodes``
                does the same.
            constants: Where parameters and constants go that ``get_attr`` nodes read: by default they stay at the top
                level and are passed in, as in torch; ``"share"`` moves them into the partitions that use them.

        Returns:
            The graph of partitions, and the module that calls one submodule per partition.

        Raises:
            PlacementError: The configuration makes no sense, or no partitions were found that fit the devices (also a
                ``RuntimeError`` or a ``KeyError``, as in torch).
            InfeasibleError: It is proven that there are none (also a ``RuntimeError``).
            MissingMetadataError: Nodes have no recorded value (also a ``RuntimeError``).
            FakeValueError: The graph cannot run on the example inputs (also of the kind that the graph raises).
            CycleError: Partitions of ``aot_based`` wait for each other; ``path`` shows why.
        """
        check_graph(fx_module)
        graph_module, config = _unlifted(fx_module, read_config(partitioner_config))
        if example_inputs is not None and unknown_nodes(graph_module):
            record_values(graph_module, example_inputs)
        refuse_unknown(graph_module)
        workload = Workload(graph_module)
        if not workload.atoms:
            raise also_as(PlacementError, RuntimeError())(
                "No Partition since no operations in the module: the graph has only inputs, attributes and the output"
            )
        self.devices = list(config.devices)
        self.graph_module, self.torch_module = graph_module, torch_module
        self.partitions = _find_partitions(workload, config)
        set_parents_and_children(self.partitions)
        self.node_to_partition = get_node_to_partition_mapping(self.partitions)
        if config.saturate_host:
            saturate_devices(self.partitions, self.devices)
        return self._split(workload, constants)

    def _split(self, workload: Workload, constants: Constants) -> PartitionResult:
        from fxpasses.passes.splitting import split  # a layer above: this one call both proposes and splits

        by_id = {partition.partition_id: partition for partition in self.partitions}
        assignment = _checked_assignment(workload, _homes(workload, self.partitions))
        found = split(workload.graph_module, assignment, constants=constants)
        by_call = {call: by_id[number] for number, call in found.calls.items()}  # type: ignore[index]
        dag = DAG()
        for node in found.graph_module.graph.nodes:
            if (partition := by_call.get(node)) is not None:
                dag.nodes.append(_dag_node(node, partition))
        return PartitionResult(dag, found.graph_module)


def _dag_node(call: Node, partition: Partition) -> DAGNode:
    outputs = list(call.users) if len(call.users) > 1 else [call]
    return DAGNode(call, list(call.all_input_nodes), outputs, partition.logical_device_ids, partition.used_mem_bytes)


def _unlifted(
    fx_module: GraphModule | ExportedProgram, config: PartitionerConfig
) -> tuple[GraphModule, PartitionerConfig]:
    """The module of a program, and the configuration with its nodes instead of the program's."""
    if not isinstance(fx_module, ExportedProgram):
        return fx_module, config
    module = module_of_program(fx_module, check_guards=True)
    by_name: dict[str, Node] = {node.name: node for node in module.graph.nodes}

    def moved(mapping: Mapping[Node, Any]) -> dict[Node, Any]:
        return {by_name.get(node.name, node) if isinstance(node, Node) else node: to for node, to in mapping.items()}

    return module, config._replace(
        node_to_latency_mapping=moved(config.node_to_latency_mapping),
        node_to_partition_mapping=moved(config.node_to_partition_mapping),
    )


def _find_partitions(workload: Workload, config: PartitionerConfig) -> list[Partition]:
    devices = list(config.devices)
    if config.mode is PartitionMode.aot_based:
        return _given_partitions(workload, config)
    total = workload.total_bytes()
    largest = max(devices, key=memory_of)
    if total <= memory_of(largest):
        return [_only_partition(workload, total, largest)]
    check_room(workload, workload.needed_bytes(), devices)
    return [group.partition(number) for number, group in enumerate(_find_groups(workload, config, devices))]


def _find_groups(workload: Workload, config: PartitionerConfig, devices: list[Device]) -> list[Group]:
    if config.mode is PartitionMode.size_based:
        return partition_by_size(workload, devices)
    if config.mode is PartitionMode.sparse_nn:
        return partition_by_embedding(workload, devices)
    computing = [node for members in workload.atoms for node in members]
    check_latencies(computing, config.node_to_latency_mapping)
    check_rate(config.transfer_rate_bytes_per_sec)
    clock = Clock(workload, devices, config.node_to_latency_mapping, config.transfer_rate_bytes_per_sec)
    search = partition_by_cost if config.mode is PartitionMode.cost_aware else partition_by_swapping
    return search(workload, clock)


def _only_partition(workload: Workload, total: int, device: Device) -> Partition:
    partition = Partition(0)
    nodes = workload.graph_module.graph.nodes
    partition.nodes = {node for node in nodes if node.op != "output" and not is_guard(node)}
    partition.used_mem_bytes = total
    partition.logical_device_ids = [device.logical_id]
    return partition


def _given_partitions(workload: Workload, config: PartitionerConfig) -> list[Partition]:
    """The partitions of ``aot_based``, under their own numbers, in the order in which the mapping names them."""
    mapping = dict(config.node_to_partition_mapping)
    check_nodes(mapping, workload.graph_module)
    for node in workload.atom_of:  # an element of a tuple goes with the tuple
        if node not in mapping and is_getitem(node) and node.all_input_nodes[0] in mapping:
            mapping[node] = mapping[node.all_input_nodes[0]]
    mapping.update(_places_of_writes(workload, mapping))
    check_complete(mapping, workload, config)
    found: dict[int, Partition] = {}
    for node, number in mapping.items():
        if number not in found:
            found[number] = Partition(number)
            found[number].logical_device_ids = list(config.partition_to_logical_device_mapping[number])
        found[number].nodes.update([node, *pulled_by(node)])
    for partition in found.values():
        partition.recalculate_mem_size()
    return list(found.values())


def _places_of_writes(workload: Workload, mapping: Mapping[Node, int]) -> dict[Node, int]:
    """Partitions for copies to inputs and attributes that the mapping leaves out: of what each waits for, the last."""
    missing = [node for node in workload.atom_of if node not in mapping and writes_back(node)]
    if not missing:
        return {}
    place = _run_places(mapping)
    found: dict[Node, int] = {}
    for node in missing:
        atom = workload.atom_of[node]
        awaited = [other for each in (atom, *workload.before[atom]) for other in workload.atoms[each]]
        if homes := [mapping[other] for other in awaited if other in mapping]:
            found[node] = max(homes, key=place.__getitem__)
    return found


def _run_places(mapping: Mapping[Node, int]) -> dict[int, int]:
    """Where each partition stands in an order in which they can run."""
    partitions = {number: Partition(number) for number in mapping.values()}
    for node, number in mapping.items():
        partitions[number].nodes.add(node)
    set_parents_and_children(list(partitions.values()))
    return {partition.partition_id: place for place, partition in enumerate(run_order(partitions.values()))}


def _homes(workload: Workload, partitions: Sequence[Partition]) -> dict[Node, int]:
    """The partition of each node that goes into a submodule.

    A view of attributes goes where all its users are; with users in several partitions it stays at the top level.
    """
    found: dict[Node, dict[int, None]] = {}
    for partition in partitions:
        for node in partition.nodes:
            if node in workload.atom_of or node in workload.views:
                found.setdefault(node, {})[partition.partition_id] = None
    return {node: next(iter(homes)) for node, homes in found.items() if len(homes) == 1}


def _checked_assignment(workload: Workload, homes: Mapping[Node, int]) -> Assignment:
    try:
        return Assignment.of(workload.graph_module, homes, dependencies=workload.dependencies)
    except CycleError as error:
        raise also_as(CycleError, RuntimeError())(str(error), path=error.path, node=error.node) from None
