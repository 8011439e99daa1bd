"""Compute at compile time what depends on constants alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
import torch
from torch._ops import HigherOrderOperator
from torch.fx import GraphModule, Node, map_arg
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from fxpasses.editing import erase_nodes, replace_node
from fxpasses.metadata import value_of
from fxpasses.pass_base import PassBase, PassResult
from fxpasses.passes.assertions import is_proven_assertion
from fxpasses.programs.constant_values import Constants
from fxpasses.units import MiB
from fxpasses.values import has_value

__all__ = ["FoldConstants", "find_foldable"]

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def find_foldable(constants: Constants, *, max_bytes: int, parameters: bool = False) -> list[Node]:
    """The calls whose value is the same in every run, and small: their inputs are constants or such calls.

    Args:
        constants: The constants of the graph.
        max_bytes: The largest value that may be computed.
        parameters: Also count parameters that require gradients as constants.

    Returns:
        The nodes, in graph order. Random calls, calls with an effect, and calls whose memory is written later are never
        among them. One walk, O(nodes + edges).
    """
    known: set[Node] = set()
    found: list[Node] = []
    for node in constants.graph_module.graph.nodes:
        if node.op in ("get_attr", "placeholder"):
            tensor = constants.tensor(node)
            if tensor is not None and (parameters or not tensor.requires_grad):
                known.add(node)
        elif known.issuperset(node.all_input_nodes) and _is_foldable(node, constants, max_bytes):
            known.add(node)
            found.append(node)
    return found


def _is_foldable(node: Node, constants: Constants, max_bytes: int) -> bool:
    if node.op not in ("call_function", "call_method") or isinstance(node.target, HigherOrderOperator):
        return False
    effects = constants.effects.of(node)
    if not effects.is_pure and node.target is not torch.ops.aten.detach_.default:
        return False
    if constants.is_written(node) or constants.effects.region_stack(node):
        return False
    size = _bytes_of(node)
    return size is not None and size <= max_bytes


def _bytes_of(node: Node) -> int | None:
    """How large the value of a node is; None if that is not known, or if it is no tensor."""
    if not has_value(node):
        return None
    total = 0
    for leaf in pytree.tree_leaves(value_of(node)):
        if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided or leaf.device.type == "meta":
            return None
        if any(isinstance(size, _SYMBOLIC) for size in leaf.shape):
            return None
        total += leaf.numel() * leaf.element_size()
    return total


def _to_replace(foldable: Iterable[Node], constants: Constants) -> list[Node]:
    """The last nodes of each constant computation, in graph order; what they need disappears with them."""
    lasting = constants.effects.lasting_storages
    ends: list[Node] = []
    going: set[Node] = set()
    for node in reversed(list(foldable)):
        if node.users and all(user in going or is_proven_assertion(user) for user in node.users):
            going.add(node)
        elif isinstance(value_of(node), torch.Tensor) and lasting.isdisjoint(constants.effects.storages(node)):
            going.add(node)
            ends.append(node)
    return ends[::-1]


@attrs.frozen
class FoldConstants(PassBase):
    """Replace what depends on constants alone by its value.

    Results that share memory with a parameter (a transposed weight) or that the graph returns stay computed, so that
    nobody's later write can reach a constant. Buffers count as constants: load a state dict before folding, not after.

    Args:
        max_bytes: The largest value that is folded; a large weight is never copied for the sake of a cheap call.
        parameters: Also fold what depends on parameters that require gradients; it does not train any more.
    """

    max_bytes: int = attrs.field(default=MiB, kw_only=True)
    parameters: bool = attrs.field(default=False, kw_only=True)

    def call(self, graph_module: GraphModule) -> PassResult:
        """Fold in place."""
        constants = Constants.of(graph_module)
        foldable = find_foldable(constants, max_bytes=self.max_bytes, parameters=self.parameters)
        ends = [node for node in _to_replace(foldable, constants) if node.users]
        if not ends:
            return PassResult(graph_module, False)
        values = _evaluate(_needed_by(ends, foldable), ends, constants)
        sources = [each for node in foldable for each in node.all_input_nodes if each.op in ("get_attr", "placeholder")]
        made: list[Node] = []
        for node in ends:
            made.append(constants.add(f"folded_{node.name}", values.pop(node), before=node, replaces=[node]))
            replace_node(node, made[-1])
        replaced = set(ends)
        going = [node for node in foldable if node not in replaced]
        erase_nodes(user for node in [*going, *made] for user in node.users if is_proven_assertion(user))
        _erase_unused(going)
        constants.drop_unused(sources)
        graph_module.recompile()
        return PassResult(graph_module, True)


def _needed_by(ends: list[Node], foldable: list[Node]) -> list[Node]:
    needed = set(ends)
    for node in reversed(foldable):
        if node in needed:
            needed.update(node.all_input_nodes)
    return [node for node in foldable if node in needed]


def _evaluate(nodes: list[Node], ends: list[Node], constants: Constants) -> dict[Node, torch.Tensor]:
    """The values of ``ends``; values in between are let go as soon as nobody needs them any more."""
    values: dict[Node, Any] = {}
    last_user = {each: node for node in nodes for each in node.all_input_nodes}
    wanted = set(ends)
    with _disable_current_modes(), torch.no_grad():
        for node in nodes:
            for each in node.all_input_nodes:
                if each not in values:
                    values[each] = constants.tensor(each)
            values[node] = _call(node, map_arg(node.args, values.__getitem__), map_arg(node.kwargs, values.__getitem__))
            for each in node.all_input_nodes:
                if last_user[each] is node and each not in wanted:
                    values.pop(each, None)
    return {node: values[node] for node in ends}


def _call(node: Node, args: Any, kwargs: Any) -> Any:
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)  # a call_function node has nothing else
    return node.target(*args, **kwargs)


def _erase_unused(nodes: Iterable[Node]) -> None:
    for node in reversed(list(nodes)):
        if not node.users:
            node.graph.erase_node(node)
