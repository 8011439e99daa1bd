"""Training steps on paper: forward, backward, gradients that go back, memory of the whole step."""

from __future__ import annotations

import itertools

import pytest
import torch
from fuzz import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering_models import Crossing, Mlp
from torch import Tensor, nn

from fxpasses import Device, InputError, Link, Plan, Topology, fake_devices, place
from fxpasses.lowering import Planned
from fxpasses.partitioners import Training, predict_training_memory
from fxpasses.partitioners.costs.device_times import predict_times
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.partitioners.placing.device_runs import runs_of
from fxpasses.partitioners.placing.objective_values import Objective
from fxpasses.simulation import simulate
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


CROSSING = torch.export.export(Crossing(), (torch.randn(16, 32),)).module(check_guards=False)
THREE = Topology(
    fake_devices(3, torch_device="cpu"), [Link("device0", "device1", 1e9), Link("device1", "device2", 3e9)]
)
ONE_WAY_SLOWER = Topology(
    THREE.devices, [*THREE.links, Link("device1", "device0", 1e7), Link("device2", "device1", 9e9)]
)


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_wherever_operators_are_the_figures_of_a_step_agree(data: st.DataObject) -> None:
    """Seconds, loads and peaks of the timeline are the predicted ones; what runs side by side takes no longer."""
    nodes = [node for node in CROSSING.graph.nodes if node.op == "call_function"]
    names = [device.name for device in THREE.devices]
    homes = data.draw(st.lists(st.sampled_from(names), min_size=len(nodes), max_size=len(nodes)))
    links = data.draw(st.sampled_from([THREE, ONE_WAY_SLOWER]))
    runs = runs_of(CROSSING, dict(zip(nodes, homes, strict=True)))
    device_of = {part: links[name] for part, name in runs.device_of.items()}
    step = TrainingStep.of(CROSSING, Training(2))

    run = simulate(CROSSING, runs.assignment, device_of, links, step=step)
    seconds, load = predict_times(
        CROSSING, runs.assignment, device_of, links, seconds=step.seconds, returned=step.returned
    )
    memory = predict_training_memory(CROSSING, runs.assignment, device_of, Training(2), needs=step.needs)

    assert pytest.approx(seconds) == run.seconds
    assert {name: held.peak for name, held in memory.items()} == {name: run.timeline.peak(name) for name in memory}
    for overlap in ("none", "devices"):
        timeline = simulate(CROSSING, runs.assignment, device_of, links, step=step, overlap=overlap).timeline
        assert pytest.approx(load) == {name: timeline.busy(name) for name in load}
    for overlap in ("devices", "copies"):
        together = simulate(CROSSING, runs.assignment, device_of, links, step=step, overlap=overlap)
        assert together.seconds <= run.seconds * (1 + 1e-9)


def test_gradients_take_the_way_back() -> None:
    """It is a thousand times slower than the way there; what placing predicts counts it, too."""
    model = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 32))
    links = [Link("device0", "device1", 1e9, 1e-5), Link("device1", "device0", 1e6, 0.0)]
    planned = place(
        model,
        (torch.randn(16, 32),),
        devices=fake_devices(2),
        links=links,
        pinned={"0": "device0", "1": "device1", "2": "device1"},
        training=Training(),
    )

    run = planned.simulate()
    there, back = (span for span in run.timeline.spans if "→" in span.track)

    assert ["device0 → device1", "device1 → device0"] == [there.track, back.track]
    assert pytest.approx([1e-5 + 16 * 64 * 4 / 1e9, 16 * 64 * 4 / 1e6]) == [there.seconds, back.seconds]
    assert pytest.approx(planned.plan.predicted["seconds"]) == run.seconds
    load = {row.name: row.estimated_ms / 1e3 for row in planned.summary.devices}
    assert pytest.approx(load) == {name: run.timeline.busy(name) for name in load}


class Masked(nn.Module):
    """A mask, which has no gradient, crosses beside what has one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        mask = x > 0
        return self.second(self.first(x)) * mask  # type: ignore[no-any-return]


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize(("there", "back"), [(1e9, 1e6), (1e6, 1e9)])
def test_what_has_no_gradient_takes_only_the_way_there(objective: Objective, there: float, back: float) -> None:
    """What is predicted is what runs, and no bound is above it, whichever way is slow."""
    planned = place(
        Masked(),
        (torch.randn(64, 64),),
        devices=fake_devices(2),
        links=[Link("device0", "device1", there, 0.0), Link("device1", "device0", back, 0.0)],
        pinned={"first": "device0", "/gt#0": "device0", "second": "device1"},
        training=Training(),
        objective=objective,
        replicate="never",
    )

    run = planned.simulate()
    crossing = sorted((span.track, span.seconds) for span in run.timeline.spans if "→" in span.track)

    assert pytest.approx([64 * 64 / there, 4 * 64 * 64 / there, 4 * 64 * 64 / back]) == [each for _, each in crossing]
    assert pytest.approx(planned.plan.predicted["seconds"]) == run.seconds
    together = planned.simulate(overlap="copies").seconds
    expected = together if objective == "latency" else max(map(run.timeline.busy, ("device0", "device1")))
    assert pytest.approx(expected) == planned.plan.predicted["objective_value"]
    assert planned.plan.predicted["bound"] <= expected * (1 + 1e-9)


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
