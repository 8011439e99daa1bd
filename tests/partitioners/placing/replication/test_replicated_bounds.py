"""What no pipeline is below that may compute values again, beside all that there are of a small graph."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from fxpasses import Assignment, CycleError, Device, Link, PartitionError, Topology, place
from fxpasses.partitioners import place_by_device
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.budget_checks import check_budgets
from fxpasses.partitioners.placing.colocation import must_share
from fxpasses.partitioners.placing.device_runs import Runs, runs_of
from fxpasses.partitioners.placing.found_placements import Found
from fxpasses.partitioners.placing.objective_values import objective_value
from fxpasses.partitioners.placing.replication.device_replicas import bound_with_replicas
from fxpasses.partitioners.placing.replication.replica_prices import may_be_made_again
from fxpasses.partitioners.placing.replication.replicas import with_replicas
from fxpasses.partitioners.placing.requests import Request
from fxpasses.plan import Plan, diff
from fxpasses.programs import capture

MOST_REPLICAS = 48
"""Sets of replicas that are tried for each pipeline."""


class Drawn(nn.Module):
    """A few operators on what the last ones gave: products, sums, masks, views."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(64, 64)) for _ in range(3))
        kinds = ["product", "relu", "sum", "mean", "rows", "view", "mask"]
        self.steps = [
            (draw.choice(kinds), draw.randrange(3), draw.randrange(3), draw.randrange(3))
            for _ in range(draw.choice([3, 4, 5]))
        ]

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for kind, first, second, weight in self.steps:
            one, other = (values[max(0, len(values) - 1 - back)] for back in (first, second))
            values.append(
                {
                    "product": lambda one=one, weight=weight: one @ self.weights[weight],
                    "relu": lambda one=one: one.relu(),
                    "sum": lambda one=one, other=other: one + other,
                    "mean": lambda one=one, other=other: one * other.mean(),
                    "rows": lambda one=one, other=other: torch.cat([one, other])[: one.shape[0]],
                    "view": lambda one=one: one.view(-1, 64).t().t(),
                    "mask": lambda one=one: one * torch.arange(64),
                }[kind]()
            )
        return values[-1] + values[len(values) // 2].sum()


def pipelines(figures: GraphFigures, names: tuple[str, str]) -> Iterator[Runs]:
    """All of two devices, in this order, that keep together what must be."""
    nodes, groups = figures.nodes, list(must_share(figures))
    for turns in itertools.product((0, 1), repeat=len(nodes)):
        turn = dict(zip(nodes, turns, strict=True))
        goes_back = any(turn.get(used, 0) > turn[node] for node in nodes for used in node.all_input_nodes)
        if not goes_back and all(len({turn[node] for node in group}) == 1 for group in groups):
            homes = {node: names[at] for node, at in turn.items()}
            yield runs_of(figures.graph_module, homes, figures.dependencies)


def choices(figures: GraphFigures, request: Request, runs: Runs, names: tuple[str, str]) -> Iterator[tuple[Node, ...]]:
    """What the second device may compute again."""
    assignment, where = runs.assignment, runs.device_of
    if len(set(where.values())) < 2:
        yield ()
        return
    first = [node for node, part in assignment.partition_of.items() if where[str(part)] == names[0]]
    again = sorted(may_be_made_again(figures, request).intersection(first))
    every = [chosen for count in range(len(again) + 1) for chosen in itertools.combinations(again, count)]
    yield from every if len(every) <= MOST_REPLICAS else random.Random(0).sample(every, MOST_REPLICAS)


def value_of(graph: GraphModule, request: Request, runs: Runs, second: str, again: tuple[Node, ...]) -> float:
    """What the busiest device takes; ``inf`` where a budget is passed or the replicas are refused."""
    order = [str(part) for part in runs.assignment.order]
    homes = {node: str(part) for node, part in runs.assignment.partition_of.items()}
    replicas = {part: again for part in order if again and runs.device_of[part] == second}
    try:
        assignment = Assignment.of(graph, homes, order=order, replicas=replicas)
        twin, written = with_replicas(graph, assignment, dict(runs.device_of)) if again else (graph, assignment)
    except (CycleError, PartitionError):
        return math.inf
    figures, placed = GraphFigures.of(twin, devices=request.topology.devices), Runs(written, runs.device_of)
    if check_budgets(figures, request.topology, placed, None, always=True).over:
        return math.inf
    return objective_value(figures, request.topology, "throughput", placed, None)


@pytest.mark.parametrize("seed", [4, 8, 15, 31])
def test_no_pipeline_is_below_the_bound(seed: int) -> None:
    draw = random.Random(seed)
    with torch.no_grad():
        graph = capture(Drawn(seed).eval(), (torch.randn(16, 64),), {}).module(check_guards=False)
    whole = GraphFigures.of(graph).bytes_of(range(len(GraphFigures.of(graph).nodes)))
    left = Device("left", int(draw.choice([0.6, 0.7, 0.8, 1.0]) * whole), flops=draw.choice([1e9, 3e9]), is_fake=True)
    right = Device("right", int(draw.choice([0.6, 0.8, 0.9]) * whole), flops=1e9, is_fake=True)
    request = Request(Topology.of([left, right], [Link("left", "right", draw.choice([1e7, 1e8, 1e9]))]), "throughput")
    figures = GraphFigures.of(graph, devices=request.topology.devices)
    best = min(
        value_of(graph, request, runs, names[1], again)
        for names in (("left", "right"), ("right", "left"))
        for runs in pipelines(figures, names)
        for again in choices(figures, request, runs, names)
    )

    alone = runs_of(graph, dict.fromkeys(figures.nodes, "left"), figures.dependencies)
    bound = bound_with_replicas(figures, request, Found(alone, "pipeline", best, math.inf))

    assert 0 < bound <= best * (1 + 1e-9) < math.inf
    placed = place_by_device(graph, [left, right], request.topology.links, objective="throughput", replicate="cheaper")
    assert placed.objective_value >= bound * (1 - 1e-9)


class Masked(nn.Module):
    """Layers that read one mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.arange(256)[:, None] >= torch.arange(256)[None]
        for layer in self.layers:
            x = layer(x).relu() * mask
        return x


def test_what_is_proven_of_placements_without_replicas_is_told_beside_it() -> None:
    x, program = torch.randn(256, 256), torch.export.export(Masked(), (torch.randn(256, 256),))
    halves = {"layers.1": "left", "layers.2": "right"}
    options = {"devices": [Device("left"), Device("right")], "links": [Link("left", "right", 1e9)], "pinned": halves}
    planned = place(Masked(), (x,), **options, objective="throughput")
    once = place(Masked(), (x,), **options, objective="throughput", replicate="never")

    told = planned.plan.predicted
    assert () != planned.summary.replicas
    assert once.plan.predicted["bound"] == told["bound_once"] == once.plan.predicted["objective_value"]
    assert told["bound"] <= told["objective_value"] < told["bound_once"]
    assert "bound_once" not in once.plan.predicted
    assert planned.summary.optimality().endswith(" more. None that computes nothing again can be below 1.17 ms.")
    again = Plan.from_json(planned.plan.to_json())
    assert planned.plan == again
    assert not diff(planned.plan, again)
    assert [] == again.check(program)
