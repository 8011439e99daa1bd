"""What is found without budgets is an answer where it keeps them."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

from fxpasses import Device, place
from fxpasses.plan import stable_keys


class Branching(nn.Module):
    """Two branches of several operators each, and no more than ten operators in all."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        narrow = self.second(self.first(x).relu())
        wide = self.third(x)
        return (narrow.tanh() * x).sum() + wide.exp().sum()


@pytest.mark.parametrize("seed", [0, 1, 2, 7])
@pytest.mark.parametrize("slack", [1.0, 1.05])
def test_the_same_pins_are_kept_in_the_memory_that_they_took_without_budgets(seed: int, slack: float) -> None:
    """Every operator is pinned, so only their turns are left to choose: those of the search without budgets do."""
    draw = random.Random(seed)
    model, args = Branching(), (torch.randn(4, 8),)
    keys = stable_keys(place(model, args, devices=[Device("all")]).program.graph).values()
    pins = {key: draw.choice(("left", "right")) for key in keys}
    freely = place(model, args, devices=[Device("left"), Device("right")], pinned=pins, contiguity="free")
    devices = [Device(row.name, int(slack * row.peak_bytes)) for row in freely.summary.devices]

    planned = place(model, args, devices=devices, pinned=pins, contiguity="free")

    assert all(row.peak_bytes <= device.memory for row, device in zip(planned.summary.devices, devices, strict=True))
    assert not planned.plan.check(planned.program, devices=devices)
