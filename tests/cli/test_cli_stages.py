"""``fxpasses stages``: what it prints and writes, and one sentence for each kind of bad input."""

import json

import pytest
from click.testing import CliRunner

from fxpasses.cli import main

MODEL = """
import torch

def model():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64) for _ in range(8)]
    return torch.nn.Sequential(*layers), (torch.randn(2, 64),)
"""


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "mymodel.py"
    file.write_text(MODEL)
    return f"{file}:model"


def run(*arguments):
    return CliRunner(env={"COLUMNS": None}).invoke(main, ["stages", *arguments])


def test_the_cut_the_balance_and_the_preview_are_printed(source, tmp_path):
    """Four stages under 1F1B, with a trace and a picture."""
    trace, svg = tmp_path / "a.json", tmp_path / "a.svg"
    result = run(source, "--stages", "4", "--schedule", "1f1b", "--trace", str(trace), "--svg", str(svg))

    assert result.exit_code == 0, result.output
    for text in (
        "│ 0     │    0 │ ",
        "0 to 1 ",
        "6 to 7 ",
        "The slowest stage, ",
        "By the cost model no cut has a slowest stage below ",
        "What travels with each micro-batch",
        "linear_1 512 B",
        "Schedule1F1B, 16 micro-batches: ",
        "(Narayanan et al., ",
        f"wrote {trace}",
    ):
        assert text in result.output, result.output
    assert json.loads(trace.read_text())["traceEvents"]
    assert svg.read_text().startswith("<svg")


def test_the_option_says_what_is_written_and_not_the_name_of_the_file(source, tmp_path):
    """A picture and a trace, whatever their files end in."""
    trace, svg = tmp_path / "trace.svg", tmp_path / "picture.json"
    result = run(source, "--stages", "2", "--trace", str(trace), "--svg", str(svg))

    assert result.exit_code == 0, result.output
    assert json.loads(trace.read_text())["traceEvents"]
    assert svg.read_text().startswith("<svg")


def test_stages_begin_where_they_are_told_to(source):
    """``--at`` names the modules that stages begin at; the sizes come as JSON."""
    result = run(source, "--at", "2", "--at", "6", "--schedule", "gpipe", "--microbatches", "5", "--json")

    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [["0 to 1"], ["2 to 5"], ["6 to 7"]] == [stage["modules"] for stage in found["stages"]]
    assert [2, 4, 2] == [stage["operators"] for stage in found["stages"]]
    assert [512, 512] == [hop["bytes"] for hop in found["travels"]]
    assert found["balance"] is None
    assert found["preview"]["schedule"] == "gpipe"
    assert found["preview"]["ranks"][0]["in_flight"] == 5
    assert "0F0 0F1 0F2 0F3 0F4 0B0 0B1 0B2 0B3 0B4" == found["preview"]["ranks"][0]["actions"]


def test_two_stages_a_rank_where_the_schedule_takes_them(source):
    """A V schedule on two ranks cuts the model into four stages."""
    result = run(source, "--ranks", "2", "--schedule", "zbv", "--json")

    assert result.exit_code == 0, result.output
    preview = json.loads(result.stdout)["preview"]
    assert [[0, 3], [1, 2]] == [rank["stages"] for rank in preview["ranks"]]
    assert preview["microbatches"] == 8


def test_a_schedule_is_recommended(source):
    """All schedules with the reason for each, on cuts with one and with two stages a rank; nothing has to fit."""
    result = run(source, "--ranks", "2", "--schedule", "recommend", "--memory", "100KiB")

    assert result.exit_code == 0, result.output
    assert "ScheduleDualPipeV" in result.output
    assert "does not fit: rank " in result.output
    assert "It does not fit: rank " in result.output
    assert "More stages or smaller micro-batches may help." in " ".join(result.output.split())


def test_devices_are_ranks(source):
    """Speeds, budgets and links come from the devices; stages lie on them in the order that is best."""
    result = run(
        source,
        *("--schedule", "gpipe", "--device", "a=cpu,flops=1G", "--device", "b=cpu,memory=1MiB,flops=3G"),
        *("--link", "a:b=1GiB/s,1us", "--json"),
    )

    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    ranks = {rank["device"]: rank for rank in found["preview"]["ranks"]}
    assert sorted(ranks) == ["a", "b"]
    assert ranks["b"]["budget"] == 1 << 20
    assert ranks["a"]["parameters"] < ranks["b"]["parameters"]


def test_stages_are_timed_here(source):
    """``--measure`` runs each stage on the example inputs."""
    result = run(source, "--stages", "2", "--measure", "--json")

    assert result.exit_code == 0, result.output
    assert all(stage["forward"] > 0 for stage in json.loads(result.stdout)["stages"])


def test_a_narrow_terminal_gets_lines(source, monkeypatch):
    """Below 100 columns a row is a line of text."""
    monkeypatch.setattr("fxpasses.cli.options.WIDTH", 80)
    result = run(source, "--stages", "2")

    assert result.exit_code == 0, result.output
    assert "stage 0; rank 0; forward " in result.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--schedule", "2f1b"), "error: there is no schedule '2f1b'; the nearest are 1f1b; there are gpipe, 1f1b, "),
        (("--stages", "2", "--schedule", "zbv", "--ranks", "2"), "error: ScheduleZBVZeroBubble cannot run this: it "),
        (("--stages", "4", "--microbatches", "3"), "cannot run this: it needs at least 4 micro-batches, as many as "),
        (("--stages", "50"), "error: the model has 8 operators and cannot be cut into 50 stages"),
        (("--at", "9"), "error: the split point '9' names no module of Sequential"),
        (("--at", "2", "--stages", "3"), "error: 1 times --at makes 2 stages, not 3."),
        (("--ranks", "3", "--device", "a=cpu"), "error: --ranks 3 does not fit 1 devices; name one device for each"),
        (("--link", "a:b=1GiB/s"), "error: --link joins two devices; name them with --device."),
        (("--routed",), "error: --routed joins two devices; name them with --device."),
        (("--backward", "-1"), "error: `backward` is how many forwards a backward takes, a number from 0 on, not -1.0"),
        (("--measure", "--backward", "3"), "error: --measure times the backward, too; leave --backward out"),
        (("--memory", "much"), "error: 'much' is not a size in bytes; write it like 40MiB or 2GB."),
        (("--trace", "a.svg", "--svg", "a.svg"), "error: --trace and --svg both write to 'a.svg'; give each a file of"),
        (("--stages", "0"), "error: Invalid value for '--stages': 0 is not in the range x>=1; see main stages --help."),
        (("--stages", "2", "--svg", "/nowhere/a.svg"), "error: '/nowhere/a.svg' cannot be written: No such file or d"),
        (
            ("--stages", "3", "--ranks", "2", "--schedule", "recommend"),
            "error: No schedule takes these numbers; ScheduleGPipe: torch's runtime refuses it: 3 stages are no ",
        ),
    ],
)
def test_bad_input_is_one_sentence(source, arguments, text):
    """Exit code 2, no traceback, and what to do."""
    result = run(source, *arguments)

    assert result.exit_code == 2
    assert text in result.stderr
    assert "Traceback" not in result.output


def test_a_program_without_inputs_cannot_be_timed(tmp_path):
    """``--measure`` on a .pt2 file says that it has no inputs to run on."""
    import torch

    torch.export.save(torch.export.export(torch.nn.Linear(4, 4), (torch.randn(2, 4),)), tmp_path / "a.pt2")
    result = run(str(tmp_path / "a.pt2"), "--stages", "1", "--measure")

    assert result.exit_code == 2
    assert "error: --measure needs inputs to run the model on; a .pt2 file has none" in result.stderr
