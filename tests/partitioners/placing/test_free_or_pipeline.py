"""A free placement is never worse than a pipeline, which is one, too."""

from __future__ import annotations

import attrs
import pytest
import torch
from torch import nn

from fxpasses import fake_devices
from fxpasses.errors import PlacementError
from fxpasses.partitioners.by_device import place_by_device
from fxpasses.partitioners.placing import contiguities
from fxpasses.partitioners.placing.found_placements import Found


def _graph() -> torch.fx.GraphModule:
    layers = [layer for _ in range(4) for layer in (nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))]
    model = nn.Sequential(*layers).eval()
    return torch.export.export(model, (torch.randn(8, 32),), strict=True).module()


def _devices(share: float = 1.3) -> list:
    need = place_by_device(_graph(), fake_devices(3), objective="memory", time_budget=0.0).objective_value
    return fake_devices(3, memory=[int(share * need)] * 3, flops=[1e9, 0.8e9, 0.6e9])


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_a_pipeline_that_is_better_is_the_free_answer(objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, devices, search = _graph(), _devices(), contiguities.search
    best = place_by_device(graph, devices, objective=objective, contiguity="pipeline")
    seen: list[Found] = []

    def worse(figures, request, contiguity, *args, **kwargs):  # the search among free placements is unlucky
        found = search(figures, request, contiguity, *args, **kwargs)
        if contiguity == "free":
            seen.append(found)
            return attrs.evolve(found, value=found.value * 10, bound=found.value / 10)
        return found

    monkeypatch.setattr(contiguities, "search", worse)
    free = place_by_device(graph, devices, objective=objective, contiguity="free")
    assert seen
    assert free.contiguity == "free"
    assert free.objective_value == pytest.approx(best.objective_value)
    assert free.bound == pytest.approx(seen[0].value / 10)  # that of a pipeline says nothing of free placements


def test_a_pipeline_is_found_where_no_free_placement_is(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, devices, search = _graph(), _devices(), contiguities.search

    def unlucky(figures, request, contiguity, *args, **kwargs):
        if contiguity == "free":
            raise PlacementError("none was found")
        return search(figures, request, contiguity, *args, **kwargs)

    monkeypatch.setattr(contiguities, "search", unlucky)
    free = place_by_device(graph, devices, objective="throughput", contiguity="free")
    pipeline = place_by_device(graph, devices, objective="throughput", contiguity="pipeline")
    assert free.contiguity == "free"
    assert free.objective_value == pytest.approx(pipeline.objective_value)


def test_what_both_searches_lack_is_what_the_free_one_says(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, devices = _graph(), _devices()

    def unlucky(figures, request, contiguity, *args, **kwargs):
        raise PlacementError(f"no {contiguity} was found")

    monkeypatch.setattr(contiguities, "search", unlucky)
    with pytest.raises(PlacementError, match="no free was found"):
        place_by_device(graph, devices, objective="throughput", contiguity="free")
