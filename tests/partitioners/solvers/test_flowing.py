"""Pipelines that do not exist, as devices cannot run some nodes: told exactly, on graphs of any width."""

from __future__ import annotations

import itertools
import random

import networkx as nx
import pytest

from fxpasses.devices import Device
from fxpasses.errors import InfeasibleError
from fxpasses.partitioners import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers.contiguous.searching import Search
from fxpasses.partitioners.solvers.contiguous.tight_memory import flowing
from fxpasses.partitioners.solvers.contiguous.tight_memory.flowing import can_flow
from fxpasses.partitioners.solvers.proofs.bounds import prices_of
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of


def limited(seed: int, nodes: int, devices: int, share: float) -> PlacementProblem:
    """A random graph whose nodes run on some devices only."""
    draw, graph = random.Random(seed), nx.DiGraph()
    names = [f"d{index}" for index in range(devices)]
    for node in range(nodes):
        own = [name for name in names if draw.random() < share] or [draw.choice(names)]
        graph.add_node(node, seconds=dict.fromkeys(own, 1.0 + node % 3), kept_bytes=10)
        graph.add_edges_from((before, node) for before in range(max(0, node - 6), node) if draw.random() < 0.4)
    return PlacementProblem(graph, [Device(name) for name in names])


def in_turns(turns: int, chains: int = 30) -> PlacementProblem:
    """Chains beside each other that two devices and two others can run in turns; each device takes one turn."""
    graph = nx.DiGraph()
    for chain in range(chains):
        for turn in range(turns):
            own = ("d0", "d1") if turn % 2 == 0 else ("d2", "d3")
            graph.add_node((chain, turn), seconds=dict.fromkeys(own, 1.0), kept_bytes=10)
            if turn:
                graph.add_edge((chain, turn - 1), (chain, turn))
    return PlacementProblem(graph, [Device(f"d{index}") for index in range(4)])


def flows(problem: PlacementProblem) -> bool | None:
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    return can_flow(units, Search.of(problem, tables, units, prices_of(units, tables.memory, "throughput")).classes)


def flows_in_some_order(problem: PlacementProblem) -> bool:
    """In any order of the devices, each node in the first turn that may run it after all that it needs."""
    graph, names = problem.graph, [device.name for device in problem.devices]
    for order in itertools.permutations(names):
        turn: dict[int, int] = {}
        for node in nx.topological_sort(graph):
            first = max((turn[before] for before in graph.predecessors(node)), default=0)
            later = (at for at in range(first, len(order)) if order[at] in graph.nodes[node]["seconds"])
            turn[node] = next(later, len(order))
        if max(turn.values()) < len(order):
            return True
    return False


@pytest.mark.parametrize("devices", [2, 3, 4, 5])
def test_it_is_known_exactly_whether_values_can_flow(devices: int) -> None:
    found = []
    for seed in range(60):
        problem = limited(seed, 14, devices, 0.5 + 0.05 * (seed % 6))
        found.append(flows(problem))

        assert flows_in_some_order(problem) == found[-1]
    assert {True, False} == set(found)


@pytest.mark.parametrize("objective", ["throughput", "memory", "devices", "latency"])
def test_a_wide_graph_without_a_pipeline_is_told_so(objective: str) -> None:
    """As soon as the first cuts fit nowhere: some such graphs were searched for 20 seconds, and nothing was proven."""
    problem = in_turns(5)
    graph = problem.graph
    said = {
        "always": "No pipeline exists, however large the memories: what the devices can run, pins and forbidden",
        "never": "No pipeline keeps every budget, which is proven; with explain='always' it is told what the nearest",
    }

    for explain, words in said.items():
        with pytest.raises(InfeasibleError) as caught:
            solve_placement(PlacementProblem(graph, problem.devices, objective=objective, explain=explain))
        assert str(caught.value).startswith(words)


def test_where_many_orders_would_have_to_be_tried_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [True, False] == [flows(in_turns(turns)) for turns in (4, 5)]

    monkeypatch.setattr(flowing, "MOST", 5)

    assert flows(in_turns(5)) is None
