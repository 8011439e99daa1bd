"""Compiled annealing of free placements: its sums against the definition, brute force, seeds, and when it is loaded."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys

import attrs
import networkx as nx
import numpy as np
import pytest
from fuzz import examples
from numba.core.caching import FunctionCache
from placement_cases import every_placement, is_legal, loads, random_problem

from fxpasses.devices import Device, Link
from fxpasses.errors import PlacementError
from fxpasses.partitioners import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers.free import searching as free
from fxpasses.partitioners.solvers.free.annealing import Best
from fxpasses.partitioners.solvers.free.moves import Plan, cached
from fxpasses.partitioners.solvers.free.moving import Moves, search_moves
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of

RANDOM_GRAPHS = examples(60)


def model_of(problem: PlacementProblem) -> LoadModel:
    tables = tables_of(problem)
    return LoadModel.of(reduce_problem(problem, tables), tables)


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
    model = model_of(hard_problem(seed) if seed % 3 else random_problem(seed, contiguity="free"))
    if model.size < 2 or model.banned.all(axis=1).any():
        return
    moves, draw = Moves(model), np.random.default_rng(seed)

    best, state = moves.run(moves.anywhere(draw), Plan(1e5, 0.5, 0.05, 3, 0.1), draw)

    assert pytest.approx(model.loads(state.home[None])[0], abs=1e-9) == state.load
    assert pytest.approx(model.needs(state.home[None])[0]) == moves.needs(state)
    assert best is None or model.legal(best[None])[0]


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS // 2))
def test_compiled_annealing_alone_is_bounded_by_brute_force(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without integer programs and cycles the answer keeps every rule and is near the best."""
    monkeypatch.setattr(free, "SMALL_PROGRAM", (0, 0, 0))
    monkeypatch.setattr(free, "COMPILED_FROM", 0.0)
    monkeypatch.setattr(free, "COMPILING", -0.02)
    monkeypatch.setattr(free, "SEARCH_FIRST", 0.0)
    problem = random_problem(seed, objective="throughput", contiguity="free", time_budget=0.0)
    legal = [placed for placed in every_placement(problem) if is_legal(problem, placed)]
    best = min((max(loads(problem, placed).values()) for placed in legal), default=math.inf)
    try:
        solution = solve_placement(problem)
    except PlacementError:
        assert math.isinf(best)
        return

    assert is_legal(problem, solution.device_of)
    assert pytest.approx(max(loads(problem, solution.device_of).values())) == solution.objective_value
    assert best * (1 - 1e-9) <= solution.objective_value <= best * 1.01


def test_annealing_leaves_what_no_device_can_run_alone() -> None:
    """Clusters that no device can run are not annealed; the units are."""
    graph = nx.path_graph(12, create_using=nx.DiGraph)
    for node in graph:
        graph.add_node(node, seconds={"ab"[node % 2]: 1.0}, output_bytes=64)
    links = [Link("a", "b", 64.0, 0.25)]
    model = model_of(PlacementProblem(graph, [Device("a"), Device("b")], links, contiguity="free"))
    best = Best(math.inf, np.zeros(model.size, dtype=np.int64))

    search_moves(model, best, 0.0, 0.01, np.random.default_rng(0))

    assert math.isfinite(best.value)
    assert model.legal(best.home[None]).all()


def test_compiled_answers_do_not_depend_on_the_process() -> None:
    """Two processes with other hash seeds find the same assignment by the same draws."""
    code = (
        "import sys; sys.path.insert(0, 'tests/partitioners/solvers')\n"
        "import math, numpy as np\n"
        "from test_moves import hard_problem, model_of\n"
        "from fxpasses.partitioners.solvers.free.annealing import Best\n"
        "from fxpasses.partitioners.solvers.free.moving import search_moves\n"
        "for seed in range(4):\n"
        "    model = model_of(hard_problem(seed))\n"
        "    best = Best(math.inf, np.zeros(model.size, dtype=np.int64))\n"
        "    search_moves(model, best, 0.0, 0.01, np.random.default_rng(seed))\n"
        "    print(best.value.hex(), best.home.tolist())\n"
    )
    path = os.pathsep.join([*sys.path, "tests", "tests/partitioners/solvers"])

    answers = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout
        for env in (os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": path} for seed in ("1", "2"))
    ]

    assert answers[0] == answers[1]
    assert 4 == len(answers[0].splitlines())


def test_annealing_is_compiled_where_nothing_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only installation without a home for caches compiles in each process."""
    monkeypatch.setattr(FunctionCache._impl_class, "_locator_classes", [])

    twice = cached(lambda number: 2 * number)

    assert 8 == twice(4)


def test_numba_is_loaded_for_long_searches_only() -> None:
    """Neither `import fxpasses` nor a free placement by default loads it."""
    code = (
        "import sys, networkx as nx, fxpasses\n"
        "from fxpasses.devices import Device\n"
        "from fxpasses.partitioners import PlacementProblem, solve_placement\n"
        "graph = nx.path_graph(9, create_using=nx.DiGraph)\n"
        "nx.set_node_attributes(graph, 1.0, 'seconds')\n"
        "solve_placement(PlacementProblem(graph, [Device('a'), Device('b')], contiguity='free'))\n"
        "print('numba' in sys.modules)\n"
    )

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert "False" == said.strip()
