"""Training steps on paper: forward, backward, gradients that go back, memory of the whole step."""

from __future__ import annotations

import itertools

import pytest
import torch
from lowering_models import Mlp
from torch import Tensor, nn

from fxpasses import Device, InputError, Link, Plan, fake_devices, place
from fxpasses.lowering import Planned
from fxpasses.partitioners import Training
from fxpasses.units import KiB


@pytest.fixture(scope="module")
def planned() -> Planned:
    devices = [Device("left", 900 * KiB), Device("right", 900 * KiB)]
    return place(Mlp(), (torch.randn(512, 64),), devices=devices, objective="throughput", training=Training(2))


def test_the_backward_follows_the_forward_and_gradients_go_back(planned: Planned) -> None:
    run = planned.simulate()

    assert [
        ("left", "compute", False),
        ("relu_1", "copy", False),
        ("right", "compute", False),
        ("right", "compute", True),
        ("relu_1", "copy", True),
        ("left", "compute", True),
    ] == [(step.name, step.kind, step.is_backward) for step in run.critical_path]
    assert ["forward", "copy", "backward"] == list(dict.fromkeys(span.kind for span in run.timeline.spans))
    assert {"left → right", "right → left"} <= set(run.timeline.tracks)


def test_seconds_and_peaks_are_those_of_the_plan(planned: Planned) -> None:
    """One figure means one thing: the report, the plan and its simulation agree, replayed or not."""
    replayed = Plan.from_json(planned.plan.to_json()).simulate(planned.program)
    load = {row.name: row.estimated_ms / 1e3 for row in planned.summary.devices}

    for run in (planned.simulate(), replayed):
        assert abs(run.seconds - planned.plan.predicted["seconds"]) < 1e-12
        for device, facts in planned.plan.predicted["devices"].items():
            assert facts["peak_bytes"] == run.timeline.peak(device)
            assert abs(load[device] - run.timeline.busy(device)) < 1e-12
    assert abs(max(load.values()) - planned.summary.objective_value) < 1e-12


def test_a_backward_takes_twice_its_forward(planned: Planned) -> None:
    whole = planned.simulate(detail="ops").timeline
    taken = {kind: sum(span.seconds for span in whole.spans if span.kind == kind) for kind in ("forward", "backward")}

    assert abs(2 * taken["forward"] - taken["backward"]) < 1e-12
    assert ["relu_3", "linear_3"] == [span.name for span in whole.spans if span.kind == "backward"][:2]


@pytest.mark.parametrize("overlap", ["none", "devices", "copies"])
def test_devices_work_side_by_side_in_the_backward_too(overlap: str) -> None:
    """No device does two things at a time, and no run is shorter than the busiest device's work."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.one, self.other = (nn.Linear(64, 64) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            return (self.one(x).relu() + self.other(x).relu()) * torch.arange(64)

    pins = {"first": "device0", "one": "device1", "other": "device2"}
    planned = place(
        Wide(),
        (torch.randn(128, 64),),
        devices=fake_devices(3),
        links=[Link("device0", "device1", 1e9, 1e-5)],
        pinned=pins,
        contiguity="free",
        training=Training(),
    )
    run = planned.simulate(overlap=overlap)  # type: ignore[arg-type]  # a text of these
    timeline = run.timeline

    for device in ("device0", "device1", "device2"):
        spans = sorted((span for span in timeline.spans if span.track == device), key=lambda span: span.start)
        assert all(later.start >= earlier.end - 1e-12 for earlier, later in itertools.pairwise(spans))
        assert timeline.peak(device) >= planned.plan.predicted["devices"][device]["parameter_bytes"]
        assert timeline.busy(device) <= run.seconds
    assert all(flow.source.start <= flow.target.start for flow in timeline.flows)
    if overlap == "none":
        assert all(
            facts["peak_bytes"] == timeline.peak(name) for name, facts in planned.plan.predicted["devices"].items()
        )


def test_what_has_no_gradient_sends_none_back() -> None:
    class First(nn.Linear):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # the mask, too
            made = super().forward(x)
            return made, made > 0

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = First(64, 64), nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            made, mask = self.first(x)
            return self.second(made) * mask

    pins = {"first": "left", "second": "right"}
    devices = [Device("left"), Device("right")]
    planned = place(
        Masked(), (torch.randn(128, 64),), devices=devices, pinned=pins, training=Training(), replicate="never"
    )
    copies = [span for span in planned.simulate(overlap="copies").timeline.spans if span.kind == "copy"]

    assert {"gt", "linear"} == {span.name for span in copies if span.track == "left → right"}
    assert {"linear"} == {span.name for span in copies if span.track == "right → left"}


def test_several_samples_of_a_training_step_are_refused(planned: Planned) -> None:
    with pytest.raises(InputError) as failure:
        planned.simulate(samples=4)

    assert (
        "A training step is simulated for one sample, not 4: what several hold at a time depends on the schedule of "
        "forwards and backwards, which fxpasses.pipelining has."
    ) == str(failure.value)
