"""What a run between two ideals needs for certain, beside what is predicted for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fxpasses import Device, Topology
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.budget_checks import check_budgets
from fxpasses.partitioners.placing.device_runs import runs_of
from fxpasses.partitioners.placing.graph_problems import placement_problem
from fxpasses.partitioners.placing.searches.certain_bytes import certain_bytes
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import CutFamily, all_ideals
from fxpasses.partitioners.solvers.contiguous.tight_memory.impossible import pair_bytes
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of

THREE = Topology.of([Device("before"), Device("here", torch_device="meta"), Device("after")])
"""The device in the middle has no inputs of the caller; they would be there all the time."""


class Views(nn.Module):
    """Views of what comes from elsewhere, values in place, an expanded one, and a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.first(x)
        z = y.view(2, 2, 8).transpose(0, 1)
        row = y.mean(0, keepdim=True).expand(4, 8)
        left, right = self.second(row).split(4, dim=1)
        held = y * self.scale
        held = held.add_(1)
        return z.relu() + held.view(2, 2, 8), (left * right).sum(1)


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


@pytest.mark.parametrize(("model", "shape"), [(Views(), (4, 8)), (Chain(), (64, 16))], ids=("views", "chain"))
def test_a_run_never_needs_less_than_is_certain(model: nn.Module, shape: tuple[int, ...]) -> None:
    graph = torch.export.export(model, (torch.randn(*shape),)).module(check_guards=False)
    figures = GraphFigures.of(graph, devices=THREE.devices)
    tables = tables_of(placement_problem(graph, THREE, objective="throughput", figures=figures, live=figures.needs))
    units = reduce_problem(placement_problem(graph, THREE, figures=figures, live=figures.needs), tables)
    words = all_ideals(units, 1000)
    assert words is not None
    family = CutFamily.of(words, np.ones(units.size))
    unit_of = {tables.nodes[at]: unit for unit, own in enumerate(units.members) for at in own}

    certain = certain_bytes(figures, units, family, unit_of)

    better = 0
    for first, last in np.argwhere(np.isfinite(certain)).tolist():
        where = family.inside[:, first].astype(int) + family.inside[:, last]  # 2: before, 1: here, 0: after
        home = {node: ("after", "here", "before")[where[unit_of[node]]] for node in figures.nodes}
        runs = runs_of(graph, home, figures.dependencies)
        peak = check_budgets(figures, THREE, runs, None, always=True).peaks.get("here", 0)
        assert certain[first, last] <= peak
        better += certain[first, last] == peak
    assert better >= 0.4 * np.isfinite(certain).sum()
    assert (certain >= pair_bytes(units, family)).all()
