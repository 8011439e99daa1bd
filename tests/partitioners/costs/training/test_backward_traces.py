"""What autograd keeps and makes in a backward, learned by running it on tensors without data."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from fxpasses.partitioners.costs.training.backward_needs import BackwardNeeds
from fxpasses.partitioners.costs.training.backward_traces import trace_backward
from fxpasses.passes.placement import move_part

SIZE = 8 * 8 * 4


def needs_of(model: nn.Module, *args: Tensor) -> BackwardNeeds:
    module = torch.export.export(model, args).module(check_guards=False)
    assert isinstance(module, GraphModule)
    return trace_backward(module, inputs_need_gradients=True)


def made(needs: BackwardNeeds, name: str) -> list[int]:
    """Bytes of what the backward of one node makes."""
    return [stay.size for stay in needs.stays if stay.begin == "backward" and stay.made_by.name == name]


def test_views_and_sums_hand_the_same_gradient_on() -> None:
    """What the caller gives for the result is also the gradient of both operands, and of their views."""

    class Handing(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x.t().view(64) + y.view(64)

    needs = needs_of(Handing(), torch.randn(8, 8).t(), torch.randn(8, 8))

    assert [] == made(needs, "add")
    assert [] == made(needs, "view")
    assert [SIZE] == [stay.size for stay in needs.stays if stay.begin == "given"]


def test_gradients_of_a_value_that_is_used_twice_are_added_up() -> None:
    """The first user's gradient stays until the sum is made; the sum stays until the value's own backward."""

    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.exp()
            return y.sin() + y.cos()

    needs = needs_of(Twice(), torch.randn(8, 8))
    nodes = {node.name: node for node in needs.differentiable}
    of_cos = next(stay for stay in needs.stays if stay.made_by is nodes["cos"] and stay.last is not nodes["cos"])

    assert nodes["sin"] is of_cos.last
    assert any(stay.made_by is nodes["sin"] and stay.last is nodes["exp"] for stay in needs.stays)


def test_a_forward_tells_what_it_keeps_and_what_it_needs_for_itself() -> None:
    """A mean of squares keeps its operand; the squares are gone when it is done."""

    class Normed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.layer_norm(x, (8,))

    needs = needs_of(Normed(), torch.randn(8, 8))
    (node,) = (node for node in needs.differentiable if node.op == "call_function")

    assert 2 * 8 * 4 == needs.extra[node]  # mean and deviation of each row
    assert node not in needs.inside


def test_where_no_backward_runs_each_value_counts_as_having_one_gradient() -> None:
    """An operator of one's own whose backward cannot run without data."""

    @torch.library.custom_op("fxpasses_tests::opaque", mutates_args=())
    def opaque(x: Tensor) -> Tensor:
        return x.exp()

    def backward(_context: object, gradient: Tensor) -> Tensor:
        raise NotImplementedError("no backward without data")

    opaque.register_fake(torch.empty_like)
    opaque.register_autograd(backward)

    class Opaque(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = opaque(x.sin()).cos()
            return result

    needs = needs_of(Opaque(), torch.randn(8, 8))

    assert 3 * [SIZE] == [stay.size for stay in needs.stays if stay.begin == "backward"]  # of x, sin and the operator
    assert not needs.beside


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_a_graph_of_a_gpu_that_is_not_here_is_traced_on_the_cpu() -> None:
    """Autograd aborts the process for a device that torch was not built for."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.second(torch.relu(self.first(x)) + torch.arange(16.0))
            return result

    module = torch.export.export(Net(), (torch.randn(2, 8),)).module(check_guards=False)
    expected = trace_backward(module)

    move_part(module.to("meta"), "cuda:0")
    actual = trace_backward(module)

    assert "cuda" == next(node.meta["val"].device.type for node in module.graph.nodes if node.op == "call_function")
    assert (expected.saved, expected.extra, expected.inside) == (actual.saved, actual.extra, actual.inside)
    assert [stay.size for stay in expected.stays] == [stay.size for stay in actual.stays]


def test_what_a_backward_needs_does_not_depend_on_when_garbage_is_collected() -> None:
    """The autograd functions of a cond hold each other: a collection in the middle freed what a real run still has."""

    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.one, self.other, self.last = (nn.Linear(8, 8) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            x = torch.cond(x.sum() > 0, lambda x: self.one(x), lambda x: self.other(x) * 2, (x,))
            return self.last(x)

    with torch.no_grad():  # dynamo, under torch.cond, warns about tensors that are no leaves
        module = torch.export.export(Branching(), (torch.randn(4, 8),)).module(check_guards=False)

    def told(threshold: int) -> list[tuple[int, str, str | None]]:
        gc.set_threshold(threshold)
        needs = trace_backward(module)
        return [(stay.size, stay.made_by.name, stay.last and stay.last.name) for stay in needs.stays]

    before = gc.get_threshold()
    try:
        assert told(1) == told(100_000)
        assert gc.isenabled()
    finally:
        gc.set_threshold(*before)
