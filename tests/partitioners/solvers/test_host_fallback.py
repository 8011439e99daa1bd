"""A host with much memory beside devices with little: what fits the host only runs there, and no answer is lost."""

from __future__ import annotations

import random

import attrs
import networkx as nx
import numpy as np
import pytest
from fuzz import examples
from random_placements import every_placement, random_problem

from benchmarks.placement_workloads import mixed, translation
from fxpasses.devices import Device, Link
from fxpasses.errors import InfeasibleError
from fxpasses.partitioners import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers.reduced.fitting import where_they_fit
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of

RANDOM_GRAPHS = examples(200)


def with_tables(seed: int) -> PlacementProblem:
    """Some nodes, keys and live bytes are larger than what most devices have; links are alike."""
    draw, problem = random.Random(seed), random_problem(seed, training=seed % 4 == 0)
    graph = problem.graph.copy()
    for node in draw.sample(list(graph), min(len(graph), draw.choice([1, 2, 3]))):
        kind = draw.choice(["kept_bytes", "live_bytes", "shared_bytes"])
        graph.nodes[node][kind] = {"table": 70} if kind == "shared_bytes" else 70
    names = [device.name for device in problem.devices]
    host = draw.choice([None, None, 150, 90])
    devices = [Device(name, draw.choice([host, 40, 60]) if name == "b" else 60) for name in names]
    devices[0] = Device(names[0], host)
    links = [attrs.evolve(link, bandwidth=64.0) for link in problem.links]
    return attrs.evolve(problem, graph=graph, devices=devices, links=links)


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_answers_beside_a_host_are_those_of_brute_force(seed: int) -> None:
    """Under each objective; where nothing exists, that is what is said, with bytes that are missing indeed."""
    problem = with_tables(seed)
    values = every_placement(problem).values(problem)
    if len(values):
        solution = solve_placement(problem)

        assert pytest.approx(values[0]) == solution.objective_value
        assert solution.is_optimal
        return

    with pytest.raises(InfeasibleError) as raised:
        solve_placement(problem)

    missing = raised.value.missing_bytes
    if missing is None or "No pipeline" not in str(raised.value):
        return
    for more, is_there in ((missing - 1, False), (missing, True)):
        memory = [each.available_mem_bytes for each in problem.devices]
        devices = [
            Device(each.name, None if m is None else m + more) for each, m in zip(problem.devices, memory, strict=True)
        ]
        assert is_there == bool(len(every_placement(attrs.evolve(problem, devices=devices)).values(problem)))


def chain(*kept: int) -> PlacementProblem:
    graph: nx.DiGraph[int] = nx.path_graph(len(kept), create_using=nx.DiGraph)
    for node, size in enumerate(kept):
        graph.nodes[node].update(seconds={"host": 20.0, "a": 1.0, "b": 1.0}, output_seconds=0.1, kept_bytes=size)
    return PlacementProblem(graph, [Device("host"), Device("a", 30), Device("b", 30)], [Link("host", "a")])


def test_what_lies_between_two_tables_of_the_host_runs_there() -> None:
    """The embedding and the head fit the host only: in a pipeline all between them runs there, too."""
    problem = chain(10, 50, 10, 10, 50, 10)
    tables = tables_of(problem)

    fitted = where_they_fit(reduce_problem(problem, tables), tables.memory)

    assert fitted is not None
    assert ((0,), (1, 2, 3, 4), (5,)) == fitted.members
    assert np.isfinite(fitted.seconds).tolist() == [[True] * 3, [True, False, False], [True] * 3]
    assert solve_placement(problem).objective_value == pytest.approx(80.2)


def test_where_nothing_is_too_large_nothing_changes() -> None:
    problem = chain(10, 20, 30)
    tables = tables_of(problem)

    assert where_they_fit(reduce_problem(problem, tables), tables.memory) is None


def test_missing_bytes_are_told_about_the_nodes_as_they_were_given() -> None:
    """The two tables would have to be on the host, where there is room for one: a few bytes more on a device do."""
    problem = attrs.evolve(chain(50, 10, 10, 58), devices=[Device("host", 60), Device("a", 40), Device("b", 40)])

    with pytest.raises(InfeasibleError, match="needs 10 bytes more on 'a', where 0 is the first node that does not"):
        solve_placement(problem)


def test_a_wide_net_whose_tables_fit_the_host_only_has_a_certificate() -> None:
    """Word tables of a translation net that the fast devices have no room for."""
    problem = mixed(translation(4, steps=6), (1,) * 6 + (0.05,), memory=0.9)

    assert solve_placement(problem).is_optimal
