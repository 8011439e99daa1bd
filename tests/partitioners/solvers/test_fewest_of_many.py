"""The fewest of many devices that differ, whose sets are too many to tell which of them a pipeline has used."""

from __future__ import annotations

import random

import networkx as nx
import pytest

from fxpasses.devices import Device
from fxpasses.errors import InfeasibleError
from fxpasses.partitioners import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers.contiguous.ideals.classes import device_classes
from fxpasses.partitioners.solvers.contiguous.ideals.states import States
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of


def chain(count: int, seed: int = 0) -> nx.DiGraph[int]:
    """Operators one after the other, with some shortcuts."""
    draw, graph = random.Random(seed), nx.DiGraph()
    for node in range(count):
        graph.add_node(node, seconds=draw.uniform(1, 5), kept_bytes=draw.randrange(1, 100), output_bytes=7)
        graph.add_edges_from((before, node) for before in {node - 1, draw.randrange(node)} if node) if node else None
    return graph


def devices(count: int, graph: nx.DiGraph[int], share: float) -> list[Device]:
    """All of different memory, about a share of what is needed each."""
    total = sum(size for _node, size in graph.nodes(data="kept_bytes"))
    return [Device(f"d{place}", int(total * share * (0.4 + place / count))) for place in range(count)]


@pytest.mark.parametrize("count", [13, 14, 20, 64])
def test_one_device_that_holds_everything_is_found_among_many(count: int) -> None:
    """From 14 on three were used: only one order of the devices was looked at."""
    graph = chain(4)
    total = sum(size for _node, size in graph.nodes(data="kept_bytes"))
    given = [Device(f"d{place}", total - count + place + 2) for place in range(count)]

    found = solve_placement(PlacementProblem(graph, given, (), "devices"))

    assert 1 == found.objective_value == found.bound


@pytest.mark.parametrize(("nodes", "count", "share"), [(40, 16, 0.3), (20, 20, 0.15), (80, 40, 0.6), (5000, 16, 0.3)])
def test_no_more_devices_are_used_than_have_room(nodes: int, count: int, share: float) -> None:
    """Twice to four times as many were; for sets of six or more of 20 devices, some of the largest are asked."""
    graph = chain(nodes, seed=nodes + count)

    found = solve_placement(PlacementProblem(graph, devices(count, graph, share), (), "devices"))

    assert found.bound == found.objective_value


def test_devices_that_cannot_run_everything_are_no_hindrance() -> None:
    """The largest sets of devices differ in their smallest only; 23 were used here."""
    draw, graph = random.Random(0), chain(80)
    names = [f"d{place}" for place in range(32)]
    speeds = [draw.choice([1, 2, 3]) for _ in names]
    for _node, facts in graph.nodes(data=True):
        able = set(names) - set(draw.sample(names, 8) if draw.random() < 0.15 else ())
        facts["seconds"] = {name: speed for name, speed in zip(names, speeds, strict=True) if name in able}
        facts["kept_bytes"] = draw.randint(1, 20)
    total = sum(size for _node, size in graph.nodes(data="kept_bytes"))
    given = [Device(name, 3 * total // (32 if speed == 1 else 64)) for name, speed in zip(names, speeds, strict=True)]

    found = solve_placement(PlacementProblem(graph, given, (), "devices"))

    assert found.objective_value <= found.bound + 1


def test_bytes_in_pages_are_counted_in_pages() -> None:
    """On four devices of 119.9 pages each; it took a minute or more to say that 477 pages find no room."""
    page, draw, graph = 2**26, random.Random(3), nx.path_graph(40, create_using=nx.DiGraph)
    sizes = [draw.randint(1, 20) for _ in graph]
    sizes[0] += 477 - sum(sizes)
    for node, size in enumerate(sizes):
        graph.nodes[node].update(seconds=1.0, kept_bytes=size * page)
    given = [Device(f"d{place}", int(119.9 * page)) for place in range(4)]

    with pytest.raises(InfeasibleError) as caught:
        solve_placement(PlacementProblem(graph, given, (), "devices", contiguity="free"))

    assert 120 * page - int(119.9 * page) == caught.value.missing_bytes


@pytest.mark.parametrize("most", [None, 1, 2, 3])
@pytest.mark.parametrize("kinds", [(1,), (2, 1, 3), (1, 1, 1, 1, 2)])
def test_states_of_few_devices_are_those_of_all_that_use_no_more(kinds: tuple[int, ...], most: int | None) -> None:
    graph = chain(3)
    given = [Device(f"d{kind}{each}", 10**6 + kind) for kind, count in enumerate(kinds) for each in range(count)]
    problem = PlacementProblem(graph, given)
    tables = tables_of(problem)
    classes = device_classes(tables, reduce_problem(problem, tables))

    every, few = States.of(classes), States.of(classes, most)

    wanted = [state.tolist() for state in every.used if most is None or state.sum() <= most]
    assert wanted == few.used.tolist()
    assert len(wanted) == States.count(classes, most)
    for state, moves in zip(few.used, few.moves, strict=True):
        for kind, there in moves:
            assert 1 == (few.used[there] - state)[kind] == (few.used[there] - state).sum()
    moved = sum(len(own) for own in few.moves)
    assert moved == sum(state.sum() for state in (few.used > 0).astype(int)), "each is reached once for each kind"
