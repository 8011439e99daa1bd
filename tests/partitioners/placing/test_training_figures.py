"""What a training step needs at a moment: never more than is predicted, and enough to find and prove placements."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from unrolled_cells import Steps

from fxpasses import Device, Training, fake_devices
from fxpasses.devices import Topology
from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners.by_device import place_by_device
from fxpasses.partitioners.placing.budget_checks import check_budgets
from fxpasses.partitioners.placing.colocation import must_share
from fxpasses.partitioners.placing.device_runs import Runs, runs_of
from fxpasses.partitioners.placing.measured_graphs import MeasuredGraph
from fxpasses.partitioners.placing.objective_values import objective_value
from fxpasses.partitioners.placing.requests import Contiguity, Request
from fxpasses.partitioners.placing.state_nodes import StateNode
from fxpasses.partitioners.placing.training_figures import stepping_figures
from fxpasses.partitioners.solvers.reduced.tables import CostTables, evaluate, tables_of
from fxpasses.units import KiB


class Tied(nn.Module):
    """An embedding that is used at both ends, a buffer, a layer that is not trained, and one that runs twice."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.twice, self.frozen, self.last = nn.Linear(16, 16), nn.Linear(16, 48), nn.Linear(48, 16)
        self.frozen.requires_grad_(False)
        self.register_buffer("mask", torch.ones(16))

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.relu(self.twice(self.words(tokens) * self.mask))
        x = torch.relu(self.twice(x) * self.mask)
        return nn.functional.linear(self.last(torch.relu(self.frozen(x))), self.words.weight)


class Averages(nn.Module):
    """Layers around an average that all of them read, and that is written in the middle."""

    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.register_buffer("average", torch.zeros(32))

    def forward(self, x: Tensor) -> Tensor:
        for place, layer in enumerate(self.layers):
            x = torch.relu(layer(x)) + self.average
            if place == 1:
                self.average.lerp_(x.detach().mean(0), 0.1)
        return x


def tied() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Tied(), (torch.randint(0, 50, (1, 2)),)


def steps() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Steps(), (torch.randn(4, 1, 16),)


def convolutions() -> tuple[nn.Module, tuple[Tensor, ...]]:
    blocks = [
        nn.Sequential(nn.Conv2d(own, other, 3, padding=1), nn.BatchNorm2d(other), nn.ReLU())
        for own, other in itertools.pairwise((3, 8, 16, 64))
    ]
    return nn.Sequential(*blocks), (torch.randn(2, 3, 2, 2),)


def layers(*widths: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    made = [module for own, other in itertools.pairwise(widths) for module in (nn.Linear(own, other), nn.ReLU())]
    return nn.Sequential(*made), (torch.randn(1, widths[0]),)


def exported(make: Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]) -> GraphModule:
    torch.manual_seed(0)
    model, args = make()
    return torch.export.export(model, args).module(check_guards=False)


def cut(graph: GraphModule, nodes: Sequence[Node], cuts: Sequence[int], names: Sequence[str]) -> Runs:
    """The operators in the graph's order, up to each cut on the next device."""
    stops = (*cuts, len(nodes))
    return runs_of(graph, {node: names[sum(stop <= place for stop in stops)] for place, node in enumerate(nodes)}, None)


def evaluated(tables: CostTables, runs: Runs, names: Sequence[str]) -> dict[str, float]:
    """The bytes that a problem counts on each device."""

    def home(key: object) -> int:
        node = key.first_user if isinstance(key, StateNode) else key[1] if isinstance(key, tuple) else key
        return names.index(runs.device_of[str(runs.assignment.partition_of[node])])  # type: ignore[index]  # a node

    kept = evaluate(tables, np.array([home(key) for key in tables.nodes], dtype=np.int64)).kept
    return dict(zip(names, kept.tolist(), strict=True))


@pytest.mark.parametrize("make", [tied, steps, convolutions], ids=lambda make: make.__name__)
@pytest.mark.parametrize(
    "training", [Training(0), Training(1, counts_steps=False), Training(2), Training(2, step_slots=0)], ids=str
)
def test_no_device_has_less_while_the_optimizer_steps(
    make: Callable[[], tuple[nn.Module, tuple[Tensor, ...]]], training: Training
) -> None:
    graph = exported(make)
    devices = fake_devices(3)
    names = [device.name for device in devices]
    measured, request = MeasuredGraph.of(graph, devices, training), Request(Topology.of(devices), "throughput")
    assert measured.step is not None
    stepping = stepping_figures(measured.timed, measured.step)
    tables = tables_of(request.problem(stepping, "pipeline", np.zeros_like(stepping.needs)))
    draw, reached = random.Random(0), 0
    for _ in range(30):
        cuts = sorted(draw.sample(range(1, len(stepping.nodes)), 2))
        runs = cut(graph, stepping.nodes, cuts, names)
        seen = check_budgets(measured.timed, request.topology, runs, measured.step, always=True)
        least = evaluated(tables, runs, names)
        assert all(least[name] <= peak for name, peak in seen.peaks.items())
        reached += sum(least[name] > 0.8 * peak for name, peak in seen.peaks.items() if peak)
    assert reached, "nowhere does the step of the optimizer decide"


def best_cut(graph: GraphModule, devices: Sequence[Device], training: Training) -> float:
    """The smallest largest load over all cuts and orders of the devices that keep the budgets."""
    measured, topology, best = MeasuredGraph.of(graph, devices, training), Topology.of(devices), np.inf
    nodes = measured.timed.nodes
    for count in range(1, len(devices) + 1):
        for order in itertools.permutations([device.name for device in devices], count):
            for cuts in itertools.combinations(range(1, len(nodes)), count - 1):
                runs = cut(graph, nodes, cuts, order)
                if not check_budgets(measured.timed, topology, runs, measured.step).over:
                    best = min(best, objective_value(measured.timed, topology, "throughput", runs, measured.step))
    return float(best)


@pytest.mark.parametrize("widths", [(16, 64, 64, 16, 96, 8), (64, 16, 128, 32, 32, 48), (8, 8, 256, 8, 64, 64)])
@pytest.mark.parametrize("speeds", [(1.0, 1.0, 0.5), (1.0, 2.0, 3.0)])
def test_placements_of_layers_in_training_are_the_best_and_proven(
    widths: tuple[int, ...], speeds: tuple[float, ...]
) -> None:
    """Parameters are large, so the step of the optimizer decides: the bound knew nothing of it, and gaps stayed."""
    graph, training = exported(lambda: layers(*widths)), Training(2, step_slots=1)
    largest = max(own * other for own, other in itertools.pairwise(widths)) * 4
    whole = sum(own * other for own, other in itertools.pairwise(widths)) * 4
    for room in (0.5, 0.7):
        memory = [max(int(5 * whole * room * speed / max(speeds)), 7 * largest) for speed in speeds]
        devices = fake_devices(3, memory=memory, flops=[speed * 1e9 for speed in speeds])
        best = best_cut(graph, devices, training)
        found = place_by_device(graph, devices, objective="throughput", contiguity="pipeline", training=training)
        assert found.objective_value == pytest.approx(best, rel=1e-9)
        assert found.gap < 1e-9


def test_what_the_optimizer_makes_bounds_how_much_a_fast_device_takes() -> None:
    """At the end of the forward it would hold five layers of eight, while the optimizer steps it holds three."""
    graph, training = exported(lambda: layers(*[32] * 9)), Training(2, step_slots=1)
    devices = fake_devices(3, memory=int(3.4 * 5 * 4 * 32 * 33), flops=[4e9, 1e9, 1e9], bandwidth=1e15, overhead=0)

    found = place_by_device(graph, devices, objective="throughput", contiguity="pipeline", training=training)

    assert found.objective_value == pytest.approx(best_cut(graph, devices, training), rel=1e-9)
    assert found.gap < 1e-9


def test_a_recurrent_net_fits_devices_of_two_kinds_in_training() -> None:
    """Answers that passed a budget were asked again in vain; cuts of the graph's own order were all there was."""
    graph, training = exported(steps), Training(2)
    memory = [round(size * KiB) for size in (75, 75, 50, 50)]
    devices = fake_devices(4, memory=memory, flops=[2e9, 2e9, 1e9, 1e9])

    found = place_by_device(graph, devices, objective="throughput", contiguity="pipeline", training=training)

    free = place_by_device(
        graph, fake_devices(4, flops=[2e9, 2e9, 1e9, 1e9]), objective="throughput", training=training
    )
    assert free.objective_value <= found.objective_value < 1.2 * free.objective_value


def test_that_optimizers_cannot_step_anywhere_is_proven() -> None:
    graph, training = exported(lambda: layers(64, 64, 64, 64, 64)), Training(2)
    need = 64 * 65 * 4 * 5
    devices = fake_devices(3, memory=[int(1.3 * need)] * 3)

    with pytest.raises(InfeasibleError, match=r"lacks .* or more|missing"):
        place_by_device(graph, devices, objective="throughput", contiguity="pipeline", training=training)


@pytest.mark.parametrize("contiguity", ["pipeline", "convex", "free"])
def test_what_is_written_is_not_torn_from_its_readers_while_the_optimizer_steps(contiguity: Contiguity) -> None:
    """The problem of that moment does not count what is sent, and forgot that a buffer is used."""
    graph, training = exported(lambda: (Averages(), (torch.randn(8, 32),))), Training(2)
    devices = fake_devices(1)
    measured, topology = MeasuredGraph.of(graph, devices, training), Topology.of(devices)
    (together,) = must_share(measured.figures)
    alone = cut(graph, measured.timed.nodes, (), [device.name for device in devices])
    (needed,) = check_budgets(measured.timed, topology, alone, measured.step, always=True).peaks.values()

    placed = 0
    for share in (0.55, 0.65, 0.75, 0.85):
        devices = fake_devices(2, memory=int(share * needed))
        try:
            found = place_by_device(graph, devices, objective="throughput", contiguity=contiguity, training=training)
        except PlacementError:
            continue
        homes = {found.device_of[str(found.assignment.partition_of[node])].name for node in together}
        assert 1 == len(homes)
        placed += 1
    assert placed
