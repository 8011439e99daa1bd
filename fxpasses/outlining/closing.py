"""Make bodies of operators out of autocast and grad-mode regions that stand as markers in a graph.

The opposite of :mod:`fxpasses.outlining.opening`: the form that ``torch.export`` gives, which backends know, and in
which the state around is put back whatever happens inside.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._higher_order_ops.wrap import wrap_with_autocast, wrap_with_set_grad_enabled
from torch.fx import GraphModule, Node

from fxpasses.editing.attributes import find_attribute
from fxpasses.editing.submodules import remove_attribute
from fxpasses.metadata import copy_metadata, merge_provenance
from fxpasses.outlining.graph_writing import GraphWriter
from fxpasses.outlining.lazy_modules import lazy_graph_module
from fxpasses.outlining.regions import REENTERED, switches_regions

__all__ = ["close_regions"]

_AUTOCAST_DEFAULTS = (None, True, None)
"""Type, whether it is on, and whether casts are kept, where a marker does not say so."""


def close_regions(graph_module: GraphModule) -> int:
    """Replace each pair of markers and what is between them by one operator with a body; nested ones too.

    Markers without a partner, regions of inference mode, which have no such operator, and regions that call modules
    stay as they are.

    Args:
        graph_module: The graph, which is changed in place and not recompiled. Parameters and buffers stay where they
            are: a body gets them as inputs.

    Returns:
        How many regions were closed.
    """
    open_markers: list[tuple[Node, Node]] = []  # what closes a region names, and what opens it
    names = _free_names(graph_module)
    closed = 0
    for node in list(graph_module.graph.nodes):
        name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
        given = node.args[0] if node.args else None
        if name == "_enter_autocast":
            open_markers.append((node, node))
        elif name in ("_set_grad_enabled", "set_grad_enabled") and isinstance(given, bool):
            open_markers.append((_question_before(node), node))
        elif open_markers and given is open_markers[-1][0] and switches_regions(node):
            _, opener = open_markers.pop()
            closed += _close(graph_module, opener, node, names)
        elif switches_regions(node) and node.target is not torch.is_grad_enabled:
            open_markers.clear()  # regions that overlap are none of ours
    return closed


def _question_before(setter: Node) -> Node:
    """The question which mode to go back to, which stands before the marker that sets another one."""
    before = setter.prev
    return before if before.target is torch.is_grad_enabled and REENTERED in before.meta else setter


def _close(graph_module: GraphModule, opener: Node, closer: Node, free_names: Iterator[str]) -> bool:
    graph = graph_module.graph
    between = _between(opener, closer)
    if any(node.op == "call_module" for node in between):
        return False
    for node in between:
        if node.op == "get_attr" and not _is_body(graph_module, node):
            opener.prepend(node)
    inside = dict.fromkeys(node for node in between if node.op != "get_attr")
    used = dict.fromkeys(each for node in inside for each in node.all_input_nodes)
    bodies = [node for node in used if node.op == "get_attr" and _is_body(graph_module, node)]
    operands = sorted(used.keys() - inside.keys() - set(bodies))
    results = [node for node in inside if any(user not in inside for user in node.users)]
    picked: list[Node] = []
    if inside:
        path = next(free_names)
        graph_module.add_module(path, _body(graph_module, bodies, operands, inside, results))
        with graph.inserting_before(opener):
            picked = _write_call(graph_module, opener, path, operands, inside, results)
    names = [node.name for node in results]
    question: Node = closer.args[0]  # type: ignore[assignment]  # or the opener itself
    for node in reversed([opener, *inside, closer]):
        graph.erase_node(node)
    if question is not opener and not question.users:
        graph.erase_node(question)
    graph._graph_namespace._used_names.difference_update(names)
    for node, name in zip(picked, names, strict=True):
        node._rename(name)
    _forget(graph_module, bodies)
    return True


def _between(opener: Node, closer: Node) -> list[Node]:
    found = []
    node = opener.next
    while node is not closer:
        found.append(node)
        node = node.next
    return found


def _is_body(graph_module: GraphModule, node: Node) -> bool:
    return find_attribute(graph_module, str(node.target)).kind == "module"


def _free_names(graph_module: GraphModule) -> Iterator[str]:
    names = (f"region_{number}" for number in itertools.count())
    return (name for name in names if not hasattr(graph_module, name))


def _body(
    graph_module: GraphModule,
    bodies: Sequence[Node],
    operands: Sequence[Node],
    inside: Mapping[Node, None],
    results: Sequence[Node],
) -> GraphModule:
    writer = GraphWriter()
    copies: dict[Node, Any] = {}
    for node in operands:
        copies[node] = writer.append("placeholder", node.name, name=node.name, meta=node.meta)
        copies[node].target = copies[node].name
    for node in bodies:
        copies[node] = writer.append("get_attr", str(node.target).replace(".", "_"), name=node.name, meta=node.meta)
    for node in inside:
        copies[node] = writer.copy(node, copies)
    returned = writer.append("output", "output", (tuple(copies[node] for node in results),))
    returned.meta["val"] = tuple(node.meta.get("val") for node in results)
    made = lazy_graph_module(writer.graph, class_name="Region", training=graph_module.training)
    for node in bodies:
        made.add_module(copies[node].target, find_attribute(graph_module, str(node.target)).value)
    return made


def _write_call(
    graph_module: GraphModule,
    opener: Node,
    path: str,
    operands: Sequence[Node],
    inside: Mapping[Node, None],
    results: Sequence[Node],
) -> list[Node]:
    """Write the operator, and pick its results."""
    graph = graph_module.graph
    body = graph.get_attr(path)
    if opener.target is torch.amp.autocast_mode._enter_autocast:
        settings = (*opener.args, *_AUTOCAST_DEFAULTS[len(opener.args) - 1 :])
        call = graph.call_function(wrap_with_autocast, (*settings, body, *operands))
    else:
        call = graph.call_function(wrap_with_set_grad_enabled, (opener.args[0], body, *operands))
    call.meta["val"] = tuple(node.meta.get("val") for node in results)
    merge_provenance(call, results)
    picked = []
    for index, node in enumerate(results):
        picked.append(graph.call_function(operator.getitem, (call, index)))
        copy_metadata(node, picked[-1])
        node.replace_all_uses_with(picked[-1], delete_user_cb=lambda user: user not in inside)
    return picked


def _forget(graph_module: GraphModule, bodies: Sequence[Node]) -> None:
    """Bodies that only a new body runs are its own."""
    for node in bodies:
        if node.users:
            continue
        node.graph.erase_node(node)
        if not node.graph.find_nodes(op="get_attr", target=str(node.target)):
            remove_attribute(graph_module, str(node.target))
