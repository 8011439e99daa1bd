"""What the searches of one call have in common is found once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from fxpasses import fake_devices
from fxpasses.partitioners.by_device import place_by_device
from fxpasses.partitioners.costs.memory import predict_memory
from fxpasses.partitioners.placing import contiguities
from fxpasses.partitioners.placing.searches import known_cuts
from fxpasses.units import KiB


class Branches(nn.Module):
    """Four layers side by side, again and again: with twelve of these there are too many ideals to look at them."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4 * blocks))

    def forward(self, x: Tensor) -> Tensor:
        layers = list(self.layers)
        while layers:
            own, layers = layers[:4], layers[4:]
            x = x + torch.cat([layer(x).relu()[:, :8] for layer in own], dim=1)
        return x


def captured(blocks: int) -> GraphModule:
    torch.manual_seed(0)
    return torch.export.export(Branches(blocks), (torch.randn(64, 32),)).module(check_guards=False)


def counted(module: Any, name: str, calls: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    function = getattr(module, name)

    def called(*args: Any, **options: Any) -> Any:
        calls[name] += 1
        return function(*args, **options)

    monkeypatch.setattr(module, name, called)


@pytest.mark.parametrize(("blocks", "searches"), [(8, 2), (12, 3)])
def test_the_searches_for_a_latency_share_the_cuts_that_no_solver_is_needed_for(
    blocks: int, searches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pipelines that add up to the least, schedules and whole parts are searched one after the other.

    Unless the ideals are few: the cuts that are known are proven to be the best then.
    """
    calls = Counter[str]()
    for module, name in (
        (contiguities, "search"),
        (known_cuts, "best_pipeline"),
        (known_cuts, "along_own_order"),
    ):
        counted(module, name, calls, monkeypatch)
    memory_of = [blocks * size * KiB // 8 for size in (90, 100, 130)]
    devices = fake_devices(3, memory=memory_of, flops=[1e9, 2e9, 3e9])

    found = place_by_device(captured(blocks), devices, time_budget=0.05)

    assert searches == calls["search"]
    assert 1 == calls["best_pipeline"]
    assert (searches == 3) == calls["along_own_order"]
    assert (searches == 2) == (found.bound >= found.objective_value * (1 - 1e-9))
    memory = predict_memory(found.assignment.graph.owning_module, found.assignment, found.device_of)
    assert all(memory[device.name].peak <= device.memory for device in devices if device.name in memory)
