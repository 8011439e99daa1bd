"""What changes when a part moves: views that hold in any layout, regions that do what they did, recurrent weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.wrap import wrap_with_autocast
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule

from fxpasses import Device, PassError, lower
from fxpasses.partitioners.assignment import Assignment
from fxpasses.passes import profile_node, split
from fxpasses.passes.placement import PlaceOnDevices, move_part
from fxpasses.passes.placing_parts import recurrent_weights
from fxpasses.passes.placing_parts.recurrent_weights import (
    RecurrentLayers,
    compact_recurrent_weights,
    recurrent_layers,
)
from fxpasses.passes.placing_parts.steady_views import steady_views
from fxpasses.programs.capturing import capture

aten = torch.ops.aten


def exported(model: nn.Module, *args: torch.Tensor) -> GraphModule:
    return capture(model, args).module(check_guards=False)  # type: ignore[return-value]


def targets(module: GraphModule) -> list[Any]:
    return [node.target for node in module.graph.find_nodes(op="call_function", target=aten.view.default)] + [
        node.target for node in module.graph.find_nodes(op="call_function", target=aten.reshape.default)
    ]


class Plain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1) * 2


class WrittenThrough(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.view(-1).add_(1)
        return y + 1


class ShownTwice(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y, y.view(-1)


class OfTheInput(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1)


class ShownOnce(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2).view(-1)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Plain(), aten.reshape.default),
        (ShownOnce(), aten.reshape.default),
        (WrittenThrough(), aten.view.default),
        (ShownTwice(), aten.view.default),
        (OfTheInput(), aten.view.default),
    ],
)
def test_a_view_may_copy_unless_somebody_would_miss_a_write(model: nn.Module, expected: Any) -> None:
    module, x = exported(model, torch.randn(2, 3)), torch.randn(2, 3)

    steady_views(module)
    module.recompile()

    assert [expected] == targets(module)
    for one, other in zip(model(x), module(x), strict=True):
        assert torch.equal(one, other)


def test_a_view_holds_behind_what_is_laid_out_otherwise() -> None:
    module = exported(Plain(), torch.randn(2, 3))
    move_part(module, "cpu")
    x = torch.randn(3, 2).t()

    assert torch.equal(x.reshape(-1) * 2, module(x))


class Casting(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.linear = kind, nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.kind, dtype=torch.bfloat16):
            x = self.linear(x)
        return x.float()


@pytest.mark.filterwarnings("ignore:User provided device_type of 'xpu'", "ignore:CUDA is not available")
@pytest.mark.parametrize(("kind", "expected"), [("cpu", ("meta", True)), ("xpu", ("xpu", False))])
def test_a_region_does_on_its_new_device_what_it_did_on_the_old_one(kind: str, expected: tuple[str, bool]) -> None:
    """One for another kind of device than that of the capture did nothing, and begins nothing there."""
    module = exported(Casting(kind).eval(), torch.randn(2, 4))
    (region,) = module.graph.find_nodes(op="call_function", target=wrap_with_autocast)
    region.args = (*region.args[:2], True, *region.args[3:])  # as it is captured where there is such a device

    move_part(module, "meta")

    assert expected == (region.args[0], region.args[2])


LAYERS = [
    (nn.LSTM, {"num_layers": 2}),
    (nn.LSTM, {"num_layers": 2, "bidirectional": True, "proj_size": 4}),
    (nn.LSTM, {"bias": False, "batch_first": True}),
    (nn.GRU, {"num_layers": 3, "bidirectional": True, "bias": False}),
    (nn.RNN, {"nonlinearity": "relu"}),
    (nn.RNN, {"nonlinearity": "tanh", "batch_first": True}),
]


@pytest.mark.parametrize(("kind", "options"), LAYERS)
def test_recurrent_layers_are_described_as_the_module_describes_itself(kind: Any, options: dict[str, Any]) -> None:
    model = kind(6, 8, **options).eval()
    (found,) = recurrent_layers(exported(model, torch.randn(2, 3, 6)))

    assert [id(weight) for weight in model._flat_weights] == [id(weight) for weight in found.weights]
    assert model.mode == found.kind
    assert (6, 8, model.proj_size) == (found.input_size, found.hidden_size, found.projected_size)
    assert (model.num_layers, model.bidirectional) == (found.layers, found.bidirectional)
    assert model.batch_first == found.batch_first
    assert (4 if model.bias else 2) + (model.proj_size > 0) == found.per_layer


def test_weights_that_cudnn_does_not_read_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    module = exported(nn.LSTM(6, 8).eval(), torch.randn(2, 3, 6))
    before = [parameter.data_ptr() for parameter in module.parameters()]
    monkeypatch.setattr(RecurrentLayers, "compact", lambda _self: pytest.fail("these are on the CPU"))

    compact_recurrent_weights(module)

    assert before == [parameter.data_ptr() for parameter in module.parameters()]


def test_what_a_recurrent_layer_is_measured_on_is_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else cuDNN puts it together in every run that counts."""
    node = next(n for n in exported(nn.GRU(6, 8).eval(), torch.randn(2, 3, 6)).graph.nodes if "gru" in n.name)
    seen: list[list[tuple[int, ...]]] = []
    monkeypatch.setattr(recurrent_weights, "_is_for_cudnn", lambda _weights: True)
    monkeypatch.setattr(RecurrentLayers, "compact", lambda self: seen.append([tuple(w.shape) for w in self.weights]))

    profile_node(node, "cpu", repeats=1)

    assert [[(24, 6), (24, 8), (24,), (24,)]] == seen


def test_weights_that_come_from_outside_are_not_this_graphs() -> None:
    program = capture(nn.LSTM(6, 8).eval(), (torch.randn(2, 3, 6),))

    assert [] == list(recurrent_layers(program.graph_module))


@pytest.mark.parametrize("as_buffer", [True, False])
def test_state_that_a_part_writes_to_is_not_held_by_parts_on_other_devices(as_buffer: bool) -> None:
    """It would become two, and one of them would stay as it was."""
    root, graph, mode = nn.Module(), torch.fx.Graph(), FakeTensorMode()
    if as_buffer:
        root.register_buffer("count", torch.zeros(2))
    else:
        root.count = torch.zeros(2)
    x, count = graph.placeholder("x"), graph.get_attr("count")
    total = graph.call_function(torch.add, (x, graph.call_method("add_", (count, 1))))
    again = graph.get_attr("count")
    product = graph.call_function(torch.mul, (total, again))
    for node in graph.nodes:
        node.meta["val"] = mode.from_tensor(torch.zeros(2))
    parts = {node: "b" if node in (again, product) else "a" for node in graph.nodes if node is not x}
    graph.output(product)
    module = GraphModule(root, graph)
    placed = split(module, Assignment.of(module, parts), names=str).graph_module

    with pytest.raises(PassError, match="The parts a on cpu and b on cpu:1 share the state count, which would become"):
        PlaceOnDevices({"a": Device("left"), "b": Device("right", torch_device="cpu:1")})(placed)
    PlaceOnDevices({"a": Device("left"), "b": Device("right")})(placed)
    assert torch.equal(torch.full((2,), 2.0), placed(torch.ones(2)))


class Repeating(nn.Module):
    """A mask whose every place is one number, a window over a row, and a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.full((1, 1), 2.0).expand(64, 64))
        self.register_buffer("windows", torch.arange(64.0).unfold(0, 4, 1))
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x * self.mask * self.weight + self.windows.sum()
        return result


def test_what_shows_a_number_many_times_does_so_where_it_is_moved_to() -> None:
    """Else it would take more bytes there than its budget counts."""
    model, x = Repeating(), torch.randn(64, 64)
    lowered = lower(model, (x,), devices=[Device("far", torch_device="meta")])

    held = {name: buffer.untyped_storage().nbytes() for name, buffer in lowered.named_buffers()}

    assert held == {"mask": 4, "windows": 64 * 4}
    assert lowered.mask.stride() == (0, 0)
    assert (lowered.windows.stride(), lowered.windows.storage_offset()) == ((1, 1), 0)
    assert lowered.report.devices[0].parameter_bytes == sum(held.values()) + 64 * 4
