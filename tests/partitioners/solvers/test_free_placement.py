"""Free placement: against brute force over all assignments, with budgets, pins, groups, unequal devices and links."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import attrs
import networkx as nx
import numpy as np
import pytest
from fuzz import examples
from hash_seeds import printed_under_two_hash_seeds
from placement_cases import every_placement, is_legal, loads, needs, random_problem

from benchmarks.placement_problems import transformer
from benchmarks.placement_workloads import mixed
from fxpasses.devices import Device, Link
from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers.contiguous import solving as contiguous
from fxpasses.partitioners.solvers.contiguous.searching import STEPS_A_SECOND
from fxpasses.partitioners.solvers.free import searching as free
from fxpasses.partitioners.solvers.free.coarsening import agreed, chopped, clustered
from fxpasses.partitioners.solvers.free.solving import FIRST
from fxpasses.partitioners.solvers.proofs.bounds import prices_of
from fxpasses.partitioners.solvers.proofs.choosing import distinct_sets
from fxpasses.partitioners.solvers.proofs.covering import covering_bound
from fxpasses.partitioners.solvers.proofs.packing import Packing
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of

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


@pytest.mark.parametrize(("layers", "memory"), [(22, 1.02), (36, 1.3)])
def test_the_first_pipeline_takes_the_steps_that_the_budget_allows(
    layers: int, memory: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is looked at around it, round after round, and where no cut of a few orders keeps the budgets."""
    spent, told = list[float](), contiguous.smallest

    def smallest(search, *given):
        spent.append(search.account.spent)
        return told(search, *given)

    monkeypatch.setattr(contiguous, "smallest", smallest)
    speeds = (1, 0.95, 0.85, 0.8, 0.7, 0.6, 0.55, 0.5, 0.45, 0.4)
    problem = mixed(transformer(layers), speeds, memory=memory, contiguity="free", time_budget=0.1)

    def taken(problem: PlacementProblem) -> float:
        spent.clear()
        assert is_legal(problem, solve_placement(problem).device_of)
        return spent[0] / STEPS_A_SECOND

    little, more = taken(problem), taken(attrs.evolve(problem, time_budget=0.2))

    assert 0.1 * FIRST < little < 0.1 * FIRST * 1.25  # a question that has begun is asked to its end
    assert 0.2 * FIRST < more < 0.2 * FIRST * 1.25
    assert taken(attrs.evolve(problem, contiguity="pipeline")) > more


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS // 3))
def test_the_search_alone_is_bounded_by_brute_force(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without integer programs the answer keeps every rule, is near the best, and its bound holds."""
    monkeypatch.setattr(free, "SMALL_PROGRAM", (0, 0, 0))
    problem = random_problem(seed, objective=["throughput", "memory"][seed % 2], contiguity="free", time_budget=0.0)
    best = min(cost(problem, placed) for placed in every_placement(problem))
    try:
        solution = solve_placement(problem)
    except PlacementError:
        assert math.isinf(best)
        return

    assert pytest.approx(cost(problem, solution.device_of)) == solution.objective_value
    assert solution.bound <= best * (1 + 1e-9) <= solution.objective_value * (1 + 1e-9) ** 2
    assert solution.objective_value <= best * 1.01


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS // 5))
def test_on_the_fewest_devices_the_busiest_has_the_least_to_do(seed: int) -> None:
    """Of all placements on the fewest devices none has a smaller largest load."""
    problem = random_problem(3 * seed + 1, objective="devices", contiguity="free", time_budget=0.1)
    every = [placed for placed in every_placement(problem) if is_legal(problem, placed)]
    if not every:
        return
    best = min((len(set(placed.values())), max(loads(problem, placed).values())) for placed in every)

    solution = solve_placement(problem)

    assert best == (solution.objective_value, pytest.approx(max(solution.load.values())))
    assert solution.is_optimal


def test_every_set_of_unequal_devices_is_tried_for_the_fewest() -> None:
    """Ten bytes and a node that only two slow, small devices run: the largest two devices are no answer."""
    graph = nx.DiGraph()
    for node in range(6):
        graph.add_node(node, seconds={f"d{i}": 1.0 + i for i in range(8)}, kept_bytes=10)
    graph.add_node("odd", seconds={"d6": 1.0, "d7": 1.0}, kept_bytes=5)
    sizes = [40, 40, 40, 39, 39, 39, 30, 25]
    devices = [Device(f"d{index}", size) for index, size in enumerate(sizes)]

    solution = solve_placement(PlacementProblem(graph, devices, objective="devices", contiguity="free", time_budget=0))

    assert 2 == solution.objective_value == solution.bound
    assert {"d0", "d6"} == set(solution.order)


def test_devices_that_are_alike_make_one_set() -> None:
    graph = nx.DiGraph([("a", "b")])
    nx.set_node_attributes(graph, 1.0, "seconds")
    devices = [*(Device(name, 8) for name in "abcd"), Device("x", 4)]
    problem = PlacementProblem(graph, devices, [Link("a", "b", 1e9, 1e-6)], contiguity="free")
    tables = tables_of(problem)

    sets = list(distinct_sets(tables, reduce_problem(problem, tables), 2))

    assert [(0, 1), (0, 2), (2, 3), (0, 4), (2, 4)] == sorted(sets, key=lambda chosen: (4 in chosen, chosen))


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS // 3))
def test_packing_units_that_are_alike_is_the_same_as_packing_each(seed: int) -> None:
    """The fullest device, the fewest devices and what is missing, with shared and live bytes."""
    draw = random.Random(seed)
    graph = nx.DiGraph()
    for node in range(7):
        facts = {"kept_bytes": draw.choice([4, 4, 9]), "live_bytes": draw.choice([0, 3]), "seconds": 1.0}
        graph.add_node(node, **facts, shared_bytes=draw.choice([{}, {"w": 6}]))
    devices = [Device(name, draw.choice([14, 22, 30])) for name in "abc"]
    model = model_of(PlacementProblem(graph, devices, contiguity="free"), "memory")
    homes = np.array(list(itertools.product(range(3), repeat=7)))
    needs = model.needs(homes)
    missing = max(0.0, float((needs - model.memory).max(axis=1).min()))
    packing = Packing.of(model, seconds=2)

    assert packing.model.size <= model.size
    assert pytest.approx(missing, abs=1e-4) == packing.missing_bytes().bound
    if missing:
        assert math.isinf(packing.fewest_devices().bound)
        return
    legal = homes[model.legal(homes)]
    fewest, least = packing.fewest_devices(), packing.least_bytes(below=math.inf)
    assert min(len(set(home)) for home in legal.tolist()) == fewest.bound == len(set(fewest.home.tolist()))
    assert pytest.approx(model.needs(legal).max(axis=1).min(), rel=1e-5) == least.bound
    assert model.legal(np.stack([fewest.home, least.home])).all()
    assert pytest.approx(least.bound, rel=1e-5) == model.needs(least.home[None]).max()


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_no_placement_is_below_the_covering_bound(seed: int) -> None:
    """Unequal devices, links and budgets: the bound is at most the best of all assignments."""
    problem = random_problem(seed, contiguity="free")
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    best = min(cost(problem, placed) for placed in every_placement(problem))
    if math.isinf(best):
        return
    prices = prices_of(units, tables.memory, "throughput")

    bound = covering_bound(LoadModel.of(units, tables), prices, 1.5 * best + 1.0, 1.0)

    assert bound <= best * (1 + 1e-9)


def test_the_covering_bound_knows_what_has_to_be_sent() -> None:
    """A chain of eight nodes on two devices, dear to cut: each device sends or receives one value."""
    graph = nx.path_graph(8, create_using=nx.DiGraph)
    for node in graph:
        graph.nodes[node].update(seconds=1.0, output_seconds=0.5)
    problem = PlacementProblem(graph, [Device("a"), Device("b")], contiguity="free")
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    prices = prices_of(units, tables.memory, "throughput")

    assert 4.0 == pytest.approx(prices.bound)
    assert 4.5 == covering_bound(LoadModel.of(units, tables), prices, 5.0, 1.0)


def test_a_graph_of_ten_thousand_nodes_is_no_worse_than_its_pipeline() -> None:
    """Free and convex placements of a large graph end, too, and keep the budgets."""
    graph = nx.path_graph(10_000, create_using=nx.DiGraph)
    for node in graph:
        graph.nodes[node].update(seconds=1.0 + node % 7, kept_bytes=1 + node % 3, output_seconds=0.1)
    problem = PlacementProblem(graph, [Device(name, 7000) for name in "abcd"])

    pipeline = solve_placement(problem)
    free, convex = (solve_placement(attrs.evolve(problem, contiguity=each)) for each in ("free", "convex"))

    for solution in (free, convex):
        assert solution.bound <= solution.objective_value <= pipeline.objective_value
        assert all(size <= 7000 for size in solution.kept_bytes.values())


def grid(rows: int, columns: int, **facts: object) -> nx.DiGraph:
    """A net of cells, each of which needs the one above and the one before; seconds vary."""
    graph = nx.DiGraph()
    for row, column in itertools.product(range(rows), range(columns)):
        seconds = 1.0 + (row * 7 + column * 3) % 5 / 4
        graph.add_node((row, column), seconds=seconds, kept_bytes=4, output_seconds=0.2, **facts)
    graph.add_edges_from(((r, c), (r + 1, c)) for r, c in itertools.product(range(rows - 1), range(columns)))
    graph.add_edges_from(((r, c), (r, c + 1)) for r, c in itertools.product(range(rows), range(columns - 1)))
    return graph


def model_of(problem: PlacementProblem, objective: str = "throughput") -> LoadModel:
    tables = tables_of(problem)
    return LoadModel.of(reduce_problem(problem, tables), tables, objective)


def test_free_beats_the_best_pipeline_where_operators_are_coarse() -> None:
    """Long nodes with short ones around them: a pipeline cannot fill the gaps, a free placement can."""
    graph = nx.path_graph(9, create_using=nx.DiGraph)
    for node in graph:
        graph.nodes[node].update(seconds=4.0 if node % 2 == 0 else 1.0, output_seconds=0.01)
    problem = PlacementProblem(graph, [Device("a"), Device("b"), Device("c")])

    pipeline = solve_placement(problem)
    free = solve_placement(attrs.evolve(problem, contiguity="free"))

    assert pipeline.is_optimal
    assert free.is_optimal
    assert 9.0 < pipeline.objective_value
    assert 9.0 > free.objective_value


@pytest.mark.parametrize("tight", [False, True])
def test_a_larger_graph_is_no_worse_than_its_pipeline_and_keeps_budgets(tight: bool) -> None:
    problem = PlacementProblem(
        grid(4, 12), [Device(name, 56 if tight else None) for name in "abcd"], contiguity="free", time_budget=0.3
    )

    solution = solve_placement(problem)

    assert is_legal(problem, solution.device_of)
    assert pytest.approx(max(loads(problem, solution.device_of).values())) == solution.objective_value
    assert solution.bound <= solution.objective_value * (1 + 1e-12)
    if not tight:
        assert solution.objective_value <= solve_placement(attrs.evolve(problem, contiguity="pipeline")).objective_value


def test_clusters_weigh_what_their_units_weigh() -> None:
    """Loads of clusters on devices are those of their units there, and no cluster is larger than it may be."""
    model = model_of(PlacementProblem(grid(4, 10), [Device("a"), Device("b")], contiguity="free"))

    cluster = clustered(model, 10, 8.0, np.random.default_rng(0))

    merged = model.merged(cluster)
    homes = np.random.default_rng(1).integers(0, 2, (2, merged.size))
    assert model.size > merged.size >= 10
    np.testing.assert_allclose(model.loads(homes[:, cluster]), merged.loads(homes))
    assert 8.0 >= merged.weight[:, 0].max()


def test_units_that_weigh_nothing_are_clustered_by_what_they_send() -> None:
    """However long that takes: a number that is too large for a float is a warning, which is an error here."""
    graph = grid(2, 5)
    for node in graph:
        graph.nodes[node].update(seconds=0.0, output_seconds=1e10, kept_bytes=0)
    model = model_of(PlacementProblem(graph, [Device("a"), Device("b")], contiguity="free"))

    cluster = clustered(model, 2, 8.0, np.random.default_rng(0))

    assert {0, 1} == set(cluster.tolist())


def test_a_sequence_is_chopped_where_little_crosses() -> None:
    """A chain with a cheap value after every fifth node."""
    graph = nx.path_graph(20, create_using=nx.DiGraph)
    for node in graph:
        graph.nodes[node].update(seconds=1.0, output_seconds=0.01 if node % 5 == 4 else 1.0)

    runs = chopped(model_of(PlacementProblem(graph, [Device("a"), Device("b")])), 4, np.random.default_rng(0))

    assert [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5 == runs.tolist()


def test_units_stay_together_that_two_assignments_keep_together() -> None:
    """Whatever the devices are called in each; units that no edge connects are apart all the same."""
    graph = nx.path_graph(8, create_using=nx.DiGraph)
    for node in graph:
        graph.nodes[node].update(seconds=1.0, output_seconds=1.0)
    model = model_of(PlacementProblem(graph, [Device("a"), Device("b")]))
    first, second = np.array([0, 0, 0, 1, 1, 1, 0, 0]), np.array([1, 1, 0, 0, 0, 0, 1, 1])

    for one, other in ((first, second), (second, first), (first, 1 - second)):
        assert [0, 0, 1, 2, 2, 2, 3, 3] == agreed(model, one, other).tolist()
    assert [0, 0, 0, 1, 1, 1, 2, 2] == agreed(model, first, first).tolist()


def test_nodes_on_a_cycle_stay_together_in_a_free_placement_too() -> None:
    graph = nx.DiGraph([("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")])
    for node in graph:
        graph.nodes[node]["seconds"] = 1.0

    solution = solve_placement(PlacementProblem(graph, [Device("x"), Device("y")], contiguity="free"))

    assert solution.device_of["b"] == solution.device_of["c"]


def test_backward_nodes_live_with_their_forward_ones() -> None:
    graph = nx.DiGraph([("a", "b"), ("b", "b'"), ("a", "b'"), ("b'", "a'"), ("a", "a'")])
    for node in graph:
        graph.nodes[node].update(seconds=1.0, output_seconds=0.1)
    for node in "ab":
        graph.nodes[f"{node}'"]["backward_of"] = node

    solution = solve_placement(PlacementProblem(graph, [Device("x"), Device("y")], contiguity="free"))

    assert solution.device_of["a"] == solution.device_of["a'"] != solution.device_of["b"] == solution.device_of["b'"]
    assert solution.is_optimal


@pytest.mark.parametrize(
    ("objective", "contiguity"), [("throughput", "free"), ("latency", "free"), ("latency", "pipeline")]
)
def test_too_little_memory_is_proven_with_bytes_and_node(objective: str, contiguity: str) -> None:
    graph = nx.path_graph(["n0", "n1", "n2"], create_using=nx.DiGraph)
    for node in graph:
        graph.nodes[node].update(seconds=1.0, kept_bytes=10)
    problem = PlacementProblem(graph, [Device("d0", 16), Device("d1", 16)], objective=objective, contiguity=contiguity)

    with pytest.raises(InfeasibleError) as caught:
        solve_placement(problem)

    kind = "placement" if contiguity == "free" else "pipeline"
    assert 4 == caught.value.missing_bytes
    assert f"No {kind} keeps every budget: the one that comes nearest needs 4 bytes more on 'd" in str(caught.value)
    assert "is the first node that does not fit." in str(caught.value)


@pytest.mark.parametrize(
    ("own", "missing"),
    [({"kept_bytes": 60}, 20), ({"shared_bytes": 60}, 20), ({"kept_bytes": 30, "live_bytes": 50}, 10)],
)
def test_the_first_node_that_does_not_fit_counts_all_bytes(own: dict[str, int], missing: int) -> None:
    """Two of three nodes have to share a device of 100 bytes, and the second of them is too much."""
    graph = nx.DiGraph()
    for node in ("w0", "w1", "w2"):
        graph.add_node(
            node, seconds=1.0, **{key: {node: size} if "shared" in key else size for key, size in own.items()}
        )

    with pytest.raises(InfeasibleError) as caught:
        solve_placement(PlacementProblem(graph, [Device("a", 100), Device("b", 100)], contiguity="free"))

    assert missing == caught.value.missing_bytes
    assert f"needs {missing} bytes more on 'a', where 'w1' is the first node that does not fit." in str(caught.value)


def test_units_that_are_alike_are_counted_where_nothing_fits() -> None:
    """Three hundred blocks of 7 bytes, of which 37 fit each of eight devices: one byte each is missing."""
    graph = nx.DiGraph()
    for node in range(300):
        graph.add_node(node, seconds=1.0, kept_bytes=7)
    problem = PlacementProblem(graph, [Device(f"d{i}", 265) for i in range(8)], contiguity="free", time_budget=0.0)

    with pytest.raises(InfeasibleError, match="the one that comes nearest needs 1 bytes more on 'd") as caught:
        solve_placement(problem)

    assert 1 == caught.value.missing_bytes


def test_a_search_that_finds_nothing_in_a_large_problem_says_what_to_raise() -> None:
    """Three hundred sizes that differ, and not a byte to spare: no integer program is asked for so many."""
    graph = nx.DiGraph()
    sizes = [1_000_003 + 7919 * node**2 % 999_983 for node in range(300)]
    for node, size in enumerate(sizes):
        graph.add_node(node, seconds=1.0, kept_bytes=size)
    devices = [Device(f"d{index}", sum(sizes) // 8 + 1) for index in range(8)]
    problem = PlacementProblem(graph, devices, contiguity="free", time_budget=0.0)

    with pytest.raises(PlacementError, match=r"raise time_budget \(it is 0 s\) or the memory of a device") as caught:
        solve_placement(problem)

    assert not isinstance(caught.value, InfeasibleError)


@pytest.mark.parametrize("contiguity", ["convex", "free"])
@pytest.mark.parametrize(
    ("options", "raised"),
    [
        ({"effort": 0}, "effort (it is 0)"),
        ({"effort": 0.001}, "effort (it is 0.001), time_budget (it is 1 s)"),
    ],
)
def test_without_effort_the_nearest_pipeline_and_the_effort_are_told(
    contiguity: str, options: dict[str, Any], raised: str
) -> None:
    """A program would prove that there is none; more time for the search would not."""
    graph = nx.path_graph(3, create_using=nx.DiGraph)
    for node in graph:
        graph.nodes[node].update(seconds=1.0, kept_bytes=60)
    problem = PlacementProblem(graph, [Device("a", 100), Device("b", 100)], contiguity=contiguity, **options)

    with pytest.raises(PlacementError) as caught:
        solve_placement(problem)
    with pytest.raises(PlacementError) as plain:
        solve_placement(attrs.evolve(problem, explain="proven"))

    rest = f"It is not proven that none exists; raise {raised} or the memory of a device."
    assert (
        "No placement that keeps every budget was found: the nearest pipeline needs 20 bytes more on 'a', where 1 is "
        f"the first node that does not fit. {rest}" == str(caught.value)
    )
    assert f"No placement that keeps every budget was found. {rest}" == str(plain.value)


def test_answers_are_the_same_in_every_process() -> None:
    """Another hash seed changes nothing in free placements, latencies and replicas."""
    code = (
        "import attrs\n"
        "from test_free_placement import *\n"
        "from test_replication import replicable_problem\n"
        "devices = [Device('a', 60), Device('b', 40)]\n"
        "problem = PlacementProblem(grid(3, 7), devices, contiguity='free', time_budget=0.1)\n"
        "for objective in ('throughput', 'latency'):\n"
        "    solution = solve_placement(attrs.evolve(problem, objective=objective))\n"
        "    print(list(solution.device_of.items()), solution.order, solution.bound, list(solution.schedule.items()))\n"
        "for seed in (0, 2):\n"
        "    solution = solve_placement(replicable_problem(seed, contiguity='free', time_budget=0.1))\n"
        "    print(solution.device_of, solution.replicas)\n"
    )

    answers = printed_under_two_hash_seeds(code, "tests/partitioners/solvers")

    assert answers[0] == answers[1]


def few_heavy_nodes(seed: int, count: int, kinds: int, seconds: float) -> PlacementProblem:
    draw = random.Random(seed)
    graph: nx.DiGraph[int] = nx.DiGraph()
    speeds = [draw.uniform(0.5, 4) for _ in range(kinds)]
    for node in range(count):
        taken = 10 ** draw.uniform(-3, 0)
        each = {f"d{device}": taken / speed for device, speed in enumerate(speeds)}
        graph.add_node(node, seconds=each, output_seconds=10 ** draw.uniform(-3, -0.5))
        graph.add_edges_from((draw.randrange(max(0, node - 12), node), node) for _ in range(2) if node)
    return PlacementProblem(graph, [Device(f"d{device}") for device in range(kinds)], time_budget=seconds)


@pytest.mark.parametrize("seed", [3, 6, 9, 24, 28, 35])
def test_a_free_placement_is_no_worse_with_time_than_without_nor_than_the_pipeline(seed: int) -> None:
    """The search began at another pipeline with time than without, and without at less than a pipeline takes then."""
    pipeline, free, with_time = (
        solve_placement(attrs.evolve(few_heavy_nodes(seed, 50, 6, seconds), contiguity=contiguity))
        for contiguity, seconds in (("pipeline", 0.0), ("free", 0.0), ("free", 0.3))
    )

    assert with_time.objective_value <= free.objective_value <= pipeline.objective_value


@pytest.mark.parametrize("seed", [19, 32, 39])
def test_a_free_placement_is_no_worse_than_the_pipeline_of_the_same_seconds(seed: int) -> None:
    """Few heavy operators on eight unequal devices: there the search for a pipeline finds more in little time."""
    problem = few_heavy_nodes(seed, 37, 8, 0.3)

    pipeline, free = (solve_placement(attrs.evolve(problem, contiguity=each)) for each in ("pipeline", "free"))

    assert free.objective_value <= pipeline.objective_value


@pytest.mark.parametrize("objective", ["throughput", "latency", "memory", "devices"])
@pytest.mark.parametrize("contiguity", ["pipeline", "convex", "free"])
def test_devices_come_in_the_order_in_which_values_flow(contiguity: str, objective: str) -> None:
    """Those of free placements came as they were given, and of convex ones by their first nodes."""
    graph = nx.DiGraph([(0, 2), (1, 2)])
    for node in graph:
        graph.nodes[node].update(seconds=1.0, kept_bytes=1, output_bytes=1)
    pinned = {0: "b", 1: "a", 2: "a"}

    solution = solve_placement(
        PlacementProblem(graph, [Device("a"), Device("b")], (), objective, contiguity=contiguity, pinned=pinned)
    )

    assert ("b", "a") == solution.order
