"""The second walk of the effect analysis: the order that reads, writes and barriers force, as few edges as carry it.

For each storage the last writer and the readers since are kept; an edge goes from every reader to the next writer, and
from every writer to the next readers, or to the next writer if nothing reads in between. All longer orders follow.

A view reads nothing, but stays behind the writes before it: if one of them makes what it writes to need a gradient, a
view that was taken earlier cannot be written to.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.fx import Node

from fxpasses.effects.aliasing import NO_STORAGE, Storages
from fxpasses.effects.calls import CallEffects, RegionKind, name_of
from fxpasses.effects.storages import PlacedGraph, flat_value

__all__ = ["enclosing_regions", "order_edges"]

_RANDOM, _WORLD = -2, -3
"""The random number generator and the world, as storages that every random op and every side effect writes."""
_BEFORE_VMAP = "lazy_load_decompositions"
"""What ``torch.vmap`` calls right before it opens a level; nothing closes it but the end of that level."""


def order_edges(graph: PlacedGraph) -> list[tuple[Node, Node]]:
    """Pairs ``(earlier, later)`` that must keep their order though no data flows between them.

    Linear in nodes and operands, both in time and in the number of edges.
    """
    return _Ordering(graph).walk() if graph.impure else []


class _Ordering:
    def __init__(self, graph: PlacedGraph) -> None:
        self.graph = graph
        self.hot = graph.written_storages()
        self.edges: dict[tuple[Node, Node], None] = {}
        self.writer: dict[int, Node] = {}
        self.readers: dict[int, list[Node]] = {}
        self.behind: dict[Node, Node] = {}
        self.asked: Node | None = None
        self.ahead: set[Node] = set()
        self.since_barrier: list[Node] = []
        self.barrier: Node | None = None
        self.symbols = _Symbols(graph) if any(call.guards for call in graph.impure.values()) else None

    def walk(self) -> list[tuple[Node, Node]]:
        graph, calls, impure = self.graph, self.graph.calls, self.graph.impure
        touched = graph.living_in(self.hot) if self.hot else set()
        markers = any(_is_barrier(call) for call in impure.values())
        for node in graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                continue
            if node.op == "output":
                self._close(node)
                continue
            if node in impure:
                self._effectful(node)
            elif touched and (node not in calls or calls[node].reads is None):
                for operand in node.all_input_nodes:
                    if operand in touched:
                        self._read_all(node, flat_value(graph.values[operand]))
            elif touched:
                self._read_all(node, graph.of(node).reads)
            if node in touched and node not in impure:
                self._stay_behind(node)
            if markers:
                self._cross(node)
            if self.symbols is not None:
                for earlier in self.symbols.visit(node):
                    self._edge(earlier, node)
        return list(self.edges)

    def _read_all(self, node: Node, storages: Iterable[int]) -> None:
        find = self.graph.storages.find
        for storage in storages:
            if (root := find(storage)) in self.hot:
                self._read(node, root)

    def _stay_behind(self, view: Node) -> None:
        """Keep a view behind the last writes to what it is a view of."""
        for storage in flat_value(self.graph.values[view]):
            if (writer := self._follow(view, self.graph.storages.find(storage))) is not None:
                self.behind[view] = writer

    def _follow(self, node: Node, storage: int) -> Node | None:
        """Put a node behind the last writer of a storage, unless a view that it takes is there; the writer."""
        writer = self.writer.get(storage)
        if writer is not None and writer not in self._ahead_of(node):
            self._edge(writer, node)
        return writer

    def _ahead_of(self, node: Node) -> set[Node]:
        """The writers that what a node takes is behind; found once for all storages that it touches."""
        if self.asked is not node:
            self.asked = node
            self.ahead = {self.behind[operand] for operand in node.all_input_nodes if operand in self.behind}
        return self.ahead

    def _effectful(self, node: Node) -> None:
        effects = self.graph.of(node)
        for storage in effects.reads:
            if storage in self.hot and storage not in effects.writes:
                self._read(node, storage)
        for storage in effects.writes:
            self._write(node, storage)
        if effects.random:
            self._write(node, _RANDOM)
        if effects.world:
            self._write(node, _WORLD)

    def _edge(self, earlier: Node, later: Node) -> None:
        if earlier is not later and earlier not in later.all_input_nodes:
            self.edges[earlier, later] = None

    def _read(self, node: Node, storage: int) -> None:
        self._follow(node, storage)
        self.readers.setdefault(storage, []).append(node)

    def _write(self, node: Node, storage: int) -> None:
        if readers := self.readers.pop(storage, None):
            for reader in readers:
                self._edge(reader, node)
        else:
            self._follow(node, storage)
        self.writer[storage] = node

    def _cross(self, node: Node) -> None:
        call = self.graph.impure.get(node)
        if call is None or not _is_barrier(call):
            if self.barrier is not None:
                self._edge(self.barrier, node)
            self.since_barrier.append(node)
            return
        for earlier in self._before_barrier():
            self._edge(earlier, node)
        self.since_barrier, self.barrier = [], node

    def _before_barrier(self) -> list[Node]:
        """What the next barrier must wait for: the nodes since the last one, or that one itself."""
        return self.since_barrier or ([self.barrier] if self.barrier is not None else [])

    def _close(self, output: Node) -> None:
        """Nothing that lasts may come after the output: the end of the graph is behind all effects."""
        for storage, writer in self.writer.items():
            for earlier in self.readers.get(storage) or [writer]:
                self._edge(earlier, output)
        if self.barrier is not None:
            for earlier in self._before_barrier():
                self._edge(earlier, output)


def _is_barrier(call: CallEffects) -> bool:
    return call.region is not None and call.region.is_barrier


class _Symbols:
    """Follows numbers from producer to use, so that an assertion on one stays before what it guards."""

    def __init__(self, graph: PlacedGraph) -> None:
        self._graph = graph
        self._classes = Storages()
        self._class_of: dict[Node, int] = {}
        self._asserted: dict[int, int] = {}
        self._asserts: list[Node] = []

    def visit(self, node: Node) -> list[Node]:
        """The assertions that must run before ``node``; at most one, as assertions are in order among themselves."""
        operands = [operand for operand in node.all_input_nodes if self._is_number(operand)]
        call = self._graph.calls.get(node)
        if call is not None and call.guards:
            self._asserts.append(node)
            for operand in operands:
                self._asserted[self._symbol(operand)] = len(self._asserts) - 1
            return []
        if self._is_number(node):
            for operand in operands:
                self._unite(self._symbol(operand), self._symbol(node))
            return []
        found = [self._asserted[symbol] for operand in operands if (symbol := self._symbol(operand)) in self._asserted]
        return [self._asserts[max(found)]] if found else []

    def _is_number(self, node: Node) -> bool:
        value = node.meta.get("val")
        if value is not None:
            return isinstance(value, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool))
        return node.op not in ("output", "placeholder") and self._graph.values[node] == NO_STORAGE

    def _symbol(self, node: Node) -> int:
        if node not in self._class_of:
            self._class_of[node] = self._classes.fresh()
        return self._classes.find(self._class_of[node])

    def _unite(self, first: int, second: int) -> None:
        known = [self._asserted[symbol] for symbol in (first, second) if symbol in self._asserted]
        merged = self._classes.unite(first, second)
        if known:
            self._asserted[merged] = max(known)


# --- regions --------------------------------------------------------------------------------------------------------


def enclosing_regions(graph: PlacedGraph) -> dict[Node, tuple[Node, ...]]:
    """For each node the markers of the regions that are open there, outermost first; empty if there are no markers."""
    if not any(_is_barrier(call) for call in graph.impure.values()):
        return {}
    stack: tuple[Node, ...] = ()
    open_at = {}
    for node in graph.nodes:
        call = graph.impure.get(node)
        if call is not None and _is_barrier(call):
            stack = _switched(stack, node, call)
        open_at[node] = stack
    return open_at


def _switched(stack: tuple[Node, ...], node: Node, call: CallEffects) -> tuple[Node, ...]:
    """The stack behind a marker."""
    if call.region is RegionKind.GRAD_MODE:
        return _grad_mode_set(stack, node)
    if call.opens:
        return (*stack, node)
    opener = node.args[0] if node.args and isinstance(node.args[0], Node) else None
    left = _without(stack, opener if opener in stack else next(reversed(stack), None))
    while left and name_of(left[-1].target) == _BEFORE_VMAP:
        left = left[:-1]
    return left


def _without(stack: tuple[Node, ...], opener: Node | None) -> tuple[Node, ...]:
    return tuple(node for node in stack if node is not opener)


def _grad_mode_set(stack: tuple[Node, ...], node: Node) -> tuple[Node, ...]:
    """``_set_grad_enabled`` has no end marker: setting back what was set before closes the region."""
    setters = [opener for opener in stack if name_of(opener.target).endswith("set_grad_enabled")]
    if not setters:
        return (*stack, node)
    if node.args and isinstance(node.args[0], Node):  # the mode that was found before the region
        return _without(stack, setters[-1])
    before = setters[-2].args[0] if len(setters) > 1 else not setters[-1].args[0]
    return _without(stack, setters[-1]) if node.args and node.args[0] == before else (*stack, node)
