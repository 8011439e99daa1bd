"""Free placements of a small peak, and what is said of the nearest one where none keeps the budgets."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from fxpasses import Device
from fxpasses.errors import PlacementError
from fxpasses.partitioners import place_by_device
from fxpasses.partitioners.placing.budget_checks import Seen
from fxpasses.partitioners.placing.device_runs import Runs
from fxpasses.partitioners.placing.searches import one_search
from fxpasses.partitioners.placing.searches.nearest import Nearest
from fxpasses.units import format_bytes


class Attention(nn.Module):
    """What is alive beside an operator matters more than what it needs itself."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(16, 48) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(16, 32) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(32, 16) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for qkv, up, down in zip(self.qkv, self.up, self.down, strict=True):
            query, key, value = qkv(x).chunk(3, -1)
            x = x + (query @ key.transpose(-1, -2)).softmax(-1) @ value
            x = x + down(up(x).relu())
        return x


def attention(layers: int, tokens: int) -> GraphModule:
    return torch.export.export(Attention(layers), (torch.randn(2, tokens, 16),)).module(check_guards=False)


def devices(budget: int | None = None) -> list[Device]:
    return [Device(name, budget, flops=1e12, bandwidth=1e11) for name in ("a", "b")]


def test_smaller_budgets_lead_to_a_smaller_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them solvers count only what each operator needs in any case."""
    graph = attention(5, 40)

    placement = place_by_device(graph, devices(), objective="memory", contiguity="free")

    with monkeypatch.context() as without:
        without.setattr(one_search, "with_smaller_peaks", lambda *_given: [])
        larger = place_by_device(graph, devices(), objective="memory", contiguity="free")
    assert placement.bound <= placement.objective_value < 0.95 * larger.objective_value


def test_what_the_nearest_placement_lacks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all that were looked at, not only along the graph's own order: bytes, device and operator."""
    seen = list[tuple[Runs, Seen]]()
    look_at = Nearest.look_at

    def noted(self: Nearest, runs: Runs, over: Seen) -> None:
        seen.append((runs, over))
        look_at(self, runs, over)

    monkeypatch.setattr(Nearest, "look_at", noted)
    graph = attention(2, 32)

    with pytest.raises(PlacementError) as caught:
        place_by_device(graph, devices(32_000), objective="memory", contiguity="free", time_budget=0.1)

    least = min(max(over.over.values()) for _runs, over in seen)
    (device,) = {max(over.over, key=over.over.__getitem__) for _, over in seen if max(over.over.values()) == least}
    assert f"; the nearest one that was looked at lacks {format_bytes(least)} on {device}, where " in str(caught.value)
    assert caught.value.node is not None
    assert f"{caught.value.node.name} ({caught.value.node.target}) is the first operator that does not fit" in str(
        caught.value
    )
