"""Received copies: there from the beginning of the part that needs them, one for each value."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fxpasses import Assignment, Device
from fxpasses.partitioners.costs.memory import predict_memory
from fxpasses.partitioners.costs.memory_courses import DeviceMemory

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


class ViewsOfState(nn.Module):
    """Views of a parameter and of a buffer: one is repeated, which a copy is not."""

    def __init__(self) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.randn(1, 64))
        self.register_buffer("table", torch.randn(64, 64))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.row.expand(64, -1)) @ self.table.t()


class ViewOfACopy(nn.Module):
    """A value and a view of it cross; a view of this view is used once more after the part has run."""

    def forward(self, x: Tensor) -> Tensor:
        large = x.relu()
        turned = large.t().unsqueeze(0)
        other = x * turned.sum()
        return other.sum() + large.sum() + turned.sum()


class ThereAndBack(nn.Module):
    """A view that another device makes of a value goes back to where the value is."""

    def forward(self, x: Tensor) -> Tensor:
        large = x.relu()
        return large + large.t().exp()


def copies(model: nn.Module, args: tuple[Tensor, ...], *first: str) -> int:
    graph = torch.export.export(model, args).module(check_guards=False)
    nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
    assignment = Assignment.of(graph, {node: "a" if node.name in first else "b" for node in nodes})
    return predict_memory(graph, assignment, {"a": Device("a"), "b": Device("b")})["b"].activations


def memory(model: nn.Module, args: tuple[Tensor, ...], **parts: str) -> dict[str, DeviceMemory]:
    """What is predicted for parts that run in this order, on the devices of which they have the first letter."""
    graph = torch.export.export(model, args).module(check_guards=False)
    nodes = {node.name: node for node in graph.graph.nodes}
    partition_of = {nodes[name]: part for part, names in parts.items() for name in names.split()}
    assignment = Assignment.of(graph, partition_of, order=parts)
    devices = {"a": Device("a"), "b": Device("b")}
    return predict_memory(graph, assignment, {part: devices[part[0]] for part in parts})


def test_an_input_from_elsewhere_is_there_while_its_part_runs_however_late_it_is_used() -> None:
    class LateInput(nn.Module):
        def forward(self, x: Tensor, late: Tensor) -> Tensor:
            return x.relu().sin().cos().sum() + late

    graph = torch.export.export(LateInput(), (torch.randn(64, 64), torch.randn(64, 64))).module(check_guards=False)
    nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
    assignment = Assignment.of(graph, {node: "a" if node.name == "relu" else "b" for node in nodes})
    devices = {"a": Device("a"), "b": Device("b", torch_device="meta")}

    peak = predict_memory(graph, assignment, devices)["b"].peak

    assert peak >= 4 * LARGE  # relu's copy and the late input, beside what two operators make


def test_a_copy_is_there_while_its_part_runs_however_late_it_is_used() -> None:
    x = torch.randn(64, 64)

    assert 4 * LARGE <= copies(Late(), (x, x), "relu")  # the copy, y, and two values of the part


def test_two_views_of_one_value_that_cross_are_two_copies() -> None:
    assert 4 * LARGE <= copies(TwoViews(), (torch.randn(64, 64),), "relu", "view", "view_1")


def test_views_of_parameters_and_buffers_that_cross_are_copies_as_large_as_they_look() -> None:
    x = torch.randn(64, 64)

    found = memory(ViewsOfState(), (x,), a="expand t", b="add matmul")

    assert 64 * 4 + LARGE == found["a"].peak  # views cost nothing where the state is
    assert 3 * LARGE == found["b"].copies  # with x
    assert 5 * LARGE == found["b"].peak  # with x and two values


def test_a_view_of_one_of_two_copies_keeps_this_one() -> None:
    x = torch.randn(64, 64)

    found = memory(ViewOfACopy(), (x,), a="relu t", b="unsqueeze sum_1", a_1="mul", b_1="sum_2 sum_3 add sum_4 add_1")

    assert 3 * LARGE <= found["b"].copies  # t, relu, mul


def test_what_comes_back_as_a_copy_lies_beside_what_was_sent() -> None:
    x = torch.randn(64, 64)

    found = memory(ThereAndBack(), (x,), a="relu", b="t", a_1="exp add")

    assert LARGE == found["a"].copies - LARGE  # t and the input
    assert 5 * LARGE == found["a"].peak  # x, relu, the copy of t, exp, add
