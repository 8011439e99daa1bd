"""Buffers that forward replaces instead of writing to them: a program goes on as the model does, or is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fxpasses import CaptureError, Device, lower
from fxpasses.programs import capture

Forward = Callable[[Any, Tensor], Any]


class Replacing(nn.Module):
    """Does what it is given with two buffers."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.empty: Tensor | None
        self.register_buffer("empty", None)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("last", torch.ones(4))
        self.other = torch.full((4,), 2.0)
        self.own = forward

    def forward(self, x: Tensor) -> Any:
        return self.own(self, x)


class Holding(nn.Module):
    """Has such a module inside."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.inner, self.linear = Replacing(forward), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        return self.inner(self.linear(x))


def average(module: Any, x: Tensor) -> Tensor:
    module.mean = 0.9 * module.mean + 0.1 * x.mean(0)
    return x - module.mean


def statistics(module: Any, x: Tensor) -> Tensor:
    """Results do not depend on what is kept."""
    module.mean = 0.9 * module.mean + 0.1 * x.mean(0).detach()
    return 2 * x


def remember(module: Any, x: Tensor) -> Tensor:
    result = x + module.mean + module.last
    module.last = module.mean
    module.mean = x.mean(0)
    return result


def swap(module: Any, x: Tensor) -> Tensor:
    module.mean, module.last = module.last, module.mean
    return x * module.mean


def give_back(module: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    old = module.mean
    module.mean = x.mean(0)
    return old[:2], module.mean


def put_back(module: Any, x: Tensor) -> Tensor:
    old = module.mean
    module.mean = old + 1
    result = x * module.mean
    module.mean = old
    return result


def detach(module: Any, x: Tensor) -> Tensor:
    module.mean = module.mean.detach()
    module.mean.add_(1)
    return x * module.mean


def widen(module: Any, x: Tensor) -> Tensor:
    module.mean = module.mean.double()
    return x * module.mean.float()


def constant(module: Any, x: Tensor) -> Tensor:
    module.mean = module.other
    return x * module.mean


def grow(module: Any, x: Tensor) -> Tensor:
    module.mean = torch.cat([module.mean, x.mean(0)])
    return x + module.mean.sum()


def fraction(module: Any, x: Tensor) -> Tensor:
    module.mean = torch.complex(module.mean, module.mean)
    return x + module.mean.abs()


def fill(module: Any, x: Tensor) -> Tensor:
    if module.empty is None:
        module.empty = x.mean(0)
    return x + module.empty


def go_on(model: nn.Module, strict: bool) -> None:
    """Three runs of a captured model give the same results, and leave the same state, as those of the model."""
    program = capture(copy.deepcopy(model), (torch.randn(3, 4),), strict=strict).module(check_guards=False)
    for _ in range(3):
        x = torch.randn(3, 4)
        torch.testing.assert_close(program(x.clone()), model(x))
    state = dict(model.named_buffers())
    for name, value in program.named_buffers():
        if "other" not in name:
            torch.testing.assert_close(value, state[name], check_dtype=False)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", [Replacing, Holding])
@pytest.mark.parametrize("forward", [average, statistics, remember, swap, put_back, detach, widen])
def test_a_replaced_buffer_goes_on_as_in_the_model(forward: Forward, kind: type[Any], strict: bool) -> None:
    """torch.export forgets it, silently in a submodule and with ``strict=True``."""
    with torch.no_grad():
        go_on(kind(forward), strict)


@pytest.mark.parametrize("kind", [Replacing, Holding])
def test_what_is_given_back_of_the_old_value_keeps_it(kind: type[Any]) -> None:
    with torch.no_grad():
        go_on(kind(give_back), strict=False)


def test_a_lowered_model_goes_on_as_the_model_does() -> None:
    model, x = Holding(average), torch.randn(3, 4)
    before = {name: (id(value), value.clone()) for name, value in model.named_buffers()}

    lowered = lower(model, (x,), devices=[Device("a"), Device("b")], pinned={"inner": "a", "linear": "b"})
    after = {name: (id(value), value.clone()) for name, value in model.named_buffers()}

    assert all(
        one[0] == other[0] and torch.equal(one[1], other[1])
        for one, other in zip(*map(dict.values, (before, after)), strict=True)
    )
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    for _ in range(3):
        assert torch.equal(model(x), lowered(x))
    assert torch.equal(model.inner.mean, lowered.state_dict()["inner.mean"])


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("forward", "kind"), [(grow, "shape"), (fraction, "type")])
def test_what_cannot_be_written_into_a_buffer_is_refused(forward: Forward, kind: str, strict: bool) -> None:
    with pytest.raises(CaptureError) as caught:
        capture(Holding(forward), (torch.randn(3, 4),), strict=strict)

    assert (
        f"The forward of Holding replaces the buffer 'inner.mean' by a tensor of another {kind}. A program cannot keep "
        "that, and would go on with the old one; write into a buffer of a fixed shape and type, in place: "
        "self.mean.copy_(...)." == str(caught.value)
    )


def test_replacing_one_of_two_buffers_in_the_same_memory_is_refused() -> None:
    model = Holding(average)
    model.register_buffer("view", model.inner.mean[:2])

    with pytest.raises(CaptureError) as caught:
        capture(model, (torch.randn(3, 4),))

    assert (
        "The forward of Holding replaces the buffer 'inner.mean', which shares its memory with 'view', and a program "
        "can only write to both; give each its own memory (.clone()), or write in place: self.mean.copy_(...)."
        == str(caught.value)
    )


def test_giving_back_the_old_value_is_refused_where_it_cannot_be_copied() -> None:
    with pytest.raises(CaptureError, match=r"replaces a buffer and gives back its old value \('slice_1'\)"):
        capture(Holding(give_back), (torch.randn(3, 4),), strict=True)


@pytest.mark.parametrize("strict", [False, True])
def test_a_buffer_that_is_only_remembered_in_another_shape_is_warned_of(strict: bool) -> None:
    def remember_all(module: Any, x: Tensor) -> Tensor:
        module.mean = 2 * x
        return module.mean

    with pytest.warns(UserWarning, match=r"'inner\.mean' by a tensor of another shape\. Results do not depend on it"):
        capture(Holding(remember_all), (torch.randn(3, 4),), strict=strict)


def test_a_constant_that_a_module_holds_may_take_the_place_of_a_buffer() -> None:
    """Rotary embeddings choose one of several tables so; nothing is written then."""
    program = capture(Holding(constant), (torch.randn(3, 4),))

    assert not program.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)


@pytest.mark.parametrize("kind", [Replacing, Holding])
def test_a_model_whose_empty_buffer_is_filled_is_left_as_it_was(kind: type[Any]) -> None:
    model = kind(fill)

    capture(model, (torch.randn(3, 4),))

    inner = model if kind is Replacing else model.inner
    assert inner.empty is None
    assert ["empty", "mean", "last"] == list(inner._buffers)


def test_a_model_that_keeps_a_tensor_in_a_new_attribute_is_left_as_it_was() -> None:
    """Rotary embeddings keep tables so; torch left a fake tensor there, with which the model itself went on."""

    def keep(module: Any, x: Tensor) -> Tensor:
        if not hasattr(module, "table"):
            module.table = torch.ones(4) * 3
        return x * module.table

    model, x = Holding(keep), torch.randn(3, 4)

    program = capture(model, (x,)).module()

    assert not hasattr(model.inner, "table")
    assert torch.equal(program(x), model(x))
