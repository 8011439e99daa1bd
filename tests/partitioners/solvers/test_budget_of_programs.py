"""Integer programs take steps that follow the time budget: all by default, none where the root would not fit."""

from __future__ import annotations

from typing import Any

import attrs
import networkx as nx
import numpy as np
import pytest

from fxpasses import Device
from fxpasses.errors import PlacementError
from fxpasses.partitioners import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers.contiguous.solving import solve_pipeline
from fxpasses.partitioners.solvers.free import solving as free_solving
from fxpasses.partitioners.solvers.latency import solving as latency_solving
from fxpasses.partitioners.solvers.proofs.programs import Answer, Program, nodes_within


def problem(**options: object) -> PlacementProblem:
    """Long nodes with short ones between them, on three devices: a program proves what is the best."""
    graph = nx.path_graph(9, create_using=nx.DiGraph)
    for node in graph:
        graph.nodes[node].update(seconds=4.0 if node % 2 == 0 else 1.0, output_seconds=0.01)
    devices = [Device(name) for name in "abc"]
    return PlacementProblem(graph, devices, contiguity="free", **options)  # type: ignore[arg-type]  # what a test wants


def test_steps_grow_with_the_effort_and_are_all_there_for_all_of_it() -> None:
    efforts = [0.0, 0.05, 0.1, 0.2, 0.5, 0.9, 1.0]

    steps = [nodes_within(effort, 1000.0) for effort in efforts]

    assert [None, None, 10, 120, 450, 890, 1000] == steps


def test_the_effort_follows_the_budget_unless_it_is_given() -> None:
    assert 1.0 == problem().program_effort
    assert 1.0 == problem(time_budget=0.5).program_effort
    assert 0.5 == problem(time_budget=0.25).program_effort
    assert 0.05 == problem(time_budget=0).program_effort
    assert 0.2 == attrs.evolve(problem(time_budget=0.25), time_budget=0.1).program_effort
    assert 0.7 == attrs.evolve(problem(effort=0.7), time_budget=0.1).program_effort


@pytest.mark.parametrize("objective", ["throughput", "latency"])
def test_searches_inside_of_a_search_have_its_effort(objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have a part of its time, and give their programs as much as it does."""
    efforts = []

    def pipelines(similar: PlacementProblem, *arguments: Any) -> Any:
        efforts.append(similar.program_effort)
        return solve_pipeline(similar, *arguments)

    monkeypatch.setattr(latency_solving, "in_turn", lambda _problem, _tables: None)  # it would be enough
    monkeypatch.setattr(free_solving if objective == "throughput" else latency_solving, "solve_pipeline", pipelines)

    solve_placement(problem(objective=objective, time_budget=0.4))

    assert efforts
    assert set(efforts) == {0.8}


def test_a_larger_budget_gives_no_worse_answer_and_no_worse_bound() -> None:
    answers = [solve_placement(problem(time_budget=budget)) for budget in (0.0, 0.02, 0.1, 0.5)]

    values = [answer.objective_value for answer in answers]
    bounds = [answer.bound for answer in answers]
    assert sorted(values, reverse=True) == values
    assert sorted(bounds) == bounds


@pytest.mark.parametrize(("effort", "is_asked"), [(0.0, False), (0.1, True), (1.0, True)])
def test_a_program_is_asked_where_the_effort_pays_for_it(
    effort: float, is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its root alone takes as long as many steps."""
    asked: list[bool] = []
    minimize = Program.minimize

    def watched(self: Program, costs: Any, *, nodes: int | None) -> Answer:
        asked.append(nodes is not None)
        return minimize(self, costs, nodes=nodes)

    monkeypatch.setattr(Program, "minimize", watched)

    solution = solve_placement(problem(effort=effort))

    assert {is_asked} == set(asked)
    assert is_asked is solution.is_optimal


def test_what_is_not_asked_says_nothing() -> None:
    program = Program()
    x = program.add(1, 0.0, 1.0, whole=True)
    program.at_most(1.0, (1.0, x.reshape(1, 1)))

    answer = program.minimize((1.0, x), nodes=None)

    assert answer.x is None
    assert -np.inf == answer.bound


def test_an_effort_that_is_no_share_is_refused() -> None:
    with pytest.raises(PlacementError) as failure:
        problem(effort=2)

    assert "The effort is a share from 0 to 1, not 2." == str(failure.value)
