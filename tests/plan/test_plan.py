"""A plan names operators by what survives another export, reads back, and refuses another model."""

from __future__ import annotations

import json
import math
from pathlib import Path

import attrs
import pytest
import torch
from fuzz import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering_models import Mlp, cpu_pair
from torch import Tensor, nn

from fxpasses import Device, InputError, Link, Plan, PlanError, Topology, lower
from fxpasses.partitioners.placing.device_runs import runs_of
from fxpasses.plan import stable_keys
from fxpasses.units import KiB


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.relu()).relu() + x.relu()


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x.sum() + x


NESTED = torch.export.export(Nested().eval(), (torch.randn(2, 8),)).module(check_guards=False)
NESTED_OPS = [node for node in NESTED.graph.nodes if node.op == "call_function"]


@pytest.fixture(scope="module")
def plan() -> Plan:
    return lower(Mlp().eval(), (torch.randn(2, 64),), devices=cpu_pair(40 * KiB, 40 * KiB)).plan


def exported(layers: int = 4) -> torch.fx.GraphModule:
    return torch.export.export(Mlp(layers).eval(), (torch.randn(2, 64),)).module(check_guards=False)


def test_operators_are_named_by_module_operator_and_ordinal() -> None:
    assert ["layers.0/linear#0", "/relu#0", "layers.1/linear#0", "/relu#1"] == list(stable_keys(exported(2)).values())


def test_operators_that_torch_made_itself_belong_to_the_model() -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,)) + 1

    keys = stable_keys(torch.export.export(Branching(), (torch.randn(2),)).module(check_guards=False))

    assert ["/sum#0", "/gt#0", "/cond#0", "/getitem#0", "/add#0"] == list(keys.values())


def test_a_plan_goes_through_a_file_unchanged(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")

    assert plan == Plan.load(tmp_path / "plan.json")
    assert plan.to_json() == json.loads((tmp_path / "plan.json").read_text())


def test_rates_without_a_limit_are_strict_json(plan: Plan, tmp_path: Path) -> None:
    """JSON has no infinite number, and readers but Python's refuse the word."""
    left = attrs.evolve(plan.devices[0], flops=math.inf, flops_by_dtype={"bfloat16": math.inf, "float16": 1e12})
    links = (Link("left", "right", bandwidth=math.inf),)
    unlimited = attrs.evolve(plan, devices=(left, *plan.devices[1:]), links=links)

    unlimited.save(tmp_path / "plan.json")

    def refused(word: str) -> None:
        raise AssertionError(word)

    facts = json.loads((tmp_path / "plan.json").read_text(), parse_constant=refused)
    assert ("inf", {"bfloat16": "inf", "float16": 1e12}) == tuple(
        facts["devices"][0][name] for name in ("flops", "flops_by_dtype")
    )
    assert Plan.load(tmp_path / "plan.json") == unlimited


def test_a_plan_without_a_folder_is_refused(plan: Plan) -> None:
    with pytest.raises(PlanError) as caught:
        plan.save("/nowhere/plan.json")

    assert str(caught.value) == "'/nowhere/plan.json' cannot be written: No such file or directory."


def test_a_plan_applies_to_the_model_exported_again(plan: Plan) -> None:
    assignment = plan.assign(exported())

    assert [part.name for part in plan.parts] == list(assignment.order)
    assert all(node.op == "get_attr" for node in assignment.outside)


def test_what_is_no_graph_is_refused(plan: Plan) -> None:
    program = torch.export.export(Mlp(), (torch.randn(2, 64),))

    with pytest.raises(InputError, match=r"^A plan is applied to a GraphModule, not Exported"):
        plan.assign(program)  # type: ignore[arg-type]


def test_a_whole_module_in_one_part_is_one_line(plan: Plan) -> None:
    assert any(entry.startswith("layers.0") and entry.endswith("/*") for part in plan.parts for entry in part.ops)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=len(NESTED_OPS), max_size=len(NESTED_OPS)))
def test_whatever_the_placement_its_plan_gives_it_back(parts: list[str]) -> None:
    devices = {name: Device(name) for name in "abc"}
    runs = runs_of(NESTED, dict(zip(NESTED_OPS, parts, strict=True)))
    topology = Topology(tuple(devices.values()))

    plan = Plan.of("m", "latency", topology, runs.assignment, {part: devices[d] for part, d in runs.device_of.items()})
    read = Plan.from_json(json.loads(json.dumps(plan.to_json())))

    assert runs.assignment.partition_of == read.assign(NESTED).partition_of
    assert runs.assignment.order == read.assign(NESTED).order


def test_single_operators_elsewhere_leave_their_module_one_line() -> None:
    keys = stable_keys(NESTED)
    runs = runs_of(NESTED, {node: "b" if key == "blocks.1/relu#1" else "a" for node, key in keys.items()})
    device_of = {part: Device(name) for part, name in runs.device_of.items()}

    plan = Plan.of("m", "latency", Topology((Device("a"), Device("b"))), runs.assignment, device_of)

    assert sum(len(part.ops) for part in plan.parts) < len(keys)
    assert {"": "a"} == plan.device_map(strict=False)
    with pytest.raises(PlanError, match=r"^The module 'blocks\.1' has operators of its own on a, b, which a device"):
        plan.device_map()
    with pytest.raises(PlanError, match=r"^No device map says what this plan says: blocks\.1/relu#1 runs on b, and"):
        plan.device_map(NESTED)


def test_a_plan_for_a_smaller_model_says_which_operator_has_no_part(plan: Plan) -> None:
    with pytest.raises(PlanError, match=r"^The plan for Mlp has no part for .*; the model changed since"):
        plan.assign(exported(6))


def test_a_plan_for_a_larger_model_says_what_is_not_there(plan: Plan) -> None:
    with pytest.raises(PlanError, match=r"^The plan for Mlp names .*, which the model does not have; it changed since"):
        plan.assign(exported(2))


def test_a_hand_edit_that_makes_parts_wait_for_each_other_is_refused(plan: Plan) -> None:
    first, second = plan.parts
    swapped = attrs.evolve(
        plan,
        parts=(
            attrs.evolve(first, ops=("layers.0/*", "/relu#0", "layers.2/*", "/relu#2")),
            attrs.evolve(second, ops=("layers.1/*", "/relu#1", "layers.3/*", "/relu#3")),
        ),
    )

    with pytest.raises(PlanError) as caught:
        swapped.assign(exported())

    assert (
        "In the plan for Mlp, the parts left, right would wait for each other: layers.1/linear#0 in right for /relu#0 "
        "in left, layers.2/linear#0 in left for /relu#1 in right. A part runs as a whole, and a device may have "
        "several: put what waits into a further part on the same device, behind the part that it waits for."
        == str(caught.value)
    )


def test_a_hand_edit_that_swaps_parts_is_refused(plan: Plan) -> None:
    with pytest.raises(PlanError) as caught:
        attrs.evolve(plan, parts=plan.parts[::-1]).assign(exported())

    assert (
        "The parts of the plan for Mlp stand in an order in which they cannot run: the order puts partition 'right' at "
        "place 0, but it waits for 'left'; an order that works is ['left', 'right']." == str(caught.value)
    )


def test_a_further_part_on_the_same_device_takes_what_waits(plan: Plan) -> None:
    """As the sentence about parts that wait for each other says."""
    left, right = plan.parts
    four = (
        attrs.evolve(left, ops=("layers.0/*", "/relu#0")),
        attrs.evolve(right, ops=("layers.1/*", "/relu#1")),
        attrs.evolve(left, name="left_1", ops=("layers.2/*", "/relu#2")),
        attrs.evolve(right, name="right_1", ops=("layers.3/*", "/relu#3")),
    )

    assert ("left", "right", "left_1", "right_1") == attrs.evolve(plan, parts=four).assign(exported()).order


GOOD = {
    "version": 2,
    "model": "m",
    "objective": "latency",
    "devices": [{"name": "left", "available_mem_bytes": "40KiB"}, {"name": "right"}],
    "links": [{"first": "left", "second": "right", "bandwidth": 1e9}],
    "parts": [{"name": "left", "device": "left", "ops": ["layers.0/*"]}],
}


def edited(**entries: object) -> dict[str, object]:
    return {**GOOD, **entries}


def part(**entries: object) -> dict[str, object]:
    return edited(parts=[{"name": "left", "device": "left", "ops": ["layers.0/*"], **entries}])


def copied(size: object) -> dict[str, object]:
    return edited(copies=[{"value": "x", "source": "left", "target": "right", "size": size}])


def test_a_budget_may_be_written_as_people_write_it() -> None:
    assert 40 * KiB == Plan.from_json(GOOD).devices[0].available_mem_bytes


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ([], "This is no plan; write one with fxpasses place --out."),
        ({"model": {}}, "This is no plan; write one with fxpasses place --out."),
        (
            edited(version=9),
            "This plan has version 9, and this fxpasses reads 1 to 2: take a newer fxpasses, or write one with "
            "fxpasses place --out.",
        ),
        (edited(version="2"), "This plan has the version '2'; there are 1 to 2; write one with fxpasses place --out."),
        ({"version": 1}, "In this plan devices is missing."),
        (edited(model=3), "In this plan model is a number; write a text."),
        (edited(devices="left"), "In this plan devices is a text; write a list."),
        (edited(devices=["left"]), "In this plan devices[0] is a text; write an object."),
        (edited(devices=[{"flops": 1e9}]), "In this plan devices[0].name is missing."),
        (
            edited(devices=[{"name": "left", "flop": 1e9}]),
            "In this plan devices[0] has an entry 'flop'; there are name, available_mem_bytes, logical_id, "
            "torch_device, flops, bandwidth, overhead, backend, flops_by_dtype, is_fake; did you mean 'flops'?",
        ),
        (
            edited(devices=[{"name": "left", "available_mem_bytes": -1}]),
            "In this plan devices[0] (left): A device's memory is a number of bytes, not -1; leave it out for "
            "'no limit'.",
        ),
        (
            edited(devices=[{"name": "left", "available_mem_bytes": "lots"}]),
            "In this plan devices[0] (left): 'lots' is not a size in bytes; write it like 40MiB or 2GB.",
        ),
        (
            edited(devices=[{"name": "left"}, {"name": "left"}]),
            "In this plan two devices are called 'left'; give each its own name.",
        ),
        (edited(devices=[], parts=[]), "In this plan: There is no device to place the model on; give at least one"),
        (
            edited(links=[{"first": "left", "second": "top"}]),
            "In this plan: The link left:top names the device 'top', which is not among left, right.",
        ),
        (edited(links=[{"first": "left"}]), "In this plan links[0].second is missing."),
        (
            edited(links=[{"first": "left", "second": "right", "bandwidth": 0}]),
            "In this plan links[0]: A link's bandwidth must be a positive number, not 0.",
        ),
        (
            edited(links=[{"first": "left", "second": "right", "via": "host"}]),
            "In this plan links[0]: A link's via is a list of the names of devices, not 'host'.",
        ),
        (
            edited(links=[{"first": "left", "second": "right", "via": ["host"]}]),
            "In this plan: The link left:right names the device 'host', which is not among left, right.",
        ),
        (
            part(device="lefd"),
            "In this plan parts[0] (left) is on the device 'lefd', which is not among its devices left, right; did you "
            "mean 'left'?",
        ),
        (part(ops="layers.0/*"), "In this plan parts[0].ops is a text; write a list of texts."),
        (part(ops=["layers.0/*", 3]), "In this plan parts[0].ops[1] is a number; write a text."),
        (
            part(ops=["layers.0"]),
            "In this plan parts[0].ops names 'layers.0', which reads neither MODULE/* nor MODULE/OPERATOR#NUMBER; for "
            "a whole module write 'layers.0/*'.",
        ),
        (
            part(ops=["layers.0.*"]),
            "In this plan parts[0].ops names 'layers.0.*', which reads neither MODULE/* nor MODULE/OPERATOR#NUMBER; "
            "for a whole module write 'layers.0/*'.",
        ),
        (
            part(ops=["*"]),
            "In this plan parts[0].ops names '*', which reads neither MODULE/* nor MODULE/OPERATOR#NUMBER; for the "
            "whole model write '/*'.",
        ),
        (
            part(ops=["layers.0/add"]),
            "In this plan parts[0].ops names 'layers.0/add' without a number; write 'layers.0/add#0' for the first of "
            "them in its module, #1 for the next.",
        ),
        (part(name=""), "In this plan parts[0].name is empty; write a text."),
        (part(offload="gpu"), "In this plan parts[0].offload is 'gpu'; write \"cpu\", or leave it out."),
        (
            edited(objective="fastest"),
            "In this plan objective is 'fastest'; there are latency, throughput, memory, devices.",
        ),
        (
            edited(contiguity="pipe"),
            "In this plan contiguity is 'pipe'; there are pipeline, convex, free; did you mean 'pipeline'?",
        ),
        (edited(pipeline=3), "In this plan pipeline is a number; write a text."),
        (
            edited(link=[]),
            "This plan has an entry 'link'; there are version, model, objective, contiguity, pipeline, training, "
            "devices, links, parts, contents, copies, predicted; did you mean 'links'?",
        ),
        (
            edited(contents=["layers.0/*"]),
            "In this plan contents is a list; write an object, or take it out, it is written again.",
        ),
        (
            edited(contents={"layers.0/*": "linear"}),
            "In this plan contents['layers.0/*'] is 'linear'; write it like '1 gelu, 2 linear', or take it out: the "
            "line then stands for what there is.",
        ),
        (
            edited(contents={"layers.0/*": 2}),
            "In this plan contents['layers.0/*'] is a number; write it like '1 gelu, 2 linear', or take it out: the "
            "line then stands for what there is.",
        ),
        (edited(copies=[{"value": "x"}]), "In this plan copies[0].source is missing."),
        (copied(size="2"), "In this plan copies[0].size is a text; write a number of bytes."),
        (copied(size=-1), "In this plan copies[0].size is -1; write a number of bytes."),
        (copied(size=float("nan")), "In this plan copies[0].size is nan; write a number of bytes."),
        (
            edited(predicted={"seconds": "x"}),
            "In this plan predicted.seconds is a text; write a number from 0 on, or take predicted out, it is written "
            "again.",
        ),
        (
            edited(predicted={"bound": float("nan")}),
            "In this plan predicted.bound is nan; write a number from 0 on, or",
        ),
        (
            edited(predicted={"devices": {"left": {"peak_bytes": -1}}}),
            "In this plan predicted.devices.left.peak_bytes is -1; write a number from 0 on, or take predicted out",
        ),
        (
            edited(devices=[{"name": "left", "backend": {}}]),
            "In this plan devices[0] (left): A device's backend is the name of one, such as eager, inductor, "
            "onnxruntime, openvino, not {}.",
        ),
        (
            edited(devices=[{"name": "left", "available_mem_bytes": "1e400"}]),
            "In this plan devices[0] (left): '1e400' is not a size in bytes: it is too large for a number; write it",
        ),
        (edited(predicted=[1]), "In this plan predicted makes no sense; take it out, it is written again."),
        (edited(predicted={"devices": []}), "In this plan predicted makes no sense; take it out, it is written again."),
        (part(nodes=[]), "In this plan parts[0] has an entry 'nodes'; there are name, device, ops, offload, again."),
        (
            edited(parts=[*GOOD["parts"], *GOOD["parts"]]),  # type: ignore[misc]
            "In this plan two parts are called 'left'; give each its own name.",
        ),
    ],
)
def test_a_file_that_is_no_plan_or_was_misspelled_is_refused_with_the_place(data: object, sentence: str) -> None:
    with pytest.raises(PlanError) as caught:
        Plan.from_json(data)  # type: ignore[arg-type]

    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON: Expecting property name enclosed in double quotes: line 1, column 2."),
        ("", "is not JSON: the file is empty."),
        (
            '{"model": "m",\n "parts": [],\n}',
            "is not JSON: a comma stands before the '}' in line 3, column 1; take it out.",
        ),
        ('{"parts": []} x', "is not JSON: something stands behind its end, in line 1, column 15."),
        ('{"version": ' + 5000 * "1" + "}", "cannot be read: a number in it is too long, or it is nested too deep."),
        ('{"parts": [{"name": "a", "name": "b"}]}', "has two entries 'name' in one object; take one out."),
    ],
)
def test_a_slip_in_a_file_is_told_with_its_place(tmp_path: Path, text: str, sentence: str) -> None:
    """What and where; of two entries of one name Python would silently take the last."""
    file = tmp_path / "plan.json"
    file.write_text(text)

    with pytest.raises(PlanError) as caught:
        Plan.load(file)
    assert f"{str(file)!r} {sentence}" == str(caught.value)


def test_a_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    """JSON is UTF-8."""
    (tmp_path / "plan.json").write_bytes(b'{"model": "\xff"}')

    with pytest.raises(PlanError, match="is not JSON: 'utf-8' codec can't decode"):
        Plan.load(tmp_path / "plan.json")


def test_a_plan_is_written_to_a_path(plan: Plan) -> None:
    with pytest.raises(PlanError, match=r"The path of a file is a text or a pathlib\.Path, not 3\."):
        plan.save(3)  # type: ignore[arg-type]


def test_a_path_has_no_null_character(plan: Plan) -> None:
    for use in (plan.save, Plan.load):
        with pytest.raises(PlanError, match=r"has a null character in it, which no path may have: 'a.x00b'"):
            use("a\0b")


def test_a_mark_of_the_encoding_in_front_is_read_over(plan: Plan, tmp_path: Path) -> None:
    """As some editors write it."""
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_json()), encoding="utf-8-sig")

    assert plan == Plan.load(tmp_path / "plan.json")


def test_a_copy_with_an_entry_that_is_not_known_is_refused(plan: Plan) -> None:
    """Like every other object of a plan."""
    data = plan.to_json()
    data["copies"] = [{"value": "x", "source": "left", "target": "right", "size": 4, "bytes": 4}]

    with pytest.raises(PlanError, match=r"In this plan copies\[0\] has an entry 'bytes'; there are value, source,"):
        Plan.from_json(data)


def test_a_plan_of_the_first_version_is_read(plan: Plan) -> None:
    old = {key: value for key, value in plan.to_json().items() if key not in ("pipeline", "contiguity")}

    assert attrs.evolve(plan, pipeline=None, contiguity=None) == Plan.from_json({**old, "version": 1})


def test_a_missing_plan_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"^There is no plan file '.*plan\.json'\.$"):
        Plan.load(tmp_path / "plan.json")


class Underlined(nn.Module):
    """Names that begin and end with what separates words, and one that is called as a part of a lowered module."""

    def __init__(self) -> None:
        super().__init__()
        self._first, self.last_, self.program = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.program(self.last_(self._first(x)))


def test_modules_keep_their_whole_names() -> None:
    model, inputs = Underlined().eval(), (torch.randn(2, 8),)
    lowered = lower(model, inputs, devices=[Device("a")])
    graph = torch.export.export(model, inputs).module(check_guards=False)

    assert ["_first/linear#0", "last_/linear#0", "program/linear#0"] == list(stable_keys(graph).values())
    assert [] == lowered.plan.check(graph)
    mapped = lower(
        model, inputs, device_map={"_first": "a", "last_": "b", "program": "a"}, devices=[*map(Device, "ab")]
    )
    assert {"_first": "a", "last_": "b", "program": "a"} == mapped.plan.device_map()


def test_a_plan_is_read_from_a_path() -> None:
    with pytest.raises(PlanError, match=r"^The path of a plan is a text or a pathlib\.Path, not None\.$"):
        Plan.load(None)  # type: ignore[arg-type]
