"""``place``: a plan and its report before anything moves; what is refused, and how."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from lowering_models import KeyValueCache, Mlp, Tied, cpu_pair
from rich.console import Console
from torch import Tensor, nn

from fxpasses import (
    Device,
    FxPassesError,
    InputError,
    Link,
    PipelineSyntaxError,
    PlacementError,
    Plan,
    PlanError,
    Training,
    fake_devices,
    lower,
)
from fxpasses.lowering import Planned, lower_with_plan, place
from fxpasses.partitioners import measure_node, place_by_device
from fxpasses.partitioners.costs import node_costs as cost
from fxpasses.partitioners.costs.memory import predict_memory
from fxpasses.report.page import render_page
from fxpasses.report.tables import memory_split, print_placement, print_summary
from fxpasses.units import KiB, format_bytes

ARGS = (torch.randn(2, 64),)
TWO = (Device("left", 40 * KiB), Device("right", 40 * KiB))


@pytest.fixture(scope="module")
def planned() -> Planned:
    return place(Mlp().eval(), ARGS, devices=TWO)


def test_each_operator_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Placing, simulating and reporting read what was noted when the graph was made."""
    measured: list[str] = []
    monkeypatch.setattr(cost, "measure_node", lambda node, **options: measured.append(node.name) or measure(node))
    measure = measure_node

    lowered = lower(Mlp(), ARGS, devices=TWO)

    assert ["linear", "relu", "linear_1", "relu_1", "linear_2", "relu_2", "linear_3", "relu_3"] == measured
    assert 2 == len(lowered.plan.parts)


class Picked(nn.Module):
    """Rows that data choose, through a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[x[:, 0].gt(0).nonzero()[:, 0]])


def test_sizes_that_depend_on_data_take_the_seconds_of_what_they_are_picked_from() -> None:
    """They counted as 4,096 rows in what is predicted, and as eight where the plan is simulated."""
    planned = place(Picked(), (torch.randn(8, 16),), devices=[Device("a")], dynamic_shapes=[{0: torch.export.Dim.AUTO}])
    (layer,) = planned.graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default)

    assert 2 * 8 * 16 * 32 == cost.COST.read(layer).flops
    assert planned.plan.simulate(planned.program).seconds == pytest.approx(planned.plan.predicted["seconds"])


def test_the_report_says_how_long_placing_took(planned: Planned) -> None:
    followed = place(Mlp().eval(), ARGS, plan=planned.plan)

    for each in (planned, followed):
        assert ["capture", "passes", "measure", "place"] == [step.name for step in each.report(advice=False).steps]


def test_a_plan_is_what_lowering_makes(planned: Planned) -> None:
    lowered = lower(Mlp().eval(), ARGS, devices=TWO)

    assert lowered.plan == planned.plan
    assert lowered.report.devices == planned.summary.devices


def test_a_device_called_host_is_not_main_memory() -> None:
    """What comes from the caller and goes back to it is told apart from a device, whatever that is called."""
    devices = [Device("host", torch_device="cuda:63"), Device("small", torch_device="cuda:62")]

    planned = place(Mlp().eval(), ARGS, devices=devices, pinned={"layers.0": "host", "layers.3": "small"})

    assert [("main memory", "host"), ("host", "small"), ("small", "main memory")] == [
        (row.source, row.target) for row in planned.summary.copies
    ]


def test_a_plan_needs_no_device() -> None:
    far = fake_devices(2, memory=40 * KiB, torch_device="cuda:63")

    planned = place(Mlp().eval(), ARGS, devices=far)

    assert [("main memory", "device0"), ("device0", "device1"), ("device1", "main memory")] == [
        (row.source, row.target) for row in planned.summary.copies
    ]


def test_a_plan_of_a_model_without_memory_is_that_of_the_model() -> None:
    """Its inputs and results were said to be copied from and to main memory, and its inputs not held by a device."""
    with torch.device("meta"):
        empty, inputs = Mlp().eval(), (torch.randn(2, 64),)

    real = place(Mlp().eval(), ARGS, devices=cpu_pair(40 * KiB, 40 * KiB)).plan

    assert real == place(empty, inputs, devices=cpu_pair(40 * KiB, 40 * KiB)).plan


def test_a_plan_is_followed_and_lowered(planned: Planned) -> None:
    model = Mlp().eval()

    lowered = lower(model, ARGS, plan=planned.plan)
    again = place(model, ARGS, plan=Plan.from_json(json.loads(json.dumps(planned.plan.to_json()))))

    assert torch.equal(lowered(*ARGS), model(*ARGS))
    assert planned.plan.parts == lowered.plan.parts == again.plan.parts


class Counting(nn.Module):
    """A counter that is written to, of which the operators behind it read."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(layers)))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        result: Tensor = self.layers(x) * self.count
        return result


def test_a_program_that_was_exported_again_goes_through_the_passes_of_its_plan() -> None:
    model = Counting()
    plan = place(copy.deepcopy(model), ARGS, devices=TWO, device_map={"": "left", "layers.1": "right"}).plan
    program = torch.export.export(copy.deepcopy(model), ARGS)
    before = str(program)

    lowered = lower_with_plan(program, plan)

    assert torch.equal(lowered(*ARGS), model(*ARGS))
    assert plan.parts == lowered.plan.parts
    assert before == str(program)
    with pytest.raises(PlanError, match=r"^The plan for Counting has no part for layers\.2/linear#0"):
        lower_with_plan(torch.export.export(Counting(3), ARGS), plan)
    with pytest.raises(PlanError, match="/copy_#0"):
        lower_with_plan(program, attrs.evolve(plan, pipeline=None))
    with pytest.raises(PipelineSyntaxError, match=r"^In this plan pipeline: unknown pass"):
        lower_with_plan(program, attrs.evolve(plan, pipeline="fold-it-all"))


def test_an_unknown_pass_of_a_plan_is_told_with_the_file(tmp_path: Path) -> None:
    """A PlanError as of any other slip in a plan; passes may be registered after a plan is read."""
    file = tmp_path / "plan.json"
    placed = place(Mlp(), ARGS, devices=[Device("only")])
    attrs.evolve(placed.plan, pipeline="fold-it-all").save(file)
    plan = Plan.load(file)

    with pytest.raises(PlanError, match=r"^In this plan pipeline: unknown pass 'fold-it-all'") as caught:
        place(placed.program, plan=plan)

    assert isinstance(caught.value, PipelineSyntaxError)
    assert str(caught.value).endswith(f"\nIt was read from {str(file)!r}.")


def test_the_report_splits_memory_at_its_fullest() -> None:
    args = (torch.randn(1, 1, 64), torch.tensor([0]))

    planned = place(KeyValueCache(64, 128).eval(), args, devices=[Device("only")])
    (row,) = planned.summary.devices

    assert 2 * 128 * 64 * 4 + 8 == row.state_bytes
    assert row.peak_bytes == row.parameter_bytes + row.own_bytes + row.peak_copy_bytes
    assert ("received", row.peak_copy_bytes) in memory_split(row)
    assert row.peak_copy_bytes > 0  # inputs are received, too
    assert not planned.summary.copies
    assert row.peak_op in planned.summary.reasons
    assert predict_memory(planned.prepared.graph_module, planned.assignment, planned.plan.device_of)["only"].peak == (
        row.peak_bytes
    )


def test_tied_weights_are_counted_once_a_device() -> None:
    planned = place(Tied().eval(), (torch.randint(0, 50, (16, 32)),), devices=[Device("only")])

    assert (50 * 32 + 32 * 32 + 32) * 4 == planned.summary.devices[0].parameter_bytes


def test_the_report_has_the_path_the_bound_and_advice(planned: Planned) -> None:
    report = planned.report()

    assert ["compute", "copy", "compute"] == [row.kind for row in report.path]
    assert report.path[0].heaviest[0][0].startswith("layers.")
    assert report.advice
    assert report.bound is not None
    assert 0 < report.bound <= report.objective_value * (1 + 1e-9)
    assert None is planned.report(advice=False).advice
    assert json.loads(json.dumps(report.to_json()))["advice"][0]["text"] == report.advice[0].sentence()


def test_copies_that_follow_each_other_on_a_link_are_one_step() -> None:
    class Skips(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first, second = x.relu(), x.sigmoid()
            return first @ second.T

    modules = {"matmul": "right"}
    planned = place(Skips(), (torch.randn(64, 64),), devices=[Device("left"), Device("right")], objective="throughput")
    nodes = {node.name: node for node in planned.prepared.graph_module.graph.nodes}
    plan = Plan.from_json(
        {
            **planned.plan.to_json(),
            "parts": [
                {"name": "left", "device": "left", "ops": ["/relu#0", "/sigmoid#0"]},
                {"name": "right", "device": "right", "ops": ["/*"]},
            ],
        }
    )

    steps = place(Skips(), (torch.randn(64, 64),), plan=plan).summary.path_steps()

    assert modules.keys() <= nodes.keys()
    assert ["left", "2 copies", "right"] == [step.name for step in steps]
    assert {"relu", "sigmoid"} == {name for name, _ in steps[1].heaviest}


def test_it_is_said_where_several_samples_on_their_way_need_more_than_one() -> None:
    """Three layers on the left, one on the right: the left one begins the next sample while the right one reads."""
    pins = {"layers.0": "left", "layers.1": "left", "layers.2": "right", "layers.3": "left"}
    wish = {"pinned": pins, "objective": "throughput", "contiguity": "free"}
    args = (torch.randn(256, 64),)
    unlimited = place(Mlp().eval(), args, devices=[Device("left"), Device("right")], **wish)
    budgets = [Device(row.name, row.peak_bytes) for row in unlimited.summary.devices]

    planned = place(Mlp().eval(), args, devices=budgets, **wish)

    told = planned.summary.crowded()
    timeline = planned.simulate(samples=4, overlap="devices").timeline
    assert [row.name for row in planned.summary.devices if timeline.peak(row.name) > row.budget_bytes] == ["left"]
    held, budget = format_bytes(timeline.peak("left")), format_bytes(budgets[0].memory)
    assert 1 == len(told)
    assert told[0].startswith(f"While several samples are on their way, left holds {held} of its {budget}: budgets are")
    printed = io.StringIO()
    print_placement(planned.summary, Console(width=200, color_system=None, file=printed))
    assert told[0] in printed.getvalue()
    assert told[0] in render_page(planned.summary)
    assert [] == unlimited.summary.crowded() == place(Mlp().eval(), args, devices=budgets).summary.crowded()


def test_it_is_said_where_devices_that_work_at_the_same_time_need_more_than_in_turns() -> None:
    """What the left one sends is there while the right one is still at its fullest."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide = nn.Sequential(nn.Linear(64, 512), nn.Linear(512, 64))
            self.narrow = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.wide(x) + self.narrow(x)

    wish = {"pinned": {"wide": "right", "narrow": "left", "/add#0": "right"}, "contiguity": "free"}
    args = (torch.randn(256, 64),)
    unlimited = place(Branches().eval(), args, devices=[Device("left"), Device("right")], **wish)
    budgets = [Device(row.name, row.peak_bytes) for row in unlimited.summary.devices]

    planned = place(Branches().eval(), args, devices=budgets, **wish)

    (told,) = planned.summary.crowded()
    timeline = planned.simulate(overlap="copies").timeline
    held, budget = format_bytes(timeline.peak("right")), format_bytes(budgets[1].memory)
    assert told == (
        f"Where devices work at the same time, right holds {held} of its {budget}: budgets are kept where they take "
        "turns; give it 64.0 KiB more."
    )
    printed = io.StringIO()
    print_placement(planned.summary, Console(width=200, color_system=None, file=printed))
    assert told in printed.getvalue()
    assert told in render_page(planned.summary)


def device_of_entries(planned: Planned) -> dict[str, str]:
    return {entry: part.device for part in planned.plan.parts for entry in part.ops}


def test_operators_may_be_named_as_a_plan_does_where_they_are_pinned() -> None:
    pins = {"/relu#1": "right", "layers.2/*": "right", "/*": "left"}

    planned = place(Mlp().eval(), ARGS, devices=[Device("left"), Device("right")], pinned=pins, contiguity="free")

    assert pins["/relu#1"] == device_of_entries(planned)["/relu#1"]
    assert ["/relu#1", "layers.2/*"] == [entry for entry, at in device_of_entries(planned).items() if at == "right"]
    assert planned.report().advice  # it is placed again for that


def test_operators_may_be_named_as_a_plan_does_where_they_share_a_device_or_are_kept_off_one() -> None:
    options: dict[str, Any] = {
        "pinned": {"layers.1": "left"},
        "forbidden": {"layers.0/linear#0": ["left"]},
        "colocate": [["layers.0/linear#0", "/relu#3"]],
    }

    planned = place(Mlp().eval(), ARGS, devices=[Device("left"), Device("right")], contiguity="free", **options)

    there = device_of_entries(planned)
    assert ("right", "left", "right") == (there["layers.0/*"], there["layers.1/*"], there["/relu#3"])


def test_what_is_known_about_better_placements_is_said(planned: Planned) -> None:
    sentence = planned.report(advice=False).optimality()

    assert sentence.startswith(
        ("Proven optimal: no placement of this kind is quicker.", "No placement of this kind can")
    )
    followed = place(Mlp().eval(), ARGS, plan=planned.plan)
    assert "How far it is from the best placement is not known." == followed.summary.optimality()


@pytest.mark.parametrize("width", [30, 60, 99, 100, 140])
def test_the_tables_fit_the_terminal(planned: Planned, width: int) -> None:
    printed = io.StringIO()

    print_placement(planned.report(), Console(width=width, color_system=None, file=printed))
    lines = printed.getvalue().splitlines()

    assert max(map(len, lines)) <= width
    assert any("left" in line for line in lines)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_in_a_narrow_terminal_a_number_stays_with_its_unit(planned: Planned, width: int) -> None:
    """What does not fit a line goes on further in."""
    printed = io.StringIO()

    print_placement(planned.report(advice=False), Console(width=width, color_system=None, file=printed))
    lines = printed.getvalue().splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("  holds"))

    assert not [line for line in lines if line.lstrip().startswith(("B", "KiB", "us", "ms"))]
    assert "  holds" == lines[first][:7]
    assert lines[first + 1].startswith("      ") or not lines[first + 1].startswith(" ")


def test_a_report_is_printed_as_its_tables(planned: Planned) -> None:
    """Not as its fields; no colours, no spaces at the ends of lines, and the sentences after the tables."""
    report = planned.report()
    printed = io.StringIO()
    print_summary(report, Console(width=120, color_system=None, file=printed))

    text = str(report)

    assert text.splitlines() == [line.rstrip() for line in printed.getvalue().splitlines()]
    assert text.startswith("Steps\n")
    assert f"\n{report.optimality()}\nWhat would help most:\n" in text
    assert "\x1b" not in text


def test_the_page_shows_it_all(planned: Planned) -> None:
    page = render_page(planned.report())

    for text in ("What would help most", "memory at its fullest", "Critical path", "Timeline", "Copies", "<svg"):
        assert text in page
    assert page.count("<script") == 1


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: place(Mlp(), ARGS),
            "There is no device to place the model on; give at least one, such as Device('cpu').",
        ),
        (lambda: place(Mlp(), ARGS, devices=[]), "There is no device to place the model on; give at least one"),
        (lambda: place(Mlp(), ARGS, devices=[*TWO, TWO[0]]), "Two devices are called 'left'; give each its own name."),
        (
            lambda: place(Mlp(), ARGS, devices=TWO, links=[Link("left", "top")]),
            "The link left:top names the device 'top', which is not among left, right.",
        ),
        (
            lambda: place(Mlp(), ARGS, devices=TWO, device_map={"layer": "left", "": "right"}),
            "The device map names 'layer', which the model does not have; did you mean 'layers'?",
        ),
        (
            lambda: place(Mlp(), ARGS, devices=TWO, pinned={"layers.0/linear#7": "left"}),
            "No operator has the key 'layers.0/linear#7'; the nearest are layers.0/linear#0, ",
        ),
        (
            lambda: place(Mlp(), ARGS, devices=TWO, colocate=[["heads/nothing_alike_here#12345678"]]),
            "No operator has the key 'heads/nothing_alike_here#12345678'; the file of a plan lists them.",
        ),
        (
            lambda: place(Mlp(), ARGS, devices=TWO, pinned={"head": "left"}),
            "`pinned` names 'head', from which no operator of this graph comes; ",
        ),
        (
            lambda: place(nn.Sequential(nn.Linear(64, 64)), ARGS, devices=TWO, pinned={0: "left"}),  # type: ignore[dict-item]
            "`pinned` names 0, from which no operator of this graph comes; a path is a text: write '0'.",
        ),
        (
            lambda: place(Mlp(), ARGS, devices=TWO, objective="speed"),
            "There is no objective 'speed'; there are latency",
        ),
        (lambda: place(Mlp(), ARGS, devices=TWO, contiguity="cut"), "There is no contiguity 'cut'; there are pipeline"),
        (
            lambda: place(Mlp(), ARGS, devices=TWO, offload="disk"),
            "Parameters can be offloaded to 'cpu', not to 'disk'",
        ),
        (
            lambda: place(
                Mlp(), ARGS, devices=[Device("picky", supports=lambda _modules, node: node.name != "relu_1")]
            ),
            "No device supports relu_1 (aten.relu.default, from ",
        ),
        (
            lambda: place(Mlp(), ARGS, devices=TWO, forbidden={"layers.0": "left"}),
            "`forbidden` gives 'layers.0' the text 'left'; write a list: ['left'].",
        ),
        (
            lambda: place(Mlp(), ARGS, devices=[Device("a"), Device("b")], colocate=[["head", "layers.0"]]),
            "`colocate` names 'head', from which no operator of this graph comes; ",
        ),
        (
            lambda: place(Mlp(), ARGS, devices=TWO, colocate=["layers.0"]),
            "`colocate` is a list of groups, and 'layers.0' is a text; write [['layers.0', ...]].",
        ),
        (
            lambda: place(Mlp(), ARGS, devices=[Device("a"), Device("b")], colocate=["layers.0"]),
            "`colocate` is a list of groups, and 'layers.0' is a text; write [['layers.0', ...]].",
        ),
        (
            lambda: place(Mlp(), ARGS, devices=[Device("a", backend="xla")]),
            "There is no backend 'xla'; there are eager, inductor, onnxruntime, openvino.",
        ),
        (
            lambda: place(Mlp(), ARGS, devices=TWO, pinned=["layers.0"]),  # type: ignore[arg-type]
            "`pinned` is a dict by nodes and module paths, not ['layers.0'].",
        ),
        (
            lambda: place(Mlp(), ARGS, devices=TWO, pinned={"layers.0": ["left"]}),  # type: ignore[dict-item]
            "`pinned` names the device ['left']; there are left, right.",
        ),
        (lambda: place(Mlp(), ARGS, devices=TWO, pinned={0: "left"}), "`pinned` names 0, from which no operator"),  # type: ignore[dict-item]
        (
            lambda: place(Mlp(), ARGS, devices=TWO, forbidden={"layers.0": None}),  # type: ignore[dict-item]
            "`forbidden` gives 'layers.0' None; write a list of device names.",
        ),
        (
            lambda: place(Mlp(), ARGS, ["x"], devices=TWO),  # type: ignore[arg-type]
            "kwargs is a dict of example inputs by name, not list; options, as devices=, go by name.",
        ),
        (
            lambda: place(Mlp(), ARGS, TWO),  # type: ignore[arg-type]
            "kwargs is a dict of example inputs by name, not tuple; options, as devices=, go by name.",
        ),
        (
            lambda: place(Mlp(), ARGS, devices=TWO).plan.check(Mlp()),  # type: ignore[arg-type]
            "A plan is about a GraphModule or an ExportedProgram, not Mlp; export the model first, or take the program",
        ),
        (
            lambda: place(Mlp(), ARGS, devices=TWO, time_budget=-1),
            "The time budget is a number of seconds, not -1.",
        ),
        (lambda: place(Mlp(), ARGS, devices=TWO, time_budget=10**400), "The time budget is a number of seconds, not 1"),
        (lambda: place(Mlp(), ARGS, devices=TWO, seed="x"), "The seed is a whole number from 0 on, not 'x'."),  # type: ignore[arg-type]
        (
            lambda: place(Mlp(), ARGS, plan="plan.json"),  # type: ignore[arg-type]
            "plan is a Plan, not str; of a file write Plan.load('plan.json').",
        ),
        (
            lambda: place(Mlp(), ARGS, plan=place(Mlp(), ARGS, devices=TWO).plan, device_map={"": "left"}),
            "A plan and a device map both say where the model runs; give one of them.",
        ),
        (
            lambda: place(Mlp(), ARGS, plan=place(Mlp(), ARGS, devices=TWO).plan, pinned={"layers.0": "left"}),
            "A plan says where the model runs, and nothing is searched; leave pinned out, or the plan.",
        ),
        (
            lambda: lower(Mlp(), ARGS, plan=place(Mlp(), ARGS, devices=TWO).plan, objective="memory"),
            "A plan says where the model runs, and nothing is searched; leave objective out, or the plan.",
        ),
        (
            lambda: place(Mlp(), ARGS, devices=TWO, device_map={"": "left"}, contiguity="free"),
            "A device map says where the model runs, and nothing is searched; leave contiguity out, or the device map.",
        ),
        (
            lambda: place(Mlp(), ARGS, plan=place(Mlp(), ARGS, devices=TWO).plan, links=[Link("left", "right")]),
            "A plan has its own links; give them together with devices, or leave them out.",
        ),
        (
            lambda: place(Mlp(), ARGS, devices=[Device("a"), Device("b")], forbidden={"layers.0": ["a", "b"]}),
            "linear (aten.linear.default, of module 'layers.0', from ",
        ),
        (lambda: Device("a", supports="all"), "supports is called as supports(submodules, node), and 'all' cannot"),
        (
            lambda: place_by_device(torch.export.export(Mlp(), ARGS), TWO),  # type: ignore[arg-type]
            "A graph is a GraphModule, not ExportedProgram; of a program take .module().",
        ),
        (
            lambda: place(Mlp(), ARGS, devices=TWO, pipeline=3),
            "A pipeline is a text, a PassManager or a list of passes, not int.",
        ),
    ],
)
def test_bad_input_is_one_sentence(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(FxPassesError) as caught:
        make()

    assert str(caught.value).startswith(sentence)


def test_lower_takes_the_wishes_that_place_takes() -> None:
    """Pinned, forbidden and joined modules go where they are wanted."""
    model, x = Mlp(4).eval(), torch.randn(2, 64)
    wishes: dict[str, Any] = {
        "pinned": {"layers.0": "right"},
        "forbidden": {"layers.3": ["right"]},
        "colocate": [["layers.0", "layers.1"]],
    }

    lowered = lower(model, (x,), devices=cpu_pair(40 * KiB, 40 * KiB), objective="throughput", seed=1, **wishes)

    right, left = (lowered.plan.parts[index].ops for index in (0, 1))
    assert "right" == lowered.plan.parts[0].device
    assert {"layers.0/*", "layers.1/*"} <= set(right)
    assert "layers.3/*" in left
    assert torch.equal(model(x), lowered(x))


def test_a_plan_that_passes_a_budget_is_not_followed() -> None:
    """The error says which device, where and by how many bytes."""
    model, x = Mlp(4).eval(), torch.randn(2, 64)
    plan = place(model, (x,), devices=cpu_pair(40 * KiB, 40 * KiB)).plan

    with pytest.raises(PlanError, match=r"^The plan for Mlp cannot be followed: left holds 3.\.. KiB at "):
        lower(model, (x,), plan=plan, devices=cpu_pair(20 * KiB, 40 * KiB))


def test_a_torch_device_has_to_be_known_to_plan_and_here_to_lower() -> None:
    """The message names it, before anything moves."""
    model, x = Mlp(1).eval(), torch.randn(2, 64)

    with pytest.raises(InputError, match=r"^The device 'a' is on the torch device 'toaster', which torch does not "):
        place(model, (x,), devices=[Device("a", torch_device="toaster")])
    with pytest.raises(PlacementError, match=r"^The device 'a' is the torch device cuda:63, and this machine has none"):
        lower(model, (x,), devices=[Device("a", torch_device="cuda:63")])


def test_no_device_has_to_support_what_the_host_runs() -> None:
    """Elements of tuples, guards of inputs, sizes and arithmetic on them."""

    class Halves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            first, second = x.chunk(2, dim=-1)
            return (first + second).reshape(x.shape[0] * 2, -1)

    aten = torch.ops.aten
    known = (aten.chunk.default, aten.add.Tensor, aten.reshape.default)
    device = Device("only", supports=lambda _submodules, node: node.target in known)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(Halves(), (torch.randn(4, 8),), dynamic_shapes={"x": {0: batch}})

    x = torch.randn(6, 8)
    assert torch.equal(Halves()(x), lower(program, devices=[device])(x))
    assert ["only"] == [str(part) for part in place_by_device(program.module(), [device]).assignment]


def test_operators_that_sit_somewhere_for_one_reason_are_one_entry_of_the_page() -> None:
    """Each name is still on the page, where the search field finds it."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(40)))
    planned = place(layers, (torch.randn(2, 8),), devices=[Device("left"), Device("right")], objective="throughput")
    runs = planned.summary.reason_runs()
    page = render_page(planned.summary)

    assert list(planned.summary.reasons) == [key for keys, _ in runs for key in keys]
    assert len(planned.plan.parts) == len(runs) == page.count("operators</summary>")
    assert all({why} == {planned.summary.reasons[key] for key in keys} for keys, why in runs)
    assert all(f"<code>{key}</code>" in page for key in planned.summary.reasons)


class Returning(nn.Module):
    """A large value that only its own device uses, after it had to wait for another one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.first(x)
        wide = before.repeat(1000, 100)
        return self.third(self.second(before)).sum() + wide.sum()


def test_a_reason_counts_what_goes_to_other_devices() -> None:
    """What a later part of the same device uses does not cross."""
    pinned = {"first": "l", "second": "r", "third": "l"}
    placed = place(Returning(), (torch.ones(2, 4),), devices=[*map(Device, "lr")], pinned=pinned, contiguity="free")

    crossing = {copy.source: copy.size for copy in placed.summary.copies}

    assert 2 < len(placed.plan.parts)
    assert {"l", "r"} == set(crossing)
    assert not [reason for reason in placed.reasons.values() if "MiB cross" in reason or "KiB cross" in reason]
    assert any(f"where {crossing['r']} B cross" in reason for reason in placed.reasons.values())


def test_names_are_printed_as_they_are() -> None:
    """Rich takes brackets for styles."""
    placed = place(Mlp().eval(), (torch.ones(2, 64),), devices=[Device("x[red]y", "40 KiB"), Device("z", "40 KiB")])
    printed = io.StringIO()

    print_placement(placed.report(), Console(width=200, color_system=None, file=printed))

    assert "xy" not in printed.getvalue()
    assert [line for line in printed.getvalue().splitlines() if "x[red]y" in line and "With" in line]


def test_a_program_in_a_file_is_called_after_it(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(Mlp().eval(), (torch.ones(2, 64),)), tmp_path / "mlp.pt2")

    assert str(tmp_path / "mlp.pt2") == place(tmp_path / "mlp.pt2", devices=[Device("a")]).plan.model


def test_a_name_is_a_text() -> None:
    """The plan could be saved, and not be read again."""
    with pytest.raises(InputError, match=r"^The name of a model is a text, not 3\.$"):
        place(Mlp().eval(), (torch.ones(2, 64),), devices=[Device("a")], name=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("objective", ["latency", "throughput", "memory", "devices"])
@pytest.mark.parametrize(("training", "budgets"), [(None, (30, 200)), (Training(1), (60, 400))])
@pytest.mark.parametrize("is_offloaded", [True, False])
def test_a_plan_that_is_followed_tells_its_objective_again(
    objective: Any, training: Any, budgets: tuple[int, int], is_offloaded: bool
) -> None:
    """Of offloaded parts, too; only the bound is a search's own. The value was ``None``."""
    budget = (budgets[0] if is_offloaded else budgets[1]) * KiB
    devices = [Device("left", budget, flops=1e10), Device("right", 2 * budget, flops=2e10)]
    model, inputs = Mlp(6), (torch.randn(8, 64),)
    searched = place(model, inputs, devices=devices, objective=objective, training=training, offload="cpu")

    followed = place(model, inputs, plan=Plan.from_json(searched.plan.to_json()))

    assert bool(searched.plan.offloaded) == is_offloaded
    assert searched.summary.objective_value is not None
    assert pytest.approx(searched.summary.objective_value) == followed.summary.objective_value
    assert None is followed.summary.bound


def test_that_nothing_is_to_do_is_proven_optimal() -> None:
    """A bound of 0 was taken for none."""

    class Views(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(4, 4).t()

    summary = place(Views(), (torch.randn(16),), devices=[Device("left"), Device("right")]).summary

    assert (0.0, 0.0, 0.0) == (summary.objective_value, summary.bound, summary.gap)
    assert "Proven optimal: no placement of this kind is quicker." == summary.optimality()
