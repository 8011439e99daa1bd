"""Parts that keep their parameters after all: each step finds the peak that following everything finds."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor, nn

from fxpasses import Device, Training, place
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.graph_figures import is_compute
from fxpasses.partitioners.costs.kept_parts import KeptParts
from fxpasses.partitioners.costs.parameter_loads import ParameterUses
from fxpasses.partitioners.costs.training.training_steps import TrainingStep


class Again(nn.Module):
    """Layers of several sizes: some are used twice, one is not trained, and the embedding is the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 16), nn.Linear(16, 20, bias=False)
        self.head.weight = self.embed.weight
        self.wide = nn.ModuleList(nn.Linear(16, width) for width in (8, 32, 16, 24))
        self.back = nn.ModuleList(nn.Linear(layer.out_features, 16) for layer in self.wide)
        self.back[1].requires_grad_(False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for turn in range(2):
            for wide, back in list(zip(self.wide, self.back, strict=True))[turn:]:
                x = x + back(wide(x).tanh())
        made: Tensor = self.head(x)
        return made


def uses(training: Training | None, devices: int) -> ParameterUses:
    """Every two operators are a part, and the devices take turns of three parts."""
    graph_module = place(Again(), (torch.arange(6),), devices=[Device("a")]).graph_module
    nodes = [node for node in graph_module.graph.nodes if is_compute(node)]
    part_of = {node: f"part {index // 2}" for index, node in enumerate(nodes)}
    assignment = Assignment.of(graph_module.graph, part_of, order=list(dict.fromkeys(part_of.values())))
    named = [Device(name) for name in "abc"[:devices]]
    device_of = {str(part): named[index // 3 % devices] for index, part in enumerate(assignment.order)}
    step = TrainingStep.if_any(graph_module, training)
    return ParameterUses.of(graph_module, assignment, device_of, step=step)


TRAININGS = {
    "a run": None,
    "Adam": Training(optimizer_slots=2),
    "SGD": Training(optimizer_slots=0),
    "Adam over all parameters": Training(optimizer_slots=2, step_slots=1),
}


@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS)
@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("everywhere", [True, False], ids=["all devices load", "one device loads"])
def test_each_step_finds_the_peak(training: Training | None, devices: int, *, everywhere: bool) -> None:
    """With gradients and the optimizer's state of a step, and with what other devices load or hold, too."""
    found = uses(training, devices)
    draw = random.Random(devices)
    own = [part for part in found.order if found.device_of[part].name == "a"]
    offloaded = list(found.order) if everywhere else own
    parts = KeptParts(found, "a", offloaded)
    stepwise, whole = [parts.peak], [found.memory(offloaded)["a"].peak]
    for part in draw.sample(own, len(own)):
        refused = parts.keep(part, -1)
        after = parts.peak
        kept = parts.keep(part, math.inf)
        offloaded.remove(part)
        stepwise += [after, parts.peak]
        whole += [whole[-1], found.memory(offloaded)["a"].peak]

        assert (False, True) == (refused, kept)

    assert whole == stepwise
    assert len(set(whole)) > 3
