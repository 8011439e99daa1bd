"""Calls whose signature was preserved: what crosses is what the original took and gave, so another module fits there.

The graph of a program says what its modules compute, not how they were called: a number is baked in, a size is read
once for all, an output that is an input is that input. What the saved signature says of it is written out here.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from fxpasses.errors import SplitError
from fxpasses.passes.interpreter_modules import CALL_INDEX, InterpreterModule

__all__ = [
    "EXTRA",
    "as_argument",
    "call_as_exported",
    "is_number",
    "must_be",
    "must_be_same",
    "put_together",
    "taken_apart",
    "written_in_place",
]

EXTRA = "exported_extra_"
"""What the keywords begin with by which a module of the program gets values that its original did not take."""


def taken_apart(graph: Graph, node: Node, spec: pytree.TreeSpec) -> list[Any]:
    """The leaves of a value of known structure, as ``getitem`` and ``getattr`` nodes in leaf order."""
    waiting: list[tuple[Node, pytree.TreeSpec]] = [(node, spec)]
    leaves: list[Any] = []
    while waiting:
        current, shape = waiting.pop()
        if shape.is_leaf():
            leaves.append(current)
            continue
        keys = shape.context if shape.type is dict else range(shape.num_children)
        if shape.type not in (dict, tuple, list):
            flat = graph.call_function(pytree.tree_leaves, (current,))
            leaves += [graph.call_function(operator.getitem, (flat, index)) for index in range(shape.num_leaves)]
            continue
        inner = [
            (graph.call_function(operator.getitem, (current, key)), child)
            for key, child in zip(keys, shape.children(), strict=True)
        ]
        waiting.extend(reversed(inner))
    return leaves


def put_together(leaves: Sequence[Any], spec: pytree.TreeSpec) -> Any:
    """The value of known structure that has these leaves."""
    return pytree.tree_unflatten(list(leaves), spec)


class _Making:
    """Makes a value of some structure from its leaves; a function with a name for a graph's code."""

    def __init__(self, spec: pytree.TreeSpec) -> None:
        self.spec = spec
        self.__name__ = f"make_{spec.type.__name__}"

    def __call__(self, *leaves: Any) -> Any:
        return put_together(leaves, self.spec)


def as_argument(graph: Graph, value: Any) -> Any:
    """A value as an argument of a node; what a graph cannot look into, such as a dataclass, is made by a call."""
    if type(value) is dict:
        return {key: as_argument(graph, each) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(as_argument(graph, each) for each in value))
    if type(value) in (tuple, list):
        return type(value)(as_argument(graph, each) for each in value)
    leaves, spec = pytree.tree_flatten(value)
    return value if spec.is_leaf() else graph.call_function(_Making(spec), tuple(leaves))


def is_number(node: Node) -> bool:
    """Whether a node computes a size or a number from sizes: the same wherever it stands."""
    kinds = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return node.op == "call_function" and isinstance(node.meta.get("val"), kinds)


def written_in_place(node: Node) -> Node | None:
    """The tensor that a node writes to and gives back, as ``add_`` does; None for every other node."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.args or not isinstance(node.args[0], Node):
        return None
    schema = node.target._schema
    if not schema.name.endswith("_") or not schema.returns or not schema.arguments:
        return None
    taken, given = schema.arguments[0].alias_info, schema.returns[0].alias_info
    writes = taken is not None and given is not None and taken.is_write and taken.before_set == given.before_set
    return node.args[0] if writes else None


def call_as_exported(module: torch.nn.Module, unsaid: Mapping[str, Any], args: Sequence[Any], kwargs: Any) -> Any:
    """Call a module as the original was called; a module of the program also gets what its caller has to add.

    Args:
        module: The module of the program, or what took its place.
        unsaid: Which graph is meant, and values that the original got in other ways than by its arguments.
        args: The original's arguments.
        kwargs: The original's keyword arguments.
    """
    return module(*args, **kwargs, **unsaid) if _takes(module, unsaid) else module(*args, **kwargs)


def _takes(module: torch.nn.Module, unsaid: Mapping[str, Any]) -> bool:
    index = unsaid.get(CALL_INDEX, 0)
    if not isinstance(module, InterpreterModule) or index >= len(module.graphs):
        return False
    return len(unsaid) - (CALL_INDEX in unsaid) <= module.extras


def must_be_same(result: Any, given: Any, path: str) -> Any:
    """An output that the program knows as another value has to be that value.

    Raises:
        SplitError: A new module gives something else, which the program would not use.
    """
    if result is not given:
        raise SplitError(
            f"The original of {path!r} returned one tensor twice, or an input of the call, and the program uses both "
            "as one; the module in its place returned another tensor there. Let it return the same one, or export a "
            "model that holds it."
        )
    return result


def must_be(result: Any, constant: Any, path: str) -> None:
    """An output that the program has baked in has to be what it was.

    Raises:
        SplitError: A new module gives something else, which the program would not use.
    """
    if type(result) is not type(constant) or repr(result) != repr(constant):
        raise SplitError(
            f"The module in the place of {path!r} returned {_shown(result)} where the original returned {constant!r}, "
            "for which alone the program was captured. Let it return the same, or export a model that holds it."
        )


def _shown(value: Any) -> str:
    return f"a {type(value).__name__}" if isinstance(value, torch.Tensor) else repr(value)
