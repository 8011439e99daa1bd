"""A plan names operators by what survives another export, reads back, and refuses another model."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest
import torch
from lowering_models import Mlp, cpu_pair

from fxpasses import Plan, PlanError, lower
from fxpasses.plan import stable_keys
from fxpasses.units import KiB


@pytest.fixture(scope="module")
def plan() -> Plan:
    return lower(Mlp().eval(), (torch.randn(2, 64),), devices=cpu_pair(40 * KiB, 40 * KiB)).plan


def exported(layers: int = 4) -> torch.fx.GraphModule:
    return torch.export.export(Mlp(layers).eval(), (torch.randn(2, 64),)).module(check_guards=False)


def test_operators_are_named_by_module_operator_and_ordinal() -> None:
    assert ["layers.0/linear#0", "/relu#0", "layers.1/linear#0", "/relu#1"] == list(stable_keys(exported(2)).values())


def test_a_plan_goes_through_a_file_unchanged(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")

    assert plan == Plan.load(tmp_path / "plan.json")
    assert plan.to_json() == json.loads((tmp_path / "plan.json").read_text())


def test_a_plan_applies_to_the_model_exported_again(plan: Plan) -> None:
    assignment = plan.assign(exported())

    assert [part.name for part in plan.parts] == list(assignment.order)
    assert all(node.op == "get_attr" for node in assignment.outside)


def test_a_whole_module_in_one_part_is_one_line(plan: Plan) -> None:
    assert any(entry.startswith("layers.0") and entry.endswith("/*") for part in plan.parts for entry in part.ops)


def test_a_plan_for_a_smaller_model_says_which_operator_has_no_part(plan: Plan) -> None:
    with pytest.raises(PlanError, match=r"^The plan for Mlp has no part for .*; the model changed since"):
        plan.assign(exported(6))


def test_a_plan_for_a_larger_model_says_what_is_not_there(plan: Plan) -> None:
    with pytest.raises(PlanError, match=r"^The plan for Mlp names .*, which the model does not have; it changed since"):
        plan.assign(exported(2))


def test_a_hand_edit_that_makes_parts_wait_for_each_other_is_refused(plan: Plan) -> None:
    from fxpasses import CycleError

    first, second = plan.parts
    swapped = attrs.evolve(
        plan,
        parts=(
            attrs.evolve(first, ops=("layers.0/*", "/relu#0", "layers.2/*", "/relu#2")),
            attrs.evolve(second, ops=("layers.1/*", "/relu#1", "layers.3/*", "/relu#3")),
        ),
    )

    with pytest.raises(CycleError):
        swapped.assign(exported())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON: "),
        ("[]", "This is not a plan of version 1; write one with fxpasses lower --out."),
        ('{"version": 9}', "This is not a plan of version 1; write one with fxpasses lower --out."),
        ('{"version": 1}', "This plan lacks or misspells an entry: 'model'."),
    ],
)
def test_a_file_that_is_no_plan_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text)

    with pytest.raises(PlanError) as caught:
        Plan.load(tmp_path / "plan.json")

    assert sentence in str(caught.value)


def test_a_missing_plan_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"^There is no plan file '.*plan\.json'\.$"):
        Plan.load(tmp_path / "plan.json")
