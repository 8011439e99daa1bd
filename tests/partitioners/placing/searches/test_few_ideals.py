"""Pipelines whose runs are known to need what was seen: along some orders where cuts are too many, and in training."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from fxpasses import Training, fake_devices
from fxpasses.partitioners.by_device import place_by_device
from fxpasses.partitioners.costs.memory import predict_memory
from fxpasses.partitioners.placing.searches import few_ideals, known_cuts, run_tables
from fxpasses.partitioners.placing.searches.run_tables import BestPipeline

CHANNELS = (8, 8, 8, 16, 16, 16, 24, 24, 24)


class Residual(nn.Module):
    """Blocks with something around each, and maybe a result of each: then there are cuts for each set of these."""

    def __init__(self, *, with_results: bool) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(CHANNELS))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(own, other, 3, padding=1), nn.ReLU(), nn.Conv2d(other, other, 1))
            for own, other in pairs
        )
        self.past = nn.ModuleList(nn.Conv2d(own, other, 1) for own, other in pairs)
        self.results = nn.ModuleList(nn.Conv2d(other, 2, 1) for _own, other in pairs if with_results)

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        results = []
        for number, (block, past) in enumerate(zip(self.blocks, self.past, strict=True)):
            x = block(x) + past(x)
            results += [result(x).relu() for result in self.results[number : number + 1]]
        return x, results


class Cells(nn.Module):
    """Three layers of cells in some steps; where other devices use the same cell, they have its parameters, too."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.LSTMCell(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        states: list[tuple[Tensor, Tensor] | None] = [None] * len(self.cells)
        for step in x.unbind(0):
            for index, cell in enumerate(self.cells):
                state = states[index] = cell(step, states[index])
                step = state[0]
        return step


def exported(model: nn.Module, x: Tensor) -> GraphModule:
    return torch.export.export(model, (x,)).module(check_guards=False)


def test_along_some_orders_where_cuts_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing else is known of them."""
    monkeypatch.setattr(known_cuts, "refined_pipeline", lambda _graph, best, bound, _seconds: BestPipeline(best, bound))
    graph = exported(Residual(with_results=True), torch.randn(2, 8, 8, 8))
    devices = fake_devices(3, memory=[140_000, 70_000, 70_000], flops=[1e9, 5e8, 5e8])

    found = place_by_device(graph, devices, objective="throughput", contiguity="pipeline")

    assert found.gap < 0.02
    memory = predict_memory(graph, found.assignment, found.device_of)
    assert all(memory[device.name].peak <= device.memory for device in devices if device.name in memory)
    more = place_by_device(graph, devices, objective="throughput", contiguity="pipeline", time_budget=4)
    assert more.objective_value <= found.objective_value
    monkeypatch.setattr(few_ideals, "_along_orders", lambda *_args: None)
    without = place_by_device(graph, devices, objective="throughput", contiguity="pipeline")
    assert without.gap > 0.03
    assert found.objective_value < without.objective_value


def test_what_runs_need_is_counted_before_an_answer_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = exported(Residual(with_results=False), torch.randn(2, 8, 8, 8))
    devices = fake_devices(3, memory=[116_000, 58_000, 58_000], flops=[1e9, 5e8, 5e8])
    followed = []
    follow = run_tables.RunTable.follow
    monkeypatch.setattr(run_tables.RunTable, "follow", lambda *args: (followed.append(args), follow(*args))[1])

    found = place_by_device(graph, devices, objective="throughput", contiguity="pipeline")

    assert found.gap < 1e-9
    assert len(followed) == 1
    monkeypatch.setattr(run_tables.RunTable, "count", lambda *_args: False)
    monkeypatch.setattr(run_tables, "LEAST_ROUNDS", 1)
    monkeypatch.setattr(run_tables, "SECONDS_A_CELL", 1.0)
    looked_at, known = run_tables.RunTable.looked_at, []
    monkeypatch.setattr(run_tables.RunTable, "looked_at", lambda table: known.append(looked_at(table)) or known[-1])
    hurried = place_by_device(graph, devices, objective="throughput", contiguity="pipeline")
    assert not known[0].is_best
    assert 0 < known[0].bound <= hurried.bound <= found.objective_value


def test_with_more_time_fewer_ideals_are_looked_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more of them the first answers pass budgets more often, and none may be left when time is over."""
    graph = exported(Residual(with_results=True), torch.randn(2, 8, 8, 8))
    devices = fake_devices(3, memory=[140_000, 70_000, 70_000], flops=[1e9, 5e8, 5e8])
    sizes = []
    along = few_ideals._along_orders
    monkeypatch.setattr(few_ideals, "IDEALS", 60)
    monkeypatch.setattr(
        few_ideals, "_along_orders", lambda units, most, seed: (sizes.append(most), along(units, most, seed))[1]
    )

    place_by_device(graph, devices, objective="throughput", contiguity="pipeline", time_budget=4)

    assert sizes == [60, 120]


def test_what_a_step_needs_is_expected_before_it_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that each question learned what a few runs need, and none of twenty answers kept the budgets."""
    graph, training = exported(Cells(), torch.randn(6, 1, 16)), Training(2)
    devices = fake_devices(6, memory=[54_224] * 3 + [28_112] * 3, flops=[1e9] * 3 + [5e8] * 3)
    monkeypatch.setattr(run_tables, "SECONDS_A_NODE", 1.0)  # no more than twenty

    def found() -> float:
        return place_by_device(
            graph, devices, objective="throughput", contiguity="pipeline", training=training
        ).objective_value

    expected = found()

    monkeypatch.setattr(run_tables.StepBytes, "of_runs", lambda self, first, last: self.least[first, last])
    monkeypatch.setattr(run_tables, "stepping_figures", lambda figures, _step: figures)
    assert expected < 0.9 * found()
