"""Whether a placement problem says its costs by the names that are read: a slip would count as nothing, silently."""

from __future__ import annotations

import difflib
import itertools
from typing import Any

import networkx as nx

from fxpasses.errors import PlacementError

__all__ = ["check_attributes"]

COSTS = ("seconds", "kept_bytes", "shared_bytes", "live_bytes", "output_bytes", "output_seconds")
KNOWN = (*COSTS, "backward_of", "replicable")
ALIKE = 0.85
"""How alike two names are (shared letters over all of them) that are taken for one: ``second``, ``output_byte``."""


def check_attributes(graph: nx.DiGraph[Any]) -> None:
    """Refuse names that look like those that are read, costs on edges, and a graph without any cost.

    Other attributes are the caller's own business. Time O(attributes).

    Raises:
        PlacementError: it names the node, its attribute, and the names that are read.
    """
    given = dict.fromkeys(itertools.chain.from_iterable(facts for _node, facts in graph.nodes(data=True)))
    for name in given:
        if name not in KNOWN and (meant := _meant(name)):
            _check_slip(graph, name, meant)
    for start, end, facts in ((start, end, facts) for start, end, facts in graph.edges(data=True) if facts):
        if misplaced := [cost for cost in COSTS if cost in facts]:
            raise PlacementError(
                f"The edge from {start!r} to {end!r} has {misplaced[0]!r}, and only nodes have costs: what goes over "
                "it is output_bytes or output_seconds of the node that makes it."
            )
    if graph and given.keys().isdisjoint(KNOWN):
        own = f" (they have {', '.join(map(repr, given))})" if given else ""
        raise PlacementError(f"No node of the graph has a cost{own}, so there is nothing to balance. {_read()}")


def _meant(name: Any) -> str | None:
    close = difflib.get_close_matches(str(name).lower().replace("-", "_"), KNOWN, n=1, cutoff=ALIKE)
    return close[0] if close else None


def _check_slip(graph: nx.DiGraph[Any], name: Any, meant: str) -> None:
    for node, facts in graph.nodes(data=True):
        if name in facts and meant not in facts:
            raise PlacementError(
                f"Node {node!r} has the attribute {name!r}, which nobody reads; did you mean {meant!r}? {_read()}"
            )


def _read() -> str:
    return f"What is read of a node: {', '.join(KNOWN)}."
