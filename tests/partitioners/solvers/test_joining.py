"""Which unit joins a core next, and how many ideals each splits, beside all ideals of small graphs."""

from __future__ import annotations

import random
from typing import Any

import networkx as nx
import numpy as np
import pytest
from fuzz import examples

from fxpasses import fake_devices
from fxpasses.partitioners import PlacementProblem
from fxpasses.partitioners.solvers.contiguous.ideals.classes import device_classes
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import all_ideals, pack, unpack
from fxpasses.partitioners.solvers.contiguous.refined.cores import held_by, mattering
from fxpasses.partitioners.solvers.contiguous.refined.joining import FEW, Joining
from fxpasses.partitioners.solvers.reduced.reducing import Units, reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of


def problem_of(
    edges: list[tuple[int, int]], sends: dict[int, float] | None = None, size: int = 0, devices: int = 2
) -> PlacementProblem:
    graph: Any = nx.DiGraph()
    graph.add_nodes_from(range(size))
    graph.add_edges_from(edges)
    for node in graph:
        graph.nodes[node].update(seconds=1.0, output_seconds=(sends or {}).get(node, 0.1))
    return PlacementProblem(graph, fake_devices(devices))


def units_of(problem: PlacementProblem) -> Units:
    return reduce_problem(problem, tables_of(problem))


@pytest.mark.parametrize("seed", range(examples(40)))
def test_the_unit_that_splits_the_fewest_ideals_joins_next(seed: int) -> None:
    """Until all have joined: each time as few are split as the sample of all ideals of the core says."""
    draw = random.Random(seed)
    size = draw.randint(3, 8)  # at most as many ideals as the sample has
    pairs = [(a, b) for b in range(size) for a in range(b)]
    units = units_of(problem_of(draw.sample(pairs, draw.randint(0, len(pairs) // 2)), size=size))
    words = all_ideals(units, 1000)
    assert words is not None
    inside = unpack(words, units.size)
    chosen = np.array([draw.random() < 0.4 for _unit in range(units.size)])
    core = np.unique(inside & chosen, axis=0)

    joining = Joining(units, np.ones(units.size), chosen, pack(core))
    counts = {unit: splits(inside, chosen, unit) for unit in np.flatnonzero(~chosen).tolist()}
    first = joining.next() if counts else None

    assert first is None or counts[first] == min(counts.values())
    left = {joining.next() for _unit in range(len(counts) - 1)}
    assert left == set(counts) - {first}


def splits(inside: np.ndarray[Any, np.dtype[np.bool_]], chosen: np.ndarray[Any, Any], unit: int) -> int:
    """How many ideals of the core are those of two that differ in a unit."""
    both = inside & (chosen | (np.arange(len(chosen)) == unit))
    return len(np.unique(both, axis=0)) - len(np.unique(inside & chosen, axis=0))


@pytest.mark.parametrize(("times", "first"), [(0.99, 1), (1.01, 3)])
def test_a_unit_that_splits_more_joins_first_if_it_matters_as_many_times_more(times: float, first: int) -> None:
    """Of three ideals of a row the unit between two of it splits one, the unit beside it all."""
    units = units_of(problem_of([(0, 1), (1, 2)], size=4))
    chosen = np.array([True, False, True, False])
    ideals = np.array([[0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0]], dtype=bool)

    joining = Joining(units, np.array([1.0, 1.0, 1.0, times * (1 + FEW) / (1 / 3 + FEW)]), chosen, pack(ideals))

    assert [joining.next(), joining.next()] == [first, 4 - first]


def test_a_mask_that_many_use_matters_by_what_it_sends() -> None:
    """It is as light as the others, but crosses every cut between its first user and the last one."""
    edges = [(node, node + 1) for node in range(1, 9)] + [(0, node) for node in (2, 5, 9)]
    problem = problem_of(edges, sends={0: 5.0}, devices=6)
    tables, units = tables_of(problem), units_of(problem)
    classes = device_classes(tables, units)
    mask = int(units.unit_of[tables.nodes.index(0)])

    matters = mattering(units, classes, np.full(len(classes), 0.5), np.ones(units.size), held_by(units))

    others = np.delete(matters, mask)
    assert others == pytest.approx(others[0])
    assert matters[mask] > 5 * others[0]
