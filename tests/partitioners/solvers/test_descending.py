"""Moves that make pipelines better under the links that values take, as the definitions count them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import attrs
import networkx as nx
import pytest
from fuzz import examples
from placement_cases import is_legal, is_pipeline, loads

from fxpasses.devices import Device, Link
from fxpasses.partitioners import PlacementProblem, PlacementSolution, solve_placement
from fxpasses.partitioners.solvers.contiguous import solving


def tangled(seed: int, nodes: int = 16, **options: Any) -> PlacementProblem:
    """A random graph on four devices that are all different, as are the links between them; a hidden answer fits."""
    draw = random.Random(seed)
    graph: nx.DiGraph[int] = nx.DiGraph()
    for node in range(nodes):
        graph.add_node(node, seconds=draw.uniform(0.5, 2.0), kept_bytes=draw.randint(5, 30))
        graph.nodes[node].update(output_bytes=draw.choice([0, 8, 100]), output_seconds=draw.choice([0.0, 0.3]))
    graph.add_edges_from(pair for pair in itertools.combinations(range(nodes), 2) if draw.random() < 3 / nodes)
    speed = {name: draw.choice([1.0, 2.0, 4.0]) for name in "abcd"}
    for _node, facts in graph.nodes(data=True):
        facts["seconds"] = {name: facts["seconds"] / speed[name] for name in speed}
    share = sum(graph.nodes[node]["kept_bytes"] for node in graph) // 4
    devices = [Device(name, share + 40) for name in speed]
    links = [
        Link(first, second, draw.choice([20.0, 100.0, 1e4]), draw.choice([0.0, 0.01, 0.5]))
        for first, second in itertools.permutations(speed, 2)
    ]
    return PlacementProblem(graph, devices, links, **{"time_budget": 0, "effort": 0, **options})


def moved(problem: PlacementProblem, solution: PlacementSolution) -> Iterator[dict[Any, str]]:
    """One node on another device, or two of them that change places."""
    placed = dict(solution.device_of)
    for node, device in itertools.product(placed, problem.devices):
        yield placed | {node: device.name}
    for one, other in itertools.combinations(placed, 2):
        yield placed | {one: placed[other], other: placed[one]}


@pytest.mark.parametrize("seed", range(examples(12)))
def test_no_move_of_a_node_makes_the_largest_load_smaller(seed: int) -> None:
    problem = tangled(seed)

    solution = solve_placement(problem)

    assert is_legal(problem, solution.device_of)
    assert is_pipeline(problem, solution.device_of)
    assert pytest.approx(loads(problem, solution.device_of)) == solution.load
    best = min(
        max(loads(problem, placed).values())
        for placed in moved(problem, solution)
        if is_legal(problem, placed) and is_pipeline(problem, placed)
    )
    assert solution.objective_value <= best * (1 + 1e-9)


def test_answers_are_no_worse_than_without_moves_and_most_are_better(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [tangled(seed) for seed in range(16)]
    answers = [solve_placement(problem) for problem in problems]
    monkeypatch.setattr(solving, "descended", lambda _search, best, _bound: best)

    plain = [solve_placement(problem) for problem in problems]

    pairs = [(one.objective_value, other.objective_value) for one, other in zip(answers, plain, strict=True)]
    assert all(one <= other for one, other in pairs)
    assert sum(one < 0.99 * other for one, other in pairs) > len(pairs) / 2


def test_with_time_left_moves_at_random_lead_on() -> None:
    """More time never makes an answer worse, and some better."""
    problems = [tangled(seed) for seed in range(6)]
    short = [solve_placement(problem).objective_value for problem in problems]

    longer = [solve_placement(attrs.evolve(problem, time_budget=0.15)).objective_value for problem in problems]

    assert all(one <= other * (1 + 1e-9) for one, other in zip(longer, short, strict=True))
    assert longer != short


def test_nothing_is_moved_where_the_work_does_not_reach() -> None:
    """A table of all moves of some hundred units on many devices takes longer than the rest."""
    problem = tangled(0, 300)
    devices = [*problem.devices, *(Device(f"d{index}", 10_000) for index in range(28))]
    for _node, facts in problem.graph.nodes(data=True):
        facts["seconds"] = 1.0
    problem = attrs.evolve(problem, devices=devices)

    solution = solve_placement(problem)

    assert is_legal(problem, solution.device_of)
    assert is_pipeline(problem, solution.device_of)


def test_moves_are_the_same_each_time() -> None:
    first, second = (solve_placement(tangled(3, 24, time_budget=0.1)) for _ in range(2))

    assert first.device_of == second.device_of
