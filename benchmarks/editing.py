"""What an edit costs: rolling back beside copying the module first, refreshing beside propagating everything again."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from benchmarks.harness import Duel, case
from fxpasses.editing import insert_after, replace_node
from fxpasses.journal import Snapshot
from fxpasses.values import obtain_fake_mode, same_value


def chain(size: int) -> GraphModule:
    """A chain of ``size`` operators with fake values and the metadata that an exported graph has."""
    graph = Graph()
    node = graph.placeholder("x")
    nodes = [node]
    for _ in range(size):
        node = graph.call_function(torch.ops.aten.relu.default, (node,))
        nodes.append(node)
    graph.output(node)
    graph_module = GraphModule({}, graph)
    with obtain_fake_mode(graph_module):
        value = torch.empty(8)
    for index, each in enumerate(nodes):
        each.meta = {
            "val": value,
            "nn_module_stack": {"m": ("", "Net")},
            "stack_trace": "File",
            "torch_fn": ("r", index),
        }
    return graph_module


def edit(graph_module: GraphModule) -> Node:
    """One rewrite in the middle that changes no shape."""
    middle = list(graph_module.graph.nodes)[len(graph_module.graph.nodes) // 2]
    return replace_node(middle, insert_after(middle, torch.ops.aten.neg.default, middle.args, replaces=[middle]))


@case("edit, roll back", sizes=(1_000, 10_000), promise=5)
def edit_and_roll_back(size: int) -> Duel:
    graph_module = chain(size)
    text = str(graph_module.graph)

    def ours() -> str:
        snapshot = Snapshot.take(graph_module)
        edit(graph_module)
        snapshot.restore()
        return str(graph_module.graph.output_node().args[0])

    def peer() -> str:
        spare = copy.deepcopy(graph_module)
        edit(spare)
        return str(graph_module.graph.output_node().args[0])

    def check(mine: Any, theirs: Any) -> None:
        assert text == str(graph_module.graph)
        assert theirs is None or mine == theirs

    return Duel(ours=ours, peer=peer, check=check, peer_rounds=2)


@case("one rewrite, values right everywhere", sizes=(1_000, 10_000), promise=50)
def rewrite_and_refresh(size: int) -> Duel:
    graph_module, other = chain(size), chain(size)
    mode = obtain_fake_mode(other)
    value = other.graph.find_nodes(op="placeholder")[0].meta["val"]

    def peer() -> GraphModule:
        edit(other)
        other.recompile()
        FakeTensorProp(other, mode).propagate_dont_convert_inputs(value)
        return other

    def check(mine: Any, theirs: Any) -> None:
        for each in (graph_module, *([theirs] if theirs is not None else [])):
            assert all(
                same_value(node.meta["val"], node.meta["val"]) for node in each.graph.nodes if node.op != "output"
            )
        assert "val" in mine.meta

    return Duel(ours=lambda: edit(graph_module), peer=peer, check=check, peer_rounds=1)
