"""Graphs of plain numbers for tests of what is about order and reachability, and slow answers to compare with."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
from hypothesis import strategies as st

from fxpasses.dependencies import Dependencies

Edge = tuple[int, int]


@st.composite
def dags(draw: st.DrawFn, most: int = 11) -> tuple[int, list[Edge]]:
    """A number of nodes and the edges of an acyclic graph on them, whose numbers need not be in a legal order."""
    size = draw(st.integers(1, most))
    pairs = [(a, b) for b in range(size) for a in range(b)]
    kept = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    names = draw(st.permutations(range(size))) if draw(st.booleans()) else range(size)
    return size, [(names[a], names[b]) for a, b in kept]


def view_of(size: int, edges: Sequence[Edge], **options: object) -> Dependencies:
    """The edges as Dependencies."""
    return Dependencies.from_edges(size, [a for a, _ in edges], [b for _, b in edges], **options)


def digraph(size: int, edges: Sequence[Edge]) -> nx.DiGraph:
    """The edges as networkx knows them."""
    graph = nx.DiGraph(edges)
    graph.add_nodes_from(range(size))
    return graph


def moved(order: Sequence[int]) -> int:
    """How many numbers must be taken out of ``order`` so that the rest ascends."""
    longest: list[int] = []
    for place, number in enumerate(order):
        longest.append(1 + max((longest[j] for j in range(place) if order[j] < number), default=0))
    return len(order) - max(longest, default=0)
