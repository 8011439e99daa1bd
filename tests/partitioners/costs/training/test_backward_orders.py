"""Which gradient of a value comes first is a matter of the order in which parts run the operators."""

from __future__ import annotations

import torch
from forked_values import Fork
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from fxpasses import Device
from fxpasses.outlining.regions import dependencies_of_parts, switches_regions
from fxpasses.partitioners import Assignment, Training
from fxpasses.partitioners.costs.graph_figures import is_compute
from fxpasses.partitioners.costs.memory_facts import MemoryFacts
from fxpasses.partitioners.costs.training.backward_needs import BackwardNeeds
from fxpasses.partitioners.costs.training.backward_orders import Orders, needs_in_order
from fxpasses.partitioners.costs.training.backward_traces import trace_backward
from fxpasses.partitioners.costs.training.training_memory import follow_training
from fxpasses.passes import OpenRegions


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
    traced, known = trace_backward(graph), Orders()
    as_it_is = Assignment.of(graph, {node["linear"]: "a", node["sin"]: "a", node["cos"]: "b"})
    crossed = Assignment.of(graph, {node["linear"]: "a", node["sin"]: "c", node["cos"]: "b"}, order=["a", "b", "c"])

    assert needs_in_order(graph, as_it_is, traced, known) is traced
    assert not known
    found = needs_in_order(graph, crossed, traced, known)
    assert needs_in_order(graph, crossed, traced, known) is found is not traced
    assert [((node["cos"], node["sin"]),)] == list(known)


class Forks(nn.Module):
    """Two values that need nothing from each other, each with two users that need nothing from each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y, z = self.first(x), self.second(x)
        return y.sin(), y.cos(), z.exp(), z.tanh()


def test_orders_in_which_users_of_each_value_take_the_same_turns_are_one() -> None:
    """Whatever else changes places: what is predicted for one is what is predicted for the other."""
    graph, node = graph_of(Forks())
    traced, known = trace_backward(graph), Orders()
    orders = [
        ["linear", "linear_1", "cos", "sin", "exp", "tanh"],
        ["linear_1", "exp", "linear", "tanh", "cos", "sin"],
        ["linear_1", "tanh", "linear", "exp", "cos", "sin"],
    ]
    placed = [Assignment.of(graph, {node[name]: name for name in order}, order=order) for order in orders]
    found = [needs_in_order(graph, each, traced, known) for each in placed]
    alone = needs_in_order(graph, placed[1], traced)

    devices = {name: Device("ab"[at % 2], is_fake=True) for at, name in enumerate(sorted(orders[0]))}
    facts = MemoryFacts.of(graph)
    told = [follow_training(facts, placed[1], devices, Training(), needs) for needs in (found[1], alone)]

    assert found[0] is found[1] is not found[2]
    assert 2 == len(known)
    assert told[0].memory("a") == told[1].memory("a")
    assert told[0].memory("b") == told[1].memory("b")


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
