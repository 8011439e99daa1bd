"""Which operators a caller means, by node or by module path, and where they are pinned."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from networkx.utils import UnionFind
from torch.fx import Node

from fxpasses.devices import Topology, as_given
from fxpasses.errors import PlacementError
from fxpasses.guards import is_guard
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.names.module_origins import origins, runs_inside
from fxpasses.partitioners.support import module_paths

__all__ = ["Selector", "as_bans", "as_pins", "check_device", "pins_of", "select"]

Selector = Node | str
"""A compute node, or the path of a module: all operators that come from it; ``""`` is the model itself."""


def as_pins(pinned: Mapping[Selector, str] | None) -> dict[Selector, str]:
    """The device of each of some nodes and modules; what is no mapping is refused."""
    return _as_table("pinned", pinned)


def as_bans(forbidden: Mapping[Selector, Collection[str]] | None) -> dict[Selector, Collection[str]]:
    """The devices that each of some nodes and modules must not be on.

    Raises:
        PlacementError: no mapping, or one to something else than lists of names.
    """
    table = _as_table("forbidden", forbidden)
    for selector, names in table.items():
        if isinstance(names, str):
            raise PlacementError(f"`forbidden` gives {selector!r} the text {names!r}; write a list: [{names!r}].")
        if not isinstance(names, Iterable):
            raise PlacementError(f"`forbidden` gives {selector!r} {names!r}; write a list of device names.")
    return table


def _as_table(option: str, given: Mapping[Selector, Any] | None) -> dict[Selector, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise PlacementError(f"`{option}` is a dict by nodes and module paths, not {given!r}.")
    return dict(given or {})


def select(figures: GraphFigures, selector: Selector, option: str) -> list[Node]:
    """The compute nodes that a caller means.

    Raises:
        PlacementError: a node of another graph or one that computes nothing, or a path of which nothing comes.
    """
    if isinstance(selector, Node):
        if selector not in figures.position:
            raise PlacementError(
                f"`{option}` names {selector.name}, which is no operator of this graph; inputs, attributes and the "
                "output follow the operators that use them.",
                node=selector,
            )
        return [selector]
    if selector == "":
        return list(figures.nodes)
    found = list(_by_module(figures).get(selector, ()))
    found = found or [node for node in figures.nodes if runs_inside(node, selector)]
    if not found:
        known = list(dict.fromkeys(path for node in figures.nodes for path in module_paths(node)))
        near = difflib.get_close_matches(str(selector), known, n=3)
        hint = f"the nearest modules are {', '.join(near)}" if near else "give a node or a module's path"
        named: object = selector
        if not isinstance(named, str) and str(named) in known:  # the number of a layer
            hint = f"a path is a text: write {str(named)!r}"
        raise PlacementError(f"`{option}` names {selector!r}, from which no operator of this graph comes; {hint}.")
    return found


_BY_MODULE: WeakKeyDictionary[GraphFigures, dict[str, list[Node]]] = WeakKeyDictionary()


def _by_module(figures: GraphFigures) -> dict[str, list[Node]]:
    """The compute nodes of each module, found once for a measured graph. Time O(nodes × depth)."""
    found = _BY_MODULE.get(figures)
    if found is None:
        found = _BY_MODULE[figures] = {}
        for node in figures.nodes:
            for module in () if is_guard(node) else origins(node):
                found.setdefault(module, []).append(node)
    return found


def check_device(topology: Topology, device: object, option: str) -> None:
    """Refuse a name that is no device.

    Raises:
        PlacementError: it lists the devices there are.
    """
    names = [known.name for known in topology.devices]
    if device not in names:
        raise PlacementError(f"`{option}` names the device {as_given(device)}; there are {', '.join(names)}.")


def pins_of(
    figures: GraphFigures, pinned: Mapping[Selector, str], together: Iterable[Collection[Node]]
) -> dict[Node, str]:
    """The device of each pinned node: the longest path that covers it counts, and a node before any path.

    What must share a device with others goes with the one of them that is pinned by the longest path.

    Args:
        figures: The measured graph.
        pinned: Devices by node and module path.
        together: Groups that share a device.

    Raises:
        PlacementError: a selector that means nothing.
    """
    depth: dict[Node, float] = {}
    pins: dict[Node, str] = {}
    for key in sorted(pinned, key=_depth):
        for node in select(figures, key, "pinned"):
            pins[node], depth[node] = pinned[key], _depth(key)
    if len(set(depth.values())) > 1:
        _follow_the_longest(pins, depth, together)
    return pins


def _depth(selector: Selector) -> float:
    if isinstance(selector, Node):
        return float("inf")
    return str(selector).count(".") + bool(selector)


def _follow_the_longest(
    pins: dict[Node, str], depth: Mapping[Node, float], together: Iterable[Collection[Node]]
) -> None:
    groups: UnionFind[Node] = UnionFind(pins)
    for group in together:
        groups.union(*(node for node in group if node in pins))
    leader: dict[Node, Node] = {}
    for node in pins:
        first = leader.setdefault(groups[node], node)
        if depth[node] > depth[first]:
            leader[groups[node]] = node
    for node in pins:
        chosen = leader[groups[node]]
        if depth[chosen] > depth[node]:
            pins[node] = pins[chosen]
