"""Predicted peak bytes against what is really allocated."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from allocations import AllocatedBytes
from lowering_models import KeyValueCache, Mlp, Tied
from torch import Tensor, nn

from fxpasses import Device, LoweredModule, lower
from fxpasses.partitioners.memory import DeviceMemory


class Widening(nn.Module):
    """Activations that grow and shrink, a skip connection, and views in between."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 512)
        self.down = nn.Linear(512, 64)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x).view(-1, 8, 64).transpose(1, 2).relu()
        return self.down(hidden.transpose(1, 2).reshape(-1, 512)) + x


def resnet() -> tuple[nn.Module, tuple[Tensor, ...]]:
    from examples.resnet import model

    return model()


MODELS = {
    "mlp": lambda: (Mlp(6), (torch.randn(256, 64),)),
    "tied": lambda: (Tied(), (torch.randint(0, 50, (16, 32)),)),
    "widening": lambda: (Widening(), (torch.randn(64, 64),)),
    "cache": lambda: (KeyValueCache(64, 128), (torch.randn(1, 1, 64), torch.tensor([0]))),
    "resnet": resnet,
}


@pytest.mark.parametrize("name", list(MODELS))
def test_the_predicted_peak_is_within_a_tenth_of_what_is_allocated_and_never_under(name: str) -> None:
    """Complaint 27: activations and caches are part of the estimate."""
    model, args = MODELS[name]()
    model.eval()
    lowered = lower(model, args, devices=[Device("only")])
    (row,) = lowered.report.devices
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in (*args, *state_of(lowered))}

    with torch.no_grad(), AllocatedBytes(set(held)) as allocated:
        lowered(*args)

    real = allocated.peak + sum(held.values())
    assert real <= row.peak_bytes
    assert row.peak_bytes <= 1.1 * real


def state_of(lowered: LoweredModule) -> Iterator[Tensor]:
    """What the parts hold; a buffer that no operator uses is on no device."""
    for name in lowered.submodule_of.values():
        yield from lowered.get_submodule(name).parameters()
        yield from lowered.get_submodule(name).buffers()


def test_the_peak_is_what_stays_plus_what_comes_and_goes() -> None:
    assert 7 == DeviceMemory(parameters=5, activations=2, copies=1).peak
