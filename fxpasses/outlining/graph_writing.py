"""Append nodes to a new graph, several times faster than ``Graph.create_node``, which checks what is known here.

Used where whole graphs are copied piece by piece: splitting, fusing, merging.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.fx import Graph, Node
from torch.fx.node import map_arg

__all__ = ["GraphWriter"]


class GraphWriter:
    """Writes one graph from top to bottom.

    Args:
        like: Where the new graph takes its code generator (the user's pytrees) and tracer from; None for a plain one.
        fresh_names: Name nodes by what they call, as ``torch.fx`` does for new nodes, instead of as wished.
    """

    def __init__(self, *, like: Graph | None = None, fresh_names: bool = False) -> None:
        self.graph = Graph() if like is None else Graph(tracer_cls=like._tracer_cls, tracer_extras=like._tracer_extras)
        if like is not None:
            self.graph.set_codegen(like._codegen)
        self.fresh_names = fresh_names
        self._names = self.graph._graph_namespace
        self._used_names = self._names._used_names
        self._target_names: dict[Any, str] = {}

    def append(
        self,
        op: str,
        target: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        type_expr: Any = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Node:
        """Append one node.

        Args:
            op: Its kind, such as ``"call_function"``.
            target: What it calls.
            args: Arguments, in nodes of this graph.
            kwargs: Keyword arguments.
            name: The wished name, made unique if it is taken; None names it after its target.
            type_expr: Its type annotation.
            meta: Copied into its ``meta``.
        """
        if name is None or (self.fresh_names and op != "placeholder"):
            if (wished := self._target_names.get(target)) is None:
                wished = self._target_names[target] = self.graph._target_to_str(target)
            name = self._names.create_name(wished, None)
        elif name in self._used_names:
            name = self._names.create_name(name, None)
        else:
            self._used_names.add(name)
        graph = self.graph
        node = Node(graph, name, op, target, args, dict(kwargs) if kwargs else {}, type_expr)
        # What Graph.create_node does after its checks; a fresh graph has no owner and so no hooks.
        self._names._obj_to_name[node] = name
        graph._insert(node)
        graph._find_nodes_lookup_table.insert(node)
        graph._len += 1
        if meta:
            node.meta = dict(meta)
        return node

    def copy(self, node: Node, environment: Mapping[Node, Any], *, target: Any = None) -> Node:
        """Append a copy of ``node``, its inputs looked up in ``environment``."""
        lookup = environment.__getitem__
        kwargs = node._kwargs
        return self.append(
            node.op,
            node.target if target is None else target,
            map_arg(node._args, lookup),
            map_arg(kwargs, lookup) if kwargs else None,
            name=node.name,
            type_expr=node.type,
            meta=node.meta,
        )
