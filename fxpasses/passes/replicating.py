"""Compute a value again where it is used, instead of sending it there.

Where parts of a graph run on different devices or in different processes, every value that crosses costs a copy. What
is pure and cheap (a mask, a rotary table, a view) may rather be computed in each part that uses it. Which values those
are is the caller's decision; here they are copied, and what must not be computed twice is refused.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

import torch
from torch.fx import GraphModule, Node

from fxpasses.editing import erase_nodes, insert_before
from fxpasses.effects import EffectAnalysis, analyze_effects
from fxpasses.errors import PartitionError
from fxpasses.metadata import running_pass
from fxpasses.partitioners.assignment import Assignment
from fxpasses.passes.opening_regions import body_of_region, is_region

__all__ = ["replicate", "why_not_replicable"]


def why_not_replicable(node: Node, effects: EffectAnalysis) -> str:
    """Why a node must not be computed a second time elsewhere, in a few words; "" if it may.

    Args:
        node: Any node of the graph.
        effects: The effects of that graph.

    >>> from torch.fx import symbolic_trace
    >>> import torch
    >>> graph_module = symbolic_trace(lambda x: torch.rand_like(x))
    >>> node = next(iter(graph_module.graph.find_nodes(op="call_function", target=torch.rand_like)))
    >>> why_not_replicable(node, analyze_effects(graph_module))
    'it draws random numbers'
    """
    if node.op not in ("call_function", "call_method"):
        return f"it is a node of kind {node.op}"
    does = effects.of(node)
    if does.random:
        return "it draws random numbers"
    if not does.is_pure and not (is_region(node) and _only_asserts(node)):
        return f"it has an effect: {does.reason}" if does.reason else "it has an effect"
    touched = {*does.reads, *effects.storages(node)}
    if not touched.isdisjoint(effects.written_storages):
        return "what it reads or gives is written in place"
    if effects.region_stack(node):
        return "it is inside a region that a marker opened"
    return ""


def _only_asserts(region: Node) -> bool:
    """Whether the body of a region is pure but for assertions, which may be checked twice."""
    waiting = [body_of_region(region)]
    while waiting:
        body = waiting.pop()
        if body is None:
            return False
        effects = analyze_effects(body)
        for node in body.graph.nodes:
            if is_region(node):
                waiting.append(body_of_region(node))
            elif not effects.of(node).is_pure and not _is_assert(node):
                return False
    return True


def _is_assert(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name.startswith("aten::_assert")


def replicate(
    graph_module: GraphModule, assignment: Assignment | Mapping[Node, Hashable], into: Mapping[Hashable, Iterable[Node]]
) -> dict[Node, Hashable]:
    """Copy nodes into parts that use them, so that these parts compute them themselves.

    Each part gets one copy of each node that is listed for it. The copy reads the copies of its own inputs where those
    are listed too. A pure original that nothing uses any more is erased, unless its part would be left empty.

    Args:
        graph_module: The graph, which is changed in place.
        assignment: The part of each node.
        into: The nodes to copy, for each part.

    Returns:
        The part of each node, copies included.

    Raises:
        PartitionError: A node draws random numbers, has an effect, or reads what is written; the graph is left as it
            was.

    Linear in the copied nodes and their users, after one analysis of the graph's effects.
    """
    homes = dict(assignment.partition_of if isinstance(assignment, Assignment) else assignment)
    wanted = {part: sorted(dict.fromkeys(nodes)) for part, nodes in into.items()}
    effects = analyze_effects(graph_module)
    for part, nodes in wanted.items():
        for node in nodes:
            if reason := why_not_replicable(node, effects):
                raise PartitionError(f"{node.name} cannot be computed again in part {part!r}: {reason}", node=node)
    result = dict(homes)
    with running_pass("replicate"):
        for part, nodes in wanted.items():
            copied = [node for node in nodes if homes.get(node) != part]
            _copy_into(part, copied, result)
        _erase_unused([node for nodes in wanted.values() for node in nodes if effects.is_removable(node)], result)
    return result


def _copy_into(part: Hashable, nodes: Sequence[Node], homes: dict[Node, Hashable]) -> None:
    """Users first: each copy stands right before the first of its users, and so behind everything that it reads."""
    for node in reversed(nodes):
        users = [user for user in node.users if homes.get(user) == part]
        if not users:
            continue
        copy = insert_before(min(users), node.target, node.args, node.kwargs, op=node.op, replaces=[node])
        homes[copy] = part
        for user in users:
            user.replace_input_with(node, copy)


def _erase_unused(nodes: Iterable[Node], homes: dict[Node, Hashable]) -> None:
    left: dict[Hashable, int] = {}
    for part in homes.values():
        left[part] = left.get(part, 0) + 1
    for node in sorted(dict.fromkeys(nodes), reverse=True):
        part = homes.get(node)
        if node.users or (part is not None and left[part] == 1):
            continue
        if part is not None:
            left[part] -= 1
            del homes[node]
        erase_nodes([node])
