"""The command: what it prints and writes, and one clear sentence with exit code 2 for bad input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from lowering_models import Mlp

from fxpasses import load
from fxpasses.cli import main

MODEL = """
import torch

def model():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    return torch.nn.Sequential(*layers).eval(), (torch.randn(2, 64),)

def wrong():
    return 3

def bare():
    return torch.nn.Linear(4, 4), torch.randn(2, 4)

def text():
    return torch.nn.Linear(4, 4), "ab", {}

def broken():
    raise RuntimeError("no weights today")

def undecided():
    class Undecided(torch.nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x - 1
    return Undecided(), (torch.randn(3),)

number = 3
layer = torch.nn.ReLU()
"""
TWO = ["--device", "left=cpu,memory=40KiB", "--device", "right=cpu,memory=40KiB"]


@pytest.fixture
def source(tmp_path: Path) -> str:
    file = tmp_path / "mymodel.py"
    file.write_text(MODEL)
    return str(file)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["lower", *arguments])


def test_a_model_in_a_file_is_lowered_checked_and_written(source: str, tmp_path: Path) -> None:
    result = run(f"{source}:model", *TWO, "--check", "--out", str(tmp_path / "out"))

    assert result.exit_code == 0, result.output
    assert "equal to the model itself, bit by bit" in result.output
    for table in ("Steps", "Passes", "Devices", "Copies"):
        assert table in result.output
    written = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"plan.json", "program.pt2", "structure.json", "report.html", "report.json", "graph.dot"} <= written


def test_json_is_for_machines(source: str) -> None:
    result = run(f"{source}:model", *TWO, "--check", "--json")

    assert 0 == result.exit_code
    report = json.loads(result.stdout)
    assert [row["name"] for row in report["devices"]] == ["left", "right"]
    assert all(row["peak_bytes"] <= row["budget_bytes"] for row in report["devices"])
    assert report["check"]["exact"]
    assert report["passes"]
    assert all(row["nodes_before"] >= row["nodes_after"] for row in report["passes"])


def test_a_saved_program_is_lowered(tmp_path: Path) -> None:
    file = tmp_path / "mlp.pt2"
    torch.export.save(torch.export.export(Mlp(), (torch.randn(2, 64),)), file)

    result = run(str(file), *TWO, "--check")

    assert result.exit_code == 0, result.output
    assert "bit by bit" in result.output


def test_a_model_in_a_module_on_the_path_is_lowered(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(source).parent)

    result = run("mymodel:model", *TWO)

    assert result.exit_code == 0, result.output


def test_progress_is_plain_lines_where_there_is_no_terminal(source: str) -> None:
    result = run(f"{source}:model", *TWO)

    assert (result.stderr.splitlines()) == [
        "... read the model",
        "... capture",
        "... passes",
        "... measure",
        "... place",
        "... split",
        "... move and copy",
    ]


def test_a_plan_is_followed(source: str, tmp_path: Path) -> None:
    first = run(f"{source}:model", *TWO, "--out", str(tmp_path / "out"))
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    right, left = ({"name": name, "device": name, "ops": ops} for name, ops in (("right", ["0/*"]), ("left", ["/*"])))
    plan["parts"] = [right, left]
    plan["devices"][0]["available_mem_bytes"] = None
    (tmp_path / "edited.json").write_text(json.dumps(plan))

    result = run(f"{source}:model", "--plan", str(tmp_path / "edited.json"), "--check", "--json")

    assert (0, 0) == (first.exit_code, result.exit_code), result.output
    assert [3, 1] == [row["nodes"] for row in json.loads(result.stdout)["devices"]]


def test_a_pipeline_is_text(source: str) -> None:
    result = run(f"{source}:model", *TWO, "--pipeline", "eliminate-dead-code", "--json")

    assert [row["name"] for row in json.loads(result.stdout)["passes"]] == ["EliminateDeadCode"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing.pt2", *TWO], "error: There is no file 'nothing.pt2'."),
        (["SOURCE", *TWO], "is Python source; name the function in it that returns (model, args), like "),
        ([str(Path(__file__).parents[2] / "README.md"), *TWO], "is not a program that torch.export.save wrote"),
        (["nothing.py:model", *TWO], "error: There is no file 'nothing.py' (asked for 'nothing.py:model')."),
        (
            ["no_such_module:model", *TWO],
            "error: There is no module 'no_such_module' (asked for 'no_such_module:model')",
        ),
        (["SOURCE:nothing", *TWO], "has no function 'nothing'."),
        (["SOURCE:number", *TWO], "is an int, not a function that returns (model, args)."),
        (["SOURCE:layer", *TWO], "is a ReLU, not a function that returns (model, args)."),
        (["SOURCE:wrong", *TWO], "returned an int; it has to return (model, args) or (model, args, kwargs)."),
        (
            ["SOURCE:bare", *TWO],
            "returned (a model, Tensor); it has to return (model, args) or (model, args, kwargs), where args is a "
            "tuple, like (x,).",
        ),
        (["SOURCE:text", *TWO], "returned (a model, str, dict); it has to return (model, args) or (model, args, "),
        (["", *TWO], "error: The model has no name; write a .pt2 file, package.module:function or file.py:function."),
        (["SOURCE:broken", *TWO], "raised RuntimeError: no weights today\n  at "),
        (["SOURCE:undecided", *TWO], "error: torch.export cannot capture Undecided: "),
        (["SOURCE:undecided", *TWO], "in forward: return x + 1 if x.sum() > 0 else x - 1"),
        (
            ["SOURCE:model"],
            "error: There is no device to place the model on; give at least one, such as --device left=cpu.",
        ),
        (
            ["SOURCE:model", "--device", "a=cpu", "--device", "a=cpu"],
            "error: Two devices are called 'a'; give each its own name.",
        ),
        (
            ["SOURCE:model", "--device", "a=cpu,memory=lots"],
            "error: --device 'a=cpu,memory=lots': 'lots' is not a size in bytes; write it like 40MiB or 2GB.",
        ),
        (
            ["SOURCE:model", "--device", "a=cpu,memory=10KiB"],
            "linear (aten.linear.default) needs 17.2 KiB on one device for what it reads and makes, but the largest "
            "device that can run it has 10.0 KiB",
        ),
        (
            ["SOURCE:model", "--device", "a=cpu,memory=30KiB", "--device", "b=cpu,memory=30KiB"],
            "but all devices together have 60.0 KiB (a 30.0 KiB, b 30.0 KiB): ",
        ),
        (
            ["SOURCE:model", *TWO, "--link", "left:top=1GiB/s"],
            "names the device 'top', which is not among left, ",
        ),
        (
            ["SOURCE:model", *TWO, "--objective", "speed"],
            "error: Invalid value for '--objective': 'speed' is not one of",
        ),
        (["SOURCE:model", *TWO, "--out", "SOURCE"], "cannot be written: "),
        (["SOURCE:model", *TWO, "--pipeline", "make-coffee"], "unknown pass 'make-coffee'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_two(source: str, arguments: list[str], sentence: str) -> None:
    result = run(*(argument.replace("SOURCE", source) for argument in arguments))

    assert 2 == result.exit_code
    assert sentence in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["lower", "place"])
def test_a_wrong_word_is_told_before_torch_is_imported(command: str) -> None:
    code = (
        "import sys; from click.testing import CliRunner; from fxpasses.cli import main; "
        f"print(CliRunner().invoke(main, [{command!r}, 'm.py:f', '--device', 'a']).stderr, 'torch' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "--device 'a' does not read NAME=TORCH_DEVICE" in done.stdout
    assert done.stdout.endswith(" False\n")


def test_a_folder_that_cannot_be_written_leaves_nothing_behind(source: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("here")

    result = run(f"{source}:model", *TWO, "--out", str(file / "deeper"))

    assert 2 == result.exit_code
    assert f"error: --out '{file / 'deeper'}' cannot be written: '{file}' is not a folder." in result.stderr
    assert file.read_text() == "here"


@pytest.mark.parametrize("module", ["fxpasses", "fxpasses.cli"])
def test_the_command_runs_as_a_module(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "lower", "nothing.pt2", *TWO],
        capture_output=True,
        text=True,
        check=False,
    )

    assert 2 == done.returncode
    assert "... read the model\nerror: There is no file 'nothing.pt2'.\n" == done.stderr


def test_searches_are_compiled_ahead() -> None:
    """In two processes, so as a user runs it."""
    command = [sys.executable, "-m", "fxpasses.cli", "warm-up", "--no-color"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stderr
    assert re.fullmatch(r"compiled in \d+ s, kept in (.*)\n", done.stdout)
    assert Path(done.stdout.partition(" kept in ")[2].strip()).is_dir()
    assert "... compile the searches\n" == done.stderr


def test_a_file_that_is_no_program_is_one_sentence(tmp_path: Path) -> None:
    """Torch writes a traceback to its log before it raises."""
    (tmp_path / "bad.pt2").write_text("no program")
    done = subprocess.run(
        [sys.executable, "-m", "fxpasses", "place", str(tmp_path / "bad.pt2"), *TWO],
        capture_output=True,
        text=True,
        check=False,
    )

    assert 2 == done.returncode
    first, second = done.stderr.splitlines()
    assert "... read the model" == first
    assert "is not a program that torch.export.save wrote" in second


def test_parameters_may_stay_in_main_memory(source: str, tmp_path: Path) -> None:
    """Too small a device is refused with the option that helps; with it the model runs, and loads back."""
    one = ["--device", "small=cpu,memory=40KiB"]

    refused = run(f"{source}:model", *one)
    result = run(f"{source}:model", *one, "--offload", "cpu", "--check", "--out", str(tmp_path / "out"))

    assert 2 == refused.exit_code
    assert 'Or allow offload="cpu"' in refused.output
    assert 0 == result.exit_code, result.output
    assert "equal to the model itself, bit by bit" in result.output
    assert '"offload": "cpu"' in (tmp_path / "out" / "plan.json").read_text()
    assert load(tmp_path / "out") is not None


def saved_in_torchscript(path: Path) -> None:
    path.write_bytes(b"")
    with zipfile.ZipFile(path, "w") as archive:  # as torch.jit.save writes it, which warns that it is deprecated
        for name in ("data.pkl", "constants.pkl", "code/__torch__.py"):
            archive.writestr(f"model/{name}", "")


OTHERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "text": (lambda path: path.write_text("{}"), "no archive"),
    "nothing": (Path.touch, "empty"),
    "weights": (lambda path: torch.save({"weight": torch.ones(1)}, path), "what torch.save wrote, such as weights"),
    "script": (saved_in_torchscript, "a TorchScript model"),
}


@pytest.mark.parametrize("name", list(OTHERS))
def test_what_a_file_is_that_is_no_program_is_said(name: str, tmp_path: Path) -> None:
    write, what = OTHERS[name]
    write(path := tmp_path / "model.pt")

    done = run(str(path), *TWO)

    assert 2 == done.exit_code
    assert (
        f"error: {str(path)!r} is not a program that torch.export.save wrote: it is {what}. Save what "
        "torch.export.export(model, args) gives, or give the model itself, in a shell as file.py:function.\n"
    ) in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="there are no such pipes")
@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_reader_that_reads_no_more_is_no_failed_check(source: str, arguments: list[str]) -> None:
    """``fxpasses place | head -0``: 1 says that a plan does not fit."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "fxpasses", "place", f"{source}:model", *TWO, "--no-advice", *arguments]

    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)

    os.close(write)
    assert 141 == done.returncode
    assert "Traceback" not in done.stderr
    assert "error" not in done.stderr
