"""Units that nothing tells apart run in the order of their numbers: fewer ideals, and no better pipeline is lost."""

from __future__ import annotations

import random
from typing import Any

import attrs
import networkx as nx
import pytest
from fuzz import examples
from random_placements import assert_solved_as_by_brute_force

from fxpasses.devices import Device, Link
from fxpasses.partitioners import PlacementProblem
from fxpasses.partitioners.solvers.contiguous import certifying
from fxpasses.partitioners.solvers.contiguous import solving as pipelines
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import all_ideals
from fxpasses.partitioners.solvers.contiguous.refined import refining
from fxpasses.partitioners.solvers.contiguous.twins import twins_in_order
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of


def attention(draw: random.Random, memory: int) -> PlacementProblem:
    """Two or three products of one value go into one node, twice; what they cost is the same for each."""
    graph: Any = nx.DiGraph()
    last = "start"
    graph.add_node(last, seconds=draw.uniform(0.5, 2), output_seconds=draw.choice([0.1, 0.5]), kept_bytes=3)
    for block in range(2):
        seconds, sending = draw.uniform(0.5, 2), draw.choice([0.0, 0.1, 0.5])
        end = f"{block}.mixed"
        graph.add_node(end, seconds=draw.uniform(0.5, 2), output_seconds=draw.choice([0.1, 0.5]), kept_bytes=2)
        for product in range(draw.choice([2, 3])):
            node = f"{block}.{product}"
            graph.add_node(node, seconds=seconds, output_seconds=sending, kept_bytes=4)
            nx.add_path(graph, [last, node, end])
        last = end
    devices = [Device("a", memory), Device("b", memory), Device("c", memory)]
    return PlacementProblem(graph, devices, [Link("a", "b"), Link("a", "c"), Link("b", "c")], time_budget=10.0)


def number_of_ideals(problem: PlacementProblem) -> int:
    tables = tables_of(problem)
    words = all_ideals(twins_in_order(reduce_problem(problem, tables), tables), 100_000)
    assert words is not None
    return len(words)


@pytest.mark.parametrize("is_refined", [False, True])
@pytest.mark.parametrize("seed", range(examples(60)))
def test_the_best_pipeline_is_that_of_brute_force(seed: int, is_refined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all assignments, with much memory and little; the answer known before is one along a single order."""
    if is_refined:
        monkeypatch.setattr(refining, "FIRST", 2)
        monkeypatch.setattr(certifying, "FEW", 0)
    monkeypatch.setattr(pipelines, "LADDER", (1,))
    monkeypatch.setattr(pipelines, "improved", lambda _search, best, *_steps: best)
    draw = random.Random(seed)
    problem = attention(draw, memory=draw.choice([12, 14, 100]))

    assert_solved_as_by_brute_force(problem)


def test_one_set_of_twins_is_enough() -> None:
    """Three products of one value: any of them, any two of them, or all are eight sets, of which four are looked at."""
    graph = nx.DiGraph([("x", name) for name in "qkv"] + [(name, "out") for name in "qkv"])
    for node in graph:
        graph.nodes[node].update(seconds=1.0, output_seconds=0.5)
    problem = PlacementProblem(graph, [Device("a"), Device("b")])

    assert 6 == number_of_ideals(problem)  # nothing, x, and with it one, two and three products; everything


@pytest.mark.parametrize(
    "told_apart_by",
    [
        {"seconds": 1.5},
        {"output_seconds": 0.25},
        {"output_bytes": 8},
        {"kept_bytes": 5},
        {"live_bytes": 5},
        {"shared_bytes": {"table": 5}},
        {"seconds": {"a": 1.0, "b": 2.0}},
    ],
    ids=str,
)
def test_what_tells_two_units_apart(told_apart_by: dict[str, Any]) -> None:
    """Their costs, if only on one device, and their bytes where memory is short: then all four sets are looked at."""
    graph = nx.DiGraph([("x", "k"), ("x", "v"), ("k", "out"), ("v", "out")])
    for node in graph:
        graph.nodes[node].update(seconds=1.0, output_seconds=0.5, kept_bytes=4)
    problem = PlacementProblem(graph, [Device("a", 14), Device("b", 14)])
    other = graph.copy()
    other.nodes["v"].update(told_apart_by)

    assert (5, 6) == (number_of_ideals(problem), number_of_ideals(attrs.evolve(problem, graph=other)))


def test_other_users_and_other_inputs_tell_apart() -> None:
    """A unit of another value, and one with one user more."""
    graph = nx.DiGraph([("x", "k"), ("x", "v"), ("k", "out"), ("v", "out")])
    graph.add_edges_from([("out", "later")])
    for node in graph:
        graph.nodes[node].update(seconds=1.0, output_seconds=0.5)
    problem = PlacementProblem(graph, [Device("a"), Device("b")])
    used, given = graph.copy(), graph.copy()
    used.add_edge("v", "later")
    given.add_node("y", seconds=1.0, output_seconds=0.5)
    given.add_edge("y", "v")

    assert 6 == number_of_ideals(problem)
    assert 7 == number_of_ideals(attrs.evolve(problem, graph=used))
    assert 10 == number_of_ideals(attrs.evolve(problem, graph=given))


def test_bytes_tell_nothing_apart_where_everything_has_room() -> None:
    """What is alive beside an operator depends on its place in the program; no budget asks about it here."""
    graph = nx.DiGraph([("x", "k"), ("x", "v"), ("k", "out"), ("v", "out")])
    for number, node in enumerate(graph):
        graph.nodes[node].update(seconds=1.0, output_seconds=0.5, live_bytes=number)
    devices = [Device("a", 100), Device("b", 100)]

    assert 5 == number_of_ideals(PlacementProblem(graph, devices))
