"""Which hook is asked about which node."""

from __future__ import annotations

import math
import operator

import pytest
import torch
from torch.fx import Graph

from fxpasses.export_pass.hooks import HOOKS, hook_of


def node_of(target, value=None, *args, op="call_function"):
    graph = Graph()
    x = graph.placeholder("x")
    node = graph.create_node(op, target, args or (x,))
    if value is not None:
        node.meta["val"] = value
    return node


HIGHER = torch.ops.higher_order


@pytest.mark.parametrize(
    ("node", "hook"),
    [
        (node_of(torch.ops.aten.relu.default), "call_operator"),
        (node_of(torch.ops.aten.relu), "call_operator"),
        (node_of(torch.relu), "call_operator"),
        (node_of(operator.getitem, None, 1, 0), "call_getitem"),
        (node_of(operator.add, 3), "call_sym"),
        (node_of(operator.add, torch.ones(2)), "call_operator"),
        (node_of(operator.add), "call_operator"),
        (node_of(math.floor, 3), "call_sym"),
        (node_of(torch.sym_max, 3), "call_sym"),
        (node_of(HIGHER.cond, None, 1, 2, 3, ()), "call_cond"),
        (node_of(HIGHER.while_loop, None, 1, 2, (), ()), "call_while"),
        (node_of(HIGHER.map_impl, None, 1, [], []), "call_map"),
        (node_of(HIGHER.scan, None, 1, [], [], ()), "call_scan"),
        (node_of(HIGHER.cond, None, 1, 2), "call_higher_order"),
        (node_of(HIGHER.wrap_with_set_grad_enabled, None, False, 2, 3), "call_higher_order"),
        (node_of("relu", op="call_method"), "call_method"),
        (node_of("layer", op="call_module"), "call_module"),
    ],
)
def test_each_kind_of_node_has_its_hook(node, hook):
    assert hook == hook_of(node)
    assert hook in HOOKS
