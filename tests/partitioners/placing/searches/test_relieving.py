"""Free placements whose fullest device holds less: what is on it at its fullest moment goes elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from test_smaller_peaks import attention
from torch.fx import Node

from fxpasses import Device, Topology, fake_devices
from fxpasses.partitioners import Training, place_by_device, predict_memory, predict_training_memory
from fxpasses.partitioners.placing.device_runs import Runs, runs_of
from fxpasses.partitioners.placing.measured_graphs import MeasuredGraph
from fxpasses.partitioners.placing.requests import Request
from fxpasses.partitioners.placing.searches import one_search
from fxpasses.partitioners.placing.searches.relieving import relieved

NAMES = ("device0", "device1", "device2")
GRAPH = attention(4, 32)


def relieved_from(
    devices: list[Device], *, training: Training | None = None, time_budget: float = 1.0, **wishes: object
) -> tuple[Runs, Runs]:
    """What is found from the start in which each device takes a third of the graph's own order; and that."""
    measured = MeasuredGraph.of(GRAPH, devices, training)
    figures = measured.timed
    request = Request(Topology.of(devices), "memory", time_budget=time_budget, training=measured.step, **wishes)  # type: ignore[arg-type]
    third = -(-len(figures.nodes) // 3)
    home = {node: NAMES[number // third] for number, node in enumerate(figures.nodes)}
    start = runs_of(GRAPH, home, figures.dependencies)
    return relieved(figures, request, request.problem(figures, "free", figures.needs), start)[0], start


def peaks(runs: Runs, devices: list[Device], training: Training | None = None) -> dict[str, int]:
    """The most bytes on each device."""
    placed = runs.assignment, runs.devices(Topology.of(devices))
    held = predict_memory(GRAPH, *placed) if training is None else predict_training_memory(GRAPH, *placed, training)
    return {name: each.peak for name, each in held.items()}


def homes(runs: Runs) -> Mapping[Node, str]:
    return {node: runs.device_of[str(part)] for node, part in runs.assignment.partition_of.items()}


@pytest.mark.parametrize("training", [None, Training()])
def test_the_fullest_device_holds_less(training: Training | None) -> None:
    devices = fake_devices(3)

    found, start = relieved_from(devices, training=training)

    assert max(peaks(found, devices, training).values()) < 0.97 * max(peaks(start, devices, training).values())
    assert homes(found).keys() == homes(start).keys()


def test_budgets_are_kept_that_the_start_passes() -> None:
    _found, start = relieved_from(fake_devices(3))
    budget = int(0.95 * max(peaks(start, fake_devices(3)).values()))

    found, start = relieved_from(devices := fake_devices(3, memory=[budget] * 3))

    assert max(peaks(start, devices).values()) > budget >= max(peaks(found, devices).values())


def test_what_may_not_be_elsewhere_stays() -> None:
    """Of what goes elsewhere if it may, a pinned operator stays, and groups are not torn."""
    found, start = relieved_from(fake_devices(3))
    before, after = homes(start), homes(found)
    moved = next(node for node in after if after[node] != before[node])
    beside = next(node for node in reversed(before) if after[node] == before[node] == before[moved])

    pinned, _start = relieved_from(fake_devices(3), pinned={moved: before[moved]})
    grouped, _start = relieved_from(fake_devices(3), colocate=[[moved, beside]])

    assert homes(pinned)[moved] == before[moved]
    assert homes(pinned) != before
    assert homes(grouped)[moved] == homes(grouped)[beside]


def test_the_same_is_found_again_and_nothing_where_there_is_no_other_device() -> None:
    found, _start = relieved_from(fake_devices(3))
    again, _start = relieved_from(fake_devices(3))
    assert homes(found) == homes(again)

    figures, alone = (
        MeasuredGraph.of(GRAPH, fake_devices(1), None).timed,
        Request(Topology.of(fake_devices(1)), "memory"),
    )
    start = runs_of(GRAPH, dict.fromkeys(figures.nodes, NAMES[0]), figures.dependencies)
    assert (start, True) == relieved(figures, alone, alone.problem(figures, "free", figures.needs), start)


def test_peaks_of_placements_are_smaller_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other changes alone get stuck where three devices are as good as four."""
    graph = attention(8, 64)

    placement = place_by_device(graph, fake_devices(4), objective="memory", contiguity="free", time_budget=0.05)

    monkeypatch.setattr(one_search, "relieved", lambda _figures, _request, _problem, start: (start, True))
    larger = place_by_device(graph, fake_devices(4), objective="memory", contiguity="free", time_budget=0.05)
    assert placement.bound <= placement.objective_value < 0.8 * larger.objective_value
    assert placement.objective_value == max(
        each.peak for each in predict_memory(graph, placement.assignment, placement.device_of).values()
    )


@pytest.mark.parametrize(("layers", "tokens", "budget"), [(9, 40, 52_000), (8, 64, 70_000)])
def test_budgets_are_kept_where_nothing_else_keeps_them(layers: int, tokens: int, budget: int) -> None:
    """Of the nearest placement; and of one of a small peak, where changes of the nearest one do not lead that far."""
    graph, devices = attention(layers, tokens), fake_devices(4, memory=[budget] * 4)

    placement = place_by_device(graph, devices, objective="memory", contiguity="free", time_budget=0.05)

    assert placement.objective_value <= budget
    held = predict_memory(graph, placement.assignment, placement.device_of)
    assert max(each.peak for each in held.values()) <= budget
