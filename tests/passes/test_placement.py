"""Parts on their devices: every operator stands where its part does, and what crosses means what it meant."""

from __future__ import annotations

import copy
import operator
from typing import Any

import pytest
import torch
from lowering_models import Mlp, cpu_pair
from torch import Tensor, nn
from torch._higher_order_ops import while_loop
from torch._higher_order_ops.scan import scan
from torch.fx import symbolic_trace
from torch.fx.passes.split_module import split_module as torch_split_module
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from examples import bert
from fxpasses import Device, LoweredModule, MissingMetadataError, PassManager, PlacementError, lower
from fxpasses.cli.demo_model import demo_llama
from fxpasses.devices import MAIN_MEMORY
from fxpasses.partitioners import place_by_device
from fxpasses.partitioners.assignment import Assignment
from fxpasses.passes import MeasureCosts, split
from fxpasses.passes.placement import COPY_OF, DEVICE, PlaceOnDevices, copies_of, move_part


def linear() -> nn.Linear:
    return nn.Linear(8, 8)


class TwoCaches(nn.Module):
    """Two blocks with a cache each, and a counter around them; the second buffer shows the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Cached(), Cached()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        self.calls.add_(1)
        return self.second(self.first(x, position), position) + self.calls


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.key = linear()
        self.register_buffer("keys", torch.zeros(4, 8))
        self.register_buffer("row", self.keys[0], persistent=False)

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        self.keys.index_copy_(0, position, self.key(x))
        return torch.softmax(x @ self.keys.t(), -1) @ self.keys + self.row


class Loops(nn.Module):
    """A loop, a scan and a branch whose bodies hold parameters, constants and factories."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = linear(), Body(), linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.second(self.first(x)))


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()
        self.shift = torch.full((8,), 0.5)

    def forward(self, x: Tensor) -> Tensor:
        _, x = while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, self.inner(x) + self.shift), (torch.tensor(0), x))
        weights = torch.arange(8.0)

        def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            total = carry + row * weights + torch.ones(8)
            return total, total.clone()

        last, rows = scan(step, torch.zeros(8), x)
        return torch.cond(last.sum() > 0, lambda t: self.inner(t) + torch.ones(8), lambda t: t - self.shift, (rows,))


class Views(nn.Module):
    """A value that was written to crosses, and a view of it; an input is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = linear(), linear(), linear()

    def forward(self, x: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        y = self.first(x)
        view = y.t()
        y.add_(1)
        z = self.second(y) + self.second(view.t())
        out.copy_(z)
        return self.third(y) * out, y


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.second = linear(), nn.Dropout(), linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.second(self.drop(self.first(x)))) + torch.rand(8)


class Shapes(nn.Module):
    """A symbolic size crosses, and an operator makes a tensor of that size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = linear(), linear()

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        y = self.first(x).reshape(x.shape[0] * 2, 4).reshape(-1, 8)
        return self.second(y) + torch.arange(x.shape[0])[:, None], x.shape[0]


class Passing(nn.Module):
    """Returns its inputs and parameters, and the same value twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = linear(), linear()

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.first(x)
        return {"x": x, "weight": self.second.weight, "y": (y, y), "z": self.second(y), "n": None, "three": 3}


BATCH = ({0: torch.export.Dim("batch", min=2, max=16)},)
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "caches": (lambda: TwoCaches().requires_grad_(False), lambda i: (torch.randn(1, 8), torch.tensor([i])), {}),
    "loops": (lambda: Loops().requires_grad_(False), lambda _: (torch.randn(2, 8),), {}),
    "views": (lambda: Views().requires_grad_(False), lambda _: (torch.randn(2, 8), torch.zeros(2, 8)), {}),
    "noise": (Noise, lambda _: (torch.randn(2, 8),), {}),
    "shapes": (Shapes, lambda i: (torch.randn(2 + i, 8),), {"dynamic_shapes": BATCH}),
    "passing": (Passing, lambda _: (torch.randn(2, 8),), {}),
    "batch norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)),
        lambda _: (torch.randn(2, 3, 8, 8),),
        {},
    ),
}


def alternating(model: nn.Module) -> dict[str, str]:
    """A map that changes the device from child to child."""
    names = [name for name, _ in model.named_children()]
    return {**{name: ("left", "right")[index % 2] for index, name in enumerate(names)}, "": "left"}


def assert_same(expected: Any, actual: Any) -> None:
    for one, other in zip(pytree.tree_leaves(expected), pytree.tree_leaves(actual), strict=True):
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other


@pytest.mark.parametrize("name", CASES)
def test_three_runs_across_two_devices_are_those_of_the_model(name: str) -> None:
    """Outputs, written inputs, state and gradients, with one seed; one copy for each value and device."""
    make, inputs, options = CASES[name]
    model = make()
    reference = copy.deepcopy(model)
    lowered = lower(model, inputs(0), devices=cpu_pair(), device_map=alternating(model), **options)

    for step in range(3):
        args = inputs(step)
        mine, theirs = pytree.tree_map(lambda each: each.clone(), (args, args))
        torch.manual_seed(step)
        expected = reference(*mine)
        torch.manual_seed(step)
        actual = lowered(*theirs)
        assert_same((expected, mine), (actual, theirs))
        assert_same(gradients(reference, expected), gradients(model, actual))
    for key, value in reference.state_dict().items():
        assert torch.equal(value, lowered.state_dict()[key])
    copies = copies_of(lowered)
    assert copies
    assert len(copies) == len({(each.value, each.target) for each in copies})


def gradients(model: nn.Module, results: Any) -> list[Tensor | None]:
    parts = [leaf.sum() for leaf in pytree.tree_leaves(results) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not parts:
        return []
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return list(torch.autograd.grad(torch.stack(parts).sum(), parameters, allow_unused=True))


class Elsewhere(TorchDispatchMode):
    """Notes each operator that has to do with a tensor that is not on ``meta``."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves((args, kwargs, result)):
            if isinstance(leaf, Tensor) and not leaf.is_meta:
                self.found.append(str(function))
        return result


class Factories(nn.Module):
    """Everything that makes a tensor out of nothing, or names a device."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = linear(), linear()
        self.scale = torch.tensor(2.0)

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        made = torch.arange(8.0) + torch.zeros(8) + torch.full((8,), 2.0) + torch.linspace(0, 1, 8) + torch.tensor(3.0)
        mask = torch.ones(8, 8, dtype=torch.bool).tril()
        y = self.second(self.first(x)).to("cpu") * made + torch.rand(8) + torch.eye(8).sum(0) + torch.randn(8)
        y = torch.where(mask[0], y, torch.scalar_tensor(0.0)).masked_fill(mask[1], 0.0)
        return (y + torch.zeros_like(y) + y.new_ones(8))[[0, 1]] * self.scale + x[index]


def on_meta(name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    if name == "llama":
        return demo_llama(1)
    if name == "bert":
        return bert.model()
    if name == "factories":
        return Factories(), (torch.randn(4, 8), torch.tensor([1, 0])), {}
    make, inputs, _ = CASES[name]
    return make(), inputs(0), {}


@pytest.mark.parametrize("name", ["factories", "caches", "views", "noise", "batch norm", "llama", "bert"])
def test_every_operator_of_a_part_stands_on_its_device(name: str) -> None:
    """A device of another kind, even if it has no memory: no tensor of a part is anywhere else."""
    model, args, kwargs = on_meta(name)
    lowered = lower(model, args, kwargs, devices=[Device("there", torch_device="meta")])
    part = lowered.get_submodule("there")
    inputs = [_empty(node.meta["val"]) for node in part.graph.find_nodes(op="placeholder")]

    with torch.no_grad(), Elsewhere() as elsewhere:
        part(*inputs)

    assert [] == elsewhere.found


def _empty(value: Any) -> Any:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def test_bodies_of_loops_and_branches_move_with_their_part() -> None:
    make, inputs, _ = CASES["loops"]
    lowered = lower(make(), inputs(0), devices=[Device("there", torch_device="meta")])
    part = lowered.get_submodule("there")

    nested = [module for module in part.modules() if isinstance(module, torch.fx.GraphModule)]
    nodes = [node for module in nested for node in module.graph.nodes]

    assert len(nested) > 3
    for leaf in pytree.tree_leaves([[node.meta.get("val"), list(node.args), dict(node.kwargs)] for node in nodes]):
        if isinstance(leaf, Tensor):
            assert leaf.is_meta
        if isinstance(leaf, torch.device):
            assert "meta" == leaf.type


class Mean(nn.Module):
    """A running mean that is written, and read later."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = linear(), linear()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        self.mean.mul_(0.9).add_(y.detach().mean(0))
        return self.second(y) * self.mean


def test_what_reads_written_state_runs_where_it_is() -> None:
    devices = [Device("left", torch_device="meta"), Device("right")]
    lowered = lower(Mean(), (torch.randn(2, 8),), devices=devices, device_map={"second": "right", "": "left"})

    assert "meta" == lowered.state_dict()["mean"].device.type
    assert "left_1 on left" in lowered.report.reasons["/mul#0"]


def test_state_that_parts_on_several_devices_take_lives_where_it_is_written() -> None:
    """Parts made by hand: the reader on the other device gets a copy in each run."""
    names = ["linear", "detach", "mean", "mul_", "add_"]
    placed = two_parts({"a": names, "b": ["linear_1", "mul"]}, Mean(), torch.randn(2, 8), constants="pass_in")

    PlaceOnDevices({"a": Device("left", torch_device="meta"), "b": Device("right")})(placed)

    assert "meta" == placed.get_buffer("mean").device.type
    assert "cpu" == placed.get_parameter("second.weight").device.type
    assert ["linear", "add_"] == [each.value for each in copies_of(placed) if each.target == "right"]


def test_the_values_of_the_top_level_stand_where_it_says() -> None:
    """Fake values and device names agree, also of what comes back from another kind of device."""
    devices = [Device("left"), Device("right", torch_device="meta")]
    lowered = lower(
        Views(), (torch.randn(2, 8), torch.zeros(2, 8)), devices=devices, device_map={"first": "right", "": "left"}
    )
    kinds = {"left": "cpu", "right": "meta", MAIN_MEMORY: "cpu"}

    for node in lowered.graph.nodes:
        if COPY_OF.has(node):
            assert kinds[DEVICE.read(node)] == node.meta["val"].device.type
            assert kinds[COPY_OF.read(node).source] == node.all_input_nodes[0].meta["val"].device.type


class Shares(nn.Module):
    """Returns a value that the other device uses as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = linear(), linear()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.first(x)
        return y, self.second(y)


def test_a_result_that_a_part_on_its_device_received_is_not_copied_again() -> None:
    """Complaint 28: one copy for each value and device, results included."""
    devices = [Device("left", torch_device="meta"), Device("right")]
    lowered = lower(Shares(), (torch.randn(2, 8),), devices=devices, device_map={"first": "left", "second": "right"})

    assert [(MAIN_MEMORY, "left"), ("left", "right")] == [(each.source, each.target) for each in copies_of(lowered)]


def test_one_device_costs_nothing_for_each_module() -> None:
    """Complaint 28: one call beside the check of the inputs, no copies, no hooks, and no loads."""
    model, x = nn.Sequential(*(linear() for _ in range(20))), torch.randn(2, 8)
    lowered = lower(model, (x,), devices=[Device("one")])

    called = [node for node in lowered.graph.nodes if node.op not in ("placeholder", "output")]
    assert [("call_module", "_guards_fn"), ("call_module", "one")] == [(node.op, node.target) for node in called]
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in lowered.get_submodule("one").modules()
    )
    assert torch.equal(model(x), lowered(x))


def two_parts(
    groups: dict[str, list[str]], model: nn.Module, *args: Tensor, constants: Any = "share"
) -> torch.fx.GraphModule:
    graph_module = torch.export.export(model, args).module(check_guards=False)
    named = {node.name: node for node in graph_module.graph.nodes}
    chosen = {named[name]: part for part, names in groups.items() for name in names}
    return split(
        graph_module, Assignment.of(graph_module, chosen, order=list(groups)), names=str, constants=constants
    ).graph_module


class Shown(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        z = y.t()
        y.add_(1)
        return z + 1


def test_a_write_to_an_input_is_written_back() -> None:
    """An input that lives elsewhere is the caller's: it sees what a part writes to its copy."""

    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x.add_(1)
            return x * 3

    lowered = lower(Writes(), (torch.randn(2, 2),), devices=[Device("there", torch_device="meta")])

    (written_back,) = lowered.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    assert "placeholder" == written_back.args[0].op


@pytest.mark.parametrize(
    "groups",
    [{"a": ["mul", "t"], "b": ["add_"], "c": ["add"]}, {"a": ["mul"], "b": ["t"], "c": ["add_", "add"]}],
    ids=["write", "view"],
)
def test_memory_that_is_written_to_belongs_to_one_device(groups: dict[str, list[str]]) -> None:
    """Parts made by hand may tear it; no copy could show the write to the other side."""
    placed = two_parts(groups, Shown(), torch.randn(2, 2))

    with pytest.raises(PlacementError, match="The parts a on left and b on right make or write to the same memory"):
        PlaceOnDevices({"a": Device("left"), "b": Device("right"), "c": Device("left")})(placed)


def test_a_part_that_gives_back_a_buffer_owns_no_other_result() -> None:
    """A view of one may be elsewhere while another, in memory of its own, is written to."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            count = self.count.add_(1)
            y = x * 2
            first, second = y[:1], torch.zeros(2)
            second.add_(count)
            return first + second

    groups = {"a": ["add_", "mul", "zeros"], "b": ["slice_1"], "c": ["add__1", "add"]}
    placed = two_parts(groups, Counting(), torch.randn(2, 2))

    PlaceOnDevices({"a": Device("left"), "b": Device("right"), "c": Device("left")})(placed)

    assert ["mul", "b"] == [copy.value for copy in copies_of(placed)]


def test_a_part_that_is_not_there_is_named() -> None:
    placed = two_parts({"a": ["mul", "t", "add_", "add"]}, Shown(), torch.randn(2, 2))

    with pytest.raises(PlacementError, match=r"The graph calls no part 'b'; it calls a\."):
        PlaceOnDevices({"a": Device("left"), "b": Device("right")})(placed)


class Again(nn.Module):
    """One layer, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x).relu())


def test_what_parts_share_is_not_torn_by_two_torch_devices() -> None:
    """Trained, the two halves of a parameter would drift apart; and a module that is called cannot be in two places."""
    devices = {"a": Device("left"), "b": Device("right", torch_device="meta")}
    exported = two_parts({"a": ["linear", "relu"], "b": ["linear_1"]}, Again(), torch.randn(2, 2))
    traced = symbolic_trace(Again())
    first, relu, second = list(traced.graph.nodes)[1:4]
    called = split(traced, Assignment.of(traced, {first: "a", relu: "a", second: "b"}), names=str).graph_module

    with pytest.raises(PlacementError, match=r"The parts a on cpu and b on meta share the parameter layer\.\w+, which"):
        PlaceOnDevices(devices)(exported)
    with pytest.raises(PlacementError, match="The parts a on cpu and b on meta share the module layer, which would"):
        PlaceOnDevices(devices)(called)


def test_what_parts_share_may_be_on_one_device_or_fixed() -> None:
    shared = two_parts({"a": ["linear", "relu"], "b": ["linear_1"]}, Again(), torch.randn(2, 2))
    fixed = two_parts({"a": ["linear", "relu"], "b": ["linear_1"]}, Again().requires_grad_(False), torch.randn(2, 2))

    PlaceOnDevices({"a": Device("left"), "b": Device("right")})(shared)
    PlaceOnDevices({"a": Device("left"), "b": Device("right", torch_device="meta")})(fixed)

    assert shared.get_parameter("a.layer.weight") is shared.get_parameter("b.layer.weight")
    assert ["cpu", "meta"] == [fixed.get_parameter(f"{part}.layer.weight").device.type for part in "ab"]


def test_graphs_of_dynamo_are_placed() -> None:
    """Their values are under ``example_value``: they were said to have none."""
    model, x = nn.Sequential(linear(), nn.ReLU(), linear()), torch.randn(2, 8)
    (graph_module, *_) = torch._dynamo.export(model)(x)
    first, *_, last = (
        node for node in graph_module.graph.nodes if node.op not in ("placeholder", "get_attr", "output")
    )
    placement = place_by_device(graph_module, cpu_pair(), pinned={first: "left", last: "right"})
    parts = split(graph_module, placement.assignment)
    device_of = {name: placement.device_of[str(part)] for part, name in parts.part_names.items()}

    placed = PlaceOnDevices(device_of)(parts.graph_module).graph_module

    assert [node.name for node in placed.graph.nodes if COPY_OF.has(node)]
    assert not [node for node in placed.graph.nodes if "example_value" in node.meta]  # a second key, not kept up
    assert torch.equal(model(x), placed(x))


def test_values_that_cross_must_be_known() -> None:
    """torch's split_module of a traced model has none: nothing was copied, and the next part failed."""
    parts = iter((0, 0, 1))
    traced = symbolic_trace(nn.Sequential(linear(), nn.ReLU(), linear()))
    halves = torch_split_module(traced, traced, lambda _node: next(parts))
    left, right = Device("left"), Device("right", torch_device="meta")

    with pytest.raises(MissingMetadataError) as caught:
        PlaceOnDevices({"submod_0": left, "submod_1": right})(halves)
    with pytest.raises(MissingMetadataError, match="node 'input_1' goes from main memory to right, and has no value"):
        PlaceOnDevices({"submod_0": right, "submod_1": right})(halves)
    PlaceOnDevices({"submod_0": left, "submod_1": left})(halves)

    assert (
        "node 'submod_0' goes from left to right, and has no value that says what is copied; run "
        "MeasureCosts(example_inputs=...) before fxpasses' own split or split_module (torch's leaves values out), or "
        "export the model" in str(caught.value)
    )


class Named(nn.Module):
    """Names devices in all the ways that code has, and one of no memory on purpose."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        rows = x.shape[0]
        made = torch.zeros(rows, device="cpu"), torch.ones(rows), torch.arange(rows, device=torch.device("cpu"))
        sent = x.to("cpu"), x.to(device="cpu", dtype=torch.float64), x.cpu(), x.to(torch.float64), x.to("meta")
        return *made, *sent


def test_devices_that_are_written_as_text_follow_their_part() -> None:
    traced = symbolic_trace(Named())
    PassManager([MeasureCosts(example_inputs=(torch.randn(2, 8),))])(traced)
    nodes = [node for node in traced.graph.nodes if node.op.startswith("call_")]
    placed = split(traced, Assignment.of(traced, dict.fromkeys(nodes, "a")), names=str).graph_module
    target = torch.device("cuda", 3)

    move_part(placed.get_submodule("a"), str(target))

    told = [
        [leaf for leaf in (*node.args[1:], *node.kwargs.values()) if isinstance(leaf, (torch.device, str))]
        for node in placed.get_submodule("a").graph.nodes
        if node.target is not getattr and node.op.startswith("call_") and node.target not in (operator.getitem, "size")
    ]
    assert [*[[target]] * 6, [], ["meta"]] == told


def test_parts_of_one_device_may_have_other_backends() -> None:
    """Two logical devices on one torch device, compiled by different backends."""
    pytest.importorskip("onnxruntime")
    model, x = Mlp(4).eval(), torch.randn(2, 64)
    devices = [Device("plain"), Device("compiled", backend="onnxruntime")]

    lowered: LoweredModule = lower(
        model, (x,), devices=devices, device_map={"layers.0": "plain", "layers.2": "plain", "": "compiled"}
    )

    with torch.no_grad():
        torch.testing.assert_close(model(x), lowered(x))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"submod_0": "cpu"},
            "PlaceOnDevices puts 'submod_0' on 'cpu', which is no fxpasses.Device; write "
            'PlaceOnDevices({"submod_0": Device("left")}).',
        ),
        (
            {0: Device("left")},
            "PlaceOnDevices takes the device of each part by the name of its submodule, a text, not 0; write "
            'PlaceOnDevices({"submod_0": Device("left")}). Of parts = split(graph, placement.assignment) these are '
            "{name: placement.device_of[str(part)] for part, name in parts.part_names.items()}.",
        ),
        (
            ["submod_0"],
            "PlaceOnDevices takes the device of each part by the name of its submodule, not ['submod_0']; write "
            'PlaceOnDevices({"submod_0": Device("left")}), or let place_by_device and split make the parts. '
            "fxpasses.lower does all of it.",
        ),
    ],
)
def test_what_is_no_device_of_a_part_is_refused_where_it_is_written(given: Any, sentence: str) -> None:
    with pytest.raises(PlacementError) as caught:
        PlaceOnDevices(given)

    assert sentence == str(caught.value)


@pytest.mark.parametrize(
    ("is_split", "called"), [(True, "submod_left, submod_right"), (False, "none, so split it")], ids=["split", "whole"]
)
def test_names_that_are_no_submodules_are_refused_with_those_that_are(is_split: bool, called: str) -> None:
    """A placement speaks of partitions, and its submodules have names of their own; the check of inputs is no part."""
    graph = torch.export.export(nn.Sequential(linear(), linear()), (torch.ones(2, 8),)).module()
    placement = place_by_device(graph, cpu_pair(), pinned={"0": "left", "1": "right"})
    subject = split(graph, placement.assignment).graph_module if is_split else graph

    with pytest.raises(PlacementError) as caught:
        PlaceOnDevices(placement.device_of).requires(subject)

    assert (
        f"The graph calls no part 'left'; it calls {called}. Parts go by the names of their submodules. Of parts = "
        "split(graph, placement.assignment) these are {name: placement.device_of[str(part)] for part, name in "
        "parts.part_names.items()}."
    ) == str(caught.value)


def placed(model: nn.Module, x: Tensor) -> torch.fx.GraphModule:
    """The two halves of a chain on two devices, without what ``lower`` does beside that."""
    module = torch.export.export(model, (x,)).module(check_guards=False)
    calls = module.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default)
    first = {node for node in module.graph.nodes if node.op == "call_function" and node < calls[len(calls) // 2]}
    others = {node for node in module.graph.nodes if node.op == "call_function"} - first
    assignment = Assignment.of(module, {**dict.fromkeys(first, "left"), **dict.fromkeys(others, "right")})
    parts = split(module, assignment)
    devices = dict(zip(parts.part_names.values(), cpu_pair(), strict=True))
    return PlaceOnDevices(devices)(parts.graph_module).graph_module


@pytest.mark.parametrize("copied", [lambda module: module, copy.deepcopy], ids=["itself", "a copy"])
def test_checkpoints_of_a_placed_graph_have_the_models_own_names(copied: Any) -> None:
    """Without ``lower``, which keeps them itself: saved, loaded, assigned, and in a module around it."""
    model, x = Mlp(4), torch.randn(2, 64)
    module = copied(placed(copy.deepcopy(model), x))
    other = Mlp(4).state_dict()

    assert model.state_dict().keys() == module.state_dict().keys()
    assert model.state_dict(prefix="net.").keys() == nn.ModuleDict({"net": module}).state_dict().keys()
    for assign in (False, True):
        module.load_state_dict(other, assign=assign)
        model.load_state_dict(other)
        assert torch.equal(model(x), module(x))
        other = {name: 2 * value for name, value in other.items()}
    nn.ModuleDict({"net": module}).load_state_dict({f"net.{name}": value for name, value in other.items()})
    model.load_state_dict(other)
    assert torch.equal(model(x), module(x))


class Scaled(nn.Module):
    """Two layers, and a buffer that is in no checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.register_buffer("scale", torch.full((64,), 2.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x) * self.scale) * self.scale


@pytest.mark.parametrize("copied", [lambda module: module, copy.deepcopy], ids=["itself", "a copy"])
def test_buffers_that_are_in_no_checkpoint_stay_out_of_it(copied: Any) -> None:
    """Torch's copy of a graph makes all of its buffers persistent; the model's checkpoint did not load any more."""
    model, other, x = Scaled(), Scaled(), torch.randn(2, 64)
    module = copied(placed(model, x))
    around = nn.ModuleDict({"net": module})

    assert model.state_dict().keys() == module.state_dict().keys()
    assert other.state_dict(prefix="net.").keys() == around.state_dict().keys()
    module.load_state_dict(other.state_dict())
    assert torch.equal(other(x), module(x))
    around.load_state_dict(Scaled().state_dict(prefix="net."))
    with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict: \"first.bias\"\."):
        module.load_state_dict({name: value for name, value in other.state_dict().items() if name != "first.bias"})


def test_what_a_checkpoint_lacks_is_told_under_the_models_own_name() -> None:
    model, x = Mlp(4), torch.randn(2, 64)
    module, state = placed(model, x), model.state_dict()
    (last := list(state)[-1], state.pop(last))

    assert ([last], ["more"]) == tuple(module.load_state_dict({**state, "more": x}, strict=False))
    around = nn.ModuleDict({"net": module})
    within = {f"net.{name}": value for name, value in state.items()}
    assert [f"net.{last}"] == around.load_state_dict(within, strict=False).missing_keys


def test_names_that_two_parts_give_to_two_tensors_stay_apart() -> None:
    """Of ``split_module`` or by hand: nothing is lost."""
    halves = nn.ModuleDict({"submod_0": nn.Linear(4, 4), "submod_1": nn.Linear(4, 4)})
    graph = torch.fx.Graph()
    value = graph.placeholder("x")
    graph.output(graph.call_module("submod_1", (graph.call_module("submod_0", (value,)),)))
    x = torch.randn(2, 4)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        for node in graph.nodes:
            node.meta["val"] = mode.from_tensor(x)
    module = torch.fx.GraphModule(halves, graph)

    placed_module = PlaceOnDevices(dict(zip(halves, cpu_pair(), strict=True)))(module).graph_module

    assert module.state_dict().keys() == halves.state_dict().keys()
    placed_module.load_state_dict(halves.state_dict())
    assert torch.equal(halves["submod_1"](halves["submod_0"](x)), placed_module(x))
