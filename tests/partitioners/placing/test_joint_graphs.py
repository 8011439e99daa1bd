"""Graphs of forward and backward: each backward operator lives with its forward one, whoever made the graph."""

from __future__ import annotations

import warnings
from typing import Any

import pipeline_models
import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from fxpasses import Device, fake_devices
from fxpasses.partitioners import place_by_device
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.colocation import backward_partners
from fxpasses.partitioners.placing.joint_graphs import backward_by_number, backward_by_order
from fxpasses.passes import PlaceOnDevices, split


class Loss(nn.Module):
    """A few layers with a residual, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor]:
        for layer in self.layers:
            x = x + layer(x).relu()
        return (((x - y) ** 2).mean(),)


class LlamaLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model, self.args, self.kwargs = pipeline_models.MODELS["llama"][0]()

    def forward(self, *args: Any) -> tuple[Tensor]:
        logits = self.model(*args, **self.kwargs)
        logits = logits if isinstance(logits, Tensor) else logits.logits
        return (logits.square().mean(),)


ARGS = (torch.randn(8, 32), torch.randn(8, 32))


def joint_by_export(model: nn.Module, args: tuple[Any, ...]) -> GraphModule:
    from torch.export.experimental import _export_forward_backward

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _export_forward_backward(torch.export.export(model, args)).graph_module


def joint_by_aot_export(model: nn.Module, args: tuple[Any, ...]) -> GraphModule:
    from torch._functorch.aot_autograd import aot_export_module

    graph_module, _signature = aot_export_module(model, args, trace_joint=True, output_loss_index=0)
    return graph_module


def joint_by_aot(model: nn.Module, args: tuple[Any, ...]) -> GraphModule:
    from functorch.compile import aot_module, nop
    from torch._functorch.partitioners import default_partition

    seen: list[GraphModule] = []

    def partition(joint: GraphModule, *rest: Any, **options: Any) -> Any:
        seen.append(joint)
        return default_partition(joint, *rest, **options)

    aot_module(model, nop, partition_fn=partition)(*args)
    return seen[0]


MAKERS = [joint_by_export, joint_by_aot_export, joint_by_aot]


def products(graph: GraphModule) -> list[Node]:
    names = ("mm", "addmm")
    return [node for node in graph.graph.nodes if getattr(node.target, "__name__", "").partition(".")[0] in names]


@pytest.mark.parametrize("make", MAKERS)
def test_each_product_of_the_backward_belongs_to_the_layer_whose_weight_or_input_it_uses(make: Any) -> None:
    graph = make(Loss(), ARGS)
    partners = backward_partners(GraphFigures.of(graph))
    forward, backward = products(graph)[:4], products(graph)[4:]

    assert 7 == len(backward)  # the first layer needs no gradient of its input
    wanted = [3, 3, 2, 2, 1, 1, 0]
    close = {forward[layer].name: layer for layer in range(4)}
    nodes = list(graph.graph.nodes)

    def layer_of(node: Node) -> int:
        at = nodes.index(partners[node])
        return max((layer for name, layer in close.items() if nodes.index(_named(graph, name)) <= at), default=0)

    assert wanted == [layer_of(node) for node in backward]


def _named(graph: GraphModule, name: str) -> Node:
    return next(node for node in graph.graph.nodes if node.name == name)


def test_a_sum_of_gradients_belongs_where_the_last_of_them_does() -> None:
    """Autograd adds them up under the number of the last call of the forward, which is the loss."""
    graph = joint_by_aot(Loss(), ARGS)
    figures = GraphFigures.of(graph)
    partners = backward_partners(figures)
    sums = [node for node in partners if node.target is torch.ops.aten.add.Tensor]

    assert 3 == len(sums)  # one for each residual whose input needs a gradient
    for node in sums:
        terms = [figures.position[partners[term]] for term in node.all_input_nodes]
        assert figures.position[partners[node]] == min(terms)
    assert 3 == len({partners[node] for node in sums})


def test_a_gradient_that_is_added_to_itself_does_not_belong_to_the_loss() -> None:
    """As where a value is added to itself."""

    class Doubled(Loss):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor]:
            for layer in self.layers:
                x = layer(x)
                x = x + x
            return (((x - y) ** 2).mean(),)

    partners = backward_partners(GraphFigures.of(joint_by_aot(Doubled(), ARGS)))
    sums = [node for node in partners if node.target is torch.ops.aten.add.Tensor]

    assert 4 == len(sums)
    for node in sums:
        assert [partners[node]] == [partners[term] for term in node.all_input_nodes]
    assert 4 == len({partners[node] for node in sums})


@pytest.mark.parametrize("make", MAKERS)
def test_a_joint_graph_is_placed_with_its_backward_beside_its_forward(make: Any) -> None:
    graph = make(Loss(), ARGS)
    placement = place_by_device(graph, fake_devices(2), objective="throughput", time_budget=0.1)
    home = {node: placement.device_of[str(part)].name for node, part in placement.assignment.partition_of.items()}
    partners = backward_partners(GraphFigures.of(graph))

    assert ["device0", "device1"] == sorted(set(home.values()))
    assert all(home[later] == home[earlier] for later, earlier in partners.items())
    assert 3 == len(placement.assignment)  # forward, forward and backward, backward
    assert placement.bound <= placement.objective_value < placement.seconds


def test_a_placed_joint_graph_gives_loss_and_gradients() -> None:
    model = Loss()
    graph = joint_by_aot_export(model, ARGS)
    flat = [*model.parameters(), *ARGS]
    placement = place_by_device(graph, [Device("a"), Device("b")], objective="throughput", time_budget=0.1)
    parts = split(graph, placement.assignment, names=str)
    PlaceOnDevices({parts.part_names[part]: placement.device_of[str(part)] for part in placement.assignment.order})(
        parts.graph_module
    )
    with torch.no_grad():
        wanted, got = graph(*flat), parts.graph_module(*flat)

    loss = model(*ARGS)[0]
    loss.backward()
    assert torch.equal(loss, got[0])
    assert 1 + 8 == len(got)
    assert all(torch.equal(one, other) for one, other in zip(wanted, got, strict=True))
    for parameter, gradient in zip(model.parameters(), got[1:], strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


def test_a_llama_with_its_backward_is_placed() -> None:
    model = LlamaLoss()
    graph = joint_by_export(model, tuple(model.args))
    placement = place_by_device(graph, fake_devices(2), objective="throughput", time_budget=0.1)
    home = {node: placement.device_of[str(part)].name for node, part in placement.assignment.partition_of.items()}
    partners = backward_partners(GraphFigures.of(graph))

    assert len(partners) > len(home) / 3
    assert 2 == len(set(home.values()))
    assert all(home[later] == home[earlier] for later, earlier in partners.items())
    assert placement.objective_value < 0.7 * sum(placement.load.values())


def test_a_graph_without_a_backward_has_no_partners() -> None:
    class OnesOfALoss(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            loss = x.square().mean()
            return loss, torch.ones_like(loss)

    graph = torch.export.export(OnesOfALoss(), (torch.randn(3),)).module(check_guards=False)
    nodes = GraphFigures.of(graph).nodes

    assert {} == backward_by_number(nodes)
    assert {} == backward_by_order(nodes)


def test_ones_like_an_input_are_no_seed() -> None:
    """A loss is computed; a scalar that is only handed on is none."""

    class Scaled(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return x, torch.ones_like(x) * y

    graph = torch.export.export(Scaled(), (torch.tensor(1.0), torch.randn(3))).module(check_guards=False)

    placed = place_by_device(graph, fake_devices(2), objective="throughput", contiguity="free")

    assert {} == backward_by_order(GraphFigures.of(graph).nodes)
    assert 2 == len(placed.assignment.partition_of)
