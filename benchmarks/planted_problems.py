"""Placement problems with a hidden answer: memory is tight, every device is different, and an answer exists.

A graph gets a random topological order, the order is cut into one run for each device, and a device gets the bytes that
its run needs and a little more. Deterministic for a seed, without torch.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import networkx as nx

from fxpasses.devices import Device, Link
from fxpasses.partitioners import PlacementProblem

__all__ = ["FAMILIES", "planted"]

Graph = nx.DiGraph


def _sparse(count: int, draw: random.Random) -> Graph:
    """Each node needs one or two of the few before it, some nothing."""
    graph = Graph()
    graph.add_nodes_from(range(count))
    for node in range(1, count):
        for before in draw.sample(range(max(0, node - 8), node), min(node, draw.choice([0, 1, 1, 2]))):
            graph.add_edge(before, node)
    return graph


def _layered(count: int, draw: random.Random) -> Graph:
    """Layers of one to six nodes, each of which needs some of the layer before."""
    graph, last = Graph(), []
    while len(graph) < count:
        width = min(draw.randint(1, 6), count - len(graph))
        layer = list(range(len(graph), len(graph) + width))
        graph.add_nodes_from(layer)
        for node in layer if last else ():
            graph.add_edges_from((before, node) for before in draw.sample(last, draw.randint(1, len(last))))
        last = layer
    return graph


def _branches(count: int, draw: random.Random) -> Graph:
    """Blocks of two to five branches that are put together again."""
    graph = Graph()
    graph.add_node(0)
    last = 0
    while len(graph) < count:
        ends = []
        for _branch in range(draw.randint(2, 5)):
            end = last
            for _step in range(draw.randint(1, 4)):
                graph.add_edge(end, len(graph))
                end = len(graph) - 1
            ends.append(end)
        last = len(graph)
        graph.add_edges_from((end, last) for end in ends)
    return graph


def _chain(count: int, draw: random.Random) -> Graph:
    """One after the other, with edges around some of them."""
    graph = Graph()
    nx.add_path(graph, range(count))
    for node in range(count - 3):
        if draw.random() < 0.3:
            graph.add_edge(node, node + draw.randint(2, 3))
    return graph


FAMILIES: dict[str, Callable[[int, random.Random], Graph]] = {
    "sparse": _sparse,
    "layered": _layered,
    "branches": _branches,
    "chain": _chain,
}


def planted(
    seed: int, family: str, nodes: int, devices: int, *, slack: tuple[float, float] = (1.0, 1.1), **options: Any
) -> PlacementProblem:
    """A problem whose hidden answer uses every device; each has between ``slack`` times what its run needs.

    Bytes of nodes differ by two orders of magnitude. Some problems also have live bytes and shared blocks.
    """
    draw = random.Random(f"{seed} {family} {nodes} {devices}")
    graph = FAMILIES[family](nodes, draw)
    names = [f"d{index}" for index in range(devices)]
    _add_costs(graph, names, draw)
    order = _random_order(graph, draw)
    cuts = sorted(draw.sample(range(1, len(order)), devices - 1))
    runs = [order[first:last] for first, last in itertools.pairwise([0, *cuts, len(order)])]
    sizes = {
        name: int(_bytes(graph, run) * draw.uniform(*slack))
        for name, run in zip(draw.sample(names, devices), runs, strict=True)
    }
    links = [Link(a, b, 1e9, 1e-5) for a, b in itertools.combinations(names, 2)]
    return PlacementProblem(graph, [Device(name, sizes[name]) for name in names], links, **options)


def _add_costs(graph: Graph, names: list[str], draw: random.Random) -> None:
    speeds = {name: draw.uniform(0.5, 2.0) for name in names}
    has_live, has_shared = draw.random() < 0.5, draw.random() < 0.3
    sizes = {f"w{index}": draw.randint(1, 40) * 1000 for index in range(5)}
    for node in graph:
        work = draw.lognormvariate(0.0, 1.0)
        graph.nodes[node].update(
            seconds={name: work * 1e-3 / speed for name, speed in speeds.items()},
            kept_bytes=int(1000 * draw.lognormvariate(2.0, 1.2)),
            output_bytes=draw.choice([0, 1000, 8000]),
        )
        if has_live:
            graph.nodes[node]["live_bytes"] = draw.choice([0, 2000, 10_000])
        if has_shared and draw.random() < 0.2:
            key = draw.choice(sorted(sizes))
            graph.nodes[node]["shared_bytes"] = {key: sizes[key]}


def _random_order(graph: Graph, draw: random.Random) -> list[int]:
    rank = {node: draw.random() for node in graph}
    return list(nx.lexicographical_topological_sort(graph, key=rank.__getitem__))


def _bytes(graph: Graph, run: list[int]) -> int:
    facts = [graph.nodes[node] for node in run]
    shared: dict[str, int] = {}
    for each in facts:
        shared |= each.get("shared_bytes", {})
    live = max(each.get("live_bytes", 0) for each in facts)
    return sum(each["kept_bytes"] for each in facts) + sum(shared.values()) + live
