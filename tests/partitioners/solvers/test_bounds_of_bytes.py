"""Bounds on bytes: whole as bytes are, and never above the best placement."""

from __future__ import annotations

import networkx as nx
import pytest

from fxpasses import Device
from fxpasses.partitioners import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers.solving import told_bound


@pytest.mark.parametrize(
    ("bound", "told"),
    [(205900 / (1 - 1e-9), 205900.0), (205900.0, 205900.0), (5e9 / (1 - 1e-9), 5e9), (0.0, 0.0)],
)
def test_a_bound_on_bytes_is_whole_and_without_what_was_added_for_rounding(bound: float, told: float) -> None:
    assert told == told_bound(bound, 6e9, "memory")


def test_a_bound_on_seconds_is_told_as_it_is() -> None:
    assert 0.30000000004 == told_bound(0.30000000004, 0.5, "throughput")


def test_what_is_proven_stays_proven() -> None:
    assert 5e9 == told_bound(5e9 * (1 - 1e-10), 5e9, "memory")


@pytest.mark.parametrize("contiguity", ["pipeline", "convex", "free"])
def test_bounds_of_answers_are_whole(contiguity: str) -> None:
    graph = nx.gn_graph(40, seed=1).reverse()
    for node in graph:
        graph.nodes[node].update(kept_bytes=10_007 + 1_003 * node, live_bytes=5_000_011 - 90_001 * node)
    devices = [Device("x"), Device("y"), Device("z")]

    solution = solve_placement(PlacementProblem(graph, devices, (), "memory", contiguity=contiguity, time_budget=0.0))

    assert solution.bound.is_integer()
    assert solution.bound <= solution.objective_value


@pytest.mark.parametrize("contiguity", ["pipeline", "convex", "free"])
def test_a_device_holds_no_less_than_the_largest_node_needs_alone(contiguity: str) -> None:
    """With what it keeps, shares and has alive: the bound was the average of all, and nothing was proven."""
    graph: nx.DiGraph = nx.path_graph(12, create_using=nx.DiGraph)
    nx.set_node_attributes(graph, 10, "kept_bytes")
    graph.nodes[5].update(live_bytes=70, shared_bytes={"tied": 20})
    graph.nodes[6].update(shared_bytes={"tied": 20})
    devices = [Device(name) for name in "abc"]
    problem = PlacementProblem(graph, devices, objective="memory", contiguity=contiguity, time_budget=0.0, effort=0.0)

    solution = solve_placement(problem)

    assert solution.bound == 100
    assert solution.is_optimal == (solution.objective_value == 100)
