"""Integer programs take about the seconds that the time budget gives them, counted in steps."""

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
from fxpasses.partitioners.solvers.proofs import programs
from fxpasses.partitioners.solvers.proofs.programs import ENTRY, LEAST, ROOT, Answer, Program, Taken


def problem(**options: object) -> PlacementProblem:
    """Long nodes with short ones between them, on three devices: a program proves what is the best."""
    graph = nx.path_graph(9, create_using=nx.DiGraph)
    for node in graph:
        graph.nodes[node].update(seconds=4.0 if node % 2 == 0 else 1.0, output_seconds=0.01)
    devices = [Device(name) for name in "abc"]
    return PlacementProblem(graph, devices, contiguity="free", **options)  # type: ignore[arg-type]  # what a test wants


def knapsack(items: int = 40) -> tuple[Program, Any]:
    """As much as fits into five sacks, of items that are hardly worth more than they weigh: far too many branches."""
    draw = np.random.default_rng(0)
    weight = draw.integers(100, 1000, (5, items)).astype(np.float64)
    program = Program()
    x = program.add(items, 0.0, 1.0, whole=True)
    program.at_most(weight.sum(axis=1) // 2, (weight, np.tile(x, (5, 1))))
    return program, (-(weight.mean(axis=0) + draw.integers(0, 100, items)), x)


def test_the_seconds_of_a_program_follow_the_effort_and_the_budget() -> None:
    assert 2.0 == problem(time_budget=0.5).program_seconds
    assert 2.5 == problem().program_seconds
    assert 0.5 == problem(time_budget=1.0, effort=0.2).program_seconds
    assert 0.0 == problem(effort=0).program_seconds


def test_more_seconds_bring_bound_and_answer_together() -> None:
    program, costs = knapsack()

    answers = [program.minimize(costs, seconds=seconds) for seconds in (0.05, 0.2, 1.0)]

    values = [float((costs[0] * answer.x).sum()) for answer in answers if answer.x is not None]
    assert 3 == len(values)
    assert sorted(values, reverse=True) == values
    assert all(answer.bound < values[-1] for answer in answers), "it is not solved in any of these"
    assert sorted({answer.bound for answer in answers}) == [answer.bound for answer in answers]


def test_a_program_that_was_stopped_says_the_same_again() -> None:
    program, costs = knapsack()

    first, second = (program.minimize(costs, seconds=0.2) for _ in range(2))

    assert first.bound == second.bound
    np.testing.assert_array_equal(first.x, second.x)


def test_iterations_of_the_simplex_method_count(monkeypatch: pytest.MonkeyPatch) -> None:
    program, costs = knapsack()
    stopped = program.minimize(costs, seconds=0.2)

    monkeypatch.setattr(programs, "ITERATION", 0.0)

    assert program.minimize(costs, seconds=0.2).bound > stopped.bound, "calls alone let it go on"


def test_iterations_are_read_from_what_highs_writes_down() -> None:
    taken = Taken(entries=1000)

    taken.read("        Nodes      |    B&B Tree     |\nSrc  Proc. InQueue | InLp Confl. | LpIters     Time\n\n")
    taken.read("   918 rows, 783 cols, 3830 nonzeros 0s\nSymmetry detection completed in 0.1s\n")
    assert 0 == taken.iterations
    taken.read("    0       0         0   0.00%   0.95         inf     inf      172      2      8       489     0.1s\n")
    assert 489 == taken.iterations
    taken.read(
        " L 8120     103        48   0.41%   0.98         1.2    9.1%    1037     10    454     1201k    66.7s\n"
    )
    assert 1_201_000 == taken.iterations


def test_a_program_that_the_seconds_do_not_pay_for_is_not_asked() -> None:
    program, costs = knapsack()
    least = LEAST * (ROOT + 200 * ENTRY)

    assert -np.inf == program.minimize(costs, seconds=least * 0.95).bound
    assert program.minimize(costs, seconds=least * 1.05).bound > -np.inf


def test_no_solution_is_told_from_no_answer() -> None:
    program = Program()
    x = program.add(2, 0.0, 1.0, whole=True)
    program.at_most(np.array([-3.0]), (-1.0, x[None]))

    answer = program.minimize((1.0, x), seconds=1.0)

    assert answer.x is None
    assert np.inf == answer.bound


def test_the_effort_follows_the_budget_unless_it_is_given() -> None:
    assert 1.0 == problem().program_effort
    assert 1.0 == problem(time_budget=0.5).program_effort
    assert 0.5 == problem(time_budget=0.25).program_effort
    assert 0.2 == problem(time_budget=0).program_effort
    assert 0.4 == attrs.evolve(problem(time_budget=0.25), time_budget=0.2).program_effort
    assert 0.7 == attrs.evolve(problem(effort=0.7), time_budget=0.1).program_effort


@pytest.mark.parametrize("objective", ["throughput", "latency"])
def test_pipelines_from_which_a_search_starts_are_not_proven(objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that proves the best pipeline takes as long as that of the answer, and proves nothing about it."""
    efforts = []

    def pipelines(similar: PlacementProblem, *arguments: Any) -> Any:
        efforts.append(similar.program_effort)
        return solve_pipeline(similar, *arguments)

    monkeypatch.setattr(latency_solving, "in_turn", lambda _problem, _tables, _units: None)  # it would be enough
    monkeypatch.setattr(free_solving if objective == "throughput" else latency_solving, "solve_pipeline", pipelines)

    solve_placement(problem(objective=objective, time_budget=0.4))

    assert efforts
    assert {0.0} == set(efforts)


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
    """Presolve, cuts and heuristics take time before the first branch."""
    asked: list[bool] = []
    minimize = Program.minimize

    def watched(self: Program, costs: Any, *, seconds: float) -> Answer:
        answer = minimize(self, costs, seconds=seconds)
        asked.append(answer.bound > -np.inf)
        return answer

    monkeypatch.setattr(Program, "minimize", watched)

    solution = solve_placement(problem(effort=effort))

    assert {is_asked} == set(asked)
    assert is_asked is solution.is_optimal


@pytest.mark.parametrize("weight", [1e16, np.inf])
def test_numbers_that_the_solver_does_not_take_prove_nothing(weight: float) -> None:
    program = Program()
    x = program.add(3, 0.0, 1.0, whole=True)
    program.at_most(np.array([-2.0]), (np.array([-1.0, -weight, -1.0]), x[None]))

    answer = program.minimize((1.0, x), seconds=1.0)

    assert answer.x is None
    assert -np.inf == answer.bound


def test_what_is_not_asked_says_nothing() -> None:
    program = Program()
    x = program.add(1, 0.0, 1.0, whole=True)
    program.at_most(1.0, (1.0, x.reshape(1, 1)))

    answer = program.minimize((1.0, x), seconds=0.0)

    assert answer.x is None
    assert -np.inf == answer.bound


def test_an_effort_that_is_no_share_is_refused() -> None:
    with pytest.raises(PlacementError) as failure:
        problem(effort=2)

    assert "The effort is a share from 0 to 1, not 2." == str(failure.value)
