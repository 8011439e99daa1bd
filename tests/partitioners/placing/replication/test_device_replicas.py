"""Cheap values are computed again where they are needed: fewer bytes cross, and the results are the model's."""

from __future__ import annotations

import copy
import functools
import json
import re
from typing import Any

import pipeline_models
import pytest
import torch
from fuzz import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fxpasses import (
    Assignment,
    Device,
    Link,
    LoweredModule,
    PartitionError,
    PlacementError,
    PlanError,
    Topology,
    fake_devices,
    lower,
    place,
)
from fxpasses.lowering import lower_with_plan
from fxpasses.partitioners import DevicePlacement, Training, place_by_device
from fxpasses.partitioners.costs.graph_figures import GraphFigures, value_bytes
from fxpasses.partitioners.costs.memory import predict_memory
from fxpasses.partitioners.placing.colocation import must_share
from fxpasses.partitioners.placing.device_runs import runs_of
from fxpasses.partitioners.placing.found_placements import Found
from fxpasses.partitioners.placing.replication.device_replicas import add_device_replicas
from fxpasses.partitioners.placing.replication.replicas import REPLICA_OF, crossing_bytes, with_replicas
from fxpasses.partitioners.placing.requests import Request
from fxpasses.passes import split
from fxpasses.plan import Plan, stable_keys
from fxpasses.programs import capture
from fxpasses.units import GB, KiB


class Masked(nn.Module):
    """Layers that all read one mask, made from positions, and one table, made from a buffer."""

    def __init__(self, layers: int = 4, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.register_buffer("frequencies", torch.linspace(1, 2, width), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[0])
        mask = (positions[:, None] >= torch.arange(x.shape[1])[None]).to(x.dtype)
        table = (positions[:, None] * self.frequencies).cos()
        for layer in self.layers:
            x = layer(x * table).relu() * mask + x
        return x


SLOW = [Link("left", "right", 0.05 * GB)]
"""So slow that computing beats sending."""


ENDS = {"layers.0": "left", "layers.3": "right"}


def two(memory: int | None = None) -> list[Device]:
    return [Device("left", memory), Device("right", memory)]


def halves(graph: torch.fx.GraphModule, replicate: Any, *, devices: Any = None, pinned: Any = None) -> DevicePlacement:
    """The first layer on the left, the last one on the right."""
    options: dict[str, Any] = {"objective": "throughput", "contiguity": "pipeline", "time_budget": 0.0}
    return place_by_device(
        graph, devices or two(), SLOW, pinned={**ENDS, **(pinned or {})}, replicate=replicate, **options
    )


def graph_of(model: nn.Module, *args: Any) -> torch.fx.GraphModule:
    return capture(model, args, {}).module(check_guards=False)


def in_halves(model: nn.Module, x: Tensor, replicate: Any = "cheaper") -> LoweredModule:
    options: dict[str, Any] = {"objective": "throughput", "contiguity": "pipeline", "time_budget": 0.0}
    planned = place(model, (x,), devices=two(), links=SLOW, pinned=ENDS, replicate=replicate, **options)
    return lower(model, (x,), plan=planned.plan)


@functools.cache
def example(name: str) -> tuple[nn.Module, Any, Any]:
    model, args, kwargs = pipeline_models.MODELS[name][0]()
    return model, args, kwargs


def sent_in(lowered: LoweredModule) -> int:
    return sum(row.size for row in lowered.report.copies)


def test_what_is_cheaper_to_make_is_not_sent() -> None:
    model, x = Masked(), torch.randn(16, 64)

    once, again = (in_halves(model, x, replicate=how) for how in ("never", "cheaper"))

    assert [row.value for row in once.report.copies] == ["arange", "cos", "relu"]
    assert [row.value for row in again.report.copies] == ["frequencies", "relu"]  # a buffer that both need then
    assert sent_in(once) - sent_in(again) == (16 * 64 + 2 * 16 - 64) * 4
    assert torch.equal(model(x), again(x))
    assert again.report.estimated_ms < once.report.estimated_ms
    load = [max(row.estimated_ms for row in each.report.devices) for each in (again, once)]
    assert load[0] < load[1]


def test_nothing_is_computed_again_where_sending_is_quicker() -> None:
    model, x = Masked(), torch.randn(16, 64)

    planned = place(
        model, (x,), devices=two(), links=[Link("left", "right", 1e15, 0.0)], objective="throughput", time_budget=0.0
    )

    assert 2 == len(planned.plan.parts)
    assert () == planned.summary.replicas


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", ["llama", "bert", "residual_net", "mixtral"])
def test_models_with_replicas_give_what_they_gave(name: str, count: int) -> None:
    """Outputs, gradients and written buffers are those of the model; at most as many bytes cross."""
    model, args, kwargs = example(name)
    mine, theirs = copy.deepcopy(model), copy.deepcopy(model)
    options: dict[str, Any] = {"devices": fake_devices(count), "objective": "throughput", "time_budget": 0.1}
    planned = place(model, args, kwargs, replicate="never", **options)

    lowered = lower(mine, args, kwargs, replicate="always", **options)

    assert sum(row.size for row in lowered.report.copies) <= sum(row.size for row in planned.summary.copies)
    pairs = zip(*(pytree.tree_leaves(each(*args, **kwargs)) for each in (theirs, lowered)), strict=True)
    floats = [(one, other) for one, other in pairs if isinstance(one, Tensor) and one.is_floating_point()]
    for one, other in floats:
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)
    for index in (0, 1):
        sum(pair[index].square().mean() for pair in floats if pair[index].requires_grad).backward()  # type: ignore[union-attr]
    for (key, one), (_, other) in zip(theirs.named_parameters(), mine.named_parameters(), strict=True):
        if one.grad is not None:
            torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-5, msg=key)
    for key, buffer in theirs.state_dict().items():
        torch.testing.assert_close(lowered.state_dict()[key], buffer, rtol=1e-5, atol=1e-6)


class Routed(nn.Module):
    """Two layers, each for the rows that a mask picks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        rows = torch.where(mask)[0]
        x = x.index_add(0, rows, self.first(x[rows]))
        return x.index_add(0, rows, self.second(x[rows]))


@pytest.mark.parametrize("training", [None, Training(optimizer_slots=0)])
def test_what_data_say_the_size_of_is_computed_again_in_training_too(training: Training | None) -> None:
    model, args = Routed(), (torch.randn(12, 8), torch.arange(12) % 3 > 0)
    pins = {"first": "left", "second": "right"}

    lowered = lower(model, args, devices=two(), pinned=pins, replicate="always", training=training)

    assert any("where" in op for row in lowered.report.replicas for op in row.ops)
    wanted = copy.deepcopy(model)
    for each in (wanted, lowered):
        each(*args).square().sum().backward()
    for name, parameter in wanted.named_parameters():
        torch.testing.assert_close(lowered.get_parameter(name).grad, parameter.grad)


def test_a_llama_no_longer_sends_its_mask_and_its_rotary_tables() -> None:
    model, args, kwargs = example("llama")
    pins = {"model.layers.0": "device0", "model.layers.3": "device1"}
    facts = {
        how: place(
            model, args, kwargs, devices=fake_devices(2), pinned=pins, replicate=how, objective="throughput"
        ).summary
        for how in ("never", "always")
    }

    assert {"and_2", "to_4", "to_5"} <= {row.value for row in facts["never"].copies}
    assert {"and_2", "to_4", "to_5"}.isdisjoint({row.value for row in facts["always"].copies})


def test_the_report_says_what_is_computed_again_and_what_that_saves() -> None:
    lowered = in_halves(Masked(), torch.randn(16, 64))
    (row,) = lowered.report.replicas

    assert "right" == row.device
    assert "/cos#0" in row.ops
    assert 0 < row.estimated_ms
    once = in_halves(Masked(), torch.randn(16, 64), replicate="never")
    assert sent_in(once) - sent_in(lowered) == row.saved_bytes  # less the buffer from which it is made, which is sent
    assert row.sentence().startswith("right on right computes ")
    assert "right on right: computed again here instead of being sent" == lowered.report.reasons["/cos#0@right"]
    assert lowered.report.to_json()["replicas"][0]["saved_bytes"] == row.saved_bytes


def test_a_proposal_names_the_replicas_and_counts_them() -> None:
    """The assignment is over the graph that was given; figures and budgets are those with the replicas."""
    graph = graph_of(Masked(), torch.randn(16, 64))
    once, again = (halves(graph, how) for how in ("never", "cheaper"))
    places = {part: device.name for part, device in again.device_of.items()}
    written, assignment = with_replicas(graph, again.assignment, places)

    (nodes,) = again.assignment.replicas.values()
    (saved,) = again.saved.values()
    entering = crossing_bytes(assignment, places, value_bytes)
    assert "cos" in [node.name for node in nodes]
    assert not any(REPLICA_OF.has(node) for node in graph.graph.nodes)
    assert again.seconds < once.seconds
    assert f"so that {saved / 1024:.2f} KiB less are sent there" in again.reasons["right"]
    before, frequencies = sum(crossing_bytes(once.assignment, places, value_bytes).values()), 64 * 4
    assert before - saved == sum(entering.values()) + frequencies  # both devices need these then
    for name, held in predict_memory(written, assignment, again.device_of).items():
        assert held.peak <= again.topology[name].memory


def test_a_budget_that_has_no_room_for_replicas_has_none() -> None:
    graph = graph_of(Masked(), torch.randn(16, 64))
    roomy = halves(graph, "always")
    written = with_replicas(graph, roomy.assignment, {"left": "left", "right": "right"})
    peaks = {name: held.peak for name, held in predict_memory(*written, roomy.device_of).items()}
    once = predict_memory(graph, halves(graph, "never").assignment, roomy.device_of)["right"].peak

    tight = halves(graph, "always", devices=[Device("left"), Device("right", once)])

    assert once < peaks["right"]
    assert {} == tight.assignment.replicas


def test_what_is_random_or_written_is_computed_once() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            noise = torch.rand(16, 64).cos()
            counts = torch.zeros(16, 64)
            counts.add_(1)
            return self.second(self.first(x) * noise + counts) * noise + counts

    model, x = Noisy(), torch.randn(16, 64)
    planned = place(model, (x,), devices=two(), pinned={"first": "left", "second": "right"}, replicate="always")
    lowered = lower(model, (x,), plan=planned.plan)

    ops = {op for row in lowered.report.replicas for op in row.ops}
    assert not any(name in op for op in ops for name in ("rand", "zeros", "add_"))
    for _ in range(2):
        torch.manual_seed(0)
        wanted = model(x)
        torch.manual_seed(0)
        assert torch.equal(wanted, lowered(x))


def test_pins_and_forbidden_devices_hold_for_replicas() -> None:
    graph = graph_of(Masked(), torch.randn(16, 64))
    (cos,) = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.cos.default)

    pinned = halves(graph, "always", pinned={cos: "left"})
    kept_away = place_by_device(
        graph, two(), SLOW, pinned=ENDS, forbidden={cos: ["right"]}, objective="throughput", replicate="always"
    )

    for placement in (pinned, kept_away):
        assert "left" == placement.assignment.partition_of[cos]
        assert all(cos not in nodes for nodes in placement.assignment.replicas.values())


def test_training_counts_what_is_computed_again() -> None:
    graph = graph_of(Masked(), torch.randn(16, 64))
    again, once = (
        place_by_device(
            graph,
            two(160 * KiB),
            SLOW,
            training=Training(step_slots=0),
            replicate=replicate,
            pinned=ENDS,
            objective="throughput",
            time_budget=0.0,
        )
        for replicate in ("cheaper", "never")
    )
    whole = [re.match(r"the whole model \([\d.]+ KiB\)", placement.reasons["left"]) for placement in (again, once)]

    assert again.assignment.replicas
    assert whole[0] is not None  # one device alone would compute nothing again
    assert whole[1] is not None
    assert whole[0].group() == whole[1].group()


def test_a_plan_keeps_what_is_computed_again() -> None:
    """Written, read, replayed on another export, checked and renamed."""
    model, x = Masked(), torch.randn(16, 64)
    lowered = in_halves(model, x)
    plan = Plan.from_json(json.loads(json.dumps(lowered.plan.to_json())))

    again = lower(model, (x,), plan=plan)

    assert "/cos#0" in plan.parts[1].again
    assert plan.parts == lowered.plan.parts
    assert [] == plan.check(again.program)
    assert lowered.report.copies == again.report.copies
    assert plan.predicted["devices"] == again.plan.predicted["devices"]
    assert torch.equal(model(x), again(x))
    assert torch.equal(model(x), lower_with_plan(again.program, plan)(x))
    assert plan.simulate(again.program).seconds == pytest.approx(plan.predicted["seconds"])
    assert "body/cos#0" in plan.rename_modules({"": "body"}).parts[1].again


def test_a_difference_in_what_is_computed_again_is_told() -> None:
    model, x = Masked(), torch.randn(16, 64)
    once, again = (in_halves(model, x, replicate=how).plan for how in ("never", "cheaper"))

    assert "replica of /cos#0 on right is new" in str(once.diff(again)).splitlines()


def edited(plan: Plan, part: str, again: list[str]) -> Plan:
    data = plan.to_json()
    next(each for each in data["parts"] if each["name"] == part)["again"] = again
    return Plan.from_json(data)


def test_a_plan_whose_replicas_make_no_sense_is_refused() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(torch.rand_like(x)).relu())

    model, x = Noisy(), torch.randn(2, 8)
    planned = place(model, (x,), devices=two(), pinned={"first": "left", "second": "right"}, contiguity="pipeline")
    graph = planned.prepared.graph_module
    last = planned.plan.parts[-1].name

    with pytest.raises(PlanError, match=r"names /sin#0, which the model does not have"):
        edited(planned.plan, last, ["/sin#0"]).assign(graph)
    with pytest.raises(PlanError, match=r"lets right compute /rand_like#0 again, but it draws random numbers; take it"):
        edited(planned.plan, last, ["/rand_like#0"]).assign(graph)
    (violation,) = edited(planned.plan, last, ["/rand_like#0"]).check(planned.program)
    assert "again" == violation.kind
    with pytest.raises(PlanError, match=r"^In this plan parts\[1\].again names 'relu', which reads neither"):
        edited(planned.plan, last, ["relu"])


def test_a_split_writes_replicas_into_the_parts_that_have_them() -> None:
    model, x = Masked(), torch.randn(16, 64)
    graph = graph_of(model, x)
    placement = halves(graph, "cheaper")
    before = str(graph.graph)

    parts = split(graph, placement.assignment)

    assert before == str(graph.graph)
    assert torch.equal(model(x), parts(x))
    assert any("cos" in node.name for node in parts.parts["right"].graph.nodes)


def test_an_assignment_keeps_its_replicas_through_edits() -> None:
    graph = graph_of(Masked(), torch.randn(16, 64))
    assignment = halves(graph, "cheaper").assignment
    (nodes,) = assignment.replicas.values()

    assert {"r": nodes} == assignment.rename({"right": "r"}).replicas
    assert {} == assignment.merge("left", "right").replicas
    assert "in partition 'left', and computed again in 'right' instead of being sent there" == assignment.why(nodes[0])
    with pytest.raises(PartitionError, match=r"cannot be a replica in partition 'left': it is there already"):
        Assignment.of(graph, assignment.partition_of, replicas={"left": nodes[:1]})


def test_a_replica_that_nothing_uses_is_not_made() -> None:
    graph = graph_of(nn.Sequential(nn.ReLU(), nn.Sigmoid(), nn.Tanh()), torch.randn(4))
    relu, sigmoid, tanh = (node for node in graph.graph.nodes if node.op == "call_function")
    assignment = Assignment.of(graph, {relu: "a", sigmoid: "b", tanh: "c"}, replicas={"a": [tanh], "c": [sigmoid]})
    twin, written = with_replicas(graph, assignment)

    assert ["sigmoid@c"] == [
        key.rpartition("/")[2].replace("#0", "") for key in stable_keys(twin).values() if "@" in key
    ]
    assert 4 == len(written.partition_of)  # nothing in a uses tanh


class Chunked(nn.Module):
    """Tuples, views, a mask and assertions that torch.export writes down."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            table = torch.arange(8).to(x.dtype).cos()
        left, right = (self.first(x) * 2).chunk(2, -1)
        mask = table > 0
        return self.second(left * mask + right.relu()) * table + left


CHUNKED, CHUNKED_ARGS = Chunked(), (torch.randn(4, 8),)
CHUNKED_GRAPH = graph_of(CHUNKED, *CHUNKED_ARGS)


@settings(max_examples=examples(15), deadline=None)
@given(st.data())
def test_wherever_operators_are_replicas_change_no_result(data: st.DataObject) -> None:
    """Devices with several turns, too; the plan gives the same back."""
    figures = GraphFigures.of(CHUNKED_GRAPH)
    homes = {node: data.draw(st.sampled_from(["left", "right"])) for node in figures.nodes}
    for group in must_share(figures):
        homes.update(dict.fromkeys(group, homes[group[0]]))
    topology = Topology.of(two(), SLOW)
    request = Request(topology, data.draw(st.sampled_from(["latency", "throughput", "memory"])))  # type: ignore[arg-type]
    found = Found(runs_of(CHUNKED_GRAPH, homes), "free", 0.0, 0.0)

    again = add_device_replicas(figures, request, found, data.draw(st.sampled_from(["cheaper", "always"])))  # type: ignore[arg-type]

    if again is None:
        return
    device_of = {part: topology[name] for part, name in again.found.runs.device_of.items()}
    plan = Plan.of("m", "latency", topology, again.found.runs.assignment, device_of)
    graph, assignment = Plan.from_json(plan.to_json()).written(CHUNKED_GRAPH)
    entering = sum(crossing_bytes(assignment, again.found.runs.device_of, value_bytes).values())
    before = sum(crossing_bytes(found.runs.assignment, found.runs.device_of, value_bytes).values())

    assert [] == plan.check(CHUNKED_GRAPH)
    assert entering < before
    assert torch.equal(CHUNKED(*CHUNKED_ARGS), split(graph, assignment)(*CHUNKED_ARGS))


def test_an_option_that_does_not_exist_lists_those_that_do() -> None:
    with pytest.raises(PlacementError, match=r"^There is no replicate 'often'; there are cheaper, always, never\.$"):
        place(Masked(), (torch.randn(16, 64),), devices=two(), replicate="often")  # type: ignore[arg-type]
