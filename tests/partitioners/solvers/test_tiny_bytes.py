"""A few bytes beside very many: programs whose coefficients are far apart lose no solution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import networkx as nx
import pytest

from fxpasses.devices import Device
from fxpasses.partitioners import PlacementProblem, solve_placement


def problem(
    nodes: dict[int, dict[str, Any]], edges: Sequence[tuple[int, int]], memory: dict[str, int | None], **options: Any
) -> PlacementProblem:
    graph = nx.DiGraph()
    graph.add_nodes_from(nodes.items())
    graph.add_edges_from(edges)
    return PlacementProblem(graph, [Device(*each) for each in memory.items()], **options)


def tied_scalars_in_a_small_budget() -> PlacementProblem:
    nodes = {
        0: {"seconds": {"a": 2, "b": 20, "c": 0}, "kept_bytes": 100_000_007, "live_bytes": 1, "shared_bytes": {1: 6}},
        1: {"seconds": {"a": 2, "b": 5, "c": 7}, "output_seconds": 1},
        3: {"seconds": {"a": 6, "b": 1, "c": 0}, "shared_bytes": {0: 64, 1: 6}},
        4: {"seconds": {"a": 300, "b": 5, "c": 0}, "kept_bytes": 100_000_000},
        5: {"seconds": {"a": 2, "b": 3, "c": 3}, "live_bytes": 47},
        7: {"seconds": {"b": 1, "c": 2}, "kept_bytes": 100_000_000},
    }
    memory = {"a": None, "b": None, "c": 250_000_000}
    return problem(nodes, [(0, 1), (1, 4), (1, 7)], memory, contiguity="free")


def tied_vectors_on_the_fuller_device() -> PlacementProblem:
    big = 100_000_000
    nodes = {
        0: {"kept_bytes": big},
        1: {"kept_bytes": 67_228_165, "shared_bytes": {0: 1}},
        2: {"kept_bytes": big, "live_bytes": 7, "shared_bytes": {0: 1, 1: 931}},
        3: {"kept_bytes": big, "shared_bytes": {0: 1, 1: 931}},
        4: {"kept_bytes": big, "seconds": {"b": 0}},
    }
    return problem(nodes, [(1, 2), (2, 4)], {"a": None, "b": None}, objective="memory", contiguity="free")


def tied_scalars_in_convex_parts() -> PlacementProblem:
    big, shared = 950_604_793, {"x": 6, "y": 5}
    nodes = {
        0: {"seconds": {"a": 1, "b": 1, "c": 5}, "kept_bytes": big, "shared_bytes": shared},
        1: {"seconds": {"a": 0, "b": 1}, "kept_bytes": big},
        2: {"seconds": {"a": 1, "b": 2000, "c": 6}, "kept_bytes": big},
        4: {"seconds": {"a": 2, "b": 1, "c": 1}},
        5: {"seconds": {"a": 0, "c": 1}, "live_bytes": 1, "shared_bytes": shared},
        6: {"seconds": {"a": 2, "b": 0, "c": 1}, "kept_bytes": big},
        7: {"seconds": {"a": 4, "b": 1, "c": 2}},
    }
    memory = {"a": 2_376_511_982, "b": None, "c": None}
    return problem(nodes, [(0, 2), (1, 5), (2, 4), (4, 7)], memory, contiguity="convex")


def terabytes() -> PlacementProblem:
    big = 10**12
    nodes = {
        7: {"seconds": {"a": 0}, "kept_bytes": big + 1},
        8: {"seconds": {"a": 0, "b": 1}, "kept_bytes": big, "shared_bytes": {1: 6, 2: 5}},
        3: {"seconds": {"a": 0, "b": 200_000}, "kept_bytes": big + 4, "shared_bytes": {2: 5}},
        4: {"kept_bytes": big + 1},
        5: {"seconds": {"a": 0, "b": 400}, "kept_bytes": big + 1, "shared_bytes": {1: 6}},
        2: {"seconds": {"a": 0, "b": 300_000}, "kept_bytes": big, "output_seconds": 1},
    }
    memory = {"a": 4_515_713_868_681, "b": None}
    return problem(nodes, [(4, 7), (2, 4), (2, 5)], memory, contiguity="free", time_budget=0.2)


OPTIMA = {
    tied_scalars_in_a_small_budget: 4.0,
    tied_vectors_on_the_fuller_device: 267_228_166.0,
    tied_scalars_in_convex_parts: 2.0,
    terabytes: 2.0,
}
"""By all assignments."""


@pytest.mark.parametrize("make", list(OPTIMA))
def test_a_few_bytes_beside_very_many_lead_to_no_false_proof(make: Any) -> None:
    """HiGHS called 5, 267,229,097, 3 and 401 the optima, where it presolved."""
    solution = solve_placement(make())

    assert solution.is_optimal
    assert OPTIMA[make] == pytest.approx(solution.objective_value, rel=1e-9)
    assert solution.bound == pytest.approx(solution.objective_value, rel=1e-6)
