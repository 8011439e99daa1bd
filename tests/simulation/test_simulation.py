"""A run on paper agrees with what placing predicts, and shows what overlaps and what waits."""

from __future__ import annotations

import itertools
import random
from typing import Any

import attrs
import pytest
import torch
from fuzz import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering_models import Mlp
from torch import Tensor, nn
from torch.fx import GraphModule

from fxpasses import Assignment, CycleError, Device, InputError, Link, MissingMetadataError, Topology, place
from fxpasses.partitioners.costs.device_times import predict_makespan, predict_times
from fxpasses.partitioners.costs.memory import predict_memory
from fxpasses.partitioners.costs.memory_courses import Life, MemoryCourse
from fxpasses.partitioners.placing.device_runs import runs_of
from fxpasses.simulation import simulate, simulating
from fxpasses.simulation.memory_curves import Clock, Early, memory_curve
from fxpasses.timeline import Span


class Branches(nn.Module):
    """Two branches that need nothing from each other, and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(64, 64)
        self.right = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x).relu() + self.right(x).sigmoid().view(-1, 64)


class Skip(nn.Module):
    """A value of the first layer goes around the middle ones."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        first, second, third, last = self.layers
        early = first(x)
        return last(third(second(early))) + early


def graph_of(model: nn.Module) -> GraphModule:
    return torch.export.export(model.eval(), (torch.randn(8, 64),)).module(check_guards=False)


BRANCHES = graph_of(Branches())
SKIP = graph_of(Skip())
TWO = Topology.of(
    [Device("a", 1 << 20), Device("b", overhead=1e-5, flops=50e9)], [Link("a", "b", bandwidth=1e9, latency=2e-6)]
)


def by_name(graph: GraphModule, **parts: str) -> tuple[Assignment, dict[str, Device]]:
    """``part=node,node``: the part's device is its first letter."""
    nodes = {node.name: node for node in graph.graph.nodes}
    grouping = {nodes[name]: part for part, names in parts.items() for name in names.split(",")}
    return Assignment.of(graph, grouping), {part: TWO[part[0]] for part in parts}


@pytest.fixture
def branches() -> tuple[Assignment, dict[str, Device]]:
    return by_name(BRANCHES, a="linear,relu", b="linear_1,sigmoid,view,add")


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_one_sample_takes_what_is_predicted_and_holds_what_is_predicted(data: st.DataObject) -> None:
    graph = data.draw(st.sampled_from([BRANCHES, MLP]))
    nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
    parts = data.draw(st.lists(st.sampled_from(["a", "b", "a_1", "b_1"]), min_size=len(nodes), max_size=len(nodes)))
    try:
        assignment = Assignment.of(graph, dict(zip(nodes, parts, strict=True)))
    except CycleError:
        return
    device_of = {part: TWO[part[0]] for part in dict.fromkeys(parts)}

    run = simulate(graph, assignment, device_of, TWO)
    seconds, load = predict_times(graph, assignment, device_of, TWO)

    assert pytest.approx(seconds) == run.seconds
    assert pytest.approx(load) == {name: run.timeline.busy(name) for name in load}
    for name, held in predict_memory(graph, assignment, device_of).items():
        assert held.peak == run.timeline.peak(name)
    for overlap in ("devices", "copies"):
        assert simulate(graph, assignment, device_of, TWO, overlap=overlap).seconds <= run.seconds * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_predicted_does_not_depend_on_the_order_in_which_parts_are_named(seed: int) -> None:
    """Another order of a sum may differ in the last bit; a plan would differ from its own replay."""
    nodes = [node for node in MLP.graph.nodes if node.op == "call_function"]
    draw = random.Random(seed)
    took = {node: draw.uniform(1e-7, 1e-5) for node in nodes}
    homes = {node: "ab"[place > 2] for place, node in enumerate(nodes)}
    shuffled = dict(draw.sample(list(homes.items()), len(nodes)))
    device_of = {name: TWO[name] for name in "ab"}

    first, second = (
        predict_times(MLP, Assignment.of(MLP, each), device_of, TWO, seconds=lambda node, _: took[node])
        for each in (homes, shuffled)
    )

    assert list(homes) != list(shuffled)
    assert first == second


class TiedToNothing(nn.Module):
    """A parameter without elements that two devices read."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 32)
        self.nothing = nn.Parameter(torch.randn(0, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.cat([self.a(x), self.nothing])
        return torch.cat([self.b(made), self.nothing])


def test_a_parameter_without_elements_takes_no_time_to_cross() -> None:
    devices, link = [Device("left"), Device("right")], [Link("left", "right", 1e9, 1.0)]
    options: dict[str, Any] = {"pinned": {"a": "left", "b": "right"}, "objective": "throughput"}
    planned = place(TiedToNothing(), (torch.randn(8, 32),), devices=devices, links=link, **options)
    assert ["cat", "nothing"] == [copy["value"] for copy in planned.plan.copies]

    run = planned.simulate()

    assert run.seconds == pytest.approx(planned.plan.predicted["seconds"])
    assert run.seconds < 1.1


def test_sums_that_round_do_not_let_one_part_overlap_the_next() -> None:
    """Two parts of one device, one after the other: the peak is the predicted one, whatever operators take."""
    nodes = [node for node in MLP.graph.nodes if node.op == "call_function"]
    assignment = Assignment.of(MLP, {node: f"a_{index // 2}" for index, node in enumerate(nodes)})
    device_of = {str(part): TWO["a"] for part in assignment.order}
    peak = predict_memory(MLP, assignment, device_of)["a"].peak

    for seed in range(50):
        draw = random.Random(seed)
        run = simulate(MLP, assignment, device_of, TWO, seconds={node: draw.uniform(1e-7, 1e-5) for node in nodes})
        assert peak == run.timeline.peak("a")


MLP = graph_of(Mlp(3))
THREE = Topology.of(
    [Device("a"), Device("b", flops=1e9), Device("c")], [Link("a", "b", 1e9), Link("a", "c", 2e8, 9e-6), Link("b", "c")]
)


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_what_a_device_is_busy_with_is_its_load_and_the_makespan_is_the_one_that_placing_counts(
    data: st.DataObject,
) -> None:
    """A value that goes to two devices leaves once, over the slower link, as the solvers count it."""
    graph = data.draw(st.sampled_from([BRANCHES, SKIP]))
    nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
    parts = data.draw(st.lists(st.sampled_from(["a", "b", "c"]), min_size=len(nodes), max_size=len(nodes)))
    runs = runs_of(graph, dict(zip(nodes, parts, strict=True)))
    device_of = {part: THREE[name] for part, name in runs.device_of.items()}
    seconds, load = predict_times(graph, runs.assignment, device_of, THREE)

    for overlap in ("none", "devices"):
        timeline = simulate(graph, runs.assignment, device_of, THREE, overlap=overlap).timeline
        assert pytest.approx(load) == {name: timeline.busy(name) for name in load}
    together = simulate(graph, runs.assignment, device_of, THREE, overlap="copies").seconds

    assert predict_makespan(runs.assignment, device_of, THREE, shared=()) == together <= seconds * (1 + 1e-9)


def test_parts_that_need_nothing_from_each_other_overlap(branches: tuple[Assignment, dict[str, Device]]) -> None:
    one_by_one = simulate(BRANCHES, *branches, TWO)
    overlapping = simulate(BRANCHES, *branches, TWO, overlap="devices")
    first, second, copied = (
        next(span for span in overlapping.timeline.spans if span.name == name) for name in ("a", "b", "relu")
    )

    assert overlapping.seconds <= one_by_one.seconds
    assert copied.start == first.end
    assert second.start == pytest.approx(copied.end)


def test_copies_run_beside_the_work_of_both_ends_where_asked() -> None:
    split = by_name(MLP, a="linear", b="relu,linear_1,relu_1", a_1="linear_2,relu_2")
    blocking = simulate(MLP, *split, TWO, samples=6, overlap="devices")
    beside = simulate(MLP, *split, TWO, samples=6, overlap="copies")

    assert beside.seconds < blocking.seconds
    assert all(span.kind == "compute" for span in beside.timeline.on("a"))
    assert beside.timeline.peak("b") >= simulate(MLP, *split, TWO).timeline.peak("b")


def test_the_period_of_a_filled_pipeline_is_the_load_of_the_busiest_device() -> None:
    split = by_name(MLP, a="linear,relu", b="linear_1,relu_1,linear_2,relu_2")
    _seconds, load = predict_times(MLP, *split, TWO)

    run = simulate(MLP, *split, TWO, samples=20)

    assert pytest.approx(1 / max(load.values()), rel=1e-6) == run.samples_per_second
    assert run.samples == len(run.ends) == 20
    assert sorted(run.ends) == list(run.ends)


def test_few_samples_come_out_no_faster_than_the_busiest_device_lets_them() -> None:
    """The second sample holds the first one up, so that both end soon after each other."""
    fast, slow = {"flops": 1e10, "overhead": 1e-6}, {"flops": 1e9, "overhead": 1e-6}
    wires = {"ab": 1e7, "ac": 1e7, "ad": 1e8, "bc": 1e9, "bd": 1e8, "cd": 1e9}
    devices = Topology.of(
        [Device("a", **slow), Device("b", **fast), Device("c", **slow), Device("d", **fast)],
        [Link(*ends, rate, 1e-6) for ends, rate in wires.items()],
    )
    nodes = [node for node in BRANCHES.graph.nodes if node.op == "call_function"]
    assignment = Assignment.of(BRANCHES, dict(zip(nodes, "cbaddd", strict=True)))
    device_of = {name: devices[name] for name in "abcd"}
    _seconds, load = predict_times(BRANCHES, assignment, device_of, devices)

    run = simulate(BRANCHES, assignment, device_of, devices, samples=2)

    assert run.ends[1] - run.ends[0] < 0.95 * max(load.values())
    assert pytest.approx(1 / max(load.values()), rel=1e-6) == run.samples_per_second


def test_a_value_that_is_needed_late_keeps_nobody_waiting() -> None:
    """A skip connection over a stage: the sender goes on with the next sample until the receiver wants the value."""
    devices = Topology.of([Device(name, flops=1e9) for name in "abc"])
    graph = SKIP
    nodes = {node.name: node for node in graph.graph.nodes}
    parts = {"a": ("linear",), "b": ("linear_1", "linear_2"), "c": ("linear_3", "add")}
    assignment = Assignment.of(graph, {nodes[name]: part for part, names in parts.items() for name in names})
    device_of = {name: devices[name] for name in "abc"}
    _seconds, load = predict_times(graph, assignment, device_of, devices)

    run = simulate(graph, assignment, device_of, devices, samples=30)

    assert pytest.approx(1 / max(load.values()), rel=0.02) == run.samples_per_second


def test_several_samples_in_flight_hold_more_than_one_and_the_parameters_once() -> None:
    split = by_name(MLP, a="linear,relu", b="linear_1,relu_1,linear_2,relu_2")
    held = predict_memory(MLP, *split)["b"]

    timeline = simulate(MLP, *split, TWO, samples=8, overlap="copies").timeline

    assert timeline.peak("b") > held.peak
    assert held.parameters == min(size for _, size in timeline.memory["b"])


def test_the_critical_path_has_no_gap_and_says_what_each_step_waited_for(
    branches: tuple[Assignment, dict[str, Device]],
) -> None:
    path = simulate(BRANCHES, *branches, TWO, overlap="devices").critical_path

    assert 0 == path[0].start
    for step, following in itertools.pairwise(path):
        assert pytest.approx(step.start + step.seconds) == following.start
    assert [("a", "compute", ""), ("relu", "copy", "needs a"), ("b", "compute", "needs relu")] == [
        (step.name, step.kind, step.waited_for) for step in path
    ]


def test_a_busy_device_is_named_as_what_was_waited_for() -> None:
    split = by_name(BRANCHES, a="linear,relu", a_1="linear_1,sigmoid,view", b="add")

    path = simulate(BRANCHES, *split, TWO, overlap="devices").critical_path

    assert "a was busy with a" in [step.waited_for for step in path]


def test_spans_are_operators_where_asked(branches: tuple[Assignment, dict[str, Device]]) -> None:
    run = simulate(BRANCHES, *branches, TWO, detail="ops")

    assert ["linear", "relu", "relu", "relu", "relu", "linear_1", "sigmoid", "add"] == [
        span.name for span in run.timeline.spans
    ]
    assert run.timeline.makespan == pytest.approx(simulate(BRANCHES, *branches, TWO).seconds)


@pytest.mark.parametrize(
    ("graph", "parts", "arrows"),
    [
        (
            SKIP,
            {"a": "linear,linear_1", "b": "linear_2,linear_3,add"},
            {("linear", "linear", "add"), ("linear_1", "linear_1", "linear_2")},
        ),
        (
            BRANCHES,
            {"a": "linear_1,sigmoid,view,linear", "b": "relu,add"},
            {("sigmoid", "view", "add"), ("linear", "linear", "relu")},
        ),
    ],
    ids=["two values", "a view takes no time"],
)
def test_arrows_lead_from_the_operator_that_makes_a_value_to_the_first_that_needs_it(
    graph: GraphModule, parts: dict[str, str], arrows: set[tuple[str, str, str]]
) -> None:
    flows = simulate(graph, *by_name(graph, **parts), TWO, detail="ops").timeline.flows

    made = {flow.target.name: flow.source.name for flow in flows if flow.target.kind == "copy"}
    used = {flow.source.name: flow.target.name for flow in flows if flow.source.kind == "copy"}
    assert {(made[value], value, used[value]) for value in made} == arrows


def test_a_device_that_does_nothing_is_shown_too() -> None:
    split = by_name(MLP, a=",".join(node.name for node in MLP.graph.nodes if node.op == "call_function"))

    run = simulate(MLP, *split, TWO)

    assert ("a", "b") == run.timeline.tracks
    assert run.timeline.idle("b") == run.seconds
    assert [Span("a", "a", 0.0, run.seconds)] == list(run.timeline.spans)


def test_the_figures_are_plain_data(branches: tuple[Assignment, dict[str, Device]]) -> None:
    facts = simulate(BRANCHES, *branches, TWO).to_json()

    assert {"seconds", "samples", "overlap", "samples_per_second", "tracks", "critical_path"} == facts.keys()
    assert ["a", "b", "a → b"] == list(facts["tracks"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"samples": 0}, "A simulation takes 1 sample or more, not 0."),
        (
            {"samples": 10**11},
            "A simulation takes 100000 samples at most, not 100000000000; after some hundred, each takes as long as "
            "the one before.",
        ),
        ({"overlap": "all"}, "There is no overlap 'all'; there is none, devices, copies."),
        ({"detail": "all"}, "There is no detail 'all'; there is parts, ops."),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: dict[str, object], sentence: str, branches: tuple[Assignment, dict[str, Device]]
) -> None:
    with pytest.raises(InputError) as caught:
        simulate(BRANCHES, *branches, TWO, **options)

    assert sentence == str(caught.value)


def test_a_node_without_costs_names_the_pass_that_writes_them() -> None:
    graph = torch.fx.symbolic_trace(Branches())
    nodes = [node for node in graph.graph.nodes if node.op.startswith("call")]
    assignment = Assignment.of(graph, dict.fromkeys(nodes, "a"))

    with pytest.raises(MissingMetadataError, match=r"run MeasureCosts\(example_inputs=\.\.\.\) first"):
        simulate(graph, assignment, {"a": TWO["a"]}, TWO)


def test_memory_falls_back_after_what_an_operator_needs_for_a_moment() -> None:
    """It was shown as high as that until something else came."""
    life = Life(1, 1, 50, False, next(iter(MLP.graph.nodes)))
    course = MemoryCourse((), {"a": 100}, {"a": (life,)})
    course = attrs.evolve(course, schedule=tuple(MLP.graph.nodes)[:3])
    clock = Clock((0.0, 1.0, 1.0), (1.0, 1.0, 10.0), 10.0)

    assert ((0.0, 100), (1.0, 150), (1.0, 100)) == memory_curve(course, "a", [clock], Early({}))


def test_large_models_are_simulated_for_fewer_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run of an operator takes its time and its bytes."""
    monkeypatch.setattr(simulating, "MOST_RUNS", 20)
    grouping = {node: "a" for node in MLP.graph.nodes if node.op == "call_function"}
    placed = (Assignment.of(MLP, grouping), {"a": Device("a")}, Topology([Device("a")]))
    most = 20 // len(grouping)

    assert most == simulate(MLP, *placed, samples=most).samples
    said = f"A simulation of {len(grouping)} operators takes {most} samples at most, not {most + 1}; after some hundred"
    with pytest.raises(InputError, match=said):
        simulate(MLP, *placed, samples=most + 1)
