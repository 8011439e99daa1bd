"""Tell for a graph of forward and backward which forward operator each backward operator belongs to.

Autograd writes it down: backward nodes carry the ``seq_nr`` of the forward call. The joint graphs of ``torch.export``
and ``aot_export_module`` have lost that; there it follows from the order, since the backward runs the calls of the
forward in reverse.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence

import torch
from torch.fx import Node

from fxpasses.metadata import value_of

__all__ = ["backward_by_number", "backward_by_order", "is_backward"]

_SEEDS = ("ones_like", "full_like")
_SUMS = ("add", "add_")


def is_backward(node: Node) -> bool:
    """Whether metadata says that a node belongs to the backward half of a joint graph."""
    tag = str(node.meta.get("partitioner_tag", ""))
    return "backward" in tag or bool(node.meta.get("is_backward") or node.meta.get("autograd_backward"))


def backward_by_number(nodes: Iterable[Node]) -> dict[Node, Node]:
    """The forward node of each backward node by ``seq_nr``; which of two is backward is told by metadata.

    Where a value has several users, autograd adds up their gradients between two calls, under the number of whatever
    ran before the backward. Such a sum belongs where the last of its terms does.

    Args:
        nodes: The nodes in graph order.
    """
    forward: dict[int, Node] = {}
    numbers: dict[Node, int] = {}
    for node in nodes:
        if (number := node.meta.get("seq_nr")) is None:
            continue
        if not is_backward(node):
            forward.setdefault(number, node)
        elif number in forward:
            terms = [numbers[term] for term in node.all_input_nodes if term in numbers]
            is_sum = _name_of(node) in _SUMS and len(terms) == len(node.all_input_nodes)
            numbers[node] = min(number, *terms) if is_sum else number
    return {node: forward[number] for node, number in numbers.items()}


def backward_by_order(nodes: Sequence[Node]) -> dict[Node, Node]:
    """The forward node of each backward node of a joint graph without such numbers; nothing for any other graph.

    A joint graph returns a loss and gradients, and the backward begins with a one in the shape of the loss. From there
    a pointer walks back over the forward: a backward node that reads what a forward node made or used belongs to the
    last such node that the pointer has not passed; one that reads nothing of the forward stays at the pointer.

    Args:
        nodes: The compute nodes in graph order. Time O(nodes + edges · log nodes).
    """
    seed = next((index for index in range(len(nodes)) if _is_seed(nodes, index)), None)
    if seed is None:
        return {}
    place = {node: index for index, node in enumerate(nodes[:seed])}
    at = place[nodes[seed].all_input_nodes[0]]

    @functools.cache
    def places(used: Node) -> list[int]:
        """Where a value is made and used in the forward."""
        return sorted(place[each] for each in (used, *used.users) if each in place)

    partners: dict[Node, Node] = {}
    for node in nodes[seed:]:
        saved = [used for used in node.all_input_nodes if used in place or used.op in ("placeholder", "get_attr")]
        near = [users[last - 1] for users in map(places, saved) if (last := bisect_right(users, at))]
        at = max(near, default=at)
        partners[node] = nodes[at]
    return partners


def _is_seed(nodes: Sequence[Node], index: int) -> bool:
    """Whether a node is the one that a backward begins with: made of a returned scalar, and gradients follow."""
    node = nodes[index]
    name = _name_of(node)
    if name not in _SEEDS or not node.all_input_nodes or (name == "full_like" and node.args[1:2] != (1,)):
        return False
    loss = node.all_input_nodes[0]
    if loss.op in ("placeholder", "get_attr"):  # a loss is computed
        return False
    value = value_of(loss)
    is_scalar = isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype.is_floating_point
    returned = node.graph.output_node().all_input_nodes
    return (
        is_scalar
        and loss in returned
        and _leads_to(node, returned, map(nodes.__getitem__, range(index + 1, len(nodes))))
    )


def _name_of(node: Node) -> str:
    return getattr(getattr(node.target, "overloadpacket", None), "__name__", "")


def _leads_to(node: Node, wanted: Collection[Node], later: Iterable[Node]) -> bool:
    reached = {node}
    for other in later:
        if not reached.isdisjoint(other.all_input_nodes):
            reached.add(other)
    return not (reached - {node}).isdisjoint(wanted)
