"""What a run between two ideals needs, beside what is predicted for it."""

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
from fxpasses.partitioners.placing.searches.run_bytes import RunBytes, lifetimes_of
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


class Steps(nn.Module):
    """A parameter used twice, a buffer that is written to, an input that is used late, a result that is an alias."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor, late: Tensor) -> tuple[Tensor, Tensor]:
        y = self.norm(self.linear(x))
        z = torch.stack([self.linear(y), y]).exp()
        first, second = z.unbind(0)
        return torch.cat([first + late, second.t().contiguous().t()]), first.view(-1)


MODELS = {"views": (Views(), ((4, 8),)), "chain": (Chain(), ((64, 16),)), "steps": (Steps(), ((32, 8), (32, 8)))}


@pytest.mark.parametrize("name", MODELS)
def test_a_run_needs_what_is_predicted(name: str) -> None:
    model, shapes = MODELS[name]
    graph = torch.export.export(model, tuple(torch.randn(*shape) for shape in shapes)).module(check_guards=False)
    figures = GraphFigures.of(graph, devices=THREE.devices)
    tables = tables_of(placement_problem(graph, THREE, objective="throughput", figures=figures, live=figures.needs))
    units = reduce_problem(placement_problem(graph, THREE, figures=figures, live=figures.needs), tables)
    words = all_ideals(units, 1000)
    assert words is not None
    family = CutFamily.of(words, np.ones(units.size))
    unit_of = {tables.nodes[at]: unit for unit, own in enumerate(units.members) for at in own}

    bytes_of = RunBytes.of(lifetimes_of(figures, unit_of), units, family)
    first, last = np.nonzero(np.isfinite(bytes_of.least))
    needed = bytes_of.of_runs(first, last)

    peaks = []
    for before, after in zip(first, last, strict=True):
        where = family.inside[:, before].astype(int) + family.inside[:, after]  # 2: before, 1: here, 0: after
        home = {node: ("after", "here", "before")[where[unit_of[node]]] for node in figures.nodes}
        runs = runs_of(graph, home, figures.dependencies)
        peaks.append(check_budgets(figures, THREE, runs, None, always=True).peaks.get("here", 0))
    assert (needed <= peaks).all()
    print(name, (needed == peaks).mean(), (bytes_of.least[first, last] == peaks).mean(), len(peaks))
    assert (needed == peaks).mean() > 0.95
    assert (needed >= bytes_of.least[first, last]).all()
    assert (bytes_of.least >= pair_bytes(units, family)).all()
