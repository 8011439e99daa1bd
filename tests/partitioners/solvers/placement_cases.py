"""Random placement problems, and what a placement costs written as the definitions say it."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import networkx as nx

from fxpasses.devices import Device, Link, Topology
from fxpasses.partitioners import PlacementProblem

Placed = Mapping[Hashable, str]


def random_problem(seed: int, sizes: Sequence[tuple[int, int]] = ((9, 2), (7, 3), (5, 3)), **options: Any) -> Any:
    """A DAG on 2 or 3 devices: costs, budgets, shared and live bytes, pins and groups at random."""
    draw = random.Random(seed)
    count, kinds = draw.choice(list(sizes))
    names = ["a", "b", "c"][:kinds]
    graph: nx.DiGraph[Any] = nx.DiGraph()
    extras = draw.random() < 0.3
    for node in range(count):
        same = draw.choice([0, 0.0, 1, 2.5, 4])
        each = {name: draw.choice([0.0, 1.0, 3.0]) for name in names if draw.random() < 0.9}
        graph.add_node(
            f"n{node}",
            seconds=same if draw.random() < 0.6 else each,
            kept_bytes=draw.choice([0, 0, 10, 25]),
            output_bytes=draw.choice([0, 0, 8, 32]),
            output_seconds=draw.choice([0, 0, 0.5]),
        )
        if extras:
            graph.nodes[f"n{node}"]["live_bytes"] = draw.choice([0, 5, 12])
            key = draw.choice(["w", "v"])
            graph.nodes[f"n{node}"]["shared_bytes"] = {key: {"w": 20, "v": 7}[key]} if draw.random() < 0.5 else {}
    pairs = itertools.combinations(range(count), 2)
    graph.add_edges_from((f"n{a}", f"n{b}") for a, b in pairs if draw.random() < 0.3)
    nodes = list(graph)
    memory = [draw.choice([None, 40, 60, 90]) for _name in names]
    rates = [64.0] if draw.random() < 0.7 else [16.0, 64.0, 256.0]
    links = [Link(a, b, draw.choice(rates), 0.25) for a, b in itertools.combinations(names, 2)]
    more: dict[str, Any] = {}
    if draw.random() < 0.3:
        more["colocate"] = [draw.sample(nodes, 2)]
    if draw.random() < 0.3:
        more["pinned"] = {draw.choice(nodes): draw.choice(names)}
    if draw.random() < 0.3:
        more["forbidden"] = {draw.choice(nodes): [draw.choice(names)]}
    devices = [Device(name, size) for name, size in zip(names, memory, strict=True)]
    return PlacementProblem(graph, devices, links, **(more | options))


def every_placement(problem: PlacementProblem) -> Iterator[Placed]:
    """All maps from nodes to devices."""
    names = [device.name for device in problem.devices]
    nodes = list(problem.graph)
    for chosen in itertools.product(names, repeat=len(nodes)):
        yield dict(zip(nodes, chosen, strict=True))


def sending(problem: PlacementProblem, node: Hashable, home: str, other: str) -> float:
    """Seconds that the output of a node takes from one device to another."""
    facts = problem.graph.nodes[node]
    link = Topology.of(problem.devices, problem.links).link(home, other)
    size = facts.get("output_bytes", 0)
    return float(facts.get("output_seconds", 0.0) + (link.seconds(size) if size else 0.0))


def seconds_on(problem: PlacementProblem, node: Hashable, device: str) -> float:
    """Seconds of a node, ``inf`` where the device cannot run it."""
    seconds = problem.graph.nodes[node].get("seconds", 0.0)
    return float(seconds.get(device, math.inf) if isinstance(seconds, dict) else seconds)


def needs(problem: PlacementProblem, placed: Placed) -> dict[str, int]:
    """Bytes that each device needs: what nodes keep, shared blocks once, the most that is live."""
    need = {}
    for device in problem.devices:
        own = [problem.graph.nodes[node] for node, home in placed.items() if home == device.name]
        blocks: dict[Any, int] = {}
        for facts in own:
            blocks.update(facts.get("shared_bytes", {}))
        live = max((facts.get("live_bytes", 0) for facts in own), default=0)
        need[device.name] = sum(facts.get("kept_bytes", 0) for facts in own) + sum(blocks.values()) + live
    return need


def loads(problem: PlacementProblem, placed: Placed) -> dict[str, float]:
    """Seconds of each device: its nodes, what leaves it once, what enters it once."""
    load = dict.fromkeys((device.name for device in problem.devices), 0.0)
    for node, home in placed.items():
        load[home] += seconds_on(problem, node, home)
        others = {placed[user] for user in problem.graph.successors(node)} - {home}
        taken = {other: sending(problem, node, home, other) for other in sorted(others)}
        load[home] += max(taken.values(), default=0.0)
        for other, seconds in taken.items():
            load[other] += seconds
    return load


def is_legal(problem: PlacementProblem, placed: Placed) -> bool:
    """Whether budgets, pins, groups and what devices can run are kept."""
    need = needs(problem, placed)
    legal = all(need[device.name] <= device.memory for device in problem.devices)
    legal &= all(len({placed[node] for node in group}) == 1 for group in problem.colocate)
    legal &= all(placed[node] == device for node, device in problem.pinned.items())
    legal &= all(placed[node] not in devices for node, devices in problem.forbidden.items())
    return legal and all(math.isfinite(seconds_on(problem, node, home)) for node, home in placed.items())


def is_pipeline(problem: PlacementProblem, placed: Placed) -> bool:
    """Whether no device needs a value back from a later one."""
    quotient: nx.DiGraph[str] = nx.DiGraph()
    quotient.add_edges_from((placed[a], placed[b]) for a, b in problem.graph.edges if placed[a] != placed[b])
    return nx.is_directed_acyclic_graph(quotient)


def is_convex(problem: PlacementProblem, placed: Placed) -> bool:
    """Whether no path leaves a device and comes back."""
    for first in problem.graph:
        later = nx.descendants(problem.graph, first)
        left = {node for node in later if placed[node] != placed[first]}
        back = {node for away in left for node in nx.descendants(problem.graph, away)}
        if any(placed[node] == placed[first] for node in back):
            return False
    return True


def is_allowed(problem: PlacementProblem, placed: Placed) -> bool:
    """Whether a placement is of the kind that is asked for."""
    kept = {"pipeline": is_pipeline, "convex": is_convex}.get(problem.contiguity)
    return kept is None or kept(problem, placed)
