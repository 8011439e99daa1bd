"""Which values to compute again where they are needed rather than have them sent there: whichever is cheaper.

This is a minimum cut. Each value is two vertices, "made here" and "here": the edge from the source to the first costs
the computing, the edge between the two costs the sending, edges without a limit lead from "here" of an input to "made
here" of its user, and what is needed leads to the sink.

Source: the cut is that of the min-cut rematerialization of functorch (H. He, S. Boyd, 2022), with the price of
computing beside that of keeping. The flow costs at most O(V²·√E) (preflow-push) in the operators that lead to what is
needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import networkx as nx
from torch.fx import Node

__all__ = ["NEVER", "PICOSECONDS", "cheapest"]

PICOSECONDS = 1e12
"""Prices are whole picoseconds, so that the cut is exact and the same everywhere."""

NEVER = 10**18


def cheapest(
    making: Mapping[Node, int], sending: Mapping[Node, int], needed: Iterable[Node]
) -> tuple[list[Node], list[Node]]:
    """Decide for one place what is made there and what is sent there.

    Args:
        making: What it costs to compute each value there; ``NEVER`` where that must not be. Its own inputs then have to
            be there as well, as far as they stand in this mapping.
        sending: What it costs to send each of these values.
        needed: The values that have to be there.

    Returns:
        What is made there, and all that is there then, in the order of ``making``.
    """
    network: Any = nx.DiGraph()
    for node, price in making.items():
        network.add_edge("source", ("made", node), capacity=price)
        network.add_edge(("made", node), ("here", node), capacity=sending[node])
        if price < NEVER:
            inputs = [used for used in node.all_input_nodes if used in making]
            network.add_edges_from((("here", used), ("made", node)) for used in inputs)
    network.add_edges_from((("here", node), "sink") for node in needed)
    _, (_, near) = nx.minimum_cut(network, "source", "sink")
    return (
        [node for node in making if ("made", node) in near],
        [node for node in making if ("here", node) in near],
    )
