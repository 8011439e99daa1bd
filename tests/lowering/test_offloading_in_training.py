"""Training with parameters in main memory: budgets of whole steps, what is allocated, steps beside eager ones."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
import torch
from allocations import allocated_peak
from lowering_models import Mlp, Tied
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.fx import GraphModule

from fxpasses import Device, InfeasibleError, LoweredModule, Training, lower, place
from fxpasses.lowering import lower_with_plan
from fxpasses.partitioners.costs.training import training_steps
from fxpasses.partitioners.costs.training.backward_needs import BackwardNeeds
from fxpasses.passes.placing_parts import loading
from fxpasses.passes.placing_parts.copies import DEVICE, LOAD_OF
from fxpasses.plan import Plan
from fxpasses.units import KiB

LAYER = 64 * 65 * 4
"""Bytes of one layer of ``Mlp``."""


class Frozen(nn.Module):
    """Of every two layers one is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
        for layer in itertools.islice(self.layers, 0, None, 2):
            layer.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


class Shared(nn.Module):
    """One layer is used at both ends, and an embedding is the head, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.outer = nn.Embedding(80, 64), nn.Linear(64, 64)
        self.inner, self.head = Mlp(4, 64), nn.Linear(64, 80, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.outer(self.inner(self.outer(self.embed(ids)))))
        return logits


class Again(nn.Module):
    """One layer is used on both sides of another one, and a third time at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.outer, self.inner, self.last = (nn.Linear(64, 64, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.outer(self.last(self.outer(self.inner(self.outer(x)).tanh())))
        return made


class Twice(nn.Module):
    """The same layers for two inputs, one of which comes from a teacher."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.pupil = Mlp(4, 64), Mlp(4, 64)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            given = self.teacher(x)
        made: Tensor = self.pupil(given) + self.pupil(x)
        return made


class Convolutions(nn.Module):
    """Statistics are written to, and stay where they are."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.layers = nn.Sequential(*(copy.deepcopy(layer) for _ in range(4) for layer in layers))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layers(x)
        return made


class Branches(nn.Module):
    """Autograd's function of a ``cond`` keeps what it is given, and asks for it again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 64), nn.Linear(64, 64), Mlp(6, 64)

    def forward(self, x: Tensor) -> Tensor:
        made = torch.cond(x.sum() > 0, lambda x: self.first(x).relu(), lambda x: self.second(x).tanh(), (x,))
        result: Tensor = self.last(made)
        return result


class Views(nn.Module):
    """Weights are used by way of views, which are operators of their own."""

    def __init__(self, view: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.view = view
        self.weights = nn.ParameterList(torch.randn(64, 64) / 8 for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = x @ self.view(weight)
        return x


class CopiedFirst(nn.Module):
    """All weights are laid out otherwise before the first is used."""

    def __init__(self, copied: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.copied = copied
        self.weights = nn.ParameterList(torch.randn(64, 64) / 8 for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for weight in [self.copied(weight.t()) for weight in self.weights]:
            x = x @ weight
        return x


class Returned(nn.Module):
    """A view of a weight is in the result's way to the caller, who has it until the backward is done."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = Mlp(6, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layers(x), self.layers.layers[0].weight.t()


class Recurrent(nn.Module):
    """Autograd's function of a ``scan`` keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.last = nn.Parameter(torch.randn(64, 64) / 8), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        def cell(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            carry = (row @ self.weight + carry).tanh()
            return carry, carry.clone()

        carry, rows = scan(cell, torch.zeros(x.shape[1], 64), x, dim=0)
        result: Tensor = self.last(rows) + carry
        return result


def ids() -> Tensor:
    return torch.randint(0, 80, (2, 6))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "layers": (lambda: Mlp(8, 64), lambda: torch.randn(4, 64)),
    "much to save": (lambda: Mlp(8, 64), lambda: torch.randn(128, 64)),
    "frozen layers": (Frozen, lambda: torch.randn(4, 64)),
    "shared layers": (Shared, ids),
    "the same layers twice": (Twice, lambda: torch.randn(4, 64)),
    "tied": (Tied, lambda: torch.randint(0, 50, (2, 6))),
    "convolutions": (Convolutions, lambda: torch.randn(2, 16, 8, 8)),
    "branches": (Branches, lambda: torch.randn(4, 64)),
    "recurrent": (Recurrent, lambda: torch.randn(5, 2, 64)),
    "transposed": (lambda: Views(Tensor.t), lambda: torch.randn(4, 64)),
    "twice in one operator": (lambda: Views(lambda weight: weight * weight), lambda: torch.randn(4, 64)),
    "two views in one operator": (lambda: Views(lambda weight: weight[:, :8] @ weight[:8]), lambda: torch.randn(4, 64)),
    "bits of another type": (
        lambda: Views(lambda weight: weight.detach().view(torch.int32).view(torch.float32) + weight),
        lambda: torch.randn(4, 64),
    ),
}


TWICE = {"shared layers": 64 * 64 * 4, "tied": 50 * 16 * 4}
"""Bytes of the largest parameter that two parts load which do not follow each other."""


def device(budget: int) -> Device:
    """To torch another device than main memory."""
    return Device("small", budget, torch_device="cpu:1")


def least(model: nn.Module, x: Tensor, training: Training) -> LoweredModule:
    """The model in about as little memory as it can be trained in; the error says how much that is."""
    budget = 4 * KiB
    for _ in range(4):
        try:
            return lower(copy.deepcopy(model), (x,), devices=[device(budget)], offload="cpu", training=training)
        except InfeasibleError as error:
            budget += error.missing_bytes or 0
    raise AssertionError(f"{budget} bytes are too few, though the error says that they are enough")


def loaded(lowered: LoweredModule) -> set[Tensor]:
    """The parameters that stay in main memory."""
    names = (str(node.all_input_nodes[0].target) for node in lowered.graph.nodes if LOAD_OF.has(node))
    return {attrgetter(name)(lowered) for name in names}


def allocated(lowered: LoweredModule, x: Tensor) -> int:
    """The most bytes on the device in a step, with what it holds all the time."""
    own = set(lowered.parameters()) - loaded(lowered)

    def step() -> None:
        made = lowered(x)
        made.backward(torch.ones_like(made))
        lowered.zero_grad()

    held = {tensor.untyped_storage().data_ptr(): tensor.nbytes for tensor in (*own, *lowered.buffers())}
    return sum(held.values()) + allocated_peak(step)


@pytest.mark.parametrize("name", MODELS)
def test_the_peak_of_a_step_is_what_is_allocated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGD, which keeps nothing and makes nothing. Gradients that go home are dropped: here that is the same memory."""
    torch.manual_seed(0)
    monkeypatch.setattr(loading._Load, "backward", staticmethod(lambda _ctx, _gradient: (None, None)))
    make, inputs = MODELS[name]
    model, x = make().train(), inputs()

    lowered = least(model, x, Training(0))

    (row,) = lowered.report.devices
    taken = allocated(lowered, x)
    assert loaded(lowered)
    assert row.peak_bytes <= row.budget_bytes
    waits = TWICE.get(name, 0)  # the first of two gradients is taken to stay until the second is there
    assert taken <= row.peak_bytes <= 1.01 * taken + waits


def test_a_view_among_the_results_is_there_until_the_caller_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its gradient, which stays with the caller; a seventh more than the budget was there."""
    torch.manual_seed(0)
    monkeypatch.setattr(loading._Load, "backward", staticmethod(lambda _ctx, _gradient: (None, None)))
    model, x = Returned().train(), torch.randn(4, 64)
    small = Device("small", 100_000)

    lowered = lower(model, (x,), devices=[small], offload="cpu", training=Training(0))

    def step() -> None:
        made = lowered(x)
        torch.autograd.backward(made, [torch.ones_like(each) for each in made])
        lowered.zero_grad()

    own = set(lowered.parameters()) - loaded(lowered)
    taken = sum(each.nbytes for each in own) + x.nbytes + allocated_peak(step)
    (row,) = lowered.report.devices
    assert loaded(lowered)
    assert taken <= row.peak_bytes <= min(1.01 * taken, 100_000)


@pytest.mark.parametrize("copied", [torch.Tensor.contiguous, lambda weight: weight.reshape(4096).view(64, 64)])
def test_what_copies_a_loaded_weight_is_no_view_of_it(copied: Callable[[Tensor], Tensor]) -> None:
    """Operators that may give a view: nothing could be loaded, it was said, and models that fit were refused."""
    x, training = torch.randn(4, 64), Training(0)
    as_clones = least(CopiedFirst(lambda weight: weight.clone(memory_format=torch.contiguous_format)), x, training)

    lowered = least(CopiedFirst(copied), x, training)

    assert loaded(lowered)
    assert lowered.report.devices[0].peak_bytes <= as_clones.report.devices[0].peak_bytes


@pytest.mark.parametrize("name", MODELS)
def test_three_steps_follow_the_model(name: str) -> None:
    """The optimizer sees the parameters themselves, wherever they are."""
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model, x = make().train(), inputs()

    lowered = least(model, x, Training(2))
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.01) for each in (model, lowered)]
    for _ in range(3):
        for module, optimizer in zip((model, lowered), optimizers, strict=True):
            optimizer.zero_grad()
            module(x).square().mean().backward()
            optimizer.step()

    state = lowered.state_dict()
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[key].cpu()) for key, tensor in model.state_dict().items())


def test_the_optimizer_keeps_nothing_on_the_device_for_what_is_loaded() -> None:
    """Its slots are four times as much as the device has."""
    lowered = lower(Mlp(8, 64), (torch.randn(4, 64),), devices=[device(180 * KiB)], offload="cpu", training=Training(2))

    (row,) = lowered.report.devices
    stays = 8 - len(loaded(lowered)) // 2
    assert row.budget_bytes < 4 * 8 * LAYER
    assert 0 < stays < 8
    assert stays * LAYER == row.parameter_bytes
    assert stays * LAYER <= row.gradient_bytes <= (stays + 2) * LAYER
    assert 2 * stays * LAYER + 4 * 2 * stays <= row.optimizer_bytes


def test_the_optimizer_steps_where_a_weight_stays_that_another_device_loads() -> None:
    """The first device to use it loads it; the second has it all the time, and so what the optimizer keeps for it."""
    torch.manual_seed(0)
    model, x, size = Again(), torch.randn(2, 64), 64 * 64 * 4
    pinned = {"outer/linear#0": "left", "inner": "left", "outer/linear#1": "right", "last": "right"}
    devices = [Device("left", torch_device="cpu:1"), Device("right", torch_device="cpu:2")]
    planned = place(model, (x,), devices=devices, pinned=pinned, training=Training(2, step_slots=0))
    written = planned.plan.to_json()
    written["parts"][0]["offload"] = "cpu"

    lowered = lower(model, (x,), plan=Plan.from_json(written))

    left, right = lowered.report.devices
    lives = {str(node.target): DEVICE.read(node) for node in lowered.graph.find_nodes(op="get_attr")}
    assert {"outer.weight": "right", "inner.weight": "main memory"} == lives
    assert 0 == left.optimizer_bytes
    assert 2 * (2 * size + 4) == right.optimizer_bytes
    assert torch.equal(model(x), lowered(x))


def test_the_step_counts_what_it_loads_again_and_sends_back() -> None:
    """A first layer has nothing before it that wants a gradient, so its weight is not read again."""
    planned = place(Mlp(4, 64), (torch.randn(4, 64),), devices=[device(70 * KiB)], offload="cpu", training=Training(0))

    (row,) = planned.summary.devices
    assert 4 == len(planned.plan.offloaded)
    assert 4 * LAYER * 2 + 3 * 64 * 64 * 4 == row.traffic_bytes
    assert 0 < row.loading_ms < row.estimated_ms


def test_loads_and_gradients_are_on_the_timeline() -> None:
    """Each backward waits for what it loads, and what it makes of it goes back after it; the first needs no weight."""
    planned = place(Mlp(4, 64), (torch.randn(4, 64),), devices=[device(70 * KiB)], offload="cpu", training=Training(0))

    timeline = planned.simulate(overlap="none").timeline
    backward = {span.name: span for span in timeline.spans if span.kind == "backward"}
    turn = max(span.end for span in timeline.spans if span.kind == "forward")
    again = [span for span in timeline.spans if span.track == "main memory → small" and span.start >= turn]
    back = [span for span in timeline.spans if span.track == "small → main memory"]
    assert ("small", "small_1", "small_2", "small_3") == planned.plan.offloaded
    for number, part in enumerate(planned.plan.offloaded):
        weight, bias = f"layers.{number}.weight", f"layers.{number}.bias"
        assert (number > 0) == any(span.name == weight and span.end <= backward[part].start + 1e-12 for span in again)
        for name in (weight, bias):
            assert any(span.name == name and span.start >= backward[part].end - 1e-12 for span in back)
    assert planned.summary.devices[0].peak_bytes == timeline.peak("small")
    assert planned.simulate(overlap="copies").seconds == pytest.approx(planned.plan.predicted["objective_value"])


def test_a_plan_for_training_with_loads_is_followed() -> None:
    """It is written, read and followed; the file says both."""
    torch.manual_seed(0)
    model, x = Mlp(4, 64), torch.randn(4, 64)
    planned = place(model, (x,), devices=[device(70 * KiB)], offload="cpu", training=Training(0))

    plan = Plan.from_json(planned.plan.to_json())
    lowered = lower_with_plan(planned.program, plan)

    assert plan == planned.plan
    assert Training(0) == plan.training
    assert plan.offloaded
    assert planned.summary.devices[0].peak_bytes == lowered.report.devices[0].peak_bytes
    assert torch.equal(model(x), lowered(x))


def test_a_device_map_is_kept_and_parts_of_a_device_that_is_too_small_are_offloaded() -> None:
    """For running the model both devices are large enough, for training it one is not."""
    model, x = Mlp(4, 64), torch.randn(2, 64)
    halves = {"layers.0": "small", "layers.1": "small", "": "large"}
    devices: list[Any] = [device(60 * KiB), Device("large", torch_device="cpu:2")]

    running = lower(model, (x,), devices=devices, device_map=halves, offload="cpu")
    lowered = lower(model, (x,), devices=devices, device_map=halves, offload="cpu", training=Training(2))

    assert () == running.plan.offloaded
    assert lowered.plan.offloaded
    assert {"small"} == {lowered.plan.device_of[part].name for part in lowered.plan.offloaded}
    assert lowered.report.devices[0].peak_bytes <= 60 * KiB


def test_what_is_too_small_even_so_is_told() -> None:
    with pytest.raises(InfeasibleError) as failure:
        lower(Mlp(4, 64), (torch.randn(2, 64),), devices=[device(30 * KiB)], offload="cpu", training=Training(2))

    message = str(failure.value)
    assert message.startswith("small has 30.0 KiB, which is ")
    assert "the parameters of two parts that follow each other and their gradients must fit" in message


@pytest.mark.parametrize("devices", [1, 2])
def test_a_backward_is_traced_once(monkeypatch: pytest.MonkeyPatch, devices: int) -> None:
    """However often the model is placed until its budgets hold."""
    plain, traced = training_steps.trace_backward, []

    def counted(graph_module: GraphModule) -> BackwardNeeds:
        traced.append(graph_module)
        return plain(graph_module)

    monkeypatch.setattr(training_steps, "trace_backward", counted)
    small = [Device(name, 6 * LAYER) for name in "ab"[:devices]]
    planned = place(Mlp(8, 64), (torch.randn(4, 64),), devices=small, offload="cpu", training=Training(2))

    assert planned.plan.offloaded
    assert 1 == len(traced)
