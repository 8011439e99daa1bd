"""How many bytes a node needs: what it reads from outside, what it holds, what it gives.

The numbers are those of ``torch.fx.passes.graph_manipulation`` where those are right. What that module gets wrong or
cannot do is counted here: tuples (the elements that are used), state of another dtype than the output, buffers of leaf
modules, views of ``aten`` (they hold nothing), symbolic sizes (at their hint).
"""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from fxpasses.editing.attributes import find_attribute
from fxpasses.effects.aliasing import storage_key
from fxpasses.guards import is_guard
from fxpasses.partitioners.costs.kernels.dry_runs import makes_a_copy
from fxpasses.partitioners.grouping.keep_together import is_getitem
from fxpasses.partitioners.tensor_sizes import concrete_size, tensor_bytes

from .kinds import is_aten_view, is_tuple_of_views
from .recording import NOTHING, check_graph, missing_values, record_shapes, recorded, refuse_unknown

__all__ = [
    "SizeBytes",
    "get_extra_size_of",
    "get_size_of_all_nodes",
    "get_size_of_node",
    "measure",
    "size_bytes",
    "size_of",
    "state_items",
]


class SizeBytes(NamedTuple):
    """Bytes of a node.

    Attributes:
        output_size: Bytes of its result: what crosses a border.
        total_size: Bytes of its result and of the state that it holds; a view holds nothing.
    """

    output_size: int
    total_size: int


size_bytes = SizeBytes
"""The name that torch gives it."""


def get_size_of_all_nodes(fx_module: GraphModule, args: Sequence[Any] | None = None) -> None:
    """Write the bytes of each node to ``node.size_bytes``.

    Args:
        fx_module: The module whose nodes are measured.
        args: Example inputs, for graphs that were traced without values. Little ones run for real (up to 64 KiB of
            inputs and 256 MiB of parameters), on a copy of what that may change, larger ones as fake tensors.

    Raises:
        MissingMetadataError: Nodes have no recorded value, and there are no ``args`` (also a ``RuntimeError``).
        FakeValueError: The graph cannot run on ``args`` (also of the kind that the graph raises).
        PlacementError: ``fx_module`` is no graph (also a ``TypeError``).
    """
    check_graph(fx_module)
    if args is not None:
        record_shapes(fx_module, args)
    refuse_unknown(fx_module)
    for node in fx_module.graph.nodes:
        if node.op != "output":
            node.size_bytes = get_size_of_node(fx_module, node)


def get_size_of_node(fx_module: GraphModule, node: Node) -> SizeBytes:
    """Measure one node.

    Args:
        fx_module: The module that the node belongs to.
        node: Any node; guards and nodes that give no tensor have 0 bytes.

    Raises:
        MissingMetadataError: The node has no recorded value (also a ``RuntimeError``).
    """
    return measure(fx_module, node)[0]


def measure(fx_module: GraphModule, node: Node) -> tuple[SizeBytes, dict[Hashable, int]]:
    """The bytes of one node, and what it keeps in memory though it does not make it (:func:`state_items`)."""
    if node.op == "output" or is_guard(node):
        return SizeBytes(0, 0), {}
    output = _output_bytes(fx_module, node)
    items: dict[Hashable, int] = {node: output} if node.op == "placeholder" else state_items(fx_module, node)
    if _holds_nothing(node):
        return SizeBytes(output, 0), items
    return SizeBytes(output, output + sum(items.values()) * (node.op == "call_module")), items


def _holds_nothing(node: Node) -> bool:
    """Whether its result is memory of what it reads."""
    if is_getitem(node):
        return not makes_a_copy(node)
    return is_aten_view(node) or is_tuple_of_views(node)


def size_of(node: Node) -> SizeBytes:
    """``node.size_bytes`` where it was written, else measured now."""
    recorded: SizeBytes | None = getattr(node, "size_bytes", None)
    if recorded is not None:
        return recorded
    owner = node.graph.owning_module
    return get_size_of_node(owner if owner is not None else GraphModule(torch.nn.Module(), node.graph), node)


def get_extra_size_of(node: Node, nodes: Container[Node]) -> int:
    """Bytes that a set of nodes needs in addition if a node joins it: its own, and its inputs that are not there yet.

    Args:
        node: The node.
        nodes: The set.
    """
    outside = sum(size_of(used).output_size for used in node.all_input_nodes if used not in nodes)
    return outside + size_of(node).total_size


# ---------------------------------------------------------------------------------------------------------------------
# State
# ---------------------------------------------------------------------------------------------------------------------


def state_items(fx_module: GraphModule, node: Node) -> dict[Hashable, int]:
    """What a node keeps in memory though it does not make it, with its bytes: tied tensors have one key.

    A parameter, buffer or constant counts as the storage it lives in.
    """
    if node.op not in ("get_attr", "call_module") or is_guard(node):
        return {}
    found: dict[Hashable, int] = {}
    held = find_attribute(fx_module, str(node.target)).value
    for tensor in _state_of(held):
        key = storage_key(tensor)
        found[key] = max(found.get(key, 0), tensor_bytes(tensor))
    return found


def _state_of(held: Any) -> Iterator[torch.Tensor]:
    if isinstance(held, torch.Tensor):
        yield held
    elif isinstance(held, torch.nn.Module):
        for tensor in (*held.parameters(), *held.buffers()):
            if not torch.nn.parameter.is_lazy(tensor):
                yield tensor


# ---------------------------------------------------------------------------------------------------------------------
# Values
# ---------------------------------------------------------------------------------------------------------------------


def _output_bytes(fx_module: GraphModule, node: Node) -> int:
    value = recorded(fx_module, node)
    if value is NOTHING:
        raise missing_values([node])
    if type(value) in (tuple, list) and node.op not in ("placeholder", "get_attr"):
        value = _used_elements(node, value)
    return sum(_leaf_bytes(leaf) for leaf in _leaves(value))


def _used_elements(node: Node, value: Sequence[Any]) -> list[Any]:
    """The elements of a tuple that somebody uses; all of them if somebody takes the tuple as a whole."""
    taken: set[int] = set()
    for user in node.users:
        index = user.args[1] if is_getitem(user) else None
        if not isinstance(index, int):
            return list(value)
        if user.users:
            taken.add(index % len(value))
    return [value[index] for index in sorted(taken)]


def _leaves(value: Any) -> Iterator[Any]:
    """What has a shape and a dtype: tensors, and descriptions of tensors (which are tuples themselves)."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if hasattr(found, "shape") and hasattr(found, "dtype"):
            yield found
        elif isinstance(found, (tuple, list)):
            waiting.extend(found)
        elif isinstance(found, dict):
            waiting.extend(found.values())


def _leaf_bytes(leaf: Any) -> int:
    if isinstance(leaf, torch.Tensor):
        return tensor_bytes(leaf)
    return math.prod(concrete_size(size) for size in leaf.shape) * int(leaf.dtype.itemsize)
