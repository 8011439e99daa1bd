"""Pipelines against brute force over all assignments: budgets, shared and live bytes, pins, groups, training graphs."""

from __future__ import annotations

import itertools
import random
from typing import Any

import attrs
import networkx as nx
import numpy as np
import pytest
from fuzz import examples
from random_placements import EveryPlacement, every_placement, random_problem, solved

from fxpasses.devices import Device, Link
from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners import PlacementProblem, PlacementSolution, solve_placement
from fxpasses.partitioners.solvers.contiguous import certifying, fewest
from fxpasses.partitioners.solvers.contiguous import solving as pipelines
from fxpasses.partitioners.solvers.contiguous.linked import islands

RANDOM_GRAPHS = examples(300)


def value_of(problem: PlacementProblem, every: EveryPlacement, solution: PlacementSolution) -> float:
    """What the definition says about an answer; it must break no rule."""
    row = every.row(problem, dict(solution.device_of))
    assert every.legal[row]
    assert every.pipeline[row]
    names = [device.name for device in problem.devices]
    assert pytest.approx(every.load[row].tolist()) == [solution.load[name] for name in names]
    assert every.size[row].tolist() == [solution.kept_bytes[name] for name in names]
    values = {
        "throughput": every.load[row].max(),
        "memory": every.size[row].max(),
        "devices": len(set(every.home[row])),
    }
    return float(values[problem.objective])


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_brute_force_over_all_assignments_finds_nothing_better(seed: int) -> None:
    """The answer keeps every rule, its figures are right, its bound holds, and it is the optimum on any links."""
    problem = random_problem(seed)
    every = every_placement(problem)
    values = every.values(problem)
    if (solution := solved(problem, values)) is None:
        return

    assert pytest.approx(value_of(problem, every, solution)) == solution.objective_value
    assert solution.bound <= values[0] * (1 + 1e-9)
    assert pytest.approx(values[0]) == solution.objective_value
    assert solution.is_optimal


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS // 3))
def test_the_question_for_something_better_ends_at_the_optimum(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As wide graphs are searched, from no answer at all: units cost more than their values, so most are absorbed."""
    monkeypatch.setattr(certifying, "MANY", -1)
    monkeypatch.setattr(pipelines, "_first_answer", lambda *_given: None)
    draw, problem = random.Random(seed), random_problem(seed, training=seed % 3 == 0, objective="throughput")
    graph = problem.graph.copy()
    for _node, facts in graph.nodes(data=True):
        facts |= {"seconds": draw.uniform(0.5, 3.0), "output_bytes": 0, "output_seconds": draw.choice([0, 0.3, 1.0])}
    problem = attrs.evolve(problem, graph=graph)
    every = every_placement(problem)
    values = every.values(problem)
    if (solution := solved(problem, values)) is None:
        return

    assert pytest.approx(values[0]) == solution.objective_value
    assert solution.is_optimal


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS // 3))
def test_leaves_that_leave_their_bytes_behind_give_a_bound(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs and heads with bytes on devices with little memory; what crosses costs more than they take."""
    monkeypatch.setattr(pipelines, "MUCH_TIME", 0.0)
    found = []
    light_answer = pipelines._light_answer
    monkeypatch.setattr(pipelines, "_light_answer", lambda *given: found.append(light_answer(*given)) or found[-1])
    draw, problem = random.Random(seed), random_problem(seed, objective="throughput")
    graph = problem.graph.copy()
    for _node, facts in graph.nodes(data=True):
        facts |= {"seconds": draw.uniform(0.2, 2.0), "output_bytes": 0, "output_seconds": draw.choice([0.3, 1.0, 2.0])}
    devices = [Device(device.name, draw.choice([60, 90, 120])) for device in problem.devices]
    problem = attrs.evolve(problem, graph=graph, devices=devices)
    values = every_placement(problem).values(problem)
    if (solution := solved(problem, values)) is None:
        return

    assert all(bound <= values[0] * (1 + 1e-9) for _answer, bound in found)
    assert all(answer is None or answer.rank[0] >= values[0] * (1 - 1e-9) for answer, _bound in found)
    assert pytest.approx(values[0]) == solution.objective_value
    assert solution.bound <= values[0] * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS // 3))
def test_the_bound_holds_on_islands_of_fast_links(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices that are alike, fast links inside two islands and slow ones between them: it is the optimum.

    In half of the graphs no value counts as one that reaches far.
    """
    monkeypatch.setattr(islands, "LOCAL", 0.5 if seed % 2 else 10.0)
    problem = random_problem(seed, training=seed % 3 == 0, objective="throughput", pinned={}, forbidden={})
    names = [device.name for device in problem.devices]
    island = {name: place // 2 for place, name in enumerate(names)}
    links = [Link(a, b, 256.0 if island[a] == island[b] else 8.0) for a, b in itertools.combinations(names, 2)]
    problem = attrs.evolve(problem, devices=[Device(name) for name in names], links=links)
    values = every_placement(problem).values(problem)
    if (solution := solved(problem, values)) is None:
        return

    assert solution.bound <= values[0] * (1 + 1e-9) <= solution.objective_value * (1 + 1e-9) ** 2
    assert solution.is_optimal


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS // 3))
def test_the_default_mode_is_bounded_by_brute_force(seed: int) -> None:
    """Without the exact search the answer still keeps every rule, and the bound still holds."""
    problem = random_problem(seed, time_budget=0)
    every = every_placement(problem)
    try:
        solution = solve_placement(problem)
    except PlacementError:
        return  # it may miss a placement, and then says so

    best = every.values(problem)[0]

    assert pytest.approx(value_of(problem, every, solution)) == solution.objective_value
    assert solution.bound <= best * (1 + 1e-9) <= solution.objective_value * (1 + 1e-9) ** 2


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS // 3))
def test_fewest_devices_come_first_then_the_smallest_largest_load(seed: int) -> None:
    problem = random_problem(seed, objective="devices")
    every = every_placement(problem)
    legal = every.legal & every.pipeline
    if not legal.any():
        return
    used = np.array([len(set(row)) for row in every.home.tolist()])
    fewest = used[legal].min()

    solution = solve_placement(problem)

    assert fewest == solution.objective_value == len(solution.order)
    assert pytest.approx(every.load.max(axis=1)[legal & (used == fewest)].min()) == max(solution.load.values())


def test_where_all_devices_are_needed_the_same_search_is_not_made_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[tuple[str, float]] = []

    def counted(problem: PlacementProblem, *reduced: Any) -> Any:
        searches.append((problem.objective, problem.program_effort))
        return pipelines.solve_pipeline(problem, *reduced)

    monkeypatch.setattr(fewest, "solve_pipeline", counted)
    graph = nx.path_graph(8, create_using=nx.DiGraph)
    nx.set_node_attributes(graph, {node: {"seconds": 1.0, "kept_bytes": 10, "output_bytes": 8} for node in graph})
    devices = [Device("a", 40), Device("b", 40)]
    links = [Link("a", "b", 64.0), Link("b", "a", 16.0)]

    solution = solve_placement(PlacementProblem(graph, devices, links, "devices"))

    assert ("a", "b") == solution.order
    assert [("devices", 1.0), ("throughput", 1.0)] == searches


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS // 3))
def test_the_missing_bytes_are_the_fewest(seed: int) -> None:
    """With one byte fewer than the missing ones on the devices there is no placement; where all were looked at, with
    so many more on each device there is one."""
    problem = random_problem(seed)
    try:
        solve_placement(problem)
    except InfeasibleError as error:
        missing, message = error.missing_bytes, str(error)
    else:
        return
    if missing is None:
        return

    def with_more(size: int) -> PlacementProblem:
        memory = [None if d.available_mem_bytes is None else d.available_mem_bytes + size for d in problem.devices]
        return attrs.evolve(problem, devices=[Device(d.name, m) for d, m in zip(problem.devices, memory, strict=True)])

    assert missing > 0
    with pytest.raises(InfeasibleError):
        solve_placement(with_more((missing - 1) // len(problem.devices)))
    if "No pipeline" in message:
        assert solve_placement(with_more(missing)).device_of
