"""Convex placement against brute force over all assignments."""

from __future__ import annotations

import random
from collections.abc import Iterable

import attrs
import networkx as nx
import numpy as np
import pytest
from fuzz import examples
from random_placements import every_placement, random_problem

from fxpasses.devices import Device, Link
from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers.convex import latency as convex_latency
from fxpasses.partitioners.solvers.convex import loads as convex_loads
from fxpasses.partitioners.solvers.proofs.assigning import Proof
from fxpasses.partitioners.solvers.reduced.reaching import Reach

RANDOM_GRAPHS = examples(60)


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_small_problems_are_solved_to_the_proven_optimum(seed: int) -> None:
    """No path leaves a device and comes back, every rule is kept, and no such assignment is better."""
    problem = random_problem(seed, contiguity="convex")
    every = every_placement(problem)
    values = every.values(problem)
    if not len(values):
        with pytest.raises(InfeasibleError):
            solve_placement(problem)
        return

    solution = solve_placement(problem)

    row = every.row(problem, dict(solution.device_of))
    assert every.legal[row]
    assert every.convex[row]
    assert pytest.approx(values[0], rel=1e-5) == solution.objective_value
    assert solution.bound <= values[0] * (1 + 1e-9)


@pytest.mark.parametrize("seed", [65, 199, 341, 444, 478, 485, 745, 750, 928, *range(examples(10))])
def test_on_the_fewest_devices_small_problems_have_the_smallest_largest_load(seed: int) -> None:
    """In the first nine moves from the best pipeline end above it."""
    problem = random_problem(seed, contiguity="convex", objective="devices", training=False)
    every = every_placement(problem)
    legal = every.legal & every.convex
    if not legal.any():
        return
    used = np.array([len(set(row)) for row in every.home.tolist()])
    fewest = int(used[legal].min())

    solution = solve_placement(problem)

    assert fewest == solution.objective_value
    assert pytest.approx(every.load[legal & (used == fewest)].max(axis=1).min()) == max(solution.load.values())


def test_a_program_that_is_slow_to_relax_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """HiGHS looked at one of 5,000 rows for 15 seconds before it could be stopped, where two were given."""
    draw, graph = random.Random(7), nx.DiGraph()
    for node in range(60):
        graph.add_node(node, seconds=draw.random(), output_bytes=draw.randint(1, 100))
        graph.add_edges_from((before, node) for before in draw.sample(range(node), min(node, 2)))
    links = [Link("d0", "d1", 1000, 0.01), Link("d2", "d3", 5000)]
    asked: list[float] = []
    monkeypatch.setattr(
        convex_loads, "_pipeline", lambda _problem, _tables, units, _seconds: np.zeros(units.size, dtype=int)
    )
    monkeypatch.setattr(convex_loads._Search, "descended", lambda _search, home, _moves: home)
    monkeypatch.setattr(
        convex_loads, "least_load", lambda *_, seconds, **_rest: asked.append(seconds) or Proof(None, 0.0)
    )
    problem = PlacementProblem(graph, [Device(f"d{k}") for k in range(4)], links, contiguity="convex")

    for seconds in (0.5, 20.0):
        solve_placement(attrs.evolve(problem, time_budget=seconds))

    assert [21.5] == asked


def crossed() -> PlacementProblem:
    """Two chains of a long and a short node each, in opposite order: each device can take the two alike."""
    graph = nx.DiGraph([("a1", "b1"), ("b2", "a2")])
    for node, facts in graph.nodes(data=True):
        facts["seconds"] = {"a": 1.0 if node[0] == "a" else 9.0, "b": 1.0 if node[0] == "b" else 9.0}
    return PlacementProblem(graph, [Device("a"), Device("b")], contiguity="convex")


def ladder(steps: int = 120) -> PlacementProblem:
    """Crossed chains, too many for the integer program."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for step in range(steps):
        graph.add_edge(f"a1.{step}", f"b1.{step}")
        graph.add_edge(f"b2.{step}", f"a2.{step}")
    for node, facts in graph.nodes(data=True):
        facts["seconds"] = {"a": 1.0 if node[0] == "a" else 3.0, "b": 1.0 if node[0] == "b" else 3.0}
    return PlacementProblem(graph, [Device("a"), Device("b")], contiguity="convex", time_budget=0)


def test_convex_sets_may_need_values_of_each_other_where_a_pipeline_must_not() -> None:
    problem = crossed()

    convex = solve_placement(problem)
    pipeline = solve_placement(attrs.evolve(problem, contiguity="pipeline"))

    assert {"a1": "a", "a2": "a", "b1": "b", "b2": "b"} == convex.device_of
    assert 2.0 == convex.objective_value
    assert 2.0 < pipeline.objective_value


def test_a_sample_may_be_quickest_where_two_sets_need_values_of_each_other() -> None:
    graph = nx.DiGraph([("n0", "n1"), ("n0", "n3"), ("n2", "n3"), ("n2", "n4")])
    for node, seconds in {"n0": 3.0, "n1": {"a": 3.0}, "n2": 2.0, "n3": {"a": 0.5}, "n4": 3.0}.items():
        graph.nodes[node].update(seconds=seconds, output_seconds=0.7)
    graph.nodes["n2"]["kept_bytes"] = 10
    problem = PlacementProblem(graph, [Device("a"), Device("b", 9)], objective="latency", contiguity="convex")

    convex = solve_placement(problem)
    pipeline = solve_placement(attrs.evolve(problem, contiguity="pipeline"))

    assert {"n0": "b", "n1": "a", "n2": "a", "n3": "a", "n4": "b"} == convex.device_of
    assert pytest.approx(7.2) == convex.objective_value
    assert convex.is_optimal
    assert pytest.approx(8.5) == pipeline.objective_value


def test_convex_sets_that_no_pipeline_can_be_have_a_latency() -> None:
    problem = attrs.evolve(crossed(), objective="latency", pinned={"a1": "a", "a2": "a", "b1": "b", "b2": "b"})

    assert 2.0 == solve_placement(problem).objective_value
    with pytest.raises(InfeasibleError, match="have to share a device"):
        solve_placement(attrs.evolve(problem, contiguity="pipeline"))


def test_sets_of_the_smallest_load_make_a_latency_of_many_nodes_better() -> None:
    problem = attrs.evolve(ladder(), objective="latency")

    convex = solve_placement(problem)
    pipeline = solve_placement(attrs.evolve(problem, contiguity="pipeline"))

    assert convex.bound <= convex.objective_value < pipeline.objective_value


def test_moves_make_a_latency_better_where_chains_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sets of the smallest load take turns there."""
    problem, draw = attrs.evolve(ladder(30), objective="latency"), random.Random(7)
    for step in range(1, 30):
        if draw.random() < 0.15:
            problem.graph.add_edge(f"b1.{step - 1}", f"a1.{step}")
    for _node, facts in problem.graph.nodes(data=True):
        facts["output_seconds"] = draw.choice([0.0, 0.3])

    moved = solve_placement(problem)
    monkeypatch.setattr(convex_latency, "MOST_MOVED", 0)
    as_started = solve_placement(problem)

    assert moved.bound <= moved.objective_value < 0.97 * as_started.objective_value


@pytest.mark.parametrize("size", [120, 400])
def test_the_quickest_pipeline_keeps_its_schedule(size: int) -> None:
    """Another order of its nodes, as simple rules give it, may be slower."""
    draw = random.Random(1)
    graph: nx.DiGraph[int] = nx.DiGraph()
    for node in range(size):
        graph.add_node(node, seconds=draw.uniform(0.5, 4), output_seconds=draw.uniform(0, 1))
        graph.add_edges_from((before, node) for before in range(max(0, node - 5), node) if draw.random() < 0.3)
    devices = [Device(name) for name in "abcd"]
    problem = PlacementProblem(graph, devices, objective="latency", contiguity="convex", time_budget=0.05)

    convex = solve_placement(problem)
    pipeline = solve_placement(attrs.evolve(problem, contiguity="pipeline"))

    assert convex.bound <= convex.objective_value <= pipeline.objective_value * (1 + 1e-9)


@pytest.mark.parametrize("objective", ["throughput", "latency", "memory", "devices"])
def test_of_many_nodes_only_pipelines_are_looked_at_and_that_is_said(objective: str) -> None:
    """That there is no pipeline is no proof that there are no convex sets."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for step in range(2200):
        graph.add_edge(f"a1.{step}", f"b1.{step}")
        graph.add_edge(f"b2.{step}", f"a2.{step}")
    nx.set_node_attributes(graph, 1.0, "seconds")
    pins = {node: node[0] for node in graph}
    problem = PlacementProblem(
        graph, [Device("a"), Device("b")], objective=objective, contiguity="convex", pinned=pins, time_budget=0
    )

    with pytest.raises(
        PlacementError, match="convex sets of 8800 nodes are looked for among pipelines only: No pip"
    ) as error:
        solve_placement(problem)
    assert not isinstance(error.value, InfeasibleError)


def test_moves_of_many_units_are_as_few_as_there_is_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work: units of sets of which it is asked whether they are convex."""
    asked = list[int]()
    is_convex = Reach.is_convex

    def counted(reach: Reach, units: Iterable[int]) -> bool:
        held = list(units)
        asked.append(len(held))
        return is_convex(reach, held)

    monkeypatch.setattr(Reach, "is_convex", counted)

    def work(size: int) -> int:
        asked.clear()
        draw, graph = random.Random(0), nx.path_graph(size, create_using=nx.DiGraph)
        for node in graph:
            graph.nodes[node].update(seconds=draw.random(), output_seconds=0.05)
        problem = PlacementProblem(graph, [Device(name) for name in "abcd"], contiguity="convex", time_budget=0.1)
        pipeline = solve_placement(attrs.evolve(problem, contiguity="pipeline"))
        assert solve_placement(problem).objective_value <= pipeline.objective_value * (1 + 1e-9)
        return sum(asked)

    small, large = work(500), work(2000)
    assert 0 < large <= 3 * small


def test_without_a_program_the_search_still_improves_the_pipeline() -> None:
    """Moves find what no pipeline reaches, under the bound."""
    problem = ladder()

    convex = solve_placement(problem)
    pipeline = solve_placement(attrs.evolve(problem, contiguity="pipeline"))

    assert convex.bound <= convex.objective_value < pipeline.objective_value


def test_what_lies_between_two_of_a_group_joins_them_and_cycles_of_groups_do_not() -> None:
    graph = nx.DiGraph([("a1", "m"), ("m", "a2"), ("a1", "b1"), ("b2", "a2")])
    for _node, facts in graph.nodes(data=True):
        facts["seconds"] = 1.0
    groups = [["a1", "a2"], ["b1", "b2"]]

    solution = solve_placement(
        PlacementProblem(graph, [Device("x"), Device("y")], contiguity="convex", colocate=groups)
    )

    assert solution.device_of["a1"] == solution.device_of["m"] == solution.device_of["a2"]
    assert solution.device_of["b1"] == solution.device_of["b2"] != solution.device_of["a1"]
    assert 2 == len(np.unique(list(solution.device_of.values())))


def test_of_the_sets_on_the_fewest_devices_those_of_the_smallest_loads_are_looked_for() -> None:
    """Moves go on as long as the load gets smaller, though the number of devices stays the same."""
    graph = nx.DiGraph([("s", "v"), ("s", "u"), ("s", "w"), ("v", "w"), ("t", "u"), ("t", "w")])
    for node, seconds, kept_bytes, output in (
        ("s", 0.2, 0, 1.0),
        ("v", 0.0, 10, 0.0),
        ("t", 1.4, 5, 0.0),
        ("u", 1.5, 10, 1.0),
        ("w", 0.0, 18, 0.0),
    ):
        graph.nodes[node].update(seconds=seconds, kept_bytes=kept_bytes, output_seconds=output)
    devices = [Device("a", 27), Device("b", 27)]

    solution = solve_placement(
        PlacementProblem(graph, devices, objective="devices", contiguity="convex", pinned={"u": "b"}, time_budget=0)
    )

    assert 2 == solution.objective_value
    assert pytest.approx({"a": 2.4, "b": 2.7}) == solution.load


@pytest.mark.parametrize("time_budget", [0.0, 0.05])
def test_a_latency_is_refused_with_the_proof_that_loads_have(time_budget: float) -> None:
    """What the search takes of the budget for its first answers is not what the proof gets."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for node, kept_bytes, live_bytes in (("v", 10, 0), ("w", 0, 8), ("x", 0, 8), ("y", 10, 0), ("z", 5, 0)):
        graph.add_node(node, seconds=1.0, kept_bytes=kept_bytes, live_bytes=live_bytes)
    graph.nodes["z"]["shared_bytes"] = {"table": 8}
    graph.add_edges_from(pair.split() for pair in ("v w", "v y", "w x", "w y", "w z", "x z", "x y", "y z"))
    devices = [Device("a", 11), Device("b", 14), Device("c", 17)]

    with pytest.raises(InfeasibleError) as caught:
        solve_placement(
            PlacementProblem(graph, devices, objective="latency", contiguity="convex", time_budget=time_budget)
        )

    assert 1 == caught.value.missing_bytes
