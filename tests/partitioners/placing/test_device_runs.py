"""Schedules cut into parts: each part starts when its first operator does, and what it makes is there when it ends."""

from __future__ import annotations

import random

import attrs
import pytest
import torch
from fuzz import examples
from lowering_models import cpu_pair
from torch import Tensor, nn
from torch.fx import Graph, Node

from fxpasses import Device, Link, Plan, Topology, lower, place
from fxpasses.lowering import lower_with_plan
from fxpasses.lowering.preparing import prepare
from fxpasses.partitioners import PlacementProblem, PlacementSolution, solve_placement
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.device_runs import Runs, runs_by_schedule, runs_in_turns
from fxpasses.partitioners.placing.requests import Request
from fxpasses.partitioners.placing.searches.device_search import search
from fxpasses.units import KiB


class Branches(nn.Module):
    """Six branches of a few layers, and the sum of them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)) for _ in range(6)
        )
        self.last = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(sum(branch(x) for branch in self.branches))
        return result


def random_schedule(seed: int) -> tuple[Graph, dict[Node, str], dict[Node, float]]:
    """A DAG of calls on two or three devices, each starting some time after what it needs and what its device did."""
    draw = random.Random(seed)
    graph = Graph()
    made = [graph.placeholder("x")]
    for _ in range(20):
        made.append(graph.call_function(torch.add, tuple(draw.choices(made, k=2))))
    graph.output(made[-1])
    home = {node: draw.choice(["a", "b", "c"]) for node in made[1:]}
    start: dict[Node, float] = {}
    free = dict.fromkeys("abc", 0.0)
    for node in made[1:]:
        needed = [start[used] + 1 for used in node.all_input_nodes if used in start]
        start[node] = max([free[home[node]], *needed]) + draw.choice([0, 0, 1])
        free[home[node]] = start[node] + 1
    return graph, home, start


def nodes_of(runs: Runs, part: str) -> list[Node]:
    return [node for node, own in runs.assignment.partition_of.items() if str(own) == part]


@pytest.mark.parametrize("seed", range(examples(40)))
def test_only_the_first_operator_waits_for_other_devices_and_only_the_last_serves_them(seed: int) -> None:
    graph, home, start = random_schedule(seed)

    runs = runs_by_schedule(graph, home, start=start)

    assert set(home) == set(runs.assignment.partition_of)
    for part, device in runs.device_of.items():
        own = sorted(nodes_of(runs, part), key=lambda node: start[node])
        assert {device} == {home[node] for node in own}
        assert not [used for node in own[1:] for used in node.all_input_nodes if home.get(used, device) != device]
        assert not [user for node in own[:-1] for user in node.users if home.get(user, device) != device]


def test_without_times_the_order_of_the_graph_counts() -> None:
    graph, home, _start = random_schedule(1)

    runs = runs_by_schedule(graph, home)

    order = [str(part) for part in runs.assignment.order]
    first = {part: min(list(graph.nodes).index(node) for node in nodes_of(runs, part)) for part in order}
    assert sorted(order, key=first.__getitem__) == order


def test_branches_on_three_devices_take_little_more_than_their_schedule() -> None:
    """Devices that cannot hold the model: parts that wait for all their inputs once took twice the schedule's time."""
    devices = [Device("a", 200 * KiB), Device("b", 150 * KiB), Device("c", 120 * KiB)]

    planned = place(Branches().eval(), (torch.randn(4, 64),), devices=devices, objective="latency", contiguity="free")

    assert planned.summary.objective_value is not None
    assert planned.summary.objective_value < 80e-6


def test_parts_of_a_schedule_give_the_results_of_the_model() -> None:
    model, x = Branches().eval(), torch.randn(4, 64)
    expected = model(x)

    lowered = lower(model, (x,), devices=cpu_pair(260 * KiB, 260 * KiB), objective="latency", contiguity="free")

    assert torch.equal(expected, lowered(x))


class ViewsLate(nn.Module):
    """A view that is made after the last write to its memory."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        made = x * 1
        made[:, :4] = y.exp()[:, 4:]
        return made.t().sin()


def test_a_view_after_the_last_write_waits_for_it_on_another_device() -> None:
    """Alone it could run first, on a copy without what was written; lowering refused that."""
    args = (torch.randn(8, 8), torch.randn(8, 8))
    prepared = prepare(ViewsLate(), args)
    figures = GraphFigures.of(prepared.graph_module)
    away = {"exp": "b", "t": "b", "sin": "b"}
    topology = Topology([Device("a"), Device("b")])

    runs = runs_in_turns(
        prepared.graph_module, {node: away.get(node.name, "a") for node in figures.nodes}, figures.dependencies
    )

    device_of = {part: topology[name] for part, name in runs.device_of.items()}
    plan = Plan.of("late", "latency", topology, runs.assignment, device_of)
    assert torch.equal(ViewsLate()(*args), lower_with_plan(prepared.program, plan)(*args))


def test_more_time_never_finds_what_is_slower_as_parts_run() -> None:
    """A solver that with more time finds a schedule of operators that is slow as parts: the quick answer counts."""
    devices = [Device(name, flops=1e9, bandwidth=1e9) for name in "ab"]
    graph_module = prepare(Branches().eval(), (torch.randn(4, 64),)).graph_module
    figures = GraphFigures.of(graph_module, devices=devices)
    request = Request(Topology(devices, [Link("a", "b", 1e9, 1e-6)]), "latency")

    def solve(problem: PlacementProblem) -> PlacementSolution:
        solution = solve_placement(problem)
        if not problem.time_budget:
            return solution
        scattered = {node: "ab"[index % 2] for index, node in enumerate(problem.graph)}
        return attrs.evolve(solution, device_of=scattered, schedule={})

    at_once = search(figures, attrs.evolve(request, time_budget=0.0), "free")
    found = search(figures, request, "free", solve)

    assert found.value <= at_once.value
