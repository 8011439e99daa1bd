"""Lowering for training: budgets, real steps beside eager ones, what is really allocated, and what is refused."""

from __future__ import annotations

import copy
import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from allocated_by_device import AllocatedByDevice
from lowering_models import Crossing, Mlp, Tied
from torch import Tensor, nn

from fxpasses import (
    Device,
    InfeasibleError,
    InputError,
    Link,
    LoweredModule,
    PlacementError,
    Plan,
    PlanError,
    Topology,
    load,
    lower,
    place,
    save,
)
from fxpasses.lowering import lower_with_plan
from fxpasses.lowering.preparing import prepare
from fxpasses.partitioners import Training, predict_training_memory
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.device_runs import runs_of
from fxpasses.report.page import render_page
from fxpasses.units import KiB

ARGS = (torch.randn(2, 64),)


class Loss(nn.Module):
    """A model with its loss: what a training step computes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        made = self.model(x)
        made = getattr(made, "logits", made)
        return nn.functional.cross_entropy(made.flatten(0, -2), target.flatten())


class CrossingLoss(Crossing):
    """The same with one number as its result."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).pow(2).mean()


def resnet() -> tuple[nn.Module, tuple[Tensor, ...]]:
    from examples.resnet import training_model

    model, (images,) = training_model()
    return Loss(model), (images, torch.randint(0, 10, (images.shape[0],)))


def llama() -> tuple[nn.Module, tuple[Tensor, ...]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 128}
    model = LlamaForCausalLM(LlamaConfig(num_attention_heads=4, use_cache=False, **sizes))
    tokens = torch.randint(0, 128, (4, 33))
    return Loss(model).train(), (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(module.parameters(), foreach=True)


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters())


def peaks(lowered: Any) -> dict[str, int]:
    return {row.name: row.peak_bytes for row in lowered.report.devices}


def gradients(lowered: LoweredModule) -> dict[str, Tensor | None]:
    return {lowered.qualified_names.get(name, name): tensor.grad for name, tensor in lowered.named_parameters()}


def equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)


def two(bytes_each: int, *, is_fake: bool = False) -> list[Device]:
    return [Device(name, bytes_each, is_fake=is_fake) for name in ("left", "right")]


@pytest.mark.parametrize(("slots", "optimizer"), [(2, adam), (0, sgd)], ids=["adam", "sgd"])
@pytest.mark.parametrize(
    ("make", "is_fake", "share"),
    [(resnet, True, 0.65), (llama, True, 0.65), (llama, False, 0.65), (resnet, False, 0.75)],
    ids=["resnet", "llama", "llama, kernels", "resnet, kernels"],
)
def test_a_real_training_step_on_two_devices_takes_what_was_predicted(
    make: Callable[[], tuple[nn.Module, tuple[Tensor, ...]]],
    is_fake: bool,
    share: float,
    slots: int,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer],
) -> None:
    """Gradients equal those of the model; each device never holds more than predicted, and at most a tenth less."""
    torch.manual_seed(0)
    model, args = make()
    eager = copy.deepcopy(model)
    only = [Device("only", is_fake=is_fake)]
    budget = int(share * peaks(lower(model, args, devices=only, training=Training(slots)))["only"])

    lowered = lower(model, args, devices=two(budget, is_fake=is_fake), training=Training(slots))
    stepping = optimizer(lowered)
    eager(*args).backward()
    lowered(*args).backward()
    found = gradients(lowered)
    assert all(equal(parameter.grad, found[name]) for name, parameter in eager.named_parameters() if name in found)
    stepping.step()
    stepping.zero_grad()
    with AllocatedByDevice(lowered, args, stepping) as allocated:
        lowered(*args).backward()
        stepping.step()

    predicted = peaks(lowered)
    assert {"left", "right"} == allocated.total.keys()
    for device, real in allocated.total.items():
        assert real <= predicted[device] <= min(budget, 1.1 * real)


class UsedElsewhere(nn.Module):
    """A value that two layers read, and three functions beside the second one, of which the first needs much back."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.other = (nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return (self.one(x) * (x.logcumsumexp(-1) + self.other(x) + x.exp() + x.tanh())).mean()


def test_gradients_that_come_from_several_devices_are_added_in_place() -> None:
    """Each sum counted beside all that is added up: up to a third was too much."""
    model, args = UsedElsewhere(), (torch.randn(2000, 32),)
    devices = [Device(name, is_fake=True) for name in ("left", "middle", "right")]
    device_map = {"first": "left", "one": "middle", "": "right"}
    lowered = lower(model, args, devices=devices, device_map=device_map, training=Training(0))

    with AllocatedByDevice(lowered, args, sgd(lowered)) as allocated:
        lowered(*args).backward()

    predicted = peaks(lowered)
    assert {"left", "middle", "right"} == allocated.total.keys()
    for device, real in allocated.total.items():
        assert real <= predicted[device] <= 1.1 * real


def test_a_budget_in_which_the_model_runs_and_cannot_be_trained() -> None:
    """Inference fits; for training it is said by how many bytes it does not, and at which operator."""
    whole, budget = 4 * (64 * 64 + 64) * 4, 60 * KiB

    assert lower(Mlp(), ARGS, devices=two(budget)).report.devices[0].peak_bytes <= budget
    with pytest.raises(InfeasibleError) as failure:
        lower(Mlp(), ARGS, devices=two(budget), training=Training(2))

    assert 5 * whole - 2 * budget == failure.value.missing_bytes
    assert "linear_1" == failure.value.node.name
    assert (
        "A training step needs 325 KiB while the optimizer steps (parameters, gradients, 2 values kept for each "
        "trained element), but all devices together have 120 KiB (left 60.0 KiB, right 60.0 KiB): 205 KiB are missing."
        " linear_1 (aten.linear.default) is the first operator whose parameters do not fit. A smaller batch, or an "
        'optimizer that keeps less, needs less. Or allow offload="cpu": parameters that find no place then stay in '
        "main memory."
    ) == str(failure.value)


def test_an_operator_that_no_device_can_hold_while_its_parameters_step() -> None:
    """All devices together would have enough; whatever runs where, one of them lacks the bytes."""
    layer = (64 * 64 + 64) * 4
    made = 2 * 64 * 64 * 4 + 64 * 4 + 12  # for the weight two, for the bias one, and a rate of learning
    need = layer * 4 + made + 2 * 4  # with gradients, two values kept, and steps

    with pytest.raises(InfeasibleError) as failure:
        lower(Mlp(), ARGS, devices=[Device(name, need - 1) for name in "abcd"], training=Training(2))

    assert 1 == failure.value.missing_bytes
    assert "linear" == failure.value.node.name
    assert str(failure.value).startswith(
        "linear (aten.linear.default) needs 97.3 KiB on one device while the optimizer steps (parameters, gradients, 2 "
        "values kept for each trained element), but the largest device has 97.3 KiB: 1 B are missing."
    )
    lower(Mlp(), ARGS, devices=[Device(name, need + 4 * KiB) for name in "abcd"], training=Training(2))


@pytest.mark.parametrize(
    ("rows", "slots", "budget", "lacking"),
    [
        (2, 2, 165, "lacks 14.0 KiB on right, while the optimizer steps, and the largest parameters there are those "
                    "of linear_2 (aten.linear.default)."),
        (4096, 0, 4200, "lacks 985 KiB on right, in the backward of linear_3 (aten.linear.default)."),
    ],
)  # fmt: skip
def test_where_none_was_found_the_error_says_what_lacks_where(rows: int, slots: int, budget: int, lacking: str) -> None:
    """Bytes, device, and the operator at which the nearest placement is fullest."""
    with pytest.raises(PlacementError) as failure:
        lower(Mlp(), (torch.randn(rows, 64),), devices=two(budget * KiB), training=Training(slots))

    assert lacking in str(failure.value)
    assert failure.value.node.name in lacking


def test_a_training_plan_is_saved_loaded_and_followed(tmp_path: Path) -> None:
    """The training is part of the plan: the report of what is loaded or replayed tells the same bytes."""
    lowered = lower(Mlp(), ARGS, devices=two(200 * KiB), training=Training(2, step_slots=1))
    save(lowered, tmp_path / "model")
    loaded = load(tmp_path / "model")
    again = lower(Mlp(), ARGS, plan=Plan.from_json(json.loads(json.dumps(lowered.plan.to_json()))))

    assert {"optimizer_slots": 2, "step_slots": 1} == lowered.plan.to_json()["training"]
    assert Training(2, step_slots=1) == loaded.plan.training == again.plan.training == lowered.report.training
    assert lowered.report.devices == loaded.report.devices == again.report.devices


def test_a_plan_is_followed_for_another_training() -> None:
    plan = place(Mlp(), ARGS, devices=two(200 * KiB)).plan

    planned = place(Mlp(), ARGS, plan=plan, training=Training(0))
    with pytest.raises(PlanError) as failure:
        place(Mlp(), ARGS, plan=plan, training=Training(20))

    assert None is plan.training
    assert Training(0) == planned.plan.training
    assert "while the optimizer steps" in str(failure.value)
    assert "training" not in plan.to_json()


def test_the_report_splits_the_memory_of_a_step() -> None:
    """All kinds add up to the peak, and so do the bytes of the plan."""
    planned = place(Mlp(), (torch.randn(512, 64),), devices=two(900 * KiB), objective="throughput", training=Training())
    memory = predict_training_memory(
        planned.graph_module, planned.assignment, planned.plan.device_of, Training(), needs=planned.step.needs
    )

    for row in planned.summary.devices:
        split = row.parameter_bytes + row.gradient_bytes + row.optimizer_bytes + row.activation_bytes
        assert split == row.peak_bytes == memory[row.name].peak <= 900 * KiB
        assert row.most_saved_bytes >= row.saved_bytes > 0
        assert row.peak_when == "in the backward"
        assert planned.plan.predicted["devices"][row.name]["saved_bytes"] == row.saved_bytes
    full = place(Mlp(), ARGS, devices=[Device("only")], training=Training()).summary.devices[0]
    result = 2 * 64 * 4
    assert (result, "while the optimizer steps") == (full.saved_bytes, full.peak_when)
    assert 4 * result == full.most_saved_bytes
    page = render_page(planned.report(advice=False))
    assert "<h2>Memory of a training step</h2>" in page
    assert "saved for the backward" in page
    assert "saved for the backward" not in render_page(place(Mlp(), ARGS, devices=two(90 * KiB)).summary)


def test_the_reason_counts_what_the_whole_model_would_need_to_be_trained() -> None:
    """Not only what running it needs, which would fit."""
    planned = place(Mlp(), ARGS, devices=two(200 * KiB), training=Training(2))
    reason = planned.summary.reasons["layers.0/linear#0"]

    assert reason.startswith("left on left: the whole model (327 KiB) does not fit left; it ends before ")


def test_advice_asks_the_changed_machine_for_the_same_training() -> None:
    """More memory helps a training step, and nothing for running the model, which fits as it is."""
    slow = Device("slow", 400 * KiB, flops=1e9, bandwidth=1e9, overhead=0)
    uneven = [Device("fast", 150 * KiB, flops=9e9, bandwidth=9e9, overhead=0), slow]
    training = place(Mlp(), ARGS, devices=uneven, objective="throughput", training=Training(2)).report().advice
    running = place(Mlp(), ARGS, devices=uneven, objective="throughput").report().advice

    assert "memory" in [advice.what for advice in training]
    assert "memory" not in [advice.what for advice in running]
    alone = place(Mlp(), ARGS, devices=[Device("only")], training=Training(2)).report().advice
    assert "one training step would take" in alone[0].sentence()


def test_replicas_are_trained_like_the_model() -> None:
    """What two devices compute, each for itself, has the model's gradients, and counts in the step of both."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            mask = torch.arange(256)[:, None] >= torch.arange(256)[None]
            for layer in self.layers:
                x = layer(x).relu() * mask
            return x.sum()

    torch.manual_seed(0)
    model, args = Masked(), (torch.randn(256, 256),)
    lowered = lower(
        model,
        args,
        devices=two(20_000 * KiB),
        links=[Link("left", "right", 1e9)],
        pinned={"layers.1": "left", "layers.2": "right"},
        training=Training(),
    )
    eager = copy.deepcopy(model)
    eager(*args).backward()
    lowered(*args).backward()
    again = lower(Masked(), args, plan=lowered.plan)

    assert [row.part for row in lowered.report.replicas]
    found = gradients(lowered)
    assert all(equal(parameter.grad, found[name]) for name, parameter in eager.named_parameters())
    assert peaks(lowered) == peaks(again)


def test_what_is_written_in_place_stays_together_in_training_too() -> None:
    """Wherever the loads would cut a residual net, its plan tears nothing apart: it can be followed and simulated."""
    model, args = resnet()

    for share in (0.9, 0.6):
        devices = [Device("left", flops=1e11), Device("right", flops=share * 1e11)]
        planned = place(model, args, devices=devices, objective="throughput", training=Training())

        assert {"left", "right"} == {part.device for part in planned.plan.parts}
        assert [] == planned.plan.check(planned.program)
        assert planned.plan.simulate(planned.program).seconds > 0


def test_a_device_map_keeps_the_budgets_of_training() -> None:
    halves = {"layers.0": "left", "": "right"}

    lowered = lower(Mlp(), ARGS, devices=two(400 * KiB), device_map=halves, training=Training(2))
    with pytest.raises(InfeasibleError) as failure:
        lower(Mlp(), ARGS, devices=two(200 * KiB), device_map=halves, training=Training(2))

    assert Training(2) == lowered.plan.training
    assert (
        "The device map puts 245 KiB on right (parameters 48.8 KiB, gradients 48.8 KiB, optimizer 146 KiB, saved 512 B,"
        " activations 512 B), which has 200 KiB: 44.8 KiB are missing; give some of its modules to another device, "
        'train with a smaller batch, or allow offload="cpu".'
    ) == str(failure.value)


def test_tied_weights_on_two_devices_are_trained_once() -> None:
    torch.manual_seed(0)
    model, args = Tied(), (torch.randint(0, 50, (16, 32)),)
    pins = {"embed": "left", "head": "right"}

    lowered = lower(model, args, devices=two(2000 * KiB), objective="throughput", pinned=pins, training=Training())
    eager = copy.deepcopy(model)
    eager(*args).sum().backward()
    lowered(*args).sum().backward()

    found = gradients(lowered)
    assert all(equal(parameter.grad, found[name]) for name, parameter in eager.named_parameters() if name in found)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"training": "adam"},
            "training is a Training, not 'adam'; for Adam write Training(optimizer_slots=2), for SGD without momentum "
            "Training(optimizer_slots=0).",
        ),
    ],
)
def test_what_training_cannot_be_planned_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as failure:
        place(Mlp(), ARGS, devices=two(200 * KiB), **options)

    assert sentence == str(failure.value)


def test_a_model_that_trains_nothing_is_refused() -> None:
    with pytest.raises(InputError) as failure:
        place(Mlp().requires_grad_(False), ARGS, devices=two(200 * KiB), training=Training())

    assert (
        "There is nothing to train: no result of the model depends on a parameter that requires a gradient. Call "
        "requires_grad_() on what is to be trained, without no_grad in its forward; or leave `training` out."
    ) == str(failure.value)


def test_values_that_several_devices_use_have_a_gradient_on_each() -> None:
    """Wherever operators are: the sum of each device's own uses, and at home the sums that come back."""
    torch.manual_seed(0)
    model, args = CrossingLoss(), (torch.randn(256, 32),)
    prepared = prepare(model, args)
    figures = GraphFigures.of(prepared.graph_module)
    names = ("left", "middle", "right")
    topology = Topology([Device(name) for name in names])

    for seed in range(8):
        draw = random.Random(seed)
        runs = runs_of(prepared.graph_module, {node: draw.choice(names) for node in figures.nodes})
        device_of = {part: topology[name] for part, name in runs.device_of.items()}
        plan = Plan.of("crossing", "latency", topology, runs.assignment, device_of, training=Training(0))
        lowered = lower_with_plan(prepared.program, plan)
        with AllocatedByDevice(lowered, args, sgd(lowered)) as allocated:
            lowered(*args).backward()
        predicted = peaks(lowered)

        assert all(real <= predicted[device] + 8 for device, real in allocated.total.items())  # scalars aside


class Picking(nn.Module):
    """Two layers, and between them something whose size the data say."""

    def __init__(self, pick: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.pick = nn.Linear(64, 64), nn.Linear(64, 64), pick

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.pick(self.first(x))).pow(2).sum()


def scaled_by_a_count(y: Tensor) -> Tensor:
    return y * torch.unique((y[:, 0] * 3).int()).shape[0]


def as_many_as_counted(y: Tensor) -> Tensor:
    count = (y[:, 0] > -1e9).sum().item()
    torch._check(count >= 1)
    torch._check(count <= 128)
    return y.narrow(0, 0, count)  # type: ignore[arg-type]  # a number


@pytest.mark.parametrize(
    "pick",
    [
        lambda y: y[y[:, 0] > -1e9],
        lambda y: y[:, y[0] > -1e9].sum(1, keepdim=True).expand(128, 64),
        lambda y: y[(y[:, 0] > -1e9).nonzero().squeeze(1)],
        scaled_by_a_count,
        as_many_as_counted,
    ],
    ids=["mask", "second dimension", "nonzero", "unique", "item"],
)
@pytest.mark.parametrize("is_fake", [True, False], ids=["fake", "kernels"])
@pytest.mark.parametrize("devices", [1, 2])
def test_sizes_that_data_say_count_at_their_most(pick: Callable[[Tensor], Tensor], devices: int, is_fake: bool) -> None:
    """Autograd is asked on tensors without data, which have no such sizes; the models were refused."""
    model, x, other = Picking(pick), torch.randn(128, 64), torch.randn(128, 64)
    pair = [Device(name, is_fake=is_fake) for name in ("left", "right")[:devices]]
    lowered = lower(
        copy.deepcopy(model), (x,), devices=pair, objective="memory", training=Training(optimizer_slots=0, step_slots=0)
    )
    optimizer = torch.optim.SGD(lowered.parameters(), lr=1e-3, foreach=False)
    for each in (model, lowered):
        each(other).backward()
    found = gradients(lowered)

    assert all(equal(parameter.grad, found[name]) for name, parameter in model.named_parameters())
    optimizer.zero_grad()
    with AllocatedByDevice(lowered, (x,), optimizer) as tracked:
        lowered(x).backward()
        optimizer.step()
    # what is only counted, on another device, is thought to have a gradient; one that is one number repeated counts
    # twice, as a kernel copies it, but is dense once it is sent
    is_repeated = pick is scaled_by_a_count and devices == 2
    more = 1.2 if (pick is as_many_as_counted or is_repeated) and not is_fake else 1.1
    for row in lowered.report.devices:
        assert tracked.total[row.name] <= row.peak_bytes <= more * tracked.total[row.name]


def test_a_size_that_nobody_can_know_is_told_in_one_sentence() -> None:
    @torch.library.custom_op("fxpasses_tests::positive", mutates_args=())
    def positive(x: Tensor) -> Tensor:
        return x[x > 0]

    @positive.register_fake
    def _(x: Tensor) -> Tensor:
        return x.new_empty(torch.library.get_ctx().new_dynamic_size())

    model = Picking(lambda y: positive(y).sum() * torch.ones(2, 64))
    with pytest.raises(PlacementError) as failure:
        lower(model, (torch.randn(128, 64),), devices=two(2000 * KiB), training=Training())

    assert (
        "What the backward pass needs is not known, as an operator cannot run without data: the size of what "
        "fxpasses_tests.positive.default gives depends on data. Plan without training; budgets then count the forward "
        "pass only."
    ) == str(failure.value)


class Checked(nn.Module):
    """Asks its inputs whether they are as they have to be: the answer is a number that can be one only."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        torch._check((mask > 0).all().item())
        count = mask.sum().item()
        torch._check(count == 3)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.sum() * count


def test_models_that_check_their_inputs_are_placed_for_training() -> None:
    model, args = Checked(), (torch.randn(8, 64), torch.ones(3, dtype=torch.long))
    needed = peaks(lower(model, args, devices=[Device("only")], training=Training()))["only"]

    lowered = lower(copy.deepcopy(model), args, devices=two(int(0.6 * needed)), training=Training())

    model(*args).backward()
    lowered(*args).backward()
    found = gradients(lowered)
    assert all(equal(parameter.grad, found[name]) for name, parameter in model.named_parameters())
    with pytest.raises(RuntimeError, match="assertion failed"):
        lowered(args[0], torch.zeros(3, dtype=torch.long))


class Halves(nn.Module):
    """Two layers write their results into what was made for both."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        made = self.a(x)
        both = torch.zeros(8, 16)
        both[:, :8] = self.b(made)
        both[:, 8:] = self.c(made)
        result: Tensor = self.d(both)
        return result


@pytest.mark.parametrize("homes", list(itertools.product("lr", repeat=4)), ids="".join)
def test_writes_to_slices_have_gradients_wherever_they_run(homes: tuple[str, ...]) -> None:
    """No slice is taken before the write that makes what it is taken from need a gradient."""
    model, x = Halves(), torch.randn(8, 8)
    model(x).sum().backward()
    pins = dict(zip("abcd", homes, strict=True))
    lowered = lower(copy.deepcopy(model), (x,), devices=[Device("l"), Device("r")], pinned=pins)
    lowered.zero_grad()

    lowered(x).sum().backward()

    found = dict(lowered.named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(found[name].grad, parameter.grad)


class SplitAsDataSay(nn.Module):
    """Pieces whose sizes are data, and what is repeated as often as data say; their sizes are related."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        sizes = counts[:2].tolist()
        for size in sizes:
            torch._check(size >= 0)
            torch._check(size <= 12)
        one, other = torch.split(self.first(x), sizes)
        torch._check(sizes[0] + sizes[1] <= 12)
        return one.sum() - other.square().mean() + self.second(x.repeat_interleave(counts, 0)).sum()


class Selected(nn.Module):
    """Attention among the rows that a mask picks, whose number is data: views of them, dense and transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.second = nn.MultiheadAttention(8, 2), nn.Linear(8, 8)

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        picked = x[counts > 0]
        seen = self.attention(picked, picked, picked)[0]
        return (self.second(seen) + nn.functional.logsigmoid(picked.t()).t().reshape(-1, 4, 2).flatten(1)).sum()


@pytest.mark.parametrize("model", [SplitAsDataSay, Selected])
@pytest.mark.parametrize("training", [None, Training(optimizer_slots=1)])
def test_sizes_that_data_say_are_placed_split_and_trained(model: type[nn.Module], training: Training | None) -> None:
    """What was said: "cannot run without data", "Runtime assertion failed", and that sizes cannot be guarded on."""
    expected, args = model(), (torch.randn(12, 8), torch.tensor([5, 7] + [0, 1] * 5))
    mine = copy.deepcopy(expected)
    first = "first" if hasattr(mine, "first") else "attention"

    lowered = lower(
        mine,
        args,
        devices=[Device("left"), Device("right")],
        pinned={first: "left", "second": "right"},
        training=training,
    )

    for counts in (args[1], torch.tensor([11, 1] + [2, 0] * 5)):
        outputs = [each(args[0], counts) for each in (expected, lowered)]
        torch.testing.assert_close(outputs[1], outputs[0])
        for output in outputs:
            output.backward()
    for name, parameter in expected.named_parameters():
        torch.testing.assert_close(lowered.get_parameter(name).grad, parameter.grad)
