"""Costs that differ by many orders of magnitude, or are none: what is proven holds; bytes are not rounded down."""

from __future__ import annotations

import math
import random
from typing import Any

import attrs
import networkx as nx
import pytest
from fuzz import examples
from placement_cases import every_placement, is_legal, is_pipeline, loads, random_problem
from schedule_cases import answer_or_proof, check_schedule, optimum

from fxpasses.devices import Device, Link
from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners import PlacementProblem, solve_placement

RANDOM_GRAPHS = examples(60)
RATIOS = (1.0, 10.0, 30.0, 1e3, 1e6)


def extreme(seed: int, **options: Any) -> PlacementProblem:
    """A random problem with a device and a link that are slower than the others, by up to a million times and more."""
    draw = random.Random(seed)
    problem = random_problem(seed, **options)
    ratio = {device.name: 1.0 for device in problem.devices} | {problem.devices[-1].name: draw.choice(RATIOS)}
    for _node, facts in problem.graph.nodes(data=True):
        each = facts["seconds"] if isinstance(facts["seconds"], dict) else dict.fromkeys(ratio, facts["seconds"])
        facts["seconds"] = {name: seconds * ratio[name] * draw.uniform(0.5, 1.5) for name, seconds in each.items()}
    slow = draw.choice([0.25, 1e3, 1e10])
    links = [attrs.evolve(problem.links[0], latency=slow), *problem.links[1:]]
    return attrs.evolve(problem, links=links)


def is_convex(problem: PlacementProblem, placed: Any) -> bool:
    """Whether no path leaves a device and comes back."""
    paths = nx.transitive_closure_dag(problem.graph)
    return not any(placed[a] == placed[c] != placed[b] for a, b in paths.edges for c in paths.successors(b))


@pytest.mark.parametrize("objective", ["throughput", "latency", "devices"])
@pytest.mark.parametrize("contiguity", ["pipeline", "convex", "free"])
@pytest.mark.parametrize("second", [5e-324, 1e-310, 1e-290])
def test_seconds_that_have_hardly_a_digit_are_placed_as_others(second: float, contiguity: str, objective: str) -> None:
    """No quotient of them is taken that is no number."""
    draw = random.Random(7)
    graph = nx.gnp_random_graph(7, 0.4, seed=7, directed=True)
    graph.remove_edges_from([(a, b) for a, b in graph.edges if a >= b])
    for _node, facts in graph.nodes(data=True):
        facts.update(seconds=draw.randint(1, 4), kept_bytes=draw.choice([10, 20]), output_seconds=draw.choice([0, 1]))
    usual = PlacementProblem(graph, [Device("a", 80), Device("b", 60)], objective=objective, contiguity=contiguity)
    tiny = graph.copy()
    for _node, facts in tiny.nodes(data=True):
        facts |= {key: second * facts[key] for key in ("seconds", "output_seconds")}

    expected = solve_placement(usual)
    solution = solve_placement(attrs.evolve(usual, graph=tiny))

    unit = 1.0 if objective == "devices" else second
    assert expected.is_optimal
    assert solution.is_optimal
    assert pytest.approx(expected.objective_value * unit, rel=1e-6, abs=0.0) == solution.objective_value
    assert solution.bound > 0


@pytest.mark.parametrize("contiguity", ["pipeline", "convex", "free"])
def test_a_device_may_be_faster_than_a_quotient_says(contiguity: str) -> None:
    graph = nx.path_graph(4, create_using=nx.DiGraph)
    for node in graph:
        graph.nodes[node].update(seconds={"a": 1.0, "b": 5e-324}, kept_bytes=10, output_seconds=1e-310 * node)
    problem = PlacementProblem(graph, [Device("a"), Device("b", 20)], contiguity=contiguity)

    solution = solve_placement(problem)

    assert 2 == solution.objective_value
    assert solution.is_optimal


ALLOWED = {"free": lambda _problem, _placed: True, "pipeline": is_pipeline, "convex": is_convex}


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_no_placement_is_below_a_bound_however_much_costs_differ(seed: int) -> None:
    contiguity = ["free", "convex", "pipeline"][seed % 3]
    problem = extreme(seed, contiguity=contiguity)
    found = [p for p in every_placement(problem) if is_legal(problem, p) and ALLOWED[contiguity](problem, p)]
    best = min((max(loads(problem, placed).values()) for placed in found), default=math.inf)

    solution = answer_or_proof(problem, best)

    if solution is None:
        return
    assert pytest.approx(max(loads(problem, solution.device_of).values())) == solution.objective_value
    assert solution.bound <= best * (1 + 1e-6)
    assert solution.objective_value <= best * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_no_schedule_is_below_a_bound_however_much_devices_differ(seed: int) -> None:
    sizes = [(6, 2), (5, 3), (4, 3)]
    problem = extreme(seed, sizes=sizes, objective="latency", contiguity="free", time_budget=0.1)
    best = optimum(problem)

    solution = answer_or_proof(problem, best)

    if solution is None:
        return
    check_schedule(problem, solution)
    assert solution.bound <= best * (1 + 1e-6)
    assert pytest.approx(best, rel=1e-6) == solution.objective_value


def test_a_slow_device_is_no_reason_to_rule_out_a_schedule_on_the_others() -> None:
    """The program used to count that a node ends as late as on the slowest device, wherever it ran."""
    graph: nx.DiGraph[int] = nx.DiGraph([(0, 1), (2, 4)])
    seconds = {0: (0.5, 1.0, 5.0), 1: (0.95, 1.9, 9.5), 2: (0.0, 0.0, 0.0), 3: (0.0, 0.0, 0.0), 4: (0.9, 0.9, 9.0)}
    for node, kept in ((0, 5), (1, 9), (2, 1), (3, 0), (4, 4)):
        graph.add_node(node, seconds=dict(zip("abs", seconds[node], strict=True)), kept_bytes=kept)
    devices = [Device("a", 12), Device("b", 12), Device("s")]

    solution = solve_placement(PlacementProblem(graph, devices, objective="latency", contiguity="free"))

    assert pytest.approx(1.95) == solution.objective_value
    assert solution.is_optimal


@pytest.mark.parametrize("contiguity", ["free", "convex", "pipeline"])
def test_nodes_that_take_no_time_have_a_latency_by_what_they_send(contiguity: str) -> None:
    graph = nx.path_graph(6, create_using=nx.DiGraph)
    for node in graph:
        graph.nodes[node].update(output_seconds=1.0 + node, kept_bytes=5)

    solution = solve_placement(
        PlacementProblem(graph, [Device("a", 15), Device("b", 15)], objective="latency", contiguity=contiguity)
    )

    assert 3.0 == solution.objective_value  # between the third and the fourth


@pytest.mark.parametrize("objective", ["throughput", "latency", "memory", "devices"])
@pytest.mark.parametrize("contiguity", ["free", "convex", "pipeline"])
def test_parts_of_bytes_count_as_whole_ones(objective: str, contiguity: str) -> None:
    graph = nx.path_graph(4, create_using=nx.DiGraph)
    for node in graph:
        graph.nodes[node].update(seconds=1.0, kept_bytes=0.9, live_bytes=0.5, shared_bytes={"w": 0.1})
    fitting = [Device("a", 4), Device("b", 4)]

    solution = solve_placement(PlacementProblem(graph, fitting, objective=objective, contiguity=contiguity))

    assert solution.kept_bytes == {"a": 4, "b": 4}  # two nodes, one that is alive, the shared one
    small = [Device("a", 4), Device("b", 3)]
    with pytest.raises(InfeasibleError):
        solve_placement(PlacementProblem(graph, small, objective=objective, contiguity=contiguity))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (
            {"kept_bytes": 1e19},
            "All bytes together must be 2**53 at most, or their sums are not exact; node 1 has kept_bytes=1e+19.",
        ),
        (
            {"kept_bytes": 1e308, "shared_bytes": {"w": 1e308, "v": 1e308}},
            "All bytes together must be 2**53 at most, or their sums are not exact; the shared key 'w' has a "
            "size=1e+308.",
        ),
        (
            {"shared_bytes": {"w": 2**60}},
            "All bytes together must be 2**53 at most, or their sums are not exact; the shared key 'w' has a "
            "size=1.15292e+18.",
        ),
        (
            {"kept_bytes": 10**400},
            "Node 1 has a number of kept_bytes that no float can hold; give a smaller one.",
        ),
        (
            {"seconds": 1e308},
            "The seconds of all nodes and values together are more than a float can hold; give smaller ones, or faster "
            "links.",
        ),
    ],
)
def test_costs_that_cannot_be_added_up_are_refused(facts: dict[str, Any], message: str) -> None:
    graph = nx.path_graph(3, create_using=nx.DiGraph)
    graph.nodes[0].update(seconds=1e308)
    graph.nodes[1].update(facts)
    if "seconds" not in facts:
        graph.nodes[0].update(seconds=1.0)

    with pytest.raises(PlacementError) as caught:
        solve_placement(PlacementProblem(graph, [Device("a"), Device("b")], [Link("a", "b", 1e9, 0.0)]))

    assert message == str(caught.value)


@pytest.mark.parametrize("slack", [0, 2, 1000, 10_000])
def test_a_kilobyte_counts_beside_gigabytes(slack: int) -> None:
    """Where a budget is used to the byte, a program that keeps its rows up to a millionth proves a wrong answer."""
    giga = 2**33
    graph = nx.DiGraph([(3, 4), (4, 6)])
    graph.add_node(3, kept_bytes=1000 + slack)
    graph.add_node(4, live_bytes=giga + 4)
    graph.add_node(5, kept_bytes=giga + 4, live_bytes=2**20)
    graph.add_node(6, kept_bytes=3 * 2**30)
    devices = [Device("x"), Device("y", giga + 4 + slack)]

    solution = solve_placement(PlacementProblem(graph, devices, objective="memory", contiguity="free"))

    assert solution.objective_value == solution.bound == 11_812_209_644 + slack


@pytest.mark.parametrize("least", [1e-7, 9e-7, 1e-6, 2e-6, 1e-5])
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_a_microsecond_counts_beside_seconds(least: float, scale: float) -> None:
    """The smallest of the loads' parts decides nothing, but must not rule out what is best."""
    graph = nx.DiGraph([("a", "d"), ("c", "h"), ("d", "h"), ("e", "f")])
    graph.add_node("a", seconds=scale, kept_bytes=5)
    graph.add_node("b", seconds={"y": 5 * scale})
    graph.add_node("c", seconds=least * scale, output_seconds=1.2 * scale)
    graph.add_node("e", kept_bytes=6)
    graph.add_node("f", seconds=3.7 * scale, kept_bytes=12)
    graph.add_node("h", live_bytes=9)

    solution = solve_placement(PlacementProblem(graph, [Device("x", 21), Device("y", 33)], contiguity="free"))

    assert pytest.approx(5 * scale, rel=1e-5) == solution.objective_value
    assert solution.is_optimal


@pytest.mark.parametrize("unit", [1e-24, 1.0])
def test_the_smallest_load_on_the_fewest_devices_is_found_where_sending_takes_far_longer(unit: float) -> None:
    """What the search begins with sends a value that takes a billion times what nodes take, and more."""
    graph = nx.DiGraph([("b", "a"), ("a", "d")])
    for node, seconds, sent in (("a", 0.3, 5e12), ("b", 0.8, 0.0), ("c", 0.7, 5e12), ("d", 0.5, 5e11)):
        graph.add_node(node, seconds=seconds * unit, output_seconds=sent * unit)
    problem = PlacementProblem(
        graph, [Device("x"), Device("y")], objective="devices", contiguity="free", pinned={"b": "x", "c": "y"}
    )

    solution = solve_placement(problem)

    assert 2 == solution.objective_value
    assert {"a": "y", "b": "x", "c": "y", "d": "y"} == solution.device_of
    assert pytest.approx(1.5 * unit) == max(solution.load.values())


@pytest.mark.parametrize("objective", ["throughput", "latency", "memory", "devices"])
@pytest.mark.parametrize("contiguity", ["pipeline", "convex", "free"])
def test_budgets_that_nothing_can_fill_are_no_limit(contiguity: str, objective: str) -> None:
    """Their sum is more than a float can hold."""
    graph = nx.path_graph(6, create_using=nx.DiGraph)
    nx.set_node_attributes(graph, {node: {"seconds": 1.0, "kept_bytes": 10} for node in graph})
    problem = PlacementProblem(graph, [Device("a"), Device("b")], objective=objective, contiguity=contiguity)

    solution = solve_placement(attrs.evolve(problem, devices=[Device("a", 1.7e308), Device("b", 1.7e308)]))

    expected = solve_placement(problem)
    assert expected.device_of == solution.device_of
    assert expected.bound == solution.bound
