"""Bounds from single heavy units: against brute force over all sets of units that hold them, and over placements."""

from __future__ import annotations

import itertools
import random
from typing import Any

import networkx as nx
import numpy as np
import pytest
from fuzz import examples

from fxpasses.devices import Device, Link
from fxpasses.partitioners import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers.proofs.heavy_units import heavy_bound
from fxpasses.partitioners.solvers.reduced.minimum_cuts import ENDLESS, least_cut
from fxpasses.partitioners.solvers.reduced.reducing import Units, reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of


def head_problem(seed: int, **options: Any) -> PlacementProblem:
    """A DAG of nine nodes of which one takes about as long as all others."""
    draw = random.Random(seed)
    graph: Any = nx.DiGraph()
    for node in range(9):
        graph.add_node(node, seconds=draw.uniform(0.5, 2.0), output_seconds=draw.choice([0.2, 0.6, 2.0]))
    graph.nodes[draw.randrange(9)]["seconds"] = 8.0
    pairs = itertools.combinations(range(9), 2)
    graph.add_edges_from(pair for pair in pairs if draw.random() < 0.35)
    return PlacementProblem(graph, [Device("a"), Device("b"), Device("c")], [Link("a", "b")], **options)


def load_of(units: Units, chosen: set[int], seconds: Any, leaving: Any, entering: Any) -> float:
    """What a device is busy with that runs some units."""
    users: dict[int, set[int]] = {value: set() for value in range(len(units.source))}
    for value, user in units.uses.tolist():
        users[value].add(user)
    load = sum(seconds[unit] for unit in chosen)
    for value, source in enumerate(units.source.tolist()):
        if source in chosen and users[value] - chosen:
            load += leaving[value]
        if source not in chosen and users[value] & chosen:
            load += entering[value]
    return float(load)


@pytest.mark.parametrize("seed", range(examples(40)))
def test_the_bound_is_the_least_load_of_any_set_around_the_heaviest_unit(seed: int) -> None:
    """Over all sets of units that hold it, convex or not."""
    problem = head_problem(seed)
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    leaving = tables.fixed[[makers[0] for makers in units.makers]]
    kind = units.seconds[:, 0], leaving, leaving
    alone = [load_of(units, {unit}, *kind) for unit in range(units.size)]
    rest = set(range(units.size))
    every = {}
    for unit in range(units.size):
        others = sorted(rest - {unit})
        sets = itertools.chain.from_iterable(itertools.combinations(others, size) for size in range(len(others) + 1))
        every[unit] = min(load_of(units, {unit, *chosen}, *kind) for chosen in sets)
    heaviest = sorted(range(units.size), key=lambda unit: -alone[unit])[:4]

    found = heavy_bound(units, [kind], 0.0)

    assert pytest.approx(max(every[unit] for unit in heaviest), rel=1e-6) == found
    assert found <= max(every.values()) * (1 + 1e-9)


@pytest.mark.parametrize("contiguity", ["pipeline", "free"])
@pytest.mark.parametrize("seed", range(examples(20)))
def test_problems_with_one_heavy_node_are_proven(seed: int, contiguity: Any) -> None:
    solution = solve_placement(head_problem(seed, contiguity=contiguity))

    assert solution.is_optimal


def test_a_known_bound_that_is_higher_stays() -> None:
    problem = head_problem(0)
    units = reduce_problem(problem, tables_of(problem))
    nothing = np.zeros(len(units.source))

    assert 100.0 == heavy_bound(units, [(units.seconds[:, 0], nothing, nothing)], 100.0)


def test_cuts_are_rounded_down_and_never_hold_an_endless_edge() -> None:
    """Source 0, sink 3: the edges into 1 are cheap, the one between 1 and 2 must not be cut."""
    tails, heads = np.array([0, 0, 1, 2]), np.array([1, 2, 2, 3])
    capacity = np.array([1 / 3, 1.0, ENDLESS, 2.0])

    found = least_cut(tails, heads, capacity, 0, 3)

    assert pytest.approx(4 / 3, rel=1e-8) == found
    assert found <= 4 / 3
    assert 0.0 == least_cut(tails[:2], heads[:2], np.zeros(2), 0, 3)
