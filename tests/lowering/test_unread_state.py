"""Parameters and buffers that no operator reads: they are in memory where the model lies, and count there."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx import symbolic_trace

from fxpasses import Device, InfeasibleError, LoweredModule, PassManager, Training, lower, place
from fxpasses.devices import fake_devices
from fxpasses.partitioners import place_by_device, predict_memory
from fxpasses.passes import MeasureCosts
from fxpasses.units import KiB

X = torch.randn(4, 64)
USED = 2 * 64 * 65 * 4 + 4 * 64 * 4
"""Bytes of what the layers below read."""


class Pooled(nn.Module):
    """Layers whose pooler is not asked for, with a count of batches and a table that nobody reads."""

    def __init__(self, pooled: int = 100) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 64)
        self.pooler = nn.Linear(64, pooled)
        self.register_buffer("table", torch.zeros(50), persistent=False)
        self.register_buffer("piece", self.first.weight.detach()[:3])
        self.again = self.pooler.weight

    @property
    def unread(self) -> int:
        return sum(each.nbytes for each in (*self.pooler.parameters(), self.table, self.norm.num_batches_tracked))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.first(x)).relu())


def parameters_on(lowered: LoweredModule) -> dict[str, int]:
    return {name: each["parameter_bytes"] for name, each in lowered.plan.predicted["devices"].items()}


def peaks_on(lowered: LoweredModule) -> dict[str, int]:
    return {name: each["peak_bytes"] for name, each in lowered.plan.predicted["devices"].items()}


def test_what_no_operator_reads_counts_once() -> None:
    model = Pooled().eval()
    lowered = lower(model, (X,), devices=[Device("only")])

    storages = [each.untyped_storage() for each in model.state_dict().values()]
    distinct = {storage.data_ptr(): storage.nbytes() for storage in storages}
    assert USED + model.unread == sum(distinct.values()) + model.table.nbytes
    assert {"only": USED + model.unread} == parameters_on(lowered)
    program = torch.export.export(model, (X,))
    assert peaks_on(lowered)["only"] == lowered.plan.simulate(program).timeline.peak("only")
    assert [] == lowered.plan.check(program)


@pytest.mark.parametrize("first", ["left", "right"])
def test_it_is_where_the_first_operator_runs(first: str) -> None:
    model = Pooled().eval()
    second = {"left": "right", "right": "left"}[first]
    where = {"first": first, "norm": first, "": second}
    lowered = lower(model, (X,), devices=[Device("left"), Device("right")], device_map=where)

    state = (64 * 65 + 4 * 64) * 4
    assert {first: state + model.unread, second: USED - state} == parameters_on(lowered)
    assert torch.equal(model(X), lowered(X))


def test_hardware_that_is_not_here_does_not_hold_it() -> None:
    planned = place(Pooled().eval(), (X,), devices=fake_devices(1))

    assert [USED] == [each["parameter_bytes"] for each in planned.plan.predicted["devices"].values()]


def test_another_device_of_its_kind_holds_it_where_the_first_operator_is_elsewhere() -> None:
    model = Pooled().eval()
    gpu = Device("gpu", torch_device="cuda:0")
    where = {"first": "gpu", "": "host"}
    planned = place(model, (X,), devices=[gpu, Device("host")], device_map=where)

    held = {name: each["parameter_bytes"] for name, each in planned.plan.predicted["devices"].items()}
    assert {"gpu": 64 * 65 * 4, "host": USED - 64 * 65 * 4 + model.unread} == held


@pytest.mark.parametrize("contiguity", ["pipeline", "convex", "free"])
def test_budgets_know_it(contiguity: str) -> None:
    """With room for it on one device only, the first layers are there; without, it is said what is missing."""
    model = Pooled().eval()
    small, large = Device("small", 24 * KiB), Device("large", 46 * KiB)
    lowered = lower(model, (X,), devices=[small, large], contiguity=contiguity)

    assert model.unread < parameters_on(lowered)["large"]
    assert all(size <= {"small": 24, "large": 46}[name] * KiB for name, size in peaks_on(lowered).items())

    said = r"needs 43.8 KiB on one device for what it reads and makes, and 25.6 KiB of parameters and buffers that no "
    said += r"operator reads, but the largest device that can run it has 42.0 KiB: 1.84 KiB are missing; .*offload="
    with pytest.raises(InfeasibleError, match=said) as caught:
        place(model, (X,), devices=[small, Device("large", 42 * KiB)], contiguity=contiguity)
    assert caught.value.node is not None
    assert "linear" == caught.value.node.name


def test_what_one_device_lacks_is_told_to_the_byte() -> None:
    model = Pooled().eval()
    peak = peaks_on(lower(model, (X,), devices=[Device("only")]))["only"]

    assert {"only": peak} == peaks_on(lower(model, (X,), devices=[Device("only", peak)]))
    with pytest.raises(InfeasibleError) as caught:
        place(model, (X,), devices=[Device("only", peak - 1)])
    assert 1 == caught.value.missing_bytes


@pytest.mark.parametrize("budget", [36, 44])
def test_offloading_leaves_it_in_main_memory(budget: int) -> None:
    """With 44 KiB there is room for all that is read; something is loaded all the same, or the rest would be there."""
    model = Pooled(4096).eval()
    lowered = lower(model, (X,), devices=[Device("only", budget * KiB)], offload="cpu")

    assert peaks_on(lowered)["only"] <= budget * KiB
    assert any(part.offload for part in lowered.plan.parts)
    assert torch.equal(model(X), lowered(X))


def test_offloading_in_training_leaves_it_in_main_memory() -> None:
    """There is room for a whole step but for what nobody reads, so next to nothing is loaded."""
    model = Pooled(4096)
    lowered = lower(
        model, (X,), devices=[Device("only", 1000 * KiB)], offload="cpu", training=Training(optimizer_slots=2)
    )

    assert peaks_on(lowered)["only"] < model.unread
    assert ["cpu"] == [part.offload for part in lowered.plan.parts if part.offload]
    assert [] == lowered.plan.check(lowered.program)
    lowered(X).square().mean().backward()
    gradients = {name: each.grad for name, each in lowered.named_parameters() if each.grad is not None}
    model.zero_grad()
    model(X).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or torch.equal(parameter.grad, gradients[name])


def test_nothing_is_trained_of_it() -> None:
    models = Pooled(1), Pooled(4096)
    rows = [
        lower(model, (X,), devices=[Device("only")], training=Training(optimizer_slots=2)).report.devices[0]
        for model in models
    ]

    more = models[1].unread - models[0].unread
    assert [0, more] == [row.parameter_bytes - rows[0].parameter_bytes for row in rows]
    assert [0, more] == [row.peak_bytes - rows[0].peak_bytes for row in rows]
    assert rows[0].gradient_bytes == rows[1].gradient_bytes > 0
    assert rows[0].optimizer_bytes == rows[1].optimizer_bytes > 0


def test_a_parameter_that_is_only_returned_counts() -> None:
    class Returning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.scale = nn.Parameter(torch.ones(100)), nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * self.scale, self.weight

    assert {"only": 101 * 4} == parameters_on(lower(Returning(), (X,), devices=[Device("only")]))


def test_what_called_modules_do_not_read_counts() -> None:
    """Of a called normalization the count of batches, which it does not read in inference."""
    model = Pooled().eval()
    traced = symbolic_trace(model)
    PassManager([MeasureCosts(example_inputs=(X,))])(traced)
    placement = place_by_device(traced, [Device("only")])

    held = predict_memory(traced, placement.assignment, placement.device_of)["only"]
    assert "pooler.weight" not in dict(traced.named_parameters())
    assert USED + model.norm.num_batches_tracked.nbytes == held.parameters
