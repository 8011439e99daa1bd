"""The dense view of a graph."""

from __future__ import annotations

import inspect
import itertools
import random
import sys
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
import torch
from dags import Edge, dags, digraph, moved, view_of
from fuzz import FUZZ
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import Graph, symbolic_trace
from work import lines_run

from fxpasses.dependencies import Dependencies
from fxpasses.errors import CycleError, GraphError

Dag = tuple[int, list[Edge]]


def subsets(size: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, size - 1), unique=True)


def pairs(view: Dependencies) -> list[Edge]:
    return list(zip(view.sources.tolist(), view.targets.tolist(), strict=True))


def chain_graph(size: int) -> Graph:
    """``size`` nodes in a row, each also used two further on, and an in-place one now and then."""
    graph = Graph()
    node = before = graph.placeholder("x")
    for number in range(size - 2):
        if number % 10 == 5:
            node = graph.call_function(torch.ops.aten.add_.Tensor, (node, 1))
        else:
            before, node = node, graph.call_function(torch.ops.aten.add.Tensor, (node, before))
    graph.output(node)
    return graph


# fx graphs


def mutation(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    x.sin_()
    return y * (x + 2)


def test_an_fx_graph_has_data_and_order_edges() -> None:
    view = Dependencies.of(symbolic_trace(mutation))
    names = [node.name for node in view.nodes]

    assert ["x", "add", "sin_", "add_1", "mul", "output"] == names
    assert [0, 1] == view.predecessors(2).tolist()
    assert {"x": 0, "add": 1, "sin_": 2, "add_1": 3, "mul": 4, "output": 5} == {
        node.name: number for node, number in view.position.items()
    }


def test_an_exported_program_and_its_graphs_are_viewed_alike() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x + self.count

    program = torch.export.export(Counter(), (torch.ones(2),))
    views = [Dependencies.of(program), Dependencies.of(program.graph_module), Dependencies.of(program.graph)]

    assert 1 == len({tuple(node.name for node in view.nodes) for view in views})
    assert all(view.topological_violation() is None for view in views)
    assert {*pairs(views[1])} <= {*pairs(views[0])}


def test_without_effects_there_are_data_edges_only() -> None:
    view = Dependencies.of(symbolic_trace(mutation), effects=False)

    assert view.effects is None
    assert [0] == view.predecessors(2).tolist()
    assert [1, 2, 3] == view.successors(0).tolist()


def test_a_path_in_words_gives_the_reason_of_order_edges() -> None:
    view = Dependencies.of(symbolic_trace(mutation))

    assert (
        "x -> add -> sin_ (add reads x, which sin_ writes) -> add_1 (sin_ writes x, which add_1 reads)"
        == view.describe([0, 1, 2, 3])
    )


def test_long_paths_are_shortened_in_words() -> None:
    view = view_of(100, [(a, a + 1) for a in range(99)])
    text = view.describe(range(100))

    assert "0 -> 1 -> 2 -> 3 -> 4 -> 5 -> 6 -> 7 -> 8 -> ... 83 more ... -> 92 -> 93" in text
    assert "" == view.describe([])


def test_a_node_of_another_graph_is_named() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    stray = Graph().placeholder("stray")
    graph.output(graph.call_function(torch.add, (x, x)))
    add = next(node for node in graph.nodes if node.op == "call_function")
    add.args = (x, stray)
    with pytest.raises(GraphError) as caught:
        Dependencies.of(graph, effects=False)

    assert "node 'stray' is used by 'add' but is not in this graph; it was erased, or belongs to another graph" == str(
        caught.value
    )
    assert stray is caught.value.node


def test_the_work_for_a_view_grows_with_the_graph() -> None:
    """Data and order edges: ten times the nodes are ten times the work."""

    def work(size: int) -> int:
        graph = chain_graph(size)
        assert len(Dependencies.of(graph).sources) > 1.8 * size
        return lines_run(lambda: Dependencies.of(graph))

    assert work(10_000) < 10.5 * work(1_000)


def test_the_output_stays_last_and_placeholders_keep_their_order() -> None:
    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    first = graph.call_function(torch.sin, (x,))
    second = graph.call_function(torch.cos, (y,))
    graph.output(first)
    view = Dependencies.of(graph, effects=False)

    assert [0, 1, 3, 2, 4] == view.stable_order([(3, 2)])
    with pytest.raises(CycleError):
        view.stable_order([(1, 0)])
    assert second is view.nodes[3]


def test_a_node_behind_the_output_is_moved_before_it() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(x)
    graph.call_function(torch.sin, (x,))

    assert [0, 2, 1] == Dependencies.of(graph, effects=False).stable_order()


# neighbours, orders, reachability


@settings(max_examples=150 * FUZZ, deadline=None)
@given(dag=dags(), data=st.data())
def test_reachability_equals_the_transitive_closure(dag: Dag, data: st.DataObject) -> None:
    size, edges = dag
    view, graph = view_of(size, edges), digraph(size, edges)
    closure = nx.transitive_closure(graph, reflexive=True)
    chosen = data.draw(subsets(size))

    assert [[closure.has_edge(a, b) for b in range(size)] for a in range(size)] == [
        [view.reaches(a, b) for b in range(size)] for a in range(size)
    ]
    assert [any(closure.has_edge(a, b) for a in chosen) for b in range(size)] == view.descendants(chosen).tolist()
    assert [any(closure.has_edge(b, a) for a in chosen) for b in range(size)] == view.ancestors(chosen).tolist()
    assert [sorted(graph.predecessors(a)) for a in range(size)] == [view.predecessors(a).tolist() for a in range(size)]
    assert [sorted(graph.successors(a)) for a in range(size)] == view.successor_lists


@settings(max_examples=100 * FUZZ, deadline=None)
@given(dag=dags())
def test_levels_are_the_lengths_of_longest_paths(dag: Dag) -> None:
    size, edges = dag
    graph = digraph(size, edges)
    expected = [nx.dag_longest_path_length(graph.subgraph(nx.ancestors(graph, a) | {a})) for a in range(size)]

    assert expected == view_of(size, edges).levels().tolist()


@settings(max_examples=100 * FUZZ, deadline=None)
@given(dag=dags(), data=st.data())
def test_a_found_path_is_a_shortest_one_that_keeps_clear(dag: Dag, data: st.DataObject) -> None:
    size, edges = dag
    graph, avoid = digraph(size, edges), data.draw(subsets(size))
    a, b = data.draw(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)))
    path = view_of(size, edges).find_path(a, b, avoid)
    graph.remove_nodes_from(set(avoid) - {a, b})

    assert nx.has_path(graph, a, b) == (path is not None)
    if path is not None:
        assert nx.shortest_path_length(graph, a, b) == len(path) - 1
        assert nx.is_path(graph, path)


def test_wide_graphs_give_the_same_masks() -> None:
    """The numpy way of a wide front, against the plain way."""
    rng = random.Random(0)
    edges = [(rng.randrange(max(0, b - 400), b), b) for b in range(1, 2_000) for _ in range(2)]
    view, graph = view_of(2_000, edges), digraph(2_000, edges)

    for node in (0, 7, 900, 1_500):
        assert sorted(nx.descendants(graph, node) | {node}) == np.flatnonzero(view.descendants([node])).tolist()
        assert sorted(nx.ancestors(graph, node) | {node}) == np.flatnonzero(view.ancestors([node])).tolist()


def test_the_first_edge_against_the_order_is_told() -> None:
    assert (3, 1) == view_of(4, [(0, 1), (3, 1)]).topological_violation()
    assert view_of(4, [(0, 1), (1, 3)]).topological_violation() is None


def test_edges_are_kept_once() -> None:
    assert [0] == view_of(2, [(0, 1), (0, 1)]).predecessors(1).tolist()


def test_a_graph_without_nodes_is_a_graph() -> None:
    view = view_of(0, [])

    assert [] == view.stable_order() == view.levels().tolist() == view.convex_closure([])
    assert view.is_convex([])


# convex sets


def leaves_and_comes_back(graph: nx.DiGraph, chosen: list[int]) -> bool:
    outside = set(graph) - set(chosen)
    return any(nx.descendants(graph, x) & set(chosen) and nx.ancestors(graph, x) & set(chosen) for x in outside)


@settings(max_examples=200 * FUZZ, deadline=None)
@given(dag=dags(), data=st.data())
def test_a_set_is_convex_or_a_path_shows_why_not(dag: Dag, data: st.DataObject) -> None:
    size, edges = dag
    view, graph, chosen = view_of(size, edges), digraph(size, edges), data.draw(subsets(size))
    path = view.convexity_violation(chosen)

    assert leaves_and_comes_back(graph, chosen) == (path is not None) == (not view.is_convex(chosen))
    if path is not None:
        assert nx.is_path(graph, path)
        assert {path[0], path[-1]} <= set(chosen)
        assert len(path) > 2
        assert not set(path[1:-1]) & set(chosen)


@settings(max_examples=100 * FUZZ, deadline=None)
@given(dag=dags(), data=st.data())
def test_the_convex_closure_is_the_smallest_convex_set_around(dag: Dag, data: st.DataObject) -> None:
    size, edges = dag
    graph, chosen = digraph(size, edges), data.draw(subsets(size))
    below = set(chosen).union(*(nx.descendants(graph, a) for a in chosen))
    above = set(chosen).union(*(nx.ancestors(graph, a) for a in chosen))

    assert sorted(below & above) == view_of(size, edges).convex_closure(chosen)


@settings(max_examples=1000 * FUZZ, deadline=None)
@given(dag=dags(), data=st.data())
def test_complaint_16_a_set_with_a_bridge_dropped_falls_into_convex_pieces(dag: Dag, data: st.DataObject) -> None:
    """Complaint 16: what is left after dropping nodes from a part stays convex, and no piece waits for a later one."""
    size, edges = dag
    view, chosen = view_of(size, edges), sorted(data.draw(subsets(size)))
    pieces = view.convex_pieces(chosen)
    labels = [-1] * size
    for label, piece in enumerate(pieces):
        for node in piece:
            labels[node] = label

    assert chosen == sorted(itertools.chain(*pieces))
    assert all(pieces)
    assert all(view.is_convex(piece) for piece in pieces)
    assert view.cycle(labels) is None
    assert (len(pieces) < 2) == view.is_convex(chosen)
    for earlier, later in itertools.combinations(pieces, 2):
        assert not view.descendants(later)[earlier].any()


# groups


def labelled(dag: Dag, data: st.DataObject) -> list[int]:
    return data.draw(st.lists(st.integers(-1, 4), min_size=dag[0], max_size=dag[0]))


@settings(max_examples=150 * FUZZ, deadline=None)
@given(dag=dags(), data=st.data())
def test_the_quotient_contracts_groups(dag: Dag, data: st.DataObject) -> None:
    labels = labelled(dag, data)
    size, edges = dag
    keys = [label if label >= 0 else ~number for number, label in enumerate(labels)]
    between = {(keys[a], keys[b]) for a, b in edges if keys[a] != keys[b]}
    quotient = view_of(size, edges).quotient(labels)

    assert set(keys) == set(quotient)
    assert between == set(quotient.edges)
    assert {key: [a for a in range(size) if keys[a] == key] for key in keys} == dict(quotient.nodes(data="members"))
    assert all(pair in edges for *_, pairs in quotient.edges(data="edges") for pair in pairs)


@settings(max_examples=150 * FUZZ, deadline=None)
@given(dag=dags(), data=st.data())
def test_a_cycle_of_groups_is_a_way_that_comes_back(dag: Dag, data: st.DataObject) -> None:
    labels = labelled(dag, data)
    size, edges = dag
    view = view_of(size, edges)
    quotient = view.quotient(labels)
    path = view.cycle(labels)

    assert nx.is_directed_acyclic_graph(quotient) == (path is None)
    if path is not None:
        keys = [labels[a] if labels[a] >= 0 else ~a for a in path]
        assert keys[0] == keys[-1]
        assert len(set(keys)) > 1
        assert all(pair in edges or keys[place] == keys[place + 1] for place, pair in enumerate(pairwise(path)))


def test_a_cycle_of_groups_in_words() -> None:
    view = view_of(4, [(0, 1), (2, 3)], nodes=["a", "b", "c", "d"])
    path = view.cycle([0, 1, 1, 0])

    assert "a -> b, in one group with c -> d" == view.describe(path)


# stable orders


@settings(max_examples=200 * FUZZ, deadline=None)
@given(dag=dags(), data=st.data())
def test_a_stable_order_keeps_groups_together_and_edges_in_order(dag: Dag, data: st.DataObject) -> None:
    labels = labelled(dag, data)
    size, edges = dag
    view = view_of(size, edges)
    if (path := view.cycle(labels)) is not None:
        with pytest.raises(CycleError) as caught:
            view.stable_order(labels=labels)
        assert tuple(path) == caught.value.path
        return
    order = view.stable_order(labels=labels)

    assert sorted(order) == list(range(size))
    assert all(order.index(a) < order.index(b) for a, b in edges)
    in_groups = [labels[a] if labels[a] >= 0 else ~a for a in order]
    assert len(set(in_groups)) == len(list(itertools.groupby(in_groups)))


def test_an_order_that_is_legal_stays() -> None:
    assert list(range(6)) == view_of(6, [(0, 5), (1, 2)]).stable_order()


def test_complaint_34_one_misplaced_node_moves_alone() -> None:
    """Complaint 34: a repair leaves untouched nodes where they are, also where much waits for the one that moves."""
    size = 1_000
    edges = [(a, a + 2) for a in range(size - 3)]
    order = view_of(size, [*edges, (size - 1, 10)]).stable_order()

    assert [*range(10), size - 1, *range(10, size - 1)] == order
    assert 1 == moved(order)


def test_an_extra_pair_moves_the_one_that_waits() -> None:
    assert [0, 2, 3, 1, 4] == view_of(5, []).stable_order([(3, 1)])


def test_a_group_gathers_around_its_middle_member() -> None:
    assert [1, 2, 0, 3, 4, 5] == view_of(6, []).stable_order(labels=[7, -1, -1, 7, 7, -1])


def test_groups_that_wait_for_each_other_are_refused_with_the_path() -> None:
    view = view_of(3, [(0, 1), (1, 2)], nodes=["a", "b", "c"])
    with pytest.raises(CycleError) as caught:
        view.stable_order(labels=[0, -1, 0])

    assert ("these groups would wait for each other; take a node of this path out of its group: a -> b -> c") == str(
        caught.value
    )


def test_nodes_that_wait_for_each_other_are_refused_with_the_path() -> None:
    view = view_of(3, [(0, 1), (1, 2), (2, 0)], nodes=["a", "b", "c"])
    for ask in (view.stable_order, view.levels, view.merger):
        with pytest.raises(CycleError) as caught:
            ask()
        assert "no order is legal, these nodes would wait for each other: a -> b -> c -> a" == str(caught.value)


# wrong input


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda view: view.reaches(0, 3), "there is no node 3; this graph has 3 nodes, numbered from 0"),
        (lambda view: view.is_convex([-1]), "there is no node -1; this graph has 3 nodes, numbered from 0"),
        (lambda view: view.stable_order([(0, 9)]), "there is no node 9; this graph has 3 nodes, numbered from 0"),
        (lambda view: view.cycle([0]), "labels need one number per node; there are 1 for 3 nodes"),
        (lambda _: Dependencies.from_edges(2, [0], [0, 1]), "edges need as many targets as sources; there are 1 and 2"),
        (lambda _: Dependencies.from_edges(2, [0], [5]), "an edge names node 5; there are 2 nodes, numbered from 0"),
        (lambda _: Dependencies.from_edges(2, [], [], nodes="abc"), "2 nodes were announced, and 3 given"),
    ],
)
def test_wrong_input_is_told_in_a_sentence(ask, sentence) -> None:
    with pytest.raises(GraphError) as caught:
        ask(view_of(3, [(0, 1)]))

    assert sentence == str(caught.value)


# depth


def test_complaint_38_a_chain_of_20_000_nodes_needs_no_deep_stack() -> None:
    """Complaint 38: every question, on a chain that any recursion over nodes would fail, with 200 frames allowed."""
    graph = chain_graph(20_000)
    limit = sys.getrecursionlimit()
    depth = len(inspect.stack(0))
    sys.setrecursionlimit(depth + 200)
    try:
        view = Dependencies.of(graph)
        merger = view.merger()
        size = len(view)
        answers = [
            int(view.levels().max()) >= size - 1,
            view.reaches(0, size - 1),
            bool(view.descendants([0]).all()),
            bool(view.ancestors([size - 1]).all()),
            len(view.find_path(0, size - 1)) > 2,
            view.is_convex(range(100, size - 100)),
            not view.is_convex([100, size - 100]),
            len(view.convex_pieces(range(0, size, 50))) == size // 50,
            view.stable_order() == list(range(size)),
            view.cycle([node // 10 for node in range(size)]) is None,
            view.cycle([node % 2 for node in range(size)]) is not None,
            not merger.may_merge(5, size - 5),
            all(merger.merge(node, node + 1) == merger.find(0) for node in range(size - 1)),
            bool(view.describe(view.find_path(0, size - 1))),
        ]
    finally:
        sys.setrecursionlimit(limit)

    assert all(answers), answers
