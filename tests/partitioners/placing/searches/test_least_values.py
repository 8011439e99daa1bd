"""What a placement takes at least, before it is cut into parts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx import Node

from fxpasses import Device, Link, Topology, Training
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.partitioners.grouping.keep_together import is_getitem
from fxpasses.partitioners.placing.device_runs import runs_by_schedule, runs_of
from fxpasses.partitioners.placing.measured_graphs import MeasuredGraph
from fxpasses.partitioners.placing.objective_values import Objective, objective_value
from fxpasses.partitioners.placing.requests import Request
from fxpasses.partitioners.placing.searches import near_placements as near
from fxpasses.partitioners.placing.searches.least_values import LeastValues


class Branches(nn.Module):
    """Branches of several lengths that are joined again and again, and a table that several of them use."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(16, 16))
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            first, second = layer(x).chunk(2, -1)
            x = torch.cat([first.sin(), (second @ self.table[:8, :8]).cos().exp()], -1) + x @ self.table
        return x


DEVICES = [
    Device(name, flops=1e9 * speed, bandwidth=1e9, overhead=1e-6) for name, speed in zip("abc", (1, 2, 3), strict=True)
]
TOPOLOGY = Topology.of(DEVICES, [Link("a", "b", 1e9, 1e-6), Link("b", "a", 3e9, 1e-6), Link("b", "c", 1e8, 1e-5)])


def whole(home: Mapping[Node, str]) -> dict[Node, str]:
    """Elements of a tuple go where it is."""
    return {node: home[node.all_input_nodes[0]] if is_getitem(node) else name for node, name in home.items()}


@pytest.mark.parametrize("training", [None, Training()], ids=["inference", "training"])
@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_no_parts_take_less_than_what_is_seen_before(objective: Objective, training: Training | None) -> None:
    """Wherever operators are, and however they are cut; where all are on one device, it is what they take."""
    graph = torch.export.export(Branches(), (torch.randn(4, 16),)).module(check_guards=False)
    measured = MeasuredGraph.of(graph, DEVICES, training)
    figures = measured.figures
    step = TrainingStep.if_any(graph, training)
    least, draw = LeastValues.of(figures, TOPOLOGY).asked(objective), np.random.default_rng(0)

    shares = []
    for trial in range(60):
        blocks = np.sort(draw.integers(1 + trial % 7, size=len(figures.nodes)))
        names = [DEVICES[draw.integers(3)].name for _ in range(7)]
        home = {node: names[block] for node, block in zip(figures.nodes, blocks.tolist(), strict=True)}
        if trial % 2:
            home = {node: DEVICES[draw.integers(3)].name for node in figures.nodes}
        home = whole(home)
        cut = (runs_of(graph, home), runs_by_schedule(graph, home))
        shares += [least(home) / objective_value(figures, TOPOLOGY, objective, runs, step) for runs in cut]

    alone = dict.fromkeys(figures.nodes, "a")
    taken = objective_value(figures, TOPOLOGY, objective, runs_of(graph, alone), step)
    assert max(shares) <= 1
    assert 0.5 < np.mean(shares)
    assert taken == pytest.approx(least(alone), rel=1e-6)


def test_of_bytes_nothing_is_known_before() -> None:
    graph = torch.export.export(Branches(), (torch.randn(4, 16),)).module(check_guards=False)
    figures = MeasuredGraph.of(graph, DEVICES, None).figures

    assert 0 == LeastValues.of(figures, TOPOLOGY).asked("memory")(dict.fromkeys(figures.nodes, "a"))


def test_most_changes_are_seen_to_be_worse_before_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found is what is found where all of them are cut."""
    graph = torch.export.export(Branches(), (torch.randn(4, 16),)).module(check_guards=False)
    request = Request(TOPOLOGY, "latency", time_budget=0.5)
    figures = MeasuredGraph.of(graph, DEVICES, None).figures
    problem = request.problem(figures, "free", figures.needs)
    start = runs_of(graph, whole({node: "abc"[at % 3] for at, node in enumerate(figures.nodes)}))
    asked = list[str]()

    def noted(*args: object) -> float:
        asked.append("cut")
        return objective_value(*args)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(near, "objective_value", noted)
    found = near.near_placements(figures, request, problem, [start], 0.0)
    cut = len(asked)
    monkeypatch.setattr(LeastValues, "asked", lambda _self, _objective: lambda _home: 0.0)
    asked.clear()
    again = near.near_placements(figures, request, problem, [start], 0.0)

    assert [each.value for each in again] == [each.value for each in found]
    assert cut < 0.6 * len(asked)
