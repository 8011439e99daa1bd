"""A plan that was made with fixed sizes fits the model with dynamic ones: what handles sizes goes where it is used."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch
from lowering_models import cpu_pair
from torch import Tensor, nn

from fxpasses import Plan, lower, place
from fxpasses.guards import GUARDS
from fxpasses.partitioners import place_by_device
from fxpasses.plan import stable_keys

BOTH = ({0: torch.export.Dim("batch", min=2, max=16), 1: torch.export.Dim("rows", min=2, max=16)},)


class Layer(nn.Module):
    """Reads sizes and computes with them, beside additions and products of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        batch, rows, _ = x.shape
        halves = self.linear(x).reshape(batch, rows * 2, 4) * 2
        return x + halves.reshape(batch, rows, 8) * (rows + 1)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.layers = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + torch.arange(tokens.shape[1])[:, None]
        for layer in self.layers:
            x = layer(x)
        return x.reshape(tokens.shape[0], -1)


@pytest.fixture(scope="module")
def model() -> Model:
    return Model().eval()


TOKENS = torch.arange(12).reshape(3, 4) % 10


def planned(model: Model, **devices: str) -> Plan:
    device_map = {"embed": "left", "": "left", **{f"layers.{name[1:]}": home for name, home in devices.items()}}
    return place(model, (TOKENS,), devices=cpu_pair(), device_map=device_map).plan


@pytest.mark.parametrize(
    "homes",
    [
        {"_0": "left", "_1": "left", "_2": "right", "_3": "right"},
        {"_0": "left", "_1": "right", "_2": "left", "_3": "right"},
    ],
)
def test_a_plan_of_four_layers_is_replayed_with_dynamic_sizes(model: Model, homes: dict[str, str]) -> None:
    plan = planned(model, **homes)
    larger = torch.arange(35).reshape(5, 7) % 10

    lowered = lower(model, (TOKENS,), plan=plan, dynamic_shapes=BOTH)

    assert torch.equal(model(TOKENS), lowered(TOKENS))
    assert torch.equal(model(larger), lowered(larger))
    assert [] == plan.check(lowered.program)
    assert [part.device for part in plan.parts] == [part.device for part in lowered.plan.parts]


def test_its_tensors_stay_where_the_plan_has_them(model: Model) -> None:
    """A product of sizes counted as a product of tensors, which all had another number then."""
    plan = planned(model, _0="left", _1="left", _2="right", _3="right")
    static = place(model, (TOKENS,), plan=plan)
    dynamic = place(model, (TOKENS,), plan=plan, dynamic_shapes=BOTH)

    homes = [
        {
            key: each.assignment.partition_of[node]
            for node, key in stable_keys(each.graph_module).items()
            if "/sym_" not in key
        }
        for each in (static, dynamic)
    ]

    assert homes[0] == homes[1]


def test_a_size_that_a_line_covers_too_late_goes_where_it_is_used(model: Model) -> None:
    """``/*`` covers the sizes of the inputs, which the first part uses."""
    plan = planned(model, _0="left", _1="left", _2="right", _3="right")
    left = ("embed/*", "/arange#0", "/unsqueeze#0", "/add#0", "layers.0/*", "layers.1/*")
    parts = [attrs.evolve(part, ops=ops) for part, ops in zip(plan.parts, (left, ("/*",)), strict=False)]
    edited = attrs.evolve(plan, parts=tuple(parts))

    program = torch.export.export(model, (TOKENS,), dynamic_shapes=BOTH)

    assert [] == edited.check(program)
    assert torch.equal(model(TOKENS), lower(model, (TOKENS,), plan=edited, dynamic_shapes=BOTH)(TOKENS))


def test_a_plan_made_with_dynamic_sizes_fits_them(model: Model) -> None:
    made = place(model, (TOKENS,), devices=cpu_pair(), dynamic_shapes=BOTH, pinned={"layers.3": "right"})

    followed = place(model, (TOKENS,), plan=made.plan, dynamic_shapes=BOTH)

    keys = stable_keys(made.graph_module)
    homes = {key: made.assignment.partition_of[node] for node, key in keys.items()}
    again = {key: followed.assignment.partition_of[node] for node, key in stable_keys(followed.graph_module).items()}
    assert made.plan.parts == followed.plan.parts
    assert homes == again


@pytest.mark.parametrize("dynamic", [None, ({0: BOTH[0][0]},), ({1: BOTH[0][1]},)], ids=["none", "first", "second"])
def test_a_plan_made_with_dynamic_sizes_fits_the_model_with_fewer_of_them(model: Model, dynamic: Any) -> None:
    """Its lines for ``/sym_size#1`` named an operator that the model does not have, "it changed since"."""
    homes = {"embed": "left", "layers.0": "left", "layers.1": "right", "layers.2": "left", "": "right"}
    made = place(model, (TOKENS,), devices=cpu_pair(), dynamic_shapes=BOTH, device_map=homes).plan
    assert any("/sym_size" in entry for part in made.parts for entry in part.ops)

    lowered = lower(model, (TOKENS,), plan=made, dynamic_shapes=dynamic)

    assert [] == made.check(lowered.program)
    assert torch.equal(model(TOKENS), lowered(TOKENS))


def test_the_call_that_checks_inputs_needs_no_line(model: Model) -> None:
    """``program.module()`` has one, unless told otherwise, and the graph that was placed had none; or the reverse."""
    plan = planned(model, _0="left", _1="left", _2="right", _3="right")
    program = torch.export.export(model, (TOKENS,))
    guarded = program.module()
    found = place_by_device(guarded, plan.topology)
    written = Plan.of("m", "latency", plan.topology, found.assignment, found.device_of)

    assert [] == plan.check(guarded)
    assert plan.simulate(program).seconds == plan.simulate(guarded).seconds
    (check,) = guarded.graph.find_nodes(op="call_module", target=GUARDS)
    assert "left" == str(plan.assign(guarded).partition_of[check])
    assert [] == written.check(guarded) == written.check(program)
