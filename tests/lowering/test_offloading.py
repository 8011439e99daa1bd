"""A model that is too large for all devices together: parameters are loaded one part ahead, budgets are kept."""

from __future__ import annotations

import contextlib
import copy
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import attrs
import pytest
import torch
from allocations import AllocatedBytes, allocated_peak
from fake_streams import LateStreams
from lowering_models import KeyValueCache, Mlp
from torch import nn
from torch.autograd import forward_ad
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from fxpasses import Device, InfeasibleError, InputError, LoweredModule, PlacementError, Training, lower, place
from fxpasses.lowering import lower_with_plan
from fxpasses.partitioners import offloading
from fxpasses.partitioners.costs.parameter_loads import ParameterUses
from fxpasses.partitioners.placing.device_placements import DevicePlacement
from fxpasses.partitioners.placing.measured_graphs import MeasuredGraph
from fxpasses.partitioners.placing.requests import Request
from fxpasses.passes import placement
from fxpasses.passes.placement import copies_of, loads_of
from fxpasses.passes.placing_parts.copies import LOAD_OF
from fxpasses.plan import Plan
from fxpasses.units import KiB

LAYER = 64 * 65 * 4
"""Bytes of one layer of ``Mlp``."""


class Decoder(nn.Module):
    """Layers, then one step with a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Mlp(6, 16)
        self.cache = KeyValueCache()

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        return self.cache(self.body(x), position)


class DeepTied(nn.Module):
    """An embedding and an output layer with one weight, far apart."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.body = Mlp(6, 32)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(ids)))


class Normed(nn.Module):
    """Residual layers with a norm whose statistics are written, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x).relu()
        return x.square().mean()


class Thrice(nn.Module):
    """A layer that is used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.layer(self.layer(x).tanh()).relu())


class Scaled(nn.Module):
    """A layer, and a constant that its forward makes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(x) * torch.tensor(3.0)
        return result


def small(model: nn.Module, *args: Any, budget: int | None = 60 * KiB, **options: Any) -> LoweredModule:
    return lower(model, args, devices=[Device("small", budget)], offload="cpu", **options)


def loaded_on(lowered: LoweredModule) -> dict[str, int]:
    return {row.name: row.loaded_bytes for row in lowered.report.devices}


def assert_gradients_agree(model: nn.Module, other: nn.Module) -> None:
    expected = {name: p.grad for name, p in model.named_parameters()}
    actual = {name: p.grad for name, p in other.named_parameters()}
    assert expected.keys() == actual.keys()
    for name, gradient in expected.items():
        assert gradient is not None
        assert torch.equal(gradient, actual[name])


def test_a_model_too_large_for_all_devices_runs_and_keeps_every_budget() -> None:
    model, x = Mlp(8), torch.randn(2, 64)

    lowered = lower(
        model, (x,), devices=[Device("left", 50 * KiB), Device("right", 60 * KiB)], offload="cpu", check=True
    )

    assert lowered.report.check is not None
    assert lowered.report.check.exact
    assert any(row.loaded_bytes for row in lowered.report.devices)
    for row in lowered.report.devices:
        assert row.budget_bytes is not None
        assert row.peak_bytes <= row.budget_bytes


def test_a_model_that_fits_is_not_offloaded() -> None:
    """The permission costs nothing: nothing is loaded, and the graph is the one without it."""
    model, x = Mlp(2), torch.randn(2, 64)
    devices = [Device("small", 60 * KiB)]

    lowered = lower(model, (x,), devices=devices, offload="cpu")

    assert [] == loads_of(lowered)
    assert {"small": 0} == loaded_on(lowered)
    assert lower(model, (x,), devices=devices).code == lowered.code


def test_loaded_parameters_are_never_more_than_those_of_two_parts() -> None:
    """What is really allocated on the device stays within the budget, and the prediction is close."""
    model, x = Mlp(8), torch.randn(2, 64)
    lowered = small(model, x)
    (row,) = lowered.report.devices
    known = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), x)}

    with torch.no_grad(), AllocatedBytes(known) as allocated:
        lowered(x)

    real = allocated.peak + row.parameter_bytes
    assert 2 * LAYER == row.loaded_bytes
    assert real <= row.peak_bytes <= 60 * KiB
    assert row.peak_bytes <= 1.1 * real


def test_each_part_is_loaded_while_the_one_before_it_runs() -> None:
    lowered = small(Mlp(8), torch.randn(2, 64))
    names = [node.name for node in lowered.graph.nodes]

    assert names.index("small") < names.index("layers_2_weight_to_small") < names.index("small_1")
    assert names.index("layers_1_weight_to_small") < names.index("small")


def test_as_many_parameters_stay_as_fit() -> None:
    """A device with twice the memory loads less."""
    model, x = Mlp(8), torch.randn(2, 64)
    traffic = [small(model, x, budget=budget).report.devices[0].traffic_bytes for budget in (40 * KiB, 80 * KiB)]

    assert 8 * LAYER == traffic[0]
    assert 6 * LAYER >= traffic[1]


class Steps(nn.Module):
    """Six layers, all of them for each of some steps, as cells of a recurrent net."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            for cell in self.cells:
                x = cell(x).tanh()
        return x


@pytest.mark.parametrize("layers", [4.25, 5.25])
def test_parts_that_use_the_same_parameters_keep_no_more_than_fits(layers: float) -> None:
    """Fewer parts that stay may be those of more parameters: every fifth of thirty uses all six layers."""
    model, x = Steps(), torch.randn(2, 64)
    lowered = small(model, x, budget=int(layers * LAYER))
    (row,) = lowered.report.devices

    assert row.peak_bytes <= (row.budget_bytes or 0)
    assert (int(layers) - 1) * LAYER <= row.parameter_bytes
    assert [] == lowered.plan.check(lowered.program)
    assert torch.equal(model(x), lowered(x))


def test_gradients_reach_the_parameters_themselves() -> None:
    """Nothing is trained on a copy: ``.grad`` is where it is without offloading."""
    model, x = Mlp(8), torch.randn(2, 64)
    reference = copy.deepcopy(model)
    lowered = small(model, x)

    reference(x).sum().backward()
    lowered(x).sum().backward()

    assert_gradients_agree(reference, model)


def test_three_steps_of_training_follow_the_model() -> None:
    """The optimizer changes the parameters in main memory, and the next run loads them."""
    model, x = Mlp(6), torch.randn(2, 64)
    reference = copy.deepcopy(model)
    lowered = small(model, x)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (reference, lowered)]

    for _ in range(3):
        losses = [each(x).square().sum() for each in (reference, lowered)]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert losses[0] == losses[1]
    for name, value in reference.state_dict().items():
        assert torch.equal(value, lowered.state_dict()[name])


def test_autograd_keeps_no_loaded_parameter() -> None:
    """What stays alive between forward and backward are activations, not the whole model."""
    model, x = Mlp(8), torch.randn(2, 64)
    lowered = small(model, x)
    known = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), x)}

    with AllocatedBytes(known) as allocated:
        result = lowered(x)
        allocated.peak = 0
        result = result * 1

    assert allocated.peak < LAYER
    assert result.requires_grad


def test_results_that_nobody_goes_back_from_are_freed() -> None:
    """Autograd keeps what an activation made, which must not keep its own history alive."""
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Sigmoid())))
    lowered = small(model, torch.randn(2, 64), budget=2 * LAYER + 8 * KiB)
    assert loads_of(lowered)

    result = lowered(torch.randn(2, 64))
    storage = StorageWeakRef(result.untyped_storage())
    del result

    assert storage.expired()


class ChangedAfterUse(nn.Module):
    """The sine needs what it is taken of for its backward, and that is changed."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Mlp(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.body(x)
        sine = found.sin()
        return found.add_(1) * sine


def test_a_value_that_was_changed_after_its_use_is_refused_as_without_offloading() -> None:
    """Torch checks no versions of what goes through hooks."""
    model, x = ChangedAfterUse(), torch.randn(2, 64)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        model(x).sum().backward()
    lowered = small(model, x, budget=2 * LAYER + 8 * KiB)
    assert loads_of(lowered)

    with pytest.raises(PlacementError) as error:
        lowered(x).sum().backward()

    assert str(error.value) == (
        "A value of shape (2, 64) that the backward pass needs was changed in place after its use, and its old values "
        "are gone; let the model clone it before the change."
    )


def test_functional_transformations_go_through_loads() -> None:
    """``torch.func`` refuses hooks for what autograd saves: there what is loaded is kept."""
    model, x = Mlp(6, 32).eval(), torch.randn(2, 32)
    lowered = small(model, x, budget=20 * KiB)

    assert loads_of(lowered)
    torch.testing.assert_close(torch.func.jacrev(model)(x), torch.func.jacrev(lowered)(x))
    torch.testing.assert_close(torch.func.vmap(model)(x[None]), torch.func.vmap(lowered)(x[None]))


def test_a_step_before_backward_is_refused_like_without_offloading() -> None:
    model, x = Mlp(6), torch.randn(2, 64)
    loss = small(model, x)(x).sum()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)

    with pytest.raises(ValueError, match="was changed in place between the forward pass and the backward pass"):
        loss.backward()


def test_a_parameter_that_gets_other_data_before_backward_is_refused() -> None:
    """Gradients were made with the new values, and nobody was told."""
    model, x = Mlp(6), torch.randn(2, 64)
    loss = small(model, x)(x).sum()
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(model.parameters()) + 1, model.parameters())

    with pytest.raises(PlacementError, match="was given other data between the forward pass and the backward pass"):
        loss.backward()


class Conjugated(nn.Module):
    """Complex weights, used as they are, conjugated, or with their imaginary part negated."""

    def __init__(self, used: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.used = used
        self.weights = nn.ParameterList(torch.randn(16, 16, dtype=torch.complex64) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = x * self.used(weight)
        return x


@pytest.mark.parametrize(
    "used",
    [torch.conj, lambda weight: weight.mH, lambda weight: weight.conj().imag, torch.real, torch.view_as_real],
    ids=["conjugated", "transposed", "negated", "real part", "pairs"],
)
def test_gradients_of_views_of_loaded_complex_parameters(used: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The backward loaded them without the conjugation: gradients were up to twice as large, and nobody was told."""
    torch.manual_seed(0)
    model = Conjugated(used)
    x = torch.randn(16, 16, dtype=torch.complex64)
    x = x[..., None].repeat(1, 1, 2) if used is torch.view_as_real else x
    reference = copy.deepcopy(model)
    whole = place(model, (x,), devices=[Device("only")]).summary.devices[0].peak_bytes
    lowered = small(model, x, budget=whole - KiB)

    for module in (reference, lowered):
        module(x).abs().square().sum().backward()

    assert lowered.plan.offloaded
    assert_gradients_agree(reference, model)


@pytest.mark.parametrize("view", ["transposed", "row", "as it is"])
def test_a_view_of_a_loaded_parameter_keeps_it_there_for_the_parts_that_use_it(view: str) -> None:
    """Loads were said to go with the part that makes the view; a third more than the budget was there."""

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList(torch.randn(64, 64) for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for weight in self.weights:
                used = {"transposed": weight.t(), "row": weight.unbind(0)[0][:, None].expand(64, 64)}
                x = x @ used.get(view, weight)
            return x

    model, x, kept = Layers(), torch.randn(8, 64), set[str]()
    for budget in range(90, 20, -8):
        try:
            lowered = small(copy.deepcopy(model), x, budget=budget * KiB)
        except InfeasibleError:
            break
        names = {str(node.all_input_nodes[0].target) for node in lowered.graph.nodes if LOAD_OF.has(node)}
        stay = sum(each.nbytes for name, each in lowered.named_parameters() if name not in names)
        with torch.no_grad():
            taken = stay + x.nbytes + allocated_peak(lambda lowered=lowered: lowered(x))
        (row,) = lowered.report.devices
        assert taken <= row.peak_bytes <= budget * KiB
        kept |= names
    assert kept


def test_state_that_is_written_stays_on_the_device() -> None:
    """A cache is not loaded: what a step writes the next one reads."""
    model = Decoder().eval()
    lowered = small(model, torch.randn(1, 1, 16), torch.tensor([0]), budget=9 * KiB)

    with torch.no_grad():
        for step in range(3):
            x, position = torch.randn(1, 1, 16), torch.tensor([step])
            assert torch.equal(model(x, position), lowered(x, position))
    assert loads_of(lowered)
    assert torch.equal(model.cache.keys, lowered.state_dict()["cache.keys"])
    assert not any("keys" in load.value or "values" in load.value for load in loads_of(lowered))


def test_tied_weights_are_one_parameter_that_is_loaded_where_it_is_used() -> None:
    """Complaint 25: the gradient of a tied weight is the sum over both uses."""
    model, ids = DeepTied(), torch.randint(0, 50, (2, 5))
    reference = copy.deepcopy(model)
    lowered = small(model, ids, budget=18 * KiB)

    reference(ids).sum().backward()
    lowered(ids).sum().backward()

    assert 2 == sum(load.size == model.embed.weight.numel() * 4 for load in loads_of(lowered))
    assert_gradients_agree(reference, model)


def test_what_parts_load_is_found_once_however_often_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for the loads and once for the memory; each choice of parts that stay asks for both."""
    asked: Counter[Any] = Counter()
    plain = ParameterUses._stretches

    def counted(self: ParameterUses, constant: Any, name: str) -> Any:
        asked[self, constant, name] += 1
        return plain(self, constant, name)

    monkeypatch.setattr(ParameterUses, "_stretches", counted)

    planned = place(Mlp(12, 64), (torch.randn(2, 64),), devices=[Device("small", 60 * KiB)], offload="cpu")

    assert planned.plan.offloaded
    assert max(asked.values()) <= 2


def test_a_weight_lives_on_the_first_device_that_keeps_it_for_some_part() -> None:
    """Its last part keeps it there, so nothing is loaded for the first one, and the other device gets a copy."""
    torch.manual_seed(0)
    model, x = Thrice(), torch.randn(2, 64)
    devices = [Device("left", torch_device="cpu:1"), Device("right", torch_device="cpu:2")]
    pinned = {"layer/linear#0": "left", "layer/linear#1": "right", "layer/linear#2": "left"}
    written = place(model, (x,), devices=devices, pinned=pinned, contiguity="free").plan.to_json()
    written["parts"][0]["offload"] = "cpu"

    lowered = lower(model, (x,), plan=Plan.from_json(written))

    sent = {(each.value, each.source, each.target) for each in copies_of(lowered) if each.value.startswith("layer")}
    assert {("layer_weight", "left", "right"), ("layer_bias", "left", "right")} == sent
    assert [] == loads_of(lowered)
    assert torch.equal(model(x), lowered(x))


def test_a_plan_says_which_parts_are_offloaded_and_is_replayed() -> None:
    model, x = Mlp(8), torch.randn(2, 64)
    lowered = small(model, x)
    plan = Plan.from_json(lowered.plan.to_json())

    again = lower_with_plan(lowered.program, plan)

    assert "cpu" in {part.offload for part in plan.parts}
    assert plan.parts == lowered.plan.parts
    assert torch.equal(model(x), again(x))
    assert loads_of(lowered) == loads_of(again)


def test_the_report_says_why_parameters_are_loaded() -> None:
    reasons = set(small(Mlp(8), torch.randn(2, 64)).report.reasons.values())

    assert (
        "small_1 on small: its parameters stay on the CPU and are loaded one part ahead: small has 60.0 KiB"
    ) in reasons
    assert "small on small: its parameters fit small beside those that are loaded" in reasons


def test_loads_are_spans_on_a_lane_of_their_own() -> None:
    """The load of a part begins with the part before it, is over when its own begins, and holds memory meanwhile."""
    planned = place(Mlp(8), (torch.randn(2, 64),), devices=[Device("small", 60 * KiB)], offload="cpu")
    (row,) = planned.summary.devices
    for overlap in ("none", "devices", "copies"):
        timeline = planned.simulate(overlap=overlap).timeline
        loads = timeline.on("main memory → small")
        parts = (
            timeline.on("small")
            if overlap == "copies"
            else [span for span in timeline.on("small") if span.kind == "compute"]
        )

        assert {"load"} == {span.kind for span in loads}
        assert 14 == len(loads)  # a weight and a bias of each of seven parts
        for index, part in enumerate(parts[1:8], 1):
            mine = [span for span in loads if span.name.startswith(f"layers.{index}.")]
            assert max(span.end for span in mine) <= part.start * (1 + 1e-9)
            assert min(span.start for span in mine) >= (parts[index - 2].end if index > 1 else 0) * (1 - 1e-9)
        assert row.peak_bytes == timeline.peak("small")


def test_loads_count_in_the_load_of_their_device_in_the_makespan_and_in_the_report() -> None:
    for objective in ("latency", "throughput"):
        devices = [Device("left", 50 * KiB), Device("right", 60 * KiB)]
        planned = place(Mlp(8), (torch.randn(2, 64),), devices=devices, offload="cpu", objective=objective)  # type: ignore[arg-type]
        summary, one = planned.summary, planned.simulate(overlap="none")
        overlapping = planned.simulate(overlap="copies")
        load = {row.name: row.estimated_ms / 1e3 for row in summary.devices}

        assert pytest.approx(summary.estimated_ms / 1e3) == one.seconds
        assert pytest.approx(load) == {name: one.timeline.busy(name) for name in load}
        assert pytest.approx(summary.devices[1].loading_ms / 1e3) == one.timeline.busy("main memory → right")
        assert overlapping.seconds < one.seconds
        expected = overlapping.seconds if objective == "latency" else max(load.values())
        assert pytest.approx(expected) == summary.objective_value
        assert any(event["cat"] == "load" for event in one.timeline.chrome_trace()["traceEvents"] if event["ph"] == "X")


def test_the_fullest_device_is_told_with_its_loads() -> None:
    devices = [Device("left", 40 * KiB), Device("right", 40 * KiB)]

    planned = place(Mlp(6), (torch.randn(2, 64),), devices=devices, offload="cpu", objective="memory")

    assert max(row.peak_bytes for row in planned.summary.devices) == planned.summary.objective_value <= 40 * KiB


def test_a_checkpoint_has_the_models_names_and_loads() -> None:
    model, x, other = Mlp(8), torch.randn(2, 64), Mlp(8)
    lowered = small(model, x)

    assert set(model.state_dict()) == set(lowered.state_dict())
    lowered.load_state_dict(other.state_dict())
    assert torch.equal(other(x), lowered(x))


def test_a_device_map_may_put_more_on_a_device_than_it_holds() -> None:
    """The map is kept; the parts of the device that is too small load their parameters."""
    model, x = Mlp(8), torch.randn(2, 64)
    devices = [Device("left", 60 * KiB), Device("right")]

    lowered = lower(model, (x,), devices=devices, device_map={"layers.7": "right", "": "left"}, offload="cpu")

    assert torch.equal(model(x), lowered(x))
    assert {"layers.7": "right", "": "left"} == lowered.plan.device_map() | {"": "left"}
    assert loaded_on(lowered)["left"] > 0
    assert 0 == loaded_on(lowered)["right"]


def test_loads_are_right_when_every_copy_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """On devices with streams loads overlap with computation, in forward and in backward."""
    streams = LateStreams()
    monkeypatch.setattr(placement, "streams_for", lambda _devices: streams)
    model, x = Mlp(8), torch.randn(2, 64)
    reference = copy.deepcopy(model)
    lowered = small(model, x)

    reference(x).sum().backward()
    lowered(x).sum().backward()
    with torch.no_grad():
        inferred = lowered(x)

    assert torch.equal(reference(x), inferred)
    assert streams.sent
    assert 0 == streams.lost
    assert_gradients_agree(reference, model)


def test_values_that_cross_are_still_copied_once() -> None:
    """Complaint 28: loads are no copies of values; those stay one for each value and device."""
    lowered = lower(
        Mlp(8), (torch.randn(2, 64),), devices=[Device("left", 50 * KiB), Device("right", 60 * KiB)], offload="cpu"
    )
    copies = copies_of(lowered)

    assert len(copies) == len({(copy_.value, copy_.target) for copy_ in copies})
    assert not any("weight" in copy_.value for copy_ in copies)


@pytest.mark.parametrize(
    "wishes",
    [
        {"pinned": {"layers.0": "right", "layers.7": "left"}},
        {"forbidden": {"layers.0": ["left"]}},
        {"colocate": [["layers.0", "layers.7"]], "contiguity": "free"},
    ],
    ids=["pinned", "forbidden", "together"],
)
def test_pins_forbidden_devices_and_groups_hold_where_parameters_are_offloaded(wishes: dict[str, Any]) -> None:
    """As they do without offloading, and within the budgets."""
    model, x = Mlp(8), torch.randn(2, 64)
    devices = [Device("left", 50 * KiB), Device("right", 50 * KiB)]

    lowered = lower(model, (x,), devices=devices, offload="cpu", objective="throughput", **wishes)

    where = lowered.plan.device_map(strict=False)
    assert lowered.plan.offloaded
    assert (where["layers.0"] == where["layers.7"]) == ("colocate" in wishes)
    assert "colocate" in wishes or where["layers.0"] == "right"
    assert all(row.peak_bytes <= 50 * KiB for row in lowered.report.devices)
    assert torch.equal(model(x), lowered(x))


def test_without_permission_the_error_names_the_option() -> None:
    with pytest.raises(
        InfeasibleError, match='Or allow offload="cpu": parameters that find no place then stay in main'
    ):
        lower(Mlp(8), (torch.randn(2, 64),), devices=[Device("small", 60 * KiB)])


def test_a_device_too_small_for_two_parts_says_by_how_much() -> None:
    with pytest.raises(InfeasibleError) as caught:
        small(Mlp(8), torch.randn(2, 64), budget=16 * KiB)

    least = (
        LAYER + 3 * 2 * 64 * 4
    )  # what comes in stays; a layer has nothing loaded beside it if its activation is apart
    assert str(caught.value).startswith("small has 16.0 KiB, which is 1.75 KiB too little even if all parameters stay")
    assert caught.value.missing_bytes == least - 16 * KiB
    assert small(Mlp(8), torch.randn(2, 64), budget=least) is not None


@pytest.mark.parametrize("budgets", [(0,), (0, 0), (0, 10_000)])
def test_devices_without_any_memory_are_too_small(budgets: tuple[int, ...]) -> None:
    with pytest.raises(PlacementError, match=r" too little even if all parameters stay on the CPU"):
        lower(
            Mlp(4),
            (torch.randn(2, 64),),
            devices=[Device(f"device{place}", size) for place, size in enumerate(budgets)],
            offload="cpu",
        )


def halves(model: nn.Module, x: torch.Tensor, share: float) -> LoweredModule:
    """Two devices, each with a share of what the model needs on one, for a training step."""
    training = Training(optimizer_slots=0)
    (alone,) = place(model, (x,), devices=[Device("all")], training=training).summary.devices
    devices = [Device(name, int(share * alone.peak_bytes)) for name in ("left", "right")]
    return lower(model, (x,), devices=devices, offload="cpu", training=training)


def test_two_devices_share_what_is_alive_where_neither_holds_it_with_all_parameters_away() -> None:
    """What is saved for the backward is too much for one of them, wherever parameters are."""
    model = Normed().train()

    lowered = halves(model, x := torch.randn(32, 64), 0.4)

    assert all(0 < row.peak_bytes <= (row.budget_bytes or 0) for row in lowered.report.devices)
    assert lowered.plan.offloaded
    expected = copy.deepcopy(model)
    for each in (expected, lowered):
        each(x).backward()
    gradients = {name: parameter.grad for name, parameter in expected.named_parameters()}
    assert gradients.keys() == dict(lowered.named_parameters()).keys()
    for name, parameter in lowered.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name])


def test_that_several_devices_are_too_small_for_two_parts_is_not_said_to_be_proven() -> None:
    with pytest.raises(PlacementError) as caught:
        halves(Normed().train(), torch.randn(32, 64), 0.2)

    assert not isinstance(caught.value, InfeasibleError)
    said = r"In the nearest placement that was found, left has 74\.8 KiB, which is 65\.0 KiB too little even if all "
    assert re.match(said, str(caught.value))
    assert str(caught.value).endswith("or make the inputs smaller. A device_map may share the operators otherwise.")


def test_an_operator_that_no_device_has_room_for_is_named_without_a_search() -> None:
    with pytest.raises(InfeasibleError) as caught:
        lower(Mlp(4), (torch.randn(2, 64),), devices=[Device("one", 9 * KiB), Device("other", 8 * KiB)], offload="cpu")

    least = LAYER + 2 * 2 * 64 * 4  # what it reads and what it makes
    assert caught.value.missing_bytes == least - 9 * KiB
    said = "All devices are 8.25 KiB too little even if all parameters stay on the CPU: linear (aten.linear.default)"
    room = "but the largest device that can run it has 9.00 KiB: 8.25 KiB are missing; it comes from "
    assert str(caught.value).startswith(f"{said} needs 17.2 KiB on one device for what it reads and makes, {room}")
    assert str(caught.value).endswith(" Give one of them more memory, or make the inputs smaller.")


def test_parameters_that_are_pieces_of_a_larger_tensor_are_loaded_alone() -> None:
    """What an operator needs in any case is the piece, though all of the tensor stays where no part is offloaded."""
    model = Mlp(2, 16)
    large = torch.randn(1000, 16)
    model.layers[0].weight = nn.Parameter(large[:16])
    x = torch.randn(2, 16)

    lowered = lower(model, (x,), devices=[Device("one", 2 * KiB), Device("other", 2 * KiB)], offload="cpu")

    assert lowered.plan.offloaded
    torch.testing.assert_close(lowered(x), model(x))


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_short_searches_tell_how_little_each_device_must_take_and_a_longer_one_is_tried_then(
    objective: Literal["latency", "throughput"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two devices that hold three quarters: no search takes what finds answers in tight memory but the last one."""
    model, x = Mlp(6, 32), torch.randn(4, 32)
    (alone,) = place(model, (x,), devices=[Device("all")]).summary.devices
    devices = [Device("large", alone.peak_bytes // 2), Device("small", alone.peak_bytes // 4)]
    asked: list[Request] = []
    searched = offloading.place_measured

    def counted(measured: MeasuredGraph, request: Request) -> DevicePlacement:
        asked.append(request)
        return searched(measured, request)

    monkeypatch.setattr(offloading, "place_measured", counted)
    lowered = lower(model, (x,), devices=devices, offload="cpu", objective=objective, contiguity="free")

    assert lowered.plan.offloaded
    assert all(0 < row.peak_bytes <= (row.budget_bytes or 0) for row in lowered.report.devices)
    torch.testing.assert_close(lowered(x), model(x))
    brief = [request.is_brief for request in asked]
    assert brief.count(True) == 4
    assert brief[-1] is False


def test_an_unknown_place_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"^Parameters can be offloaded to 'cpu', not to 'disk'; write offload=\"cpu\"\.$"
    ):
        lower(Mlp(), (torch.randn(2, 64),), devices=[Device("cpu")], offload="disk")


@pytest.mark.parametrize("strict", [False, True])
def test_an_offloaded_module_is_exported(strict: bool) -> None:
    """By running and by bytecode: the program loads where the module does, and has the same gradients."""
    model, x = Mlp(4), torch.randn(2, 64)
    lowered = lower(copy.deepcopy(model), (x,), devices=[Device("small", 40 * KiB)], offload="cpu")

    exported = torch.export.export(lowered, (x,), strict=strict).module()
    exported(x).sum().backward()
    model(x).sum().backward()

    assert loads_of(lowered)
    assert torch.equal(model(x), exported(x))
    gradients = [parameter.grad for parameter in exported.parameters()]
    assert all(map(torch.equal, [parameter.grad for parameter in model.parameters()], gradients))


@pytest.mark.parametrize("objective", ["throughput", "latency"])
def test_a_fast_device_that_loads_beats_a_slow_one_that_need_not(objective: Any) -> None:
    """No device map is below the bound, which was that of one device made larger and proved nothing."""
    model, x = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8))), torch.randn(32, 64)
    devices = [Device("slow", 75 * KiB, flops=1e8), Device("fast", 70 * KiB, flops=1e10)]

    planned = place(model, (x,), devices=devices, offload="cpu", objective=objective)
    mapped = place(model, (x,), devices=devices, offload="cpu", objective=objective, device_map={"": "fast"})

    values = [each.summary.objective_value or 0.0 for each in (planned, mapped)]
    assert 0 < (planned.summary.bound or 0.0) <= min(values)
    assert values[0] <= values[1] * (1 + 1e-9)
    assert all(row.peak_bytes <= (row.budget_bytes or 0) for row in planned.summary.devices)


@pytest.mark.parametrize("objective", ["throughput", "latency"])
def test_what_would_help_counts_the_loads(objective: Any) -> None:
    planned = place(
        Mlp(8), (torch.randn(2, 64),), devices=[Device("small", 60 * KiB)], offload="cpu", objective=objective
    )
    advice = planned.report().advice or ()

    assert "device" in {each.what for each in advice}
    assert [pytest.approx(planned.summary.objective_value)] * len(advice) == [each.before for each in advice]


def test_gradients_of_loaded_embeddings_may_be_sparse() -> None:
    """torch's own copy wants dense ones, and raised in the backward pass."""
    model = nn.Sequential(nn.Embedding(40, 8, sparse=True), *(nn.Linear(8, 8) for _ in range(6)))
    ids = torch.randint(0, 40, (5,))
    lowered = small(copy.deepcopy(model), ids, budget=2700)
    for each in (model, lowered):
        each(ids).sum().backward()

    assert "cpu" in [part.offload for part in lowered.plan.parts]
    gradients = {lowered.qualified_names.get(name, name): each.grad for name, each in lowered.named_parameters()}
    assert gradients["0.weight"] is not None
    assert gradients["0.weight"].is_sparse
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad.to_dense(), gradients[name].to_dense())  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_derivatives_of_loaded_parameters_go_forward_as_well() -> None:
    model, x = Mlp(6, 8), torch.randn(4, 8)
    lowered = small(copy.deepcopy(model), x, budget=1100)
    tangents = []
    for each in (model, lowered):
        with forward_ad.dual_level():
            duals = {
                name: forward_ad.make_dual(value, torch.ones_like(value)) for name, value in each.named_parameters()
            }
            result = torch.func.functional_call(each, duals, (x,))
            tangents.append(forward_ad.unpack_dual(result).tangent)

    assert "cpu" in [part.offload for part in lowered.plan.parts]
    assert torch.allclose(*tangents)


def test_pins_that_no_pipeline_keeps_leave_offloading_to_be_tried() -> None:
    """What pipelines lacked was told, which is no memory: then nothing was offloaded."""
    model, x = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6))).eval(), torch.randn(2, 64)
    devices = [Device("small", "30kB"), Device("host")]
    pinned = {"0": "small", "2": "host", "4": "small"}

    lowered = lower(model, (x,), devices=devices, pinned=pinned, offload="cpu", check=True)

    assert lowered.report.check is not None
    assert lowered.report.check.exact
    assert {"small"} == {part.device for part in lowered.plan.parts if part.offload}
    with pytest.raises(InfeasibleError, match=r'host no limit\).* 4304 bytes are missing. Or allow offload="cpu"'):
        lower(model, (x,), devices=devices, pinned=pinned)


@pytest.mark.filterwarnings("ignore")  # of torch, while it compiles
@pytest.mark.parametrize("has_gradients", [False, True])
def test_torch_compile_takes_the_whole_model(has_gradients: bool) -> None:
    """What it keeps for the backward is its own affair."""
    torch.compiler.reset()
    model, x = Mlp(6, 64), torch.randn(2, 64)
    lowered = small(copy.deepcopy(model), x)
    assert loads_of(lowered)

    with torch.set_grad_enabled(has_gradients):
        actual = torch.compile(lowered, backend="aot_eager", fullgraph=True)(x)

    torch.testing.assert_close(model(x), actual)
    if has_gradients:
        actual.sum().backward()
        model(x).sum().backward()
        gradients = [each.grad for each in lowered.parameters()]
        torch.testing.assert_close([each.grad for each in model.parameters()], gradients)


def test_loads_hide_behind_the_parts_before_them() -> None:
    """The first part stays on the device where one can, as nothing runs before it."""
    model, x = Mlp(8), torch.randn(2, 64)
    offloaded = place(model, (x,), devices=[Device("small", 90 * KiB)], offload="cpu", objective="latency")
    whole = place(model, (x,), devices=[Device("large")], objective="latency")

    assert offloaded.plan.offloaded
    assert pytest.approx(whole.summary.objective_value, rel=0.01) == offloaded.summary.objective_value


class Residual(nn.Module):
    """Blocks of two layers, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)) for _ in range(6))
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        result: torch.Tensor = self.head(x).softmax(-1)
        return result


def test_more_memory_is_never_slower() -> None:
    """Larger parts, and others that stay, let fewer loads hide: what is quicker counts, not what loads less."""
    budgets = [kib * KiB for kib in (60, 70, 80, 100, 120, 140, 160, 180)]

    took = [
        place(Residual().eval(), (torch.rand(4, 64),), devices=[Device("small", budget)], offload="cpu").plan.predicted
        for budget in budgets
    ]

    values = [each["objective_value"] for each in took]
    assert values == pytest.approx([values[0]] * len(budgets))
    assert values[-1] == pytest.approx(took[-1]["bound"])


@pytest.mark.filterwarnings("ignore")  # of torch, while it compiles
def test_constants_of_the_program_are_found_however_it_is_run() -> None:
    """The constant of a module is held beside the parts, where its parameters are in one."""
    torch.compiler.reset()
    model, x = nn.Sequential(Scaled()), torch.randn(2, 8)
    found = place(model, (x,), devices=[Device("a"), Device("b")], device_map={"": "b", "0.linear": "a"}).plan
    parts = tuple(attrs.evolve(part, offload="cpu" if part.device == "b" else None) for part in found.parts)
    lowered = lower(model, (x,), plan=attrs.evolve(found, parts=parts))
    looked_at = copy.deepcopy(lowered)
    looked_at.register_forward_hook(lambda *_: None)

    assert loads_of(lowered)
    assert torch.equal(model(x), lowered(x))
    assert torch.equal(model(x), looked_at(x))
    assert torch.equal(model(x), torch.compile(lowered, backend="eager", fullgraph=True)(x))
    assert torch.equal(model(x), torch.export.export(lowered, (x,)).module()(x))


class Sparse(nn.Module):
    """A sparse buffer between layers, and a counter that is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.register_buffer("mixing", torch.eye(16).roll(1).to_sparse())
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        for layer in self.layers:
            x = torch.sparse.mm(self.mixing, layer(x).t()).t().relu()
        return x * self.count


@pytest.mark.parametrize("budget", [None, 3400, 2900])
def test_sparse_buffers_are_used_and_loaded(budget: int | None) -> None:
    model, x = Sparse(), torch.randn(2, 16)
    lowered = small(copy.deepcopy(model), x, budget=budget)

    outputs = [each(x) for each in (model, lowered)]
    for output in outputs:
        output.sum().backward()

    assert bool(loads_of(lowered)) == (budget is not None)
    assert torch.equal(*outputs)
    gradients = [each.grad for each in lowered.parameters()]
    torch.testing.assert_close([each.grad for each in model.parameters()], gradients)


def test_a_sparse_buffer_that_is_written_to_is_the_lowered_models_own() -> None:
    class Decaying(Sparse):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mixing.mul_(0.5)
            return torch.sparse.mm(self.mixing, x.t())

    model, x = Decaying(), torch.randn(2, 16)
    lowered = small(model, x)

    for times in (0.5, 0.25):
        assert torch.equal(lowered(x), torch.sparse.mm(torch.eye(16).roll(1).to_sparse() * times, x.t()))
    assert torch.equal(model.mixing.to_dense(), torch.eye(16).roll(1))


class Turned(nn.Module):
    """A layer over what is not dense: torch folds its product where the weight requires no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.transpose(1, 2)).tanh().transpose(1, 2).contiguous()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("has_streams", [False, True])
def test_results_are_equal_bit_by_bit_also_without_gradients(
    mode: Callable[[], contextlib.AbstractContextManager[None]], has_streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_streams:
        monkeypatch.setattr(placement, "streams_for", lambda _devices: LateStreams())
    torch.manual_seed(0)
    model, x = nn.Sequential(*(Turned() for _ in range(6))), torch.randn(2, 32, 7)
    lowered = small(copy.deepcopy(model), x, budget=22 * KiB)
    looked_at = copy.deepcopy(lowered)
    looked_at.register_forward_hook(lambda *_: None)

    assert loads_of(lowered)
    with mode():
        expected = model(x)
        for actual in (lowered(x), looked_at(x)):
            assert torch.equal(expected, actual)
            assert expected.requires_grad == actual.requires_grad


def test_a_vectorized_run_loads_without_gradients() -> None:
    model, several = Mlp(8), torch.randn(3, 2, 64)
    lowered = small(model, several[0])

    with torch.no_grad():
        torch.testing.assert_close(torch.vmap(lowered)(several), torch.vmap(model)(several))


def test_where_activations_are_much_each_operator_may_be_a_part_of_its_own() -> None:
    """A layer and its activation in one part hold an input more than the model itself; that is no proof."""
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Tanh()))).eval()
    x = torch.randn(1024, 64)
    value, layer = x.nbytes, (64 * 64 + 64) * 4
    whole = place(model, (x,), devices=[Device("only")]).summary.devices[0].peak_bytes
    least = 3 * value + layer  # what comes in stays, and a layer is there with what it reads and writes

    lowered = lower(model, (x,), devices=[Device("only", least)], offload="cpu")
    with pytest.raises(InfeasibleError) as caught:
        place(model, (x,), devices=[Device("only", least - 1)], offload="cpu")

    assert whole == least + 3 * layer
    assert torch.equal(model(x), lowered(x))
    assert lowered.report.devices[0].peak_bytes == least
    assert caught.value.missing_bytes == 1


class Counted(nn.Module):
    """Layers, and a buffer that counts the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = Mlp(6)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layers(x)


@pytest.mark.parametrize("is_offloaded", [False, True])
def test_a_checkpoint_around_a_model_computes_it_again(is_offloaded: bool) -> None:
    """Hooks for saved tensors around a call are asked about all that is no loaded parameter, as without offloading."""
    model, x = Counted(), torch.randn(256, 64)
    lowered = (
        small(copy.deepcopy(model), x, budget=240 * KiB)
        if is_offloaded
        else lower(model, (x,), devices=[Device("one")])
    )
    assert bool(lowered.plan.offloaded) == is_offloaded
    model = copy.deepcopy(model)
    seen = list[torch.Tensor]()

    def pack(tensor: torch.Tensor) -> int:
        seen.append(tensor)
        return len(seen) - 1

    for each in (model, lowered):
        checkpoint(each, x, use_reentrant=False).sum().backward()
    assert_gradients_agree(model, lowered)
    assert model.calls == 2 == lowered.get_buffer("calls")

    lowered.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda number: 2 * seen[number]):
        out = lowered(x)
    saved = len(seen)
    out.sum().backward()
    assert saved >= 10
    first = next(iter(lowered.parameters()))
    assert first.grad is not None
    assert not torch.allclose(first.grad, next(iter(model.parameters())).grad)


def test_what_hooks_around_a_model_keep_is_all_there_is() -> None:
    """On the way back values come from main memory, say; loaded parameters are loaded again as before."""
    model, x = Mlp(6), torch.randn(256, 64)
    lowered = small(copy.deepcopy(model), x, budget=240 * KiB)
    assert lowered.plan.offloaded

    for each in (model, lowered):
        with torch.autograd.graph.save_on_cpu():
            out = each(x)
        out.sum().backward()

    assert_gradients_agree(model, lowered)


def test_a_model_that_loads_parameters_is_traced_symbolically() -> None:
    """By itself and inside of another module; what is traced loads them, too."""
    model, x = Mlp(6), torch.randn(2, 64)
    lowered = small(copy.deepcopy(model), x, budget=60 * KiB)
    assert lowered.plan.offloaded

    for traced in (torch.fx.symbolic_trace(lowered), torch.fx.symbolic_trace(nn.Sequential(lowered))):
        traced(x).sum().backward()
        assert torch.equal(model(x), traced(x))
    model(x).sum().backward()
    model(x).sum().backward()

    assert_gradients_agree(model, lowered)
