"""The dense view of a graph and its merge questions, from 1,000 to 100,000 nodes.

``python -m benchmarks dependencies``. Peers: networkx, which answers a question by a search of its own, and torch's
stable topological sort.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import networkx as nx
import torch
from torch.fx import Graph, GraphModule

from benchmarks.harness import Duel, case
from fxpasses.dependencies import Dependencies

SIZES = (1_000, 10_000, 100_000)
Edges = list[tuple[int, int]]


def chain_with_skips(size: int, rng: random.Random) -> Edges:
    skips = [(a, min(size - 1, a + rng.randint(2, 20))) for a in range(0, size - 2, 2)]
    return [(a, a + 1) for a in range(size - 1)] + skips


def random_layers(size: int, rng: random.Random, width: int = 100) -> Edges:
    return [(b // width * width - rng.randint(1, width), b) for b in range(width, size) for _ in range(2)]


def residual_net(size: int, rng: random.Random) -> Edges:
    return [(a, a + 1) for a in range(size - 1)] + [(a, a + 10) for a in range(0, size - 10, 10)]


def fan_out(size: int, rng: random.Random) -> Edges:
    return [(0, a) for a in range(1, size - 1)] + [(a, size - 1) for a in range(1, size - 1)]


def two_towers(size: int, rng: random.Random) -> Edges:
    return [(a, a + 2) for a in range(size - 2)]


def view_of(size: int, edges: Edges) -> Dependencies:
    return Dependencies.from_edges(size, [a for a, _ in edges], [b for _, b in edges])


def fx_chain(size: int) -> Graph:
    """Additions in a row, each result used twice, one in ten in place."""
    graph = Graph()
    node = before = graph.placeholder("x")
    for number in range(size - 2):
        if number % 10 == 5:
            node = graph.call_function(torch.ops.aten.add_.Tensor, (node, 1))
        else:
            before, node = node, graph.call_function(torch.ops.aten.add.Tensor, (node, before))
    graph.output(node)
    return graph


@case("view an fx graph, data and order edges", sizes=SIZES, rounds=3)
def view_a_graph(size: int) -> Duel:
    graph = fx_chain(size)

    def check(ours: Dependencies, _: object) -> None:
        assert len(ours) == size
        assert ours.topological_violation() is None

    return Duel(ours=lambda: Dependencies.of(graph), peer=None, check=check)


def answers_with_merges(view: Dependencies, pairs: Edges) -> list[bool]:
    merger = view.merger()
    answers = []
    for a, b in pairs:
        answers.append(merger.may_merge(a, b))
        if answers[-1]:
            merger.merge(a, b)
    return answers


def answers_by_search(size: int, edges: Edges, pairs: Edges) -> list[bool]:
    """networkx: contract nodes, and look for a path that is longer than an edge."""
    graph = nx.DiGraph(edges)
    graph.add_nodes_from(range(size))
    group = list(range(size))
    answers = []
    for a, b in ((group[a], group[b]) for a, b in pairs):
        blocked = a != b and any(
            nx.has_path(graph, between, end)
            for start, end in ((a, b), (b, a))
            for between in graph.successors(start)
            if between != end
        )
        answers.append(not blocked)
        if not blocked and a != b:
            nx.contracted_nodes(graph, a, b, self_loops=False, copy=False, store_contraction_as=None)
            group = [a if one == b else one for one in group]
    return answers


def merging(family: Callable[[int, random.Random], Edges], near: bool) -> Callable[[int], Duel]:
    def make(size: int) -> Duel:
        rng = random.Random(0)
        edges = family(size, rng)
        pairs = [rng.choice(edges) if near else (rng.randrange(size), rng.randrange(size)) for _ in range(size)]
        view = view_of(size, edges)
        with_peer = size <= SIZES[0]

        def check(ours: list[bool], peer: list[bool] | None) -> None:
            assert len(ours) == size
            assert peer is None or ours == peer

        return Duel(
            ours=lambda: answers_with_merges(view, pairs),
            peer=(lambda: answers_by_search(size, edges, pairs)) if with_peer else None,
            check=check,
            peer_rounds=1,
        )

    return make


for _family in (chain_with_skips, random_layers, residual_net, fan_out, two_towers):
    for _near in (True, False):
        _name = f"as many merge questions as nodes, {_family.__name__}, {'neighbours' if _near else 'random pairs'}"
        case(_name, sizes=SIZES, rounds=3)(merging(_family, _near))


@case("contract groups of ten to a quotient graph", sizes=SIZES, rounds=3)
def contract(size: int) -> Duel:
    edges = chain_with_skips(size, random.Random(0))
    view, labels = view_of(size, edges), [node // 10 for node in range(size)]
    graph = nx.DiGraph(edges)
    groups = [set(range(start, min(size, start + 10))) for start in range(0, size, 10)]

    def check(ours: nx.DiGraph, peer: nx.DiGraph | None) -> None:
        assert peer is None or set(ours.edges) == {(a, b) for a, b in peer.edges}

    def by_networkx() -> nx.DiGraph:
        return nx.quotient_graph(graph, groups, relabel=True)

    return Duel(
        ours=lambda: view.quotient(labels), peer=by_networkx if size <= SIZES[0] else None, check=check, peer_rounds=1
    )


@case("find the cycle of groups, or that there is none", sizes=SIZES, rounds=3)
def cycle_of_groups(size: int) -> Duel:
    edges = chain_with_skips(size, random.Random(0))
    view, labels = view_of(size, edges), [node // 10 for node in range(size)]

    def by_networkx() -> bool:
        contracted = nx.DiGraph((labels[a], labels[b]) for a, b in edges if labels[a] != labels[b])
        return len(nx.condensation(contracted)) == len(contracted)

    def check(ours: list[int] | None, peer: bool) -> None:
        assert (ours is None) == peer

    return Duel(ours=lambda: view.cycle(labels), peer=by_networkx, check=check)


@case("order a graph with one misplaced node", sizes=SIZES, rounds=3)
def order_a_graph(size: int) -> Duel:
    from torch.fx.passes.tools_common import stable_topological_sort

    def misplaced() -> GraphModule:
        module = GraphModule(torch.nn.Module(), Graph())
        module.graph = fx_chain(size)
        nodes = list(module.graph.nodes)
        nodes[-2].append(nodes[size // 2])
        return module

    def check(ours: list[int], peer: GraphModule | None) -> None:
        assert sorted(ours) == list(range(size))

    return Duel(
        ours=lambda module: Dependencies.of(module, effects=False).stable_order(),
        peer=stable_topological_sort,
        check=check,
        prepare=misplaced,
    )
