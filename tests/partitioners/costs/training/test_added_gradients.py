"""Which sums of gradients autograd writes in place, against what it really does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from fxpasses.partitioners.costs.training.added_gradients import AddedGradients

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "two users": lambda x: x.sin() @ x.cos(),
    "three users": lambda x: (x.sin() @ x.cos()) @ x.exp(),
    "what the caller holds": lambda x: x + x.sin(),
    "past a function": lambda x: (x + x.sin()).exp(),
    "what is handed on twice": lambda x: x + (x + x.sin()).cos(),
    "the same twice": lambda x: (x + x).exp(),
    "a square": lambda x: (x * x).exp(),
    "two views": lambda x: x[0] * x[1],
    "by its columns": lambda x: x.t().sin() @ x,
    "a view that is handed on": lambda x: (x.view(-1).sin() + x.view(-1)).exp(),
    "a sum in a formula": lambda x: torch.nn.functional.silu(x).var(0),
    "a number for all": lambda x: x.sin().sum() + x.cos().sum(),
}


class Sums(TorchDispatchMode):
    """Counts the sums that are made in place."""

    def __init__(self, added: AddedGradients) -> None:
        super().__init__()
        self.added, self.in_place = added, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.in_place += self.added.is_in_place(func, args)
        return func(*args, **(kwargs or {}))


def functions_behind(result: Tensor) -> list[Any]:
    found, waiting = [], [result.grad_fn]
    while waiting:
        function = waiting.pop()
        if function is not None and function.next_functions and function not in found:
            found.append(function)
            waiting += [before for before, _ in function.next_functions]
    return found


@pytest.mark.parametrize("with_data", [False, True])
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_sums_are_in_place_where_autograd_makes_them_so(name: str, with_data: bool) -> None:
    with nullcontext() if with_data else FakeTensorMode(), torch.autograd.set_multithreading_enabled(False):
        result = FUNCTIONS[name](torch.ones(16, 16, requires_grad=True) * 1)
        added = AddedGradients(with_data=with_data)
        added.watch(functions_behind(result))
        with Sums(added) as sums:
            torch.autograd.backward([result], [torch.ones_like(result)])

    assert really_in_place(FUNCTIONS[name]) == sums.in_place


def really_in_place(function: Callable[[Tensor], Tensor]) -> int:
    result = function(torch.ones(16, 16, requires_grad=True) * 1)
    given = [torch.ones_like(result)]
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        torch.autograd.backward([result], given)
    return sum(event.count for event in profiled.key_averages() if event.key == "aten::add_")
