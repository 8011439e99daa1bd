"""One graph at one moment: its nodes in order, what each says, and how to get back there."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from operator import attrgetter, is_, lt
from typing import Any

from torch.fx import Graph, Node

from fxpasses.journal.changes import ChangeParts
from fxpasses.journal.shallow import copied_meta, equal_meta, put_back, refill, same_fields

__all__ = [
    "GraphState",
    "compare_graphs",
]

_FACTS = ("_args", "_kwargs", "target", "name", "op", "type")


_ARGUMENTS = (0, 1)  # where equal entries may be of different types
_each_fact = tuple(map(attrgetter, _FACTS))


_meta = attrgetter("meta")


_users = attrgetter("users")


_inputs = attrgetter("_input_nodes")


_rest = attrgetter("_sort_key", "_repr_fn", "__dict__")


_set = object.__setattr__  # torch's own setter calls hooks and keeps tables; those are put back as a whole


def _retire(node: Node) -> None:
    """Leave a node that was added as torch leaves an erased one: no inputs, no users."""
    _set(node, "_erased", True)
    node.users.clear()
    node._input_nodes.clear()


def _set_where_different(nodes: Sequence[Node], field: str, now: Sequence[Any], saved: Sequence[Any]) -> None:
    if all(map(is_, now, saved)):
        return
    for node, entry, former in zip(nodes, now, saved, strict=True):
        if entry is not former:
            _set(node, field, former)


def _refill_where_different(now: Sequence[dict[Node, None]], saved: Sequence[Sequence[Node]]) -> None:
    if list(map(list, now)) == saved:
        return
    for live, former in zip(now, saved, strict=True):
        if list(live) != former:
            live.clear()
            live.update(dict.fromkeys(former))


def compare_graphs(path: str, before: GraphState | None, after: GraphState | None, parts: ChangeParts) -> None:
    """Note what is different between two states of one graph."""

    def label(name: str) -> str:
        return f"{path}/{name}" if path else name

    was_facts = [] if before is None else before.facts()
    now_facts = [] if after is None else after.facts()
    old: dict[Node, int] = {} if before is None else {node: index for index, node in enumerate(before.nodes)}
    new: dict[Node, int] = {} if after is None else {node: index for index, node in enumerate(after.nodes)}
    if before is not None:
        parts.removed += [label(was_facts[index][3]) for node, index in old.items() if node not in new]
    if after is None:
        return
    parts.added += [label(now_facts[index][3]) for node, index in new.items() if node not in old]
    if before is None:
        return
    both = [node for node in new if node in old]
    for node in both:
        left, right = was_facts[old[node]], now_facts[new[node]]
        same = _equal(left, right) and (left[0] is right[0] or _same_kinds(left[:2], right[:2]))
        if not same and (fields := _different_facts(left, right)):
            was = f" (was {left[3]})" if "name" in fields else ""
            parts.altered[label(right[3])] = ", ".join(fields) + was
        if not _equal(before.meta_copies[old[node]], node.meta):
            parts.metadata.append(label(right[3]))
    places = [old[node] for node in both]
    if not all(map(lt, places, places[1:])):
        steady = _longest_increasing(places)
        parts.moved += [label(node.name) for index, node in enumerate(both) if index not in steady]
    if before.fields["_codegen"] is not after.fields["_codegen"] or not same_fields(
        before.codegen_fields, after.codegen_fields
    ):
        parts.attributes[label("<calling convention>")] = "replaced"


def _different_facts(left: tuple[Any, ...], right: tuple[Any, ...]) -> list[str]:
    names = ("args", "kwargs", "target", "name", "op", "type")
    return [
        name
        for name, one, other in zip(names, left, right, strict=True)
        if one is not other and not (_equal(one, other) and _same_kinds(one, other))
    ]


def _same_kinds(left: Any, right: Any) -> bool:
    """Whether two equal arguments are also of the same types: ``1``, ``1.0`` and ``True`` are equal, and differ."""
    if left is right:
        return True
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return all(map(_same_kinds, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return all(_same_kinds(entry, right[key]) for key, entry in left.items())
    if isinstance(left, slice) and isinstance(right, slice):
        return _same_kinds((left.start, left.stop, left.step), (right.start, right.stop, right.step))
    return type(left) is type(right)


def _equal(left: Any, right: Any) -> bool:
    try:
        return bool(left == right)
    except (RuntimeError, ValueError, TypeError, NotImplementedError):  # tensors among them
        return False


def _longest_increasing(positions: Sequence[int]) -> set[int]:
    """Indices of one longest increasing subsequence, in O(n log n) (patience sorting; Fredman 1975)."""
    tails: list[int] = []
    tail_indices: list[int] = []
    came_from: list[int] = []
    for index, position in enumerate(positions):
        place = bisect.bisect_left(tails, position)
        came_from.append(tail_indices[place - 1] if place else -1)
        if place == len(tails):
            tails.append(position)
            tail_indices.append(index)
        else:
            tails[place] = position
            tail_indices[place] = index
    found: set[int] = set()
    index = tail_indices[-1] if tail_indices else -1
    while index >= 0:
        found.add(index)
        index = came_from[index]
    return found


class GraphState:
    """One graph: its nodes in order, and for each what ``_facts`` reads."""

    def __init__(self, path: str, graph: Graph) -> None:
        self.path = path
        self.graph = graph
        self.nodes: list[Node] = list(graph.nodes)
        self.columns: list[list[Any]] = [list(map(get, self.nodes)) for get in _each_fact]
        self.metas: list[dict[str, Any]] = list(map(_meta, self.nodes))
        self.meta_copies = list(map(copied_meta, self.metas))
        self.users: list[list[Node]] = list(map(list, map(_users, self.nodes)))
        self.inputs: list[list[Node]] = list(map(list, map(_inputs, self.nodes)))
        self.rest = [(key, show, own.copy() if own else None) for key, show, own in map(_rest, self.nodes)]
        self.fields = dict(graph.__dict__)
        self.field_copies = {key: dict(entry) for key, entry in self.fields.items() if type(entry) is dict}
        self.codegen_fields = dict(getattr(graph._codegen, "__dict__", {}))
        self.root_key = graph._root._sort_key
        namespace = graph._graph_namespace
        self.names = (namespace._obj_to_name.copy(), namespace._used_names.copy(), namespace._base_count.copy())
        self.table = {key: entry.copy() for key, entry in graph._find_nodes_lookup_table.table.items()}

    def changed(self) -> bool:
        """Whether anything but metadata is different now."""
        nodes: list[Node] = list(self.graph.nodes)
        if len(nodes) != len(self.nodes) or nodes != self.nodes:
            return True
        if self.graph.__dict__.get("_codegen") is not self.fields["_codegen"]:
            return True
        if not same_fields(getattr(self.graph._codegen, "__dict__", {}), self.codegen_fields):
            return True
        try:  # column by column: a tuple per node would have the garbage collector walk the whole heap
            for index, (get, column) in enumerate(zip(_each_fact, self.columns, strict=True)):
                now = list(map(get, nodes))
                if now != column:
                    return True
                if index in _ARGUMENTS and not all(map(is_, now, column)) and not all(map(_same_kinds, now, column)):
                    return True
            return False
        except (RuntimeError, ValueError, TypeError):  # arguments that hold two different tensors cannot be compared
            return True

    def metadata_changed(self) -> bool:
        """Whether metadata was written since."""
        if not equal_meta(list(map(_meta, self.graph.nodes)), self.meta_copies):
            return True
        saved = self.field_copies.get("meta")
        return saved is not None and not equal_meta([self.graph.__dict__.get("meta") or {}], [saved])

    def facts(self) -> list[tuple[Any, ...]]:
        """Arguments, keyword arguments, target, name, op and type of each node."""
        return list(zip(*self.columns, strict=True))

    def restore(self) -> None:
        """Put everything back; nodes that nobody touched are only compared."""
        if list(self.graph.nodes) != self.nodes:
            self._relink()
        for field, get, column in zip(_FACTS, _each_fact, self.columns, strict=True):
            _set_where_different(self.nodes, field, list(map(get, self.nodes)), column)
        _set_where_different(self.nodes, "meta", list(map(_meta, self.nodes)), self.metas)
        if not equal_meta(self.metas, self.meta_copies):
            for meta, saved in zip(self.metas, self.meta_copies, strict=True):
                if not equal_meta([meta], [saved]):
                    put_back(meta, saved)
        _refill_where_different(list(map(_users, self.nodes)), self.users)
        _refill_where_different(list(map(_inputs, self.nodes)), self.inputs)
        for node, now, (sort_key, show, own) in zip(self.nodes, map(_rest, self.nodes), self.rest, strict=True):
            if now[0] is not sort_key:
                _set(node, "_sort_key", sort_key)
            if now[1] is not show:
                _set(node, "_repr_fn", show)
            if (now[2] or None) != own:
                node.__dict__.clear()
                node.__dict__.update(own or {})
        self._restore_tables()

    def _relink(self) -> None:
        graph = self.graph
        kept = set(self.nodes)
        for node in list(graph.nodes):
            if node not in kept:
                _retire(node)
        previous = graph._root
        _set(previous, "_sort_key", self.root_key)
        for node in self.nodes:
            _set(node, "graph", graph)
            _set(node, "_erased", False)
            _set(node, "_prev", previous)
            _set(previous, "_next", node)
            previous = node
        _set(graph._root, "_prev", previous)
        _set(previous, "_next", graph._root)

    def _restore_tables(self) -> None:
        graph = self.graph
        graph.__dict__.clear()
        graph.__dict__.update(self.fields)
        for key, saved in self.field_copies.items():
            refill(graph.__dict__[key], saved)
        codegen = getattr(graph._codegen, "__dict__", None)
        if codegen is not None and not same_fields(codegen, self.codegen_fields):
            codegen.clear()
            codegen.update(self.codegen_fields)
        namespace = graph._graph_namespace
        objects, used, counts = self.names
        refill(namespace._obj_to_name, objects)
        namespace._used_names.clear()
        namespace._used_names.update(used)
        refill(namespace._base_count, counts)
        table = graph._find_nodes_lookup_table.table
        table.clear()
        table.update({key: entry.copy() for key, entry in self.table.items()})
