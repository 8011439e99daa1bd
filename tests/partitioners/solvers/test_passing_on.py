"""Units that only pass a value on: a problem without them is below the given one, and its answer leads to one."""

from __future__ import annotations

import random
from typing import Any

import attrs
import networkx as nx
import numpy as np
import pytest
from fuzz import examples
from random_placements import assert_solved_as_by_brute_force, every_placement

from fxpasses.devices import Device, Link
from fxpasses.partitioners import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers.contiguous import solving as pipelines
from fxpasses.partitioners.solvers.contiguous.ideals.classes import device_classes
from fxpasses.partitioners.solvers.contiguous.passing_on import passed_on, without_passing_on
from fxpasses.partitioners.solvers.reduced.reducing import Units, reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of

LINKS = [Link("a", "b"), Link("a", "c"), Link("b", "c")]


def rotary(draw: random.Random, memory: int = 100) -> PlacementProblem:
    """A table, a chain of layers of two operators, and for each layer a view of the table that both use."""
    graph: Any = nx.DiGraph()
    size = draw.choice([0.1, 0.3])
    graph.add_node("table", seconds=draw.choice([0.1, 0.5]), output_seconds=size, kept_bytes=1)
    last = "table"
    for layer in range(3):
        view, first, second = f"{layer}.view", f"{layer}.first", f"{layer}.second"
        graph.add_node(view, seconds=0.0, output_seconds=size * draw.choice([1.0, 1.0, 2.0]))
        for node in (first, second):
            graph.add_node(node, seconds=draw.uniform(0.5, 2), output_seconds=draw.choice([0.1, 0.5]), kept_bytes=4)
        graph.add_edges_from([("table", view), (view, first), (view, second), (last, first), (first, second)])
        last = second
    devices = [Device("a", memory), Device("b", memory), Device("c", memory)]
    return PlacementProblem(graph, devices, LINKS, time_budget=10.0)


def passing(problem: PlacementProblem) -> tuple[Units, dict[int, int]]:
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    return units, passed_on(units, device_classes(tables, units))


def names_of(problem: PlacementProblem) -> set[Any]:
    units, passed = passing(problem)
    nodes = list(problem.graph)
    return {nodes[node] for unit in passed for node in units.members[unit]}


def loads(problem: PlacementProblem, units: Units, home: np.ndarray[Any, Any]) -> list[float]:
    """What each device carries: its units, each value that leaves it, and each that enters it, once."""
    fixed = [facts["output_seconds"] for _node, facts in problem.graph.nodes(data=True)]
    found = [float(units.seconds[home == device, device].sum()) for device in range(len(problem.devices))]
    for value, maker in enumerate(units.source.tolist()):
        cost = sum(fixed[node] for node in units.makers[value])
        users = {int(home[user]) for number, user in units.uses.tolist() if number == value} - {int(home[maker])}
        for device in users:
            found[device] += cost
        found[int(home[maker])] += cost if users else 0.0
    return found


@pytest.mark.parametrize("seed", range(examples(15)))
def test_no_device_carries_more_without_them(seed: int) -> None:
    """Any pipeline; the loads that are compared with are first checked against those of brute force."""
    problem = rotary(random.Random(seed))
    every = every_placement(problem)
    units, passed = passing(problem)
    without = without_passing_on(units, passed)
    rows = np.random.default_rng(seed).permutation(np.flatnonzero(every.pipeline))[:150].tolist()

    assert 3 == len(passed)
    for row in rows:
        home = np.zeros(units.size, dtype=np.int64)
        home[units.unit_of] = every.home[row]
        assert pytest.approx(every.load[row].tolist()) == loads(problem, units, home)
        assert all(np.array(loads(problem, without, home)) <= every.load[row] + 1e-9)


@pytest.mark.parametrize("memory", [100, 13])
@pytest.mark.parametrize("seed", range(examples(30)))
def test_the_best_pipeline_is_that_of_brute_force(seed: int, memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer known before is one along a single order, so that the relaxed problem may lead to a better one."""
    monkeypatch.setattr(pipelines, "MANY_VIEWS", 1)
    monkeypatch.setattr(pipelines, "LADDER", (1,))
    problem = rotary(random.Random(seed), memory)

    assert_solved_as_by_brute_force(problem)


@pytest.mark.parametrize("seed", range(examples(10)))
def test_training_too(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward of the table uses a view of it: what it made comes back to it for nothing."""
    monkeypatch.setattr(pipelines, "MANY_VIEWS", 1)
    draw = random.Random(seed)
    problem = rotary(draw)
    graph = problem.graph.copy()
    for layer in range(3):
        graph.add_node(f"{layer}.back", seconds=draw.uniform(0.5, 2), output_seconds=0.2, backward_of=f"{layer}.first")
        graph.add_edge(f"{layer}.view", f"{layer}.back")
    graph.add_node("table.back", seconds=0.3, output_seconds=0.1, backward_of="table")
    graph.add_edges_from(
        [("2.back", "1.back"), ("1.back", "0.back"), ("0.back", "table.back"), ("0.view", "table.back")]
    )
    graph.remove_nodes_from(["2.view", "2.back"])
    graph.add_edge("table", "2.first")
    problem = attrs.evolve(problem, graph=graph, devices=problem.devices[:2], links=LINKS[:1])

    assert_solved_as_by_brute_force(problem)


def test_the_relaxed_problem_alone_finds_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Views stand beside the first of their users then, and nothing else is searched."""
    problem = rotary(random.Random(3))
    expected = solve_placement(problem)
    looked_at = []
    search = pipelines.smallest

    def only_relaxed(own: Any, *rest: Any, **known: Any) -> Any:
        looked_at.append(own.units.size)
        return search(own, *rest, **known) if len(looked_at) == 1 else (None, 0.0)

    monkeypatch.setattr(pipelines, "MANY_VIEWS", 1)
    monkeypatch.setattr(pipelines, "LADDER", (1,))
    monkeypatch.setattr(pipelines, "improved", lambda _search, best, *_steps: best)
    monkeypatch.setattr(pipelines, "smallest", only_relaxed)
    solution = solve_placement(problem)

    assert pytest.approx(expected.objective_value) == solution.objective_value
    assert looked_at[0] < passing(problem)[0].size


@pytest.mark.parametrize(
    "facts",
    [{"seconds": 0.1}, {"seconds": {"a": 0.0, "b": 0.1, "c": 0.0}}, {"kept_bytes": 1}, {"shared_bytes": {"w": 1}}],
    ids=str,
)
def test_what_costs_anything_is_more_than_a_view(facts: dict[str, Any]) -> None:
    """Seconds, also on one device only, and bytes of its own or shared ones."""
    problem = rotary(random.Random(0))
    graph = problem.graph.copy()
    graph.nodes["1.view"].update(facts)
    if "shared_bytes" in facts:
        graph.nodes["2.first"].update(facts)

    assert {"0.view", "1.view", "2.view"} == names_of(problem)
    assert {"0.view", "2.view"} == names_of(attrs.evolve(problem, graph=graph))


def test_what_makes_less_or_uses_more_is_no_view() -> None:
    """A slice is cheaper to send than what it is taken from; a sum has two inputs."""
    problem = rotary(random.Random(0))
    sliced, added = problem.graph.copy(), problem.graph.copy()
    sliced.nodes["1.view"]["output_seconds"] = 0.01
    added.add_edge("0.second", "1.view")

    assert {"0.view", "2.view"} == names_of(attrs.evolve(problem, graph=sliced))
    assert {"0.view", "2.view"} == names_of(attrs.evolve(problem, graph=added))


def test_a_view_of_a_view_passes_the_same_value_on() -> None:
    """Both are left out, and what uses the second uses the table."""
    problem = rotary(random.Random(0))
    graph = problem.graph.copy()
    graph.add_node("again", seconds=0.0, output_seconds=1.0)
    graph.remove_edge("2.view", "2.first")
    graph.add_edges_from([("2.view", "again"), ("again", "2.first")])
    deeper = attrs.evolve(problem, graph=graph)
    units, passed = passing(deeper)
    nodes = list(graph)
    without = without_passing_on(units, passed)
    makers = {nodes[units.members[int(without.source[value])][0]] for value, _user in without.uses.tolist()}

    assert {"0.view", "1.view", "2.view", "again"} == names_of(deeper)
    assert not makers & names_of(deeper)
    assert solve_placement(deeper).is_optimal
