"""Quick ways through ideals: none is missing that ends before the limit, and none ends sooner than is said."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fxpasses import Device, Link, Topology
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.requests import Request
from fxpasses.partitioners.placing.searches.reduced_graphs import ReducedGraph
from fxpasses.partitioners.placing.searches.run_tables import RunTable
from fxpasses.partitioners.placing.searches.waiting_parts import Arrivals, QuickWalks
from fxpasses.partitioners.placing.searches.walks import Step, every_walk
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import all_ideals
from fxpasses.partitioners.solvers.contiguous.ideals.states import States
from fxpasses.partitioners.solvers.reduced.tables import Floats
from fxpasses.programs import capture


class Branches(nn.Module):
    """Two branches of two layers each, and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        first, second, third, fourth = self.layers
        return second(first(x).relu()) + fourth(third(x).tanh())


def table_of(links: list[Link]) -> RunTable:
    graph_module = capture(Branches().eval(), (torch.randn(8, 32),)).module(check_guards=False)
    devices = [Device(name, flops=rate, bandwidth="5GB/s") for name, rate in (("a", "1G"), ("b", "2G"), ("c", "4G"))]
    topology = Topology.of(devices, links)
    figures = GraphFigures.of(graph_module, devices=devices)
    graph = ReducedGraph.of(figures, Request(topology, "latency", contiguity="pipeline"))
    words = all_ideals(graph.units, 500)
    assert words is not None
    return RunTable.of(graph, words, is_whole=True)


def work_of(table: RunTable) -> list[Floats]:
    """What each device takes between two ideals of which the second holds the first."""
    return [np.where(np.isfinite(load), own, np.inf) for load, own in zip(table.load, table.work, strict=True)]


def makespans(table: RunTable, ways: list[list[Step]]) -> dict[tuple[Step, ...], float]:
    found = {}
    for way in ways:
        followed, _is_as_expected = table.follow(way)
        assert followed is not None
        found[tuple(way)] = followed.value
    return found


@pytest.mark.parametrize("rate", [1e6, 1e8, 1e11])
def test_no_quick_way_is_missing(rate: float) -> None:
    """Slow links, on which all runs on one device; others, on which both branches run side by side."""
    table = table_of([Link("a", "b", rate, 1e-6), Link("b", "c", 2 * rate, 1e-6), Link("a", "c", rate / 2, 0.0)])
    states = States.of(table.graph.classes)
    taken = makespans(table, list(every_walk(states, work_of(table), math.inf)))
    values = sorted(set(taken.values()))
    quick = QuickWalks(states, table.inside, work_of(table), Arrivals.of(table.graph))

    for limit in (values[0] * (1 + 1e-6), values[len(values) // 2], math.inf):
        ways, least, is_whole = quick.before(limit, 1_000_000)

        assert is_whole
        assert {way for way, value in taken.items() if value < limit} <= set(map(tuple, ways))
        assert all(value <= taken[tuple(way)] for way, value in zip(ways, least.tolist(), strict=True))
        assert least.tolist() == sorted(least.tolist())
    side_by_side = min(taken.values()) < min(value for way, value in taken.items() if len(way) == 1) * (1 - 1e-9)
    assert side_by_side == (rate > 1e6)


def test_of_too_many_ways_some_are_told() -> None:
    table = table_of([])
    states = States.of(table.graph.classes)
    quick = QuickWalks(states, table.inside, work_of(table), Arrivals.of(table.graph))

    everything, _least, is_whole = quick.before(math.inf, 1_000_000)
    some, _least, is_all = quick.before(math.inf, 10)

    assert is_whole
    assert not is_all
    assert set(map(tuple, some)) < set(map(tuple, everything))
