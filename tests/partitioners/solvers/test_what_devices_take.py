"""What one device takes at most, with its transfers: no assignment is ruled out, and wide graphs get certificates."""

from __future__ import annotations

import attrs
import networkx as nx
import numpy as np
import pytest
from fuzz import examples
from random_placements import every_placement, random_problem

from benchmarks.placement_problems import recurrent
from benchmarks.placement_workloads import mixed
from fxpasses.devices import Device, Link
from fxpasses.partitioners import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers.contiguous.certifying import every_ideal
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import CutFamily, all_ideals
from fxpasses.partitioners.solvers.contiguous.searching import Search
from fxpasses.partitioners.solvers.contiguous.tables.blocks import blocks_of, larger
from fxpasses.partitioners.solvers.proofs import bounds
from fxpasses.partitioners.solvers.proofs.bounds import prices_of
from fxpasses.partitioners.solvers.proofs.covering import Rooms
from fxpasses.partitioners.solvers.proofs.fronts import narrowest_order
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of

RANDOM_GRAPHS = examples(100)


def searched(problem: PlacementProblem) -> Search:
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    return Search.of(problem, tables, units, prices_of(units, tables.memory, "throughput"))


def grid(rows: int, columns: int) -> PlacementProblem:
    graph: nx.DiGraph[tuple[int, ...]] = nx.grid_2d_graph(rows, columns, create_using=nx.DiGraph)
    graph.remove_edges_from([(a, b) for a, b in graph.edges if a > b])
    for node in graph:
        graph.nodes[node].update(seconds=1.0, output_seconds=0.2)
    return PlacementProblem(graph, [Device("a"), Device("b"), Device("c")])


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_no_device_of_any_assignment_takes_more_than_it_has_room_for(seed: int) -> None:
    """Unequal devices, links and budgets, in each time that a device of an assignment needs."""
    problem = random_problem(seed, contiguity="free", objective="throughput")
    every, search = every_placement(problem), searched(problem)
    rows = np.flatnonzero(every.legal)
    if not rows.size:
        return
    rooms = Rooms.of(LoadModel.of(search.units, search.tables), search.prices, 30.0, 60.0)
    if rooms is None:  # nothing is sent
        return
    members = search.units.members
    rows = rows[[all(len(set(every.home[row][list(unit)])) == 1 for unit in members) for row in rows.tolist()]]

    for row in np.random.default_rng(seed).permutation(rows)[:100].tolist():
        home, load = every.home[row][[unit[0] for unit in members]], every.load[row]
        for device in range(len(load)):
            taken = int(rooms.work[home == device].sum())
            assert taken <= rooms.within(float(load[device]))[device]


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_windows_by_what_devices_take_keep_the_best_pipeline(seed: int) -> None:
    """Just above the optimum a pipeline is found, just below it is proven that there is none."""
    problem = random_problem(seed, contiguity="pipeline", objective="throughput")
    problem = attrs.evolve(problem, links=[Link(a.first, a.second, 64.0, 0.25) for a in problem.links])
    values = every_placement(problem).values(problem)
    if not len(values) or not values[0]:
        return
    search = searched(problem).with_rooms(2 * float(values[0]), 60.0)

    for share, is_there in ((1 + 1e-6, True), (1.5, True), (1 - 1e-6, False)):
        words = every_ideal(search, share * values[0], 100_000)
        assert words is not None
        assert is_there == (search.decide(words, share * values[0]).pipeline is not None)


def test_a_grid_of_cells_is_gone_through_along_its_shorter_side() -> None:
    """However the cells are numbered, not many more than four are open at a time."""
    search = searched(grid(4, 30))

    order, openness = narrowest_order(LoadModel.of(search.units, search.tables), 14)

    assert list(range(120)) == sorted(order.tolist())
    assert openness <= 120 * 2**6


def test_ideals_that_hold_much_in_common_are_one_block() -> None:
    """Each ideal is in one block; all that is larger than one of a block and near is looked at, and little else."""
    search = searched(grid(4, 8))
    units, weight = search.units, search.prices.weight
    words = all_ideals(units, 10_000)
    assert words is not None
    family = CutFamily.of(words, weight)
    every = np.ones(family.count, dtype=bool)

    blocks = blocks_of(family, np.arange(family.count - 1), 16)

    assert list(range(family.count - 1)) == sorted(np.concatenate(blocks).tolist())
    assert max(map(len, blocks)) <= 16
    looked_at = 0
    for block in blocks:
        near = larger(family, block, every, 6.5 * float(weight.max()))
        looked_at += len(near) * len(block)
        for ideal in block.tolist():
            holds = (family.inside & family.inside[:, [ideal]] == family.inside[:, [ideal]]).all(axis=0)
            holds &= family.position <= family.position[ideal] + 6.5 * weight.max()
            assert set(np.flatnonzero(holds).tolist()) - {ideal} <= set(near.tolist())
    assert looked_at < family.count**2 / 3
    assert [] == blocks_of(family, np.arange(0), 16)


def test_a_wide_net_on_devices_that_are_all_different_has_a_certificate() -> None:
    """Four layers of twelve steps on six devices: prices alone leave most ideals open."""
    problem = mixed(recurrent(4, 12), (1, 0.9, 0.8, 0.7, 0.6, 0.5), time_budget=10.0)

    assert solve_placement(problem).is_optimal


def unequal(count: int, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seconds of units on four kinds of devices, their bytes, and memories that a little more than hold them."""
    kept = draw.integers(1, 1000, count).astype(np.float64)
    speeds = np.array([1.0, 3.0, 30.0, 1000.0])
    seconds = draw.choice([0.1, 1.0, 2.0], count)[:, None] * speeds
    seconds[draw.random(count) < 0.2, 3] = np.inf
    return seconds, kept, 1.2 * kept.sum() * np.array([0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize("seed", range(8))
def test_a_bound_for_many_units_is_nearly_that_of_all_of_them(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units that are much alike are one in the linear program: what it proves is a little less, and never more."""
    draw = np.random.default_rng(seed)
    seconds, kept, memory = unequal(1500, draw)
    units = reduce_problem(grid(3, 4), tables_of(grid(3, 4)))
    many = attrs.evolve(units, seconds=seconds, kept=kept.astype(np.int64))
    exact = prices_of(many, memory, "throughput").bound
    by_speed = 1 / (1 / np.array([1.0, 3.0, 30.0, 1000.0])).sum() * seconds[:, 0].sum()

    monkeypatch.setattr(bounds, "MAX_VARIABLES", 1000)
    monkeypatch.setattr(bounds, "FEW_VARIABLES", 400)
    joined = prices_of(many, memory, "throughput").bound

    assert 0.98 * exact <= joined <= exact * (1 + 1e-9)
    assert exact > 1.3 * by_speed


def test_the_budgets_of_a_long_graph_count_in_its_bound() -> None:
    """4,000 units on devices of which the slow ones have most of the memory: seconds alone would prove nothing."""
    graph = nx.path_graph(4000, create_using=nx.DiGraph)
    devices = [Device("fast", 40_000), Device("slow", 50_000), Device("slower", 60_000)]
    for node in graph:
        graph.nodes[node].update(seconds={"fast": 1.0, "slow": 100.0, "slower": 100.0}, kept_bytes=25)

    solution = solve_placement(PlacementProblem(graph, devices, time_budget=0))

    assert solution.gap < 0.01
