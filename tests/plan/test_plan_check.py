"""A plan meets a model that changed: every misfit is named, with the nearest names, and budgets with the bytes."""

from __future__ import annotations

import re
from typing import Any

import attrs
import pytest
import torch
from lowering_models import KeyValueCache, Mlp
from torch import Tensor, nn
from torch.fx import GraphModule

from fxpasses import Device, Plan, PlanError, lower, parse_pipeline, place
from fxpasses.plan import PartPlan, Violation, stable_keys
from fxpasses.units import KiB


class Encoder(nn.Module):
    """Blocks of two operators under a module whose name a test can choose, and one operator of the model itself."""

    def __init__(self, blocks: int = 3, name: str = "layers", linears: int = 1) -> None:
        super().__init__()
        self.name = name
        setattr(self, name, nn.ModuleList(Block(linears) for _ in range(blocks)))
        self.head = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        for block in getattr(self, self.name):
            x = block(x)
        return self.head(x).softmax(-1)


class Block(nn.Module):
    def __init__(self, linears: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(32, 32) for _ in range(linears))

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = torch.nn.functional.linear(x, weight)
        return x.relu()


class Wrapped(nn.Module):
    """The same model inside of another."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x)


class TwoResults(nn.Module):
    """An operator with several results."""

    def forward(self, x: Tensor) -> Tensor:
        first, second = torch.split(x, 16, dim=1)
        return first.relu() @ second.sigmoid().T


DEVICES = (Device("left", 16 * KiB), Device("right", 64 * KiB))


def exported(model: nn.Module) -> GraphModule:
    return torch.export.export(model.eval(), (torch.randn(4, 32),)).module(check_guards=False)


def plan_for(model: GraphModule, **parts: list[str]) -> Plan:
    """Entries by part; the part's device is its name up to ``_``."""
    listed = tuple(PartPlan(name, name.partition("_")[0], tuple(ops)) for name, ops in parts.items())
    return Plan("Encoder", "latency", DEVICES, (), listed)


@pytest.fixture(scope="module")
def encoder() -> GraphModule:
    return exported(Encoder())


@pytest.fixture
def plan(encoder: GraphModule) -> Plan:
    return plan_for(encoder, left=["layers.0/*", "layers.1/*"], right=["layers.2/*", "head/*", "/softmax#0"])


def kinds(found: list[Violation]) -> list[str]:
    return [violation.kind for violation in found]


def test_a_plan_that_fits_has_no_violation(plan: Plan, encoder: GraphModule) -> None:
    assert [] == plan.check(encoder)
    assert [] == plan.check(torch.export.export(Encoder().eval(), (torch.randn(4, 32),)))


def test_a_lowered_models_own_plan_fits_its_program() -> None:
    lowered = lower(Mlp().eval(), (torch.randn(2, 64),), devices=[Device("a", 40 * KiB), Device("b", 40 * KiB)])

    assert [] == lowered.plan.check(lowered.program)


def test_a_renamed_module_is_recognised(plan: Plan) -> None:
    renamed = exported(Encoder(name="blocks"))
    hint = "('layers' seems to be called 'blocks' now: plan.rename_modules({'layers': 'blocks'}) adapts the plan)"

    found = plan.check(renamed)
    with pytest.raises(PlanError) as caught:
        plan.assign(renamed)

    assert {"no part", "not there"} == set(kinds(found))
    assert hint in str(found[0])
    assert hint in str(caught.value)
    assert [] == plan.rename_modules({"layers": "blocks"}).check(renamed)


def test_a_module_that_the_plan_does_not_name_cannot_be_renamed(plan: Plan) -> None:
    """A slip would leave the plan as it is; what an earlier name of the table makes is there for a later one."""
    with pytest.raises(PlanError, match=r"^The plan names nothing in 'layrs'; did you mean 'layers'\?$"):
        plan.rename_modules({"layrs": "blocks"})

    with pytest.raises(PlanError, match=r"^Renames are from a path of a module to another one, and 3 is none\.$"):
        plan.rename_modules({"layers": 3})  # type: ignore[dict-item]
    assert plan == plan.rename_modules({"layers": "blocks", "blocks": "layers"})


def test_two_modules_do_not_become_one() -> None:
    """Its operators would be in two parts."""
    parts = (PartPlan("left", "cpu", ("0/*",)), PartPlan("right", "cpu", ("1/*",)))
    plan = Plan("m", "latency", (Device("cpu"),), (), parts)

    said = "0/* in left and 1/* in right would both be 1/*; rename the other module, too."
    with pytest.raises(PlanError, match=f"^{re.escape(said)}$"):
        plan.rename_modules({"0": "1"})
    assert ["1/*", "0/*"] == [part.ops[0] for part in plan.rename_modules({"0": "1", "1": "0"}).parts]


def test_a_plan_without_parts_is_for_no_model(plan: Plan, encoder: GraphModule) -> None:
    (found,) = attrs.evolve(plan, parts=()).check(encoder)

    assert "it names no operator, and this model has " in str(found)


def test_a_torch_device_that_makes_no_sense_is_found(plan: Plan, encoder: GraphModule) -> None:
    """Budgets are checked all the same, which look at the number of the device."""
    devices = [attrs.evolve(device, torch_device="cuda:x") for device in plan.devices]

    assert {"no torch device"} == set(kinds(attrs.evolve(plan, devices=tuple(devices)).check(encoder)))


def test_a_model_that_was_wrapped_is_recognised_and_one_that_was_unwrapped(plan: Plan, encoder: GraphModule) -> None:
    wrapped = exported(Wrapped(Encoder()))
    inside = plan.rename_modules({"": "model"})
    found, *_others = plan.check(wrapped)

    assert "'the model' seems to be called 'model' now: plan.rename_modules({'': 'model'})" in str(found)
    assert [] == inside.check(wrapped)
    assert "plan.rename_modules({'model': ''})" in str(inside.check(encoder)[0])
    assert [] == inside.rename_modules({"model": ""}).check(encoder)


class Unpacked(nn.Module):
    """What were ``body.0``, ``body.1`` and ``head``, and one more operator."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(32, 32)
        self.add_module("0", nn.Linear(32, 32))
        self.add_module("1", nn.Linear(32, 32))
        self.top = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.get_submodule("1")(self.get_submodule("0")(self.stem(x)))).tanh()


def test_the_call_that_is_advised_can_be_made(encoder: GraphModule) -> None:
    """A module that was unpacked, and one beside it that was renamed: what does not follow is told."""
    plan = plan_for(encoder, left=["stem/*", "body.0/*"], right=["body.1/*", "head/*"])
    now = exported(Unpacked())

    found = plan.check(now)

    assert "plan.rename_modules({'body': '', 'head': 'top'}) lets more of it fit" in str(found[0])
    assert ["/tanh#0"] == [each.op for each in plan.rename_modules({"body": "", "head": "top"}).check(now)]


class Gated(nn.Module):
    """Another model than the encoder, which also multiplies at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.gate(x).sigmoid() * self.up(x)).softmax(-1)


def test_an_operator_in_no_module_makes_no_plan_fit(plan: Plan) -> None:
    """Both models end with a softmax; none of the modules is there."""
    (found,) = plan.check(exported(Gated()))

    assert "another model" == found.kind


def test_an_added_layer_has_no_part(plan: Plan) -> None:
    (violation,) = plan.check(exported(Encoder(4)))

    assert "no part" == violation.kind
    assert "layers.3/linear#0" == violation.op
    assert str(violation).startswith(
        "2 operators of module 'layers.3' have no part (layers.3/linear#0, layers.3/relu#0); add them to one"
    )


def test_a_module_without_a_part_is_one_violation_however_much_is_in_it(plan: Plan) -> None:
    """Of nested modules the outermost one of which nothing has a part is named."""
    found = plan.check(exported(Wrapped(Encoder())))

    assert ["no part"] + ["not there"] * 5 == kinds(found)
    assert str(found[0]).startswith(
        "8 operators of module 'model' have no part (model.layers.0/linear#0, model.layers.0/relu#0"
    )


def test_a_layer_that_is_gone_is_named(plan: Plan) -> None:
    (violation,) = plan.check(exported(Encoder(2)))

    assert ("not there", "layers.2/*") == (violation.kind, violation.op)
    assert str(violation).startswith(
        "right names layers.2/*, which the model does not have; take it out, or place again (nearest to layers.2/* in "
        "the model: "
    )


def test_what_comes_near_stands_with_what_it_is_about(plan: Plan) -> None:
    right = plan.parts[-1]
    slip = attrs.evolve(right, ops=[op.replace("/softmax#0", "/softmin#0") for op in right.ops])

    found = attrs.evolve(plan, parts=[*plan.parts[:-1], slip]).check(exported(Encoder()))

    assert [
        "/softmax#0 has no part; add it to one, or place again (nearest to /softmax#0 in the plan: /softmin#0).",
        "right names /softmin#0, which the model does not have; take it out, or place again (nearest to /softmin#0 in "
        "the model: /softmax#0).",
    ] == list(map(str, found))


def test_another_number_of_operators_in_a_module_is_counted(encoder: GraphModule) -> None:
    plan = plan_for(encoder, left=[*stable_keys(encoder).values()])

    (first, *others) = plan.check(exported(Encoder(linears=2)))

    assert "layers.0/linear#1 has no part; add it to one" in str(first)
    assert "(layers.0 has 2 x linear now, the plan knows 1)" in str(first)
    assert ["no part", "no part"] == kinds(others)


def test_a_plan_for_another_model_says_so(plan: Plan) -> None:
    other = exported(TwoResults())

    (violation,) = plan_for(other, left=["layers.0/*", "head/*"]).check(other)
    with pytest.raises(PlanError) as caught:
        plan_for(other, left=["layers.0/*", "head/*"]).assign(other)

    assert "another model" == violation.kind
    assert str(caught.value) == str(violation)
    assert str(violation).startswith(
        "This is a plan for Encoder, another model: it names layers.0/*, head/*, and this model has /split#0, "
        "/getitem#0, /getitem#1 and 4 more. Place this model, or take the plan that was written for it."
    )


def test_an_entry_in_two_parts_is_refused(plan: Plan, encoder: GraphModule) -> None:
    left, right = plan.parts
    twice = attrs.evolve(plan, parts=(left, attrs.evolve(right, ops=(*right.ops, "layers.0/*"))))

    assert ["layers.0/* stands in two parts, left and right; take it out of one."] == list(
        map(str, twice.check(encoder))
    )
    with pytest.raises(
        PlanError, match=r"^The plan for Encoder gives layers\.0/\* to two parts, left and right; take it"
    ):
        twice.assign(encoder)


def test_finer_entries_count_before_coarser_ones(encoder: GraphModule) -> None:
    plan = plan_for(encoder, left=["layers/*", "layers.2/linear#0"], right=["/*", "layers.2/*"])
    part_of = {key: plan.assign(encoder).partition_of[node] for node, key in stable_keys(encoder).items()}

    assert ("left", "left", "right", "right") == tuple(
        part_of[key] for key in ("layers.1/relu#0", "layers.2/linear#0", "layers.2/relu#0", "/softmax#0")
    )


def test_an_entry_that_finer_ones_leave_nothing_is_no_mistake(encoder: GraphModule) -> None:
    whole = plan_for(encoder, left=["layers.0/*"], right=["layers.0/linear#0", "layers.0/relu#0", "/*"])

    assert [] == [found for found in whole.check(encoder) if found.kind != "budget"]


def test_a_passed_budget_says_bytes_device_and_operator(plan: Plan, encoder: GraphModule) -> None:
    small = [Device("left", 9 * KiB), Device("right", 64 * KiB)]

    (violation,) = plan.check(encoder, devices=small)

    assert ("budget", "left") == (violation.kind, violation.device)
    assert violation.op is not None
    assert f" at {violation.op} (from " in str(violation)
    assert f", {violation.missing_bytes} B over its budget of 9.00 KiB (parameters 8.00 KiB, " in str(violation)
    assert str(violation).startswith("left holds ")


def test_devices_as_they_are_now_count(plan: Plan, encoder: GraphModule) -> None:
    assert ["no device"] == kinds(plan.check(encoder, devices=[Device("left"), Device("middle")]))
    assert [
        "The plan puts right on right, which is not among the devices left, middle; add it, or place the model again."
    ] == list(map(str, plan.check(encoder, devices=[Device("left"), Device("middle")])))


def test_an_operator_that_its_device_does_not_support_is_named(plan: Plan, encoder: GraphModule) -> None:
    picky = Device("right", supports=lambda _modules, node: "softmax" not in str(node.target))

    (violation,) = plan.check(encoder, devices=[Device("left"), picky])

    assert ("unsupported", "right", "/softmax#0") == (violation.kind, violation.device, violation.op)
    assert "right does not support /softmax#0 (aten.softmax.int); move it to another device." == str(violation)


def test_a_torch_device_that_this_machine_lacks_is_named(plan: Plan, encoder: GraphModule) -> None:
    far = [attrs.evolve(plan.devices[0], torch_device="cuda:99"), plan.devices[1]]

    (violation,) = plan.check(encoder, devices=far, on_this_machine=True)

    assert "no torch device" == violation.kind
    assert "The plan runs left on left, which is the torch device cuda:99; this machine has none." == str(violation)


def test_a_torch_device_that_holds_no_data_is_named_where_the_plan_is_to_run(plan: Plan, encoder: GraphModule) -> None:
    paper = [attrs.evolve(plan.devices[0], torch_device="meta"), plan.devices[1]]

    (violation,) = plan.check(encoder, devices=paper, on_this_machine=True)

    assert "The plan runs left on left, which is the torch device meta; it holds no data and runs nothing." == str(
        violation
    )
    assert [] == plan.check(encoder, devices=paper)


def test_a_torch_device_that_torch_does_not_know_is_named_wherever_the_plan_is_checked(
    plan: Plan, encoder: GraphModule
) -> None:
    """As a violation, not as an error of torch; on this machine or not."""
    misspelled = [attrs.evolve(plan.devices[0], torch_device="cudda:0"), plan.devices[1]]

    for here in (False, True):
        (violation,) = plan.check(encoder, devices=misspelled, on_this_machine=here)

        assert "no torch device" == violation.kind
        assert "The plan runs left on left, which is the torch device 'cudda:0'; torch knows none of that name." == str(
            violation
        )


def test_a_torch_device_that_torch_does_not_know_is_named_where_no_part_is_on_it(
    plan: Plan, encoder: GraphModule
) -> None:
    """Following the plan is refused for it; a device that this machine lacks is in nobody's way there."""
    spare = attrs.evolve(plan, devices=(*plan.devices, Device("spare", torch_device="cudda")))
    absent = attrs.evolve(plan, devices=(*plan.devices, Device("spare", torch_device="cuda:99")))

    assert ["spare is the torch device 'cudda'; torch knows none of that name."] == list(map(str, spare.check(encoder)))
    assert [] == absent.check(encoder, on_this_machine=True)


def test_a_backend_that_does_not_exist_is_named(plan: Plan, encoder: GraphModule) -> None:
    """Following the plan is refused for it, so that checking it has to say it, too."""
    strange = [attrs.evolve(plan.devices[0], backend="npu"), plan.devices[1]]

    (violation,) = plan.check(encoder, devices=strange)

    assert ("no backend", "left") == (violation.kind, violation.device)
    assert "left has the backend 'npu'; there are eager, inductor, onnxruntime, openvino." == str(violation)


def test_parts_that_would_wait_for_each_other_are_refused(encoder: GraphModule) -> None:
    plan = plan_for(encoder, left=["layers.0/*", "layers.2/*"], right=["layers.1/*", "head/*", "/softmax#0"])

    assert ["cycle"] == kinds(plan.check(encoder))


def test_parts_in_an_order_in_which_they_cannot_run_are_refused(plan: Plan, encoder: GraphModule) -> None:
    assert ["order"] == kinds(attrs.evolve(plan, parts=plan.parts[::-1]).check(encoder))


def test_the_results_of_an_operator_stay_where_it_is() -> None:
    graph = exported(TwoResults())
    plan = plan_for(graph, left=["/split#0"], right=["/*"])

    with pytest.raises(PlanError) as caught:
        plan.assign(graph)

    assert ["torn apart"] == kinds(plan.check(graph))
    assert (
        "The plan for Encoder puts /split#0 on left and /getitem#0 on right, but getitem takes an element of the "
        "results of split; keep them on one device." == str(caught.value)
    )


def test_state_that_is_written_stays_where_it_is_used() -> None:
    args = (torch.randn(1, 1, 8), torch.tensor([0]))
    graph = torch.export.export(KeyValueCache(8, 16).eval(), args).module(check_guards=False)
    keys = list(stable_keys(graph).values())
    read = keys.index("/transpose#0")
    plan = plan_for(graph, left=keys[:read], right=keys[read:])

    with pytest.raises(PlanError, match=r"puts .* on left and .* on right, but both use what index_copy_ writes"):
        plan.assign(graph)

    assert {"torn apart"} == set(kinds(plan.check(graph)))


def test_violations_are_plain_data(plan: Plan) -> None:
    (violation,) = plan.check(exported(Encoder(4)))

    assert {"kind", "message", "op"} == violation.to_json().keys()


def test_a_plan_is_simulated_without_its_devices(plan: Plan, encoder: GraphModule) -> None:
    elsewhere = attrs.evolve(plan, devices=tuple(attrs.evolve(d, torch_device="cuda:7") for d in plan.devices))

    run = elsewhere.simulate(encoder, samples=3)

    assert ("left", "right", "left → right") == run.timeline.tracks
    assert 3 == run.samples


IDLE = "neither it nor a later part on its device uses"


@pytest.mark.parametrize(
    ("again", "message"),
    [
        ("layers.0/relu#0", f"right computes layers.0/relu#0 again, but {IDLE} its value; take it out of `again`."),
        ("layers.0/*", f"right computes layers.0/* again, but {IDLE} a value of that; take it out of `again`."),
    ],
)
def test_what_is_computed_again_for_nothing_is_named(
    plan: Plan, encoder: GraphModule, again: str, message: str
) -> None:
    """It would be left out without a word: the part reads the second block only, and gets that sent."""
    left, right = plan.parts
    slip = attrs.evolve(plan, parts=(left, attrs.evolve(right, again=(again,))))

    (violation,) = slip.check(encoder)
    with pytest.raises(PlanError) as caught:
        slip.assign(encoder)

    assert ("again", again, message) == (violation.kind, violation.op, str(violation))
    assert f"The plan for Encoder lets right compute {again} again, but {IDLE}" in str(caught.value)
    assert caught.value.node is not None


def test_what_another_replica_or_a_later_part_uses_is_computed_again(encoder: GraphModule) -> None:
    """Of a module one value is enough; a replica serves the later parts of its device."""
    chained = plan_for(encoder, left=["layers.0/*", "layers.1/*"], right=["layers.2/*", "head/*", "/softmax#0"])
    left, right = chained.parts
    again = attrs.evolve(chained, parts=(left, attrs.evolve(right, again=("layers.0/*", "layers.1/*"))))
    turns = plan_for(
        encoder,
        left=["layers.0/*"],
        right_first=["layers.1/*"],
        left_then=["layers.2/*"],
        right_end=["head/*", "/softmax#0"],
    )
    served, first, then, end = turns.parts
    later = attrs.evolve(turns, parts=(served, attrs.evolve(first, again=("layers.2/*",)), then, end))

    assert [] == again.check(encoder)
    assert [] == later.check(encoder)
    with pytest.raises(
        PlanError, match=r"right computes layers\.0/\* again, and a map has each operator once; device_m"
    ):
        again.device_map(encoder)


def test_modules_change_places_at_once(plan: Plan) -> None:
    parts = (PartPlan("a", "left", ("a/*", "layers.0/*", "layers.1.fc/x#0")), PartPlan("b", "right", ("b/*",)))
    named = attrs.evolve(plan, parts=parts)

    swapped = named.rename_modules({"a": "b", "b": "a"})
    shifted = named.rename_modules({"layers.0": "layers.1", "layers.1": "layers.2", "layers": "blocks"})

    assert [("b/*", "layers.0/*", "layers.1.fc/x#0"), ("a/*",)] == [part.ops for part in swapped.parts]
    assert ("a/*", "layers.1/*", "layers.2.fc/x#0") == shifted.parts[0].ops


def test_what_is_no_table_and_no_plan_is_refused(plan: Plan) -> None:
    with pytest.raises(PlanError, match=r"^Renames are a dict like \{'layers': 'blocks'\}, not 'a'\.$"):
        plan.rename_modules("a")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"^A plan is compared with a Plan, not 'x\.json'; of a file write Plan\.load"):
        plan.diff("x.json")  # type: ignore[arg-type]


class Layers(nn.Module):
    """Layers with an activation that a test can choose, a dropout, views, and a size."""

    def __init__(self, activation: type[nn.Module] = nn.ReLU, layers: int = 4) -> None:
        super().__init__()
        views = nn.Unflatten(1, (2, 16)), nn.Flatten()
        inner = (nn.Sequential(nn.Linear(32, 32), activation(), nn.Dropout(0.1), *views) for _ in range(layers))
        self.layers = nn.ModuleList(inner)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x) / x.shape[0]
        return x


class Branch(nn.Module):
    """A branch in a module."""

    def __init__(self, activation: Any = torch.relu) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = torch.cond(x.sum() > 0, self.activation, torch.cos, (x,))
        return result


X = torch.randn(4, 32)
"""Inputs of the models above."""


def prepared(model: nn.Module, **options: Any) -> GraphModule:
    return place(model, (X,), devices=[Device("here")], **options).prepared.graph_module


@pytest.fixture(scope="module")
def layers_plan() -> Plan:
    halves = {f"layers.{index}": ("left", "right")[index // 2] for index in range(4)}
    return place(Layers().eval(), (X,), devices=[Device("left"), Device("right")], device_map=halves).plan


def test_a_plan_says_what_its_lines_for_modules_stand_for(layers_plan: Plan) -> None:
    """The same for sizes that may change: views and sizes are left out."""
    batch = {0: torch.export.Dim("batch", max=8)}

    facts = layers_plan.to_json()
    again = prepared(Layers().eval(), dynamic_shapes=[batch])
    whole = place(Layers().eval(), (X,), devices=[Device("left")]).plan

    assert dict.fromkeys((f"layers.{i}/*" for i in range(4)), "1 linear, 1 relu") == facts["contents"]
    assert layers_plan == Plan.from_json(facts)
    assert {"/*": {"add": 4, "div": 4, "linear": 4, "relu": 4}} == whole.contents
    assert any("/sym_size" in key for key in stable_keys(again).values())
    assert [] == [*layers_plan.check(again), *whole.check(again)]


def test_operators_that_were_swapped_under_a_line_for_a_module_are_told(layers_plan: Plan) -> None:
    """Once for all lines that changed alike; the plan is followed all the same, and then says what there is now."""
    model = Layers(nn.GELU).eval()

    (violation,) = layers_plan.check(prepared(model))
    lowered = lower(model, (X,), plan=layers_plan)

    assert ("changed", "layers.0/*") == (violation.kind, violation.op)
    assert str(violation) == (
        "layers.0/*, layers.1/*, layers.2/* and 1 more stand for other operators than when the plan was written: 1 x "
        "gelu (0 before), 0 x relu (1 before); place again, or follow the plan as it is and write it anew (place "
        "--plan FILE --out FILE)."
    )
    assert torch.equal(model(X), lowered(X))
    assert {"gelu": 1, "linear": 1} == lowered.plan.contents["layers.0/*"]
    assert [] == lowered.plan.check(lowered.program)


def test_one_module_that_changed_is_told_alone(layers_plan: Plan) -> None:
    model = Layers().eval()
    model.layers[2].train()  # its dropout is there in training only

    (violation,) = layers_plan.check(prepared(model))

    assert str(violation).startswith(
        "layers.2/* stands for other operators than when the plan was written: 1 x dropout (0 before); place again"
    )


def test_edits_by_hand_need_not_care_what_lines_stand_for(layers_plan: Plan) -> None:
    """A line may be cut into finer ones, or be left for what these leave of it, or several be put together."""
    left, right = layers_plan.parts
    cut = ("layers.0.0/*", "layers.0.1/gelu#0", "layers.0.3/*", "layers.0.4/*", "/div#0", "/add#0")
    together = (attrs.evolve(left, ops=cut), attrs.evolve(right, ops=("layers/*", "/*")))
    first = attrs.evolve(left, ops=(*left.ops, "layers.2.0/linear#0"))
    swapped = prepared(Layers(nn.GELU).eval())

    assert [] == attrs.evolve(layers_plan, parts=together).check(swapped)
    assert [] == attrs.evolve(layers_plan, contents={}).check(swapped)
    assert [] == attrs.evolve(layers_plan, parts=(first, right)).check(prepared(Layers().eval()))


def test_lines_with_other_names_stand_for_what_they_stood_for(layers_plan: Plan) -> None:
    renamed = layers_plan.rename_modules({"": "model"})

    (violation,) = renamed.check(prepared(Wrapped(Layers(nn.GELU)).eval()))

    assert [] == renamed.check(prepared(Wrapped(Layers()).eval()))
    assert str(violation).startswith("model.layers.0/*, model.layers.1/*, model.layers.2/* and 1 more stand for other")


@pytest.mark.parametrize(("activation", "difference"), [(torch.relu, []), (torch.sin, ["1 x sin", "0 x relu"])])
def test_what_branches_are_made_of_counts(activation: Any, difference: list[str]) -> None:
    plan = place(Wrapped(Branch()).eval(), (X,), devices=[Device("left")]).plan

    found = plan.check(prepared(Wrapped(Branch(activation)).eval()))

    assert {"cond": 1, "cos": 1, "gt": 1, "relu": 1, "sum": 1} == plan.contents["/*"]
    assert bool(difference) == bool(found)
    assert all(each in str(found[0]) for each in difference)


def test_what_no_pass_has_cleaned_up_is_told() -> None:
    """A program that was exported again has operators that nobody uses, and ordinals move with them."""

    class Unused(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.relu(x).sum()
            return torch.relu(x + 1)

    x = torch.ones(2)
    planned = place(Unused(), (x,), devices=[Device("only")])
    plan = attrs.evolve(planned.plan, parts=[PartPlan("only", "only", ("/add#0", "/relu#0"))], contents={})
    raw = torch.export.export(Unused(), (x,))

    said = (
        " (the graph has operators that nobody uses, which the passes of a plan take away: run them first, as "
        "parse_pipeline(plan.pipeline)(program).exported_program does)."
    )
    (first, *_others) = plan.check(raw)
    assert first.message.endswith(said)
    with pytest.raises(PlanError, match=re.escape(said)):
        plan.simulate(raw)
    assert [] == plan.check(parse_pipeline(plan.pipeline)(raw).exported_program)
