"""One sample through parts that run as wholes, some of them side by side: what brute force finds is found."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from fxpasses import Device, Link, PlacementError, Topology
from fxpasses.errors import CycleError
from fxpasses.partitioners import Assignment, PlacementProblem
from fxpasses.partitioners.by_device import place_by_device
from fxpasses.partitioners.costs.device_times import makespan_of
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.budget_checks import check_budgets
from fxpasses.partitioners.placing.device_runs import Runs
from fxpasses.partitioners.solvers.latency.whole_parts import _Parts
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of
from fxpasses.partitioners.solvers.solving import solve_whole_parts


class Branches(nn.Module):
    """Products with weights, and of values with each other, each of some values before."""

    def __init__(self, seed: int, operators: int = 5) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.weights = nn.ParameterList(torch.randn(16, 16) for _ in range(operators))
        self.steps = [
            (draw.randrange(max(0, index - 2), index + 1), draw.randrange(index + 1), draw.random() < 0.6)
            for index in range(operators)
        ]

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for weight, (first, second, is_product) in zip(self.weights, self.steps, strict=True):
            values.append(values[first] @ weight if is_product else values[first] * values[second])
        return torch.cat(values)


def posed(seed: int, budget: int | None = None) -> tuple[GraphModule, Topology]:
    """A model on three devices, each faster than the one before, over links that are alike or differ."""
    draw, names = random.Random(seed), "abc"
    graph = torch.export.export(Branches(seed), (torch.randn(16, 16),)).module(check_guards=False)
    devices = [Device(name, budget, flops=1e9 * (index + 1), bandwidth=2e9) for index, name in enumerate(names)]
    alike = draw.choice([1e8, 1e9, 1e10, 1e11])
    rates = [draw.choice([1e8, 1e10, 1e12]) if seed % 2 else alike for _ in range(3)]
    pairs = itertools.combinations(names, 2)
    return graph, Topology.of(devices, [Link(a, b, rate, 0.0) for (a, b), rate in zip(pairs, rates, strict=True)])


def pipelines(graph: GraphModule) -> Iterator[Runs]:
    nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
    for homes in itertools.product("abc", repeat=len(nodes)):
        try:
            whole = Assignment.of(graph, dict(zip(nodes, homes, strict=True)))
        except CycleError:
            continue
        yield Runs(whole, {str(part): str(part) for part in whole.order})


def makespan(figures: GraphFigures, topology: Topology, runs: Runs) -> float:
    device_of = {part: topology[name] for part, name in runs.device_of.items()}
    return makespan_of(figures, runs.assignment, device_of, topology)


@pytest.mark.parametrize("contiguity", ["pipeline", "convex"])
@pytest.mark.parametrize("seed", [4, 5, 7, 8, 13, 20, 35])
def test_a_pipeline_is_as_quick_as_brute_force_has_it(seed: int, contiguity: str) -> None:
    """Adding up what parts take, or running each operator when its inputs are there, was up to 45 % off."""
    graph, topology = posed(seed)
    figures = GraphFigures.of(graph)
    best = min(makespan(figures, topology, runs) for runs in pipelines(graph))

    found = place_by_device(graph, topology, objective="latency", contiguity=contiguity, time_budget=2)  # type: ignore[arg-type]  # a text of these

    assert pytest.approx(best, rel=1e-9) == found.objective_value
    assert found.bound <= best * (1 + 1e-9)


@pytest.mark.parametrize("seed", [2, 8, 15])
def test_budgets_hold(seed: int) -> None:
    graph, topology = posed(seed, budget=15_000)
    figures = GraphFigures.of(graph)
    fitting = [runs for runs in pipelines(graph) if not check_budgets(figures, topology, runs, None).over]
    best = min(makespan(figures, topology, runs) for runs in fitting)

    found = place_by_device(graph, topology, objective="latency", contiguity="pipeline", time_budget=2)

    runs = Runs(found.assignment, {part: device.name for part, device in found.device_of.items()})
    assert not check_budgets(figures, topology, runs, None).over
    assert best * (1 - 1e-9) <= found.objective_value <= best * 1.05


@pytest.mark.parametrize("seed", range(4))
def test_sums_that_follow_moves_are_those_made_anew(seed: int) -> None:
    draw, size, devices = random.Random(seed), 12, 4
    graph: nx.DiGraph = nx.DiGraph()
    for node in range(size):
        graph.add_node(
            node, seconds={name: draw.uniform(1, 2) for name in "abcd"}, output_bytes=draw.choice([0, 100, 1000])
        )
        graph.add_edges_from((before, node) for before in range(node) if draw.random() < 0.3)
    links = [Link(a, b, draw.choice([10, 100, 1000]), draw.random()) for a, b in itertools.combinations("abcd", 2)]
    problem = PlacementProblem(graph, [Device(name) for name in "abcd"], links, objective="throughput")
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    parameters = [(draw.sample(range(units.size), 3), 500.0) for _ in range(2)]
    parts = _Parts(units, tables, [0] * units.size, parameters)

    seen = set()
    for _ in range(300):
        parts.move(draw.randrange(units.size), draw.randrange(devices))
        anew = _Parts(units, tables, parts.home, parameters)
        assert anew.value() == pytest.approx(parts.value(), rel=1e-9)
        assert np.allclose(anew.sent, parts.sent, atol=1e-9)
        assert anew.arcs == [{key: arcs[key] for key in arcs} for arcs in parts.arcs]
        seen.add(np.isfinite(parts.value()))

    assert {True, False} == seen


def test_what_comes_back_is_not_annealed() -> None:
    graph: nx.DiGraph = nx.path_graph(["forward", "backward"], create_using=nx.DiGraph)
    nx.set_node_attributes(graph, 1.0, "seconds")
    graph.nodes["backward"]["backward_of"] = "forward"
    problem = PlacementProblem(graph, [Device("a"), Device("b")], objective="latency")

    with pytest.raises(PlacementError, match="annealed for the forward pass of some thousand nodes only"):
        solve_whole_parts(problem, [dict.fromkeys(graph, "a")])
