"""Groups that merge and never form a cycle."""

from __future__ import annotations

import random
import tracemalloc
from itertools import pairwise

import networkx as nx
import pytest
from dags import Edge, dags, digraph, view_of
from fuzz import FUZZ
from hypothesis import given, settings
from hypothesis import strategies as st
from work import lines_run

import fxpasses.dependencies.merging
from fxpasses.dependencies import Merger
from fxpasses.errors import CycleError


def may_merge_by_brute_force(graph: nx.DiGraph, merger: Merger, a: int, b: int) -> bool:
    """Contract all groups, the two in question as one, and look for a cycle."""
    label = dict(enumerate(merger.labels()))
    one = {number: label[a] if group == label[b] else group for number, group in label.items()}
    return nx.is_directed_acyclic_graph(nx.DiGraph((one[s], one[t]) for s, t in graph.edges if one[s] != one[t]))


def assert_orders_are_topological(graph: nx.DiGraph, merger: Merger) -> None:
    label = merger.labels()
    for order in merger._orders:
        assert sorted(order.items()) == sorted(set(label))
        assert all(order.label[label[s]] < order.label[label[t]] for s, t in graph.edges if label[s] != label[t])


@settings(max_examples=250 * FUZZ, deadline=None)
@given(dag=dags(), patience=st.sampled_from([(-1, -1), (0, 1), (1000, 1)]), data=st.data())
def test_every_answer_is_exact_while_groups_merge(
    dag: tuple[int, list[Edge]], patience: tuple[int, int], data: st.DataObject
) -> None:
    """Against a contraction of the whole graph, with the index never made, made at once, and made again and again."""
    size, edges = dag
    graph = digraph(size, edges)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fxpasses.dependencies.merging, "_PATIENCE", patience)
        merger = view_of(size, edges).merger()
    for _ in range(data.draw(st.integers(1, 2 * size))):
        a, b = data.draw(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)))
        expected = may_merge_by_brute_force(graph, merger, a, b)

        assert expected == merger.may_merge(a, b)
        assert expected == (merger.blocking_path(a, b) is None)
        if expected and data.draw(st.booleans()):
            merger.merge(a, b)
            assert merger.find(a) == merger.find(b)
            assert_orders_are_topological(graph, merger)


@settings(max_examples=100 * FUZZ, deadline=None)
@given(dag=dags(), seed=st.integers(0, 9))
def test_a_blocking_path_leads_through_a_third_group(dag: tuple[int, list[Edge]], seed: int) -> None:
    size, edges = dag
    merger, rng = view_of(size, edges).merger(), random.Random(seed)
    for _ in range(2 * size):
        a, b = rng.randrange(size), rng.randrange(size)
        path = merger.blocking_path(a, b)
        if path is None:
            merger.merge(a, b)
            continue
        groups = [merger.find(node) for node in path]
        assert {merger.find(a), merger.find(b)} == {groups[0], groups[-1]}
        assert set(groups) - {groups[0], groups[-1]}
        assert all(pair in edges or merger.find(pair[0]) == merger.find(pair[1]) for pair in pairwise(path))


def test_neighbours_may_merge_and_nodes_with_a_third_between_may_not() -> None:
    merger = view_of(3, [(0, 1), (1, 2), (0, 2)]).merger()

    assert merger.may_merge(0, 1)
    assert not merger.may_merge(0, 2)
    assert [0, 1, 2] == merger.blocking_path(2, 0)


def test_a_merge_can_open_the_way_for_another() -> None:
    merger = view_of(3, [(0, 1), (1, 2), (0, 2)]).merger()
    merger.merge(0, 1)

    assert merger.may_merge(0, 2)
    assert merger.find(1) == merger.merge(1, 2) == merger.find(0)
    assert [0, 1, 2] == merger.members(2)


def test_a_merge_can_close_the_way_for_another() -> None:
    merger = view_of(4, [(0, 1), (2, 3)]).merger()
    merger.merge(0, 3)

    assert [2, 3, 0, 1] == merger.blocking_path(1, 2)


def test_a_refused_merge_shows_the_path_and_changes_nothing() -> None:
    view = view_of(4, [(0, 1), (1, 2)], nodes=["load", "scale", "store", "other"])
    merger = view.merger()
    with pytest.raises(CycleError) as caught:
        merger.merge(0, 2)

    assert (
        "these groups cannot become one, a path leads from one to the other through a third: load -> scale -> store"
    ) == str(caught.value)
    assert ("load", "scale", "store") == caught.value.path
    assert [0, 1, 2, 3] == merger.labels()


def test_a_group_merges_with_itself() -> None:
    merger = view_of(2, [(0, 1)]).merger()

    assert merger.may_merge(0, 0)
    assert 0 == merger.merge(0, 0)
    assert merger.blocking_path(0, 0) is None


def test_mergers_of_one_graph_do_not_know_each_other() -> None:
    view = view_of(3, [(0, 1), (1, 2)])
    view.merger().merge(0, 1)

    assert [0, 1, 2] == view.merger().labels()
    assert [[1], [2], []] == view.successor_lists


def chain_with_skips(size: int, rng: random.Random) -> list[Edge]:
    skips = [(a, min(size - 1, a + rng.randint(2, 20))) for a in range(0, size - 2, 2)]
    return [(a, a + 1) for a in range(size - 1)] + skips


def layers(size: int, rng: random.Random, width: int = 100) -> list[Edge]:
    return [(b // width * width - rng.randint(1, width), b) for b in range(width, size) for _ in range(2)]


def residual_net(size: int, rng: random.Random) -> list[Edge]:
    skips = [(a, a + 10) for a in range(0, size - 10, 10)]
    return [(a, a + 1) for a in range(size - 1)] + skips


def fan_out(size: int, rng: random.Random) -> list[Edge]:
    return [(0, a) for a in range(1, size - 1)] + [(a, size - 1) for a in range(1, size - 1)]


def two_towers(size: int, rng: random.Random) -> list[Edge]:
    return [(a, a + 2) for a in range(size - 2)]


@pytest.mark.slow
@pytest.mark.parametrize("family", [chain_with_skips, layers, residual_net, fan_out, two_towers])
@pytest.mark.parametrize("kind", ["neighbours", "anywhere"])
def test_the_work_for_a_question_and_a_merge_does_not_grow_with_the_graph(family, kind) -> None:
    """As many questions as nodes: ten times both are at most twice the work for each."""

    def work(size: int) -> float:
        rng = random.Random(0)
        edges = family(size, rng)
        view = view_of(size, edges)
        pairs = [
            rng.choice(edges) if kind == "neighbours" else (rng.randrange(size), rng.randrange(size))
            for _ in range(size)
        ]
        merger = view.merger()

        def ask() -> None:
            for a, b in pairs:
                if merger.may_merge(a, b):
                    merger.merge(a, b)

        lines = lines_run(ask)
        assert view.cycle(merger.labels()) is None
        return lines / size

    small, large = work(2_000), work(20_000)
    assert large < 2 * small


def test_a_merger_takes_under_three_kibibytes_a_node() -> None:
    size, rng = 20_000, random.Random(0)
    view = view_of(size, layers(size, rng))
    tracemalloc.start()
    try:
        merger = view.merger()
        merger._renew_index()
        for source, target in layers(size, rng)[:1_000]:
            if merger.may_merge(source, target):
                merger.merge(source, target)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 3 * 2**10 * size
