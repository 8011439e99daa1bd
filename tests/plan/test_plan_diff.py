"""Two plans are compared: what moved, what the devices became, what crosses, what is predicted."""

from __future__ import annotations

import json
import math

import attrs
import pytest
import torch
from lowering_models import Mlp, cpu_pair
from work import lines_run

from fxpasses import Device, Link, Plan, lower, place
from fxpasses.plan import PartPlan, diff
from fxpasses.units import KiB, format_bytes

DEVICES = (Device("left", 40 * KiB), Device("right", 40 * KiB))


def plan(**parts: list[str]) -> Plan:
    return Plan("m", "latency", DEVICES, (), tuple(PartPlan(name, name, tuple(ops)) for name, ops in parts.items()))


def test_what_lines_for_modules_stand_for_is_compared() -> None:
    one = plan(left=["layers.0/*", "layers.1/*", "head/*"])
    first = attrs.evolve(one, contents={"layers.0/*": {"relu": 1}, "layers.1/*": {"relu": 1}, "head/*": {"linear": 1}})
    second = attrs.evolve(one, contents={"layers.0/*": {"gelu": 1}, "layers.1/*": {"gelu": 1}, "head/*": {"linear": 1}})

    lines = ["operators of layers.0/*, layers.1/*: gelu 0 → 1", "operators of layers.0/*, layers.1/*: relu 1 → 0"]

    assert lines == list(first.diff(second).lines())
    assert not first.diff(one)


def test_equal_plans_do_not_differ() -> None:
    one = plan(left=["layers.0/*"], right=["layers.1/*"])

    assert not diff(one, one)
    assert "The plans are the same." == str(one.diff(one))
    groups = ("moves", "settings", "devices", "copies", "predicted", "again", "contents")
    assert dict.fromkeys(groups, ()) == diff(one, one).to_json()


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        (
            {"left": ["layers.0/*", "layers.1/*"], "right": ["head/*"]},
            {"left": ["layers.0/*"], "right": ["layers.1/*", "head/*"]},
            ["left → right: layers.1/*"],
        ),
        (
            {"left": ["layers/*"], "right": ["head/*"]},
            {"left": ["layers.0/*"], "right": ["layers.1/*", "head/*"]},
            ["left → right: layers.1/*"],
        ),
        (
            {"left": ["layers.0/*"]},
            {"left": ["layers.0/linear#0"], "right": ["layers.0/relu#0"]},
            ["left → right: layers.0/relu#0"],
        ),
        (
            {"left": ["layers.0/*"]},
            {"left": ["layers.0/*"], "right": ["layers.1/*"]},
            ["layers.1/*: only in the second plan, on right"],
        ),
        (
            {"left": ["layers.0/*"], "right": ["layers.1/*"]},
            {"left": ["layers.0/*"]},
            ["layers.1/*: only in the first plan, on right"],
        ),
        (
            {"left": [f"layers.{index}/*" for index in range(12)]},
            {"right": [f"layers.{index}/*" for index in range(12)]},
            ["left → right: " + ", ".join(f"layers.{index}/*" for index in range(8)) + " and 4 more"],
        ),
    ],
)
def test_what_moved_is_said_by_module_where_entries_allow_it(
    before: dict[str, list[str]], after: dict[str, list[str]], lines: list[str]
) -> None:
    assert lines == list(diff(plan(**before), plan(**after)).lines())


def test_plans_that_have_nothing_in_common_are_compared_in_time_in_proportion_to_their_lines() -> None:
    def compare(count: int) -> None:
        first, second = (plan(left=[f"{name}.{index}/*" for index in range(count)]) for name in ("layers", "blocks"))
        assert 2 * count == len(first.diff(second).moves)

    lines = {count: lines_run(lambda count=count: compare(count)) for count in (100, 400)}

    assert lines[400] < 5 * lines[100]


def test_with_the_model_every_operator_is_looked_up() -> None:
    graph = torch.export.export(Mlp(2).eval(), (torch.randn(2, 64),)).module(check_guards=False)

    found = plan(left=["/*"]).diff(plan(left=["layers/*"], right=["/*"]), graph)

    assert ["/relu#0", "/relu#1"] == [move.op for move in found.moves]


def test_devices_links_and_settings_are_compared() -> None:
    first = attrs.evolve(plan(left=["a/*"]), links=(Link("left", "right", 1e9),), pipeline="remove-detach")
    second = attrs.evolve(
        first,
        devices=(attrs.evolve(DEVICES[0], available_mem_bytes=None, flops=2e12), Device("top")),
        links=(Link("left", "right", 2e9, 0.0),),
        objective="throughput",
        pipeline=None,
    )

    assert [
        "plan: objective 'latency' → 'throughput'",
        "plan: pipeline 'remove-detach' → not known",
        "device left: available_mem_bytes 40.0 KiB → no limit",
        "device left: flops 1e+11/s → 2e+12/s",
        "device right is gone",
        "device top is new",
        "link left:right: bandwidth 1e+09/s → 2e+09/s",
        "link left:right: latency 5.00 us → 0 s",
    ] == list(diff(first, second).lines())


def test_copies_and_predicted_figures_are_compared() -> None:
    args = (torch.randn(2, 64),)
    one, two = (lower(Mlp().eval(), args, devices=cpu_pair(size * KiB, size * KiB)).plan for size in (40, 90))

    found = one.diff(two)
    text = str(found)

    assert found.copies
    assert "predicted for left: peak_bytes " in text
    assert "copy of " in text
    assert json.loads(json.dumps(found.to_json()))["predicted"]


def test_what_is_made_small_is_told_in_its_unit() -> None:
    """Bytes under ``memory``, devices under ``devices``; both were told in seconds."""
    args = (torch.randn(2, 64),)
    plans = {
        objective: lower(Mlp().eval(), args, devices=cpu_pair(), objective=objective).plan  # type: ignore[arg-type]
        for objective in ("memory", "devices", "throughput")
    }
    lines = [line for line in diff(plans["memory"], plans["devices"]).lines() if "objective_value" in line]
    more = [line for line in diff(plans["devices"], plans["throughput"]).lines() if "objective_value" in line]
    size = format_bytes(plans["memory"].predicted["objective_value"])

    assert lines == [f"predicted: objective_value {size} → 1 device"]
    assert more[0].startswith("predicted: objective_value 1 device → ")
    assert more[0].endswith(" us")
    assert "objectives" not in json.dumps(plans["memory"].diff(plans["devices"]).to_json())


def test_numbers_of_devices_are_told_as_they_are() -> None:
    first, second = (
        attrs.evolve(plan(left=["a/*"]), devices=(attrs.evolve(DEVICES[0], logical_id=number), DEVICES[1]))
        for number in (1_234_567, 10**400)
    )

    assert [f"device left: logical_id 1234567 → 1{'0' * 400}"] == list(diff(first, second).lines())


def test_a_link_has_no_direction() -> None:
    one, other = (
        attrs.evolve(plan(left=["a/*"]), devices=(Device("left"), Device("right")), links=(Link(*ends, 1e9),))
        for ends in (("left", "right"), ("right", "left"))
    )

    assert str(one.diff(one)) == str(one.diff(other)) == "The plans are the same."


def test_a_link_has_a_direction_where_another_leads_back() -> None:
    one, other = (
        attrs.evolve(
            plan(left=["a/*"]),
            devices=(Device("left"), Device("right")),
            links=(Link("left", "right", rate, 0.0), Link("right", "left", 3e9 - rate, 0.0)),
        )
        for rate in (1e9, 2e9)
    )

    assert Plan.from_json(one.to_json()).links == one.links
    assert [("link left:right", 1e9, 2e9), ("link right:left", 2e9, 1e9)] == [
        (change.what, change.before, change.after) for change in one.diff(other).devices
    ]


def test_a_plan_that_is_followed_does_not_differ_from_itself() -> None:
    """What only a search knows, the bound, is no difference; the objective's value is found again."""
    inputs = (torch.randn(2, 64),)
    searched = place(Mlp(2), inputs, devices=cpu_pair(), objective="throughput").plan
    followed = place(Mlp(2), inputs, plan=searched).plan

    assert {**searched.predicted, "bound": None} == {**followed.predicted, "bound": None}

    assert not searched.diff(followed)
    assert not followed.diff(searched)


def test_parameters_that_are_loaded_in_only_one_of_two_plans_differ() -> None:
    one = plan(left=["layers.0/*", "layers.1/*"])
    other = attrs.evolve(
        one, parts=(PartPlan("left", "left", ("layers.0/*",)), PartPlan("left_1", "left", ("layers.1/*",), "cpu"))
    )
    graph_module = torch.export.export(Mlp(2), (torch.randn(2, 64),)).module(check_guards=False)

    for found in (one.diff(other), one.diff(other, graph_module)):
        assert "left → left with parameters in main memory: layers.1/*" in str(found)
    assert "left with parameters in main memory → left: layers.1/*" == str(other.diff(one))


def test_a_link_without_a_limit_is_told_in_strict_json_and_in_words() -> None:
    """The JSON held ``Infinity``, which no other reader takes, and the text quotes."""
    devices = (Device("a"), Device("b"))
    one = Plan("m", "latency", devices, (Link("a", "b", math.inf),), ())
    other = Plan("m", "latency", (Device("a", bandwidth=math.inf), devices[1]), (Link("a", "b", 1e9),), ())

    found = one.diff(other)

    told = [("bandwidth", 20e9, "inf"), ("bandwidth", "inf", 1e9)]
    assert told == [(change.field, change.before, change.after) for change in found.devices]
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert ["device a: bandwidth 2e+10/s → no limit", "link a:b: bandwidth no limit → 1e+09/s"] == list(found.lines())
