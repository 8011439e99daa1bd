"""Latency placement: against brute force over all assignments and orders; schedules that hold what they promise."""

from __future__ import annotations

import itertools
import random

import attrs
import networkx as nx
import pytest
from fuzz import examples
from placement_cases import is_allowed, is_legal, random_problem
from schedule_cases import answer_or_proof, check_schedule, optimum

from benchmarks import placement_problems
from fxpasses.devices import Device, Link
from fxpasses.errors import PlacementError
from fxpasses.partitioners import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers.latency import certifying
from fxpasses.partitioners.solvers.latency.proving import LatencyProgram

RANDOM_GRAPHS = examples(90)


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_brute_force_over_assignments_and_orders_finds_nothing_faster(seed: int) -> None:
    """The answer keeps every rule, its schedule holds, and it is the proven optimum."""
    contiguity = ["free", "pipeline", "convex"][seed % 3]
    sizes = [(6, 2), (5, 3), (4, 3)]
    problem = random_problem(seed, sizes, objective="latency", contiguity=contiguity, time_budget=0.1)
    best = optimum(problem)

    solution = answer_or_proof(problem, best)

    if solution is None:
        return
    assert is_legal(problem, solution.device_of)
    assert is_allowed(problem, solution.device_of)
    check_schedule(problem, solution)
    assert pytest.approx(best) == solution.objective_value
    assert solution.is_optimal


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS // 3))
def test_the_search_alone_is_bounded_by_brute_force(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without integer programs the answer keeps every rule, its schedule holds, and so does its bound."""
    monkeypatch.setattr(certifying, "SMALL", 0)
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


@pytest.mark.parametrize(("effort", "seconds", "asked"), [(None, 0.1, 1), (None, 0.01, 0), (0.1, 0.1, 0)])
def test_a_bound_that_takes_long_is_asked_for_where_there_is_time_and_a_proof_is_wanted(
    monkeypatch: pytest.MonkeyPatch, effort: float | None, seconds: float, asked: int
) -> None:
    """600 variables; the budget is kept and the bound holds either way."""
    calls: list[float] = []
    relaxed = LatencyProgram.relaxed
    monkeypatch.setattr(LatencyProgram, "relaxed", lambda program: calls.append(relaxed(program)) or calls[-1])
    graph = nx.DiGraph()
    for layer, branch in itertools.product(range(50), range(4)):
        graph.add_node((layer, branch), seconds=1.0 + (layer + branch) % 3, kept_bytes=1, output_seconds=0.2)
        graph.add_edges_from(((layer - 1, other), (layer, branch)) for other in (branch, 0) if layer)
    devices = [Device("left", 80), Device("middle", 80), Device("right", 80)]
    problem = PlacementProblem(graph, devices, objective="latency", time_budget=seconds, effort=effort)

    solution = solve_placement(problem)

    assert asked == len(calls)
    assert is_legal(problem, solution.device_of)
    assert max(calls, default=0.0) * (1 - 1e-6) <= solution.bound <= solution.objective_value


def test_the_devices_of_a_pipeline_stand_in_the_order_in_which_values_flow() -> None:
    """A device that is needed by another one comes first, though the other one begins before it."""
    graph = nx.DiGraph([("x", "z"), ("y", "z")])
    for node, seconds in {"x": 5.0, "y": 1.0, "z": 0.0, "alone": 2.0}.items():
        graph.add_node(node, seconds=seconds, output_seconds=0.0)
    pinned = {"x": "a", "y": "b", "z": "a", "alone": "b"}

    solution = solve_placement(
        PlacementProblem(graph, [Device("a"), Device("b")], objective="latency", pinned=pinned, time_budget=0)
    )

    assert 5.0 == solution.objective_value == solution.bound
    assert ("b", "a") == solution.order


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


def test_budgets_are_passed_on_the_way_to_what_keeps_them() -> None:
    """Some operators need a thousand times as much as others, so hardly any change keeps budgets that hold just so."""
    graph, draw = placement_problems.transformer(6), random.Random(8)
    for _node, facts in graph.nodes(data=True):
        facts["kept_bytes"] = draw.choice([1, 3, 10, 30, 100, 300, 1000])
    problem = placement_problems.place(
        graph, 3, objective="latency", contiguity="free", memory=1.05, equal=False, time_budget=2.0
    )
    pairs = itertools.combinations([device.name for device in problem.devices], 2)
    problem = attrs.evolve(problem, links=[Link(*pair, 300e9, 2e-6) for pair in pairs])

    solution = solve_placement(problem)

    assert is_legal(problem, solution.device_of)
    check_schedule(problem, solution)
    assert solution.objective_value < 1.005 * 0.0511727458  # the best that was ever found


@pytest.mark.parametrize("seed", [9, 10])
def test_pipelines_begin_at_any_device(seed: int) -> None:
    """Small changes do not lead from pipelines that begin at one device to those that begin at another."""
    draw = random.Random(seed)
    graph: nx.DiGraph[int] = nx.DiGraph()
    for node in range(30):
        seconds = draw.uniform(0.1, 1)
        facts = {"kept_bytes": draw.randrange(1, 100), "output_seconds": draw.uniform(0, 0.6)}
        graph.add_node(node, seconds={"fast": seconds, "slow": 2 * seconds}, **facts)
        graph.add_edges_from((before, node) for before in range(max(0, node - 6), node) if draw.random() < 0.3)
    memory = int(0.8 * sum(size for _node, size in graph.nodes(data="kept_bytes")))
    devices = [Device("fast", memory), Device("slow", memory)]
    problem = PlacementProblem(graph, devices, objective="latency", contiguity="pipeline", effort=0)

    begun = [attrs.evolve(problem, pinned={0: first}) for first in ("fast", "slow")]
    best = min(solve_placement(each).objective_value for each in begun)

    assert solve_placement(problem).objective_value <= best * 1.01


def blocks(count: int, **more: float) -> nx.DiGraph:
    """A chain of blocks: one node, two branches of two, of which one takes no time in places."""
    graph = nx.DiGraph()
    for block in range(count):
        for place in range(5):
            seconds = 0.0 if (block + place) % 7 == 0 else 0.1 * (1 + (5 * block + place) % 4)
            graph.add_node((block, place), seconds=seconds, kept_bytes=4, output_bytes=1 << 10, **more)
        graph.add_edges_from(((block, 0), (block, place)) for place in (1, 2))
        graph.add_edges_from(((block, place), (block, place + 2)) for place in (1, 2))
        if block:
            graph.add_edges_from(((block - 1, place), (block, 0)) for place in (3, 4))
    return graph


@pytest.mark.parametrize("contiguity", ["free", "pipeline"])
def test_a_graph_of_thousands_of_nodes_is_joined_first(contiguity: str) -> None:
    """The schedule is that of all nodes, the budgets are kept, and the answer is near the bound."""
    graph = blocks(900)
    links = [Link(a, b, 1e7, 1e-5) for a, b in itertools.combinations("abc", 2)]
    problem = PlacementProblem(
        graph,
        [Device(name, 7000) for name in "abc"],
        links,
        objective="latency",
        contiguity=contiguity,
        time_budget=0.1,
    )

    solution = solve_placement(problem)

    assert 3 == len(set(solution.device_of.values()))
    assert is_legal(problem, solution.device_of)
    assert is_allowed(problem, solution.device_of)
    check_schedule(problem, solution)
    assert solution.gap < 0.6  # one device at a time is as good as all branches one after the other


def test_a_training_step_is_scheduled_backward_nodes_included() -> None:
    """A backward node runs on the device of its forward node, after what it needs."""
    graph = blocks(5, output_seconds=0.02)
    for node in list(graph):
        graph.add_node(("backward", *node), seconds=0.2, backward_of=node, output_seconds=0.02)
    for before, after in list(graph.edges):
        graph.add_edge(("backward", *after), ("backward", *before))
    graph.add_edges_from((node, ("backward", *node)) for node in list(graph) if node[0] != "backward")
    problem = PlacementProblem(
        graph, [Device("a"), Device("b")], objective="latency", contiguity="free", time_budget=0.1
    )

    solution = solve_placement(problem)

    check_schedule(problem, solution)
    assert all(solution.device_of[node] == solution.device_of["backward", *node] for node in blocks(5))
    assert set(graph) == set(solution.schedule)
    assert solution.objective_value < 0.9 * sum(facts["seconds"] for _node, facts in graph.nodes(data=True))


@pytest.mark.parametrize("contiguity", ["free", "pipeline"])
def test_the_same_problem_has_the_same_answer(contiguity: str) -> None:
    """Names of nodes, and so the order of sets of them, change nothing; another seed may."""
    found = []
    for name in ("x", "y"):
        graph = nx.relabel_nodes(blocks(6, output_seconds=0.03), lambda node, name=name: f"{name}{node}")
        problem = PlacementProblem(
            graph, [Device(d, 100) for d in "ab"], objective="latency", contiguity=contiguity, time_budget=0.05
        )
        solution = solve_placement(problem)
        found.append((list(solution.device_of.values()), list(solution.schedule.values()), solution.bound))

    assert found[0] == found[1]


def test_budgets_that_no_pipeline_keeps_are_kept_freely() -> None:
    """A large node lies between two that fit beside each other only."""
    graph = nx.path_graph(3, create_using=nx.DiGraph)
    for node, size in enumerate((30, 50, 30)):
        graph.nodes[node].update(seconds=1.0, kept_bytes=size, output_seconds=0.5)
    problem = PlacementProblem(graph, [Device("a", 60), Device("b", 60)], objective="latency", contiguity="free")

    solution = solve_placement(problem)

    assert solution.device_of[0] == solution.device_of[2] != solution.device_of[1]
    assert 4.0 == solution.objective_value


@pytest.mark.filterwarnings("error")
def test_seconds_may_be_as_large_as_numbers_are() -> None:
    graph = nx.path_graph(6, create_using=nx.DiGraph)
    for node in graph:
        graph.nodes[node].update(seconds=1e300, kept_bytes=10, output_bytes=1)

    solution = solve_placement(PlacementProblem(graph, [Device("a", 100), Device("b", 100)], objective="latency"))

    assert 6e300 == pytest.approx(solution.objective_value)


def test_a_partner_that_is_no_node_is_told() -> None:
    graph = nx.DiGraph([("a", "b")])
    graph.nodes["a"].update(seconds=1.0)
    graph.nodes["b"].update(seconds=1.0, backward_of=["a"])

    with pytest.raises(PlacementError, match=r"Node 'b' is backward_of \['a'\], which is no other node of the graph"):
        solve_placement(PlacementProblem(graph, [Device("x"), Device("y")]))


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize("contiguity", ["free", "convex", "pipeline"])
def test_what_has_room_on_one_device_only_runs_there_in_bounds_too(objective: str, contiguity: str) -> None:
    """A fraction of it was put where there is room for a fraction: the bound was a tenth of the latency."""
    graph = nx.DiGraph([("table", "sum")])
    graph.add_node("table", seconds={"fast": 0.01, "host": 5.0}, kept_bytes=100)
    graph.add_node("sum", seconds={"fast": 0.01, "host": 1.0}, kept_bytes=50, output_seconds=0.001)
    devices = [Device("fast", 90), Device("host")]

    solution = solve_placement(PlacementProblem(graph, devices, objective=objective, contiguity=contiguity, effort=0))

    assert {"table": "host", "sum": "fast"} == solution.device_of
    assert 5.0 <= solution.bound
    assert solution.bound == pytest.approx(solution.objective_value, rel=0.01)
