"""Which gradient of a value comes first is a matter of the order in which parts run the operators."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from fxpasses.outlining.regions import dependencies_of_parts, switches_regions
from fxpasses.partitioners import Assignment
from fxpasses.partitioners.costs.graph_figures import is_compute
from fxpasses.partitioners.costs.training.backward_needs import BackwardNeeds
from fxpasses.partitioners.costs.training.backward_orders import needs_in_order
from fxpasses.partitioners.costs.training.backward_traces import trace_backward
from fxpasses.passes import OpenRegions


class Fork(nn.Module):
    """A value with two users that need nothing from each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.first(x)
        return y.sin(), y.cos()


def graph_of(model: nn.Module) -> tuple[GraphModule, dict[str, Node]]:
    graph = torch.export.export(model, (torch.randn(4, 8),)).module(check_guards=False)
    return graph, {node.name: node for node in graph.graph.nodes}


def freed_in(needs: BackwardNeeds, maker: Node) -> set[Node | None]:
    return {stay.last for stay in needs.stays if stay.made_by is maker and stay.begin == "backward"}


def test_the_gradient_that_comes_first_waits_for_the_other() -> None:
    graph, node = graph_of(Fork())
    traced = trace_backward(graph)
    crossed = Assignment.of(graph, {node["linear"]: "a", node["sin"]: "c", node["cos"]: "b"}, order=["a", "b", "c"])

    needs = needs_in_order(graph, crossed, traced)

    assert node["sin"] in freed_in(traced, node["cos"])
    assert node["cos"] in freed_in(needs, node["sin"])
    assert list(traced.differentiable) != list(needs.differentiable)
    assert set(traced.differentiable) == set(needs.differentiable)
    assert (dict(traced.saved), dict(traced.trained)) == (dict(needs.saved), dict(needs.trained))


def test_what_keeps_its_order_is_not_traced_again() -> None:
    """Users of different values may change places; and each order is looked at once."""
    graph, node = graph_of(Fork())
    traced, known = trace_backward(graph), dict[tuple[Node, ...], BackwardNeeds]()
    as_it_is = Assignment.of(graph, {node["linear"]: "a", node["sin"]: "a", node["cos"]: "b"})
    crossed = Assignment.of(graph, {node["linear"]: "a", node["sin"]: "c", node["cos"]: "b"}, order=["a", "b", "c"])

    assert needs_in_order(graph, as_it_is, traced, known) is traced
    assert not known
    found = needs_in_order(graph, crossed, traced, known)
    assert needs_in_order(graph, crossed, traced, known) is found is not traced
    assert [(node["linear"], node["cos"], node["sin"])] == list(known)


def test_where_markers_switch_regions_the_order_of_the_graph_is_taken() -> None:
    """Parts enter the regions by themselves, and the graph in another order would not."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            with torch.autocast("cpu"):
                y = self.first(self.first(x))
            return y.sin(), y.cos()

    graph = OpenRegions()(graph_of(Mixed())[0]).graph_module
    node = {node.name: node for node in graph.graph.nodes}
    traced = trace_backward(graph)
    part_of = {each: "a" for each in graph.graph.nodes if is_compute(each)} | {node["sin"]: "c", node["cos"]: "b"}
    crossed = Assignment.of(graph, part_of, order=["a", "b", "c"], dependencies=dependencies_of_parts(graph))

    assert any(map(switches_regions, graph.graph.nodes))
    assert needs_in_order(graph, crossed, traced) is traced
