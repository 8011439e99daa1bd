"""How many rows a value inside of ``torch.vmap`` has: what was recorded of it is one of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._functorch import predispatch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node

from fxpasses.metadata import value_of
from fxpasses.outlining.regions import BODY_AT, body_of_region, is_region
from fxpasses.partitioners.tensor_sizes import Sizes, concrete_size
from fxpasses.values import nested_graph_modules

__all__ = ["Rows", "note_rows", "note_rows_once", "row_levels", "rows_of"]

Rows = tuple[tuple[int, int], ...]
"""Levels, outermost first, with how many rows a value has in each."""

_LIKE_ANOTHER = frozenset({"expand_as", "reshape_as", "type_as", "view_as"})
"""Of whose second operand only the shape or the type of one row counts."""
_ENTERS, _LEAVES = "_add_batch_dim", "_remove_batch_dim"
_ENTERING = (predispatch._add_batch_dim, torch._C._functorch._add_batch_dim)
_Open = Mapping[int, tuple[Any, str]]
"""The levels that are open, with their rows, and whether random numbers are to be the same in all of them."""
_ROWS: WeakKeyDictionary[Node, Mapping[Any, Any]] = WeakKeyDictionary()
"""The batch sizes of a value by level, where it has any: who walks the graph notes them here."""


def note_rows(graph_module: GraphModule) -> None:
    """Note which values of a graph and of its bodies have rows that were not recorded. O(nodes and edges)."""
    regions: dict[Graph, tuple[Sequence[Any], _Open]] = {}  # what goes into them, and the levels around them
    for inner in nested_graph_modules(graph_module):
        operands, around = regions.get(inner.graph, ((), {}))
        _note_in(inner, iter(operands), dict(around), regions)


def note_rows_once(graph: Graph) -> None:
    """The same for a graph that opens a level and of which nobody has noted them yet; asks in constant time."""
    root = graph.owning_module
    for target in _ENTERING if root is not None else ():
        if (nodes := graph.find_nodes(op="call_function", target=target)) and nodes[0] not in _ROWS:
            note_rows(root)  # type: ignore[arg-type]  # the module of a graph


def _note_in(
    inner: GraphModule,
    operands: Iterator[Any],
    opened: dict[int, tuple[Any, str]],
    regions: dict[Graph, tuple[Sequence[Any], _Open]],
) -> None:
    """Note the rows of values in one graph, and what goes into the regions that it runs."""
    has_rows = bool(opened)
    for node in inner.graph.nodes:
        name = getattr(node.target, "__name__", "")
        has_rows = has_rows or bool(opened) or name == _ENTERS  # what opened the level may be in another graph
        if name.endswith("_increment_nesting"):
            opened[len(opened) + 1] = (node.args[0], node.args[1]) if name.startswith("_vmap") else (1, "")
        elif name.endswith("_decrement_nesting") and opened:
            opened.popitem()
        operand = next(operands, None) if node.op == "placeholder" else None
        rows = _ROWS.get(operand, {}) if isinstance(operand, Node) else _levels(node, name, opened) if has_rows else {}
        if rows:
            _ROWS[node] = rows
        elif _ROWS:
            _ROWS.pop(node, None)
        if opened and is_region(node) and (body := body_of_region(node)) is not None:
            regions[body.graph] = (node.args[BODY_AT[name] + 1 :], dict(opened))


def _levels(node: Node, name: str, opened: _Open) -> dict[Any, Any]:
    if node.op == "output":
        return {}
    like_another = name.partition(".")[0] in _LIKE_ANOTHER
    operands = node.all_input_nodes[:1] if like_another else node.all_input_nodes
    found = {level: size for used in operands for level, size in _ROWS.get(used, {}).items()}
    if name == _ENTERS:
        source, dimension, level = node.args
        found[level] = value_of(source).shape[dimension]  # type: ignore[arg-type]  # a node
    elif name == _LEAVES:
        found.pop(node.args[1], None)
    if isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags:
        for level, (size, randomness) in opened.items():
            if randomness == "different":
                found[level] = size
            elif name.partition(".")[0].endswith("_like"):
                found.pop(level, None)
    return found


def rows_of(node: Node, *, sizes: Sizes = "hint") -> int:
    """How many times as large a value is as what was recorded of it."""
    levels = _ROWS.get(node) if _ROWS else None
    return 1 if levels is None else math.prod(concrete_size(size, sizes=sizes) for size in levels.values())


def row_levels(node: Node) -> Rows:
    """The levels in which a value has rows; symbolic sizes at their hint."""
    levels = _ROWS.get(node, {}) if _ROWS else {}
    return tuple(sorted((int(level), concrete_size(size)) for level, size in levels.items()))
