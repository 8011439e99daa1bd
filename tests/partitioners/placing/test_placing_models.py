"""Whole models on several unequal devices: budgets kept, bounds given, and what comes out really runs."""

from __future__ import annotations

import functools
from typing import Any

import pipeline_models
import pytest
import torch
from lowering_models import KeyValueCache, Mlp
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from benchmarks.models import chain_program
from fxpasses import Device, InfeasibleError, PlacementError, fake_devices, lower
from fxpasses.devices import Link
from fxpasses.partitioners import Training, predict_training_memory
from fxpasses.partitioners.by_device import place_by_device
from fxpasses.partitioners.costs.memory import predict_memory
from fxpasses.partitioners.placing.device_placements import DevicePlacement
from fxpasses.passes import PlaceOnDevices, split
from fxpasses.pipelining.cuts.balancing import balanced_stages
from fxpasses.programs import capture
from fxpasses.units import KiB


@functools.cache
def example(name: str) -> tuple[nn.Module, Any, Any, Any]:
    model, args, kwargs = pipeline_models.MODELS[name][0]()
    return model, args, kwargs, capture(model, args, kwargs)


def graph_of(name: str) -> GraphModule:
    module: GraphModule = example(name)[3].module(check_guards=False)
    return module


def unequal(name: str, count: int, share: float) -> tuple[Device, ...]:
    """Devices of different speed and memory that together have ``share`` times what the model's state takes."""
    model = example(name)[0]
    held = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    weights = [1 + 0.35 * index for index in range(count)]
    memory = [int(share * held * weight / sum(weights)) + 3000 for weight in weights]
    return fake_devices(count, memory=memory, flops=[1e9 * (1 + index % 3) for index in range(count)])


def assert_budgets(graph_module: GraphModule, placement: DevicePlacement) -> None:
    for name, held in predict_memory(graph_module, placement.assignment, placement.device_of).items():
        assert held.peak <= placement.topology[name].memory


def assert_runs(name: str, graph_module: GraphModule, placement: DevicePlacement) -> None:
    """The parts, moved and with copies, give what the model gives."""
    model, args, kwargs, _program = example(name)
    parts = split(graph_module, placement.assignment, names=str)
    homes = {parts.part_names[part]: placement.device_of[str(part)] for part in placement.assignment.order}
    PlaceOnDevices(homes)(parts.graph_module)
    with torch.no_grad():
        wanted, got = model(*args, **kwargs), parts.graph_module(*args, **kwargs)
    for one, other in zip(pytree.tree_leaves(wanted), pytree.tree_leaves(got), strict=True):
        if isinstance(one, Tensor):
            torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-6)


NAMES = ("llama", "bert", "residual_net", "mixtral")


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("name", NAMES)
def test_models_run_on_unequal_devices_within_their_budgets(name: str, count: int) -> None:
    """A decoder, an encoder, a convolutional net and a mixture of experts on 2, 3 and 8 devices."""
    graph_module = graph_of(name)

    placement = place_by_device(graph_module, unequal(name, count, 3), objective="throughput", time_budget=0.1)

    assert placement.bound <= placement.objective_value
    assert 0 < placement.bound
    assert_budgets(graph_module, placement)
    assert_runs(name, graph_module, placement)


KINDS = [
    *((objective, "pipeline") for objective in ("latency", "throughput", "memory", "devices")),
    *((objective, "free") for objective in ("latency", "throughput")),
]


@pytest.mark.parametrize(("objective", "contiguity"), KINDS)
def test_every_objective_and_contiguity_keeps_budgets_and_results(objective: Any, contiguity: Any) -> None:
    graph_module = graph_of("llama")

    placement = place_by_device(
        graph_module, unequal("llama", 3, 2), objective=objective, contiguity=contiguity, time_budget=0.1
    )

    assert (objective, contiguity) == (placement.objective, placement.contiguity)
    assert 0 < placement.bound <= placement.objective_value
    assert placement.gap == pytest.approx(placement.objective_value / placement.bound - 1)
    assert_budgets(graph_module, placement)
    assert_runs("llama", graph_module, placement)


@pytest.mark.parametrize("contiguity", ["pipeline", "convex", "free"])
@pytest.mark.parametrize("objective", ["latency", "throughput", "memory", "devices"])
def test_devices_without_budgets_take_anything(objective: Any, contiguity: Any) -> None:
    graph_module = graph_of("residual_net")

    placement = place_by_device(
        graph_module, fake_devices(3), objective=objective, contiguity=contiguity, time_budget=0.05
    )

    assert 0 < placement.bound <= placement.objective_value
    assert_runs("residual_net", graph_module, placement)


def test_a_pipeline_is_proven_to_be_the_best() -> None:
    graph_module = graph_of("residual_net")

    placement = place_by_device(graph_module, unequal("residual_net", 3, 3), objective="throughput")

    assert placement.is_optimal
    assert placement.objective_value == pytest.approx(max(placement.load.values()))


def test_fewest_devices_are_as_few_as_hold_the_model() -> None:
    """Four layers of 16 KiB: two on each device of 40 KiB, and the third device stays empty."""
    graph_module = torch.export.export(Mlp(4), (torch.randn(2, 64),)).module(check_guards=False)

    placement = place_by_device(graph_module, fake_devices(3, memory=40 * KiB), objective="devices")

    assert 2 == len(placement.device_of) == placement.objective_value
    assert placement.is_optimal


def test_an_operator_in_the_middle_that_a_device_lacks_runs_elsewhere_and_back() -> None:
    """A fast device without ReLU: it takes turns with the CPU, and that is quicker than the CPU alone."""
    graph_module = torch.export.export(Mlp(4, width=512), (torch.randn(64, 512),)).module(check_guards=False)

    def no_relu(_modules: Any, node: torch.fx.Node) -> bool:
        return "relu" not in node.name

    devices = [Device("gpu", flops=1e12, bandwidth=1e12, supports=no_relu), Device("cpu", flops=1e10)]
    placement = place_by_device(graph_module, devices, time_budget=0.1)

    homes = {node.name: placement.device_of[str(part)].name for node, part in placement.assignment.partition_of.items()}
    assert {"cpu"} == {home for name, home in homes.items() if "relu" in name}
    assert {"gpu"} == {home for name, home in homes.items() if "linear" in name}
    assert "free" == placement.contiguity
    assert placement.objective_value < place_by_device(graph_module, devices[1:]).objective_value / 2


def test_state_that_is_written_is_placed_and_steps_agree() -> None:
    """A cache that is written in place lives on one device, and three steps give what the model gives."""
    model, x, position = KeyValueCache().eval(), torch.randn(1, 1, 16), torch.tensor([0])
    with torch.no_grad():
        lowered = lower(model, (x, position), devices=fake_devices(2, memory=4000), objective="throughput")
        steps = [(torch.randn(1, 1, 16), torch.tensor([at])) for at in range(3)]
        wanted = [model(*step) for step in steps]

        assert all(torch.equal(one, lowered(*step)) for one, step in zip(wanted, steps, strict=True))


def test_gradients_on_two_cpu_devices_are_those_of_the_model() -> None:
    model, x = Mlp(4), torch.randn(3, 64)
    lowered = lower(model, (x,), devices=fake_devices(2, memory=40 * KiB))
    model(x).sum().backward()
    wanted = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()

    lowered(x).sum().backward()

    named = {lowered.qualified_names.get(name, name): value.grad for name, value in lowered.named_parameters()}
    assert all(torch.equal(one, named[name]) for one, (name, _) in zip(wanted, model.named_parameters(), strict=True))


def test_the_same_seed_gives_the_same_placement() -> None:
    graph_module = graph_of("residual_net")
    devices = unequal("residual_net", 3, 2)

    once, again = (
        place_by_device(graph_module, devices, objective="throughput", contiguity="free", time_budget=0.1, seed=3)
        for _ in range(2)
    )

    assert dict(once.assignment.partition_of) == dict(again.assignment.partition_of)


def test_a_long_chain_on_many_devices_is_near_the_bound() -> None:
    graph_module = chain_program(3000).module(check_guards=False)

    placement = place_by_device(graph_module, fake_devices(16), objective="throughput", time_budget=0.1)

    assert 16 == len(placement.assignment)
    assert placement.gap <= 0.02  # 187.5 operators each, and two copies


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "bert", "t5", "mixtral"])
def test_complaint_26_stages_of_real_models_are_near_the_bound(name: str) -> None:
    """Complaint 26: over links that cost next to nothing the slowest of 4 stages is at most 1.05 times the bound."""
    devices = [Device(f"stage{index}") for index in range(4)]
    links = [Link(a.name, b.name, 1e15, 0.0) for a in devices for b in devices if a.name < b.name]

    balance = balanced_stages(graph_of(name), None, devices, links)

    assert 4 == len(balance.loads) == len(set(balance.stage_of.values()))
    assert balance.gap <= 0.05
    assert max(balance.loads) <= 1.05 * balance.bound


def test_what_cannot_be_proven_is_not_called_impossible() -> None:
    """Infeasible is said only where it is proven; the bytes that are missing are named."""
    graph_module = torch.export.export(Mlp(3), (torch.randn(2, 64),)).module(check_guards=False)

    with pytest.raises(InfeasibleError, match=r"needs \d+ bytes more on '[ab]', where linear\w* is") as caught:
        place_by_device(graph_module, [Device("a", 30 * KiB), Device("b", 30 * KiB)])

    assert 0 < caught.value.missing_bytes <= 20 * KiB


BAD = {
    "contiguity": ({"contiguity": "loose"}, r"^There is no contiguity 'loose'; there are pipeline, convex, free\.$"),
    "time budget": ({"time_budget": -1}, r"^The time budget is a number of seconds, not -1"),
    "pinned to nothing": ({"pinned": {"layers.0": "tpu"}}, r"^`pinned` names the device 'tpu'; there are a\.$"),
}


@pytest.mark.parametrize("case", BAD)
def test_options_that_make_no_sense_say_so(case: str) -> None:
    options, message = BAD[case]
    graph_module = torch.export.export(Mlp(1), (torch.randn(2, 64),)).module(check_guards=False)

    with pytest.raises(PlacementError, match=message):
        place_by_device(graph_module, [Device("a")], **{"objective": "throughput", **options})


def test_budgets_hold_in_training_too() -> None:
    """Gradients, Adam's state and what autograd saves count, and a training step gives the model's gradients."""
    model, x = Mlp(6), torch.randn(16, 64)
    graph_module = torch.export.export(model, (x,)).module(check_guards=False)
    devices = fake_devices(3, memory=[150 * KiB, 200 * KiB, 250 * KiB])

    placement = place_by_device(graph_module, devices, objective="throughput", training=Training())
    memory = predict_training_memory(graph_module, placement.assignment, placement.device_of, Training())

    assert 1 == len(place_by_device(graph_module, devices).assignment)
    assert 1 < len(placement.assignment)
    assert all(held.peak <= placement.topology[name].memory for name, held in memory.items())
    assert 0 < placement.bound <= placement.objective_value == pytest.approx(max(placement.load.values()))


def test_what_cannot_be_trained_on_the_devices_is_refused() -> None:
    graph_module = torch.export.export(Mlp(4), (torch.randn(2, 64),)).module(check_guards=False)

    with pytest.raises(InfeasibleError, match=r"bytes more|are missing") as caught:
        place_by_device(graph_module, fake_devices(2, memory=90 * KiB), training=Training())

    assert caught.value.missing_bytes > 0
