"""Pipelines under a threshold, their budgets kept as memory is predicted, where ideals are too many to look at all."""

from __future__ import annotations

import itertools
import math
import random

import attrs
import numpy as np
import pytest
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.fx import GraphModule
from unrolled_cells import Steps

from fxpasses import Topology, fake_devices
from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners.by_device import place_by_device
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.costs.memory import predict_memory
from fxpasses.partitioners.placing.device_placements import DevicePlacement
from fxpasses.partitioners.placing.found_placements import Found
from fxpasses.partitioners.placing.requests import Request
from fxpasses.partitioners.placing.searches import known_cuts
from fxpasses.partitioners.placing.searches.few_ideals import best_pipeline
from fxpasses.partitioners.placing.searches.reduced_graphs import ReducedGraph
from fxpasses.partitioners.placing.searches.refined_pipelines import refined_pipeline
from fxpasses.partitioners.placing.searches.run_bytes import RunBytes
from fxpasses.partitioners.placing.searches.run_tables import BestPipeline
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import CutFamily, Words, all_ideals, pack
from fxpasses.partitioners.solvers.contiguous.ideals.lifetimes import Lifetimes
from fxpasses.partitioners.solvers.contiguous.refined.live_bytes import begin_at, bytes_there
from fxpasses.partitioners.solvers.contiguous.refined.live_facts import LiveFacts, live_facts_of


class Branches(nn.Module):
    """Blocks of two branches that are joined, with a residual around each, and a result in the middle."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.left = nn.ModuleList(nn.Linear(12, 12) for _ in range(blocks))
        self.right = nn.ModuleList(nn.Linear(12, 24) for _ in range(blocks))
        self.back = nn.ModuleList(nn.Linear(24, 12, bias=False) for _ in range(blocks))

    def forward(self, x: Tensor, late: Tensor) -> tuple[Tensor, Tensor]:
        middle = x
        for number, (left, right, back) in enumerate(zip(self.left, self.right, self.back, strict=True)):
            wide = right(x).relu().view(-1, 2, 12).transpose(0, 1)
            x = x + left(x).tanh() * back(wide.transpose(0, 1).reshape(-1, 24))
            middle = x if number == 1 else middle
        return x.add_(late), middle.exp()


def exported(model: nn.Module, *inputs: Tensor) -> GraphModule:
    return torch.export.export(model, inputs).module(check_guards=False)


GRAPHS = {
    "branches": lambda: exported(Branches(), torch.randn(16, 12), torch.randn(16, 12)),
    "cells": lambda: exported(Steps(8), torch.randn(4, 8, 8)),
}


@njit
def every(
    lives: LiveFacts, words: Words, first: NDArray[np.int64], last: NDArray[np.int64], limit: float
) -> NDArray[np.float64]:
    """What is there in some runs."""
    found = np.zeros(len(first))
    for pair in range(len(first)):
        begin_at(lives, words, first[pair])
        found[pair] = bytes_there(lives, words, first[pair], last[pair], 0.0, limit)
    return found


def asked(graph: GraphModule, sizes: list[int], seconds: float = 4.0) -> ReducedGraph:
    """The problem of a graph on devices of some sizes, each half as fast as the one before."""
    devices = fake_devices(len(sizes), memory=sizes, flops=[1e9 / 2**place for place in range(len(sizes))])
    return ReducedGraph.of(
        GraphFigures.of(graph, devices=devices), Request(Topology.of(devices), "throughput", time_budget=seconds)
    )


def runs(family: CutFamily) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All pairs of nested ideals."""
    pairs = [
        (first, last)
        for first, last in itertools.combinations(range(family.count), 2)
        if not (family.inside[:, first] & ~family.inside[:, last]).any()
    ]
    return tuple(np.array(pairs).T)


def bytes_of(lives: Lifetimes, units: int, words: Words, ends: tuple[NDArray[np.int64], ...], limit: float = math.inf):
    return every(live_facts_of(lives, units), words, *ends, limit)


@pytest.mark.parametrize("name", GRAPHS)
def test_compiled_code_says_what_is_there(name: str) -> None:
    graph = asked(GRAPHS[name](), [10**6, 10**6])
    words = all_ideals(graph.units, 10_000)
    assert words is not None
    family = CutFamily.of(words[:: max(1, len(words) // 150)], np.ones(graph.units.size))
    first, last = runs(family)

    found = bytes_of(graph.lives, graph.units.size, family.words, (first, last))

    nothing = 0 * graph.units.kept
    units = attrs.evolve(graph.units, kept=nothing, live=nothing, shares=np.zeros((0, 2), dtype=np.int64))
    alone = RunBytes.of(graph.lives, units, family)
    np.testing.assert_array_equal(found, alone.of_runs(first, last))
    assert len(np.unique(found)) > 8
    limit = float(np.median(found))
    hurried = bytes_of(graph.lives, graph.units.size, family.words, (first, last), limit)
    np.testing.assert_array_equal(hurried > limit, found > limit)
    np.testing.assert_array_equal(hurried[found <= limit], found[found <= limit])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", GRAPHS)
def test_a_core_never_says_more(name: str, seed: int) -> None:
    """Units that are left out may be anywhere."""
    graph, draw = asked(GRAPHS[name](), [10**6, 10**6]), np.random.default_rng(seed)
    words = all_ideals(graph.units, 10_000)
    assert words is not None
    family = CutFamily.of(words[:: max(1, len(words) // 150)], np.ones(graph.units.size))
    first, last = runs(family)
    chosen = draw.random(graph.units.size) < draw.choice([0.3, 0.6, 0.9])

    core = graph.lives.of_core(chosen)

    inside = pack(np.ascontiguousarray(family.inside[chosen].T))
    found = bytes_of(core, int(chosen.sum()), inside, (first, last))
    whole = bytes_of(graph.lives, graph.units.size, family.words, (first, last))
    assert (found <= whole).all()
    assert (found > 0).any()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", GRAPHS)
def test_the_best_one_is_found_as_where_all_are_looked_at(name: str, seed: int) -> None:
    draw = random.Random(seed)
    roomy = asked(GRAPHS[name](), [10**6] * 3)
    needed = int(roomy.tables.kept.sum() + roomy.tables.shared.sum()) + roomy.lives.most
    sizes = [int(needed * draw.uniform(0.25, 0.75)) for _ in range(3)]
    graph = asked(roomy.figures.graph_module, sizes)
    expected = best_pipeline(graph)
    assert expected is not None

    known = refined_pipeline(graph, None, 0.0, 4.0)

    if expected.found is None:
        assert expected.missing_bytes
        assert 1 <= known.missing_bytes <= expected.missing_bytes
        return
    assert expected.is_best
    assert known.is_best
    assert known.found is not None
    assert known.found.value == pytest.approx(expected.found.value)
    again = refined_pipeline(graph, known.found, 0.0, 4.0)
    assert again.is_best
    assert again.found is known.found


def test_some_problems_have_an_answer_and_others_have_none() -> None:
    """As the tests above are drawn."""
    outcomes = set()
    for share in (0.3, 0.7):
        roomy = asked(GRAPHS["branches"](), [10**6] * 3)
        needed = int(roomy.tables.kept.sum() + roomy.tables.shared.sum()) + roomy.lives.most
        known = refined_pipeline(asked(roomy.figures.graph_module, [int(needed * share)] * 3), None, 0.0, 4.0)
        outcomes.add(known.found is None)
    assert outcomes == {False, True}


class Attention(nn.Module):
    """Heads side by side, whose ideals are too many to look at all."""

    def __init__(self, layers: int = 3, heads: int = 3) -> None:
        super().__init__()
        self.heads = nn.ModuleList(
            nn.ModuleList(nn.ModuleList(nn.Linear(32, 8) for _ in range(3)) for _ in range(heads))
            for _ in range(layers)
        )
        self.out = nn.ModuleList(nn.Linear(8 * heads, 32) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for heads, out in zip(self.heads, self.out, strict=True):
            values = []
            for query, key, value in heads:
                weights = (query(x) @ key(x).transpose(-1, -2)).softmax(-1)
                values.append(weights @ value(x))
            x = x + out(torch.cat(values, -1)).relu()
        return x


def on_three(size: int) -> DevicePlacement:
    """The best pipeline on devices of two sizes and three speeds."""
    devices = fake_devices(3, memory=[size, size * 3 // 4, size * 3 // 4], flops=[1e9, 8e8, 6e8])
    graph = exported(Attention(), torch.randn(24, 32))
    found = place_by_device(graph, devices, objective="throughput", contiguity="pipeline", time_budget=2)
    memory = predict_memory(graph, found.assignment, found.device_of)
    assert all(memory[device.name].peak <= device.memory for device in devices if device.name in memory)
    return found


def not_told(graph: ReducedGraph, best: Found | None, bound: float, seconds: float) -> BestPipeline:
    """What is known where nothing is asked."""
    return BestPipeline(best, bound)


def test_more_is_proven_where_it_is_told_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    found = on_three(30_000)

    assert found.gap < 1e-9
    monkeypatch.setattr(known_cuts, "refined_pipeline", not_told)
    without = on_three(30_000)
    assert without.gap > 0.01
    assert found.objective_value <= without.objective_value


def test_a_refusal_is_proven_where_ideals_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InfeasibleError, match=r"Each placement lacks .* or more on some device; the nearest") as caught:
        on_three(26_000)

    assert caught.value.missing_bytes > 0
    monkeypatch.setattr(known_cuts, "refined_pipeline", not_told)
    with pytest.raises(PlacementError, match="It is not proven that none exists"):
        on_three(26_000)


def test_what_is_proven_to_lack_is_lacking() -> None:
    """With so much more memory on each device there is still no answer, but with what the nearest one lacks."""
    roomy = asked(GRAPHS["cells"](), [10**6] * 2)
    needed = int(roomy.tables.kept.sum() + roomy.tables.shared.sum()) + roomy.lives.most
    graph = asked(roomy.figures.graph_module, [int(needed * 0.5)] * 2)

    least = refined_pipeline(graph, None, 0.0, 4.0).missing_bytes

    assert least > 1
    nearly = asked(roomy.figures.graph_module, [int(needed * 0.5) + least - 1] * 2)
    assert best_pipeline(nearly).found is None
    more = asked(roomy.figures.graph_module, [int(needed * 0.5) + int(1.1 * least) + 1] * 2)
    assert best_pipeline(more).found is not None
