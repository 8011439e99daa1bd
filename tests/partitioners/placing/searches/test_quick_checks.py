"""What is followed of a training step to know whether budgets hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from forked_values import Fork
from torch.fx import Node

from fxpasses import Assignment, Device, Topology, Training
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.partitioners.placing.budget_checks import check_budgets
from fxpasses.partitioners.placing.device_runs import Runs
from fxpasses.partitioners.placing.measured_graphs import MeasuredGraph
from fxpasses.partitioners.placing.requests import Request
from fxpasses.partitioners.placing.searches.quick_checks import check_until_over


@pytest.mark.parametrize(
    ("order", "memory", "followed"),
    [
        (["linear", "sin", "cos"], "1MB", [False]),
        (["linear", "cos", "sin"], "1MB", [False, True]),
        (["linear", "cos", "sin"], "100B", [False]),
    ],
    ids=["in its own order", "in another order", "too large in any case"],
)
def test_a_step_is_followed_once_where_its_backward_is_as_it_was_traced(
    order: list[str], memory: str, followed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another order it is followed in that one, too, if it fits in the graph's own."""
    graph = torch.export.export(Fork(), (torch.randn(4, 8),)).module(check_guards=False)
    node: dict[str, Node] = {each.name: each for each in graph.graph.nodes}
    topology = Topology.of([Device("a", memory), Device("b", memory)])
    measured = MeasuredGraph.of(graph, topology.devices, Training())
    assert measured.step is not None
    request = Request(topology, "latency", training=measured.step)
    home = {"linear": "a", order[1]: "b", order[2]: "a"}
    runs = Runs(Assignment.of(graph, {node[each]: each for each in order}, order=order), home)
    expected = check_budgets(measured.timed, topology, runs, measured.step)
    course, asked = TrainingStep.course, list[bool]()

    def noted(step: TrainingStep, *args: Any, in_order: bool = True) -> Any:
        asked.append(in_order)
        return course(step, *args, in_order=in_order)

    monkeypatch.setattr(TrainingStep, "course", noted)
    seen = check_until_over(measured.timed, request, runs)

    assert followed == asked
    assert bool(expected.over) == bool(seen.over)
    assert memory == "100B" or expected.peaks == seen.peaks
