"""All cuts of a coarse answer moved at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import networkx as nx
import numpy as np
import pytest

from fxpasses.devices import Device
from fxpasses.partitioners import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers.contiguous.searching import Answer, Search
from fxpasses.partitioners.solvers.contiguous.spreading import HALVINGS, _Runs, largest, spread
from fxpasses.partitioners.solvers.contiguous.tables.filled_tables import Pipeline
from fxpasses.partitioners.solvers.proofs.bounds import prices_of
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Ints, evaluate, tables_of


def line(count: int, devices: dict[str, tuple[float, int | None]], **options: Any) -> PlacementProblem:
    """Units of one second and ten bytes, one after the other, on devices of a speed and a memory."""
    graph = nx.path_graph(count, create_using=nx.DiGraph)
    for _node, facts in graph.nodes(data=True):
        seconds = {name: 1.0 / speed for name, (speed, _memory) in devices.items()}
        facts.update(seconds=seconds, kept_bytes=10, output_seconds=0.25)
    return PlacementProblem(graph, [Device(name, memory) for name, (_speed, memory) in devices.items()], **options)


def spread_cuts(problem: PlacementProblem, cuts: list[int]) -> list[int]:
    """Where devices stop by ``spread`` that stop at some places in an answer."""
    return spread_from(problem, cuts)[0].tolist()


def spread_from(problem: PlacementProblem, cuts: list[int], likely: float = 0.0) -> tuple[Ints, float]:
    """The same, with the largest threshold that is too low."""
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    search = Search.of(problem, tables, units, prices_of(units, tables.memory, problem.objective))
    begins = [0, *cuts[:-1]]
    runs = [(device, tuple(range(a, b))) for device, (a, b) in enumerate(zip(begins, cuts, strict=True))]
    answer = Answer.of(search, Pipeline(tuple(runs), math.inf))
    order: Ints = np.arange(units.size)
    return spread(search, answer, order, np.array(cuts), 0.0, likely)


@pytest.mark.parametrize(
    ("devices", "options", "expected"),
    [
        ({"a": (1.0, None), "b": (1.0, None), "c": (1.0, None)}, {}, [10, 20, 30]),
        ({"a": (1.0, None), "b": (4.0, None), "c": (1.0, None)}, {}, [5, 25, 30]),
        ({"a": (1.0, 60), "b": (1.0, None), "c": (1.0, None)}, {}, [6, 18, 30]),
        ({"a": (9.0, None), "b": (1.0, None), "c": (1.0, None)}, {"objective": "memory"}, [10, 20, 30]),
        ({"a": (1.0, 200), "b": (1.0, 200), "c": (1.0, 200)}, {"objective": "devices"}, [20, 30]),
    ],
    ids=["alike", "a fast one", "a small one", "bytes alone count", "as few as hold it"],
)
def test_each_device_takes_what_it_can(
    devices: dict[str, tuple[float, int | None]], options: dict[str, Any], expected: list[int]
) -> None:
    """Whatever the answer was: its last device has nearly everything."""
    assert spread_cuts(line(30, devices, **options), [2, 4, 30]) == expected


def test_a_device_stops_before_what_it_cannot_run() -> None:
    problem = line(30, {"a": (1.0, None), "b": (1.0, None), "c": (1.0, None)}, forbidden={6: ["a"]})

    assert spread_cuts(problem, [2, 4, 30]) == [6, 18, 30]


@pytest.mark.parametrize("seed", range(12))
def test_cuts_lie_where_little_is_sent(seed: int) -> None:
    """All ways to cut a line of units that take, keep and send different amounts, in devices that differ."""
    draw = np.random.default_rng(seed)
    devices = {"a": (1.0, 90), "b": (1.5, 60), "c": (0.75, None), "d": (1.0, 75)}
    count = 16
    problem = line(count, devices, forbidden={int(draw.integers(4, count)): ["b"]})
    for _node, facts in problem.graph.nodes(data=True):
        own = draw.uniform(0.5, 1.5)
        facts["seconds"] = {name: own / speed for name, (speed, _memory) in devices.items()}
        facts.update(kept_bytes=int(draw.integers(20)), output_seconds=float(draw.choice([0.01, 2.0])))
    tables, goal = tables_of(problem), value_of(problem, [2, 4, 6, count])

    ways = [(*ends, count) for ends in itertools.combinations(range(1, count), 3)]
    best = min(value_of(problem, way) for way in ways if fits(tables, way))
    for likely in (0.0, 0.2 * best, 0.999 * best, 1.001 * best, goal, 2 * goal):  # whether or not it is too low
        cuts, too_low = spread_from(problem, [2, 4, 6, count], likely)

        assert 4 == len(cuts)
        assert fits(tables, cuts.tolist())
        assert best <= value_of(problem, cuts.tolist()) <= best + goal / 2 ** (HALVINGS - 1)
        assert too_low < best
        if likely == 0.999 * best:  # little is left to look at
            assert 0.999 * best <= too_low


def value_of(problem: PlacementProblem, cuts: Sequence[int]) -> float:
    """The largest load where devices stop at some places."""
    return evaluate(tables_of(problem), home(cuts)).value("throughput")


def fits(tables: CostTables, cuts: Sequence[int]) -> bool:
    """Whether devices that stop at some places have room, and can run what is theirs."""
    figures = evaluate(tables, home(cuts))
    return bool((figures.kept <= tables.memory).all() and np.isfinite(figures.load).all())


def home(cuts: Sequence[int]) -> Ints:
    """The device of each unit."""
    return np.repeat(np.arange(len(cuts)), np.diff([0, *cuts]))


@pytest.mark.parametrize("growth", [0.0, 0.1, 1.0])
def test_the_largest_values_of_ranges(growth: float) -> None:
    draw = np.random.default_rng(0)
    values = draw.random(37) + growth * np.arange(37)
    values[:3] = -np.inf
    first = draw.integers(0, 37, 500)
    after = first + 1 + (draw.random(500) * (37 - first)).astype(np.int64)

    found = largest(values, first, after)

    assert [values[begin:end].max() for begin, end in zip(first, after, strict=True)] == found.tolist()


def test_no_threshold_is_halved_for_a_millionth_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second for each unit, sent for nothing: 10 are the best."""
    asked, under = list[float](), _Runs.under
    monkeypatch.setattr(_Runs, "under", lambda runs, most: asked.append(most) or under(runs, most))
    problem = line(30, {"a": (1.0, None), "b": (1.0, None), "c": (1.0, None)})
    for _node, facts in problem.graph.nodes(data=True):
        facts["output_seconds"] = 0.0

    cuts, too_low = spread_from(problem, [10, 20, 30], 10 * (1 - 1e-7))

    assert (cuts.tolist(), too_low, asked) == ([10, 20, 30], asked[0], [10 * (1 - 1e-7)])
    assert len(spread_from(problem, [10, 20, 30], 10 * (1 - 1e-5))[0]) == 3
    assert len(asked) == 1 + 1 + 4  # 1e-5, then 1e-5 / 2, / 4, / 8 and / 16 lie between them


def test_room_that_each_of_many_devices_has_left_adds_up() -> None:
    """3,000 units on 64 devices, of which the first half are twice as fast and keep 52 units each at most.

    So each of the others has 41.75 on average, of a second each. A grid of 1,000 places has three units for each place:
    what devices lose there adds up to cuts that lie far from the best ones.
    """
    devices = {f"d{index}": (2.0, 525) if index < 32 else (1.0, 450) for index in range(64)}
    problem = line(3000, devices, time_budget=0.01)
    for node, facts in problem.graph.nodes(data=True):
        facts["seconds"] = {name: (0.6 + node * 7919 % 101 / 125) / speed for name, (speed, _memory) in devices.items()}

    solution = solve_placement(problem)

    assert 41.0 <= solution.objective_value <= 1.03 * 41.75
