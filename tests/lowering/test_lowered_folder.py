"""A lowered model in a folder: complete or absent, and loadable where its source is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import attrs
import pytest
import torch
from lowering_models import Dataclasses, KeyValueCache, Mlp, Tied, cpu_pair
from torch import Tensor, nn

from fxpasses import Device, InputError, PlanError, load, lower, place, save
from fxpasses.plan import PartPlan
from fxpasses.units import KiB

LOAD_ELSEWHERE = """
import sys, torch
import fxpasses
folder, given = sys.argv[1:]
inputs, expected = torch.load(given)
answer = fxpasses.load(folder)(*inputs)
for name, value in expected.items():
    assert torch.equal(value, getattr(answer, name)), name
    assert torch.equal(value, answer[name]), name
print(type(answer).__name__)
"""


class Highest(nn.Module):
    """A tuple in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        highest: Tensor = self.second(self.first(x).max(-1)[0])
        return highest


def test_what_was_saved_loads_and_computes_the_same(tmp_path: Path) -> None:
    model = Mlp().eval()
    x = torch.randn(2, 64)
    lowered = lower(model, (x,), devices=cpu_pair(40 * KiB, 40 * KiB))

    save(lowered, tmp_path / "out")
    loaded = load(tmp_path / "out")

    assert torch.equal(model(x), loaded(x))
    assert [part.ops for part in lowered.plan.parts] == [part.ops for part in loaded.plan.parts]
    assert set(model.state_dict()) == set(loaded.state_dict())


def test_parts_that_are_left_without_operators_are_saved_and_loaded(tmp_path: Path) -> None:
    """An edit may leave a part nothing: finer entries take it all, or it has an element that stays with its tuple."""
    x = torch.randn(2, 8)
    parts = (
        PartPlan("left", "left", ("first/*", "/max#0")),
        PartPlan("left_1", "left", ("/getitem#0",)),
        PartPlan("right", "right", ("second/*",)),
        PartPlan("left_2", "left", ("/*",)),
    )
    plan = attrs.evolve(place(Highest(), (x,), devices=cpu_pair()).plan, parts=parts)

    lowered = lower(Highest(), (x,), plan=plan)
    save(lowered, tmp_path)

    assert ["left", "right"] == list(lowered.submodule_of)
    assert parts == load(tmp_path).plan.parts
    assert torch.equal(lowered(x), load(tmp_path)(x))


def test_a_cache_is_saved_with_its_state(tmp_path: Path) -> None:
    model = KeyValueCache().eval()
    x = torch.randn(1, 1, 16)
    lowered = lower(model, (x, torch.tensor([0])), devices=cpu_pair(5 * KiB, 6 * KiB))

    save(lowered, tmp_path)
    loaded = load(tmp_path)

    for step in range(3):
        assert torch.equal(model(x, torch.tensor([step])), loaded(x, torch.tensor([step])))


def test_a_new_process_without_the_models_source_gets_fields_by_name(tmp_path: Path) -> None:
    model = Dataclasses().eval()
    x = torch.randn(3, 8)
    save(lower(model, (x,), devices=cpu_pair(6 * KiB, 6 * KiB)), tmp_path / "out")
    answer = model(x)
    torch.save(((x,), {"logits": answer.logits.detach(), "hidden": answer.hidden.detach()}), tmp_path / "given.pt")

    done = subprocess.run(
        [sys.executable, "-c", LOAD_ELSEWHERE, str(tmp_path / "out"), str(tmp_path / "given.pt")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )

    assert "" == done.stderr
    assert "Record" == done.stdout.strip()


def test_saving_again_replaces_the_files(tmp_path: Path) -> None:
    x = torch.randn(2, 64)
    for _ in range(2):
        files = save(lower(Mlp(), (x,), devices=[Device("cpu")]), tmp_path / "out")

    assert sorted(file.name for file in files) == sorted(file.name for file in (tmp_path / "out").iterdir())


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = lower(Mlp(), (torch.randn(2, 64),), devices=[Device("cpu")])

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fxpasses.lowering.lowered_folder.render_page", full)

    with pytest.raises(InputError) as caught:
        save(lowered, tmp_path / "out")

    assert f"--out '{tmp_path / 'out'}' cannot be written: No space left on device." == str(caught.value)
    assert not (tmp_path / "out").exists()


def test_loading_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^There is no folder '.*nothing' that fxpasses lower --out wrote\.$"):
        load(tmp_path / "nothing")


def test_a_broken_structure_file_is_refused(tmp_path: Path) -> None:
    save(lower(Mlp(), (torch.randn(2, 64),), devices=[Device("cpu")]), tmp_path)
    (tmp_path / "structure.json").write_text("{")

    with pytest.raises(InputError, match=r"structure\.json' is missing or broken .*; save the model again\.$"):
        load(tmp_path)


def test_a_plan_of_another_model_is_refused(tmp_path: Path) -> None:
    x = torch.randn(2, 64)
    save(lower(Mlp(2), (x,), devices=[Device("cpu")]), tmp_path / "small")
    save(lower(Mlp(4), (x,), devices=cpu_pair(40 * KiB, 40 * KiB)), tmp_path / "large")
    (tmp_path / "small" / "plan.json").write_text((tmp_path / "large" / "plan.json").read_text())

    with pytest.raises(PlanError, match=r"which the model does not have; it changed since"):
        load(tmp_path / "small")


def test_tied_weights_are_tied_when_they_are_loaded(tmp_path: Path) -> None:
    """Complaint 25: torch's own format makes two tensors of them."""
    ids = torch.randint(0, 50, (2, 5))
    lowered = lower(Tied(), (ids,), devices=[Device("cpu")])

    save(lowered, tmp_path)

    assert len(list(lowered.parameters())) == len(list(load(tmp_path).parameters()))
