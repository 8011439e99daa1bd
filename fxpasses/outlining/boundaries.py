"""In what form values cross the border between two graphs: leaf by leaf, never as a tuple or a ``torch.Size``.

What consumes a part (a device, an exporter, a compiler) takes tensors and numbers. So an operation that gives several
values keeps its ``getitem`` nodes with it, only the elements that are used cross, and where somebody on the other side
wants the whole tuple it is put together again from its elements.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import torch
from torch.fx import Node

from fxpasses.metadata import value_of

__all__ = ["Leaf", "Value", "adopt_getitems", "elements_of", "is_size_of_unknown_rank", "put_together", "value_in"]

Path = tuple[int | str, ...]

_SEVERAL = frozenset(
    {"split", "chunk", "unbind", "tensor_split", "hsplit", "vsplit", "dsplit", "split_with_sizes", "unsafe_split"}
    | {
        "unsafe_chunk",
        "topk",
        "sort",
        "size",
        "shape",
        "var_mean",
        "std_mean",
        "meshgrid",
        "frexp",
        "aminmax",
        "kthvalue",
    }
)


_RESHAPING = frozenset(
    {"resize_", "resize_as_", "set_", "t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "swapdims_"}
    | {"as_strided_", "data", "unsafe_set_"}
)


@attrs.frozen
class Leaf:
    """One element of a tuple that no ``getitem`` node picks yet.

    Args:
        source: The node whose value is the tuple.
        path: The indices that lead to the element.
    """

    source: Node
    path: Path

    @property
    def name(self) -> str:
        """A readable name for it."""
        return "_".join([self.source.name, *map(str, self.path)])


Value = Node | Leaf
"""What can cross a border: the value of a node, or one element of it."""


def adopt_getitems(nodes: Iterable[Node], home: dict[Node, int], outside: int) -> None:
    """Move each ``getitem`` to where the node is whose elements it picks.

    Args:
        nodes: All nodes of the graph, in order.
        home: For each assigned node its part; changed in place.
        outside: What stands for "in no part" (such nodes have no entry).
    """
    for node in nodes:
        if node.target is not operator.getitem or node.op != "call_function":
            continue
        source = node.args[0]
        if not isinstance(source, Node) or home.get(source, outside) == home.get(node, outside):
            continue
        if not isinstance(node.args[1], (int, str, slice)) or len(node._input_nodes) > 1 or not _has_elements(source):
            continue
        if source in home:
            home[node] = home[source]
        else:
            home.pop(node, None)


def value_in(node: Node, path: Path) -> Any:
    """The recorded value of an element, None if there is none."""
    value = value_of(node)
    for index in path:
        value = value[index]
    return value


def elements_of(node: Node) -> Any:
    """What a tuple-valued node consists of: the same nesting with a :class:`Value` for each element.

    Elements that are None (an operator leaves out optional results so) stay None.

    Returns:
        The nesting; or ``node`` itself if its value is not known to be a tuple, list or ``torch.Size``.
    """
    value = value_of(node)
    if not isinstance(value, (tuple, list)):
        return node
    picked = _picked_by(node)
    return _nested(value, lambda path: picked.get(path) or Leaf(node, path))


def is_size_of_unknown_rank(node: Node) -> bool:
    """Whether a node asks for all sizes of a tensor of which no value is recorded.

    Asking again elsewhere gives the same, unless something changes the shape of that very tensor in place.
    """
    is_method = node.op == "call_method" and node.target == "size" and len(node.args) == 1 and not node.kwargs
    is_attribute = node.target is getattr and node.args[1:] == ("shape",)
    if not (is_method or is_attribute) or value_of(node) is not None:
        return False
    tensor = node.all_input_nodes[0]
    return not any(user.op == "call_method" and user.target in _RESHAPING for user in tensor.users)


def put_together(elements: Any, environment: Mapping[Value, Any]) -> Any:
    """Build what :func:`elements_of` gave from values of another graph."""
    if isinstance(elements, (tuple, list)):
        return type(elements)(put_together(element, environment) for element in elements)
    return environment[elements] if isinstance(elements, (Node, Leaf)) else elements


def _nested(value: Any, make: Callable[[Path], Value], path: Path = ()) -> Any:
    """Recursion over the nesting of one value, which is as deep as a user writes it."""
    if isinstance(value, (tuple, list)):
        parts = [_nested(element, make, (*path, index)) for index, element in enumerate(value)]
        return parts if isinstance(value, list) else tuple(parts)
    return None if value is None else make(path)


def _picked_by(node: Node) -> dict[Path, Node]:
    """The getitem nodes that pick elements of a node already, by path."""
    found: dict[Path, Node] = {}
    waiting: list[tuple[Path, Node]] = [((), node)]
    for path, source in waiting:
        for user in source.users:
            if user.target is operator.getitem and user.args[0] is source and isinstance(user.args[1], int):
                inner = (*path, user.args[1])
                if user.args[1] >= 0 and found.setdefault(inner, user) is user:
                    waiting.append((inner, user))
    return found


def _has_elements(node: Node) -> bool:
    """Whether the value of a node is a tuple (or the like) and not a tensor, as far as that can be known."""
    value = value_of(node)
    if value is not None:
        return isinstance(value, (tuple, list, dict))
    if node.op == "placeholder":
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name == "getattr" and len(node.args) > 1:
        name = str(node.args[1])
    if isinstance(node.target, torch._ops.OpOverload):
        returns = node.target._schema.returns
        return len(returns) > 1 or (len(returns) == 1 and isinstance(returns[0].type, torch.ListType))
    return name in _SEVERAL or _is_only_picked(node)


def _is_only_picked(node: Node) -> bool:
    """Whether all users pick one element by number, which hardly anybody does to a tensor."""
    return bool(node.users) and all(
        user.target is operator.getitem and isinstance(user.args[1], (int, str)) for user in node.users
    )
