"""Compiled annealing of pipelines: the order is kept, sums are those of the definition, and links are counted as is."""

from __future__ import annotations

import itertools

import attrs
import networkx as nx
import numpy as np
import pytest
from fuzz import examples
from random_placements import every_placement, random_problem, solved
from test_moves import hard_problem

from fxpasses.devices import Device, Link
from fxpasses.partitioners import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers.annealing.annealer import Annealer
from fxpasses.partitioners.solvers.annealing.graphs import Cooling
from fxpasses.partitioners.solvers.contiguous import proving
from fxpasses.partitioners.solvers.contiguous.linked import link_answers
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of

RANDOM_GRAPHS = examples(60)


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_the_order_is_kept_and_sums_are_those_of_the_definition(seed: int) -> None:
    """Units that are pushed, come back, or change places with all of a device never let a value flow back."""
    problem = attrs.evolve(hard_problem(seed), contiguity="pipeline")
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    model, draw = LoadModel.of(units, tables), np.random.default_rng(seed)
    model.banned[:, 0] = False  # there everything starts
    annealer = Annealer(model, units.before)

    best, state = annealer.run(np.zeros(units.size, dtype=np.int64), Cooling(1e5, 0.5, 0.05, 3), draw)

    place = state.place[state.home]
    assert (place[units.before[:, 0]] <= place[units.before[:, 1]]).all()
    assert sorted(state.at.tolist()) == list(range(model.devices)) == state.place[state.at].tolist()
    assert not model.banned[np.arange(units.size), state.home].any()
    assert pytest.approx(model.figures(state.home[None])[0], abs=1e-9) == state.load
    assert best is None or model.legal(best[None])[0]
    first, last = np.zeros(units.size, dtype=np.int64), np.full(units.size, model.devices - 1)
    np.maximum.at(first, units.before[:, 1], place[units.before[:, 0]])
    np.minimum.at(last, units.before[:, 0], place[units.before[:, 1]])
    assert sorted(state.loose[: state.loose[units.size]].tolist()) == np.flatnonzero(first < last).tolist()


@pytest.mark.parametrize("seed", range(12))
def test_devices_of_other_speeds_change_places_with_the_cut_between_them(seed: int) -> None:
    """A fast device first keeps a heavy value at home; from the other order no small move leads there."""
    graph: nx.DiGraph[int] = nx.path_graph(40, create_using=nx.DiGraph)
    for node in graph:
        graph.nodes[node].update(seconds={"slow": 3.0, "fast": 1.0}, output_seconds=10.0 if node == 9 else 0.01)
    links = [Link("slow", "fast", 1e9)]
    problem = PlacementProblem(graph, [Device("slow"), Device("fast")], links, objective="throughput")
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    annealer, home = Annealer(LoadModel.of(units, tables), units.before), np.zeros(units.size, dtype=np.int64)
    home[units.size // 4 :] = 1

    best, state = annealer.run(home, Cooling(2e6, 1e-6, 1e-6, 6), np.random.default_rng(seed), (0, 1))

    assert best is not None
    assert best.tolist() == sorted(best.tolist(), reverse=True)
    assert state.at.tolist() == [1, 0]
    assert annealer.model.figures(best[None]).max() == pytest.approx(30.01)


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_brute_force_bounds_what_is_annealed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the program that proves small problems no rule is broken, and the figures are those of the definition."""
    monkeypatch.setattr(proving, "SMALL", 0)
    problem = random_problem(seed, objective="throughput", time_budget=0.25)
    draw = np.random.default_rng(seed)
    links = [attrs.evolve(link, bandwidth=float(draw.choice([8.0, 64.0, 512.0]))) for link in problem.links]
    problem = attrs.evolve(problem, links=links)
    every = every_placement(problem)
    values = every.values(problem)
    if (solution := solved(problem, values)) is None:
        return

    row = every.row(problem, dict(solution.device_of))
    assert every.legal[row]
    assert every.pipeline[row]
    assert pytest.approx(every.load[row].max()) == solution.objective_value
    assert solution.bound * (1 - 1e-9) <= values[0] <= solution.objective_value * (1 + 1e-9)


def u_net(levels: int, links: list[Link], count: int) -> PlacementProblem:
    """A way down, a way up, and at each level a skip from the one to the other."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    names = [f"down{level}" for level in range(levels)] + [f"up{level}" for level in reversed(range(levels))]
    for level, name in enumerate(names):
        depth = min(level, 2 * levels - 1 - level)
        graph.add_node(name, seconds=1.0 + 0.3 * (level % 3), output_bytes=2 ** (levels - depth))
    graph.add_edges_from(itertools.pairwise(names))
    graph.add_edges_from((f"down{level}", f"up{level}") for level in range(levels))
    return PlacementProblem(graph, [Device(f"d{index}") for index in range(count)], links)


def test_skips_go_over_the_fast_links_of_a_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips reach devices that are not the next ones: with links at their best or in a row that is not seen."""
    fast = {frozenset((f"d{index}", f"d{(index + 1) % 6}")) for index in range(6)}
    pairs = itertools.combinations([f"d{index}" for index in range(6)], 2)
    links = [Link(a, b, 512.0 if frozenset((a, b)) in fast else 32.0) for a, b in pairs]
    annealed = solve_placement(u_net(12, links, 6))
    monkeypatch.setattr(link_answers, "ANNEALING", ())
    plain = solve_placement(u_net(12, links, 6))

    assert annealed.objective_value < 0.95 * plain.objective_value
    assert annealed.bound <= annealed.objective_value
