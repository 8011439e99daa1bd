"""Hundred passes over one graph: this package's manager beside torch.fx's."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, GraphModule
from torch.fx.passes.infra.pass_base import PassResult as TorchPassResult
from torch.fx.passes.infra.pass_manager import PassManager as TorchPassManager

from benchmarks.harness import Duel, case
from fxpasses import PassManager, PassResult

PASSES = 100


def big_graph(size: int) -> GraphModule:
    """A module whose graph has ``size`` calls, each of one or two earlier values."""
    graph = Graph()
    values = [graph.placeholder("x")]
    for index in range(size):
        if index % 3:
            values.append(graph.call_function(torch.relu, (values[-1],)))
        else:
            values.append(graph.call_function(operator.add, (values[-1], values[index // 2])))
    graph.output(values[-1])
    return GraphModule(torch.nn.Module(), graph)


def ours_nothing(graph_module: GraphModule) -> PassResult:
    return PassResult(graph_module, False)


def theirs_nothing(graph_module: GraphModule) -> TorchPassResult:
    return TorchPassResult(graph_module, False)


def _unchanged(mine: Any, theirs: Any) -> None:
    assert not mine.modified
    assert theirs is None or not theirs.modified
    assert len(mine.records) == PASSES


def _duel(size: int, **options: Any) -> Duel:
    module, other = big_graph(size), big_graph(size)
    ours = PassManager([ours_nothing] * PASSES, **options)
    theirs = TorchPassManager([theirs_nothing] * PASSES, **options)
    return Duel(ours=lambda: ours(module), peer=lambda: theirs(other), check=_unchanged, peer_rounds=1)


@case("100 no-op passes", sizes=(1_000, 10_000), promise=50, rounds=3)
def no_op_passes(size: int) -> Duel:
    return _duel(size)


@case("100 no-op passes, lint after each", sizes=(1_000, 10_000), promise=10, rounds=3)
def no_op_passes_with_lint(size: int) -> Duel:
    return _duel(size, run_checks_after_each_pass=True)


def _flip(graph_module: GraphModule) -> None:
    """Change one node, there and back."""
    node = next(iter(graph_module.graph.find_nodes(op="call_function", target=operator.add)), None)
    old, new = (operator.add, torch.add) if node is not None else (torch.add, operator.add)
    for found in graph_module.graph.find_nodes(op="call_function", target=old)[:1]:
        found.target = new


def _flip_for_torch(graph_module: GraphModule) -> TorchPassResult:
    _flip(graph_module)
    return TorchPassResult(graph_module, True)


def _ran(mine: Any, theirs: Any) -> None:
    assert len(mine.records) == 10
    assert all(record.modified for record in mine.records)


@case("10 passes that each change a node", sizes=(1_000, 10_000), promise=1.5, rounds=3)
def changing_passes(size: int) -> Duel:
    module, other = big_graph(size), big_graph(size)
    ours, theirs = PassManager([_flip] * 10), TorchPassManager([_flip_for_torch] * 10)
    return Duel(ours=lambda: ours(module), peer=lambda: theirs(other), check=_ran, peer_rounds=1)
