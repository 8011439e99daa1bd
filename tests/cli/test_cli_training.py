"""``--training`` on the command line: places, checks in CI, lowers; what it reads, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from allocations import AllocatedBytes
from click.testing import CliRunner, Result

from fxpasses import Plan
from fxpasses.cli import main
from fxpasses.cli.training_option import OPTIMIZERS, parse_training

MODEL = """
import torch

def model():
    torch.manual_seed(0)
    layers = (torch.nn.Linear(64, 64) for _ in range(4))
    return torch.nn.Sequential(*layers), (torch.randn(2, 64),)
"""
TWO = ["--device", "left=cpu,memory=200KiB", "--device", "right=cpu,memory=200KiB"]

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "rmsprop": (torch.optim.RMSprop, {}),
    "adagrad": (torch.optim.Adagrad, {}),
    "adadelta": (torch.optim.Adadelta, {}),
    "rprop": (torch.optim.Rprop, {}),
    "adam": (torch.optim.Adam, {}),
    "adamw": (torch.optim.AdamW, {}),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("models") / "net.py"
    file.write_text(MODEL)
    return f"{file}:model"


@pytest.fixture(scope="module")
def plan_file(model: str) -> str:
    file = Path(model.rpartition(":")[0]).with_name("plan.json")
    result = run("place", model, *TWO, "--training", "adam", "--no-advice", "--out", str(file))
    assert 0 == result.exit_code, result.output
    return str(file)


def run(*arguments: str, columns: int = 110) -> Result:
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(main, [*arguments])


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_training_placement_is_printed_at_any_width(model: str, columns: int) -> None:
    result = run("place", model, *TWO, "--training", "adam", columns=columns)

    assert 0 == result.exit_code, result.output
    assert max(map(len, result.stdout.splitlines())) <= columns
    joined = " ".join(result.stdout.split())
    for text in ("2 values kept for each trained element", "gradients", "optimizer", "One training step is predicted"):
        assert text in joined
    assert "left is fullest while the optimizer steps" in joined or "while the optimizer steps: parameters" in joined


def test_the_plan_and_the_json_say_for_which_training(model: str, plan_file: str) -> None:
    result = run("place", model, *TWO, "--training", "adam,step_slots=0", "--json", "--no-advice")
    facts = json.loads(result.stdout)

    assert {"optimizer_slots": 2} == Plan.load(plan_file).to_json()["training"]
    assert {"optimizer_slots": 2, "step_slots": 0.0} == facts["plan"]["training"]
    assert {"optimizer_slots": 2, "step_slots": 0.0, "counts_steps": True} == facts["training"]
    assert {"gradient_bytes", "optimizer_bytes", "saved_bytes", "peak_when"} <= facts["devices"][0].keys()


def test_a_check_counts_the_training_step(model: str, plan_file: str) -> None:
    """Budgets in which the model runs, and cannot be trained, fail; another training is checked if one is named."""
    small = ["--device", "left=cpu,memory=100KiB", "--device", "right=cpu,memory=100KiB"]
    fits = run("place", model, "--check", plan_file)
    fails = run("place", model, "--check", plan_file, *small)
    less = run("place", model, "--check", plan_file, *small, "--training", "sgd")

    assert 0 == fits.exit_code
    assert "every budget kept in a training step, 2 values kept for each trained element." in " ".join(
        fits.stdout.split()
    )
    assert 1 == fails.exit_code
    assert "budget: left holds 179 KiB while the optimizer steps, 78.5 KiB over its budget" in fails.stdout
    assert 0 == less.exit_code, less.output


def test_a_difference_tells_the_training(model: str, plan_file: str) -> None:
    result = run("place", model, *TWO, "--no-advice", "--diff", plan_file)

    assert "plan: training 2 values kept for each trained element → none" in result.stdout


def test_a_model_is_lowered_for_training(model: str, tmp_path: Path) -> None:
    result = run("lower", model, *TWO, "--training", "momentum", "--out", str(tmp_path / "out"))
    page = (tmp_path / "out" / "report.html").read_text()

    assert 0 == result.exit_code, result.output
    training = Plan.load(tmp_path / "out" / "plan.json").to_json()["training"]
    assert {"optimizer_slots": 1, "step_slots": 0, "counts_steps": False} == training
    assert "Memory of a training step" in page
    assert page.startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "adm",
            "--training 'adm': 'adm' is neither an optimizer (sgd, momentum, rmsprop, adagrad, adadelta, rprop, adam, "
            "adamw) nor optimizer_slots=NUMBER or step_slots=NUMBER; write it like adam or optimizer_slots=2.",
        ),
        (
            "adam,slots=2",
            "--training 'adam,slots=2': 'slots=2' is neither an optimizer (sgd, momentum, rmsprop, adagrad, adadelta, "
            "rprop, adam, adamw) nor optimizer_slots=NUMBER or step_slots=NUMBER; write it like adam or "
            "optimizer_slots=2.",
        ),
        ("adam,step_slots=1,step_slots=2", "--training 'adam,step_slots=1,step_slots=2' gives step_slots twice; take"),
        (
            "optimizer_slots=two",
            "--training 'optimizer_slots=two': optimizer_slots is the number 'two', which does not parse.",
        ),
        (
            "optimizer_slots=-1",
            "--training 'optimizer_slots=-1': optimizer_slots is the number of values kept for each element, not -1.0.",
        ),
    ],
)
def test_a_training_that_makes_no_sense_is_one_sentence(model: str, text: str, sentence: str) -> None:
    for command in ("place", "lower"):
        result = run(command, model, *TWO, "--training", text)

        assert 2 == result.exit_code
        assert sentence in " ".join(result.stderr.split())


def test_a_timeline_of_several_training_steps_is_refused(model: str, tmp_path: Path) -> None:
    picture = tmp_path / "run.svg"

    one = run("place", model, *TWO, "--training", "adam", "--no-advice", "--svg", str(picture))
    several = run("place", model, *TWO, "--training", "adam", "--no-advice", "--svg", str(picture), "--samples", "2")

    assert 0 == one.exit_code
    assert "backward" in picture.read_text()
    assert 2 == several.exit_code
    assert "A training step is simulated for one sample, not 2" in several.stderr


def test_parameters_may_be_offloaded_in_training(model: str) -> None:
    result = run("place", model, "--device", "small=cpu,memory=150KiB", "--training", "adam", "--offload", "cpu")

    assert 0 == result.exit_code, result.output
    assert "holds 101 KiB of 150 KiB" in result.stdout
    assert "small loads parameters, and sends their gradients back: 146 KiB in one step (" in result.stdout


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizers_keep_and_make_what_their_names_stand_for(name: str, foreach: bool) -> None:
    """State is exact; what is made while stepping is never more than is counted."""
    training = parse_training(name)
    parameters = [torch.nn.Parameter(torch.randn(4096)) for _ in range(8)]
    kind, options = KINDS[name]
    optimizer = kind(parameters, foreach=foreach, **options)
    for parameter in parameters:
        parameter.grad = torch.randn(4096)
    optimizer.step()
    state = [value for each in optimizer.state.values() for value in each.values() if torch.is_tensor(value)]
    sizes = [parameter.nbytes for parameter in parameters]

    there = [*state, *parameters, *(parameter.grad for parameter in parameters)]
    with AllocatedBytes({value.untyped_storage().data_ptr() for value in there}) as allocated:
        optimizer.step()

    assert sum(value.nbytes for value in state) == training.kept_bytes(sizes)
    assert allocated.peak <= training.step_bytes(sizes) + 1024
