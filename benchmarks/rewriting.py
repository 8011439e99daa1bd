"""Matching and replacing against torch's subgraph rewriter, on the same graphs in one run."""

from __future__ import annotations

import torch
from torch.fx import Graph, GraphModule, symbolic_trace
from torch.fx.passes.utils.matcher_utils import SubgraphMatcher as TorchMatcher
from torch.fx.subgraph_rewriter import replace_pattern as torch_replace_pattern

from benchmarks.harness import Duel, case
from fxpasses.partitioners import SubgraphMatcher
from fxpasses.passes import Rule, RuleSet, replace_pattern

UNARY = [torch.sin, torch.cos, torch.tanh, torch.exp, torch.abs, torch.sigmoid, torch.sqrt, torch.floor]


def module_of(graph: Graph) -> GraphModule:
    return GraphModule(torch.nn.Module(), graph)


def planted(size: int) -> GraphModule:
    """Every ten nodes hold one match of a pattern of four nodes."""
    graph = Graph()
    value = graph.placeholder("x")
    for _ in range(size // 10):
        sin = graph.call_function(torch.sin, (value,))
        cos = graph.call_function(torch.cos, (sin,))
        value = graph.call_function(torch.relu, (graph.call_function(torch.add, (sin, cos)),))
        for _ in range(6):
            value = graph.call_function(torch.neg, (value,))
    graph.output(value)
    return module_of(graph)


def four_nodes(x):
    sin = torch.sin(x)
    return torch.relu(torch.add(sin, torch.cos(sin)))


def two_nodes(x):
    return torch.tanh(torch.exp(x))


def _same_count(ours, theirs) -> None:
    assert theirs is None or len(ours) == len(theirs), (len(ours), theirs and len(theirs))
    assert len(ours) > 0


@case("replace one pattern of 4 nodes, n/10 matches", sizes=(1_000, 10_000), promise=5)
def replace_one(size: int) -> Duel:
    def prepare() -> tuple[GraphModule, GraphModule]:
        return planted(size), planted(size)

    return Duel(
        ours=lambda pair: replace_pattern(pair[0], four_nodes, two_nodes),
        peer=lambda pair: torch_replace_pattern(pair[1], four_nodes, two_nodes),
        check=_same_count,
        prepare=prepare,
    )


@case("replace 10,000 matches in 100,000 nodes, code generated (under 5 s)", sizes=(100_000,), promise=None, rounds=1)
def replace_many(size: int) -> Duel:
    def ours(module: GraphModule) -> list:
        found = replace_pattern(module, four_nodes, two_nodes)
        assert "torch.exp" in module.code
        return found

    return Duel(ours=ours, peer=None, check=_same_count, prepare=lambda: planted(size))


@case("match one pattern of 4 nodes", sizes=(1_000, 10_000), promise=None)
def match_one(size: int) -> Duel:
    graph, pattern = planted(size).graph, symbolic_trace(four_nodes).graph
    return Duel(
        ours=lambda: SubgraphMatcher(pattern).match(graph),
        peer=lambda: TorchMatcher(pattern).match(graph),
        check=_same_count,
    )


def pairs_of_functions() -> list[tuple]:
    found = [(a, b) for a in UNARY for b in UNARY if a is not b]
    return found[:50]


def with_fifty_patterns(size: int) -> GraphModule:
    """Chains of two calls, all fifty pairs one after the other, with neutral nodes between them."""
    graph = Graph()
    value = graph.placeholder("x")
    pairs = pairs_of_functions()
    for place in range(size // 10):
        first, second = pairs[place % len(pairs)]
        value = graph.call_function(second, (graph.call_function(first, (value,)),))
        for _ in range(8):
            value = graph.call_function(torch.neg, (value,))
    graph.output(value)
    return module_of(graph)


def chain_of(first, second):
    return lambda x: second(first(x))


@case("match 50 patterns", sizes=(1_000, 10_000), promise=20)
def match_fifty(size: int) -> Duel:
    module = with_fifty_patterns(size)
    patterns = [chain_of(first, second) for first, second in pairs_of_functions()]
    rules = RuleSet([Rule(pattern, lambda x: torch.neg(x)) for pattern in patterns])
    graphs = [symbolic_trace(pattern).graph for pattern in patterns]
    return Duel(
        ours=lambda: rules.matches(module),
        peer=lambda: [match for graph in graphs for match in TorchMatcher(graph).match(module.graph)],
        check=_same_count,
    )


def with_pairs(size: int) -> GraphModule:
    """Every ten nodes hold two calls on one value, far from each other in the list."""
    graph = Graph()
    value = graph.placeholder("x")
    for _ in range(size // 10):
        sin, cos = graph.call_function(torch.sin, (value,)), graph.call_function(torch.cos, (value,))
        value = graph.call_function(torch.add, (sin, cos))
        for _ in range(7):
            value = graph.call_function(torch.neg, (value,))
    graph.output(value)
    return module_of(graph)


def two_anchors(x):
    return torch.sin(x), torch.cos(x)


@case("match a pattern with two anchors", sizes=(1_000, 10_000), promise=100, rounds=1)
def match_two_anchors(size: int) -> Duel:
    graph, pattern = with_pairs(size).graph, symbolic_trace(two_anchors).graph
    return Duel(
        ours=lambda: SubgraphMatcher(pattern).match(graph),
        peer=lambda: TorchMatcher(pattern).match(graph),
        check=_same_count,
        peer_rounds=1,
    )


@case("match a pattern with two anchors, alone", sizes=(10_000, 100_000), promise=None)
def match_two_anchors_large(size: int) -> Duel:
    graph, pattern = with_pairs(size).graph, symbolic_trace(two_anchors).graph
    return Duel(ours=lambda: SubgraphMatcher(pattern).match(graph), peer=None, check=_same_count)


@case("match a pattern of 2,000 nodes", sizes=(20_000, 100_000), promise=None)
def match_tall(size: int) -> Duel:
    def chain(count: int) -> Graph:
        graph = Graph()
        value = graph.placeholder("x")
        for place in range(count):
            value = graph.call_function(UNARY[place % 4], (value,))
        graph.output(value)
        return graph

    graph, pattern = chain(size), chain(2_000)
    return Duel(ours=lambda: SubgraphMatcher(pattern).match(graph), peer=None, check=_same_count)
