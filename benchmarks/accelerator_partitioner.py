"""The partitioner of ``torch.fx.experimental`` beside ours: the same module, devices, mode and latencies.

Both give partitions, the graph of partitions and a module that runs; the check runs it, and compares partitions where
the algorithm is the same, and latencies where ours searches further.
"""

from __future__ import annotations

import contextlib
import io
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.fx.experimental.accelerator_partitioner as torch_partitioner
import torch.fx.experimental.partitioner_utils as torch_utils
from torch.fx import GraphModule, symbolic_trace
from torch.fx.passes.graph_manipulation import get_size_of_all_nodes

from benchmarks.harness import Duel, case
from fxpasses.partitioners import accelerator

TORCH = types.SimpleNamespace(**{**vars(torch_utils), **vars(torch_partitioner)})


class Layers(torch.nn.Module):
    """Linear layers, each added to what came before it."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(count))
        for parameter in self.parameters():
            parameter.data *= 0.01  # a thousand layers do not overflow

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class Tables(torch.nn.Module):
    """Embedding tables beside dense layers."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.tables = torch.nn.ModuleList(torch.nn.EmbeddingBag(200 * count, 4) for _ in range(count))
        self.dense = torch.nn.Linear(4 * count, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dense(torch.cat([table(x) for table in self.tables], dim=1))


def _measured(module: torch.nn.Module, x: torch.Tensor) -> GraphModule:
    graph_module = symbolic_trace(module)
    get_size_of_all_nodes(graph_module, [x])
    return graph_module


def _partitioned(face: Any, module: GraphModule, mode: str, sizes: list[int], saturate: bool = False) -> Any:
    seconds = {
        node: face.NodeLatency(node.size_bytes.total_size, 2 * node.size_bytes.output_size)
        for node in module.graph.nodes
        if node.op not in ("placeholder", "get_attr", "output")
    }
    devices = [face.Device(f"dev_{number}", size, number) for number, size in enumerate(sizes)]
    config = face.PartitionerConfig(devices, face.PartitionMode[mode], 2.0, seconds, saturate_host=saturate)
    partitioner = face.Partitioner()
    with contextlib.redirect_stdout(io.StringIO()):  # torch's prints
        result = partitioner.partition_graph(module, module, config)
    mapping = accelerator.get_partition_to_latency_mapping(partitioner.partitions, seconds)
    latency = accelerator.get_latency_of_partitioned_graph(partitioner.partitions, mapping, 2.0)
    return partitioner.partitions, result, latency


def _duel(module: GraphModule, x: torch.Tensor, mode: str, sizes: list[int]) -> Duel:
    expected = module(x)

    def check(ours: Any, peer: Any) -> None:
        torch.testing.assert_close(ours[1].module_with_submodules(x), expected)
        if peer is None:
            return
        if mode == "kl_based":
            assert ours[2] <= peer[2]
        else:
            assert [(each.nodes, each.logical_device_ids) for each in ours[0]] == [
                (each.nodes, each.logical_device_ids) for each in peer[0]
            ]

    return Duel(
        ours=lambda: _partitioned(accelerator, module, mode, sizes),
        peer=lambda: _partitioned(TORCH, module, mode, sizes),
        check=check,
        peer_rounds=1,
    )


def _layers(count: int, mode: str, devices: int) -> Duel:
    x = torch.rand(2, 8)
    module = _measured(Layers(count), x)
    total = sum(node.size_bytes.total_size for node in module.graph.nodes if node.op != "output")
    return _duel(module, x, mode, [int(1.3 * total / devices) + 400] * devices)


@case("accelerator: sizes of all nodes from example inputs", sizes=(16, 64, 256), promise=1.0)
def sizes(size: int) -> Duel:
    x, model = torch.rand(2, 8), Layers(size)

    def measured(measure: Callable[[GraphModule, list[torch.Tensor]], None]) -> list[Any]:
        graph_module = symbolic_trace(model)
        measure(graph_module, [x])
        return [tuple(node.size_bytes) for node in graph_module.graph.nodes if node.op != "output"]

    def check(ours: Any, peer: Any) -> None:
        assert ours == peer

    return Duel(
        ours=lambda: measured(accelerator.get_size_of_all_nodes),
        peer=lambda: measured(get_size_of_all_nodes),
        check=check,
    )


@case("accelerator: size_based, 4 devices", sizes=(16, 64, 256, 1024), promise=2.0)
def by_size(size: int) -> Duel:
    return _layers(size, "size_based", 4)


@case("accelerator: cost_aware, 4 devices", sizes=(4, 8, 16), promise=5.0)
def by_cost(size: int) -> Duel:
    return _layers(size, "cost_aware", 4)


@case("accelerator: kl_based, 4 devices", sizes=(4, 16, 32), promise=5.0, rounds=3)
def by_swapping(size: int) -> Duel:
    return _layers(size, "kl_based", 4)


@case("accelerator: sparse_nn, 4 devices", sizes=(8, 32, 64), promise=2.0)
def by_embedding(size: int) -> Duel:
    x = torch.randint(500, (2, 3))
    module = _measured(Tables(size), x)
    tables, rest = 3_250 * size * -(-size // 3), 600 * size  # another table would not fit beside the rest
    return _duel(module, x, "sparse_nn", [tables + rest] * 4)
