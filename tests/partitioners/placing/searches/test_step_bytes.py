"""What a run is expected to need in a training step, beside what is predicted for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fxpasses import Device, Topology, Training
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.partitioners.placing.budget_checks import check_budgets
from fxpasses.partitioners.placing.device_runs import runs_of
from fxpasses.partitioners.placing.graph_problems import placement_problem
from fxpasses.partitioners.placing.searches import step_bytes
from fxpasses.partitioners.placing.searches.step_bytes import StepBytes
from fxpasses.partitioners.placing.training_figures import training_figures
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import CutFamily, all_ideals
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of

THREE = Topology.of([Device("before"), Device("here"), Device("after")])


class Cells(nn.Module):
    """One cell in some steps: gradients of its parameters are added up."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(32, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        state: tuple[Tensor, Tensor] | None = None
        for step in x.unbind(0):
            state = self.cell(step, state)
        assert state is not None
        return self.head(state[0])


class Tied(nn.Module):
    """An embedding whose table is the head's, too, and the largest parameter by far."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(200, 16)
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.LayerNorm(16))
        self.head = nn.Linear(16, 200, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        return self.head(x + self.layers(x))


class Convolutions(nn.Module):
    """Activations are what is large."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(layer for _ in range(3) for layer in (nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()))
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


MODELS: dict[str, tuple[type[nn.Module], Tensor]] = {
    "cells": (Cells, torch.randn(5, 8, 32)),
    "tied": (Tied, torch.arange(24).view(2, 12)),
    "convolutions": (Convolutions, torch.randn(4, 4, 16, 16)),
}


@pytest.mark.parametrize("training", [Training(2), Training(0)], ids=["adam", "sgd"])
@pytest.mark.parametrize("name", MODELS)
def test_what_is_expected_of_a_run_is_near_what_is_predicted(
    name: str, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, given = MODELS[name]
    graph = torch.export.export(model(), (given,)).module(check_guards=False)
    step = TrainingStep.of(graph, training)
    figures = training_figures(GraphFigures.of(graph, devices=THREE.devices), step)
    options: dict[str, Any] = {"objective": "throughput", "figures": figures, "live": np.zeros_like(figures.needs)}
    problem = placement_problem(graph, THREE, **options)
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    words = all_ideals(units, 1000)
    assert words is not None
    family = CutFamily.of(words, np.ones(units.size))
    unit_of = {tables.nodes[at]: unit for unit, own in enumerate(units.members) for at in own}
    holds = np.all(family.inside[:, :, None] <= family.inside[:, None, :], axis=0)
    first, last = np.nonzero(holds & ~np.eye(family.count, dtype=bool))
    monkeypatch.setattr(step_bytes, "TRUST", 1.0)

    expected = StepBytes.of(figures, step, family, unit_of, np.zeros(holds.shape)).of_runs(first, last)

    peaks = []
    for before, after in zip(first, last, strict=True):
        where = family.inside[:, before].astype(int) + family.inside[:, after]  # 2: before, 1: here, 0: after
        home = {node: ("after", "here", "before")[where[unit_of[node]]] for node in figures.nodes}
        runs = runs_of(graph, home, figures.dependencies)
        peaks.append(check_budgets(figures, THREE, runs, step, always=True, in_order=False).peaks.get("here", 0))
    share = expected / np.array(peaks)
    assert 0.9 < np.median(share) < 1.03
    assert np.quantile(share, 0.8) < 1.05  # but of a run with one use of a parameter, which adds up nothing
    assert np.quantile(share, 0.25) > 0.7  # what runs without parameters receive is not known
