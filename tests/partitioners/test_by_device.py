"""Which device runs what: every tensor once, budgets kept, balanced, and a sentence where it cannot be."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from lowering_models import Mlp
from torch import Tensor, nn

from benchmarks.models import chain_program
from fxpasses import Device, InfeasibleError, Link, PlacementError, fake_devices, lower
from fxpasses.partitioners.by_device import place_by_device
from fxpasses.partitioners.costs.device_times import predict_times
from fxpasses.partitioners.costs.memory import predict_memory
from fxpasses.units import KiB, MiB


class ScaledBlock(nn.Module):
    """Two linear layers beside a buffer of the block itself, which device maps by module tend to lose."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.register_buffer("layer_scalar", torch.full((1,), 0.5))
        self.register_buffer("offset", torch.ones(width), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu(self.first(x))) * self.layer_scalar + self.offset


def module_of(model: nn.Module, *args: Tensor) -> torch.fx.GraphModule:
    return torch.export.export(model, args).module(check_guards=False)


def test_every_tensor_is_placed_exactly_once_and_budgets_are_kept() -> None:
    """Complaint 24: parameters, buffers persistent or not, and root parameters are all on a device, none twice."""
    model = nn.Sequential(*(ScaledBlock(64) for _ in range(4))).eval()
    x = torch.randn(2, 64)

    lowered = lower(model, (x,), devices=fake_devices(3, memory=60 * KiB))

    wanted = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    held = Counter(
        lowered.qualified_names[f"{part}.{name}"]
        for part in lowered.submodule_of.values()
        for name, _ in (
            *lowered.get_submodule(part).named_parameters(),
            *lowered.get_submodule(part).named_buffers(),
        )
    )
    assert wanted == set(held)
    assert {1} == set(held.values())
    assert all(row.peak_bytes <= 60 * KiB for row in lowered.report.devices)
    assert torch.equal(model(x), lowered(x))


def test_a_gpt2_in_four_stages_is_balanced_within_a_tenth_of_the_ideal() -> None:
    """Complaint 26: the cut follows operators, embeddings and output layer included, not a count of blocks."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=64, n_layer=12, n_head=4, vocab_size=300, n_positions=32, use_cache=False)
    model = GPT2LMHeadModel(config).eval()
    program = torch.export.export(model, (torch.randint(0, 300, (2, 32)),))
    graph_module = program.module(check_guards=False)
    devices = fake_devices(4, flops=1e9)

    placement = place_by_device(graph_module, devices, objective="throughput")

    alone = place_by_device(graph_module, devices[:1]).seconds
    assert 4 == len(placement.device_of)
    assert max(placement.load.values()) <= 1.1 * alone / 4


def test_the_predicted_times_are_those_of_the_parts_and_the_copies() -> None:
    graph_module = module_of(Mlp(4), torch.randn(2, 64))
    placement = place_by_device(graph_module, fake_devices(2, memory=40 * KiB))

    seconds, load = predict_times(graph_module, placement.assignment, placement.device_of, placement.topology)

    assert pytest.approx(placement.seconds) == seconds
    assert set(load) == {"device0", "device1"}


def test_the_fastest_device_runs_everything_when_it_fits() -> None:
    graph_module = module_of(Mlp(4), torch.randn(2, 64))

    placement = place_by_device(graph_module, fake_devices(3, flops=[1e9, 1e12, 1e10]))

    assert ["device1"] == list(placement.device_of)
    assert (
        "the whole model fits device1, the fastest device that holds it, and no other choice has a smaller latency"
        == placement.reasons["device1"]
    )
    slower = place_by_device(graph_module, [Device("small", 20 * KiB, flops=1e12), *fake_devices(2, flops=[1e9, 1e11])])
    assert ["device1"] == list(slower.device_of)


def test_a_slow_host_that_holds_everything_does_not_get_everything() -> None:
    """The accelerator is too small for the model: it takes the layers that it has room for, unless copies cost more."""
    graph_module = module_of(Mlp(4), torch.randn(2, 64))
    small, host = Device("small", 40 * KiB, flops=1e12, bandwidth=1e12), Device("host", flops=1e6, bandwidth=1e9)

    near = place_by_device(graph_module, [small, host], [Link("small", "host", bandwidth=1e9)])
    far = place_by_device(graph_module, [small, host], [Link("small", "host", latency=10.0)])

    alone = place_by_device(graph_module, [host])
    assert {"small", "host"} == {device.name for device in near.device_of.values()}
    assert near.objective_value < 0.7 * alone.objective_value
    assert pytest.approx(alone.objective_value) == far.objective_value
    assert ["the whole model fits host, and no choice was found that has a smaller latency"] == list(
        far.reasons.values()
    )


def test_one_device_alone_says_that_several_were_not_tried() -> None:
    """Two branches may run side by side: the bound says what that could give, and a contiguity tries it."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ways = nn.ModuleList(nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            return self.ways[0](x) + self.ways[1](x)

    graph_module = module_of(Branches(), torch.randn(64, 64))
    devices = fake_devices(2, flops=1e8)

    alone = place_by_device(graph_module, devices)
    together = place_by_device(graph_module, devices, contiguity="free")

    assert together.objective_value < 0.6 * alone.objective_value
    assert alone.bound <= together.objective_value
    assert alone.reasons["device0"].startswith(
        "the whole model fits device0, the fastest device that holds it; parts on several devices were not tried: they "
        "are quicker only where branches run side by side, in "
    )
    assert alone.reasons["device0"].endswith('at best; contiguity="free" tries them')
    (reason,) = place_by_device(graph_module, devices[:1]).reasons.values()
    assert "the whole model fits device0, the only device" == reason


def test_a_reason_says_what_did_not_fit_and_what_crosses() -> None:
    graph_module = module_of(Mlp(4), torch.randn(2, 64))

    placement = place_by_device(graph_module, fake_devices(2, memory=40 * KiB))

    first, second = placement.reasons.values()
    assert "does not fit" in first
    assert "where 512 B cross" in first
    assert second.endswith("it ends with the model")


def test_what_touches_one_storage_up_to_its_last_write_stays_on_one_device() -> None:
    """Complaint 1: no cut separates a write from what it orders."""

    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x + 1
            for _ in range(4):
                y = y.clone()
                view = y[0]
                view.mul_(2)
                y.add_(view.sum())
            return y

    graph_module = module_of(Writes(), torch.randn(3, 3))
    assignment = place_by_device(graph_module, fake_devices(2), objective="throughput").assignment

    for node in graph_module.graph.nodes:
        if node in assignment.partition_of and "_" == str(node.target).split(".")[1][-1:]:
            base = node.all_input_nodes[0]
            assert assignment.partition_of[base] == assignment.partition_of[node]


def test_no_other_objective_fills_the_fullest_device_less_than_memory() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = x + torch.relu(layer(x))
            return x

    graph_module = module_of(Residual(), torch.randn(4, 64))
    devices = [Device("left", 80 * KiB), Device("right", 60 * KiB)]

    peaks = {}
    for objective in ("memory", "throughput"):
        placement = place_by_device(graph_module, devices, objective=objective, contiguity="pipeline")
        memory = predict_memory(graph_module, placement.assignment, placement.device_of)
        peaks[objective] = max(held.peak for held in memory.values())

    assert peaks["memory"] <= peaks["throughput"]


def test_an_objective_that_does_not_exist_lists_those_that_do() -> None:
    with pytest.raises(PlacementError, match=r"^There is no objective 'speed'; there are latency, throughput, mem"):
        place_by_device(module_of(Mlp(1), torch.randn(2, 64)), fake_devices(1), objective="speed")  # type: ignore[arg-type]


def test_memory_that_no_cut_can_keep_says_what_to_do() -> None:
    graph_module = module_of(Mlp(3), torch.randn(2, 64))
    devices = [Device("a", 30 * KiB), Device("b", 30 * KiB)]

    with pytest.raises(InfeasibleError, match=r"but no cut into runs of consecutive operators keeps every budget"):
        place_by_device(graph_module, devices)
    with pytest.raises(InfeasibleError, match=r" Nor does a free placement, in which a device has several turns\.$"):
        place_by_device(graph_module, devices)
    with pytest.raises(InfeasibleError, match=r"but no placement keeps every budget;.*[^\"]\.$"):
        place_by_device(graph_module, devices, contiguity="free")


@pytest.mark.parametrize("objective", ["latency", "throughput", "memory", "devices"])
def test_where_no_pipeline_fits_and_nothing_else_is_asked_a_device_has_several_turns(objective: str) -> None:
    """The middle of three layers has a device for itself, and the others fit the other one."""
    layers = (nn.Linear(16, 32, bias=False), nn.Linear(32, 32, bias=False), nn.Linear(32, 16, bias=False))
    graph = module_of(nn.Sequential(*layers), torch.ones(1, 16))
    devices = [Device(name, 4600) for name in "ab"]

    found = place_by_device(graph, devices, objective=objective)  # type: ignore[arg-type]

    assert ("free", 3) == (found.contiguity, len(found.device_of))
    for name, held in predict_memory(graph, found.assignment, found.device_of).items():
        assert held.peak <= 4600, name
    with pytest.raises(InfeasibleError, match="no cut into runs of consecutive operators keeps every budget") as caught:
        place_by_device(graph, devices, objective=objective, contiguity="pipeline")  # type: ignore[arg-type]
    assert str(caught.value).endswith('in which a device has several turns, may: contiguity="free".')
    with pytest.raises(InfeasibleError, match="no cut into runs of consecutive operators keeps every budget"):
        place_by_device(graph, devices, objective=objective, pinned={"0": "a", "1": "a"})  # type: ignore[arg-type]


def test_pins_that_no_pipeline_can_keep_are_kept() -> None:
    graph = module_of(nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))), torch.ones(1, 4))

    found = place_by_device(
        graph, [Device("a"), Device("b")], objective="throughput", pinned={"0": "a", "1": "b", "2": "a"}
    )

    assert ["a", "b", "a"] == [device.name for device in found.device_of.values()]


class Kept(nn.Module):
    """Some layers give a value that stays to the end, so that what is alive differs much along the model."""

    def __init__(self) -> None:
        super().__init__()
        widths = [16, 16, 12, 16, 8, 16, 4]
        self.layers = nn.ModuleList(nn.Linear(*pair, bias=False) for pair in itertools.pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if index not in (1, 3):
                kept.append(x.sin())
        return sum((each.sum() for each in kept), x.sum())


def test_budgets_that_balancing_keeps_are_kept_under_another_objective() -> None:
    """What is looked for differs, and so does what is found; what fits does for all."""
    budgets = {"a": 3280, "b": 3304, "c": 2052}
    graph = module_of(Kept(), torch.ones(8, 16))
    devices = [Device(*each) for each in budgets.items()]

    found = place_by_device(graph, devices, objective="memory", contiguity="free", time_budget=0.02)

    for name, held in predict_memory(graph, found.assignment, found.device_of).items():
        assert held.peak <= budgets[name]
    assert found.bound <= found.objective_value


def test_proposals_are_the_same_every_time() -> None:
    graph_module = module_of(Mlp(6), torch.randn(2, 64))
    cuts = [
        [str(part) for part in place_by_device(graph_module, fake_devices(3), objective="throughput").device_of]
        for _ in range(3)
    ]

    assert all(one == other for one, other in itertools.pairwise(cuts))


def test_ten_thousand_operators_on_eight_devices_are_placed_in_proportion() -> None:
    graph_module = chain_program(10_000).module(check_guards=False)

    placement = place_by_device(graph_module, fake_devices(8, memory=MiB), objective="throughput")

    loads = list(placement.load.values())
    assert max(loads) <= 1.05 * sum(loads) / 8


@pytest.mark.parametrize("objective", ["latency", "throughput", "memory", "devices"])
@pytest.mark.parametrize("contiguity", [None, "pipeline", "convex", "free"])
def test_a_graph_without_operators_is_placed_in_no_part(objective: str, contiguity: str | None) -> None:
    """It hands on what it gets; there is nothing to search, and numpy knows no largest part of none."""
    graph = torch.fx.symbolic_trace(nn.Identity())
    options = {"objective": objective, "contiguity": contiguity}

    placement = place_by_device(graph, fake_devices(2, memory=KiB), **options)  # type: ignore[arg-type]

    assert {} == placement.device_of
    assert 0 == placement.objective_value == placement.bound
    with pytest.raises(PlacementError, match=r"^`pinned` names 'layer', from which no operator"):
        place_by_device(graph, fake_devices(2), pinned={"layer": "device0"}, **options)  # type: ignore[arg-type]


def test_a_model_without_operators_runs() -> None:
    x = torch.randn(2)

    lowered = lower(nn.Identity(), (x,), devices=fake_devices(2))

    assert () == lowered.plan.parts
    assert torch.equal(x, lowered(x))


def test_a_device_whose_support_raises_says_so() -> None:
    """The error is caught by what catches its cause, too."""

    def supports(_submodules: object, _node: object) -> bool:
        raise ZeroDivisionError("division by zero")

    with pytest.raises(ZeroDivisionError) as caught:
        place_by_device(chain_program(1).module(check_guards=False), [Device("a", supports=supports)])

    assert isinstance(caught.value, PlacementError)
    assert str(caught.value).startswith("Whether a supports ")
    assert " is not known: its `supports` raised ZeroDivisionError: division by zero" in str(caught.value)
    assert str(caught.value).endswith(" Let it return True or False for every node.")
