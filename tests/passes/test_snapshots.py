"""Reads of small state before it is written come from a copy, so that they need not share a device with the write."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fxpasses import Device, lower
from fxpasses.metadata import value_of
from fxpasses.passes import SnapshotState
from fxpasses.units import KiB


class Cached(nn.Module):
    """Layers with a cache each, and one counter that all of them read and the model increments at the end."""

    def __init__(self, layers: int = 4, width: int = 16, length: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.register_buffer("position", torch.zeros(1, dtype=torch.long))
        for index in range(layers):
            self.register_buffer(f"cache_{index}", torch.zeros(length, width))

    def forward(self, x: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            cache = self.get_buffer(f"cache_{index}")
            cache.index_copy_(0, self.position, layer(x))
            x = x + cache.sum(0) / (self.position + 1)
        self.position.add_(1)
        return x


class Norm(nn.Module):
    """Reads its statistics twice before it writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        x = (x - self.mean) * (1 + self.mean)
        self.mean.lerp_(x.mean(0), 0.1)
        return x


class Between(nn.Module):
    """A counter between layers, used as ``kind`` says."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("count", torch.ones(4))

    def forward(self, x: Tensor) -> Any:
        view = self.count[:2] if self.kind in ("view", "written view", "late view", "given view") else None
        x = self.first(x) * self.count
        if self.kind == "early write":
            self.count.add_(1)
        x = self.second(x) + self.count
        if view is not None and self.kind == "view":
            x = x + view.sum()
        if view is not None and self.kind == "written view":
            view.mul_(3)
        self.count.add_(1)
        if view is not None and self.kind == "late view":
            x = x + view.sum()
        return (x, view) if self.kind == "given view" else x


def exported(model: nn.Module, *args: Tensor) -> torch.export.ExportedProgram:
    return torch.export.export(model, args)


def copies(program: torch.export.ExportedProgram) -> list[str]:
    return [node.name for node in program.graph.nodes if node.name.endswith("_at_start")]


@torch.no_grad()
def same_over_runs(model: nn.Module, program: torch.export.ExportedProgram, *shape: int) -> bool:
    """Whether three runs give the same outputs and leave the same buffers."""
    eager, module, draw = copy.deepcopy(model), program.module(), torch.Generator().manual_seed(0)
    for _ in range(3):
        x = torch.randn(*shape, generator=draw)
        torch.testing.assert_close(module(x), eager(x))
    torch.testing.assert_close(dict(module.named_buffers()), dict(eager.named_buffers()))
    return True


def test_all_early_reads_of_a_counter_are_of_one_copy() -> None:
    model = Cached()
    program = exported(model, torch.randn(1, 16))

    result = SnapshotState()(program)

    assert result.modified
    assert result.exported_program is not None
    assert ["b_position_at_start"] == copies(result.exported_program)
    (counter,) = (node for node in result.graph_module.graph.nodes if node.name == "b_position")
    assert {"aten.clone.default", "aten.add_.Tensor"} == {str(user.target) for user in counter.users}
    assert same_over_runs(model, result.exported_program, 1, 16)
    assert not SnapshotState()(result.exported_program).modified


def test_what_a_functional_program_copies_back_is_written_at_the_end() -> None:
    model = Cached()
    program = exported(model, torch.randn(1, 16)).run_decompositions()

    result = SnapshotState()(program)

    assert result.exported_program is not None
    assert ["b_position_at_start"] == copies(result.exported_program)
    assert same_over_runs(model, result.exported_program, 1, 16)


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        ("plain", {"add_"}),
        ("view", {"add_"}),
        ("written view", {"slice", "add_"}),
        ("late view", {"slice", "add_"}),
        ("given view", {"slice", "add_"}),
        ("early write", {"mul", "add_"}),
    ],
)
def test_only_what_is_done_with_it_before_the_first_write_reads_a_copy(kind: str, kept: set[str]) -> None:
    model = Between(kind)
    program = exported(model, torch.randn(3, 4))

    result = SnapshotState()(program)

    assert result.exported_program is not None
    assert (kind != "early write") is result.modified
    (counter,) = (node for node in result.graph_module.graph.nodes if node.name == "b_count")
    assert kept == {str(user.target).split(".")[1] for user in counter.users} - {"clone"}
    assert same_over_runs(model, result.exported_program, 3, 4)


def test_a_norm_and_large_state_stay_as_they_are() -> None:
    norm = exported(Norm(), torch.randn(3, 16))
    cached = exported(Cached(), torch.randn(1, 16))

    assert not SnapshotState()(norm).modified
    assert not SnapshotState(max_bytes=7)(cached).modified
    assert SnapshotState(max_bytes=8)(cached).modified


def test_a_copy_has_the_value_of_the_state() -> None:
    program = exported(Cached(), torch.randn(1, 16))

    graph_module = SnapshotState()(program).graph_module

    (copied,) = (node for node in graph_module.graph.nodes if node.name.endswith("_at_start"))
    value = value_of(copied)
    assert ((1,), torch.int64) == (tuple(value.shape), value.dtype)


@torch.no_grad()
def test_layers_that_read_one_counter_make_a_pipeline() -> None:
    """Each device holds the caches of its layers; with the counter on one device alone none would fit."""
    model = Cached(layers=8, length=64)
    eager, size = copy.deepcopy(model), sum(each.nbytes for each in (*model.parameters(), *model.buffers()))
    devices = [Device("left", int(0.7 * size)), Device("right", int(0.7 * size))]

    lowered = lower(model, (torch.randn(1, 16),), devices=devices, objective="throughput", contiguity="pipeline")

    assert ["left", "right"] == [part.device for part in lowered.plan.parts]
    for _ in range(3):
        x = torch.randn(1, 16)
        torch.testing.assert_close(lowered(x), eager(x))
    torch.testing.assert_close(lowered.state_dict(), eager.state_dict())


@torch.no_grad()
def test_parts_are_loaded_though_all_of_them_read_a_counter() -> None:
    """It is the same device: what reads a counter and what writes it may be in parts that run one after the other."""
    model = Cached(layers=8, width=64)
    eager, size = copy.deepcopy(model), sum(each.nbytes for each in model.parameters())
    device = Device("small", int(0.4 * size) + 16 * KiB)

    lowered = lower(model, (torch.randn(1, 64),), devices=[device], offload="cpu")

    assert len(lowered.plan.parts) > 4
    for _ in range(3):
        x = torch.randn(1, 64)
        torch.testing.assert_close(lowered(x), eager(x))
    torch.testing.assert_close(lowered.state_dict(), eager.state_dict())
