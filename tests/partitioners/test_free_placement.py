"""Free placement: against brute force over all assignments, with budgets, pins, groups, unequal devices and links."""

from __future__ import annotations

import math

import pytest
from fuzz import examples
from placement_cases import every_placement, is_legal, loads, needs, random_problem

from fxpasses.errors import InfeasibleError
from fxpasses.partitioners import solve_placement

RANDOM_GRAPHS = examples(100)


def cost(problem, placed):
    if not is_legal(problem, placed):
        return math.inf
    if problem.objective == "memory":
        return max(needs(problem, placed).values())
    return len(set(placed.values())) if problem.objective == "devices" else max(loads(problem, placed).values())


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_brute_force_finds_nothing_better_than_a_free_placement(seed: int) -> None:
    """The answer keeps every rule, its figures are right, and it is the proven optimum."""
    objective = ["throughput", "throughput", "memory", "devices"][seed % 4]
    problem = random_problem(seed, objective=objective, contiguity="free", time_budget=0.0)
    best = min(cost(problem, placed) for placed in every_placement(problem))
    if math.isinf(best):
        with pytest.raises(InfeasibleError):
            solve_placement(problem)
        return

    solution = solve_placement(problem)

    assert pytest.approx(cost(problem, solution.device_of)) == solution.objective_value
    assert pytest.approx(best) == solution.objective_value
    assert solution.is_optimal
