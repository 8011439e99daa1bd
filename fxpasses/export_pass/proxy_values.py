"""What the hooks of an ExportPass are handed: a value with the node that makes it, and the metadata of a node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch.fx import Node, Proxy
from torch.fx.proxy import GraphAppendingTracer

from fxpasses.errors import PassError

__all__ = ["PROTECTED_KEYS", "Argument", "ExportPassBaseError", "Fn", "NodeMetadata", "ProxyValue", "Value"]

Argument: TypeAlias = Any
"""What a hook finds among its arguments: a ``ProxyValue``, a constant, or lists, tuples and dicts of them."""

Value: TypeAlias = Any
"""What a hook may answer."""

Fn: TypeAlias = Callable[..., Any]

PROTECTED_KEYS = frozenset({"val", "stack_trace", "nn_module_stack", "debug_handle", "tensor_meta"})
"""The entries of a node's metadata that the framework itself keeps."""

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class ExportPassBaseError(PassError):
    """An ExportPass was used in a way that cannot work."""


class NodeMetadata:
    """The metadata of the node being visited, to be handed on to the nodes that replace it.

    Changes made here never reach the visited node by themselves; they go to the node that is made with it.

    Args:
        data: The entries; copied on the first use of ``.data``, and not before.
    """

    __slots__ = ("_own", "_source")

    def __init__(self, data: dict[str, Any]) -> None:
        self._source = data
        self._own: dict[str, Any] | None = None

    @property
    def data(self) -> dict[str, Any]:
        """The entries, as a dict of one's own."""
        if self._own is None:
            self._own = self._source.copy()
        return self._own

    @data.setter
    def data(self, entries: dict[str, Any]) -> None:
        self._own = entries

    def _entries(self) -> dict[str, Any]:
        return self._source if self._own is None else self._own

    def __getitem__(self, key: str) -> Any:
        return self._entries()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if key in PROTECTED_KEYS:
            raise ExportPassBaseError(
                f"the metadata entry {key!r} is kept by the framework and cannot be set by hand; "
                f"choose a key of your own"
            )
        self.data[key] = value

    def __contains__(self, key: object) -> bool:
        return key in self._entries()

    def __repr__(self) -> str:
        return f"NodeMetadata({self._entries()!r})"

    def get(self, key: str, default: Any = None) -> Any:
        """One entry, or ``default``."""
        return self._entries().get(key, default)

    def copy(self) -> NodeMetadata:
        """Entries of one's own."""
        return NodeMetadata(self._entries().copy())


class ProxyValue:
    """A value in the graph: what is known about it, and the node that makes it.

    Args:
        data: The fake tensor, symbolic number, constant, or tuple of them; None for a graph without recorded values.
        proxy: The node, or a ``torch.fx.Proxy`` of it.
    """

    __slots__ = ("data", "proxy_or_node")

    def __init__(self, data: Any, proxy: Proxy | Node) -> None:
        self.data = data
        self.proxy_or_node = proxy

    @property
    def node(self) -> Node:
        """The node that makes the value."""
        made_by = self.proxy_or_node
        return made_by if isinstance(made_by, Node) else made_by.node

    @property
    def proxy(self) -> Proxy:
        """A ``torch.fx.Proxy`` of the node, for code that traces by hand."""
        if isinstance(self.proxy_or_node, Node):
            self.proxy_or_node = Proxy(self.proxy_or_node, GraphAppendingTracer(self.proxy_or_node.graph))
        return self.proxy_or_node

    def to_tensor(self) -> torch.Tensor:
        """The tensor.

        Raises:
            ExportPassBaseError: The value is no tensor.
        """
        if not isinstance(self.data, torch.Tensor):
            raise ExportPassBaseError(
                f"the value of node {self.node.name!r} is no tensor but {type(self.data).__name__}", node=self.node
            )
        return self.data

    def is_tensor(self) -> bool:
        """Is the value a tensor?"""
        return isinstance(self.data, torch.Tensor)

    def is_symint(self) -> bool:
        """Is the value a symbolic integer?"""
        return isinstance(self.data, torch.SymInt)

    def is_symfloat(self) -> bool:
        """Is the value a symbolic float?"""
        return isinstance(self.data, torch.SymFloat)

    def is_symbool(self) -> bool:
        """Is the value a symbolic boolean?"""
        return isinstance(self.data, torch.SymBool)

    def __repr__(self) -> str:
        return f"ProxyValue({self.node.name}: {self.data!r})"

    def __iter__(self) -> Iterator[Any]:
        yield from self.data

    def __bool__(self) -> bool:
        self._refuse_symbolic(_SYMBOLIC, "used in boolean context")
        return bool(self.data)

    def __int__(self) -> int:
        self._refuse_symbolic((torch.SymInt,), "converted to int")
        return int(self.data)

    def __float__(self) -> float:
        self._refuse_symbolic((torch.SymFloat,), "converted to float")
        return float(self.data)

    def __index__(self) -> int:
        self._refuse_symbolic((torch.SymInt,), "used in index context")
        return int(self.data)

    def _refuse_symbolic(self, kinds: tuple[type, ...], use: str) -> None:
        if isinstance(self.data, kinds):
            raise ExportPassBaseError(
                f"the symbolic value {self.data} of node {self.node.name!r} cannot be {use}: it is known only when "
                f"the graph runs; build a node with call_sym instead",
                node=self.node,
            )
