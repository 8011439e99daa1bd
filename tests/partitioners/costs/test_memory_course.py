"""Received copies: there from the beginning of the part that needs them, one for each value."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fxpasses import Assignment, Device
from fxpasses.partitioners.costs.memory import predict_memory

LARGE = 64 * 64 * 4


class Late(nn.Module):
    """The second part needs the large value only at its end, after work of its own."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        large = x.relu()
        hidden = y.sin().cos().sum()
        return large + hidden


class TwoViews(nn.Module):
    """Two views of one value cross."""

    def forward(self, x: Tensor) -> Tensor:
        large = x.relu()
        return large.view(-1, 64).exp() + large.view(64, -1).tan()


def copies(model: nn.Module, args: tuple[Tensor, ...], *first: str) -> int:
    graph = torch.export.export(model, args).module(check_guards=False)
    nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
    assignment = Assignment.of(graph, {node: "a" if node.name in first else "b" for node in nodes})
    return predict_memory(graph, assignment, {"a": Device("a"), "b": Device("b")})["b"].activations


def test_a_copy_is_there_while_its_part_runs_however_late_it_is_used() -> None:
    x = torch.randn(64, 64)

    assert 4 * LARGE <= copies(Late(), (x, x), "relu")  # the copy, y, and two values of the part


def test_two_views_of_one_value_that_cross_are_two_copies() -> None:
    assert 4 * LARGE <= copies(TwoViews(), (torch.randn(64, 64),), "relu", "view", "view_1")
