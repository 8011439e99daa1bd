"""Checkpoints of lowered models list what the model's own list, in the same order."""

from __future__ import annotations

import random

import pytest
import torch
from fuzz import examples
from lowering_models import cpu_pair
from torch import Tensor, nn

from fxpasses import lower


class Tree(nn.Module):
    """A parameter, perhaps buffers that nobody uses, and children that are as random, registered in a random order."""

    def __init__(self, draw: random.Random, depth: int) -> None:
        super().__init__()
        kinds = ["parameter", *["buffer"] * draw.randrange(3), *["child"] * (draw.randrange(3) if depth else 0)]
        self.inner = []
        for place, kind in enumerate(draw.sample(kinds, len(kinds))):
            if kind == "parameter":
                self.register_parameter(f"p{place}", nn.Parameter(torch.randn(4)))
                self.own = f"p{place}"
            elif kind == "buffer":
                self.register_buffer(f"b{place}", torch.zeros(place + 1), persistent=draw.random() < 0.7)
            else:
                self.add_module(f"c{place}", Tree(draw, depth - 1))
                self.inner.append(f"c{place}")
        draw.shuffle(self.inner)  # they run in another order

    def forward(self, x: Tensor) -> Tensor:
        for name in self.inner:
            x = self.get_submodule(name)(x)
        result: Tensor = x * self.get_parameter(self.own)
        return result


@pytest.mark.parametrize("seed", range(examples(6)))
def test_a_lowered_model_keeps_the_order_of_its_checkpoint(seed: int) -> None:
    """Modules within modules, with buffers that are not used between what is."""
    model = Tree(random.Random(seed), 3)

    lowered = lower(model, (torch.randn(4),), devices=cpu_pair(), device_map={"": "left"})

    assert list(lowered.state_dict()) == list(model.state_dict())
    assert list(lowered.state_dict(prefix="a.")) == [f"a.{name}" for name in model.state_dict()]


class Statistics(nn.Module):
    """Nothing but buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x - self.mean
        return result


def test_a_child_of_buffers_stands_between_others_that_have_some() -> None:
    """Only parameters and buffers are listed each in their order; what both have says where the rest goes."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), Statistics(), nn.BatchNorm1d(4), nn.Linear(4, 4)).eval()

    lowered = lower(model, (torch.randn(2, 4),), devices=cpu_pair(), device_map={"": "left", "3": "right"})

    assert list(lowered.state_dict()) == list(model.state_dict())


class OnlyBuffers(nn.Module):
    """A child that has no parameters, between others that have no buffers, and called last."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.between, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.between(self.first(self.last(x)))
        return result


def test_children_that_have_only_buffers_stand_where_they_stand_in_the_model() -> None:
    """They came last, behind all that have parameters."""
    model = nn.Sequential(OnlyBuffers(), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 4)).eval()

    lowered = lower(model, (torch.randn(2, 4),), devices=cpu_pair(), device_map={"": "left", "2": "right"})

    assert list(lowered.state_dict()) == list(model.state_dict())
