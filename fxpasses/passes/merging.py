"""Merge the parts of a split back into one graph: the inverse of :func:`fxpasses.passes.splitting.split`."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch.fx import GraphModule, Node

from fxpasses.collecting import collection_paused
from fxpasses.editing.attributes import Attribute, find_attribute, install_attribute, state_of
from fxpasses.errors import SplitError
from fxpasses.metadata import value_of
from fxpasses.outlining import PICKED
from fxpasses.outlining.graph_writing import GraphWriter
from fxpasses.outlining.lazy_modules import LazyGraphModule, lazy_graph_module
from fxpasses.outlining.regions import REENTERED, Regions, RegionWriter, is_marker
from fxpasses.passes.splitting import SPLIT_NAMES, Split, carry_over

__all__ = ["merge"]

TOP = 0
SOURCE = -1
Key = tuple[int, Node]
"""A node in one call of the graph that it stands in; scope 0 is the top level, and -1 the source of the split."""


def merge(split: Split | GraphModule) -> GraphModule:
    """Put the parts of a split back into one graph.

    What was not edited since comes back as it was: the same text, with the same names of nodes, parameters, buffers and
    submodules. Parts that were edited are taken as they are now.

    Args:
        split: A Split, or the module that :func:`~fxpasses.passes.splitting.split_module` gave. Not changed; the result
            shares its parameters.

    Returns:
        A new module. Its nodes run in the order of the source; where nodes have been added, in the order of the parts.

    Raises:
        SplitError: The module has no record of parts, or a part is no graph.
    """
    module = split.graph_module if isinstance(split, Split) else split
    record = _record_of(split)
    with collection_paused():
        calls = _Calls(module, frozenset(record.part_names))
        restored = _in_source_order(calls.items, record)
        merged = _write(calls, restored, record) if restored is not None else None
        if merged is None:
            merged = _write(calls, calls.items, record)
    if merged is None:
        raise SplitError(
            "cannot merge: a node of the split module uses a value before it is computed; run graph.lint()"
        )
    return merged


@attrs.frozen
class _Record:
    """What is known about a split.

    Attributes:
        part_names: The attributes that hold parts.
        original_names: The name in the source of each attribute of a part.
        origins: The node of the source of each node that is a copy.
        source: All nodes of the source.
    """

    part_names: tuple[str, ...]
    original_names: Mapping[str, str]
    origins: Mapping[Node, Node]
    source: tuple[Node, ...]


def _record_of(split: Split | GraphModule) -> _Record:
    if isinstance(split, Split):
        nodes = tuple(split.source.graph.nodes)
        return _Record(tuple(split.part_names.values()), split.original_names, split.origins, nodes)
    if not isinstance(split, GraphModule) or SPLIT_NAMES not in split.meta:
        raise SplitError(
            "merge() takes a Split, or a module that split(), split_module() or split_by_tags() gave; "
            f"this {type(split).__name__} has no record of its parts"
        )
    part_names, original_names = split.meta[SPLIT_NAMES]
    return _Record(tuple(part_names), original_names, {}, ())


class _Calls:
    """The nodes of a module with those of its parts in place of their calls, and how values pass between them.

    Attributes:
        items: All nodes to write, in an order in which they can run; markers of regions are left out.
        bindings: For inputs of parts and for calls, the argument they stand for and the scope it is written in.
        picks: For the ``getitem`` nodes that take results of calls apart, the call and the index.
        prefixes: For each scope, what leads to its attributes.
    """

    def __init__(self, module: GraphModule, part_names: frozenset[str]) -> None:
        self.module = module
        self.items: list[Key] = []
        self.bindings: dict[Key, tuple[int, Any]] = {}
        self.picks: dict[Key, tuple[Node, Any]] = {}
        self.prefixes = {SOURCE: "", TOP: ""}
        self._regions = {TOP: Regions(list(module.graph.nodes))}
        taken_apart: dict[Any, None] = {}
        for node in module.graph.nodes:
            if node.op == "call_module" and node.target in part_names:
                self._enter(node)
                if isinstance(self.bindings[TOP, node][1], (tuple, list)):
                    taken_apart[node] = None
            elif node.target is operator.getitem and node.args[0] in taken_apart:
                self.picks[TOP, node] = (node.all_input_nodes[0], node.args[1])
            elif node not in self._regions[TOP]:
                self.items.append((TOP, node))

    def _enter(self, call: Node) -> None:
        scope = len(self.prefixes) - 1
        part = self.module.get_submodule(str(call.target))
        if not isinstance(part, GraphModule):
            raise SplitError(f"part {call.target!r} is a {type(part).__name__}, which has no graph to merge", node=call)
        nodes = list(part.graph.nodes)
        self.prefixes[scope] = f"{call.target}."
        self._regions[scope] = Regions(nodes)
        given = iter(call.args)
        for node in nodes:
            if node.op == "placeholder":
                default = node.args[0] if node.args else None
                self.bindings[scope, node] = (TOP, call.kwargs.get(str(node.target), next(given, default)))
            elif node.op == "output":
                self.bindings[TOP, call] = (scope, node.args[0])
            elif node not in self._regions[scope]:
                self.items.append((scope, node))

    def regions(self) -> dict[Key, tuple[Node, ...]]:
        """The regions around each item; what several parts opened for one region of the source is one again."""
        known: dict[str, Node] = {}
        found: dict[Key, tuple[Node, ...]] = {}
        for scope, node in self.items:
            if stack := self._regions[scope].open_at(node):
                named = [(str(marker.meta.get(REENTERED, marker.name)), marker) for marker in stack]
                found[scope, node] = tuple(known.setdefault(name, marker) for name, marker in named)
        return found


def _in_source_order(items: list[Key], record: _Record) -> list[Key] | None:
    """The items as they stand in the source, with its markers; None if there are others among them."""
    place = {node: number for number, node in enumerate(record.source)}
    rank: dict[Key, int] = {}
    for key in items:
        origin = record.origins.get(key[1])
        if origin in place:
            rank[key] = place[origin]
        elif PICKED not in key[1].meta:
            return None
    for key in items:
        # What was picked for the border follows its tuple; most of it is not needed any more.
        scope, node = key
        rank.setdefault(key, max((rank.get((scope, given), 0) for given in node.all_input_nodes), default=0))
    rank.update(((SOURCE, node), place[node]) for node in record.source if is_marker(node))
    return sorted(rank, key=rank.__getitem__)


@attrs.define(eq=False)
class _Merging:
    """The merged graph while it is written."""

    calls: _Calls
    record: _Record
    writer: GraphWriter
    values: dict[Key, Any] = attrs.field(factory=dict)
    constants: dict[Any, Node] = attrs.field(factory=dict)
    attributes: dict[str, Attribute] = attrs.field(factory=dict)
    origins: dict[Node, Node] = attrs.field(factory=dict)
    written: dict[Any, Node] = attrs.field(factory=dict)

    def value(self, scope: int, node: Node) -> Any:
        """What a node is in the merged graph; KeyError if it is not written yet."""
        key = (scope, node)
        if key not in self.values:
            if key in self.calls.picks:
                call, index = self.calls.picks[key]
                inner, given = self.calls.bindings[TOP, call]
                self.values[key] = self.argument(inner, given[index])  # the others may not be written yet
            else:
                self.values[key] = self.argument(*self.calls.bindings[key])
        return self.values[key]

    def argument(self, scope: int, given: Any, wholes: Sequence[Node] = ()) -> Any:
        """An argument in nodes of the merged graph; a tuple that was taken apart is whole again.

        Recursion over the nesting of one argument, which is as deep as a user writes it.
        """
        if isinstance(given, Node):
            return self.value(scope, given)
        if isinstance(given, dict):
            return {name: self.argument(scope, item, wholes) for name, item in given.items()}
        if isinstance(given, slice):
            return slice(*(self.argument(scope, item) for item in (given.start, given.stop, given.step)))
        if not isinstance(given, (tuple, list)):
            return given
        items = [self.argument(scope, item, wholes) for item in given]
        if hasattr(given, "_fields"):
            return type(given)(*items)
        source = self.source_of_all(items)
        if source is not None and self.origins.get(source) in wholes:
            return source
        return items if isinstance(given, list) else tuple(items)

    @staticmethod
    def source_of_all(elements: Sequence[Any]) -> Node | None:
        """The node whose value is a tuple of exactly these elements."""
        first = elements[0] if elements else None
        if not isinstance(first, Node) or first.target is not operator.getitem:
            return None
        source = first.all_input_nodes[0]
        value = value_of(source)
        if not isinstance(value, (tuple, list)) or len(value) != len(elements):
            return None
        for place, element in enumerate(elements):
            if not isinstance(element, Node) or element.target is not operator.getitem:
                return None
            if element.args != (source, place):
                return None
        return source

    def attribute_name(self, scope: int, node: Node) -> str:
        """The name in the merged module of an attribute that a node of the split module points to."""
        full = self.calls.prefixes[scope] + str(node.target)
        attribute = find_attribute(self.calls.module, full, user=node.name)
        wished = self.record.original_names.get(full, str(node.target))
        name, number = wished, 0
        while name in self.attributes and self.attributes[name].value is not attribute.value:
            number += 1
            name = f"{wished}_{number}"
        self.attributes[name] = attribute
        return name


def _write(calls: _Calls, items: list[Key], record: _Record) -> LazyGraphModule | None:
    """Write the merged module; None if ``items`` stand in an order in which it cannot run."""
    merging = _Merging(calls, record, GraphWriter(like=calls.module.graph))
    open_at = {} if any(scope == SOURCE for scope, _ in items) else calls.regions()
    regions = RegionWriter(merging.writer, lambda key: open_at.get(key, ()))
    try:
        for scope, node in items:
            if node.op not in ("placeholder", "get_attr"):
                regions.move_to((scope, node))
            _write_item(merging, scope, node)
    except KeyError:
        return None
    for node in reversed(list(merging.writer.graph.nodes)):
        if PICKED in node.meta and not node.users:
            merging.writer.graph.erase_node(node)
    return _module_of(merging)


def _write_item(merging: _Merging, scope: int, node: Node) -> None:
    if node.op == "get_attr":
        merging.values[scope, node] = _constant(merging, scope, node)
        return
    origin = merging.record.origins.get(node)
    if origin in merging.written and PICKED in {**node.meta, **merging.written[origin].meta}:
        merging.values[scope, node] = merging.written[origin]
        return
    wholes = origin.all_input_nodes if origin is not None else ()
    args = tuple(merging.argument(scope, given, wholes) for given in node.args)
    if node.target is torch.Size and PICKED in node.meta:
        whole = merging.source_of_all(args[0])
        if whole is not None:
            merging.values[scope, node] = whole
            return
    kwargs = {name: merging.argument(scope, given, wholes) for name, given in node.kwargs.items()}
    target: Any = merging.attribute_name(scope, node) if node.op == "call_module" else node.target
    copy = merging.writer.append(node.op, target, args, kwargs, name=node.name, type_expr=node.type, meta=node.meta)
    merging.values[scope, node] = copy
    if origin is not None:
        merging.origins[copy] = origin
        merging.written.setdefault(origin, copy)


def _constant(merging: _Merging, scope: int, node: Node) -> Node:
    """The one ``get_attr`` node for what several parts read through copies of it."""
    name = merging.attribute_name(scope, node)
    key = (name, merging.record.origins.get(node))
    if key not in merging.constants:
        merging.constants[key] = merging.writer.append(
            "get_attr", name, name=node.name, type_expr=node.type, meta=node.meta
        )
    return merging.constants[key]


def _module_of(merging: _Merging) -> LazyGraphModule:
    source = merging.calls.module
    name = source._get_name()  # type: ignore[no-untyped-call]  # torch's
    module = lazy_graph_module(merging.writer.graph, class_name=name, training=source.training)
    for name, attribute in sorted(merging.attributes.items(), key=lambda item: item[0].count(".")):
        install_attribute(module, name, attribute)
    parts = tuple(f"{name}." for name in merging.record.part_names)
    for name, attribute in state_of(source).items():
        if not name.startswith(parts):
            install_attribute(module, name, attribute)
    carry_over(source, module)
    module.meta.pop(SPLIT_NAMES, None)
    module.meta.pop("partition_names", None)
    module.recompile()
    return module
