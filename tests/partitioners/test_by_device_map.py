"""Which module runs where, as a dict that is given, and as one that a plan gives."""

from __future__ import annotations

import re
from typing import Any

import attrs
import pytest
import torch
from lowering_models import KeyValueCache, Mlp, Tied, cpu_pair
from torch import Tensor, nn

from fxpasses import (
    Device,
    InfeasibleError,
    InputError,
    LoweredModule,
    PlacementError,
    PlanError,
    Topology,
    lower,
    place,
)
from fxpasses.cli.demo_model import demo_llama
from fxpasses.partitioners.by_device_map import devices_of_map, place_by_device_map
from fxpasses.partitioners.placing.names.device_maps import map_of_operators
from fxpasses.plan import Plan, stable_keys
from fxpasses.plan.parts import PartPlan
from fxpasses.units import KiB


class Blocks(nn.Module):
    """Two blocks with a scale of their own (Complaint 24), and a module that leaves no operator behind."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.rest = nn.Dropout()
        self.head = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.rest(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("layer_scalar", torch.full((8,), 0.5))
        self.register_buffer("shift", torch.ones(8), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x))) * self.layer_scalar + self.shift


def mapped(device_map: dict[str, Any], model: nn.Module | None = None, **options: Any) -> LoweredModule:
    options.setdefault("devices", cpu_pair())
    return lower(model or Blocks().eval(), (torch.randn(2, 8),), device_map=device_map, **options)


def homes(lowered: LoweredModule) -> dict[str, str]:
    """The device of each operator, by its stable name."""
    keys = stable_keys(lowered.program.module(check_guards=False).graph)
    return {key: lowered.report.reasons[key].split(" on ")[1].split(":")[0] for key in keys.values()}


def test_each_module_runs_where_the_map_says_and_the_longest_path_counts() -> None:
    model, x = Blocks().eval(), torch.randn(2, 8)

    lowered = mapped({"": "right", "blocks.0": "left", "blocks.1.second": "left"}, model)

    where = homes(lowered)
    assert "left" == where["blocks.0.first/linear#0"]
    assert "right" == where["blocks.1.first/linear#0"]
    assert "left" == where["blocks.1.second/linear#0"]
    assert "right" == where["head/linear#0"]
    assert torch.equal(model(x), lowered(x))


def test_what_only_holds_modules_of_the_map_needs_no_entry() -> None:
    """As Hugging Face writes maps: the additions between blocks stay with the block before them."""
    lowered = mapped({"blocks.0": "left", "blocks.1": "right", "head": "right"})

    assert ["left", "right"] == [part.device for part in lowered.plan.parts]


def test_every_tensor_is_placed_once_though_the_map_names_only_layers() -> None:
    """Complaint 24: buffers beside layers, persistent or not, and constants have a place by construction."""
    model, x = Blocks().eval(), torch.randn(2, 8)
    named = {f"blocks.{i}.{name}": side for i, side in enumerate(("left", "right")) for name in ("first", "second")}

    lowered = mapped({**named, "head": "right"}, model)

    assert set(model.state_dict()) == set(lowered.state_dict())
    assert "left" == homes(lowered)["blocks.0/mul#0"]
    assert "right" == homes(lowered)["blocks.1/mul#0"]
    assert torch.equal(model(x), lowered(x))


def test_torch_devices_need_no_list_of_devices() -> None:
    model, x = Blocks().eval(), torch.randn(2, 8)

    lowered = lower(model, (x,), device_map={"": torch.device("cpu")})

    assert ["cpu"] == [device.name for device in lowered.plan.devices]
    assert torch.equal(model(x), lowered(x))


def test_a_torch_device_stands_for_the_device_that_is_there() -> None:
    devices = [Device("host"), Device("nowhere", torch_device="meta")]

    lowered = mapped({"head": "cpu", "": "host"}, devices=devices)

    assert {"": "host"} == lowered.plan.device_map()


def test_a_gpu_that_is_not_here_can_be_planned_by_its_number() -> None:
    """As Hugging Face writes it; ``place`` needs no hardware."""
    planned = place(Blocks().eval(), (torch.randn(2, 8),), device_map={"": 0, "head": "cpu"})

    assert {"cuda0": "cuda:0", "cpu": "cpu"} == {each.name: each.torch_device for each in planned.plan.devices}
    assert {"": "cuda0", "head": "cpu"} == planned.plan.device_map()
    assert {"": "cuda:0", "head": "cpu"} == planned.plan.device_map(torch_devices=True)


@pytest.mark.parametrize("given", [{"": 0, "head": "cpu"}, {"": "cpu:1", "head": "cpu"}, {"": "cuda:1", "head": 0}])
@pytest.mark.parametrize("torch_devices", [False, True])
def test_the_map_of_a_plan_is_taken_again(given: dict[str, Any], torch_devices: bool) -> None:
    model, x = Blocks().eval(), torch.randn(2, 8)
    planned = place(model, (x,), device_map=given)

    again = place(model, (x,), device_map=planned.plan.device_map(torch_devices=torch_devices))

    assert planned.plan.device_map() == again.plan.device_map()


def test_a_module_without_operators_and_a_parameter_may_be_named() -> None:
    """Maps of Hugging Face list dropouts and single tensors as well."""
    lowered = mapped({"rest": "left", "blocks": "left", "head.weight": "right"})

    assert "right" == homes(lowered)["head/linear#0"]


def test_what_writes_to_a_buffer_stays_together() -> None:
    """State is written and read on one device, whatever the map says about the modules that read it."""
    model = KeyValueCache().eval()
    args = (torch.randn(1, 1, 16), torch.tensor([0]))

    lowered = lower(model, args, devices=cpu_pair(), device_map={"qkv": "left", "out": "right", "": "right"})

    assert torch.equal(model(*args), lowered(*args))
    assert torch.equal(model.keys, lowered.state_dict()["keys"])


class Written(nn.Module):
    """Layers that write in place: to what came before them, or to a product of their own."""

    def __init__(self, *, own: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(InPlace(own=own) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        for layer in self.layers:
            x = layer(x)
        return x


class InPlace(nn.Module):
    def __init__(self, *, own: bool) -> None:
        super().__init__()
        self.own, self.weight = own, nn.Parameter(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = torch.einsum("bi,ij->bj", x, self.weight)
        return product.mul_(0.5) if self.own else x.add_(product)


def test_a_part_says_what_the_map_puts_elsewhere() -> None:
    """The writes of one memory cannot be parted; the part where they run tells what the map says of them."""
    device_map = {"": "left", "layers.1": "right", "layers.2": "right"}

    reasons = mapped(device_map, Written(own=False).eval()).report.reasons

    told = "; it puts einsum_1 and 3 more on right, but they must share a device with what is here (a write, a tuple)"
    assert reasons["layers.0/add_#0"] == f"left on left: the device map says so{told}"
    assert reasons["layers.2/add_#0"].endswith(told)


def test_what_einsum_makes_of_several_is_its_own() -> None:
    """A write to a product of einsum ties nothing to its operands."""
    device_map = {"": "left", "layers.1": "right", "layers.2": "right"}

    lowered = mapped(device_map, Written(own=True).eval())

    assert {"layers.0/mul_#0": "left", "layers.1/mul_#0": "right"}.items() <= homes(lowered).items()
    assert {"left on left: the device map says so", "right on right: the device map says so"} == set(
        lowered.report.reasons.values()
    )


def test_a_tied_weight_may_be_used_on_both_sides() -> None:
    """Complaint 25: tied weights are one parameter on two devices."""
    model, ids = Tied().eval(), torch.randint(0, 50, (2, 5))

    lowered = lower(model, (ids,), devices=cpu_pair(), device_map={"embed": "left", "middle": "left", "head": "right"})

    assert torch.equal(model(ids), lowered(ids))
    assert len(list(model.parameters())) == len(list(lowered.parameters()))


def test_the_parts_of_a_map_are_of_no_kind_that_was_searched() -> None:
    """A map may go back and forth between devices, which no pipeline does."""
    lowered = mapped({"0": "left", "1": "right", "2": "left"}, nn.Sequential(*(nn.Linear(8, 8) for _ in range(3))))

    assert ["left", "right", "left_1"] == [part.name for part in lowered.plan.parts]
    assert lowered.plan.contiguity is None


def test_a_plan_gives_the_map_that_makes_it() -> None:
    """There and back: lowering with the map of a plan gives its parts again."""
    model, args, kwargs = demo_llama(3)
    given = {"model.layers.2": "right", "model.norm": "right", "lm_head": "right", "": "left"}
    lowered = lower(model, args, kwargs, devices=cpu_pair(), device_map=given)

    made = lowered.plan.device_map(strict=False)
    again = lower(model, args, kwargs, devices=cpu_pair(), device_map=made)

    assert lowered.plan.parts == again.plan.parts
    assert "left" == made["model.layers.0"] if "model.layers.0" in made else made["model"]


def test_the_map_of_a_plan_is_as_short_as_it_can_be() -> None:
    operators = [("a.x", "left"), ("a.y", "left"), ("a", "left"), ("b", "right"), ("b.z", "right")]

    assert {"a": "left", "b": "right"} == map_of_operators(operators)
    assert {"": "left"} == map_of_operators([("", "left"), ("a.b", "left")])
    assert {"m": "left", "m.b": "right"} == map_of_operators([("m", "left"), ("m.a", "left"), ("m.b", "right")])


def test_a_module_torn_between_devices_is_refused_or_goes_where_most_of_it_is() -> None:
    operators = [("m", "left"), ("m", "right"), ("m", "right"), ("m.a", "left")]

    with pytest.raises(PlanError) as caught:
        map_of_operators(operators)

    assert (
        "The module 'm' has operators of its own on left, right, which a device map says only where they stay with the "
        "operators before them; device_map(program) finds out whether they do, device_map(strict=False) gives the "
        "nearest map, and the plan itself (lower_with_plan) stays exact."
    ) == str(caught.value)
    with pytest.raises(PlanError, match=r"^The model itself has operators of its own on left, right, which a device"):
        map_of_operators([("", "left"), ("", "right")])
    assert {"m": "right", "m.a": "left"} == map_of_operators(operators, strict=False)


def test_additions_between_layers_on_two_devices_stay_with_the_operators_before_them() -> None:
    """A map without the module that adds: with it, each sum would go back to one device."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = x + layer(x)
            return x

    model, x = Residual().eval(), torch.randn(2, 64)
    lowered = lower(model, (x,), devices=cpu_pair(40 * KiB, 40 * KiB))

    made = lowered.plan.device_map(strict=False)
    again = lower(model, (x,), devices=cpu_pair(), device_map=made)

    assert {"layers.0": "left", "layers.1": "left", "layers.2": "right", "layers.3": "right"} == made
    assert lowered.plan.parts == again.plan.parts
    read = Plan.from_json(lowered.plan.to_json())
    assert made == read.device_map(lowered) == lowered.plan.device_map(lowered.program)
    with pytest.raises(PlanError, match=r"^The model itself has operators of its own on left, right, which a device"):
        read.device_map()


def test_an_operator_that_would_not_stay_with_those_before_it_is_refused_where_the_model_is_given() -> None:
    """The addition of the first branch comes behind the layer of the second one, and would stay with that."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            a, b = self.a(x), self.b(x)
            return torch.cat([a + 1, b + 2])

    parts = (PartPlan("left", "left", ("a/*", "/add#0")), PartPlan("right", "right", ("b/*", "/add#1", "/cat#0")))
    placed = place(Branches(), (torch.randn(2, 64),), devices=cpu_pair(), pinned={"a": "left", "b": "right"})
    edited = attrs.evolve(placed.plan, parts=parts)

    with pytest.raises(PlanError) as caught:
        edited.device_map(placed.program)

    assert (
        "No device map says what this plan says: /add#0 runs on left, and a map puts it on right; "
        "device_map(strict=False) gives the nearest map, and the plan itself (lower_with_plan) stays exact."
    ) == str(caught.value)
    assert {"a": "left", "b": "right"} == edited.device_map(placed.program, strict=False)


def test_the_budget_of_each_device_holds_for_maps_too() -> None:
    with pytest.raises(InfeasibleError) as caught:
        lower(
            Mlp(8),
            (torch.randn(2, 64),),
            devices=cpu_pair(100 * KiB, None),
            device_map={"layers.7": "right", "": "left"},
        )

    assert "The device map puts 115 KiB on left (parameters 114 KiB, activations 1.50 KiB), which has 100 KiB" in str(
        caught.value
    )
    assert caught.value.missing_bytes is not None


@pytest.mark.parametrize(
    ("device_map", "sentence"),
    [
        ({}, 'The device map is empty; {"": device} puts the whole model on one device.'),
        (
            {"blocks.0": "left", "head": "left"},
            "The device map says nothing about 'blocks.1'; add them, or add '' for all the rest.",
        ),
        (
            {"": "left", "blocks.7": "right"},
            "The device map names 'blocks.7', which the model does not have; did you mean 'blocks.1'?",
        ),
        (
            {"": "left", "blocks.0.layer_scalar": "right", "blocks.0.shift": "left"},
            "The device map puts 'blocks.0.shift' on left, but 'blocks.0' on right; a parameter or buffer goes where "
            "its module goes: leave one of them out.",
        ),
        (
            {0: "left", "": "right"},
            "The device map names 0, which is no text; a module is named by its path, like 'layers.0'.",
        ),
        (
            {"head": "middle", "": "left"},
            "The device map puts 'head' on 'middle', which is no device; there are left (cpu), right (cpu).",
        ),
        (
            {"head": "cpu", "": "left"},
            "The device map puts 'head' on 'cpu', which 2 devices are: left (cpu), right (cpu); use a name.",
        ),
    ],
)
def test_a_map_that_does_not_fit_is_refused_in_one_sentence(device_map: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlacementError) as caught:
        mapped(device_map)

    assert sentence == str(caught.value)


def test_a_map_alone_must_name_torch_devices() -> None:
    with pytest.raises(PlacementError, match=re.escape("puts 'head' on 'disk', which is no torch device; write cpu")):
        mapped({"head": "disk", "": "cpu"}, devices=None)
    with pytest.raises(InputError, match="There is no device to place the model on"):
        lower(Mlp(), (torch.randn(2, 64),))


def test_one_torch_device_under_two_names_is_one() -> None:
    """Else each was said to be two devices, and no name could be given that tells them apart."""
    assert [("cpu", "cpu")] == [(each.name, each.torch_device) for each in devices_of_map({"": "cpu", "head": "cpu:0"})]
    assert ["cuda0", "cuda1"] == [each.name for each in devices_of_map({"a": 0, "b": "cuda", "": "cuda:1"})]
    assert len(mapped({"head": "cpu:0", "": "cpu"}, devices=None).plan.devices) == 1


def test_a_word_is_no_map() -> None:
    """Hugging Face takes "auto"; here a search is what happens without a map."""
    for devices in (None, cpu_pair()):
        with pytest.raises(PlacementError, match="not 'auto'; leave it out, and the placement is searched for"):
            lower(Mlp(), (torch.randn(2, 64),), devices=devices, device_map="auto")


def test_a_device_that_cannot_run_a_module_says_so() -> None:
    def no_relu(_submodules: Any, node: torch.fx.Node) -> bool:
        return node.target is not torch.ops.aten.relu.default

    devices = [Device("npu", supports=no_relu), Device("host")]

    with pytest.raises(InfeasibleError) as caught:
        mapped({"blocks.0": "npu", "": "host"}, devices=devices)

    assert (
        "The device map puts relu (aten.relu.default, of module 'blocks.0') on npu, which does not support it; "
        "give that module another device."
    ) == str(caught.value)


def test_a_device_that_is_called_as_another_ones_second_part_keeps_its_own() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    devices = [Device(name) for name in ("gpu", "mid", "gpu_1")]

    device_map = {"0": "gpu", "1": "mid", "2": "gpu", "3": "gpu_1"}
    placed = place(model, (torch.ones(2, 4),), devices=devices, device_map=device_map)

    assert [("gpu", "0/*"), ("mid", "1/*"), ("gpu", "2/*"), ("gpu_1", "3/*")] == [
        (part.device, part.ops[0]) for part in placed.plan.parts
    ]


def test_the_guards_of_an_exported_module_need_no_entry() -> None:
    graph = torch.export.export(nn.Sequential(nn.Linear(4, 4)), (torch.ones(2, 4),)).module()

    placement = place_by_device_map(graph, {"0": "a"}, Topology.of([Device("a"), Device("b")]))

    assert {"a"} == {device.name for device in placement.device_of.values()}


class Outer(nn.Module):
    """A module of which the map shall say where it is, and a layer behind it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.head = inner, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x))


@pytest.mark.parametrize(
    ("device_map", "parts"),
    [
        (
            {"inner": "left", "head": "right"},
            [("left", ("/linear#0", "/relu#0", "/linear#1")), ("right", ("head/*",))],
        ),
        ({"inner": "right", "": "left"}, [("right", ("/linear#0", "/relu#0", "/linear#1")), ("left", ("head/*",))]),
        (
            {"inner.0": "left", "inner.2": "right", "head": "right"},
            [("left", ("/linear#0", "/relu#0")), ("right", ("/linear#1", "head/*"))],
        ),
    ],
)
def test_a_graph_that_was_captured_before_is_known_by_its_parameters(
    device_map: dict[str, Any], parts: list[tuple[str, tuple[str, ...]]]
) -> None:
    """Its operators carry the path of the module around, so entries for it were not heard."""
    x = torch.randn(2, 8)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    captured = Outer(torch.export.export(model, (x,)).module())

    lowered = lower(captured, (x,), devices=cpu_pair(), device_map=device_map)

    assert parts == [(part.device, part.ops) for part in lowered.plan.parts]
    assert torch.equal(captured(x), lowered(x))


def test_a_module_that_is_not_called_is_known_by_its_parameters_however_they_are_made_over() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return (self.first(x) @ self.second.weight.t().relu()).cos()

    lowered = mapped({"first": "left", "second": "right", "": "left"}, Functional())

    assert [("left", ("first/*",)), ("right", ("/t#0", "/relu#0", "/matmul#0")), ("left", ("/cos#0",))] == [
        (part.device, part.ops) for part in lowered.plan.parts
    ]


def test_a_captured_graph_without_parameters_is_refused() -> None:
    captured = torch.export.export(nn.Sequential(nn.ReLU(), nn.Tanh()), (torch.randn(2, 8),)).module()

    with pytest.raises(PlacementError) as caught:
        mapped({"inner": "left", "": "right"}, Outer(captured))

    assert (
        "The device map names 'inner', a graph that was captured before: no operator carries its path, and parameters "
        "do not tell which are its own. Nest the model that it was captured from, or take the entry out; its operators "
        "then go with the module around." == str(caught.value)
    )


class Branches(nn.Module):
    """Two modules that are called in the branches of a condition only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.other = (nn.Linear(8, 8) for _ in range(3))
        self.shift = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return torch.cond(x.sum() > 0, lambda x: self.one(x) + self.shift, lambda x: self.other(x).sin(), (x,))


@pytest.mark.parametrize(
    "device_map",
    [
        {"first": "left", "one": "right", "other": "right"},
        {"first": "left", "other": "right"},
        {"": "left", "one": "right"},
    ],
)
def test_a_region_goes_where_the_modules_of_its_branches_are(device_map: dict[str, str]) -> None:
    model, x = Branches(), torch.randn(2, 8)

    lowered = lower(model, (x,), devices=cpu_pair(), device_map=device_map)

    assert "right" == homes(lowered)["/cond#0"]
    with torch.no_grad():
        for given in (x, -x):
            assert torch.equal(model(given), lowered(given))


def test_modules_in_the_branches_of_one_region_share_a_device() -> None:
    said = "The device map puts 'one' on left, 'other' on right, and cond (cond"
    with pytest.raises(PlacementError, match=re.escape(said)) as caught:
        place(
            Branches(),
            (torch.randn(2, 8),),
            devices=cpu_pair(),
            device_map={"": "left", "one": "left", "other": "right"},
        )

    assert str(caught.value).endswith("calls all of them in one operator: give them one device.")
