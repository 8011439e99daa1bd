"""Re-enter autocast, grad-mode and inference-mode regions in graphs that got only some of their nodes.

A region is opened and closed by marker nodes. When its nodes end up in several graphs, markers cannot go along like
other nodes: each graph has to open the regions that its nodes were in, and to put the state back when it is done. So
markers are taken out, each node remembers the regions that were open at it, and :class:`RegionWriter` writes new
markers where the regions of one node differ from those of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from fxpasses.dependencies import Dependencies
from fxpasses.editing.attributes import find_attribute
from fxpasses.effects import EffectAnalysis, analyze_effects
from fxpasses.outlining.graph_writing import GraphWriter

__all__ = [
    "BODY_AT",
    "REENTERED",
    "RegionWriter",
    "Regions",
    "body_of_region",
    "dependencies_of_parts",
    "is_marker",
    "is_region",
    "switches_regions",
]

REENTERED = "fxpasses.reentered_region"
"""Key in ``node.meta`` of markers that :class:`RegionWriter` wrote: the name of the marker that opened the region."""

BODY_AT = {"wrap_with_autocast": 4, "wrap_with_set_grad_enabled": 1}
"""Which argument of a region node is its body: what torch.export makes of ``with torch.autocast(...)``."""

_SETTERS = ("_set_grad_enabled", "set_grad_enabled")
_OPENERS = ("_enter_autocast", "_enter_inference_mode")
_CLOSERS = ("_exit_autocast", "_exit_inference_mode")
_NAMES = {*_SETTERS, *_OPENERS, *_CLOSERS}


def is_marker(node: Node) -> bool:
    """Whether a node opens or closes a region that can be entered again elsewhere.

    Other switches of global state (say, the precision of matrix products) cannot; they are ordinary nodes that
    :mod:`fxpasses.effects` keeps in their place.
    """
    return node.op == "call_function" and getattr(node.target, "__name__", None) in _NAMES


def switches_regions(node: Node) -> bool:
    """Whether a node is there for regions only: a marker, or the question which grad mode to go back to."""
    if node.op != "call_function":
        return False
    name = getattr(node.target, "__name__", None)
    return name in _NAMES or (name == "is_grad_enabled" and _asks_for_mode(node))


def is_region(node: Node) -> bool:
    """Whether a node runs a body under autocast or a grad mode."""
    return isinstance(node.target, torch._ops.HigherOrderOperator) and node.target.__name__ in BODY_AT


def dependencies_of_parts(graph: GraphModule | Graph, effects: EffectAnalysis | None = None) -> Dependencies:
    """What waits for what where each part enters its regions by itself: markers hold nothing in place then.

    Args:
        graph: The graph, or the module that owns it.
        effects: Its effects, where they are known already.
    """
    nodes = list(graph.graph.nodes if isinstance(graph, GraphModule) else graph.nodes)
    markers = dict.fromkeys(filter(switches_regions, nodes))
    if not markers:
        return Dependencies.of(graph, effects)
    effects = effects or analyze_effects(graph)
    place = {node: number for number, node in enumerate(nodes)}
    edges = [(source, node) for node in nodes for source in node._input_nodes]
    edges.extend(effects.order_edges)
    kept = [(a, b) for a, b in edges if a not in markers and b not in markers]
    return Dependencies(nodes, [place[a] for a, _ in kept], [place[b] for _, b in kept], effects)


def body_of_region(node: Node) -> GraphModule | None:
    """The graph that a region node runs; None if it is not an attribute of the module that owns the graph."""
    body = node.args[BODY_AT[node.target.__name__]]  # type: ignore[union-attr]  # is_region
    root = node.graph.owning_module
    if root is None or not isinstance(body, Node) or body.op != "get_attr":
        return None
    found = find_attribute(root, str(body.target)).value
    return found if isinstance(found, GraphModule) else None


class Regions:
    """Which nodes of a graph are region markers, and which regions are open at each of the others.

    Args:
        nodes: All nodes of the graph, in order.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._markers: dict[Node, None] = {}
        self._open_at: dict[Node, tuple[Node, ...]] = {}
        stack: tuple[Node, ...] = ()
        for node in nodes:
            if is_marker(node):
                self._markers[node] = None
                # What RegionWriter wrote in an earlier split, to put the grad mode back.
                self._markers.update((given, None) for given in node.all_input_nodes if _asks_for_mode(given))
                stack = _after(stack, node)
            elif stack:
                self._open_at[node] = stack

    def __contains__(self, node: Node) -> bool:
        return node in self._markers

    def __bool__(self) -> bool:
        return bool(self._markers)

    def open_at(self, node: Node) -> tuple[Node, ...]:
        """The markers that opened the regions around a node, outermost first."""
        return self._open_at.get(node, ())


def _after(stack: tuple[Node, ...], marker: Node) -> tuple[Node, ...]:
    """The regions that are open behind a marker."""
    name = getattr(marker.target, "__name__", None)
    given = marker.args[0] if marker.args else None
    if name in _OPENERS:
        return (*stack, marker)
    if name in _CLOSERS:
        opener = given if given in stack else next((node for node in reversed(stack) if not _is_setter(node)), None)
        return tuple(node for node in stack if node is not opener)
    # There is no marker for the end of a grad mode: setting what was set before is the end.
    setters = [node for node in stack if _is_setter(node)]
    if isinstance(given, Node):
        ends = bool(setters)
    else:
        ends = bool(setters) and given == (setters[-2].args[0] if len(setters) > 1 else not setters[-1].args[0])
    return tuple(node for node in stack if node is not setters[-1]) if ends else (*stack, marker)


def _is_setter(node: Node) -> bool:
    return getattr(node.target, "__name__", None) in _SETTERS


def _asks_for_mode(node: Node) -> bool:
    return node.target is torch.is_grad_enabled and REENTERED in node.meta


class RegionWriter:
    """Writes markers into one new graph so that each node finds the regions open that it had.

    Args:
        writer: The graph.
        open_at: Gives the markers that opened the regions around something that is written, outermost first.
    """

    def __init__(self, writer: GraphWriter, open_at: Callable[[Any], tuple[Node, ...]]) -> None:
        self._writer = writer
        self._open_at = open_at
        self._open: list[tuple[Node, Node]] = []  # the original marker, and what closes its copy

    def move_to(self, item: Any) -> None:
        """Close and open regions until exactly those of ``item`` are open."""
        self._switch(self._open_at(item))

    def close(self) -> None:
        """Close all regions, innermost first."""
        self._switch(())

    def _switch(self, wanted: tuple[Node, ...]) -> None:
        common = 0
        while common < min(len(wanted), len(self._open)) and self._open[common][0] is wanted[common]:
            common += 1
        while len(self._open) > common:
            self._leave(*self._open.pop())
        for marker in wanted[common:]:
            self._open.append((marker, self._enter(marker)))

    def _enter(self, marker: Node) -> Node:
        name = marker.meta.get(REENTERED, marker.name)  # a region that was cut before is still the same one
        meta = {**marker.meta, REENTERED: name}
        if not _is_setter(marker):
            return self._writer.append("call_function", marker.target, marker.args, name=marker.name, meta=meta)
        # The mode to go back to is the one found at run time: the caller may be inside torch.no_grad().
        before = self._writer.append("call_function", torch.is_grad_enabled, name="grad_mode", meta={REENTERED: name})
        self._writer.append("call_function", marker.target, marker.args, name=marker.name, meta=meta)
        return before

    def _leave(self, marker: Node, opened: Node) -> None:
        target = marker.target
        if not _is_setter(marker):
            autocast = "autocast" in getattr(target, "__name__", "")
            target = torch.amp._exit_autocast if autocast else torch.autograd.grad_mode._exit_inference_mode  # type: ignore[attr-defined]
        self._writer.append(
            "call_function", target, (opened,), meta={REENTERED: marker.meta.get(REENTERED, marker.name)}
        )
