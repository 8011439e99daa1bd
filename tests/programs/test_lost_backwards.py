"""A function's own backward is not captured: that is said, where gradients would flow through it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fxpasses.programs import capture


class Rounded(torch.autograd.Function):
    """Gradients pass straight through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]  # of one input
        return gradient


class Quantized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return Rounded.apply(self.linear(x))  # type: ignore[no-untyped-call,no-any-return]


def test_a_backward_that_is_lost_is_told() -> None:
    before = torch.autograd.Function.apply
    with pytest.warns(UserWarning, match=r"^torch.export keeps what Rounded computes forward, and not the backward"):
        program = capture(Quantized(), (torch.randn(2, 4),))

    assert program.graph.find_nodes(op="call_function", target=torch.ops.aten.round.default)
    assert before == torch.autograd.Function.apply


def test_nothing_is_told_where_no_gradient_flows() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.no_grad():
            capture(Quantized(), (torch.randn(2, 4),))
        capture(Quantized().requires_grad_(False), (torch.randn(2, 4),))
        capture(nn.Linear(4, 4), (torch.randn(2, 4),))
