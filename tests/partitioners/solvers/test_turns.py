"""What no pipeline of whole parts is quicker than, against all pipelines of small graphs."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import networkx as nx
import numpy as np
import pytest

from fxpasses import Device
from fxpasses.devices import Link
from fxpasses.partitioners import PlacementProblem
from fxpasses.partitioners.solvers.proofs.programs import Program
from fxpasses.partitioners.solvers.reduced.tables import CostTables, tables_of
from fxpasses.partitioners.solvers.solving import bound_in_turn


def drawn(seed: int) -> PlacementProblem:
    """Two to four unequal devices, tight or loose memory, graphs of one piece or several."""
    draw = random.Random(seed)
    kinds = draw.choice([2, 2, 3, 4])
    names = [f"d{device}" for device in range(kinds)]
    graph: nx.DiGraph = nx.DiGraph()
    dense = draw.choice([0.2, 0.6])
    for node in range(draw.randint(3, {2: 8, 3: 6, 4: 5}[kinds])):
        by_device = {name: draw.uniform(0.5, 2) for name in names if name == "d0" or draw.random() < 0.95}
        graph.add_node(
            node,
            seconds=draw.choice([by_device, draw.uniform(0.5, 2)]),
            kept_bytes=draw.randint(0, 10),
            live_bytes=draw.randint(0, 3),
            shared_bytes=draw.choice([{}, {}, {"table": 5}]),
            output_bytes=draw.choice([0, 10]),
            output_seconds=draw.choice([0, 0.1, 0.5]),
        )
        graph.add_edges_from((before, node) for before in range(node) if draw.random() < dense)
    total = sum(nx.get_node_attributes(graph, "kept_bytes").values()) + 8
    devices = [Device(name, int(total * draw.uniform(0.3, 1.2))) for name in names]
    links = [Link(a, b, draw.choice([10, 100]), draw.choice([0, 0.05])) for a, b in itertools.combinations(names, 2)]
    return PlacementProblem(graph, devices, links)


def seconds_of(tables: CostTables, home: Sequence[int]) -> float:
    """When the last part ends if each starts once its inputs are there; inf for what is no pipeline or does not fit."""
    parts = nx.DiGraph()
    parts.add_nodes_from(set(home))
    sent: dict[tuple[int, int], set[int]] = {}
    for maker, user in tables.edges.tolist():
        if home[maker] != home[user]:
            parts.add_edge(home[maker], home[user])
            sent.setdefault((home[maker], home[user]), set()).add(maker)
    if not nx.is_directed_acyclic_graph(parts):
        return math.inf
    end: dict[int, float] = {}
    for device in nx.topological_sort(parts):
        own = [node for node, where in enumerate(home) if where == device]
        need = sum(tables.kept[own]) + max(tables.live[own])
        need += sum(tables.shared[key] for key in {key for key, node in tables.shares.tolist() if node in own})
        if need > tables.memory[device]:
            return math.inf
        there = [
            end[source] + sum(tables.sending(source, device)[maker] for maker in sent[source, device])
            for source in parts.predecessors(device)
        ]
        end[device] = max(there, default=0.0) + float(tables.seconds[own, device].sum())
    return max(end.values())


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_no_pipeline_is_quicker_than_the_bound(first: int) -> None:
    """On two devices the bound is the optimum wherever the graph is of one piece."""
    for seed in range(first, first + 20):
        problem = drawn(seed)
        tables = tables_of(problem)
        kinds = len(problem.devices)
        best = min(seconds_of(tables, home) for home in itertools.product(range(kinds), repeat=len(tables.nodes)))

        bound = bound_in_turn(problem, best)

        assert bound <= best
        if math.isfinite(best) and kinds == 2 and nx.is_weakly_connected(problem.graph):
            assert best == pytest.approx(bound, rel=1e-5)


def layers(count: int) -> nx.DiGraph:
    """Layers of four branches, and a mask that all of them use."""
    graph: nx.DiGraph = nx.DiGraph()
    graph.add_node("mask", seconds=0.01, output_seconds=0.01)
    graph.add_node("in", seconds=0.1, output_seconds=0.01)
    last = "in"
    for layer in range(count):
        names = [f"{layer}.{branch}" for branch in "abcd"]
        for name in (*names, f"{layer}.add"):
            graph.add_node(name, seconds=1.0, kept_bytes=1, output_seconds=0.01)
        graph.add_edges_from((before, name) for name in names for before in (last, "mask"))
        last = f"{layer}.add"
        graph.add_edges_from((name, last) for name in names)
    return graph


def test_branches_of_a_few_layers_are_all_that_runs_side_by_side() -> None:
    """Hundred seconds of twenty layers, one after the other: many devices save some of a layer each."""
    graph, total = layers(20), 20 * 5 + 0.1 + 0.01

    for count, least in ((3, total - 2.1), (4, total - 2.8), (8, total - 8.1)):
        problem = PlacementProblem(graph, [Device(f"d{device}", 60) for device in range(count)])

        assert least <= bound_in_turn(problem, math.inf) <= total


def test_the_bound_keeps_budgets() -> None:
    """What does not fit the fast device counts with the seconds of the slow one."""
    graph: nx.DiGraph = nx.path_graph(6, create_using=nx.DiGraph)
    for node in graph:
        graph.nodes[node].update(seconds={"fast": 1.0, "slow": 10.0}, kept_bytes=1, output_seconds=0.5)
    problem = PlacementProblem(graph, [Device("fast", 4), Device("slow", 4)])

    assert 4 * 1.0 + 2 * 10.0 + 0.5 == bound_in_turn(problem, 24.5)


def test_a_program_without_whole_variables_has_a_bound() -> None:
    """It is the optimum of the linear program."""
    program = Program()
    shares = program.add(3, 0.0, 1.0)
    program.at_most(-1.5, (-1.0, shares[None]))

    assert pytest.approx(2.0) == program.minimize((np.array([1.0, 2.0, 3.0]), shares), seconds=1).bound
