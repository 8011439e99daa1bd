"""Modules that take and return dataclasses and other pytrees keep their call signature in an unflattened model."""

from __future__ import annotations

import collections
import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import register_pytree_node

from fxpasses.passes import unflatten


@dataclasses.dataclass
class Given:
    """What the inner module takes."""

    x: Tensor
    pair: tuple[Tensor, Tensor]
    mask: Tensor | None = None


@dataclasses.dataclass
class Returned:
    """What it returns."""

    y: Tensor
    inner: dict[str, list[Tensor]]
    cache: Tensor | None = None


torch.export.register_dataclass(Given, serialized_type_name="fxpasses.tests.Given")
torch.export.register_dataclass(Returned, serialized_type_name="fxpasses.tests.Returned")


class Inner(nn.Module):
    """A linear layer between dataclasses."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, given: Given) -> Returned:
        y = self.linear(given.x) + given.pair[0] * given.pair[1]
        return Returned(y, {"k": [y + 1, given.x]})


class Doubling(nn.Module):
    """Another module for its place."""

    def forward(self, given: Given) -> Returned:
        assert isinstance(given, Given)
        assert given.mask is None
        return Returned(given.x * 2, {"k": [given.x, given.x]})


class Twice(nn.Module):
    """Calls the inner module twice."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Returned:
        first = self.inner(Given(x, (x, x * 2)))
        second = self.inner(Given(first.y, (x, x * 3)))
        return Returned(first.y * second.inner["k"][0], {"q": [first.inner["k"][1]]})


def assert_same(one: Returned, other: Returned) -> None:
    assert type(one) is type(other) is Returned
    torch.testing.assert_close(one.y, other.y)
    torch.testing.assert_close(one.inner, other.inner)
    assert one.cache is other.cache is None


def test_a_dataclass_goes_in_and_comes_out() -> None:
    """Also from a copy, and from a module that takes the place of the original."""
    model, x = Twice(Inner()), torch.randn(2, 4)
    program = torch.export.export(model, (x,), preserve_module_call_signature=("inner",))

    unflattened = unflatten(program)

    assert_same(unflattened(x), model(x))
    assert_same(copy.deepcopy(unflattened)(x), model(x))
    unflattened.inner = Doubling()
    assert_same(unflattened(x), Twice(Doubling())(x))


class Box:
    """A type of the user's own, registered as a pytree."""

    def __init__(self, first: Tensor, second: Tensor) -> None:
        self.first, self.second = first, second

    def __iter__(self) -> Iterator[Tensor]:
        yield from (self.first, self.second)


register_pytree_node(
    Box, lambda box: ([*box], None), lambda leaves, _none: Box(*leaves), serialized_type_name="fxpasses.tests.Box"
)


class Pair(nn.Module):
    """Returns two tensors in some container."""

    def __init__(self, make: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> Any:
        return self.make(x + 1, x * 2)


class Product(nn.Module):
    """Multiplies what is in the container."""

    def __init__(self, pair: nn.Module) -> None:
        super().__init__()
        self.pair = pair

    def forward(self, x: Tensor) -> Tensor:
        made = self.pair(x)
        first, second = made.values() if isinstance(made, dict) else made
        result: Tensor = first * second
        return result


@pytest.mark.parametrize(
    "make",
    [lambda a, b: collections.OrderedDict(a=a, b=b), lambda a, b: collections.deque([a, b]), Box],
    ids=("ordered dict", "deque", "own type"),
)
def test_any_registered_container_comes_out(make: Callable[[Tensor, Tensor], Any]) -> None:
    """A graph cannot look into most of them."""
    model, x = Product(Pair(make)), torch.randn(2, 3)
    program = torch.export.export(model, (x,), preserve_module_call_signature=("pair",))

    unflattened = unflatten(program)

    torch.testing.assert_close(unflattened(x), model(x))
    assert type(unflattened.pair(x)) is type(make(x, x))
