"""What would help most: each change of the machine is tried, and the answer says how it was found."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from lowering_models import Mlp
from torch import nn
from torch.fx import GraphModule

from fxpasses import Assignment, Device, Link, PassManager, PlacementError, Plan, Topology, place
from fxpasses.lowering import Planned
from fxpasses.partitioners import Training
from fxpasses.partitioners.by_device import place_by_device
from fxpasses.partitioners.costs.memory_facts import MemoryFacts
from fxpasses.partitioners.costs.node_costs import SECONDS
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.passes import ProfileCosts
from fxpasses.simulation import Advice, what_helps
from fxpasses.simulation.advice import Placed
from fxpasses.simulation.faster_links import with_faster_link
from fxpasses.units import KiB

LINK = Link("a", "b", 1e6, 1e-6)


def exported(model: nn.Module) -> GraphModule:
    return torch.export.export(model.eval(), (torch.randn(8, 64),)).module(check_guards=False)


GRAPH = exported(Mlp(4))
CALLS = [node for node in GRAPH.graph.nodes if node.op == "call_function"]


def halves(topology: Topology) -> Placed:
    """The first two layers on the first device, the others on the second."""
    names = [device.name for device in topology.devices]
    grouping = {node: names[index // 4] for index, node in enumerate(CALLS)}
    return Assignment.of(GRAPH, grouping), {name: topology[name] for name in names}


def tried(topology: Topology, objective: str, **options: object) -> list[Advice]:
    return what_helps(GRAPH, *halves(topology), topology, objective=objective, **options)  # type: ignore[arg-type]


def test_a_slow_link_is_what_helps_most() -> None:
    first, *_ = tried(Topology((Device("a"), Device("b")), (LINK,)), "latency")

    assert ("link", "a:b", "same placement") == (first.what, first.name, first.how)
    assert first.sentence().startswith("With the link a:b twice as fast, one run would take ")
    assert first.sentence().endswith(", operators where they are).")
    assert pytest.approx(1 - first.after / first.before) == first.gain


def test_a_route_is_as_fast_as_the_links_that_can_be_bought() -> None:
    """Nothing joins a and b but host; of its two links, the slower one is what holds the route up."""
    wires = [Link("a", "host", 1e6, 1e-6), Link("b", "host", 4e6, 3e-6)]
    topology = Topology.routed([Device("a"), Device("b"), Device("host")], wires)
    halved = Assignment.of(GRAPH, {node: "ab"[index // 4] for index, node in enumerate(CALLS)})
    placed = (GRAPH, halved, {name: topology[name] for name in "ab"})

    read = Plan.from_json(Plan.of("m", "latency", topology, *placed[1:]).to_json()).topology

    for known in (topology, read):
        found = what_helps(*placed, known, objective="latency")
        assert ["a:host"] == [each.name for each in found if each.what == "link"]
    assert Link("a", "b", 2e6, 3.5e-6) == with_faster_link(topology, "a", "host", 2).link("a", "b")
    assert Link("b", "host", 4e6, 3e-6) == with_faster_link(topology, "a", "host", 2).link("b", "host")


def test_links_that_lead_one_way_are_faster_one_way() -> None:
    links = [Link("a", "host", 1e6, 0.0), Link("host", "a", 3e6, 0.0), Link("host", "b", 4e6, 0.0)]
    topology = Topology.routed([Device("a"), Device("b"), Device("host")], links)

    faster = with_faster_link(topology, "a", "host", 2)

    assert (2e6, 3e6) == (faster.link("a", "host").bandwidth, faster.link("host", "a").bandwidth)
    assert (2e6, 3e6) == (faster.link("a", "b").bandwidth, faster.link("b", "a").bandwidth)


def test_the_slowest_device_helps_most_for_throughput() -> None:
    topology = Topology((Device("a", flops=1e9), Device("b", flops=1e9, overhead=1e-3)))

    first, *_ = tried(topology, "throughput")

    assert ("device", "b") == (first.what, first.name)
    assert "With b 25% faster, the busiest device would work " in first.sentence()


def test_a_larger_memory_is_placed_again() -> None:
    topology = Topology((Device("a", 45 * KiB, flops=1e12, bandwidth=1e12), Device("b", 45 * KiB, flops=1e7)), (LINK,))

    def again(changed: Topology, _speeds: Mapping[str, float]) -> Placed:
        placement = place_by_device(GRAPH, changed, objective="latency", time_budget=0.0)
        return GRAPH, placement.assignment, placement.device_of

    placement = place_by_device(GRAPH, topology, objective="latency")
    found = what_helps(GRAPH, placement.assignment, placement.device_of, topology, objective="latency", replace=again)

    assert ("memory", "a", "placed again") in [(each.what, each.name, each.how) for each in found]
    memory = next(each for each in found if (each.what, each.name) == ("memory", "a"))
    assert memory.sentence().startswith("With 56.2 KiB instead of 45.0 KiB on a, one run would take ")
    assert [each.gain for each in found] == sorted((each.gain for each in found), reverse=True)


def test_what_placing_again_gains_without_any_change_is_not_put_down_to_the_change() -> None:
    """Where the search has missed a placement, the advice is to search on."""

    def on_one(changed: Topology, _speeds: Mapping[str, float]) -> Placed:
        nodes = [node for node in GRAPH.graph.nodes if node.op == "call_function"]
        return GRAPH, Assignment.of(GRAPH, dict.fromkeys(nodes, "a")), {"a": changed["a"]}

    found = tried(Topology((Device("a"), Device("b")), (LINK,)), "latency", replace=on_one)
    (search,) = (advice for advice in found if advice.what == "search")

    assert search.gain >= 0.5  # nothing goes over the slow link
    assert search.sentence().startswith(
        "With another placement on the same devices, which a larger time_budget or another seed may find, one run "
    )


def test_without_placing_again_no_memory_helps() -> None:
    topology = Topology((Device("a", 45 * KiB), Device("b", 45 * KiB)))

    assert "memory" not in [each.what for each in tried(topology, "latency")]


def test_a_change_that_cannot_be_placed_is_evaluated_where_operators_are() -> None:
    def fails(_changed: Topology, _speeds: Mapping[str, float]) -> Placed:
        raise PlacementError("no")

    topology = Topology((Device("a"), Device("b")), (LINK,))

    assert tried(topology, "latency") == tried(topology, "latency", replace=fails)


def test_nothing_helps_where_no_device_works() -> None:
    topology = Topology((Device("a"), Device("b")))

    assert [] == tried(topology, "devices")


def test_measured_seconds_of_a_faster_device_shrink_too() -> None:
    graph = exported(Mlp(1))
    nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
    for node in nodes:
        SECONDS.write(node, {"a": 1.0})
    topology = Topology((Device("a"),))

    (advice,) = what_helps(
        graph, Assignment.of(graph, dict.fromkeys(nodes, "a")), {"a": topology["a"]}, topology, objective="latency"
    )

    assert (2.0, 1.6) == (advice.before, advice.after)


@pytest.mark.parametrize("flops", [1e11, math.inf])
def test_operators_that_were_measured_are_placed_again_on_a_faster_device(flops: float) -> None:
    """Seven equal layers: whichever of two devices is a quarter faster runs four of them, whatever its rates are."""
    devices, link = [Device("a", flops=flops), Device("b", flops=flops)], [Link("a", "b", 1e15, 1e-9)]
    program = torch.export.export(Mlp(7), (torch.randn(4, 64),))
    profiled = PassManager([ProfileCosts(devices, repeats=1)])(program).exported_program
    measured = {node: 1.0 if "linear" in node.name else 0.0 for node in profiled.graph.nodes if SECONDS.get(node)}

    def planned(**speeds: float) -> Planned:
        for node, seconds in measured.items():
            SECONDS.write(node, {name: seconds / speeds.get(name, 1.0) for name in "ab"})
        return place(profiled, devices=devices, links=link, objective="throughput")

    advice = [each for each in planned().report().advice if each.what == "device"]

    assert {"a", "b"} == {each.name for each in advice}
    assert "placed again" in {each.how for each in advice}
    for each in advice:
        assert each.before == pytest.approx(4.0)
        assert each.after == pytest.approx(3.2)
        assert planned(**{each.name: 1.25}).plan.predicted["objective_value"] == pytest.approx(3.2)


@pytest.mark.parametrize("memory", [60 * KiB, 90 * KiB])
def test_a_larger_memory_holds_what_is_loaded(memory: int) -> None:
    """Of a model that is too large, parameters are loaded in each run; with a quarter more memory fewer are."""
    model, x = Mlp(6), torch.randn(4, 64)

    def placed(size: int) -> Planned:
        return place(model, (x,), devices=[Device("only", size)], offload="cpu", objective="throughput")

    planned, larger = placed(memory), placed(memory * 5 // 4)
    (advice,) = (each for each in planned.report().advice if each.what == "memory")

    assert ("only", "same placement") == (advice.name, advice.how)
    assert pytest.approx(planned.summary.objective_value) == advice.before
    assert planned.plan.offloaded
    assert larger.plan.predicted["objective_value"] <= advice.after * (1 + 1e-9) < advice.before


def test_a_route_over_a_link_that_another_route_replaces_is_not_said_to_become_faster() -> None:
    """From a to c by way of b, over a slow link; from a to b by way of x, which suits large values better."""
    links = [Link("a", "b", 1.0, 0.0), Link("a", "x", 10.0, 0.5), Link("x", "b", 10.0, 0.5), Link("b", "c", 1.0, 0.0)]
    topology = Topology.routed([Device(name) for name in "abcx"], links, size=10)
    assert (("x",), ("b",)) == (topology.link("a", "b").via, topology.link("a", "c").via)

    faster = with_faster_link(topology, "b", "c", 2.0)

    assert 5.0 == faster.seconds("b", "c", 10)
    assert 10.0 == faster.seconds("a", "c", 10)


@pytest.mark.parametrize("training", [None, Training(1)])
def test_a_graph_is_measured_once_whatever_is_placed_again(
    training: Training | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was measured twice, and in training traced, for each change that was tried."""
    planned = place(
        Mlp(4), (torch.randn(8, 64),), devices=[Device("a", flops=1e9), Device("b", flops=1e9)], training=training
    )
    measured, facts_of, step_of = list[GraphModule](), MemoryFacts.of.__func__, TrainingStep.of.__func__  # type: ignore[attr-defined]
    traced = list[GraphModule]()

    def noted(kind: type, graph_module: GraphModule, *others: object) -> MemoryFacts:
        measured.append(graph_module)
        return facts_of(kind, graph_module, *others)

    def noted_step(kind: type, graph_module: GraphModule, *others: object) -> TrainingStep:
        traced.append(graph_module)
        return step_of(kind, graph_module, *others)

    monkeypatch.setattr(MemoryFacts, "of", classmethod(noted))
    monkeypatch.setattr(TrainingStep, "of", classmethod(noted_step))

    advice = planned.report().advice

    assert advice
    assert [planned.graph_module] == measured
    assert not traced
