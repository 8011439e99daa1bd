"""Latencies of graphs in which nodes wait for each other in a circle: those run as one, against brute force."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import networkx as nx
import pytest
from fuzz import examples
from placement_cases import every_placement, is_legal, seconds_on, sending

from fxpasses import Device, Link
from fxpasses.errors import InfeasibleError
from fxpasses.partitioners import PlacementProblem, solve_placement


def circular(seed: int, contiguity: str) -> PlacementProblem:
    """Six nodes on two devices; most have a cycle of two or three of them."""
    draw = random.Random(seed)
    graph: nx.DiGraph[Any] = nx.DiGraph()
    for node in range(6):
        same = draw.choice([0.0, 1.0, 2.5])
        graph.add_node(
            node,
            seconds=same if draw.random() < 0.6 else {"a": same, "b": draw.choice([0.5, 3.0])},
            output_bytes=draw.choice([0, 8, 32]),
            kept_bytes=draw.choice([0, 10]),
        )
    graph.add_edges_from(pair for pair in itertools.combinations(range(6), 2) if draw.random() < 0.35)
    first = draw.randrange(4)
    graph.add_edges_from([(first, first + 1), (first + 1, first + draw.choice([0, 2]))])
    graph.add_edge(first + draw.choice([1, 2]), first)
    devices = [Device("a", draw.choice([None, 30])), Device("b", draw.choice([None, 30]))]
    links = [Link("a", "b", draw.choice([8.0, 64.0]), 0.25)]
    return PlacementProblem(graph, devices, links, objective="latency", contiguity=contiguity)


def keeps(problem: PlacementProblem, groups: list[list[int]], placed: Any) -> bool:
    """Whether cycles stay together, budgets are kept, and the contiguity is."""
    if not is_legal(problem, placed) or any(len({placed[node] for node in group}) > 1 for group in groups):
        return False
    crossing = {(placed[a], placed[b]) for a, b in problem.graph.edges if placed[a] != placed[b]}
    if problem.contiguity == "pipeline":
        return len(crossing) < 2
    if problem.contiguity == "free":
        return True
    below = {node: nx.descendants(problem.graph, node) for node in problem.graph}
    return not any(
        placed[a] == placed[b] != placed[middle] for a in below for middle in below[a] for b in below[middle]
    )


def shortest(problem: PlacementProblem, groups: list[list[int]], placed: Any) -> float:
    """The least time over all orders of the groups, each of which runs as a whole."""
    graph, best = problem.graph, math.inf
    needs = [{need for node in group for need in graph.predecessors(node)} - set(group) for group in groups]
    for order in itertools.permutations(range(len(groups))):
        end: dict[int, float] = {}
        free = {"a": 0.0, "b": 0.0}
        for each in order:
            home = placed[groups[each][0]]
            if not needs[each] <= set(end):
                break
            there = [
                end[need] + (sending(problem, need, placed[need], home) if placed[need] != home else 0.0)
                for need in needs[each]
            ]
            taken = sum(seconds_on(problem, node, home) for node in groups[each])
            done = max([*there, free[home] if taken else 0.0]) + taken
            end |= dict.fromkeys(groups[each], done)
            free[home] = done if taken else free[home]
        else:
            best = min(best, max(end.values()))
    return best


@pytest.mark.parametrize("contiguity", ["pipeline", "convex", "free"])
@pytest.mark.parametrize("seed", range(examples(12)))
def test_the_nodes_of_a_cycle_run_one_after_the_other_as_one(seed: int, contiguity: str) -> None:
    problem = circular(seed, contiguity)
    groups = [sorted(group) for group in nx.strongly_connected_components(problem.graph)]
    legal = [placed for placed in every_placement(problem) if keeps(problem, groups, placed)]
    if not legal:
        with pytest.raises(InfeasibleError):
            solve_placement(problem)
        return
    best = min(shortest(problem, groups, placed) for placed in legal)

    solution = solve_placement(problem)

    assert pytest.approx(best, rel=1e-5) == solution.objective_value
    assert solution.bound <= best * (1 + 1e-9)
    assert keeps(problem, groups, solution.device_of)
    start, home = solution.schedule, solution.device_of
    end = {node: start[node] + seconds_on(problem, node, home[node]) for node in home}
    done = {node: max(end[other] for other in group) for group in groups for node in group}
    for need, node in problem.graph.edges:
        if done[need] == done[node]:
            continue
        taken = sending(problem, need, home[need], home[node]) if home[need] != home[node] else 0.0
        assert start[node] >= done[need] + taken - 1e-9
    for one, other in itertools.combinations(home, 2):
        if home[one] == home[other] and end[one] > start[one] and end[other] > start[other]:
            assert end[one] <= start[other] + 1e-9 or end[other] <= start[one] + 1e-9
    assert pytest.approx(max(end.values())) == solution.objective_value


def test_a_node_that_needs_itself_has_a_latency() -> None:
    graph = nx.DiGraph([("a", "a"), ("a", "b")])
    for node in graph:
        graph.nodes[node].update(seconds=1.0, output_seconds=5.0)

    solution = solve_placement(PlacementProblem(graph, [Device("x"), Device("y")], objective="latency"))

    assert 2.0 == solution.objective_value
    assert solution.is_optimal


def test_what_a_cycle_makes_leaves_when_all_of_it_has_run() -> None:
    """The load of a device is that of its own nodes, though they are scheduled as one."""
    graph = nx.DiGraph([("a", "b"), ("b", "a"), ("a", "c")])
    for node, seconds in {"a": 1.0, "b": 2.0, "c": 4.0}.items():
        graph.nodes[node].update(seconds=seconds, output_seconds=0.5)

    solution = solve_placement(
        PlacementProblem(graph, [Device("x"), Device("y")], objective="latency", pinned={"a": "x", "c": "y"})
    )

    assert 7.5 == solution.objective_value
    assert {"a": 0.0, "b": 1.0, "c": 3.5} == solution.schedule
    assert {"x": 3.0, "y": 4.0} == solution.compute
    assert ("x", "y") == solution.order
