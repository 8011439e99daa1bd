"""Where filling devices one after the other fails: what has a placement gets one, and what has none is proven."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, symbolic_trace

from fxpasses.devices import Device
from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners.accelerator import (
    NodeLatency,
    Partitioner,
    PartitionerConfig,
    PartitionMode,
    exhausting,
    get_extra_size_of,
    get_size_of_all_nodes,
)
from fxpasses.partitioners.accelerator.exhausting import try_all
from fxpasses.partitioners.accelerator.order_cuts import cut_order, orders
from fxpasses.partitioners.accelerator.packing import pack
from fxpasses.partitioners.accelerator.workload import Workload

MODES = (PartitionMode.size_based, PartitionMode.cost_aware, PartitionMode.kl_based)


class ReadTwice(nn.Module):
    """One value is read three times, so that what crosses counts more than what a device holds of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.randn(8, 8)) for _ in range(2))
        self.bias = nn.Parameter(torch.randn(8))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        left = b @ self.first
        right = b @ self.second
        torch.mul(b, a)
        relu = torch.relu(right)
        torch.relu(relu)
        torch.relu(torch.mul(relu, relu))
        return relu + self.bias + left


class BackAndForth(nn.Module):
    """It fits two devices only if both send values to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.biases = nn.ParameterList(torch.randn(8) for _ in range(2))
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        add = a + self.biases[0]
        mul = torch.mul(add, add)
        other = b + self.biases[1]
        self.linears[0](add)
        right = self.linears[1](mul)
        torch.mul(other, add)
        relu = torch.relu(right)
        relu @ self.weight
        return torch.mul(relu, b)


class Scrambled(nn.Module):
    """Some operators on the results of earlier ones, chosen by a seed."""

    def __init__(self, seed: int, operators: int) -> None:
        super().__init__()
        chance = random.Random(seed)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.weights = nn.ParameterList(torch.randn(4, 4) for _ in range(operators))
        self.plan = [(chance.randrange(5), chance.randrange(99), chance.randrange(99)) for _ in range(operators)]

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for number, (kind, one, other) in enumerate(self.plan):
            first, second = values[-1 - one % min(3, len(values))], values[other % len(values)]
            if kind == 0:
                values.append(self.layers[one % 2](first))
            elif kind == 1:
                values.append(first @ self.weights[number])
            elif kind == 2:
                values.append(torch.relu(first))
            else:
                values.append(first + second)
        return values[-1]


class Lanes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        first, second = torch.relu(x), torch.sigmoid(x)
        one, other = first, second
        for _ in range(40):
            one, other = one + first, other + second
        return one + other


def devices(*sizes: int) -> list[Device]:
    return [Device(f"dev_{number}", size, number) for number, size in enumerate(sizes)]


def measured(model: nn.Module, *inputs: Tensor) -> GraphModule:
    graph = symbolic_trace(model)
    get_size_of_all_nodes(graph, inputs)
    return graph


def partitioned(graph: GraphModule, *sizes: int, **options: Any) -> tuple[Partitioner, Any]:
    options = {"node_to_latency_mapping": dict.fromkeys(graph.graph.nodes, NodeLatency(1, 1)), **options}
    config = PartitionerConfig(devices(*sizes), transfer_rate_bytes_per_sec=100, **options)
    partitioner = Partitioner()
    return partitioner, partitioner.partition_graph(graph, None, config)


def on_devices(partitioner: Partitioner) -> dict[int, int]:
    """The bytes that each device needs, as the public functions count them."""
    held: dict[int, set[Any]] = {}
    for partition in partitioner.partitions:
        (device,) = partition.logical_device_ids
        held.setdefault(device, set()).update(partition.nodes)
    return {device: sum(get_extra_size_of(node, nodes) for node in nodes) for device, nodes in held.items()}


def by_device(workload: Workload, home: Sequence[int]) -> dict[int, int]:
    return {
        device: workload.group(atom for atom, found in enumerate(home) if found == device).used for device in set(home)
    }


def fits(used: dict[int, int], sizes: Sequence[int]) -> bool:
    return all(size <= sizes[device] for device, size in used.items())


TWO = (torch.randn(2, 8), torch.randn(2, 8))


@pytest.mark.parametrize("mode", MODES)
def test_a_cut_of_the_graphs_own_order_is_found(mode: PartitionMode) -> None:
    """Behind the third node it fits; the solvers count a value once that the partitioner counts for each reader."""
    model = ReadTwice()
    graph = measured(model, *TWO)

    partitioner, result = partitioned(graph, 900, 600, mode=mode)

    assert fits(on_devices(partitioner), (900, 600))
    assert torch.equal(model(*TWO), result.module_with_submodules(*TWO))


def test_the_cut_counts_the_same_bytes_as_given_partitions_do() -> None:
    graph = measured(ReadTwice(), *TWO)
    computing = [node for node in graph.graph.nodes if node.op == "call_function"]
    given = {
        "mode": PartitionMode.aot_based,
        "node_to_partition_mapping": {node: int(place > 2) for place, node in enumerate(computing)},
        "partition_to_logical_device_mapping": {0: [0], 1: [1]},
    }

    _, found = partitioned(graph, 900, 600)
    _, by_hand = partitioned(graph, 900, 600, **given)

    assert [832, 544] == [node.size_bytes for node in found.dag.nodes]
    assert [832, 544] == [node.size_bytes for node in by_hand.dag.nodes]


@pytest.mark.parametrize("mode", MODES)
def test_devices_take_turns_where_only_that_fits(mode: PartitionMode) -> None:
    """No acyclic pair of partitions fits; each device counts what others send it, and that is within its memory."""
    model = BackAndForth()

    partitioner, result = partitioned(measured(model, *TWO), 900, 900, mode=mode)

    assert len(partitioner.partitions) > 2
    assert fits(on_devices(partitioner), (900, 900))
    assert torch.equal(model(*TWO), result.module_with_submodules(*TWO))


@pytest.mark.parametrize("mode", MODES)
def test_that_nothing_fits_is_proven_in_small_graphs(mode: PartitionMode) -> None:
    graph = measured(BackAndForth(), *TWO)

    with pytest.raises(InfeasibleError) as caught:
        partitioned(graph, 860, 860, mode=mode)

    assert (
        "Cannot Get a Valid Partition to Logical Device Mapping: the module needs 1.56 KiB on one device, more where "
        "values are sent, and each way to share it out over 'dev_0' of 860 B, 'dev_1' of 860 B needs more than some "
        "device has; give a device more memory"
    ) == str(caught.value)
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("mode", MODES)
def test_a_search_without_an_answer_claims_no_proof(mode: PartitionMode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exhausting, "MOST_STEPS", 5)

    with pytest.raises(
        PlacementError, match=r"It is not proven that no placement exists: give a device more"
    ) as caught:
        partitioned(measured(BackAndForth(), *TWO), 860, 860, mode=mode)

    assert not isinstance(caught.value, InfeasibleError)
    assert isinstance(caught.value, RuntimeError)


def test_tables_that_are_not_spread_claim_no_proof() -> None:
    """``sparse_nn`` joins small partitions as they come; another way may need fewer devices."""

    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(100, 4) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([table(x) for table in self.tables])

    graph = measured(Tables(), torch.arange(4))

    with pytest.raises(PlacementError, match=r"Need 3 devices, but only 2 provided\. It is not proven") as caught:
        partitioned(graph, 2700, 2700, mode=PartitionMode.sparse_nn)

    assert not isinstance(caught.value, InfeasibleError)


@pytest.mark.parametrize("seed", range(40))
def test_a_small_graph_is_placed_if_and_only_if_it_can_be(seed: int) -> None:
    """Against all ways to give each node a device; what is found runs, and keeps each memory."""
    chance = random.Random(seed)
    workload = Workload(measured(Scrambled(seed, chance.randint(3, 7)), torch.randn(2, 4)))
    total = workload.total_bytes()
    sizes = [int(total * chance.uniform(0.4, 0.8)) for _ in range(chance.randint(2, 3))]
    homes = itertools.product(range(len(sizes)), repeat=len(workload.atoms))
    exists = any(fits(by_device(workload, home), sizes) for home in homes)

    try:
        groups = pack(workload, devices(*sizes))
    except InfeasibleError:
        groups = None

    assert exists == bool(groups)
    if groups:
        device_of = [group.device_ids[0] for group in groups]
        assert fits(by_device(workload, [device_of[group] for group in workload.homes(groups)]), sizes)
        assert workload.order(groups) is not None


@pytest.mark.parametrize("seed", range(40))
def test_a_cut_is_found_if_and_only_if_the_order_has_one(seed: int) -> None:
    """Against all cuts; devices of equal memory are the same."""
    chance = random.Random(seed)
    workload = Workload(measured(Scrambled(seed, chance.randint(3, 8)), torch.randn(2, 4)))
    sizes = [int(workload.total_bytes() * chance.choice((0.4, 0.6, 0.8))) for _ in range(chance.randint(2, 3))]
    length = len(workload.atoms)
    cuts = [
        home
        for order in itertools.permutations(range(len(sizes)))
        for places in itertools.combinations_with_replacement(range(length + 1), len(sizes) - 1)
        for home in [[order[sum(atom >= place for place in places)] for atom in range(length)]]
        if fits(by_device(workload, home), sizes)
    ]

    groups = cut_order(workload, range(length), devices(*sizes))

    assert bool(cuts) == bool(groups)
    if groups:
        assert list(range(length)) == [atom for group in groups for atom in group.atoms]
        assert len(groups) == len({group.device_ids[0] for group in groups}) == min(len(set(home)) for home in cuts)
        assert all(group.used <= sizes[group.device_ids[0]] for group in groups)


def test_where_no_cut_of_the_own_order_fits_lanes_are_told_apart() -> None:
    """Two stand intertwined; each reads its own root over and over, which would be sent for each reader."""
    workload = Workload(measured(Lanes(), torch.randn(2, 4)))
    halves = devices(*[workload.total_bytes() // 2 + 100] * 2)
    own, *_others = orders(workload)

    groups = pack(workload, halves)

    assert cut_order(workload, own, halves) is None
    assert try_all(workload, halves) is None
    assert groups is not None
    assert all(group.used <= workload.total_bytes() // 2 + 100 for group in groups)
    assert workload.order(groups) is not None


def test_many_nodes_on_many_devices_are_cut_without_recursion() -> None:
    """Two thousand nodes in runs of about 250 for eight devices, of which only the sum is large enough."""
    model = nn.Sequential(*[nn.ReLU() for _ in range(2000)])
    workload = Workload(measured(model, torch.randn(4)))

    groups = cut_order(workload, range(2000), devices(*[251 * 16] * 4, *[252 * 16] * 4))

    assert groups is not None
    assert 8 == len(groups)
    assert 2000 == sum(len(group.atoms) for group in groups)
