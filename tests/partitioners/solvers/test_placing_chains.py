"""Chains cut into runs, one a device: against brute force over all cuts and device orders."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import networkx as nx
import pytest
from fuzz import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from fxpasses import Device, InfeasibleError, PlacementError
from fxpasses.devices import Link, fake_devices
from fxpasses.partitioners import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers.contiguous import certifying
from fxpasses.partitioners.solvers.contiguous import solving as pipelines

Layer = dict[str, object]
Run = tuple[int, int, int]  # device, start, stop


def chain(layers: list[Layer], budgets: list[int | None], objective: str = "throughput") -> PlacementProblem:
    graph = nx.path_graph(len(layers), create_using=nx.DiGraph)
    for index, layer in enumerate(layers):
        graph.nodes[index].update(layer)
    devices = [Device(f"d{index}", budget) for index, budget in enumerate(budgets)]
    links = [Link(a.name, b.name, 4.0, 0.5) for a, b in itertools.combinations(devices, 2)]
    return PlacementProblem(graph, devices, links, objective, time_budget=1.0)


def every_cut(count: int, devices: int) -> Iterator[list[Run]]:
    for used in range(1, min(devices, count) + 1):
        for order in itertools.permutations(range(devices), used):
            for cuts in itertools.combinations(range(1, count), used - 1):
                edges = [0, *cuts, count]
                yield [(device, a, b) for device, (a, b) in zip(order, itertools.pairwise(edges), strict=True)]


def needs(layers: list[Layer], start: int, stop: int) -> int:
    shared: dict[str, int] = {}
    for layer in layers[start:stop]:
        shared.update(layer["shared_bytes"])
    return sum(shared.values()) + max(layer["live_bytes"] for layer in layers[start:stop])


def slowest(layers: list[Layer], runs: list[Run]) -> float:
    loads = []
    for _device, start, stop in runs:
        load = sum(layer["seconds"] for layer in layers[start:stop])
        load += 0.5 + layers[start - 1]["output_bytes"] / 4 if start else 0.0
        load += 0.5 + layers[stop - 1]["output_bytes"] / 4 if stop < len(layers) else 0.0
        loads.append(load)
    return max(loads)


SMALL = st.integers(1, 9)
LAYERS = st.lists(
    st.fixed_dictionaries(
        {
            "seconds": SMALL,
            "output_bytes": SMALL,
            "live_bytes": SMALL,
            "shared_bytes": st.dictionaries(st.sampled_from("abcde"), st.just(7), max_size=2),
        }
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=examples(60), deadline=None)
@given(LAYERS, st.lists(st.integers(5, 50), min_size=1, max_size=3))
def test_complaint_26_the_cut_of_a_chain_is_the_best_there_is(layers: list[Layer], budgets: list[int]) -> None:
    """Complaint 26: chains of up to 14 layers, with shared weights and activations, as exhaustive search finds them."""
    possible = [
        slowest(layers, runs)
        for runs in every_cut(len(layers), len(budgets))
        if all(needs(layers, start, stop) <= budgets[device] for device, start, stop in runs)
    ]

    if possible:
        solution = solve_placement(chain(layers, budgets))
        assert pytest.approx(min(possible)) == solution.objective_value
        assert solution.is_optimal
    else:
        with pytest.raises(InfeasibleError) as caught:
            solve_placement(chain(layers, budgets))
        assert caught.value.missing_bytes > 0


def layer(**facts: object) -> Layer:
    return {"seconds": 1.0, "output_bytes": 1, "live_bytes": 0, "shared_bytes": {}, **facts}


def test_a_constant_used_twice_in_a_run_is_held_once() -> None:
    two = [layer(shared_bytes={"tied": 10}), layer(shared_bytes={"tied": 10})]

    assert {0: "d0", 1: "d0"} == solve_placement(chain(two, [10])).device_of


def test_complaint_26_what_does_not_fit_says_which_budget_and_by_how_much() -> None:
    """Complaint 26: no cut keeps every budget, and the message names the device and the bytes."""
    two = [layer(shared_bytes={"a": 10}), layer(shared_bytes={"b": 12})]

    with pytest.raises(InfeasibleError, match=r"2 bytes (are|more)") as caught:
        solve_placement(chain(two, [10, 10]))

    assert 2 == caught.value.missing_bytes


def test_as_few_devices_as_hold_the_model() -> None:
    three = [layer(shared_bytes={name: 10}) for name in "abc"]

    solution = solve_placement(chain(three, [30, 20, 20], "devices"))

    assert {"d0"} == set(solution.device_of.values())


def test_an_empty_chain_needs_nothing() -> None:
    assert {} == solve_placement(chain([], [1])).device_of


def test_a_time_budget_that_is_none_is_refused() -> None:
    with pytest.raises(PlacementError, match=r"^The time budget is a number of seconds"):
        PlacementProblem(nx.DiGraph(), [Device("d")], time_budget=float("nan"))


def test_long_graphs_are_not_searched_around_their_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes time in proportion to nodes times devices; long graphs are cut ever finer instead."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("a long graph was searched around its cuts")

    for module in (certifying, pipelines):
        monkeypatch.setattr(module, "improved_far", refuse)
    graph = nx.path_graph(9_000, create_using=nx.DiGraph)
    for node in graph:
        graph.nodes[node].update(seconds=1e-3 * (1 + node % 7), output_seconds=1e-4)

    solution = solve_placement(PlacementProblem(graph, fake_devices(8)))

    assert solution.gap < 0.01
