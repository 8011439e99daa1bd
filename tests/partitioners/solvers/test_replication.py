"""Nodes that may be computed again: against brute force over where each node is computed and sent from."""

from __future__ import annotations

import itertools
import math
import random

import attrs
import networkx as nx
import numpy as np
import pytest
from fuzz import examples
from placement_cases import random_problem, seconds_on, sending

from fxpasses.devices import Device
from fxpasses.errors import InfeasibleError
from fxpasses.partitioners import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers.reduced.tables import tables_of
from fxpasses.partitioners.solvers.replication.changing import ROUNDING, Change, CopiesInUse, ranked
from fxpasses.partitioners.solvers.replication.solving import Copies

RANDOM_GRAPHS = examples(60)


def replicable_problem(seed, **options):
    problem = random_problem(seed, [(5, 2), (4, 3), (6, 2)], **options)
    draw = random.Random(seed)
    for node in problem.graph:
        problem.graph.nodes[node]["replicable"] = draw.random() < 0.5
    return problem


def may(problem, node):
    grouped = any(node in group for group in problem.colocate if len(group) > 1)
    return problem.graph.nodes[node]["replicable"] and node not in problem.pinned and not grouped


def every_way(problem):
    """For each node its home and all devices that compute it."""
    names = [device.name for device in problem.devices]
    ways = []
    for node in problem.graph:
        sets = [c for size in range(1, len(names) + 1) for c in itertools.combinations(names, size)]
        ways.append([(home, c) for c in sets for home in c if len(c) == 1 or may(problem, node)])
    for chosen in itertools.product(*ways):
        yield dict(zip(problem.graph, chosen, strict=True))


def cost(problem, ways):
    """The largest load, as the definition says it, or ``inf`` when a rule is broken."""
    names = [device.name for device in problem.devices]
    load = dict.fromkeys(names, 0.0)
    flow = nx.DiGraph()
    for node, (home, where) in ways.items():
        for device in where:
            load[device] += seconds_on(problem, node, device)
            if device in problem.forbidden.get(node, ()):
                return math.inf
        needing = {d for user in problem.graph.successors(node) for d in ways[user][1]} - set(where)
        taken = {device: sending(problem, node, home, device) for device in sorted(needing)}
        load[home] += max(taken.values(), default=0.0)
        for device, seconds in taken.items():
            load[device] += seconds
            flow.add_edge(home, device)
    for device in problem.devices:
        own = [problem.graph.nodes[node] for node, (_home, where) in ways.items() if device.name in where]
        blocks = {key: size for facts in own for key, size in facts.get("shared_bytes", {}).items()}
        live = max((facts.get("live_bytes", 0) for facts in own), default=0)
        if sum(facts["kept_bytes"] for facts in own) + sum(blocks.values()) + live > device.memory:
            return math.inf
    legal = all(len({ways[node][0] for node in group}) == 1 for group in problem.colocate)
    legal &= all(ways[node][0] == device for node, device in problem.pinned.items())
    legal &= problem.contiguity == "free" or nx.is_directed_acyclic_graph(flow)
    return max(load.values()) if legal else math.inf


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_brute_force_over_copies_finds_nothing_better(seed: int) -> None:
    """The answer keeps every rule, its figures are right, and it is the proven optimum."""
    problem = replicable_problem(seed, contiguity=["free", "pipeline"][seed % 2], time_budget=0.1)
    best = min(cost(problem, ways) for ways in every_way(problem))
    try:
        solution = solve_placement(problem)
    except InfeasibleError:
        assert problem.contiguity == "pipeline" or math.isinf(best)
        return

    ways = {node: (home, (home, *solution.replicas.get(node, ()))) for node, home in solution.device_of.items()}

    assert pytest.approx(cost(problem, ways)) == solution.objective_value
    assert pytest.approx(best) == solution.objective_value
    assert solution.is_optimal


@pytest.mark.parametrize("seed", [24, 62, 102, 114])
def test_what_takes_far_too_long_to_send_leaves_the_proof_its_digits(seed: int) -> None:
    """Some values take a billion times what nodes take: they are not sent, and the best way is found all the same."""
    problem = replicable_problem(seed, time_budget=1.0)
    draw = random.Random(seed)
    for _node, facts in problem.graph.nodes(data=True):
        if draw.random() < 0.6:
            facts.update({kind: facts[kind] * 1e12 for kind in ("output_seconds", "output_bytes") if kind in facts})

    solution = solve_placement(problem)

    assert pytest.approx(min(cost(problem, ways) for ways in every_way(problem))) == solution.objective_value
    assert solution.is_optimal


def test_a_mask_that_all_read_is_computed_where_it_is_read() -> None:
    """Sending it would cost more than computing it again; the plain answer sends it."""
    graph = nx.DiGraph()
    graph.add_node("mask", seconds=0.1, output_seconds=1.0, replicable=True)
    last = None
    for layer in range(8):
        graph.add_node(layer, seconds=1.0, output_seconds=0.1)
        graph.add_edge("mask", layer)
        if last is not None:
            graph.add_edge(last, layer)
        last = layer
    problem = PlacementProblem(graph, [Device("a"), Device("b")])

    solution = solve_placement(problem)

    assert {"mask"} == set(solution.replicas)
    assert pytest.approx(4.2) == solution.objective_value == max(solution.load.values())
    assert pytest.approx(4.1) == solution.compute["a"]
    graph.nodes["mask"]["replicable"] = False
    assert solve_placement(attrs.evolve(problem)).objective_value > 5.0


@pytest.mark.parametrize("contiguity", ["free", "pipeline"])
def test_nodes_on_a_cycle_stay_together_though_they_could_have_copies(contiguity: str) -> None:
    """Random graphs with one cycle, in which each node says that it may be computed again."""
    for seed in range(20):
        draw = random.Random(seed)
        graph: nx.DiGraph[int] = nx.DiGraph()
        for node in range(6):
            graph.add_node(
                node, seconds=draw.choice([0.5, 1.0, 2.0]), output_seconds=draw.choice([0.0, 0.5]), replicable=True
            )
        graph.add_edges_from(pair for pair in itertools.combinations(range(6), 2) if draw.random() < 0.4)
        first, second = draw.choice([*graph.edges, (4, 5)])
        graph.add_edges_from([(first, second), (second, first)])
        problem = PlacementProblem(graph, [Device("x"), Device("y")], contiguity=contiguity)

        solution = solve_placement(problem)

        assert solution.device_of[first] == solution.device_of[second]
        assert not {first, second} & set(solution.replicas)


@pytest.mark.parametrize("contiguity", ["pipeline", "free"])
@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_a_change_costs_what_the_whole_says_then(seed: int, contiguity: str) -> None:
    """Only one node and what sends it something are looked at, with bytes, shared keys, and circles of devices."""
    problem = attrs.evolve(random_problem(seed, [(9, 3), (14, 4)], objective="throughput"), contiguity=contiguity)
    tables, draw = tables_of(problem), np.random.default_rng(seed)
    count, kinds = tables.seconds.shape
    if not np.isfinite(tables.seconds).any(axis=1).all():  # some node runs nowhere
        return
    home = np.where(np.isfinite(tables.seconds), draw.random((count, kinds)), -1).argmax(axis=1)
    is_free = contiguity == "free"
    used = CopiesInUse.of(tables, home, np.eye(kinds, dtype=bool)[home], is_free=is_free)

    seen = set()
    for step in range(60):
        node = int(draw.integers(count))
        present = draw.random(kinds) < 0.5
        present[draw.integers(kinds)] = True
        change = Change(node, int(draw.choice(np.flatnonzero(present))), present)
        after, rows = used.home.copy(), used.present.copy()
        after[node], rows[node] = change.home, present
        figures, whole = Copies(after, rows).figures(tables), Copies(after, rows).quotient(tables)
        can_run = bool(np.isfinite(tables.seconds[node, present]).all())
        is_allowed = can_run and bool((figures.kept <= tables.memory).all())
        is_allowed &= contiguity == "free" or nx.is_directed_acyclic_graph(whole)
        is_better = can_run and ranked(figures.load)[1] < ranked(used.load)[1] * (1 - ROUNDING)
        is_better &= bool(figures.load.max() <= used.load.max() * (1 + ROUNDING))
        seen.add((is_allowed, is_better))
        taken = used.take(change)

        assert taken == (is_allowed and is_better)
        if taken:
            assert used.load == pytest.approx(figures.load, rel=1e-9, abs=1e-12)
            anew = CopiesInUse.of(tables, after, rows, is_free=is_free)
            for name in ("home", "present", "_users", "_after", "_kept", "_live", "_held", "_flow"):
                np.testing.assert_array_equal(getattr(used, name), getattr(anew, name), err_msg=name)
        elif can_run and step % 3 == 0:  # go on from anywhere, budgets passed or not
            used = CopiesInUse.of(tables, after, rows, is_free=is_free)
    assert len(seen) > 1


def test_copies_of_a_large_graph_are_tried_without_a_look_at_all_of_it() -> None:
    """20,000 nodes on eight devices took 20 times as long with copies as without: each change was evaluated whole."""
    graph = nx.path_graph(20_000, create_using=nx.DiGraph)
    for node in graph:
        graph.nodes[node].update(seconds=1.0, output_seconds=0.1)
    graph.add_node("mask", seconds=0.1, output_seconds=2000.0, replicable=True)
    graph.add_edges_from(("mask", layer) for layer in range(0, 20_000, 50))
    problem = PlacementProblem(graph, [Device(f"d{place}") for place in range(8)])

    solution = solve_placement(problem)

    assert 7 == len(solution.replicas["mask"])
    assert solution.objective_value < 2501
