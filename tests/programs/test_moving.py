from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch.export import ExportedProgram, export
from torch.fx import GraphModule, symbolic_trace
from torch.utils import _pytree as pytree

from fxpasses.errors import GraphError
from fxpasses.programs import move_to_device
from fxpasses.values import nested_graph_modules


def devices_in(root: GraphModule | ExportedProgram) -> set[str]:
    """Every device that anything in a program is on, or names."""
    graph_module = root.graph_module if isinstance(root, ExportedProgram) else root
    leaves: list[object] = [*graph_module.parameters(), *graph_module.buffers()]
    if isinstance(root, ExportedProgram):
        leaves += [*root.state_dict.values(), *root.constants.values(), root.example_inputs]
    for nested in nested_graph_modules(graph_module):
        for node in nested.graph.nodes:
            leaves += [node.args, dict(node.kwargs), node.meta.get("val")]
        leaves += [re.findall(r"device\(type='(\w+)'", nested.code)]
    flat = pytree.tree_leaves(leaves)
    tensors = {leaf.device.type for leaf in flat if isinstance(leaf, torch.Tensor)}
    named = {leaf.type for leaf in flat if isinstance(leaf, torch.device)}
    return tensors | named | {leaf for leaf in flat if leaf in ("cpu", "meta")}


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(4, 3, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


class Positions(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(8, 4)
        self.head = torch.nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight
        self.scale = torch.tensor(2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1], device=x.device) + torch.zeros(x.shape[1], dtype=torch.int64)
        hidden = self.head(self.embed(positions)) * self.scale + x.to("cpu")
        return torch.cond(hidden.sum() > 0, lambda h: h + torch.ones(8), lambda h: h - torch.ones(8), (hidden,))


@pytest.mark.parametrize("make", [(Recurrent, (2, 5, 4)), (Positions, (8, 8))], ids=["lstm", "arange"])
def test_complaint_33_moving_to_meta_and_back_leaves_no_stray_device(make) -> None:
    """Complaint 33: an exported LSTM and an arange model go cpu -> meta -> cpu; nothing stays behind, and it runs."""
    model, shape = make
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = export(model().requires_grad_(False), (torch.randn(shape),))
    keys = list(program.state_dict)

    move_to_device(program, "meta")
    program.validate()
    assert {"meta"} == devices_in(program)

    move_to_device(program, "cpu")
    program.validate()
    assert {"cpu"} == devices_in(program)
    assert keys == list(program.state_dict)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert "cpu" == program.module()(torch.randn(shape)).device.type


def test_what_is_on_the_device_stays_as_it_is() -> None:
    """Moving to where everything is keeps tensors, text and values the same objects."""
    program = export(Positions().requires_grad_(False), (torch.randn(8, 8),))
    before = str(program.graph), {name: id(entry) for name, entry in program.state_dict.items()}

    move_to_device(program, "cpu")

    assert before == (str(program.graph), {name: id(entry) for name, entry in program.state_dict.items()})


def test_tied_tensors_stay_tied_on_the_way() -> None:
    """One tensor under two names is one tensor on the other device."""
    graph_module = symbolic_trace(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)))
    graph_module.get_submodule("1").weight = graph_module.get_submodule("0").weight

    move_to_device(graph_module, torch.device("meta"))

    assert graph_module.get_submodule("1").weight is graph_module.get_submodule("0").weight
    assert "meta" == graph_module.get_submodule("0").weight.device.type


def test_methods_that_name_a_device_follow() -> None:
    """x.cpu() and x.to("cpu") in a traced graph mean the new device."""

    def forward(x: torch.Tensor):
        return x.cpu(), x.to("cpu"), x.to(torch.float64)

    graph_module = symbolic_trace(forward)

    move_to_device(graph_module, "meta")

    assert ["meta", "meta", "meta"] == [each.device.type for each in graph_module(torch.ones(2, device="meta"))]


def test_what_makes_a_tensor_from_a_size_makes_it_on_the_device() -> None:
    """torch.ones(x.shape[0]) of a traced graph is no operator of torch.ops, and stayed on the CPU."""

    def forward(x: torch.Tensor):
        return torch.ones(x.shape[0]), torch.zeros(x.shape[0], device="cpu")

    graph_module = symbolic_trace(forward)

    move_to_device(graph_module, "meta")

    assert ["meta", "meta"] == [each.device.type for each in graph_module(torch.ones(2, device="meta"))]


def test_what_is_no_device_is_refused() -> None:
    """A typing error in the name of a device is a sentence."""
    with pytest.raises(GraphError, match=re.escape("'cup' is not a device: ")):
        move_to_device(symbolic_trace(torch.nn.ReLU()), "cup")
