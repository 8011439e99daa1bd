"""Windows narrowed by what crosses: no cut of any pipeline under a threshold is lost; real graphs get certificates."""

from __future__ import annotations

import random
from typing import Any

import attrs
import networkx as nx
import numpy as np
import pytest
from fuzz import examples
from random_placements import EveryPlacement, every_placement, random_problem

from fxpasses.devices import Device, Link, fake_devices
from fxpasses.partitioners import PlacementProblem, placement_problem, solve_placement
from fxpasses.partitioners.solvers.contiguous import certifying
from fxpasses.partitioners.solvers.contiguous import solving as pipelines
from fxpasses.partitioners.solvers.contiguous.cutting import unpack
from fxpasses.partitioners.solvers.contiguous.searching import Search
from fxpasses.partitioners.solvers.proofs.bounds import prices_of
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of

RANDOM_GRAPHS = examples(120)


def sending_problem(seed: int) -> PlacementProblem:
    """What crosses matters as much as what is computed; links are alike, devices are not always."""
    draw = random.Random(seed)
    problem = random_problem(seed, training=seed % 4 == 0, objective="throughput")
    graph = problem.graph.copy()
    for _node, facts in graph.nodes(data=True):
        seconds = draw.uniform(0.5, 3.0)
        if isinstance(facts["seconds"], dict):
            seconds = {name: seconds * draw.choice([1.0, 2.0]) for name in facts["seconds"]}
        facts |= {"seconds": seconds, "output_bytes": 0, "output_seconds": draw.choice([0.3, 1.0, 2.0])}
    return attrs.evolve(problem, graph=graph, time_budget=10.0)


def narrowed(problem: PlacementProblem) -> Search:
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    return Search.of(problem, tables, units, prices_of(units, tables.memory, "throughput")).narrowed()


def cuts(problem: PlacementProblem, search: Search, every: EveryPlacement, row: int) -> set[tuple[bool, ...]]:
    """The sets of units behind each device of a pipeline, in some order in which no value flows back."""
    home = every.home[row]
    unit_of = search.units.unit_of
    device = {int(unit): int(home[node]) for node, unit in enumerate(unit_of.tolist())}
    quotient: nx.DiGraph[int] = nx.DiGraph()
    quotient.add_nodes_from(device.values())
    before = [(device[a], device[b]) for a, b in search.units.before.tolist()]
    quotient.add_edges_from((a, b) for a, b in before if a != b)
    found, inside = set(), np.zeros(search.units.size, dtype=bool)
    for each in nx.lexicographical_topological_sort(quotient):
        inside = inside | np.array([device[unit] == each for unit in range(search.units.size)])
        found.add(tuple(inside.tolist()))
    return found


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_no_cut_of_a_pipeline_under_the_threshold_is_lost(seed: int) -> None:
    """For thresholds just above the optimum and far above it, over all assignments; below it nothing has to be left."""
    problem = sending_problem(seed)
    every = every_placement(problem)
    values = every.values(problem)
    if not len(values):
        return
    search = narrowed(problem)
    assert search.narrowing is not None
    load = every.load.max(axis=1)

    for below in (values[0] * (1 + 1e-6), values[0] * 1.2, values[0] * 2):
        words = certifying.every_ideal(search, below, 100_000)
        assert words is not None
        kept = set(map(tuple, unpack(words, search.units.size).tolist()))
        rows = np.flatnonzero(every.legal & every.pipeline & (load < below))[:200]
        for row in rows.tolist():
            assert cuts(problem, search, every, row) <= kept


@pytest.mark.parametrize("many", [-1, 5000])
@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS // 3))
def test_answers_found_in_narrowed_windows_are_those_of_brute_force(
    seed: int, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is known before: the threshold grows from the bound on until the best pipeline is found."""
    monkeypatch.setattr(certifying, "MANY", many)
    monkeypatch.setattr(pipelines, "_first_answer", lambda *_given: None)
    problem = sending_problem(seed)
    values = every_placement(problem).values(problem)
    if not len(values):
        return

    solution = solve_placement(problem)

    assert pytest.approx(values[0]) == solution.objective_value
    assert solution.is_optimal


def branching_chain(blocks: int) -> PlacementProblem:
    """Blocks of three branches of five operators, as the heads of an attention; a mask that all blocks use."""
    graph: Any = nx.DiGraph()
    graph.add_node("mask", seconds=1.0, output_seconds=1.0)
    last = "start"
    graph.add_node(last, seconds=1.0, output_seconds=1.0)
    for block in range(blocks):
        end = f"{block}.end"
        graph.add_node(end, seconds=3.0, output_seconds=1.0)
        for branch in range(3):
            nodes = [f"{block}.{branch}.{place}" for place in range(5)]
            graph.add_nodes_from(nodes, seconds=1.0 + 0.01 * block, output_seconds=1.0)
            nx.add_path(graph, [last, *nodes, end])
        graph.add_edge("mask", end)
        last = end
    names = ["a", "b", "c", "d"]
    return PlacementProblem(graph, [Device(name) for name in names], [Link("a", "b")], time_budget=1.0)


def test_ideals_that_cut_branches_are_left_out_while_they_are_made() -> None:
    """A block of three branches has more than two hundred ideals; between blocks one value crosses beside the mask."""
    problem = branching_chain(12)
    search, solution = narrowed(problem), solve_placement(problem)

    plain = certifying.every_ideal(attrs.evolve(search, narrowing=None), solution.objective_value, 100_000)
    left = certifying.every_ideal(search, solution.objective_value, 100_000)

    assert plain is not None
    assert left is not None
    assert len(left) < len(plain) / 20
    assert solution.is_optimal


def test_exported_transformers_of_hundreds_of_operators_get_their_certificate() -> None:
    """Masks and rotary tables are computed beside the first layer; windows of prices alone hold millions of ideals."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from fxpasses import place
    from fxpasses.devices import Topology

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 128}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=4, use_cache=False, **sizes)).eval()
    planned = place(model, (), {"input_ids": torch.arange(32).reshape(2, 16)}, devices=fake_devices(4), time_budget=0)
    problem = placement_problem(planned.prepared.graph_module, Topology.of(fake_devices(4)), objective="throughput")

    assert solve_placement(problem).is_optimal
