"""``fxpasses place``: plans, checks for CI, differences, timelines; and one sentence for each kind of bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fxpasses import Plan
from fxpasses.cli import main

MODEL = """
import torch

def build(count, **names):
    torch.manual_seed(0)
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(count))
            setattr(self, names.get("name", "layers"), layers)
        def forward(self, x):
            for layer in getattr(self, names.get("name", "layers")):
                x = layer(x)
            return x
    return Net().eval(), (torch.randn(2, 64),)

def model():
    return build(4)

def longer():
    return build(5)

def renamed():
    return build(4, name="blocks")

class Activated(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x).relu()

def activated():
    model, args = build(4)
    for index in range(4):
        model.layers[index] = Activated(64, 64)
    return model.eval(), args

def residual():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))
        def forward(self, x):
            for layer in self.layers:
                x = x + layer(x)
            return x
    return Net().eval(), (torch.randn(2, 64),)

def masked():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(3))
        def forward(self, x):
            mask = torch.arange(256)[:, None] >= torch.arange(64)[None]
            for layer in self.layers:
                x = layer(x) * mask
            return x
    return Net().eval(), (torch.randn(256, 64),)

def other():
    return torch.nn.Sequential(torch.nn.Conv1d(1, 2, 3), torch.nn.GELU()).eval(), (torch.randn(1, 1, 9),)
"""
TWO = ["--device", "left=cpu,memory=40KiB", "--device", "right=cpu,memory=40KiB"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("models") / "net.py"
    file.write_text(MODEL)
    return str(file)


@pytest.fixture(scope="module")
def plan_file(source: str) -> Path:
    file = Path(source).with_name("plan.json")
    result = run(f"{source}:model", *TWO, "--no-advice", "--out", str(file))
    assert 0 == result.exit_code, result.output
    return file


def run(*arguments: str, columns: int | None = None) -> Result:
    env = {"COLUMNS": None if columns is None else str(columns)}
    return CliRunner(env=env).invoke(main, ["place", *arguments])


def edited(plan_file: Path, folder: Path, **changes: Any) -> str:
    data = json.loads(plan_file.read_text())
    (folder / "edited.json").write_text(json.dumps({**data, **changes}))
    return str(folder / "edited.json")


def test_a_plan_is_made_printed_and_written(source: str, tmp_path: Path) -> None:
    result = run(f"{source}:model", *TWO, "--out", str(tmp_path / "plan.json"))

    assert 0 == result.exit_code, result.output
    for text in ("Devices", "Copies: ", "Critical path: ", "One run is predicted to take ", "What would help most:"):
        assert text in result.stdout
    assert "... try what would help\n" in result.stderr
    assert ["left", "right"] == [part.device for part in Plan.load(tmp_path / "plan.json").parts]


def test_the_plan_says_which_passes_ran_and_what_is_predicted(plan_file: Path) -> None:
    plan = Plan.load(plan_file)

    assert "remove-no-ops,eliminate-dead-code,snapshot-state" == plan.pipeline
    assert {"seconds", "objective_value", "devices"} <= plan.predicted.keys()
    assert all(device["peak_bytes"] <= 40 * 1024 for device in plan.predicted["devices"].values())
    assert plan.copies


def test_other_pairs_are_routed_over_the_links_there_are(source: str, tmp_path: Path) -> None:
    """In the plan, and in advice: the link is named that there is."""
    line = ["--device", "middle=cpu", *TWO, "--link", "left:middle=1GiB/s", "--link", "middle:right=2GiB/s"]
    plan = tmp_path / "plan.json"

    result = run(f"{source}:model", *line, "--routed", "--no-advice", "--out", str(plan))

    assert 0 == result.exit_code, result.output
    (route,) = [link for link in Plan.load(plan).links if link.via]
    assert ({"left", "right"}, 2**30, ("middle",)) == ({route.first, route.second}, route.bandwidth, route.via)
    assert 0 == run(f"{source}:model", "--check", str(plan)).exit_code


def test_what_is_computed_again_is_asked_for_planned_and_run(source: str, tmp_path: Path) -> None:
    pins = ["--pin", "layers.1=left", "--pin", "layers.2=right", "--link", "left:right=0.1GiB/s"]
    devices = ["--device", "left=cpu", "--device", "right=cpu"]
    plan = str(tmp_path / "plan.json")
    rows = {}
    for how in ("never", "cheaper"):
        result = run(f"{source}:masked", *devices, *pins, "--replicate", how, "--json", "--no-advice", "--out", plan)
        rows[how] = json.loads(result.stdout)["replicas"]
    told = run(f"{source}:masked", "--plan", plan, "--no-advice", columns=200)
    lowered = CliRunner().invoke(main, ["lower", f"{source}:masked", "--plan", plan, "--check", "--json"])

    assert [] == rows["never"]
    (row,) = rows["cheaper"]
    assert 256 * 64 == row["saved_bytes"]
    assert "/arange#0" in row["ops"]
    assert "right on right computes /arange#0" in told.output
    assert "so that 16.0 KiB less are sent there." in told.output
    assert rows["cheaper"] == json.loads(lowered.stdout)["replicas"]
    assert json.loads(lowered.stdout)["check"]["exact"]
    assert 0 == run(f"{source}:masked", "--check", plan).exit_code
    assert 2 == run(f"{source}:masked", *devices, "--replicate", "often").exit_code


def test_json_is_for_machines(source: str, plan_file: Path) -> None:
    result = run(f"{source}:model", *TWO, "--json", "--diff", str(plan_file))

    facts = json.loads(result.stdout)
    assert {"devices", "copies", "path", "bound", "gap", "advice", "plan", "diff", "files"} <= facts.keys()
    groups = ("moves", "settings", "devices", "copies", "predicted", "again", "contents")
    assert {group: [] for group in groups} == facts["diff"]
    assert all({"text", "before", "after", "how"} <= advice.keys() for advice in facts["advice"])
    assert {"state_bytes", "peak_copy_bytes", "idle_ms", "peak_op"} <= facts["devices"][0].keys()


@pytest.mark.parametrize("columns", [40, 110])
def test_nothing_is_wider_than_the_terminal(source: str, columns: int) -> None:
    result = run(f"{source}:model", *TWO, "--no-advice", columns=columns)

    assert 0 == result.exit_code
    assert max(map(len, result.stdout.splitlines())) <= columns
    assert "KiB" in result.stdout


def test_colours_can_be_left_out(source: str) -> None:
    result = CliRunner(env={"FORCE_COLOR": "1"}).invoke(
        main, ["place", f"{source}:model", *TWO, "--no-advice", "--no-color"]
    )

    assert "\x1b[3" not in result.stdout


def test_a_timeline_is_written_as_trace_and_as_picture(source: str, tmp_path: Path) -> None:
    trace, svg, page = (tmp_path / name for name in ("run.json", "run.svg", "page.html"))

    result = run(
        f"{source}:model",
        *TWO,
        "--trace",
        str(trace),
        "--svg",
        str(svg),
        "--page",
        str(page),
        "--samples",
        "3",
        "--no-advice",
    )

    assert 0 == result.exit_code, result.output
    spans = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert 3 == sum(event["name"] == "linear" for event in spans)
    assert "svg" in ElementTree.fromstring(svg.read_text()).tag
    assert "Critical path" in page.read_text()


def test_a_timeline_of_one_sample_ends_when_the_report_says(source: str, tmp_path: Path) -> None:
    """Under latency, loads run beside what computes."""
    small, trace = ["--device", "small=cpu,memory=40KiB", "--offload", "cpu"], tmp_path / "run.json"

    result = run(f"{source}:model", *small, "--trace", str(trace), "--json", "--no-advice")

    assert 0 == result.exit_code, result.output
    facts = json.loads(result.stdout)
    spans = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    end = max(span["ts"] + span["dur"] for span in spans) / 1e3
    assert end == pytest.approx(facts["objective_value"] * 1e3, rel=1e-4)  # a trace has nanoseconds
    assert end < 0.95 * facts["estimated_ms"]  # everything one after the other


def test_a_device_map_goes_in_and_out(source: str, tmp_path: Path) -> None:
    given = {"layers.0": "left", "layers.1": "left", "layers.2": "right", "layers.3": "right"}
    (tmp_path / "map.json").write_text(json.dumps(given))

    result = run(
        f"{source}:model",
        *TWO,
        "--device-map",
        str(tmp_path / "map.json"),
        "--device-map-out",
        str(tmp_path / "out.json"),
    )

    assert 0 == result.exit_code, result.output
    assert given == json.loads((tmp_path / "out.json").read_text())


def test_a_device_map_that_says_the_whole_plan_goes_out_without_a_note(source: str, tmp_path: Path) -> None:
    """The additions between the layers stay with the operators before them."""
    pins = ["--pin", "layers.1=left", "--pin", "layers.2=right", "--no-advice"]

    result = run(f"{source}:residual", *TWO, *pins, "--device-map-out", str(tmp_path / "out.json"))

    assert 0 == result.exit_code, result.output
    assert "note:" not in result.stderr
    where = {"layers.0": "left", "layers.1": "left", "layers.2": "right", "layers.3": "right"}
    assert where == json.loads((tmp_path / "out.json").read_text())


def test_modules_can_be_pinned(source: str, tmp_path: Path) -> None:
    result = run(
        f"{source}:model", *TWO, "--no-advice", "--pin", "layers.3=left", "--device-map-out", str(tmp_path / "map.json")
    )

    assert 0 == result.exit_code, result.output
    assert "left" == json.loads((tmp_path / "map.json").read_text())["layers.3"]


def test_a_plan_can_be_followed_by_hand_with_its_own_devices(source: str, plan_file: Path, tmp_path: Path) -> None:
    parts = [
        {"name": "right", "device": "right", "ops": ["layers.0/*"]},
        {"name": "left", "device": "left", "ops": ["/*"]},
    ]

    result = run(
        f"{source}:model",
        *("--plan", edited(plan_file, tmp_path, parts=parts, devices=[{"name": "left"}, {"name": "right"}])),
        *("--diff", str(plan_file)),
    )

    assert 0 == result.exit_code, result.output
    assert "Changed since plan.json" in result.stdout
    assert "left → right: layers.0/*" in result.stdout
    assert "device left: available_mem_bytes 40.0 KiB → no limit" in result.stdout


def test_a_plan_that_fits_passes_the_check(source: str, plan_file: Path) -> None:
    result = run(f"{source}:model", "--check", str(plan_file))

    assert (0, "plan.json fits: 2 parts on left, right, every budget kept.\n") == (result.exit_code, result.stdout)


@pytest.mark.parametrize(
    ("model", "more", "lines"),
    [
        ("longer", [], ["  no part: layers.4/linear#0 has no part; add it to one, or place again"]),
        (
            "renamed",
            [],
            ["('layers' seems to be called 'blocks' now: plan.rename_modules({'layers': 'blocks'}) adapts the plan)"],
        ),
        ("other", [], ["  another model: This is a plan for "]),
        (
            "model",
            ["--device", "left=cpu,memory=20KiB", "--device", "right=cpu,memory=40KiB"],
            ["  budget: left holds ", "over its budget of 20.0 KiB (parameters "],
        ),
        (
            "model",
            ["--device", "left=cpu"],
            ["  no device: The plan puts right on right, which is not among the devices left; add it, or place the"],
        ),
        (
            "model",
            ["--on-this-machine", "--device", "left=cuda:77", "--device", "right=cpu"],
            ["  no torch device: The plan runs left on left, which is the torch device cuda:77; this machine has"],
        ),
    ],
)
def test_a_plan_that_no_longer_fits_fails_the_check(
    source: str, plan_file: Path, model: str, more: list[str], lines: list[str]
) -> None:
    result = run(f"{source}:{model}", "--check", str(plan_file), *more)

    assert 1 == result.exit_code
    assert result.stdout.startswith("plan.json does not fit:\n")
    for line in lines:
        assert line in result.stdout


def test_operators_that_came_to_whole_modules_fail_the_check_until_the_plan_is_written_anew(
    source: str, plan_file: Path, tmp_path: Path
) -> None:
    """As the message advises: the plan stays as it is."""
    model, anew = f"{source}:activated", str(tmp_path / "anew.json")

    told = run(model, "--check", str(plan_file))
    followed = run(model, "--plan", str(plan_file), "--no-advice", "--out", anew)

    assert (1, 0) == (told.exit_code, followed.exit_code)
    assert "\n  changed: layers.0/*, layers.1/*, layers.2/* and 1 more stand for other operators " in told.stdout
    assert (
        "when the plan was written: 1 x relu (0 before); place again, or follow the plan as it is and write it"
        in told.stdout
    )
    assert 0 == run(model, "--check", anew).exit_code
    assert json.loads(plan_file.read_text())["parts"] == json.loads(Path(anew).read_text())["parts"]


def test_a_check_is_json_for_machines(source: str, plan_file: Path) -> None:
    result = run(f"{source}:longer", "--check", str(plan_file), "--json")

    facts = json.loads(result.stdout)
    assert 1 == result.exit_code
    assert not facts["ok"]
    assert ["no part"] == [violation["kind"] for violation in facts["violations"]]


@pytest.mark.parametrize("option", ["--check", "--plan"])
def test_an_unknown_pass_is_told_as_one_of_the_plan(source: str, plan_file: Path, tmp_path: Path, option: str) -> None:
    result = run(f"{source}:model", option, edited(plan_file, tmp_path, pipeline="remove-no-ops,make-coffee"))

    assert 2 == result.exit_code
    assert "error: In this plan pipeline: unknown pass 'make-coffee'" in result.stderr


def test_a_tighter_budget_in_the_plan_itself_fails_the_check(source: str, plan_file: Path, tmp_path: Path) -> None:
    devices = [{"name": "left", "available_mem_bytes": "30KiB"}, {"name": "right"}]

    result = run(f"{source}:model", "--check", edited(plan_file, tmp_path, devices=devices))

    assert 1 == result.exit_code
    assert "budget: left holds " in result.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "error: There is no device to place the model on; give at least one, such as --device left=cpu."),
        (["--device", "a=cpu", "--device", "a=cpu"], "error: Two devices are called 'a'; give each its own name."),
        (["--device", "a=cpu,memory=lots"], "error: --device 'a=cpu,memory=lots': 'lots' is not a size in bytes; "),
        (["--device", "a=cpu,memory=-4MiB"], "error: --device 'a=cpu,memory=-4MiB': '-4MiB' is not a size in"),
        (["--device", "a=cpu,flops=0"], "error: --device 'a=cpu,flops=0': A device's flops must be a positive"),
        (
            ["--device", "a=cpu", "--link", "a:b=1GiB/s"],
            "error: The link a:b names the device 'b', which is not among a.",
        ),
        (["--device", "a=cpu", "--link", "a=1GiB/s"], "error: --link 'a=1GiB/s' does not read A:B=RATE,LATENCY; write"),
        ([*TWO, "--routed"], "error: No route joins left and right; give a link that does."),
        (["--check", "PLAN", "--routed"], "error: --routed joins two devices; name them with --device, or leave it"),
        ([*TWO, "--pin", "layers.0"], "error: --pin 'layers.0' does not read MODULE=DEVICE; write it like"),
        ([*TWO, "--pin", "layers.9=left"], "error: `pinned` names 'layers.9', from which no operator of this graph"),
        ([*TWO, "--pin", "layers.0=top"], "error: `pinned` names the device 'top'; there are left, right."),
        ([*TWO, "--plan", "nowhere.json"], "error: There is no plan file 'nowhere.json'."),
        (["--check", "nowhere.json"], "error: There is no plan file 'nowhere.json'."),
        ([*TWO, "--diff", "nowhere.json"], "error: There is no plan file 'nowhere.json'."),
        ([*TWO, "--device-map", "nowhere.json"], "error: There is no device map 'nowhere.json'."),
        ([*TWO, "--device-map", "LIST"], "is no device map; write an object like {"),
        ([*TWO, "--device-map", "BROKEN"], "is not JSON: "),
        ([*TWO, "--device-map", "TWICE"], "has two entries 'layers.0' in one object; take one out."),
        (
            [*TWO, "--device-map", "WRONG"],
            "error: The device map names 'layer.0', which the model does not have; did",
        ),
        ([*TWO, "--plan", "LIST"], "error: This is no plan; write one with fxpasses place --out."),
        ([*TWO, "--plan", "PLAN", "--diff", "LIST"], "place --out. It was read from '"),
        ([*TWO, "--check", "PLAN", "--out", "x.json"], "error: --check only checks; leave --out out, or use --plan to"),
        (["--check", "PLAN", "--seed", "1"], "error: --check only checks, and nothing is searched; leave --seed out."),
        (["--check", "PLAN", "--samples", "2"], "error: --check only checks; leave --samples out, or use --plan to"),
        (["--check", "PLAN", "--no-advice"], "error: --check only checks; leave --no-advice out, or use --plan to"),
        (["--check", "PLAN", "--link", "left:right=1GB/s"], "error: --link joins two devices; name them with --device"),
        (
            ["--plan", "PLAN", "--pin", "layers.0=right"],
            "error: --plan follows a plan, and nothing is searched; leave --pin out, or --plan.",
        ),
        (
            ["--plan", "PLAN", "--device", "left=cpu"],
            "cannot be followed: The plan puts right on right, which is not among the devices left; add it",
        ),
        (["--plan", "PLAN", "--objective", "latency"], "nothing is searched; leave --objective out, or --plan."),
        (["--plan", "PLAN", "--contiguity", "free"], "nothing is searched; leave --contiguity out, or --plan."),
        (["--plan", "PLAN", "--offload", "cpu"], "nothing is searched; leave --offload out, or --plan."),
        (["--plan", "PLAN", "--link", "left:right=1GB/s"], "error: --link joins two devices; name them with --device"),
        (
            [*TWO, "--device-map", "MAP", "--pin", "layers.0=right"],
            "error: --device-map says where it runs, and nothing is searched; leave --pin out, or the map.",
        ),
        (
            [*TWO, "--pin", "layers.0=left", "--pin", "layers.0=right"],
            "error: --pin says twice where 'layers.0' runs, on left and right; take one out.",
        ),
        (
            [*TWO, "--on-this-machine"],
            "error: --on-this-machine is about the plan that --check checks; add --check FILE, or leave it out.",
        ),
        (
            [*TWO, "--samples", "2"],
            "error: --samples says how many samples --trace and --svg show; add one of them, or leave it out.",
        ),
        (
            [*TWO, "--trace", "x.svg", "--svg", "./x.svg"],
            "error: --trace and --svg both write to 'x.svg'; give each a file of its own.",
        ),
        (
            [*TWO, "--objective", "speed"],
            "error: Invalid value for '--objective': 'speed' is not one of 'latency', 'throughput', 'memory', "
            "'devices'; see main place --help.",
        ),
        ([*TWO, "--page", "."], "error: Invalid value for '--page': File '.' is a directory; see main place --help."),
        ([*TWO, "--samples", "0", "--svg", "x.svg"], "error: A simulation takes 1 sample or more, not 0."),
        (
            [*TWO, "--out", "/nowhere/plan.json"],
            "error: '/nowhere/plan.json' cannot be written: there is no folder",
        ),
        (
            ["--device", "a=cpu,memory=30KiB", "--device", "b=cpu,memory=30KiB"],
            "but all devices together have 60.0 KiB (a 30.0 KiB, b 30.0 KiB): ",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_two(
    source: str, plan_file: Path, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    texts = {"LIST": "[]", "BROKEN": "{", "WRONG": '{"layer.0": "left", "": "right"}', "PLAN": plan_file.read_text()}
    texts["MAP"] = '{"": "left"}'
    texts["TWICE"] = '{"layers.0": "left", "layers.0": "right", "": "right"}'
    for name, text in texts.items():
        (tmp_path / name).write_text(text)

    result = run(f"{source}:model", *(str(tmp_path / each) if each in texts else each for each in arguments))

    assert 2 == result.exit_code, result.output
    assert sentence in result.stderr
    assert "Traceback" not in result.output
    assert ["error"] == [line.partition(":")[0] for line in result.stderr.splitlines() if not line.startswith("...")]


def test_what_a_plan_does_not_leave_to_say_is_refused_for_lowering_too(source: str, plan_file: Path) -> None:
    result = CliRunner().invoke(main, ["lower", f"{source}:model", "--plan", str(plan_file), "--replicate", "never"])

    assert 2 == result.exit_code
    assert "error: --plan follows a plan, and nothing is searched; leave --replicate out, or --plan.\n" == result.stderr


def test_a_source_file_without_a_function_says_how_to_name_one(source: str) -> None:
    result = run(source, *TWO)

    assert 2 == result.exit_code
    assert (
        f"error: {source!r} is Python source; name the function in it that returns (model, args), like {source}:build."
        in result.stderr
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["plcae"], "error: No such command 'plcae'"),
        (["--quick"], "error: No such option"),
        (["place", "--objectiv", "latency"], "error: No such option"),
    ],
)
def test_a_command_or_an_option_that_does_not_exist_is_one_sentence(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(main, arguments)

    assert 2 == result.exit_code
    assert result.stderr.startswith(sentence)
    assert 1 == len(result.stderr.splitlines())


def test_the_command_alone_shows_its_help() -> None:
    assert CliRunner().invoke(main, []).output.startswith("Usage: main [OPTIONS] COMMAND [ARGS]...")


def test_a_plan_for_another_model_is_refused(source: str, plan_file: Path) -> None:
    result = run(f"{source}:other", "--plan", str(plan_file))

    assert 2 == result.exit_code
    assert "error: This is a plan for " in result.stderr
    assert ", another model: it names " in result.stderr


def test_what_a_model_prints_is_no_part_of_the_json(tmp_path: Path) -> None:
    """Neither in Python nor in C, as HiGHS does while it searches; it goes to the standard error."""
    noisy = """
import ctypes

def noisy():
    print("loading weights")
    ctypes.CDLL(None).puts(b"said in C")
    return model()
"""
    file = tmp_path / "noisy.py"
    file.write_text(MODEL + noisy, encoding="utf-8")
    command = [sys.executable, "-m", "fxpasses.cli", "place", f"{file}:noisy", *TWO, "--json", "--no-advice"]

    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)

    assert ["left", "right"] == [part["name"] for part in json.loads(done.stdout)["plan"]["parts"]]
    assert {"loading weights", "said in C"} <= set(done.stderr.splitlines())


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_what_cannot_be_written_is_no_plan_that_does_not_fit(source: str, plan_file: Path, options: list[str]) -> None:
    """``--check`` gives exit code 1 where a plan no longer fits; a full disk is something else."""
    command = [sys.executable, "-m", "fxpasses", "place", f"{source}:model", "--check", str(plan_file), *options]

    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert 2 == done.returncode
    assert "error: [Errno 28] No space left on device." == done.stderr.splitlines()[-1]


@pytest.mark.skipif(os.name != "posix", reason="a shell that closes what it starts with")
@pytest.mark.parametrize(("name", "code"), [("model", 0), ("longer", 1)])
def test_a_check_says_by_its_exit_code_what_it_found_where_nothing_can_be_printed(
    source: str, plan_file: Path, name: str, code: int
) -> None:
    command = [sys.executable, "-m", "fxpasses", "place", f"{source}:{name}", "--check", str(plan_file)]

    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, check=False, timeout=300)

    assert (code, "... check") == (done.returncode, done.stderr.splitlines()[-1])


@pytest.mark.parametrize("surroundings", [{"PYTHONIOENCODING": "ascii"}, {"COLUMNS": "0"}])
def test_any_terminal_gets_its_tables(tmp_path: Path, surroundings: dict[str, str]) -> None:
    (tmp_path / "mymodel.py").write_text(MODEL)
    command = [sys.executable, "-m", "fxpasses", "place", f"{tmp_path / 'mymodel.py'}:model", "--no-advice"]

    done = subprocess.run(
        [*command, "--device", "gerät=cpu"], capture_output=True, check=False, env={**os.environ, **surroundings}
    )

    name = "ger\\xe4t" if "COLUMNS" not in surroundings else "gerät"
    assert 0 == done.returncode
    assert name in done.stdout.decode()
