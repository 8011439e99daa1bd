"""Partitioners against torch's (and ExecuTorch's, where it is installed): proposals, fusing, source partitions."""

from __future__ import annotations

import functools
import importlib.util
import operator
import random
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner as TorchPartitioner
from torch.fx.passes.utils.source_matcher_utils import get_source_partitions as torch_source_partitions

from benchmarks.harness import Duel, case
from benchmarks.models import narrow_llama
from fxpasses.partitioners import (
    Assignment,
    CapabilityBasedPartitioner,
    GroupBasedPartitioner,
    OperatorSupportBase,
    create_op_support,
    get_source_partitions,
)

Built = tuple[GraphModule, OperatorSupportBase]


def finished(graph: Graph, verdicts: dict[Node, bool]) -> Built:
    """The module of a graph, its leaves as outputs, and the support that a dictionary says."""
    graph.output(tuple(node for node in graph.nodes if not node.users))
    return GraphModule(nn.Module(), graph), create_op_support(lambda _, node: verdicts.get(node, False))


@functools.cache
def random_dag(size: int, width: int = 30) -> Built:
    """A layered DAG: each node reads one or two nodes of the two layers before; 70 % are supported."""
    rng = random.Random(size)
    graph = Graph()
    values = [graph.placeholder("x")]
    verdicts = {}
    for _ in range(size):
        taken = tuple(rng.choice(values[-2 * width :]) for _ in range(rng.choice([1, 2])))
        node = graph.call_function(torch.add if len(taken) == 2 else torch.sin, taken)
        verdicts[node] = rng.random() < 0.7
        values.append(node)
    return finished(graph, verdicts)


@functools.cache
def alternating_chain(size: int) -> Built:
    """Supported and unsupported calls in turn: half as many parts as nodes."""
    graph = Graph()
    value = graph.placeholder("x")
    verdicts = {}
    for place in range(size):
        value = graph.call_function(torch.sin, (value,))
        verdicts[value] = place % 2 == 0
    return finished(graph, verdicts)


@functools.cache
def residual_net(size: int) -> Built:
    """Blocks of four calls with a skip edge around them; the last call of each fifth block is unsupported."""
    graph = Graph()
    value = graph.placeholder("x")
    verdicts = {}
    for block in range(size // 5):
        skip = value
        for place in range(4):
            value = graph.call_function(torch.sin, (value,))
            verdicts[value] = place < 3 or block % 5 != 0
        value = graph.call_function(operator.add, (value, skip))
        verdicts[value] = True
    return finished(graph, verdicts)


@functools.cache
def llama(layers: int) -> Built:
    """An exported Llama with core operators; means and softmaxes are unsupported."""
    program = torch.export.export(narrow_llama(layers), (torch.zeros(1, 16, dtype=torch.long),))
    module = program.run_decompositions().graph_module
    refused = ("mean", "softmax", "scaled_dot_product")

    def support(_: Any, node: Node) -> bool:
        return node.op == "call_function" and not any(word in str(node.target) for word in refused)

    return module, create_op_support(support)


def same_list(ours: list[Any], theirs: list[Any] | None) -> None:
    """The same partitions, in the same order; convex by our own test."""
    if theirs is not None:
        covered, their_covered = (sum(part.size() for part in parts) for parts in (ours, theirs))
        assert covered >= their_covered, (covered, their_covered)
        assert len(ours) <= len(theirs), (len(ours), len(theirs))
        if (covered, len(ours)) == (their_covered, len(theirs)):
            assert [list(part.nodes) for part in ours] == [list(part.nodes) for part in theirs]


def proposals(built: Built, *, peer: bool = True) -> Duel:
    """Our proposal against torch's."""
    module, support = built

    def ours() -> list[Any]:
        return CapabilityBasedPartitioner(module, support, allows_single_node_partition=True).propose_partitions()

    def theirs() -> list[Any]:
        return TorchPartitioner(module, support, allows_single_node_partition=True).propose_partitions()

    return Duel(ours, theirs if peer else None, same_list, peer_rounds=1)


@case("propose: random layered DAG, 70 % supported", sizes=(300, 1_000, 3_000), promise=1000)
def propose_random_dag(size: int) -> Duel:
    return proposals(random_dag(size))


@case("propose: alternating chain", sizes=(300, 1_000, 2_000))
def propose_chain(size: int) -> Duel:
    return proposals(alternating_chain(size))


@case("propose: residual net", sizes=(300, 1_000, 2_000))
def propose_residual(size: int) -> Duel:
    return proposals(residual_net(size))


@case("propose: exported Llama of so many layers", sizes=(4, 32), promise=200)
def propose_llama(layers: int) -> Duel:
    return proposals(llama(layers))


@case("propose: random layered DAG, without a peer", sizes=(10_000, 100_000), rounds=3)
def propose_large_dag(size: int) -> Duel:
    return proposals(random_dag(size), peer=False)


@case("propose: alternating chain, without a peer", sizes=(10_000, 100_000), rounds=3)
def propose_large_chain(size: int) -> Duel:
    return proposals(alternating_chain(size), peer=False)


@case("propose: without horizontal merging, without a peer", sizes=(10_000, 100_000), rounds=3)
def propose_vertically(size: int) -> Duel:
    module, support = random_dag(size)

    def ours() -> list[Any]:
        return CapabilityBasedPartitioner(module, support, True, skip_horizontal_fusion=True).propose_partitions()

    def check(found: list[Any], _: Any) -> None:
        Assignment.of(module, [list(part.nodes) for part in found])

    return Duel(ours, None, check)


@case("fuse: alternating chain (half as many parts)", sizes=(1_000, 10_000, 100_000), rounds=1)
def fuse_chain(size: int) -> Duel:
    def prepare() -> tuple[CapabilityBasedPartitioner, list[Any]]:
        module, support = alternating_chain.__wrapped__(size)
        partitioner = CapabilityBasedPartitioner(module, support, allows_single_node_partition=True)
        return partitioner, partitioner.propose_partitions()

    def check(fused: GraphModule, _: Any) -> None:
        assert sum(node.op == "call_module" for node in fused.graph.nodes) == size // 2

    return Duel(lambda given: given[0].fuse_partitions(given[1]), None, check, prepare=prepare)


def sourced_graph(size: int) -> Graph:
    """Calls of two modules in turn, each of many nodes."""
    graph = Graph()
    value = graph.placeholder("x")
    for place in range(size):
        value = graph.call_function(torch.sin, (value,))
        kind = nn.Linear if place < size // 2 else nn.ReLU
        value.meta["nn_module_stack"] = {kind.__name__: (kind.__name__, kind)}
        value.meta["source_fn_stack"] = [(kind.__name__, kind)]
    graph.output(value)
    return graph


@case("source partitions: two modules of many nodes", sizes=(1_000, 10_000), promise=100)
def find_sources(size: int) -> Duel:
    graph = sourced_graph(size)
    wanted = [nn.Linear, nn.ReLU]

    def check(ours: Any, theirs: Any) -> None:
        assert {source: [part.nodes for part in parts] for source, parts in ours.items()} == {
            source: [part.nodes for part in parts] for source, parts in theirs.items()
        }

    return Duel(
        lambda: get_source_partitions(graph, wanted),
        lambda: torch_source_partitions(graph, wanted),
        check,
        peer_rounds=1,
    )


if importlib.util.find_spec("executorch") is not None:

    @case("propose with groups: random layered DAG, against ExecuTorch", sizes=(300, 1_000, 3_000))
    def propose_groups(size: int) -> Duel:
        from executorch.exir.backend.canonical_partitioners.group_partitioner import (
            GroupBasedPartitioner as ExecuTorchPartitioner,
        )

        module, support = random_dag(size)

        def check(ours: list[Any], theirs: list[Any] | None) -> None:
            assert theirs is None or len(ours) <= len(theirs)

        return Duel(
            lambda: GroupBasedPartitioner(module, support, True, node_groups=[]).propose_partitions(),
            lambda: ExecuTorchPartitioner(module, support, True).propose_partitions(),
            check,
            peer_rounds=1,
        )
