"""Finding the effects of a big graph, and the clean-ups that stand on it, beside torch.fx's (which know no effects)."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.dialect.common.cse_pass import CSEPass as TorchCSEPass
from torch.fx.passes.tools_common import legalize_graph as torch_legalize_graph

from benchmarks.harness import Duel, case
from fxpasses.effects import analyze_effects
from fxpasses.passes.cleanup import CSEPass, EliminateDeadCode, find_common_subexpressions, legalize_graph

aten = torch.ops.aten


def functional(size: int) -> GraphModule:
    """``size`` calls without effects, each of one or two earlier values; every third is a double."""
    graph = Graph()
    values = [graph.placeholder("x")]
    for index in range(size):
        first, second = values[-1], values[index // 2]
        if index % 3 == 2:
            values.append(graph.call_function(aten.add.Tensor, (first.args[0], first.args[1])))
        else:
            values.append(graph.call_function(aten.add.Tensor, (first, second)))
    graph.output(values[-1])
    return GraphModule(torch.nn.Module(), graph)


def stateful(size: int) -> GraphModule:
    """``size`` calls, of which a fifth each adds, views, writes in place, permutes, draws random numbers."""
    graph = Graph()
    values = [graph.placeholder("x")]
    for index in range(size):
        last = values[-1]
        values.append(_stateful_call(graph, index, last, values[index // 2]))
    graph.output(values[-1])
    return GraphModule(torch.nn.Module(), graph)


def _stateful_call(graph: Graph, index: int, last: Node, other: Node) -> Node:
    match index % 5:
        case 0:
            return graph.call_function(aten.add.Tensor, (last, other))
        case 1:
            return graph.call_function(aten.view.default, (last, [-1]))
        case 2:
            return graph.call_method("mul_", (last, 2))
        case 3:
            return graph.call_function(operator.getitem, (last, 0))
        case _:
            return graph.call_function(aten.rand_like.default, (last,))


def many_dead(size: int) -> GraphModule:
    """``size`` calls, of which half are used."""
    graph = Graph()
    x = graph.placeholder("x")
    for _ in range(size // 2):
        graph.call_function(aten.sin.default, (x,))
        x = graph.call_function(aten.cos.default, (x,))
    graph.output(x)
    return GraphModule(torch.nn.Module(), graph)


@case("effects: analyse a functional graph", sizes=(10_000, 100_000))
def analyse_functional(size: int) -> Duel:
    graph_module = functional(size)

    def check(mine: Any, _: Any) -> None:
        assert mine.is_pure
        assert mine.order_edges == []

    return Duel(ours=lambda: analyze_effects(graph_module), peer=None, check=check)


@case("effects: analyse a graph of writes, views and random numbers", sizes=(10_000, 100_000))
def analyse_stateful(size: int) -> Duel:
    graph_module = stateful(size)

    def check(mine: Any, _: Any) -> None:
        assert 0 < len(mine.order_edges) < 2 * size

    return Duel(ours=lambda: analyze_effects(graph_module), peer=None, check=check)


@case("cleanup: common subexpressions", sizes=(1_000, 10_000))
def common_subexpressions(size: int) -> Duel:
    graph_module = functional(size)
    ours, theirs = CSEPass(), TorchCSEPass()

    def check(mine: Any, other: Any) -> None:
        assert len(mine.graph_module.graph.nodes) == len(other.graph_module.graph.nodes)

    return Duel(ours=lambda: ours(graph_module), peer=lambda: theirs(graph_module), check=check)


@case("cleanup: find common subexpressions only", sizes=(10_000, 100_000))
def find_only(size: int) -> Duel:
    graph_module = functional(size)

    def check(mine: Any, _: Any) -> None:
        assert len(mine) >= size // 3 - 1

    return Duel(ours=lambda: find_common_subexpressions(graph_module), peer=None, check=check)


@case("cleanup: dead code", sizes=(1_000, 10_000))
def dead_code(size: int) -> Duel:
    def ours(graph_module: GraphModule) -> int:
        EliminateDeadCode()(graph_module)
        return len(graph_module.graph.nodes)

    def theirs(graph_module: GraphModule) -> int:
        graph_module.graph.eliminate_dead_code()
        graph_module.delete_all_unused_submodules()
        graph_module.recompile()
        return len(graph_module.graph.nodes)

    def check(mine: Any, other: Any) -> None:
        assert mine == other == size // 2 + 2

    return Duel(ours=ours, peer=theirs, check=check, prepare=lambda: many_dead(size))


@case("cleanup: sort a graph that is in order", sizes=(1_000, 10_000))
def sort_sorted(size: int) -> Duel:
    def check(mine: Any, other: Any) -> None:
        mine.graph.lint()
        other.graph.lint()

    return Duel(ours=legalize_graph, peer=torch_legalize_graph, check=check, prepare=lambda: functional(size))
