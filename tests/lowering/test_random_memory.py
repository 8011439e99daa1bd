"""Random models on random devices: what each device is predicted to hold is never less than what it really allocates.

They are full of what a copy may be larger or smaller than: views of parameters and buffers, several views of one value,
values that go back to where they came from, chunks and concatenations, and sums, whose gradients are one number.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

import pytest
import torch
from allocated_by_device import AllocatedByDevice
from fuzz import examples
from networkx.utils import UnionFind
from torch import Tensor, nn
from torch.fx import Node

from fxpasses import Device, LoweredModule, Plan, Topology, Training
from fxpasses.lowering import lower_with_plan
from fxpasses.lowering.preparing import prepare
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.colocation import must_share
from fxpasses.partitioners.placing.device_runs import runs_of

SIDE = 16
SEVERAL = ("left", "middle", "right")
SCALARS = 64
"""Bytes by which a prediction may be less: numbers that an operator converts are counted nowhere."""

WAITS = 132
"""A seed for which a slice of a gradient keeps all of it until another device's gradient has come to be added."""

REORDERED = (297, 335)
"""Seeds for which parts run in another order than the graph, and two gradients of a value come in another order."""

SLICED = (439, 509)
"""Seeds for which a slice of a gradient keeps all of it: till a sum is complete, and till the slice is sent."""

PIECES = 1407
"""A seed for which the gradients of both elements of a tuple come from another device, and wait for it."""

SHARED = 579
"""A seed for which the first two gradients of a parameter on one device are not the first of all."""


class Drawn(nn.Module):
    """Does what it is told: each step makes square values of earlier ones."""

    def __init__(self, steps: list[tuple[str, int, int]]) -> None:
        super().__init__()
        self.steps = steps
        self.weight = nn.Parameter(torch.randn(SIDE, SIDE))
        self.row = nn.Parameter(torch.randn(1, SIDE))
        self.layer = nn.Linear(SIDE, SIDE)
        self.register_buffer("table", torch.randn(2 * SIDE, SIDE))

    def forward(self, x: Tensor) -> Tensor:
        values = [x, self.layer(x)]
        total = values[1].sum()
        for name, one, other in self.steps:
            values += ALL_STEPS[name](self, values[one % len(values)], values[other % len(values)])
        return total + sum(value.mean(0).sum() for value in values[-4:])


STEPS: dict[str, Callable[[Drawn, Tensor, Tensor], list[Tensor]]] = {
    "parameter": lambda model, one, _: [one @ model.weight.t(), model.weight.t()],
    "expanded": lambda model, one, _: [one * model.row.expand(SIDE, -1), model.row.expand(SIDE, -1)],
    "buffer": lambda model, one, _: [model.table[:SIDE].t(), model.table.view(2, SIDE, SIDE)[1]],
    "layer": lambda model, one, _: [model.layer(one)],
    "views": lambda _, one, __: [one.t(), one.unsqueeze(0).squeeze(0)],
    "first row": lambda _, one, other: [one[:1].expand(SIDE, -1), one + other[0]],
    "copied": lambda _, one, __: [one.t().contiguous()],
    "added": lambda _, one, other: [one + other],
    "multiplied": lambda _, one, other: [one * other.sigmoid()],
    "summed": lambda _, one, other: [one.sum() * other, one.sum(0, keepdim=True).expand(SIDE, -1)],
    "joined": lambda model, one, other: [model.layer(torch.cat([one, other])).view(2, SIDE, SIDE).sum(0)],
    "chunks": lambda _, one, other: list(torch.cat([one, other], -1).chunk(2, -1)),
    "tanh": lambda _, one, __: [one.tanh()],
}

ALL_STEPS = {
    **STEPS,
    "cut off": lambda _, one, other: [one.tanh().sigmoid().detach() * other.sigmoid()],
    "decided": lambda model, one, other: [model.layer(one).softmax(-1).argmax(-1, keepdim=True) * 0.1 * other],
    "taught": lambda model, one, other: [other + (model.layer(one).exp() * one).detach()],
    "chosen": lambda _, one, other: [torch.where(one.cos() > other.sin(), one.tanh(), other)],
}
"""The others prepare a backward that nobody can ask for."""


def drawn(seed: int, steps: Collection[str] = STEPS) -> Drawn:
    draw = random.Random(seed)
    names = draw.choices(list(steps), k=draw.randint(4, 10))
    torch.manual_seed(seed)
    return Drawn([(name, -draw.randint(1, 4), -draw.randint(1, 9)) for name in names])


def anywhere(figures: GraphFigures, draw: random.Random) -> dict[Node, str]:
    """A device for each operator; what cannot be torn apart shares one."""
    together: UnionFind[Node] = UnionFind(figures.nodes)
    for group in must_share(figures):
        together.union(*group)
    chosen = {leader: draw.choice(SEVERAL) for leader in dict.fromkeys(together[node] for node in figures.nodes)}
    return {node: chosen[together[node]] for node in figures.nodes}


def lowered_anywhere(model: nn.Module, x: Tensor, seed: int, training: Training | None) -> LoweredModule:
    prepared = prepare(model, (x,))
    figures = GraphFigures.of(prepared.graph_module)
    topology = Topology([Device(name) for name in SEVERAL])
    runs = runs_of(prepared.graph_module, anywhere(figures, random.Random(seed)))
    device_of = {part: topology[name] for part, name in runs.device_of.items()}
    plan = Plan.of("drawn", "latency", topology, runs.assignment, device_of, training=training)
    return lower_with_plan(prepared.program, plan)


def exceeded(lowered: LoweredModule, allocated: AllocatedByDevice) -> dict[str, tuple[int, int]]:
    """The devices that hold more than was predicted; what was, and what they hold."""
    predicted = {row.name: row.peak_bytes for row in lowered.report.devices}
    return {name: (predicted[name], real) for name, real in allocated.total.items() if real > predicted[name] + SCALARS}


@pytest.mark.parametrize("training", [None, Training(0)], ids=["inference", "training"])
def test_no_device_of_a_random_placement_allocates_more_than_predicted(training: Training | None) -> None:
    for seed in (*range(examples(8)), WAITS, *REORDERED, *SLICED):
        x = torch.randn(SIDE, SIDE)
        lowered = lowered_anywhere(drawn(seed), x, seed, training)
        optimizer = torch.optim.SGD(lowered.parameters())

        with torch.set_grad_enabled(training is not None), AllocatedByDevice(lowered, (x,), optimizer) as allocated:
            loss = lowered(x)
            if training is not None:
                loss.backward()

        assert {} == exceeded(lowered, allocated), f"seed {seed}"


def test_what_a_backward_is_prepared_for_that_never_comes_counts_until_it_is_gone() -> None:
    for seed in (*range(examples(8)), PIECES, SHARED):
        x = torch.randn(SIDE, SIDE)
        lowered = lowered_anywhere(drawn(seed, ALL_STEPS), x, seed, Training(0))

        with AllocatedByDevice(lowered, (x,), torch.optim.SGD(lowered.parameters())) as allocated:
            lowered(x).backward()

        assert {} == exceeded(lowered, allocated), f"seed {seed}"
