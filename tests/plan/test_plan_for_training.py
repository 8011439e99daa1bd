"""Plans for training: the key in the file, checks of the step's budgets, differences."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
import torch
from lowering_models import Mlp

from fxpasses import Device, Plan, PlanError, place
from fxpasses.lowering import Planned
from fxpasses.partitioners import Training
from fxpasses.units import KiB

ARGS = (torch.randn(2, 64),)
TWO = (Device("left", 200 * KiB), Device("right", 200 * KiB))


@pytest.fixture(scope="module")
def planned() -> Planned:
    return place(Mlp(), ARGS, devices=TWO, training=Training(2))


def edited(plan: Plan, **changes: Any) -> dict[str, Any]:
    return {**json.loads(json.dumps(plan.to_json())), **changes}


def test_a_plan_says_for_which_training_it_was_made(planned: Planned) -> None:
    assert {"optimizer_slots": 2} == planned.plan.to_json()["training"]
    assert planned.plan == Plan.from_json(edited(planned.plan))
    assert (
        Training(0, step_slots=1)
        == Plan.from_json(edited(planned.plan, training={"optimizer_slots": 0, "step_slots": 1})).training
    )


def test_a_plan_without_the_key_is_for_running_the_model(planned: Planned) -> None:
    """So are all plans that older versions wrote; one for running the model has no such key."""
    older = {key: value for key, value in edited(planned.plan).items() if key != "training"}

    assert None is Plan.from_json(older).training
    assert "training" not in Plan.from_json(older).to_json()
    assert None is Plan.from_json({**older, "training": None}).training


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("adam", 'In this plan training is a text; write an object like {"optimizer_slots": 2}.'),
        (
            {"slots": 2},
            "In this plan training has an entry 'slots'; there are optimizer_slots, step_slots, counts_steps; did you "
            "mean 'step_slots'?",
        ),
        (
            {"optimizer_slots": "2"},
            "In this plan training: optimizer_slots is the number of values kept for each element, not '2'.",
        ),
        (
            {"optimizer_slots": 2, "step_slots": -1},
            "In this plan training: step_slots is the number of values made for each element, not -1.",
        ),
        (
            {"optimizer_slots": 2, "counts_steps": 0},
            "In this plan training: counts_steps is true or false, not 0.",
        ),
    ],
)
def test_a_training_that_makes_no_sense_is_refused_with_its_place(planned: Planned, entry: Any, sentence: str) -> None:
    with pytest.raises(PlanError) as failure:
        Plan.from_json(edited(planned.plan, training=entry))

    assert sentence == str(failure.value)


def test_parts_may_be_offloaded_in_a_plan_for_training(planned: Planned) -> None:
    """Somebody writes it into the file: then the device needs less, and the check says so."""
    parts = [{**part, "offload": "cpu"} for part in planned.plan.to_json()["parts"]]
    small = [Device("left", 120 * KiB), Device("right", 120 * KiB)]

    plan = Plan.from_json(edited(planned.plan, parts=parts))

    assert plan == Plan.from_json(plan.to_json())
    assert ["budget", "budget"] == [violation.kind for violation in planned.plan.check(planned.program, devices=small)]
    assert [] == plan.check(planned.program, devices=small)


def test_a_check_fails_where_a_training_step_passes_a_budget(planned: Planned) -> None:
    """The step counts, not the forward, which fits; the violation says where, when and by how many bytes."""
    small = [Device("left", 150 * KiB), Device("right", 200 * KiB)]
    (violation,) = planned.plan.check(planned.program, devices=small)
    left = planned.summary.devices[0]

    assert [] == planned.plan.check(planned.program)
    assert [] == attrs.evolve(planned.plan, training=None).check(planned.program, devices=small)
    assert ("budget", "left", left.peak_bytes - 150 * KiB) == (
        violation.kind,
        violation.device,
        violation.missing_bytes,
    )
    assert (
        "left holds 179 KiB while the optimizer steps, 28.5 KiB over its budget of 150 KiB (parameters 32.5 KiB, "
        "gradients 32.5 KiB, optimizer 113 KiB, copies 512 B)."
    ) == str(violation)


def test_a_check_names_the_operator_at_which_a_step_is_fullest() -> None:
    planned = place(Mlp(), (torch.randn(512, 64),), devices=[Device("only")], training=Training(0))
    peak = planned.summary.devices[0].peak_bytes

    (violation,) = planned.plan.check(planned.program, devices=[Device("only", peak - 1)])

    assert "layers.3/linear#0" == violation.op
    assert " in the backward of layers.3/linear#0 (from " in str(violation)
    assert 1 == violation.missing_bytes


def test_differences_tell_another_training(planned: Planned) -> None:
    running = place(Mlp(), ARGS, devices=TWO).plan
    other = attrs.evolve(planned.plan, training=Training(1, step_slots=0))
    found = planned.plan.diff(other)

    assert [
        "plan: training 2 values kept for each trained element → 1 value kept for each trained element, 0 made while "
        "the optimizer steps"
    ] == list(found.lines())
    assert {"optimizer_slots": 2, "step_slots": None, "counts_steps": True} == found.to_json()["settings"][0]["before"]
    assert "plan: training none → 2 values kept for each trained element" in list(running.diff(planned.plan).lines())
    assert "plan: training 2 values kept for each trained element → none" in list(planned.plan.diff(running).lines())
    assert "predicted for left: gradient_bytes 32.5 KiB → not known" in list(planned.plan.diff(running).lines())
