"""Latency placement: against brute force over all assignments and orders; schedules that hold what they promise."""

from __future__ import annotations

import itertools
import math

import networkx as nx
import pytest
from fuzz import examples
from placement_cases import every_placement, is_legal, is_pipeline, random_problem, seconds_on, sending

from fxpasses.devices import Device
from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers import soonest

RANDOM_GRAPHS = examples(60)


def shortest(problem, placed, known=math.inf):
    """The least makespan of an assignment over all orders, tried one by one."""
    graph = problem.graph
    best = known

    def extend(ends, free):
        nonlocal best
        if max(free.values(), default=0.0) >= best or max(ends.values(), default=0.0) >= best:
            return
        ready = [node for node in graph if node not in ends and all(need in ends for need in graph.predecessors(node))]
        if not ready:
            best = max(ends.values())
        for node in ready:
            home = placed[node]
            needs = [(need, placed[need]) for need in graph.predecessors(node)]
            there = max(
                (ends[n] + (sending(problem, n, at, home) if at != home else 0.0) for n, at in needs), default=0.0
            )
            taken = seconds_on(problem, node, home)
            end = (max(there, free.get(home, 0.0)) if taken else there) + taken
            extend({**ends, node: end}, {**free, home: end} if taken else free)

    extend({}, {})
    return best


def optimum(problem):
    best = math.inf
    for placed in every_placement(problem):
        if is_legal(problem, placed) and (problem.contiguity == "free" or is_pipeline(problem, placed)):
            best = shortest(problem, placed, best)
    return best


def check_schedule(problem, solution):
    """Nodes start after what they need and its copies, one at a time on a device, and the last ends as promised."""
    start, placed = solution.schedule, solution.device_of
    end = {node: start[node] + seconds_on(problem, node, placed[node]) for node in placed}
    for need, node in problem.graph.edges:
        copy = sending(problem, need, placed[need], placed[node]) if placed[need] != placed[node] else 0.0
        assert start[node] >= end[need] + copy - 1e-9
    for device in problem.devices:
        spans = sorted((start[n], end[n]) for n in solution.nodes(device.name) if end[n] > start[n])
        assert all(b[0] >= a[1] - 1e-9 for a, b in itertools.pairwise(spans))
    assert pytest.approx(max(end.values())) == solution.objective_value


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_brute_force_over_assignments_and_orders_finds_nothing_faster(seed: int) -> None:
    """The answer keeps every rule, its schedule holds, and it is the proven optimum."""
    contiguity = ["free", "pipeline"][seed % 2]
    sizes = [(6, 2), (5, 3), (4, 3)]
    problem = random_problem(seed, sizes, objective="latency", contiguity=contiguity, time_budget=0.1)
    best = optimum(problem)
    if math.isinf(best):
        with pytest.raises(InfeasibleError):
            solve_placement(problem)
        return

    solution = solve_placement(problem)

    assert is_legal(problem, solution.device_of)
    assert contiguity == "free" or is_pipeline(problem, solution.device_of)
    check_schedule(problem, solution)
    assert pytest.approx(best) == solution.objective_value
    assert solution.is_optimal


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS // 2))
def test_the_search_alone_is_bounded_by_brute_force(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without integer programs the answer keeps every rule, its schedule holds, and so does its bound."""
    monkeypatch.setattr(soonest, "SMALL", 0)
    sizes = [(6, 2), (5, 3), (4, 3)]
    problem = random_problem(seed, sizes, objective="latency", contiguity="free", time_budget=0.0)
    best = optimum(problem)
    try:
        solution = solve_placement(problem)
    except PlacementError:
        return  # it may miss a placement, and then says so

    assert is_legal(problem, solution.device_of)
    check_schedule(problem, solution)
    assert solution.bound <= best * (1 + 1e-9) <= solution.objective_value * (1 + 1e-9) ** 2


def test_nodes_that_wait_for_each_other_have_no_latency() -> None:
    graph = nx.DiGraph([("a", "b"), ("b", "a")])
    for node in graph:
        graph.nodes[node]["seconds"] = 1.0

    with pytest.raises(PlacementError) as caught:
        solve_placement(PlacementProblem(graph, [Device("x"), Device("y")], objective="latency"))

    assert "A latency needs nodes that do not wait for each other in a circle; 'a', 'b' do." == str(caught.value)


def test_a_longer_search_is_no_worse_and_keeps_a_tight_budget() -> None:
    """Branches run side by side though no device holds more than a third of the nodes."""
    graph = nx.DiGraph()
    for branch, step in itertools.product(range(3), range(6)):
        graph.add_node((branch, step), seconds=1.0 + (branch + step) % 3, kept_bytes=5, output_seconds=0.2)
        if step:
            graph.add_edge((branch, step - 1), (branch, step))
    problem = PlacementProblem(
        graph, [Device(name, 30) for name in "abc"], objective="latency", contiguity="free", time_budget=0.2
    )

    solution = solve_placement(problem)

    assert is_legal(problem, solution.device_of)
    check_schedule(problem, solution)
    assert 12.0 == solution.objective_value == solution.bound
