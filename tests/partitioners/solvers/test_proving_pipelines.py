"""Pipelines that an integer program proves: its order of devices that are alike loses nothing, and wide graphs."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import attrs
import networkx as nx
import pytest
from fuzz import examples
from random_placements import every_placement, random_problem

from benchmarks.placement_problems import recurrent
from benchmarks.placement_workloads import DEVICES, mixed
from fxpasses.devices import Device, Link
from fxpasses.partitioners import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers.contiguous import proving, solving
from fxpasses.partitioners.solvers.proofs.assigning import ROUNDING, least_load
from fxpasses.partitioners.solvers.proofs.ordering import add_order
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of

RANDOM_GRAPHS = examples(60)


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
@pytest.mark.parametrize("alike", ["none", "all", "the first two"])
def test_an_order_of_devices_that_are_alike_loses_no_pipeline(seed: int, alike: str) -> None:
    """The smallest load along it is that of all assignments."""
    problem = _on_alike_devices(seed, alike)
    values = every_placement(problem).values(problem)
    if not len(values):
        return
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    devices = range(len(problem.devices))
    groups = {"none": [], "all": [devices], "the first two": [devices[:2], *([each] for each in devices[2:])]}
    order = partial(add_order, flow=units.before, alike=groups[alike])

    proof = least_load(LoadModel.of(units, tables), below=float(values[0]) + 1.0, seconds=60.0, extra=order)

    assert proof.home is not None
    assert proof.bound == pytest.approx(values[0], rel=10 * ROUNDING, abs=1e-6)


def _on_alike_devices(seed: int, alike: str) -> PlacementProblem:
    """Some devices have the same memory and take the same time for each node."""
    problem = random_problem(seed, objective="throughput", pinned={}, forbidden={})
    names, graph = [device.name for device in problem.devices], problem.graph.copy()
    same = {"none": [], "all": names, "the first two": names[:2]}[alike]
    for _node, facts in graph.nodes(data=True):
        if isinstance(facts["seconds"], dict) and same:
            facts["seconds"] |= dict.fromkeys(same, facts["seconds"].get(same[0], 2.0))
    memory = problem.devices[0].available_mem_bytes
    devices = [Device(each.name, memory) if each.name in same else each for each in problem.devices]
    links = [Link(link.first, link.second, 64.0, 0.25) for link in problem.links]
    return attrs.evolve(problem, graph=graph, devices=devices, links=links)


def tables_and_layers(tables: int, devices: int, **options: Any) -> PlacementProblem:
    """Tables of very different sizes that one node reads, and a row of layers behind it: ideals by the million."""
    draw, graph = random.Random(0), nx.DiGraph()
    for table in range(tables):
        size = int(10 ** draw.uniform(2, 5))
        graph.add_node(table, seconds=draw.uniform(0.5, 3.0), kept_bytes=size, output_seconds=0.6)
        graph.add_edge(table, "read")
    nx.add_path(graph, ["read", *(f"layer{layer}" for layer in range(6))])
    for node in graph:
        if isinstance(node, str):
            graph.nodes[node].update(seconds=draw.uniform(1.0, 5.0), kept_bytes=100, output_seconds=0.4)
    room = int(1.1 * sum(facts["kept_bytes"] for _node, facts in graph.nodes(data=True)) / devices)
    return PlacementProblem(graph, [Device(f"d{number}", room) for number in range(devices)], **options)


@pytest.mark.parametrize(("tables", "devices", "budget"), [(30, 2, 1.0), (30, 3, 5.0)])
def test_tables_that_one_node_reads_have_a_certificate(
    tables: int, devices: int, budget: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How sizes fill devices is what prices of bytes do not see."""
    problem = tables_and_layers(tables, devices, time_budget=budget)

    assert solve_placement(problem).is_optimal

    monkeypatch.setattr(solving, "proven_small", lambda _search, best, bound: (best, bound))
    assert not solve_placement(problem).is_optimal


def test_what_is_proven_up_to_rounding_is_not_proven_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid of cells: sums in two orders differ in the last bit, and an integer program would go on for 20 seconds."""

    def asked(*_given: object, **_options: object) -> None:
        raise AssertionError("an integer program was asked")

    monkeypatch.setattr(proving, "least_load", asked)
    speeds, memory = DEVICES["4 of two kinds, tight"]

    solution = solve_placement(mixed(recurrent(5, 20), speeds, memory=memory, time_budget=5.0))

    assert solution.objective_value == solution.bound
