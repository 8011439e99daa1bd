"""The same user code runs with torch's accelerator partitioner and with this package's; only the import differs."""

from __future__ import annotations

import copy
import operator
import pickle
import types
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.fx.experimental.accelerator_partitioner as torch_partitioner
import torch.fx.experimental.partitioner_utils as torch_utils
import torch.fx.passes.graph_manipulation as torch_sizes
from torch.fx import GraphModule, symbolic_trace

from fxpasses.partitioners import accelerator

TORCH = types.SimpleNamespace(**{**vars(torch_sizes), **vars(torch_utils), **vars(torch_partitioner)})
FACES = [pytest.param(TORCH, id="torch"), pytest.param(accelerator, id="ours")]

pytestmark = pytest.mark.parametrize("face", FACES)


class Adding(torch.nn.Module):
    """A linear layer between additions of constants."""

    def __init__(self, forward: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.one, self.two, self.three = torch.rand(4), torch.rand(4), torch.rand(4)
        self.body = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self, x)


def two_branches(self: Adding, x: torch.Tensor) -> torch.Tensor:
    first = x + self.one
    second = first + self.two
    return second + (second + self.linear(first))


def wide(self: Adding, x: torch.Tensor) -> torch.Tensor:
    first = x + self.one
    second = first + self.two
    third = second + self.three
    return third + (second + self.linear(first))


def with_late_constant(self: Adding, x: torch.Tensor) -> torch.Tensor:
    first = x + self.one
    second = first + self.two
    _unused = second + self.linear(first)
    return second + self.three


def traced(face: Any, module: torch.nn.Module, *inputs: torch.Tensor) -> GraphModule:
    graph_module = symbolic_trace(module)
    face.get_size_of_all_nodes(graph_module, list(inputs))
    return graph_module


def devices(face: Any, *sizes: int) -> list[Any]:
    return [face.Device(f"dev_{number}", size, number) for number, size in enumerate(sizes)]


def latencies(face: Any, graph_module: GraphModule, factor: float | None = None) -> dict[Any, Any]:
    """Seconds from sizes: what holds weights computes as long as its output has bytes, the rest ``factor`` times."""
    found = {}
    for node in graph_module.graph.nodes:
        if node.op not in ("placeholder", "get_attr", "output"):
            output, total = node.size_bytes
            computing = output if total != output else (1 if factor is None else factor * total)
            found[node] = face.NodeLatency(total, computing)
    return found


def partition(
    face: Any, graph_module: GraphModule, module: torch.nn.Module, devs: Sequence[Any], **options: Any
) -> tuple[Any, Any]:
    partitioner = face.Partitioner()
    result = partitioner.partition_graph(graph_module, module, face.PartitionerConfig(devs, **options))
    return partitioner, result


def test_a_module_that_fits_goes_to_the_largest_device(face: Any) -> None:
    """One partition, on the device with the most memory."""
    module = torch.nn.Sequential(torch.nn.ReLU())
    x = torch.rand(1)
    graph_module = traced(face, module, x)

    _, result = partition(face, graph_module, module, devices(face, 125, 150, 125))

    assert [[1]] == [node.logical_device_ids for node in result.dag.nodes]
    assert torch.equal(graph_module(x), result.module_with_submodules(x))


def test_too_little_memory_is_a_runtime_error(face: Any) -> None:
    """All devices together are smaller than the module."""
    module = Adding(two_branches)
    graph_module = traced(face, module, torch.rand(4))

    with pytest.raises(RuntimeError):
        partition(face, graph_module, module, devices(face, 4, 4))


def test_a_node_that_no_device_takes_is_a_runtime_error(face: Any) -> None:
    """Together the devices are large enough, but none takes the linear layer."""
    module = Adding(two_branches)
    graph_module = traced(face, module, torch.rand(4))

    with pytest.raises(RuntimeError):
        partition(face, graph_module, module, devices(face, 40, 40, 40, 40, 40, 40))


def test_no_devices_and_no_operations_are_runtime_errors(face: Any) -> None:
    """There has to be something to place, and a place for it."""
    module = Adding(two_branches)
    graph_module = traced(face, module, torch.rand(4))
    empty = traced(face, torch.nn.Sequential(), torch.rand(4))

    with pytest.raises(RuntimeError, match="No devices"):
        partition(face, graph_module, module, [])
    with pytest.raises(RuntimeError, match="No Partition since no operations"):
        partition(face, empty, empty, devices(face, 100))


def test_removing_a_node_gives_its_bytes_back(face: Any) -> None:
    """``remove_node`` takes the constant along that only this node used."""
    module = Adding(lambda self, x: (x + self.one) + self.two)
    graph_module = traced(face, module, torch.rand(4))
    partitioner, _ = partition(face, graph_module, module, devices(face, 1000))
    whole = partitioner.partitions[0]
    before = whole.used_mem_bytes

    whole.remove_node(next(node for node in whole.nodes if node.name == "add_1"))

    assert (80, 48) == (before, whole.used_mem_bytes)
    assert {"x", "one", "add"} == {node.name for node in whole.nodes}


def test_by_size_devices_are_filled_one_after_the_other(face: Any) -> None:
    """Each device takes nodes in graph order until the next does not fit."""
    module = Adding(lambda self, x: self.linear(x + self.one) + self.two)
    x = torch.rand(4)
    graph_module = traced(face, module, x)

    _, result = partition(face, graph_module, module, devices(face, 125, 125, 125), mode=face.PartitionMode.size_based)

    assert [[0], [1], [2]] == [node.logical_device_ids for node in result.dag.nodes]
    assert torch.equal(graph_module(x), result.module_with_submodules(x))


def test_when_no_device_is_left_single_nodes_go_where_there_is_room(face: Any) -> None:
    """Two devices hold three partitions: the last one shares a device with the first."""

    def forward(self: Adding, x: torch.Tensor) -> torch.Tensor:
        linear = self.linear(x + self.one)
        return (self.two + x) + linear

    module = Adding(forward)
    x = torch.rand(4)
    graph_module = traced(face, module, x)

    _, result = partition(face, graph_module, module, devices(face, 120, 160))

    assert {"submod_0": [0], "submod_1": [1], "submod_2": [0]} == {
        str(node): node.logical_device_ids for node in result.dag.nodes
    }
    assert torch.equal(graph_module(x), result.module_with_submodules(x))


class Recommender(torch.nn.Module):
    """Dense layers beside embedding tables of 80 and 160 kB."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = torch.nn.Sequential(*[torch.nn.Linear(4, 4), torch.nn.ReLU()] * 4)
        self.top = torch.nn.Sequential(*[torch.nn.Linear(24, 24), torch.nn.ReLU()] * 3)
        rows = (5_000, 10_000, 10_000, 10_000, 5_000)
        self.tables = torch.nn.ModuleList([torch.nn.EmbeddingBag(count, 4, mode="sum") for count in rows])

    def forward(self, a: torch.Tensor, b: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        dense = self.bottom(a)
        rows = [torch.full((8,), 3) + b for _ in self.tables]
        looked_up = [table(row, offset) for table, row in zip(self.tables, rows, strict=True)]
        return self.top(torch.cat([dense, *looked_up], dim=1))


def test_embeddings_are_spread_and_the_rest_is_copied_to_each_device(face: Any) -> None:
    """Tables are joined while they fit a device; all other partitions are on each device that holds tables."""
    module = Recommender()
    inputs = (torch.rand(2, 4), torch.arange(8), torch.tensor([0, 3]))
    graph_module = traced(face, module, *inputs)

    partitioner, result = partition(
        face, graph_module, module, devices(face, *[340_000] * 3), mode=face.PartitionMode.sparse_nn
    )

    assert [[0], [0, 1], [0, 1], [1]] == sorted(node.logical_device_ids for node in result.dag.nodes)
    assert torch.equal(graph_module(*inputs), result.module_with_submodules(*inputs))
    tables = [{node.name for node in each.nodes if "tables" in node.name} for each in partitioner.partitions]
    assert [{"tables_0", "tables_1", "tables_2", "tables_3", "tables_4"}] == [set().union(*tables)]


def test_the_latency_of_a_partition_is_that_of_its_critical_path(face: Any) -> None:
    """Memory, computing and the longer of the two are added up along the longest path."""
    module = Adding(two_branches)
    graph_module = traced(face, module, torch.rand(4))
    seconds = latencies(face, graph_module, 2.0)
    partitioner, result = partition(face, graph_module, module, devices(face, 200, 200))

    found = [face.get_latency_of_one_partition(each, seconds) for each in partitioner.partitions]

    assert [(128.0, 80.0, 160.0), (16.0, 32.0, 32.0)] == found
    mapping = face.get_partition_to_latency_mapping(partitioner.partitions, seconds)
    assert dict(zip(partitioner.partitions, found, strict=True)) == mapping
    comm = face.get_comm_latency_between(*partitioner.partitions, 2)
    assert 16.0 == comm
    assert 160.0 + 16.0 + 32.0 == face.get_latency_of_partitioned_graph(partitioner.partitions, mapping, 2)
    assert 2 == len(result.dag.nodes)


def test_cost_aware_ends_on_the_critical_path_with_two_copies(face: Any) -> None:
    """The linear layer fills a device, so two values have to cross; nothing else does on the critical path."""
    module = Adding(wide)
    x = torch.rand(4)
    graph_module = traced(face, module, x)
    seconds = latencies(face, graph_module)

    partitioner, result = partition(
        face,
        graph_module,
        module,
        devices(face, 125, 125, 125, 125),
        mode=face.PartitionMode.cost_aware,
        transfer_rate_bytes_per_sec=2,
        node_to_latency_mapping=seconds,
    )

    mapping = face.get_partition_to_latency_mapping(partitioner.partitions, seconds)
    assert 160.0 == face.get_latency_of_partitioned_graph(partitioner.partitions, mapping, 2)
    assert torch.equal(graph_module(x), result.module_with_submodules(x))


def test_kl_based_keeps_partitions_by_size_that_no_swap_improves(face: Any) -> None:
    """Moves and swaps begin at the partitions by size."""
    module = Adding(with_late_constant)
    x = torch.rand(4)
    graph_module = traced(face, module, x)
    seconds = latencies(face, graph_module, 2.0)

    partitioner, result = partition(
        face,
        graph_module,
        module,
        devices(face, 200, 200),
        mode=face.PartitionMode.kl_based,
        transfer_rate_bytes_per_sec=2,
        node_to_latency_mapping=seconds,
    )

    assert [176, 96] == [node.size_bytes for node in result.dag.nodes]
    mapping = face.get_partition_to_latency_mapping(partitioner.partitions, seconds)
    assert 176.0 == face.get_latency_of_partitioned_graph(partitioner.partitions, mapping, 2)
    assert torch.equal(graph_module(x), result.module_with_submodules(x))


def test_aot_based_takes_partitions_and_devices_as_given(face: Any) -> None:
    """Each node in a partition of its own, all on one device."""
    module = Adding(lambda self, x: self.two + (x + self.one))
    x = torch.rand(4)
    graph_module = traced(face, module, x)
    computing = [node for node in graph_module.graph.nodes if node.op.startswith("call")]

    _, result = partition(
        face,
        graph_module,
        module,
        devices(face, 200),
        mode=face.PartitionMode.aot_based,
        node_to_partition_mapping={node: number for number, node in enumerate(computing)},
        partition_to_logical_device_mapping={number: [0] for number in range(len(computing))},
    )

    assert [(48, [0]), (48, [0])] == [(node.size_bytes, node.logical_device_ids) for node in result.dag.nodes]
    assert torch.equal(graph_module(x), result.module_with_submodules(x))


def test_saturating_the_host_copies_partitions_to_idle_devices(face: Any) -> None:
    """Each used device is copied to the smallest idle one that holds as much."""
    module = Adding(two_branches)
    x = torch.rand(4)
    graph_module = traced(face, module, x)

    partitioner, result = partition(
        face, graph_module, module, devices(face, 200, 200, 100, 100, 200, 100), saturate_host=True
    )

    assert [[0, 4], [1, 2]] == [each.logical_device_ids for each in partitioner.partitions]
    assert torch.equal(graph_module(x), result.module_with_submodules(x))


def test_the_graph_of_partitions_names_inputs_and_outputs(face: Any) -> None:
    """A partition with several results has the nodes that take them as outputs."""
    module = Adding(two_branches)
    graph_module = traced(face, module, torch.rand(4))

    _, result = partition(face, graph_module, module, devices(face, 200, 200))
    first, second = result.dag.nodes

    assert ("submod_0", "submod_1") == (str(first), str(second))
    assert ["x", "one", "two"] == [node.name for node in first.input_nodes]
    assert 2 == len(first.output_nodes) == len(second.input_nodes)
    assert ["submod_1"] == [node.name for node in second.output_nodes]
    assert (192, 48) == (first.size_bytes, second.size_bytes)


def parts_by_hand(face: Any) -> tuple[list[Any], dict[str, Any]]:
    """Three partitions of ``wide``: first, second and third | linear | the rest."""
    graph_module = traced(face, Adding(wide), torch.rand(4))
    named = {node.name: node for node in graph_module.graph.nodes}
    groups = [["add", "add_1"], ["linear"], ["add_2", "add_3", "add_4"]]
    partitions = []
    for number, names in enumerate(groups):
        each = face.Partition(number)
        for name in names:
            each.add_node(named[name])
        partitions.append(each)
    return partitions, named


def test_partitions_made_by_hand_know_their_bytes_and_relations(face: Any) -> None:
    """Inputs and constants are pulled in; values of other partitions count once for each node that reads them."""
    partitions, named = parts_by_hand(face)

    face.reorganize_partitions(partitions)
    face.get_bfs_level_partition(partitions)

    assert [80, 112, 112] == [each.used_mem_bytes for each in partitions]
    assert [{1, 2}, {2}, set()] == [{child.partition_id for child in each.children} for each in partitions]
    assert [set(), {0}, {0, 1}] == [{parent.partition_id for parent in each.parents} for each in partitions]
    assert [0, 1, 2] == [each.bfs_level for each in partitions]
    assert 2 == face.get_node_to_partition_mapping(partitions)[named["add_4"]]
    assert [False] * 3 == [face.check_dependency(each) for each in partitions]


def test_combining_two_partitions_can_close_a_circle(face: Any) -> None:
    """The combined partition stands last; ``check_dependency`` says that it waits for itself."""
    partitions, _ = parts_by_hand(face)
    first, linear, last = partitions

    face.combine_two_partitions(first, last, partitions)

    assert [linear, partitions[-1]] == partitions
    assert (0, 1) == tuple(each.partition_id for each in partitions)
    assert face.check_dependency(partitions[-1])


def test_devices_are_given_to_the_fullest_that_fits(face: Any) -> None:
    """What is on a device already need not be sent to it; without room, the answer is False."""
    partitions, _ = parts_by_hand(face)
    face.reorganize_partitions(partitions)
    roomy = devices(face, 300, 150)

    assert face.get_device_to_partitions_mapping(partitions, roomy)
    assert [[1], [0], [0]] == [each.logical_device_ids for each in partitions]
    held, left, homeless = face.get_device_partition_stats(partitions, roomy)
    assert ([2, 1], []) == ([len(held[device]) for device in roomy], homeless)
    assert [76, 70] == [left[device] for device in roomy]
    face.reset_partition_device(partitions)
    assert not face.get_device_to_partitions_mapping(partitions, devices(face, 100, 100))
    assert {0: roomy[0], 1: roomy[1]} == face.get_logical_id_to_device(roomy)


def test_sizes_are_output_and_total(face: Any) -> None:
    """A module counts its parameters, everything else its result."""
    graph_module = traced(face, Adding(two_branches), torch.rand(4))

    sizes = {node.name: tuple(node.size_bytes) for node in graph_module.graph.nodes if node.op != "output"}

    assert (16, 96) == sizes["linear"]
    assert {(16, 16)} == {size for name, size in sizes.items() if name != "linear"}
    node = next(iter(graph_module.graph.nodes))
    assert (16, 16) == tuple(face.get_size_of_node(graph_module, node))
    assert torch.Size([4]) == face.get_tensor_meta(node).shape
    assert 48 == face.get_extra_size_of(
        graph_module.graph.find_nodes(op="call_function", target=operator.add)[0], set()
    )


def test_the_modes_have_the_same_names_and_values(face: Any) -> None:
    """Configurations that were written down as numbers still mean the same."""
    modes = {mode.name: mode.value for mode in face.PartitionMode}

    assert {"size_based": 0, "sparse_nn": 1, "cost_aware": 2, "kl_based": 3, "aot_based": 4} == modes
    assert (
        "devices",
        "mode",
        "transfer_rate_bytes_per_sec",
        "node_to_latency_mapping",
        "node_to_partition_mapping",
        "partition_to_logical_device_mapping",
        "saturate_host",
    ) == face.PartitionerConfig._fields


def test_a_configuration_can_be_copied_and_sent(face: Any) -> None:
    config = face.PartitionerConfig([face.Device("a", 10, 0)], face.PartitionMode.cost_aware, 2.0)

    assert config == pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config._replace(mode=config.mode)
    assert {} == config._asdict()["node_to_latency_mapping"]


def test_targets_are_replaced_everywhere(face: Any) -> None:
    """All additions of two nodes become products; the other nodes stay."""
    graph_module = symbolic_trace(lambda x, y: (x + y) + torch.relu(x + x))
    x, y = torch.rand(4), torch.rand(4)

    face.replace_target_nodes_with(graph_module, "call_function", operator.add, "call_function", operator.mul)

    torch.testing.assert_close(graph_module(x, y), (x * y) * torch.relu(x * x))
    assert ["x", "y", "add", "add_1", "relu", "add_2", "output"] == [node.name for node in graph_module.graph.nodes]


class Sliced(torch.nn.Module):
    """Embeddings of which a piece is used."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (58, 182, 45, 166, 26, 39)
        self.tables = torch.nn.ModuleList(torch.nn.Embedding(size, 4) for size in sizes)
        self.top = torch.nn.Linear(4 * len(sizes) + 4, 4)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.top(torch.cat([dense, *(table(ids)[:1] for table in self.tables)], dim=1))


def test_a_piece_of_a_tensor_is_a_node_of_its_own(face: Any) -> None:
    """It was taken for an element of a tuple, and had to go with the table: nothing fitted."""
    module, inputs = Sliced(), (torch.rand(1, 4), torch.arange(5))
    graph_module = traced(face, module, *inputs)

    partitioner, result = partition(
        face, graph_module, module, devices(face, *[8_014] * 4), mode=face.PartitionMode.sparse_nn
    )

    tables = [{node.name for node in each.nodes if "tables" in node.name} for each in partitioner.partitions]
    pieces = [{node.name for node in each.nodes if "getitem" in node.name} for each in partitioner.partitions]
    assert not any(table and piece for table, piece in zip(tables, pieces, strict=True))
    assert torch.equal(graph_module(*inputs), result.module_with_submodules(*inputs))
