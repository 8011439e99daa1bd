"""Placement solvers: against brute force over all assignments, with budgets, pins, groups and unequal devices."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import attrs
import networkx as nx
import numpy as np
import pytest
from hash_seeds import printed_under_two_hash_seeds
from test_refining import search_of
from threadpoolctl import threadpool_info, threadpool_limits

from fxpasses.devices import Device, Link
from fxpasses.errors import InfeasibleError, InputError, PlacementError
from fxpasses.partitioners import PlacementProblem, PlacementSolution, solve_placement
from fxpasses.partitioners.solvers import solving
from fxpasses.partitioners.solvers.contiguous.certifying import every_ideal
from fxpasses.partitioners.solvers.contiguous.ideals.classes import device_classes
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import Window, all_ideals, crossed, prefixes, unpack
from fxpasses.partitioners.solvers.contiguous.ideals.orders import linear_orders, orders_between
from fxpasses.partitioners.solvers.contiguous.ideals.states import States
from fxpasses.partitioners.solvers.contiguous.linked.islands import between_devices
from fxpasses.partitioners.solvers.contiguous.tables import dynamic_program
from fxpasses.partitioners.solvers.contiguous.tables.dynamic_program import Measure, PipelineSearch
from fxpasses.partitioners.solvers.one_thread import one_thread
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of


def layers(count: int, width: int = 4, *, seed: int = 0) -> nx.DiGraph[Any]:
    """A transformer-like layer graph: per layer, branches that are joined, and a residual edge around them."""
    draw = random.Random(seed)
    graph: nx.DiGraph[Any] = nx.DiGraph()

    def node(name: str, *needs: str) -> str:
        seconds, size = draw.uniform(0.5, 2.0) * 1e-3, draw.randint(1, 40) << 20
        graph.add_node(name, seconds=seconds, kept_bytes=size, output_bytes=draw.randint(1, 4) << 18)
        graph.add_edges_from((need, name) for need in needs)
        return name

    last = node("embed")
    for layer in range(count):
        branches = [node(f"{layer}.branch{branch}", last) for branch in range(width)]
        last = node(f"{layer}.join", *branches, last)
    return graph


def devices(count: int, memory: int | None = None) -> list[Device]:
    return [Device(f"d{index}", memory) for index in range(count)]


@pytest.mark.parametrize("kinds", [2, 4, 8])
def test_a_layer_graph_of_a_hundred_nodes_is_solved_with_a_certificate(kinds: int) -> None:
    problem = PlacementProblem(layers(20), devices(kinds))

    solution = solve_placement(problem)

    assert solution.is_optimal
    ends = ((solution.device_of[a], solution.device_of[b]) for a, b in problem.graph.edges)
    assert all(solution.order.index(a) <= solution.order.index(b) for a, b in ends)


def test_unequal_devices_get_unequal_shares() -> None:
    """A device of four times the speed gets more work, and each keeps its budget."""
    graph = layers(12)
    for _node, facts in graph.nodes(data=True):
        facts["seconds"] = {"slow": facts["seconds"], "fast": facts["seconds"] / 4}
    total = sum(facts["kept_bytes"] for _node, facts in graph.nodes(data=True))

    solution = solve_placement(PlacementProblem(graph, [Device("slow", total // 2), Device("fast", total * 3 // 4)]))

    assert solution.is_optimal
    assert len(solution.nodes("fast")) > len(solution.nodes("slow"))
    assert solution.kept_bytes["slow"] <= total // 2
    assert solution.kept_bytes["fast"] <= total * 3 // 4


def test_the_default_mode_takes_large_graphs() -> None:
    """Thousands of nodes in chains on 8 devices come near the compute bound without the exact search."""
    graph = layers(1000, width=2)

    solution = solve_placement(PlacementProblem(graph, devices(8), time_budget=0))

    assert 0.005 > solution.gap


def test_an_answer_is_the_same_each_time() -> None:
    """Another process, with another hash seed, gives the same answer for the same problem."""
    code = (
        "from random_placements import random_problem\n"
        "from fxpasses.partitioners import solve_placement\n"
        "print([list(solve_placement(random_problem(seed)).device_of.items()) for seed in (0, 2, 3, 4)])\n"
    )

    answers = printed_under_two_hash_seeds(code)

    assert answers[0] == answers[1]


def chain(*seconds: float, kept: int = 10, output: float = 0.0) -> nx.DiGraph[Any]:
    graph = nx.path_graph([f"n{index}" for index in range(len(seconds))], create_using=nx.DiGraph)
    for node, taken in zip(graph, seconds, strict=True):
        graph.nodes[node].update(seconds=taken, kept_bytes=kept, output_seconds=output)
    return graph


def test_a_value_is_charged_once_to_its_device_and_once_to_each_that_takes_it() -> None:
    graph = nx.DiGraph([("x", "y1"), ("x", "y2")])
    for node, seconds in {"x": 9.0, "y1": 5.0, "y2": 5.0}.items():
        graph.nodes[node].update(seconds=seconds, output_seconds=1.0)

    solution = solve_placement(PlacementProblem(graph, devices(2)))

    assert {"x": "d0", "y1": "d1", "y2": "d1"} == solution.device_of
    assert {"d0": 10.0, "d1": 11.0} == solution.load
    assert {"d0": 9.0, "d1": 10.0} == solution.compute
    assert ("d0", "d1") == solution.order


def test_the_memory_objective_spreads_bytes_and_not_seconds() -> None:
    solution = solve_placement(PlacementProblem(chain(9.0, 1.0, 1.0, 1.0), devices(2), objective="memory"))

    assert 20 == solution.objective_value == solution.bound
    assert {"d0": 20, "d1": 20} == solution.kept_bytes


def test_nodes_on_a_cycle_stay_together() -> None:
    graph = chain(1.0, 1.0, 1.0, 1.0)
    graph.add_edge("n2", "n1")

    solution = solve_placement(PlacementProblem(graph, devices(4)))

    assert solution.device_of["n1"] == solution.device_of["n2"]
    assert 2.0 == solution.objective_value


def test_a_node_between_two_of_one_group_joins_them() -> None:
    solution = solve_placement(PlacementProblem(chain(1.0, 1.0, 1.0), devices(3), colocate=[["n0", "n2"]]))

    assert 1 == len(set(solution.device_of.values()))


def test_units_that_cost_nothing_follow_their_one_neighbour() -> None:
    graph = chain(1.0, 1.0)
    graph.add_edge("n0", "view")
    problem = PlacementProblem(graph, devices(2))

    units = reduce_problem(problem, tables_of(problem))

    assert ((0, 2), (1,)) == units.members


def blas_threads() -> list[int]:
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_products_of_matrices_are_made_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numpy's threads wait for each other on a busy machine; after the search there are as many as before."""
    seen = []

    def watched(*args: Any) -> Any:
        seen.append(blas_threads())
        return reduce_problem(*args)

    solve_placement(PlacementProblem(layers(4), devices(2)))  # loads all libraries that have threads
    monkeypatch.setattr(solving, "reduce_problem", watched)
    with threadpool_limits(limits=2, user_api="blas"):
        before = blas_threads()
        solve_placement(PlacementProblem(layers(4), devices(2)))

        assert blas_threads() == before
    assert seen
    assert all(count == 1 for counts in seen for count in counts)


def test_searches_that_overlap_share_the_one_thread_and_the_last_gives_it_back() -> None:
    """The first one ends while the second still runs: products stay on one thread until that has ended, too."""
    with threadpool_limits(limits=2, user_api="blas"):
        before = blas_threads()
        first, second = one_thread(), one_thread()
        first.__enter__()
        second.__enter__()

        first.__exit__(None, None, None)
        assert set(blas_threads()) == {1}
        second.__exit__(None, None, None)

        assert before == blas_threads()
    assert 2 in before


def test_a_graph_without_nodes_is_placed() -> None:
    solution = solve_placement(PlacementProblem(nx.DiGraph(), devices(2)))

    assert ({}, (), 0.0) == (solution.device_of, solution.order, solution.objective_value)


@pytest.mark.parametrize(
    ("options", "memory", "missing", "message"),
    [
        ({}, 5, 5, "'n0' needs 10 bytes, and no device that may run it has more than 5: 5 bytes are missing."),
        (
            {"colocate": [["n0", "n1"]]},
            15,
            5,
            "'n0', 'n1' together need 20 bytes, and no device that may run them has more than 15: 5 bytes are missing.",
        ),
        (
            {},
            12,
            6,
            "The nodes need 30 bytes, and the devices have 24 together: 6 bytes are missing. 'n2' is the first node "
            "that does not fit.",
        ),
        (
            {},
            16,
            4,
            "No pipeline keeps every budget: the one that comes nearest needs 4 bytes more on 'd1', where 'n2' is the "
            "first node that does not fit.",
        ),
        (
            {"forbidden": {"n1": ["d0", "d1"]}},
            None,
            None,
            "'n1' may run nowhere (forbidden on d0, d1): give it a device.",
        ),
        (
            {"pinned": {"n0": "d0", "n1": "d1", "n2": "d0"}},
            None,
            None,
            "'n0', 'n1', 'n2' have to share a device, by groups or because values may not flow back, and none may run "
            "all: 'n0' may run on d0 only (pinned to d0), 'n1' may run on d1 only (pinned to d1), 'n2' may run on d0 "
            "only (pinned to d0). Let go of a pin, of a forbidden device or of a group, or let values flow back: "
            'contiguity="free".',
        ),
        (
            {"forbidden": {"n0": ["d1"], "n1": ["d0"], "n2": ["d1"]}},
            None,
            None,
            "'n0', 'n1', 'n2' have to share a device, by groups or because values may not flow back, and none may run "
            "all: 'n0' may run on d0 only (forbidden on d1), 'n1' may run on d1 only (forbidden on d0), 'n2' may run "
            "on d0 only (forbidden on d1). Let go of a pin, of a forbidden device or of a group, or let values flow "
            'back: contiguity="free".',
        ),
    ],
)
def test_no_placement_is_an_error_that_says_how_many_bytes_and_which_node(
    options: dict[str, Any], memory: int | None, missing: int | None, message: str
) -> None:
    with pytest.raises(InfeasibleError) as caught:
        solve_placement(PlacementProblem(chain(1.0, 1.0, 1.0), devices(2, memory), **options))

    assert message == str(caught.value)
    assert missing == caught.value.missing_bytes


@pytest.mark.parametrize("contiguity", ["pipeline", "free"])
def test_all_devices_that_lack_bytes_are_named(contiguity: str) -> None:
    """Whoever gave the one that lacks most what it lacks would be refused again."""
    graph = nx.path_graph(6, create_using=nx.DiGraph)
    for node in graph:
        graph.nodes[node].update(seconds=1.0, kept_bytes=10)
    devices = [Device(f"d{index}", size) for index, size in enumerate((19, 19, 19, 3))]

    wanted = r"needs 1 bytes more on 'd0', where .* fit; also 2 bytes more on 'd1', 'd2'\."
    with pytest.raises(InfeasibleError, match=wanted):
        solve_placement(PlacementProblem(graph, devices, contiguity=contiguity))


@pytest.mark.parametrize("contiguity", ["pipeline", "free"])
@pytest.mark.parametrize("objective", ["throughput", "latency", "memory", "devices"])
def test_a_seed_and_a_budget_may_be_numbers_of_numpy(objective: str, contiguity: str) -> None:
    graph = nx.path_graph(4, create_using=nx.DiGraph)
    nx.set_node_attributes(graph, 1.0, "seconds")
    options = {"objective": objective, "contiguity": contiguity}
    plain = solve_placement(PlacementProblem(graph, devices(2), seed=3, time_budget=0.5, **options))

    numbers: dict[str, Any] = {"seed": np.int64(3), "time_budget": np.float32(0.5)}
    assert plain == solve_placement(PlacementProblem(graph, devices(2), **numbers, **options))


@pytest.mark.parametrize(
    ("contiguity", "message"),
    [
        (
            "pipeline",
            "No pipeline exists, however large the memories: what the devices can run, pins and forbidden devices "
            "would have values flow back to a device that has finished. Let go of a pin or of a forbidden device, or "
            "ask for a free placement.",
        ),
        (
            "convex",
            "No convex placement exists, however large the memories: with what the devices can run, pins and forbidden "
            "devices, some path would leave a device and come back. Let go of a pin or of a forbidden device, or "
            "ask for a free placement.",
        ),
    ],
)
def test_devices_that_can_run_nodes_only_in_turns_are_told_whatever_their_memory(contiguity: str, message: str) -> None:
    """A chain that two devices and two others can run in turns has five turns, and each device takes one."""
    first, second = ["d0", "d1"], ["d2", "d3"]
    forbidden = {"n0": second, "n1": first, "n2": second, "n3": first, "n4": second}

    with pytest.raises(InfeasibleError) as caught:
        solve_placement(PlacementProblem(chain(*[1.0] * 5), devices(4), forbidden=forbidden, contiguity=contiguity))

    assert message == str(caught.value)


def test_a_search_that_stopped_early_does_not_claim_that_nothing_exists() -> None:
    """One of 25 nodes fits a device, there are 20: too many ideals for a proof, but the nearest answer is told."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from((f"n{index}" for index in range(25)), kept_bytes=3)

    with pytest.raises(PlacementError) as caught:
        solve_placement(PlacementProblem(graph, devices(20, 5), time_budget=0))

    assert not isinstance(caught.value, InfeasibleError)
    assert (
        "No placement that keeps every budget was found: the nearest one needs 1 bytes more on 'd0', where 'n1' is the "
        "first node that does not fit; also 11 bytes more on 'd1', 'd2', 'd3' and 8 more. It is not proven that none "
        "exists; raise time_budget (it is 0 s) or the memory "
        "of a device." == str(caught.value)
    )


@pytest.mark.parametrize("contiguity", ["pipeline", "convex", "free"])
@pytest.mark.parametrize("objective", ["throughput", "latency", "memory", "devices"])
def test_a_proof_is_told_as_one_also_where_nobody_asks_what_is_missing(objective: str, contiguity: str) -> None:
    """Three nodes of 10 bytes on two devices of 16; whoever asks again only wants to know whether to go on."""
    problem = PlacementProblem(chain(1.0, 1.0, 1.0), devices(2, 16), objective=objective, contiguity=contiguity)
    errors = {}
    for explain in ("always", "proven", "never"):
        with pytest.raises(PlacementError) as caught:
            solve_placement(attrs.evolve(problem, explain=explain))
        errors[explain] = caught.value

    assert isinstance(errors["always"], InfeasibleError)
    assert "the one that comes nearest needs 4 bytes more on 'd" in str(errors["always"])
    assert str(errors["always"]) == str(errors["proven"])
    if contiguity == "pipeline":
        assert isinstance(errors["never"], InfeasibleError)
    assert " bytes more " not in str(errors["never"])


def test_what_is_not_proven_is_explained_only_where_all_is() -> None:
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from((f"n{index}" for index in range(25)), kept_bytes=3)
    for explain in ("proven", "never"):
        with pytest.raises(PlacementError) as caught:
            solve_placement(PlacementProblem(graph, devices(20, 5), time_budget=0, explain=explain))

        assert not isinstance(caught.value, InfeasibleError)
        assert str(caught.value) == (
            "No placement that keeps every budget was found; with explain='always' it is told what the nearest one "
            "lacks."
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "speed"}, "There is no objective 'speed'; there is throughput, latency, memory, devices."),
        (
            {"objective": np.ones(2)},
            "There is no objective array([1., 1.]); there is throughput, latency, memory, devices.",
        ),
        ({"explain": "no"}, "There is no explain 'no'; there is always, proven, never."),
        ({"time_budget": -1}, "The time budget is a number of seconds, not -1."),
        ({"time_budget": "1"}, "The time budget is a number of seconds, not '1'."),
        ({"time_budget": 10**400}, f"The time budget is a number of seconds, not {10**400}."),
        ({"seed": -1}, "The seed is a whole number from 0 on, not -1."),
        ({"seed": 1.5}, "The seed is a whole number from 0 on, not 1.5."),
        ({"colocate": ["n0"]}, "`colocate` is a list of groups, and 'n0' is a text; write [['n0', ...]]."),
        ({"pinned": {"x": "d0"}}, "`pinned` names 'x', which is not a node of the graph."),
        ({"pinned": {"n0": "z"}}, "`pinned` puts 'n0' together with the device 'z'; there are d0, d1."),
        ({"forbidden": {"n0": "d0"}}, "`forbidden` maps 'n0' to 'd0'; give a list of device names."),
        ({"colocate": [["n0", "q"]]}, "`colocate` names 'q', which is not a node of the graph."),
    ],
)
def test_a_problem_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlacementError) as caught:
        PlacementProblem(chain(1.0), devices(2), **options)

    assert message == str(caught.value)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"seconds": -1}, "Node 'n0' has seconds=-1; give a number that is not negative."),
        ({"seconds": {"z": 1}}, "Node 'n0' has seconds for the device 'z'; there are d0, d1."),
        ({"kept_bytes": math.inf}, "Node 'n0' has kept_bytes=inf; give a finite number."),
        ({"output_bytes": "1"}, "Node 'n0' has output_bytes='1'; give a number that is not negative."),
    ],
)
def test_a_cost_that_makes_no_sense_is_refused(facts: dict[str, Any], message: str) -> None:
    graph = chain(1.0)
    graph.nodes["n0"].update(facts)

    with pytest.raises(PlacementError) as caught:
        solve_placement(PlacementProblem(graph, devices(2)))

    assert message == str(caught.value)


def test_devices_are_checked() -> None:
    with pytest.raises(InputError, match="There is no device to place the model on"):
        PlacementProblem(chain(1.0), [])


def test_ideals_are_all_and_only_the_sets_that_hold_their_predecessors() -> None:
    """A diamond has six ideals; a budget that is too small gives None."""
    graph = nx.DiGraph([(0, 1), (0, 2), (1, 3), (2, 3)])
    for _node, facts in graph.nodes(data=True):
        facts["seconds"] = 1.0
    problem = PlacementProblem(graph, devices(2))
    units = reduce_problem(problem, tables_of(problem))

    found = all_ideals(units, 100)

    assert found is not None
    assert {(), (0,), (0, 1), (0, 2), (0, 1, 2), (0, 1, 2, 3)} == {
        tuple(np.flatnonzero(row).tolist()) for row in unpack(found, units.size)
    }
    assert all_ideals(units, 5) is None
    assert all_ideals(units, 6, looks=16) is not None  # 2, 3, 5 and 6 are looked at
    assert all_ideals(units, 6, looks=15) is None


def test_ideals_in_a_window_are_those_of_such_a_weight() -> None:
    """Of the 12,870 ideals of a grid of 8 x 8 cells; most that are found on the way are of no interest in the end."""
    graph = nx.DiGraph(sorted(nx.grid_2d_graph(8, 8).edges))
    for index, (_node, facts) in enumerate(graph.nodes(data=True)):
        facts.update(seconds=1.0 + index % 3, output_seconds=0.1)
    problem = PlacementProblem(graph, devices(2))
    units = reduce_problem(problem, tables_of(problem))
    weight = units.seconds.min(axis=1)
    window = Window(weight, np.array([0.0, 60.5]), np.array([9.5, 62.5]))

    every, found = all_ideals(units, 20_000), all_ideals(units, 20_000, window)

    assert every is not None
    assert found is not None
    weights = unpack(every, units.size) @ weight
    inside = every[(weights <= 9.5) | ((weights >= 60.5) & (weights <= 62.5))]
    assert len(every) == 12_870
    assert 500 < len(inside) < len(every) / 4
    assert {row.tobytes() for row in found} == {row.tobytes() for row in inside}


def test_linear_orders_are_topological_and_their_prefixes_ideals() -> None:
    problem = PlacementProblem(layers(5), devices(2))
    units = reduce_problem(problem, tables_of(problem))
    orders = linear_orders(units, 6, seed=3)

    for order in [*orders, *orders_between(orders[:3], (0.25, 0.5))]:
        place = {unit: index for index, unit in enumerate(order)}
        assert all(place[a] < place[b] for b in place for a in units.predecessors[b])
    assert units.size + 1 == len(prefixes([list(range(units.size))]))


def test_what_two_orders_make_together_are_ideals_among_them_staircases_of_no_order() -> None:
    """On a grid of 4 x 4 cells: rows first and columns first make {two rows of two columns, one row of all}."""
    graph = nx.DiGraph(sorted(nx.grid_2d_graph(4, 4).edges))
    nx.set_node_attributes(graph, 1.0, "seconds")
    nx.set_node_attributes(graph, 0.1, "output_seconds")
    problem = PlacementProblem(graph, devices(2))
    units = reduce_problem(problem, tables_of(problem))
    unit = dict(zip(graph, units.unit_of.tolist(), strict=True))
    cells = sorted(unit, key=lambda cell: unit[cell])
    rows = [unit[cell] for cell in sorted(cells)]
    columns = [unit[cell] for cell in sorted(cells, key=lambda cell: cell[::-1])]
    every = all_ideals(units, 1000)

    found = crossed([rows, columns], np.ones(16), 4, 4)

    assert every is not None
    assert len(every) == 70
    known = {row.tobytes() for row in every}
    assert all(row.tobytes() in known for row in found)
    assert len(np.unique(found, axis=0)) == len(found) > 20
    sets = [{cells[unit] for unit in np.flatnonzero(row)} for row in unpack(found, units.size)]
    assert {(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)} in sets
    along = {row.tobytes() for row in prefixes([rows, columns])}
    assert sum(row.tobytes() not in along for row in found) > 10


def test_the_search_stops_when_its_steps_are_spent() -> None:
    problem = PlacementProblem(layers(10), devices(3))
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    inside = all_ideals(units, 10_000)
    assert inside is not None
    measure = Measure(units.seconds.min(axis=1), np.full(1, math.inf))
    classes = device_classes(tables, units)
    search = PipelineSearch(units, classes, States.of(classes), measure)

    outcome = search.run(inside, math.inf, steps=10)

    assert outcome.pipeline is None
    assert not outcome.finished


def test_a_search_over_links_stops_soon_after_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device counts once for each one before and after it, so fewer ideals are gone on from between two looks."""
    places = [Device(f"d{index}") for index in range(4)]
    pairs = itertools.combinations(places, 2)
    links = [Link(one.name, other.name, 1e9 * (1 + number)) for number, (one, other) in enumerate(pairs)]
    graph = nx.DiGraph(nx.union(nx.path_graph(range(30), nx.DiGraph), nx.path_graph(range(30, 60), nx.DiGraph)))
    for node in graph:
        graph.nodes[node].update(seconds=1.0, output_bytes=1e8)
    linked = between_devices(search_of(PlacementProblem(graph, places, links)))
    assert linked is not None
    assert len(linked.classes) > 16
    words = every_ideal(linked, 24.0, 10_000)
    assert words is not None
    monkeypatch.setattr(dynamic_program, "CELLS", 100_000)

    every = linked.run(words, 24.0)
    some = linked.run(words, 24.0, steps=every.steps / 20)

    assert every.pipeline is not None
    assert not some.finished
    assert some.steps < every.steps / 5


def test_a_solution_tells_its_gap() -> None:
    solution = PlacementSolution({}, (), 1.1, 1.0, {}, {}, {})

    assert pytest.approx(0.1) == solution.gap
    assert not solution.is_optimal


def test_numbers_may_be_of_any_kind_that_numpy_has() -> None:
    graph = nx.DiGraph([("u", "v")])
    graph.nodes["u"].update(seconds=np.float32(1), kept_bytes=np.int16(3))
    graph.nodes["v"].update(seconds={"a": np.float16(2)}, output_seconds=np.float64(1))

    solution = solve_placement(PlacementProblem(graph, [Device("a")]))

    assert {"a": 3.0} == solution.load
    assert {"a": 3} == solution.kept_bytes


def test_a_graph_is_no_problem_yet() -> None:
    with pytest.raises(PlacementError) as caught:
        solve_placement(nx.DiGraph())  # type: ignore[arg-type]

    write = "write solve_placement(PlacementProblem(graph, devices))."
    assert f"solve_placement takes a PlacementProblem, not DiGraph; {write}" == str(caught.value)


def test_a_node_that_no_device_runs_is_named_without_those_that_cost_nothing() -> None:
    """The others are folded to it, as they take no time; nobody asked for that."""
    graph = nx.path_graph(["u", "v", "w"], create_using=nx.DiGraph)
    graph.nodes["v"]["seconds"] = math.inf

    with pytest.raises(InfeasibleError) as caught:
        solve_placement(PlacementProblem(graph, [Device("a"), Device("b")]))

    advice = "give it seconds on a device that can run it."
    assert f"'v' may run nowhere (its seconds are inf): {advice}" == str(caught.value)


@pytest.mark.parametrize(
    ("seconds", "options", "sentence"),
    [
        ({}, {}, "its seconds name no device): give it seconds on a device that can run it."),
        (
            {"a": math.inf, "b": None},
            {},
            "its seconds are {'a': inf, 'b': None}): give it seconds on a device that can run it.",
        ),
        ({"b": 1.0}, {"pinned": {"v": "a"}}, "pinned to a, which cannot run it): give it a device."),
        ({"b": 1.0}, {"forbidden": {"v": ["b"]}}, "forbidden on b; a cannot run it): give it a device."),
    ],
)
def test_why_a_node_may_run_nowhere_says_what_its_seconds_say(
    seconds: dict[str, Any], options: dict[str, Any], sentence: str
) -> None:
    graph = nx.path_graph(["u", "v", "w"], create_using=nx.DiGraph)
    graph.nodes["v"]["seconds"] = seconds

    with pytest.raises(InfeasibleError) as caught:
        solve_placement(PlacementProblem(graph, [Device("a"), Device("b")], **options))

    assert f"'v' may run nowhere ({sentence}" == str(caught.value)
