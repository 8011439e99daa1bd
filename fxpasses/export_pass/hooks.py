"""Which hook of an ExportPass is asked about a node, and with which arguments."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.fx import Node

from fxpasses.export_pass.proxy_values import NodeMetadata
from fxpasses.metadata import value_of
from fxpasses.values import has_value

__all__ = ["BODY_HOOKS", "HOOKS", "Visit", "ask_hook", "hook_of"]

HOOKS = (
    "placeholder", "output", "get_attr", "call_module", "call_method", "call_operator", "call_sym", "call_getitem",
    "call_cond", "call_while", "call_map", "call_scan", "call_delegate", "call_higher_order",
)  # fmt: skip
"""The methods of an ExportPass that are asked about nodes."""

BODY_HOOKS = frozenset({"call_module", "call_cond", "call_while", "call_map", "call_scan", "call_higher_order"})
"""The hooks about nodes that may hold a graph inside."""

_HIGHER_ORDER = {
    "cond": "call_cond",
    "while_loop": "call_while",
    "map_impl": "call_map",
    "scan": "call_scan",
    "executorch_call_delegate": "call_delegate",
}
_BODY_ARGUMENTS = {"call_cond": 4, "call_while": 4, "call_map": 3, "call_scan": 4}
_NUMBER_MODULES = frozenset({"_operator", "builtins", "math"})
_SYMBOL_FUNCTIONS = frozenset(
    {torch.sym_int, torch.sym_float, torch.sym_ite, torch.sym_max, torch.sym_min, torch.sym_not, torch.sym_sqrt}
)


def hook_of(node: Node) -> str:
    """The name of the hook that is asked about ``node``."""
    if node.op != "call_function":
        return node.op
    found = _hook_of_target(node.target)
    if found == "call_sym" and getattr(node.target, "__module__", None) == "_operator":
        return "call_sym" if _is_about_numbers(node) else "call_operator"
    if found in _BODY_ARGUMENTS and (len(node.args) != _BODY_ARGUMENTS[found] or node.kwargs):
        return "call_higher_order"
    return found


@lru_cache(maxsize=4096)
def _hook_of_target(target: Any) -> str:
    if target is operator.getitem:
        return "call_getitem"
    if isinstance(target, OpOverload | OpOverloadPacket):
        return "call_operator"
    if isinstance(target, HigherOrderOperator):
        return _HIGHER_ORDER.get(str(target._name), "call_higher_order")
    if getattr(target, "__module__", None) in _NUMBER_MODULES or target in _SYMBOL_FUNCTIONS:
        return "call_sym"
    return "call_operator"


def _is_about_numbers(node: Node) -> bool:
    """``a + b`` of sizes is ``operator.add`` as well as that of tensors in a graph from ``symbolic_trace``."""
    if has_value(node):
        return not isinstance(value_of(node), torch.Tensor)
    return any(isinstance(value_of(each), int | float | torch.SymInt | torch.SymFloat) for each in node.all_input_nodes)


class Visit:
    """One node while its hook runs."""

    __slots__ = ("args", "kwargs", "last", "made", "meta", "node", "reused")

    def __init__(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], meta: NodeMetadata) -> None:
        self.node = node
        self.args = args
        self.kwargs = kwargs
        self.meta = meta
        self.reused = False
        self.made: dict[Node, None] = {}
        self.last: Node | None = None


def _call(name: str) -> Callable[[Any, Node, Visit], Any]:
    return lambda owner, node, visit: getattr(owner, name)(node.target, visit.args, visit.kwargs, visit.meta)


def _call_body(name: str) -> Callable[[Any, Node, Visit], Any]:
    return lambda owner, node, visit: getattr(owner, name)(*visit.args, visit.meta)


_CALLERS: dict[str, Callable[[Any, Node, Visit], Any]] = {
    "call_operator": lambda owner, node, visit: owner.call_operator(node.target, visit.args, visit.kwargs, visit.meta),
    "call_module": _call("call_module"),
    "call_method": _call("call_method"),
    "call_higher_order": _call("call_higher_order"),
    "call_sym": lambda owner, node, visit: owner.call_sym(node.target, visit.args, visit.meta),
    "call_getitem": lambda owner, node, visit: owner.call_getitem(visit.args[0], visit.args[1], visit.meta),
    "call_cond": _call_body("call_cond"),
    "call_while": _call_body("call_while"),
    "call_map": _call_body("call_map"),
    "call_scan": _call_body("call_scan"),
    "call_delegate": lambda owner, node, visit: owner.call_delegate(
        visit.args[0], visit.args[1:], visit.kwargs, visit.meta
    ),
    "placeholder": lambda owner, node, visit: owner.placeholder(node.target, value_of(node), visit.meta),
    "get_attr": lambda owner, node, visit: owner.get_attr(node.target, visit.meta),
    "output": lambda owner, node, visit: owner.output(visit.args[0], visit.meta),
}


def ask_hook(owner: Any, hook: str, visit: Visit) -> Any:
    """Call a hook of ``owner`` about the visited node; gives what it answers."""
    return _CALLERS[hook](owner, visit.node, visit)
