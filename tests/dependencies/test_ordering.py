"""Orders that leave alone what already stands right."""

from __future__ import annotations

import itertools
import random

import networkx as nx
import pytest
from dags import Edge, dags, digraph, moved, view_of
from fuzz import FUZZ
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import fxpasses.dependencies.ordering
from fxpasses.dependencies.ordering import find_cycle, first_ready_order, repaired_order
from fxpasses.errors import CycleError


def error_of(path: list[int]) -> CycleError:
    return CycleError("cycle", path=path)


def repair(size: int, edges: list[Edge], order: list[int] | None = None) -> list[int]:
    view = view_of(size, edges)
    order = list(range(size)) if order is None else order
    return repaired_order(order, view.successor_lists, view.predecessor_lists, [1] * size, error_of)


@settings(max_examples=300 * FUZZ, deadline=None)
@given(dag=dags(), effort=st.sampled_from([-1, 0, 8]))
def test_a_repaired_order_is_topological(dag: tuple[int, list[Edge]], effort: int) -> None:
    size, edges = dag
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fxpasses.dependencies.ordering, "_EFFORT", effort)
        order = repair(size, edges)

    assert sorted(order) == list(range(size))
    assert all(order.index(a) < order.index(b) for a, b in edges)


@settings(max_examples=60 * FUZZ, deadline=None)
@given(data=st.data())
def test_one_broken_edge_is_repaired_by_the_fewest_moves_there_can_be(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 6))
    edges = [pair for pair in itertools.combinations(range(size), 2) if data.draw(st.booleans())]
    late = data.draw(st.integers(1, size - 1))
    early = data.draw(st.integers(0, late - 1))
    edges.append((late, early))
    assume(nx.is_directed_acyclic_graph(digraph(size, edges)))
    legal = (
        order for order in itertools.permutations(range(size)) if all(order.index(a) < order.index(b) for a, b in edges)
    )

    assert min(map(moved, legal)) == moved(repair(size, edges))


def test_an_order_that_is_legal_is_given_back() -> None:
    assert [2, 0, 1] == repair(3, [(2, 1), (0, 1)], [2, 0, 1])


def test_the_side_with_less_to_move_moves() -> None:
    # 7 must precede 1; six nodes wait for 1, nothing that 7 needs stands behind 1.
    edges = [(1, node) for node in range(2, 7)]

    assert [0, 7, 1, 2, 3, 4, 5, 6] == repair(8, [*edges, (7, 1)])


def test_on_a_tie_the_one_that_waits_moves() -> None:
    assert [0, 2, 3, 1] == repair(4, [(3, 1)])


def test_weights_count_when_a_side_is_chosen() -> None:
    view = view_of(3, [(2, 0)])
    order = repaired_order([0, 1, 2], view.successor_lists, view.predecessor_lists, [5, 1, 1], error_of)

    assert [2, 0, 1] == order


def test_a_cycle_is_an_error_that_carries_it() -> None:
    with pytest.raises(CycleError) as caught:
        repair(4, [(0, 1), (1, 2), (2, 0), (0, 3)])

    assert (0, 1, 2, 0) == caught.value.path


def test_a_node_that_waits_for_itself_is_a_cycle() -> None:
    with pytest.raises(CycleError) as caught:
        repair(2, [(1, 1)])

    assert (1, 1) == caught.value.path


def test_the_ready_order_takes_what_stands_first() -> None:
    view = view_of(4, [(3, 0)])

    assert [1, 2, 3, 0] == first_ready_order(range(4), view.successor_lists, view.predecessor_lists, error_of)


@settings(max_examples=200 * FUZZ, deadline=None)
@given(size=st.integers(1, 8), data=st.data())
def test_a_cycle_is_found_exactly_where_there_is_one(size: int, data: st.DataObject) -> None:
    pairs = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))
    edges = data.draw(st.lists(pairs, max_size=14))
    view = view_of(size, edges)
    cycle = find_cycle(view.successor_lists, view.predecessor_lists)

    assert nx.is_directed_acyclic_graph(digraph(size, edges)) == (cycle is None)
    if cycle is not None:
        assert cycle[0] == cycle[-1]
        assert len(set(cycle)) == len(cycle) - 1
        assert set(itertools.pairwise(cycle)) <= set(edges)


def test_a_shuffled_order_of_many_nodes_falls_back_to_the_linear_way() -> None:
    """20,000 nodes in random order would take minutes edge by edge."""
    size = 20_000
    order = list(range(size))
    random.Random(0).shuffle(order)
    found = repair(size, [(number, number + 1) for number in range(size - 1)], order)

    assert list(range(size)) == found
