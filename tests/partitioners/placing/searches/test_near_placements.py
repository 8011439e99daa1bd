"""Placements that changes of another one lead to."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from fxpasses import Device, Link, Topology
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.device_runs import runs_by_schedule, runs_of
from fxpasses.partitioners.placing.found_placements import Found
from fxpasses.partitioners.placing.requests import Request
from fxpasses.partitioners.placing.searches.near_placements import AGAIN, _Nearby, near_placements
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of


class Ladder(nn.Module):
    """Two chains of products; each step of the right one also takes what the left one made."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(steps))
        self.right = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(steps))

    def forward(self, x: Tensor) -> Tensor:
        left = right = x
        for one, other in zip(self.left, self.right, strict=True):
            left, right = one(left), other(right) + left
        result: Tensor = left + right
        return result


@pytest.mark.parametrize("time_budget", [0.5, 2.0])
def test_parts_that_wait_for_each_other_stay_cut_where_they_wait(time_budget: float) -> None:
    """As one part on each device the chains would run one after the other."""
    graph = torch.export.export(Ladder(8), (torch.randn(64, 64),)).module(check_guards=False)
    figures = GraphFigures.of(graph)
    devices = [Device(name, flops=1e9, bandwidth=1e9, overhead=1e-6) for name in ("a", "b")]
    topology = Topology.of(devices, [Link("a", "b", 1e9, 1e-6)])
    request = Request(topology, "latency", time_budget=time_budget)
    home = {node: "a" if is_left(node) else "b" for node in figures.nodes}
    turns = {node: float(place) for place, node in enumerate(figures.nodes)}
    cut = runs_by_schedule(graph, home, figures.dependencies, turns)
    one = figures.nodes[12]
    astray = runs_by_schedule(graph, {**home, one: "b" if home[one] == "a" else "a"}, figures.dependencies, turns)
    problem = request.problem(figures, "free", figures.needs)

    [found] = near_placements(figures, request, problem, [astray], 0.0)

    assert found.value <= Found.of(figures, request, "free", cut, 0.0).value
    assert found.value < 0.8 * Found.of(figures, request, "free", runs_of(graph, home), 0.0).value
    assert len(found.runs.device_of) > 2


def test_where_no_change_helps_some_units_leap_together() -> None:
    """One product alone on the other device only sends values; three of a chain are quicker there."""
    graph = torch.export.export(Ladder(6), (torch.randn(64, 64),)).module(check_guards=False)
    figures = GraphFigures.of(graph)
    devices = [Device(name, flops=1e9, bandwidth=1e9, overhead=1e-6) for name in ("a", "b")]
    request = Request(Topology.of(devices, [Link("a", "b", 1e9, 3e-5)]), "latency")
    start = runs_of(graph, dict.fromkeys(figures.nodes, "a"))
    alone = Found.of(figures, request, "free", start, 0.0)
    problem = request.problem(figures, "free", figures.needs)

    found, again = (near_placements(figures, request, problem, [start], 0.0) for _ in range(2))
    (proven,) = near_placements(figures, request, problem, [start], alone.value)

    assert found[0].value < 0.9 * alone.value
    assert [each.value for each in found] == [each.value for each in again]
    assert proven.value == alone.value


def nearby(graph: GraphModule, request: Request) -> _Nearby:
    """The units of a graph, and what changes of them come to."""
    figures = GraphFigures.of(graph)
    tables = tables_of(request.problem(figures, "free", figures.needs))
    problem = request.problem(figures, "free", figures.needs)
    return _Nearby.of(figures, request, "free", tables, reduce_problem(problem, tables))


def test_a_unit_goes_first_to_a_device_that_has_a_neighbour() -> None:
    """Then to the others, then two change places; each change comes once."""
    graph = torch.export.export(Ladder(3), (torch.randn(64, 64),)).module(check_guards=False)
    names = ("a", "b", "c")
    near = nearby(graph, Request(Topology.of([Device(name) for name in names]), "latency"))
    home = {node: "b" if is_left(node) else "a" for nodes, _ in near.units for node in nodes}
    at = [home[nodes[0]] for nodes, _ in near.units]

    changes = list(near.changes.of(home, 2, pairs=False))

    told = [(number, changed[near.units[number][0][0]]) for number, changed in changes]
    beside = [device in {at[other] for other in near.changes.joined[number]} for number, device in told]
    assert beside == sorted(beside, reverse=True)
    assert 0 < sum(beside) < len(beside)
    assert len(set(told)) == len(told) == 2 * len(near.units)
    both = list(near.changes.of(home, 2, pairs=True))
    assert [changed for _, changed in both[: len(changes)]] == [changed for _, changed in changes]
    assert len(both) == len(changes) + at.count("a") * at.count("b")


@pytest.mark.parametrize("memory", [None, "120KB"])
def test_what_is_better_is_found_without_following_the_memory_of_the_rest(memory: str | None) -> None:
    """A placement is better if it passes budgets by fewer bytes, or takes less."""
    graph = torch.export.export(Ladder(3), (torch.randn(64, 64),)).module(check_guards=False)
    devices = [Device("a", memory, flops=1e9, bandwidth=1e9), Device("b", "160KB", flops=2e9, bandwidth=1e9)]
    near, draw = nearby(graph, Request(Topology.of(devices), "latency")), random.Random(0)
    homes = [{node: draw.choice("ab") for nodes, _ in near.units for node in nodes} for _ in range(40)]
    found = [near._tried(home, None) for home in homes]
    assert len({each.over > 0 for each in found}) == 2

    for best in found:
        for home, each in zip(homes, found, strict=True):
            better, _took = near._better(home, None, best)
            assert (better is not None) == (each.rank < best.rank)
            assert better is None or better.rank == each.rank


def test_what_was_seen_is_not_followed_again() -> None:
    """It counts little; but where memory was not followed, as something was quicker, it may be looked at again."""
    graph = torch.export.export(Ladder(3), (torch.randn(64, 64),)).module(check_guards=False)
    topology = Topology.of([Device("a", "120KB", flops=1e9, bandwidth=1e9), Device("b", "160KB", flops=2e9)])
    near = nearby(graph, Request(topology, "throughput"))
    draw = random.Random(0)
    homes = [{node: draw.choice("ab") for nodes, _ in near.units for node in nodes} for _ in range(20)]
    best = sorted((near._tried(home, None) for home in homes), key=lambda each: each.rank)[len(homes) // 2]

    first = [near._better(home, None, best) for home in homes]
    second = [near._better(home, None, best) for home in homes]

    assert best.over
    assert {1.0} == {took for _, took in first}
    assert {AGAIN} == {took for better, took in second if better is None}
    assert [better and better.rank for better, _ in first] == [better and better.rank for better, _ in second]


def test_a_tiny_graph_that_fits_nowhere_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All assignments of eight operators were followed: changes of one of them can find nothing."""
    graph = torch.export.export(Ladder(2), (torch.randn(64, 64),)).module(check_guards=False)
    figures = GraphFigures.of(graph)
    request = Request(Topology.of([Device("a", "60KB"), Device("b", "60KB")]), "throughput")
    start = runs_of(graph, dict.fromkeys(figures.nodes, "a"))
    monkeypatch.setattr(_Nearby, "best", lambda *_: pytest.fail("it was looked for changes"))

    assert [] == near_placements(figures, request, request.problem(figures, "free", figures.needs), [start], 0.0)


def is_left(node: Node) -> bool:
    """Whether an operator is in the left chain."""
    path = [path for path, _kind in node.meta["nn_module_stack"].values()]
    return "left" in path[-1]
