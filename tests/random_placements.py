"""Random placement problems, and the best of all their assignments, written as the definitions say."""

from __future__ import annotations

import itertools
import random
from typing import Any

import attrs
import networkx as nx
import numpy as np
import pytest
from numpy.typing import NDArray

from fxpasses.devices import Device, Link, Topology
from fxpasses.errors import InfeasibleError
from fxpasses.partitioners import PlacementProblem, PlacementSolution, solve_placement

Table = NDArray[Any]


def random_problem(seed: int, *, training: bool | None = None, **options: Any) -> PlacementProblem:
    """A DAG of up to 12 nodes on 1 to 4 devices: every attribute and option at random; links mostly alike."""
    draw = random.Random(seed)
    count, kinds = draw.choice([(12, 2), (9, 2), (8, 3), (6, 3), (6, 4), (4, 1), (3, 2)])
    names = ["a", "b", "c", "d"][:kinds]
    graph: nx.DiGraph[Any] = nx.DiGraph()
    is_training = draw.random() < 0.3 if training is None else training
    forward = count // 2 if is_training else count
    count = 2 * forward if is_training else count
    for node in range(count):
        graph.add_node(f"n{node}", **_facts(draw, names))
    pairs = [(a, b) for a, b in itertools.combinations(range(forward), 2) if draw.random() < 0.35]
    graph.add_edges_from((f"n{a}", f"n{b}") for a, b in pairs)
    if is_training:
        _add_backward(draw, graph, pairs, forward, count)
    nodes = list(graph)
    budgets = draw.choice([[None], [60, 90, 120], [None, 60, 120], [40, 60]])
    devices = [Device(name, draw.choice(budgets)) for name in names]
    rates = [64.0] if draw.random() < 0.75 else [16.0, 64.0, 256.0]
    links = [Link(a, b, draw.choice(rates), 0.25) for a, b in itertools.combinations(names, 2)]
    extra: dict[str, Any] = {"objective": draw.choice(["throughput", "throughput", "memory", "devices"])}
    if draw.random() < 0.2:
        extra["colocate"] = [draw.sample(nodes, 2)]
    if draw.random() < 0.2:
        extra["pinned"] = {draw.choice(nodes): draw.choice(names)}
    if draw.random() < 0.2:
        extra["forbidden"] = {draw.choice(nodes): [draw.choice(names)]}
    return PlacementProblem(graph, devices, links, **(extra | options))


def with_two_rates(problem: PlacementProblem, seed: int) -> PlacementProblem:
    """The same, but the way back over each link, or over most of them, is slower or faster."""
    draw = random.Random(seed)
    back = [Link(link.second, link.first, draw.choice([4.0, 32.0, 1024.0]), 0.5) for link in problem.links]
    return attrs.evolve(problem, links=[*problem.links, *(link for link in back if draw.random() < 0.9)])


def sending_problem(seed: int, work: float = 3.0) -> PlacementProblem:
    """What crosses matters as much as what is computed, or more; links are alike, devices are not always."""
    draw = random.Random(seed)
    problem = random_problem(seed, training=seed % 4 == 0, objective="throughput")
    graph = problem.graph.copy()
    for _node, facts in graph.nodes(data=True):
        seconds = draw.uniform(work / 6, work)
        if isinstance(facts["seconds"], dict):
            seconds = {name: seconds * draw.choice([1.0, 2.0]) for name in facts["seconds"]}
        facts |= {"seconds": seconds, "output_bytes": 0, "output_seconds": draw.choice([0.3, 1.0, 2.0])}
    return attrs.evolve(problem, graph=graph, time_budget=10.0)


def _facts(draw: random.Random, names: list[str]) -> dict[str, Any]:
    same = draw.choice([0, 0.0, 1, 2.5, 4])
    each = {name: draw.choice([0.0, 1.0, 3.0]) for name in names if draw.random() < 0.95}
    facts = {
        "seconds": same if draw.random() < 0.6 else each,
        "kept_bytes": draw.choice([0, 0, 10, 25]),
        "output_bytes": draw.choice([0, 0, 8, 32]),
        "output_seconds": draw.choice([0, 0, 0.5]),
        "live_bytes": draw.choice([0, 0, 0, 5, 20]),
    }
    if draw.random() < 0.4:
        facts["shared_bytes"] = {key: 7 * (key + 1) for key in draw.sample(range(4), draw.choice([1, 2]))}
    return facts


def _add_backward(
    draw: random.Random, graph: nx.DiGraph[Any], pairs: list[tuple[int, int]], forward: int, count: int
) -> None:
    partner = {node: node - forward for node in range(forward, count)}
    for node, own in partner.items():
        graph.nodes[f"n{node}"]["backward_of"] = f"n{own}"
    for node, own in partner.items():
        graph.add_edges_from((f"n{node}", f"n{before + forward}") for before, after in pairs if after == own)
        saved = [own, *(before for before, after in pairs if after == own), draw.randrange(forward)]
        graph.add_edges_from((f"n{each}", f"n{node}") for each in saved if draw.random() < 0.6)


@attrs.frozen
class EveryPlacement:
    """All assignments of a problem, one a row: what each device carries, and which rows break no rule.

    Args:
        home: The device of each node, ``(a, n)``.
        load: Seconds of each device, ``(a, k)``.
        size: Bytes of each device, ``(a, k)``.
        legal: Whether budgets, pins, groups and capabilities are kept, ``(a,)``.
        pipeline: Whether the devices can be put in an order that values follow, ``(a,)``.
        convex: Whether no path leaves a device and comes back to it, ``(a,)``.
    """

    home: Table
    load: Table
    size: Table
    legal: Table
    pipeline: Table
    convex: Table

    def values(self, problem: PlacementProblem) -> Table:
        """The objective of each row that is legal, smallest first."""
        ways = {"pipeline": self.pipeline, "convex": self.convex}
        legal = self.legal & ways.get(problem.contiguity, np.ones_like(self.legal))
        used = np.array([len(set(row)) for row in self.home.tolist()])
        objectives = {"throughput": self.load.max(1), "memory": self.size.max(1), "devices": used}
        return np.sort(objectives[problem.objective][legal])

    def row(self, problem: PlacementProblem, placed: dict[Any, str]) -> int:
        """The row of one assignment."""
        names = [device.name for device in problem.devices]
        home = [names.index(placed[node]) for node in problem.graph]
        return int(np.flatnonzero((self.home == home).all(axis=1))[0])


def solved(problem: PlacementProblem, values: Table) -> PlacementSolution | None:
    """The answer; None where no assignment has a value, and that is what is said."""
    if len(values):
        return solve_placement(problem)
    with pytest.raises(InfeasibleError):
        solve_placement(problem)
    return None


def assert_solved_as_by_brute_force(problem: PlacementProblem) -> None:
    """The answer is the best of all assignments, and proven; where there is none, that is what is said."""
    values = every_placement(problem).values(problem)
    solution = solved(problem, values)
    if solution is not None:
        assert pytest.approx(values[0]) == solution.objective_value
        assert solution.is_optimal


def every_placement(problem: PlacementProblem) -> EveryPlacement:
    """Evaluate all assignments, node by node and edge by edge."""
    names, nodes = [device.name for device in problem.devices], list(problem.graph)
    kinds, position = len(names), {node: index for index, node in enumerate(nodes)}
    home = np.array(list(itertools.product(range(kinds), repeat=len(nodes)))).reshape(-1, len(nodes))
    load, size, live = (np.zeros((len(home), kinds)) for _ in range(3))
    rows = np.arange(len(home))
    keys: dict[Any, int] = {}
    for node, facts in problem.graph.nodes(data=True):
        own, given = home[:, position[node]], facts.get("seconds", 0.0)
        seconds = np.array([given.get(name, np.inf) if isinstance(given, dict) else given for name in names])
        load[rows, own] += seconds[own]
        size[rows, own] += facts.get("kept_bytes", 0)
        live[rows, own] = np.maximum(live[rows, own], facts.get("live_bytes", 0))
        keys |= facts.get("shared_bytes", {})
        _add_transfers(problem, node, home, position, load)
    for key, amount in keys.items():
        users = [
            position[node] for node, facts in problem.graph.nodes(data=True) if key in facts.get("shared_bytes", {})
        ]
        for device in range(kinds):
            size[:, device] += amount * (home[:, users] == device).any(axis=1)
    size += live
    legal = np.isfinite(load.max(axis=1)) & (size <= [device.memory for device in problem.devices]).all(axis=1)
    for group in problem.colocate:
        legal &= (home[:, [position[node] for node in group]] == home[:, [position[group[0]]]]).all(axis=1)
    for node, name in problem.pinned.items():
        legal &= home[:, position[node]] == names.index(name)
    for node, forbidden in problem.forbidden.items():
        legal &= ~np.isin(home[:, position[node]], [names.index(name) for name in forbidden])
    for node, facts in problem.graph.nodes(data=True):
        if "backward_of" in facts:
            legal &= home[:, position[node]] == home[:, position[facts["backward_of"]]]
    order = _precedence(problem)
    return EveryPlacement(
        home, load, size, legal, _is_pipeline(order, home, position, kinds), _is_convex(order, home, position)
    )


def _add_transfers(problem: PlacementProblem, node: Any, home: Table, position: dict[Any, int], load: Table) -> None:
    names, facts = [device.name for device in problem.devices], problem.graph.nodes[node]
    for maker, name in enumerate(names):
        away = np.zeros(len(home))
        for other, far in enumerate(names):
            users = [position[user] for user in problem.graph.successors(node)]
            if other == maker or not users:
                continue
            link = Topology.of(problem.devices, problem.links).link(name, far)
            amount = facts.get("output_bytes", 0)
            taken = facts.get("output_seconds", 0.0) + (link.seconds(amount) if amount else 0.0)
            crosses = (home[:, position[node]] == maker) & (home[:, users] == other).any(axis=1)
            load[:, other] += taken * crosses
            away = np.maximum(away, taken * crosses)
        load[:, maker] += away


def _precedence(problem: PlacementProblem) -> list[tuple[Any, Any]]:
    """Edges between forward nodes; those between backward nodes the other way."""
    is_backward = {node: "backward_of" in facts for node, facts in problem.graph.nodes(data=True)}
    there = [(a, b) for a, b in problem.graph.edges if not is_backward[a] and not is_backward[b]]
    return there + [(b, a) for a, b in problem.graph.edges if is_backward[a] and is_backward[b]]


def _is_pipeline(order: list[tuple[Any, Any]], home: Table, position: dict[Any, int], kinds: int) -> Table:
    reach = np.zeros((len(home), kinds, kinds), dtype=bool)
    rows = np.arange(len(home))
    for a, b in order:
        reach[rows, home[:, position[a]], home[:, position[b]]] = True
    reach[:, np.arange(kinds), np.arange(kinds)] = False
    for middle in range(kinds):
        reach |= reach[:, :, [middle]] & reach[:, [middle], :]
    return ~reach[:, np.arange(kinds), np.arange(kinds)].any(axis=1)


def _is_convex(order: list[tuple[Any, Any]], home: Table, position: dict[Any, int]) -> Table:
    graph: nx.DiGraph[Any] = nx.DiGraph(order)
    convex = np.ones(len(home), dtype=bool)
    for a in graph:
        for middle in nx.descendants(graph, a):
            for b in nx.descendants(graph, middle):
                same = home[:, position[a]] == home[:, position[b]]
                convex &= ~(same & (home[:, position[a]] != home[:, position[middle]]))
    return convex
