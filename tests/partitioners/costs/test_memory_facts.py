"""What a graph is measured for once is what each placement of it would be measured for."""

from __future__ import annotations

import random

import pytest
import torch
from fuzz import examples
from networkx.utils import UnionFind
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from fxpasses import Assignment, Device, fake_devices
from fxpasses.partitioners import Training
from fxpasses.partitioners.costs import memory_facts
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.costs.memory import follow_memory, follow_placed
from fxpasses.partitioners.costs.training.training_memory import predict_training_memory
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.partitioners.placing.colocation import must_share
from fxpasses.partitioners.placing.device_runs import runs_of

SIDE = 16
PLACEMENTS = 3

Placed = tuple[Assignment, dict[str, Device]]


class Drawn(nn.Module):
    """Views, copies, sums and products of what there was before, with a parameter and a buffer."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.steps = [(draw.randrange(6), draw.randint(1, 4), draw.randint(1, 4)) for _ in range(12)]
        self.layer = nn.Linear(SIDE, SIDE)
        self.register_buffer("table", torch.randn(SIDE, SIDE))

    def forward(self, x: Tensor) -> Tensor:
        values = [x, self.layer(x)]
        for kind, back, further in self.steps:
            one, other = values[-min(back, len(values))], values[-min(further, len(values))]
            values.append(
                (
                    lambda one=one: one.t(),
                    lambda one=one: one.t().contiguous(),
                    lambda one=one, other=other: one + other,
                    lambda one=one, other=other: one @ other,
                    lambda one=one: self.layer(one) * self.table,
                    lambda one=one: one.softmax(-1)[:1].expand(SIDE, -1),
                )[kind]()
            )
        return torch.stack(values[-3:]).sum(0)


def graph_of(seed: int) -> GraphModule:
    torch.manual_seed(seed)
    return torch.export.export(Drawn(seed), (torch.randn(SIDE, SIDE),)).module(check_guards=False)


def placed_anywhere(figures: GraphFigures, draw: random.Random, devices: list[Device]) -> Placed:
    together: UnionFind[Node] = UnionFind(figures.nodes)
    for group in must_share(figures):
        together.union(*group)
    chosen = {leader: draw.choice(devices).name for leader in dict.fromkeys(together[node] for node in figures.nodes)}
    homes = {node: chosen[together[node]] for node in figures.nodes}
    runs = runs_of(figures.graph_module, homes, figures.dependencies)
    named = {device.name: device for device in devices}
    return runs.assignment, {part: named[name] for part, name in runs.device_of.items()}


@pytest.mark.parametrize("seed", range(examples(20)))
def test_placements_of_a_measured_graph_hold_what_those_of_a_fresh_one_hold(seed: int) -> None:
    """Devices of which kernels are known, and others: what operators need for themselves is not the same there."""
    graph, draw = graph_of(seed), random.Random(seed)
    devices = [*fake_devices(2), Device("cpu")]
    figures = GraphFigures.of(graph)

    for _ in range(PLACEMENTS):
        placed = placed_anywhere(figures, draw, devices)
        known, fresh = follow_placed(figures.memory, *placed), follow_memory(graph, *placed)

        assert fresh.schedule == known.schedule
        assert (fresh.held, fresh.state, fresh.lives) == (known.held, known.state, known.lives)


@pytest.mark.parametrize("seed", range(examples(8)))
def test_so_do_training_steps(seed: int) -> None:
    graph, draw = graph_of(seed), random.Random(seed)
    figures, training = GraphFigures.of(graph), Training(optimizer_slots=2)
    step = TrainingStep.of(graph, training)

    for _ in range(PLACEMENTS):
        placed = placed_anywhere(figures, draw, fake_devices(3))
        course = step.course(graph, *placed, figures.memory)

        assert predict_training_memory(graph, *placed, training) == {name: course.memory(name) for name in course.held}


def test_operators_are_asked_for_their_workspace_once_however_many_placements_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Node] = []

    def counted(node: Node, *args: object, **options: bool) -> int:
        asked.append(node)
        return 0

    monkeypatch.setattr(memory_facts, "workspace_bytes", counted)
    figures, draw = GraphFigures.of(graph_of(0)), random.Random(0)

    for _ in range(PLACEMENTS):
        follow_placed(figures.memory, *placed_anywhere(figures, draw, fake_devices(3)))

    assert sorted(asked) == sorted(figures.nodes)
