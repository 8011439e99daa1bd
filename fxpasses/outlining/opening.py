"""Open what ``torch.export`` closed: autocast and grad-mode regions become markers in the graph around them.

Export puts the nodes of ``with torch.autocast(...)`` and ``with torch.no_grad()`` into a body of their own, which is
one node of the graph. To cut between two of those nodes, they have to stand in the graph itself; the splitter enters
the region again in each part (:mod:`fxpasses.outlining.regions`), and :mod:`fxpasses.outlining.closing` makes bodies
of what is left in one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import Target

from fxpasses.editing.submodules import inline_submodule
from fxpasses.outlining.regions import BODY_AT, REENTERED, body_of_region, is_region

__all__ = ["open_regions"]


def open_regions(graph_module: GraphModule, wanted: Callable[[Node], bool] = is_region) -> int:
    """Replace region nodes by markers and the nodes of their bodies; nested ones too.

    Args:
        graph_module: The graph, which is changed in place and not recompiled.
        wanted: Asked for each region node, those that come out of bodies included.

    Returns:
        How many regions were opened. A body that several nodes run stays closed.
    """
    waiting = [node for node in graph_module.graph.nodes if is_region(node)]
    runs = _runs(graph_module.graph.find_nodes(op="get_attr"))
    opened = 0
    while waiting:
        node = waiting.pop()
        if not wanted(node) or body_of_region(node) is None or runs[_body(node).target] > 1:
            continue
        made = _open(node)
        runs += _runs(made)
        waiting.extend(each for each in made if is_region(each))
        opened += 1
    return opened


def _body(node: Node) -> Node:
    body: Node = node.args[BODY_AT[node.target.__name__]]  # type: ignore[union-attr,assignment]
    return body


def _runs(nodes: Iterable[Node]) -> Counter[Target]:
    """How many nodes use what each attribute holds."""
    found: Counter[Target] = Counter()
    for node in nodes:
        if node.op == "get_attr":
            found[node.target] += len(node.users)
    return found


def _open(node: Node) -> list[Node]:
    """Write the markers, and the body between them."""
    graph = node.graph
    at = BODY_AT[node.target.__name__]  # type: ignore[union-attr]
    body = _body(node)
    with graph.inserting_before(node):
        if at == 1:  # the mode to go back to is the caller's
            opened = _marker(graph.call_function(torch.is_grad_enabled), node.name)
            _marker(graph.call_function(torch._C._set_grad_enabled, (node.args[0],)), node.name)
            close: Any = torch._C._set_grad_enabled
        else:
            opened = _marker(graph.call_function(torch.amp.autocast_mode._enter_autocast, node.args[:at]), node.name)
            close = torch.amp.autocast_mode._exit_autocast
        call = graph.create_node("call_module", str(body.target), tuple(node.args[at + 1 :]))
        _marker(graph.call_function(close, (opened,)), node.name)
    call.meta = dict(node.meta)
    node.replace_all_uses_with(call)
    graph.erase_node(node)
    if not body.users:
        graph.erase_node(body)
    return inline_submodule(call)


def _marker(node: Node, region: str) -> Node:
    """Nobody computes with what a marker gives."""
    node.meta.update({"val": None, REENTERED: region})
    return node
