"""Bounds on the latency: what lies before, behind and beside each node; never above what brute force finds."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
from fuzz import examples
from placement_cases import random_problem
from test_latency_placement import optimum

from fxpasses.devices import Device
from fxpasses.partitioners import PlacementProblem
from fxpasses.partitioners.solvers.latency.heads import Heads
from fxpasses.partitioners.solvers.latency.scheduling import Scheduler
from fxpasses.partitioners.solvers.proofs.bounds import prices_of
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of


def heads_of(problem: PlacementProblem) -> Heads:
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    prices = prices_of(units, tables.memory, "throughput")
    return Heads.of(Scheduler.of(tables), ~np.isfinite(units.seconds)[units.unit_of], prices.load)


@pytest.mark.parametrize("seed", range(examples(30)))
def test_the_bound_is_never_above_the_optimum(seed: int) -> None:
    """Brute force over all assignments and orders; of graphs of up to ten nodes under ``make fuzz``."""
    sizes = [(7, 2), (5, 3)] if seed < 30 else [(10, 2), (8, 2), (6, 3)]  # ten nodes take most of a minute
    problem = random_problem(seed, sizes, objective="latency", contiguity="free")

    assert math.isinf(best := optimum(problem)) or heads_of(problem).bound <= best * (1 + 1e-9)


def joined(send: float, count: int = 2) -> PlacementProblem:
    """Branches of one node of 4 seconds each, between a node of 1 second and one of 2, on three devices."""
    graph = nx.DiGraph()
    graph.add_node("in", seconds=1.0, output_seconds=send)
    graph.add_node("out", seconds=2.0)
    for branch in range(count):
        graph.add_node(branch, seconds=4.0, output_seconds=send)
        graph.add_edges_from([("in", branch), (branch, "out")])
    return PlacementProblem(graph, [Device(name) for name in "abc"], objective="latency", contiguity="free")


@pytest.mark.parametrize(("send", "bound"), [(0.0, 7.0), (0.5, 7.5), (1.5, 8.5), (9.0, 11.0)])
def test_inputs_come_late_or_are_made_one_by_one(send: float, bound: float) -> None:
    """Two branches meet: one value is sent in front of them and one behind, or one device does it all."""
    assert bound <= heads_of(joined(send)).bound + 1e-9 + send  # what is sent counts at one of the two ends
    assert heads_of(joined(send)).bound <= optimum(joined(send)) + 1e-9


def test_work_counts_where_many_nodes_lie_side_by_side() -> None:
    """Nine branches on three devices: each device does three of them, between the first node and the last."""
    assert pytest.approx(1 + 3 * 4 + 2) == heads_of(joined(0.0, 9)).bound
