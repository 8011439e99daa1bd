"""Links that are slower one way than the other, against brute force over all assignments, for every solver."""

from __future__ import annotations

import networkx as nx
import placement_cases
import pytest
from fuzz import examples
from random_placements import every_placement, random_problem, solved, with_two_rates
from schedule_cases import answer_or_proof, check_schedule, optimum
from test_replication import cost, every_way, replicable_problem

from fxpasses.devices import Device, Link
from fxpasses.errors import InfeasibleError
from fxpasses.partitioners import PlacementProblem, solve_placement

RANDOM_GRAPHS = examples(60)


@pytest.mark.parametrize("contiguity", ["pipeline", "convex", "free"])
@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_loads_count_the_way_that_values_take(seed: int, contiguity: str) -> None:
    objective = ["throughput", "throughput", "memory"][seed % 3]
    problem = with_two_rates(random_problem(seed, objective=objective, contiguity=contiguity), seed)
    every = every_placement(problem)
    values = every.values(problem)
    if (solution := solved(problem, values)) is None:
        return

    row = every.row(problem, dict(solution.device_of))

    assert every.legal[row]
    assert pytest.approx(every.load[row].tolist()) == list(solution.load.values())
    assert pytest.approx(values[0], rel=1e-5) == solution.objective_value
    assert solution.bound <= values[0] * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_schedules_count_the_way_that_values_take(seed: int) -> None:
    given = placement_cases.random_problem(
        seed,
        [(6, 2), (5, 3), (4, 3)],
        objective="latency",
        contiguity=["free", "pipeline", "convex"][seed % 3],
        time_budget=0.1,
    )
    problem = with_two_rates(given, seed)
    best = optimum(problem)

    solution = answer_or_proof(problem, best)

    if solution is not None:
        check_schedule(problem, solution)
        assert pytest.approx(best) == solution.objective_value


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_copies_of_nodes_count_the_way_that_values_take(seed: int) -> None:
    given = replicable_problem(seed, contiguity=["free", "pipeline"][seed % 2], time_budget=0.1)
    problem = with_two_rates(given, seed)
    best = min(cost(problem, ways) for ways in every_way(problem))
    try:
        solution = solve_placement(problem)
    except InfeasibleError:
        assert problem.contiguity == "pipeline" or best == float("inf")
        return

    ways = {node: (home, (home, *solution.replicas.get(node, ()))) for node, home in solution.device_of.items()}

    assert pytest.approx(cost(problem, ways)) == solution.objective_value
    assert solution.bound <= best * (1 + 1e-9)
    assert pytest.approx(best) == solution.objective_value


def test_a_pipeline_goes_the_fast_way() -> None:
    """Two devices that only the links between them tell apart: the first part is where sending is fast."""
    graph = nx.path_graph(6, create_using=nx.DiGraph)
    for _node, facts in graph.nodes(data=True):
        facts |= {"seconds": 1.0, "output_bytes": 1000}
    links = [Link("a", "b", 1e3, 0.0), Link("b", "a", 1e6, 0.0)]

    solution = solve_placement(PlacementProblem(graph, [Device("a"), Device("b")], links))

    assert ("b", "a") == solution.order
    assert pytest.approx(3.001) == solution.objective_value
    assert solution.is_optimal
