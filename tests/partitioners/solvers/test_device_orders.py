"""Compiled search of the orders of a pipeline's devices: pipelines within the budgets, the best order among many."""

from __future__ import annotations

import itertools

import attrs
import networkx as nx
import numpy as np
import pytest
from fuzz import examples
from random_placements import every_placement, random_problem
from test_moves import hard_problem
from test_recombining import encoder_decoder, runs_that_begin
from test_refining import search_of

from fxpasses.devices import Device, Link
from fxpasses.partitioners import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers.annealing.annealer import ORDERS, Annealer
from fxpasses.partitioners.solvers.annealing.cooling import anneal
from fxpasses.partitioners.solvers.annealing.graphs import Cooling, state_of
from fxpasses.partitioners.solvers.contiguous import recombining
from fxpasses.partitioners.solvers.contiguous.annealed_pipelines import (
    AT_ONCE,
    Run,
    answer_of,
)
from fxpasses.partitioners.solvers.contiguous.recombining import FEWEST, STAGES, Recombining
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of

RANDOM_GRAPHS = examples(60)
COOLING = Cooling(3e6, 0.006, 5e-4, 5)


def each_its_own_stretch(order: list[int], length: int = 10, sending: float = 0.1) -> PlacementProblem:
    """A chain; each device takes a second for the operators of its stretch, three for others."""
    graph: nx.DiGraph[int] = nx.path_graph(length * len(order), create_using=nx.DiGraph)
    for node in graph:
        seconds = {f"d{device}": 1.0 if order[node // length] == device else 3.0 for device in order}
        graph.nodes[node].update(seconds=seconds, output_seconds=sending)
    devices = [Device(f"d{device}") for device in sorted(order)]
    links = [Link(a.name, b.name, 1e9) for a, b in itertools.combinations(devices, 2)]
    return PlacementProblem(graph, devices, links, objective="throughput")


def annealer_of(problem: PlacementProblem) -> Annealer:
    """Annealing of its reduced pipelines."""
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    return Annealer(LoadModel.of(units, tables), units.before)


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_pipelines_keep_their_order_and_the_budgets(seed: int) -> None:
    """Also where annealings follow each other in one state, as hundreds do: no value flows back."""
    problem = attrs.evolve(hard_problem(seed), contiguity="pipeline")
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    model = LoadModel.of(units, tables)
    model.banned[:] = False
    annealer = Annealer(model, units.before)

    homes = annealer.orders(COOLING, np.random.default_rng(seed))

    assert len(homes) <= ORDERS
    loads = [model.figures(home[None]).max() for home in homes]
    assert loads == sorted(loads)
    for home in homes:
        flows = nx.DiGraph(home[units.before].tolist())
        flows.remove_edges_from(list(nx.selfloop_edges(flows)))
        assert nx.is_directed_acyclic_graph(flows)
        assert model.legal(home[None])[0]


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_brute_force_bounds_what_is_found(seed: int) -> None:
    """Where memory leaves anything, and annealings get there."""
    problem = attrs.evolve(random_problem(seed, objective="throughput"), pinned={}, forbidden={})
    every = every_placement(problem)
    annealer = annealer_of(problem)
    if annealer.model.banned.any() or not (every.legal & every.pipeline).any():
        return
    best = every.load[every.legal & every.pipeline].max(axis=1).min()

    homes = annealer.orders(COOLING, np.random.default_rng(seed))

    assert homes or np.isfinite(annealer.model.memory).any()  # tight memory may leave annealings nothing
    for home in homes:
        assert annealer.model.figures(home[None]).max() >= best * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_each_device_comes_where_its_stretch_is(seed: int) -> None:
    """One of 5040 orders; the same again for the same draws."""
    order = np.random.default_rng(seed).permutation(7).tolist()
    annealer = annealer_of(each_its_own_stretch(order))
    cooling = COOLING._replace(steps=3e8)

    homes, again = (annealer.orders(cooling, np.random.default_rng(seed)) for _ in range(2))

    assert homes[0].tolist() == np.repeat(order, 10).tolist()
    assert [home.tolist() for home in homes] == [home.tolist() for home in again]
    orders = [tuple(dict.fromkeys(home.tolist())) for home in homes]
    assert len(set(orders)) == len(orders) <= ORDERS


def test_alike_devices_are_not_told_apart() -> None:
    """Of two orders in which they change places one is kept."""
    graph: nx.DiGraph[int] = nx.path_graph(40, create_using=nx.DiGraph)
    for node in graph:
        graph.nodes[node].update(seconds={"a": 1.0, "b": 1.0, "c": 0.99}, output_seconds=0.1)
    devices = [Device(name) for name in "abc"]
    links = [Link(a.name, b.name, 1e9) for a, b in itertools.combinations(devices, 2)]
    annealer = annealer_of(PlacementProblem(graph, devices, links, objective="throughput"))

    homes = annealer.orders(COOLING._replace(steps=3e7), np.random.default_rng(0))

    places = [list(dict.fromkeys(home.tolist())).index(2) for home in homes]
    assert sorted(places) == [0, 1, 2]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The annealings that begin."""
    return runs_that_begin(monkeypatch)


def _begin(problem: PlacementProblem, places: int = 7) -> None:
    """Let the first annealings of a problem begin, from units as they are numbered on the devices in turn."""
    search = search_of(problem)
    with Recombining(search) as beside:
        beside.begin(answer_of(search, np.arange(search.units.size) * places // search.units.size))


def test_orders_are_searched_where_there_are_many(begun: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of most annealings from answers; not where devices are alike, or cannot run something."""
    problem = each_its_own_stretch(list(range(7)))
    _begin(problem)
    assert [run.start for run in begun].count(None) == AT_ONCE
    through = sum(run.cooling.steps for run in begun if run.start is None)
    assert through == pytest.approx(STAGES[0].orders * sum(run.cooling.steps for run in begun))

    others = [attrs.evolve(problem, graph=_with_seconds(problem.graph, first)) for first in (1.0, None)]
    monkeypatch.setattr(recombining, "MANY_ORDERS", 5040)
    for each in (*others, problem):
        begun.clear()
        _begin(each)
        assert None not in [run.start for run in begun]
        assert len(begun) >= FEWEST


@pytest.mark.parametrize(("sending", "decides"), [(0.1, True), (0.5, True), (0.6, False), (2.0, False)])
def test_orders_decide_where_transfers_hardly_count(begun: list[Run], sending: float, decides: bool) -> None:
    """A device takes about ten seconds, and those of one value in and one out."""
    problem = each_its_own_stretch(list(range(7)), sending=sending / 2)
    for _node, facts in problem.graph.nodes(data=True):
        facts["seconds"] = {f"d{device}": 1 + device / 1e6 for device in range(7)}

    _begin(problem)

    assert (None in [run.start for run in begun]) == decides


def test_orders_decide_where_units_that_suit_other_devices_are_strewn(begun: list[Run]) -> None:
    """No run has only what suits its device, so that what units take at their best says nothing."""
    problem = each_its_own_stretch(list(range(7)), length=7)
    for node, facts in problem.graph.nodes(data=True):
        facts["seconds"] = {f"d{device}": 3.0 if node % 7 == device else 1.0 for device in range(7)}

    _begin(problem)

    assert [run.start for run in begun].count(None) == AT_ONCE


def _with_seconds(graph: nx.DiGraph[int], first: float | None) -> nx.DiGraph[int]:
    """The same where all devices take as long; or where one of them cannot run the first node."""
    graph = graph.copy()
    for node, facts in graph.nodes(data=True):
        if first is not None:
            facts["seconds"] = dict.fromkeys(facts["seconds"], first)
        elif node == 0:
            facts["seconds"] = {device: 3.0 for device in facts["seconds"] if device != "d3"}
    return graph


def test_the_default_goes_through_orders(begun: list[Run]) -> None:
    """Where refining takes long on devices that all differ; in half of what follows devices keep their places."""
    solve_placement(encoder_decoder(8, [1.0, 1.4, 1.8, 2.2, 2.6, 3.0, 3.5, 4.0]))

    assert [run.start for run in begun[:AT_ONCE]] == [None] * AT_ONCE
    first, after = begun[AT_ONCE : AT_ONCE + FEWEST], begun[AT_ONCE + FEWEST :]
    assert None not in [run.start for run in (*first, *after)]
    assert all(run.cooling.exchanges > 0 for run in first)
    assert len(after) >= FEWEST
    assert sum(run.cooling.exchanges == 0 for run in after) == len(after) // 2


def test_what_an_annealing_before_wrote_down_is_forgotten() -> None:
    """A unit that is taken for one of the move already would stay behind, and a value flow back."""
    annealer = annealer_of(each_its_own_stretch([0, 1, 2], length=200))
    home = np.repeat([0, 1, 2], 200)
    state = state_of(annealer.model, annealer.graph, home)
    state.stamp[:] = 10**9

    cooling = COOLING._replace(steps=1.0)
    anneal(annealer.graph, state, home.copy(), np.inf, cooling, annealer.scale, 1.0, np.array([1, 2], dtype=np.uint64))

    assert state.stamp.max() < 10**9
