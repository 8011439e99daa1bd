"""What latencies start from is looked for in as many steps as the time budget has, whatever else is asked for."""

from __future__ import annotations

import random
from typing import Any

import attrs
import networkx as nx
import pytest

from fxpasses import Device
from fxpasses.partitioners.solvers import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers.contiguous.searching import STEPS_A_SECOND, Search
from fxpasses.partitioners.solvers.latency import solving

LITTLE = 0.05


def tight(seed: int, size: int = 160) -> PlacementProblem:
    """A graph of some width on devices that have 3 % more than it keeps; only an answer is wanted."""
    draw = random.Random(seed)
    graph: nx.DiGraph[int] = nx.DiGraph()
    for node in range(size):
        kept = draw.randrange(1, 600)
        graph.add_node(node, seconds=draw.uniform(0.5, 4), output_seconds=draw.uniform(0, 1), kept_bytes=kept)
        graph.add_edges_from((maker, node) for maker in range(max(0, node - 16), node - 7) if draw.random() < 0.2)
    need, shares = sum(kept for _node, kept in graph.nodes(data="kept_bytes")), (2, 3, 4, 6)
    devices = [Device(f"d{share}", int(1.03 * need * share / sum(shares))) for share in shares]
    return PlacementProblem(
        graph, devices, objective="latency", contiguity="convex", time_budget=LITTLE, effort=0.0, explain="never"
    )


@pytest.mark.parametrize("seed", range(2))
def test_convex_sets_that_are_told_little_take_few_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipelines to start from took as many steps as two seconds have."""
    taken, run = list[float](), Search.run

    def counted(search: Search, *args: Any, **kwargs: Any) -> Any:
        outcome = run(search, *args, **kwargs)
        taken.append(outcome.steps)
        return outcome

    monkeypatch.setattr(Search, "run", counted)
    found = solve_placement(tight(seed))

    assert found.objective_value > 0
    assert 0 < sum(taken) <= STEPS_A_SECOND


def test_starts_take_the_same_steps_whatever_the_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convex sets ask for pipelines with less effort; with fewer steps, too, they would be slower than these."""
    limits, solve = list[float](), solving.solve_pipeline

    def noted(problem: PlacementProblem, tables: Any, units: Any, seconds: float) -> Any:
        limits.append(seconds)
        return solve(problem, tables, units, seconds)

    monkeypatch.setattr(solving, "solve_pipeline", noted)
    problem = attrs.evolve(tight(0, 60), explain="proven")
    of_each = []
    for contiguity, effort in (("pipeline", None), ("pipeline", 0.0), ("convex", None), ("convex", 0.0)):
        limits.clear()
        solve_placement(attrs.evolve(problem, contiguity=contiguity, effort=effort))
        of_each.append(list(limits))

    assert of_each[0] == [solving.FIRST * LITTLE] * 2
    assert of_each[1:] == of_each[:1] * 3
