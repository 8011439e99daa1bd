"""Latencies of wide graphs that are too large to be searched node by node: few groups, schedules of all nodes."""

from __future__ import annotations

import math

import attrs
import networkx as nx
import numba
import numpy as np
import pytest
from test_timelines import Begun

from fxpasses import Device, fake_devices
from fxpasses.partitioners import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers.latency import joining, listing, solving
from fxpasses.partitioners.solvers.latency.certifying import work_of
from fxpasses.partitioners.solvers.latency.joining import join_until, order_of_groups
from fxpasses.partitioners.solvers.latency.levels import Level
from fxpasses.partitioners.solvers.latency.many_nodes import ManyNodes
from fxpasses.partitioners.solvers.latency.running import move, settle
from fxpasses.partitioners.solvers.latency.timelines import WORK, Network, Timeline
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

    answer = min(ManyNodes(level).listed(), key=lambda each: each.value)

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
        PlacementProblem(graph, fake_devices(32), objective="latency", contiguity="free", time_budget=0.05)
    )

    assert solution.objective_value < 2 * solution.bound


def test_lists_that_are_near_the_bound_need_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide layers of more nodes than are searched one by one: within a thousandth, without groups or pipelines."""
    monkeypatch.setattr(solving, "_in_groups", None)
    monkeypatch.setattr(solving, "_starts", None)

    solution = solve_placement(layers(500, 10, 2))

    assert solution.objective_value <= 1.001 * solution.bound


def test_fast_devices_are_not_full_while_much_is_to_come() -> None:
    """Half of the devices have half the speed and memory, all just enough: they get full at one pace."""
    problem = layers(250, 20, 2)
    names = [device.name for device in problem.devices]
    for _node, facts in problem.graph.nodes(data=True):
        facts["seconds"] = {name: facts["seconds"] * (1 + index % 2) for index, name in enumerate(names)}
    devices = [Device(name, (1100, 550)[index % 2]) for index, name in enumerate(names)]
    nodes = ManyNodes(level_of(attrs.evolve(problem, devices=devices)))

    best = min(answer.value for answer in nodes.listed())

    assert best < 1.01 * nodes.level.tables.seconds[:, 0].sum() / 6


@pytest.mark.parametrize("seed", range(8))
def test_lists_keep_budgets_that_are_tight(seed: int) -> None:
    """What is alive and what is shared counts: what is said to fit does, and something that fits is found."""
    draw = np.random.default_rng(seed)
    problem = layers(30, 10, 3)
    for _node, facts in problem.graph.nodes(data=True):
        facts["live_bytes"] = int(draw.choice([0, 0, 1, 8]))
        facts["shared_bytes"] = {f"block{draw.integers(12)}": 2} if draw.random() < 0.3 else {}
    sizes = {f"block{index}": 2 for index in range(12)}
    problem = attrs.evolve(problem, devices=[Device(f"d{index}", 40 + 8 + 2 * len(sizes)) for index in range(8)])
    level = level_of(problem)

    answers = ManyNodes(level).listed()

    assert any(math.isfinite(answer.value) for answer in answers)
    for answer in answers:
        assert math.isfinite(answer.value) == bool(level.legal(answer.home[None])[0])


def test_lists_of_nodes_and_of_groups_are_compiled_once() -> None:
    """Arrays have one layout, wherever they come from."""
    level = level_of(layers(30, 10, 3))
    joined = join_until(level.tables, level.model, level.unit_of, ManyNodes(level).topological, 50, np.zeros(300, int))

    for each in (level, level.joined(joined)):
        ManyNodes(each).listed()

    assert len(listing.put_first.signatures) == 1


@pytest.mark.parametrize(("elsewhere", "last"), [([], 32.5), ([35], 132.5), ([39], 31.5)])
def test_the_last_to_end_is_found_among_more_ends_than_devices(elsewhere: list[int], last: float) -> None:
    """Of 40 nodes that nothing needs, some of which take no time, the last is one of those, or the last on a device."""
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from((node, {"seconds": float(node % 5 > 0), "output_seconds": 0.0}) for node in range(40))
    graph.add_nodes_from([40, 41], seconds=0.25, output_seconds=100.0)
    graph.add_edges_from([(40, 35), (41, 35)])
    level = level_of(PlacementProblem(graph, fake_devices(2), objective="latency", contiguity="free"))
    home = np.zeros(level.model.size, dtype=np.int64)
    home[level.unit_of[elsewhere]] = 1

    begun = Begun.of(level, home, np.arange(42.0))

    assert begun.makespan == last


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


def test_the_work_of_a_change_counts_edges() -> None:
    """A node that 400 others feed takes as much as fifty nodes each time that it is looked at."""
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(401), seconds=1.0, output_seconds=0.1)
    graph.add_edges_from((node, 400) for node in range(400))
    level = level_of(PlacementProblem(graph, fake_devices(2), objective="latency", contiguity="free"))
    begun = Begun.of(level, np.zeros(401, dtype=np.int64), np.arange(401.0))
    before = int(begun.state.sizes[WORK])

    last_but_one(level.network, begun.state)

    assert 50 <= begun.state.sizes[WORK] - before <= 60


@numba.njit
def last_but_one(network: Network, state: Timeline) -> None:
    """What runs before the last node goes to the other device."""
    move(network, state, 399, 1, state.key[399])
    settle(network, state, np.inf)
