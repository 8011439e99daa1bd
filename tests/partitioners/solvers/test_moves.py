"""Compiled annealing of free placements: its sums against the definition, brute force, seeds, and when it is loaded."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import attrs
import networkx as nx
import numpy as np
import pytest
from fuzz import examples
from hash_seeds import printed_under_two_hash_seeds
from placement_cases import random_problem

from fxpasses.devices import Device, Link
from fxpasses.partitioners import PlacementProblem
from fxpasses.partitioners.solvers.annealing.annealer import Annealer, Best
from fxpasses.partitioners.solvers.annealing.graphs import Cooling
from fxpasses.partitioners.solvers.free.rounds import Rounds, rounds_of
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of

RANDOM_GRAPHS = examples(60)


def model_of(problem: PlacementProblem, objective: str = "throughput") -> LoadModel:
    tables = tables_of(problem)
    return LoadModel.of(reduce_problem(problem, tables), tables, objective)


def hard_problem(seed: int) -> PlacementProblem:
    """Links of all kinds, live and shared bytes; every other time some nodes are the backward of others."""
    problem = random_problem(seed, contiguity="free")
    names = [device.name for device in problem.devices]
    pairs = enumerate(itertools.combinations(names, 2))
    links = [Link(a, b, 10.0 ** (1 + (seed + index) % 3), 0.1 * (1 + index)) for index, (a, b) in pairs]
    graph = nx.DiGraph(problem.graph)
    for index, node in enumerate(problem.graph):
        graph.add_node(node, live_bytes=(seed * index) % 7, shared_bytes={"v": 20} if index % 2 else {"w": 21})
        if seed % 2 and index >= 4:
            graph.add_node(node, seconds=1.0, backward_of=f"n{index % 2}")
    return attrs.evolve(problem, graph=graph, links=links, colocate=[], pinned={}, forbidden={})


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_sums_after_many_moves_are_those_of_the_definition(seed: int) -> None:
    """Single moves, swaps and sets keep loads and bytes up to date, whatever links, blocks and budgets are."""
    problem = hard_problem(seed) if seed % 3 else random_problem(seed, contiguity="free")
    model = model_of(problem, "memory" if seed % 4 == 3 else "throughput")
    if model.size < 2 or model.banned.all(axis=1).any():
        return
    annealer, draw = Annealer(model), np.random.default_rng(seed)

    best, state = annealer.run(annealer.anywhere(draw), Cooling(1e5, 0.5, 0.05, 3), draw)

    assert pytest.approx(model.figures(state.home[None])[0], abs=1e-9) == state.load
    if annealer.graph.counts_bytes:
        assert pytest.approx(model.needs(state.home[None])[0]) == state.bytes + annealer.graph.sizes[state.top]
    assert best is None or model.legal(best[None])[0]


@pytest.mark.parametrize("seed", range(0, RANDOM_GRAPHS, 5))
def test_clusters_need_the_bytes_of_their_units(seed: int) -> None:
    """What units of a cluster share counts once, wherever clusters are; so do their loads."""
    model, draw = model_of(hard_problem(seed)), np.random.default_rng(seed)
    cluster = np.unique(draw.integers(0, 3, model.size), return_inverse=True)[1]

    merged = model.merged(cluster)

    homes = draw.integers(0, model.devices, (4, merged.size))
    np.testing.assert_array_equal(model.legal(homes[:, cluster]), merged.legal(homes))
    np.testing.assert_allclose(model.needs(homes[:, cluster]), merged.needs(homes))
    np.testing.assert_allclose(model.loads(homes[:, cluster]), merged.loads(homes))


def test_families_of_each_length_get_the_same_rounds() -> None:
    """Every other family is short, every other one of the rest has one round more, which is twice the steps."""
    assert [4, 5, 4, 6, 4, 5, 4, 7] == [rounds_of(index) for index in range(1, 9)]


def test_a_larger_budget_goes_on_where_a_smaller_one_stops() -> None:
    """With one seed more seconds never end at a worse assignment."""
    model = model_of(hard_problem(5))
    found = []
    for seconds in (0.001, 0.02, 0.05, 0.1):
        best = Best(math.inf, np.zeros(model.size, dtype=np.int64))
        Rounds(model, 0.0, np.random.default_rng(0)).search(best, seconds)
        found.append(best.value)

    assert sorted(found, reverse=True) == found


def test_annealing_leaves_what_no_device_can_run_alone() -> None:
    """Clusters that no device can run are not annealed; the units are."""
    graph = nx.path_graph(12, create_using=nx.DiGraph)
    for node in graph:
        graph.add_node(node, seconds={"ab"[node % 2]: 1.0}, output_bytes=64)
    links = [Link("a", "b", 64.0, 0.25)]
    model = model_of(PlacementProblem(graph, [Device("a"), Device("b")], links, contiguity="free"))
    best = Best(math.inf, np.zeros(model.size, dtype=np.int64))

    Rounds(model, 0.0, np.random.default_rng(0)).search(best, 0.05)

    assert math.isfinite(best.value)
    assert model.legal(best.home[None]).all()


def test_compiled_answers_do_not_depend_on_the_process() -> None:
    """Two processes with other hash seeds find the same assignment by the same draws."""
    code = (
        "import math, numpy as np\n"
        "from test_moves import hard_problem, model_of\n"
        "from fxpasses.partitioners.solvers.annealing.annealer import Annealer, Best\n"
        "from fxpasses.partitioners.solvers.free.rounds import Rounds\n"
        "for seed in range(4):\n"
        "    model = model_of(hard_problem(seed))\n"
        "    best = Best(math.inf, np.zeros(model.size, dtype=np.int64))\n"
        "    Rounds(model, 0.0, np.random.default_rng(seed)).search(best, 0.02)\n"
        "    print(best.value.hex(), best.home.tolist())\n"
    )

    answers = printed_under_two_hash_seeds(code, "tests/partitioners/solvers")

    assert answers[0] == answers[1]
    assert 4 == len(answers[0].splitlines())


def test_numba_is_loaded_for_searches_only() -> None:
    """Not for `import fxpasses`, nor for a free placement that the integer program proves, nor for a small pipeline."""
    code = (
        "import sys, networkx as nx, fxpasses\n"
        "from fxpasses.devices import Device\n"
        "from fxpasses.partitioners import PlacementProblem, solve_placement\n"
        "graph = nx.path_graph(9, create_using=nx.DiGraph)\n"
        "nx.set_node_attributes(graph, 1.0, 'seconds')\n"
        "for contiguity in ('free', 'pipeline'):\n"
        "    solve_placement(PlacementProblem(graph, [Device('a'), Device('b')], contiguity=contiguity))\n"
        "print('numba' in sys.modules)\n"
    )

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert "False" == said.strip()
