"""Changes of pipelines: each device keeps one part, whatever goes elsewhere."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from fxpasses import Device, Link
from fxpasses.devices import Topology
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.device_runs import runs_of
from fxpasses.partitioners.placing.found_placements import Found
from fxpasses.partitioners.placing.requests import Request
from fxpasses.partitioners.placing.searches.near_placements import near_placements
from fxpasses.partitioners.placing.searches.unit_changes import PipelineChanges


class Branches(nn.Module):
    """Layers that each take one of the values before."""

    def __init__(self, count: int, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.sources = [draw.randrange(number + 1) for number in range(count)]
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for source, layer in zip(self.sources, self.layers, strict=True):
            values.append(layer(values[source]).relu())
        return torch.stack(values).sum(0)


def graph_of(seed: int) -> GraphModule:
    return torch.export.export(Branches(6, seed), (torch.randn(8, 64),)).module(check_guards=False)


def changes_of(graph: GraphModule, names: str) -> PipelineChanges:
    """Each operator alone may go anywhere."""
    return PipelineChanges.among(tuple(names), tuple(((node,), tuple(names)) for node in GraphFigures.of(graph).nodes))


def pipeline(graph: GraphModule, names: str, draw: random.Random) -> dict[Node, str]:
    """The operators cut along their own order."""
    nodes = GraphFigures.of(graph).nodes
    cuts = sorted(draw.sample(range(1, len(nodes)), len(names) - 1))
    return {node: names[sum(cut <= place for cut in cuts)] for place, node in enumerate(nodes)}


@pytest.mark.parametrize("seed", range(6))
def test_a_changed_pipeline_is_a_pipeline(seed: int) -> None:
    """Whatever goes elsewhere takes with it what lies on the way; also to a device that had nothing."""
    graph, draw = graph_of(seed), random.Random(seed)
    changes = changes_of(graph, "abcd")
    home = pipeline(graph, "abc", draw)
    figures = GraphFigures.of(graph)

    moved = list(changes.of(home, 2, pairs=True))
    leaps = [changes.leap(home, np.random.default_rng(number)) for number in range(30)]

    for _number, there in (*moved, *leaps):
        assert changes.apart(runs_of(graph, there, figures.dependencies)) == 0
    exchanged = [there for _, there in moved[:6]]
    assert exchanged == [there for _, there in changes.leaps(home)]
    used = {frozenset(there.values()) for there in exchanged}
    assert used == {frozenset("abc"), *map(frozenset, ("dbc", "adc", "abd"))}
    first = [changes.units[number][0][0] for number in range(len(home))]
    own = {(number, there[first[number]]) for number, there in moved[6:]}
    assert own == {(number, name) for number, node in enumerate(first) for name in "abcd" if name != home[node]}


def test_a_device_that_cannot_run_what_has_to_come_along_is_left_out() -> None:
    graph = graph_of(0)
    nodes = GraphFigures.of(graph).nodes
    able = dict.fromkeys(nodes, ("a", "b")) | {nodes[-1]: ("a",)}
    changes = PipelineChanges.among(("a", "b"), tuple(((node,), able[node]) for node in nodes))
    home = dict.fromkeys(nodes, "a")

    moved = list(changes.of(home, 0, pairs=True))

    assert moved
    assert all(there[nodes[-1]] == "a" for _, there in moved)


def test_parts_too_many_are_counted() -> None:
    graph, figures = graph_of(1), GraphFigures.of(graph_of(1))
    graph = figures.graph_module
    home = {node: "ab"[place % 2] for place, node in enumerate(figures.nodes)}
    runs = runs_of(graph, home, figures.dependencies)

    assert changes_of(graph, "ab").apart(runs) == len(runs.device_of) - 2 > 0


@pytest.mark.parametrize("memory", [None, 120_000])
def test_pipelines_of_a_small_latency_are_found_near_others(memory: int | None) -> None:
    """From a pipeline whose slow device has most: on the fast one if it holds all, else as much as fits."""
    graph = graph_of(3)
    figures = GraphFigures.of(graph)
    devices = [Device("slow", flops=1e8, bandwidth=1e9), Device("fast", memory, flops=1e10, bandwidth=1e10)]
    request = Request(Topology.of(devices, [Link("slow", "fast", 1e9, 1e-6)]), "latency", contiguity="pipeline")
    home = {node: "slow" if place < len(figures.nodes) - 3 else "fast" for place, node in enumerate(figures.nodes)}
    start = runs_of(graph, home, figures.dependencies)
    before = Found.of(figures, request, "pipeline", start, 0.0)

    [found] = near_placements(figures, request, request.problem(figures, "pipeline", figures.needs), [start], 0.0)

    used = sorted(device for device in found.runs.device_of.values())
    assert used == (["fast"] if memory is None else ["fast", "slow"])
    assert found.contiguity == "pipeline"
    assert found.value < (0.2 if memory is None else 0.8) * before.value
