"""Comparing a lowered model with the model itself: results, and what a run leaves in buffers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fxpasses import Device, lower


class Inner(nn.Module):
    """Keeps an average, in one of two ways; results do not depend on it."""

    def __init__(self, by_data: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.by_data, self.weight = by_data, nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        mean = 0.9 * self.mean + 0.1 * x.mean(0)
        if self.by_data:
            self.mean.data = mean
        else:
            self.mean = mean
        return x * self.weight


def test_a_buffer_that_is_not_kept_is_told() -> None:
    """torch.export drops what is assigned to ``data``."""
    model = nn.Sequential(Inner(by_data=True), nn.ReLU())

    with torch.no_grad():
        check = lower(model, (torch.ones(2, 4),), devices=[Device("a")], check=True).report.check

    assert check is not None
    assert not check.ok
    assert ("0.mean",) == check.stale
    assert (
        "NOT equal to the model itself: a run leaves something else in '0.mean'; let forward write in place, as in "
        "self.mean.copy_(...)" == check.sentence()
    )


def test_comparing_leaves_a_model_that_replaces_a_buffer_as_it_was() -> None:
    model = nn.Sequential(Inner(by_data=False), nn.ReLU())
    before = model[0].mean

    lowered = lower(model, (torch.ones(2, 4),), devices=[Device("a")], check=True)

    assert lowered.report.check is not None
    assert lowered.report.check.exact
    assert before is model[0].mean
    assert 0.0 == before.sum().item() == lowered.state_dict()["0.mean"].sum().item()
