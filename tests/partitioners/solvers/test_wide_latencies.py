"""Latencies of wide graphs that are too large to be searched node by node: few groups, schedules of all nodes."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest

from fxpasses import fake_devices
from fxpasses.partitioners import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers.latency import joining
from fxpasses.partitioners.solvers.latency.annealing import Annealing
from fxpasses.partitioners.solvers.latency.certifying import work_of
from fxpasses.partitioners.solvers.latency.joining import join_until, order_of_groups
from fxpasses.partitioners.solvers.latency.levels import Level
from fxpasses.partitioners.solvers.latency.list_schedules import rules
from fxpasses.partitioners.solvers.latency.searching import started
from fxpasses.partitioners.solvers.latency.shrinking import listed
from fxpasses.partitioners.solvers.latency.timelines import WORK, timeline_of
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of


def layers(width: int, rows: int, inputs: int, devices: int = 8, **options: object) -> PlacementProblem:
    """Nodes that each need some of the row before."""
    draw = np.random.default_rng(width)
    graph: nx.DiGraph[int] = nx.DiGraph()
    for node in range(width * rows):
        graph.add_node(node, seconds=draw.uniform(0.1, 1.9), output_seconds=0.1 * draw.uniform(0.1, 1.9), kept_bytes=1)
    for node in range(width, width * rows):
        before = (node // width - 1) * width
        graph.add_edges_from((before + need, node) for need in draw.choice(width, inputs, replace=False).tolist())
    return PlacementProblem(graph, fake_devices(devices, **options), objective="latency", contiguity="free")


def level_of(problem: PlacementProblem) -> Level:
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    return Level(tables, work_of(units, tables), units.unit_of, None)


@pytest.mark.parametrize("memory", [None, 45])
def test_nodes_are_scheduled_one_by_one_as_a_schedule_says(memory: int | None) -> None:
    """Budgets are kept, nodes wait for what they need, and for their device; not much more than the work is left."""
    problem = layers(30, 10, 3, **({} if memory is None else {"memory": memory}))
    level = level_of(problem)
    topological = np.array(order_of_groups(np.arange(300), level.tables))

    answer = listed(level, topological)

    again = level.scheduled(answer.home, answer.order)
    assert math.isclose(again.value, answer.value)
    np.testing.assert_allclose(again.start, answer.start)
    assert answer.value < 1.2 * level.tables.seconds[:, 0].sum() / 8


def test_grids_of_many_nodes_are_near_what_devices_can_do() -> None:
    """Groups of nodes that wait for each other's inputs make it hardly faster than one device."""
    side = 70
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(side * side), seconds=1.0, output_seconds=0.1)
    graph.add_edges_from((node, node + 1) for node in range(side * side - 1) if (node + 1) % side)
    graph.add_edges_from((node, node + side) for node in range(side * (side - 1)))

    solution = solve_placement(
        PlacementProblem(graph, fake_devices(8), objective="latency", contiguity="free", time_budget=0.05)
    )

    assert solution.objective_value < 1.3 * solution.bound


def test_few_groups_are_left_where_neighbours_run_in_different_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs at the same time elsewhere stands between them; what is of one place is joined all the same."""
    monkeypatch.setattr(joining, "MANY", 500)
    level = level_of(layers(400, 5, 3))
    topological = np.array(order_of_groups(np.arange(2000), level.tables))
    place = np.arange(2000) % 8

    joined = join_until(level.tables, level.model, level.unit_of, topological, 100, place)

    assert joined.size < 300
    assert all(len(set(place[joined.unit == group].tolist())) == 1 for group in range(joined.size))
    assert len(order_of_groups(joined.node, level.tables)) == joined.size  # no cycle


def test_annealing_counts_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of as many changes takes more work where nodes have many inputs."""
    counted = {}
    for inputs in (2, 40):
        level = level_of(layers(50, 4, inputs))
        start = started(level, rules(level))[0]
        states = []

        def begun(*arguments: object, states: list[object] = states) -> object:
            states.append(timeline_of(*arguments))  # type: ignore[arg-type]  # passed on as they are
            return states[-1]

        monkeypatch.setattr("fxpasses.partitioners.solvers.latency.annealing.timeline_of", begun)
        level.network  # noqa: B018  # made before
        for_all = Annealing(level, 0.0, np.random.default_rng(0))
        for_all.improved(start, 64, 0.1)  # one round of changes
        counted[inputs] = int(states[0].sizes[WORK])

    assert counted[40] > 2 * counted[2]
