"""A lowered model in a folder: complete or absent, and loadable where its source is not."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from lowering_models import Dataclasses, KeyValueCache, Mlp, Tied, cpu_pair
from torch import Tensor, nn

from fxpasses import Device, InputError, PlanError, load, lower, place, save
from fxpasses.lowering import LoweredModule
from fxpasses.lowering.current_state import replaced_tensors
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


class Counting(nn.Module):
    """Counts its runs in a buffer with two names, in one that checkpoints leave out, and in a plain tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.register_buffer("count", torch.zeros(8))
        self.register_buffer("same", self.count)
        self.register_buffer("hidden", torch.zeros(8), persistent=False)
        self.plain = torch.zeros(8)

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        self.hidden.add_(2)
        self.plain.add_(3)
        counted: Tensor = self.second(self.first(x + self.same)) * self.hidden + self.plain
        return counted


class Sorted(nn.Module):
    """Gives back what ``torch.max`` and ``torch.sort`` do: tuples with names."""

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Any]]:
        return x + 1, {"highest": torch.max(x, 1), "sorted": torch.sort(x)}


def _counting() -> LoweredModule:
    pinned = {"first": "left", "second": "right"}
    return lower(Counting(), (torch.ones(2, 8),), devices=cpu_pair(), pinned=pinned, contiguity="free")


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


def test_what_was_written_since_lowering_is_saved(tmp_path: Path) -> None:
    """Buffers under all their names, also those that checkpoints leave out, and tensors that nobody registered."""
    lowered, x = _counting(), torch.randn(2, 8)
    with torch.no_grad():
        lowered(x)
        lowered(x)

    save(lowered, tmp_path)
    loaded = load(tmp_path)

    assert 2.0 == loaded.state_dict()["count"][0].item() == loaded.state_dict()["same"][0].item()
    for _ in range(2):
        assert torch.equal(lowered(x), loaded(x))


def test_batch_statistics_are_saved(tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    lowered = lower(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), (x,), devices=cpu_pair())
    lowered(x)

    save(lowered, tmp_path)

    loaded = load(tmp_path).state_dict()
    assert all(torch.equal(value, loaded[name]) for name, value in lowered.state_dict().items())
    assert 1 == loaded["1.num_batches_tracked"].item()


def test_a_checkpoint_that_was_assigned_is_saved(tmp_path: Path) -> None:
    """``assign=True`` puts new tensors in the place of those that the program holds."""
    lowered, x = _counting(), torch.randn(2, 8)
    state = {name: torch.rand_like(value) for name, value in lowered.state_dict().items()}
    state |= {"second.weight": state["first.weight"], "same": state["count"]}
    lowered.load_state_dict(state, assign=True)

    save(lowered, tmp_path)
    loaded = load(tmp_path)

    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in state.items())
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    assert torch.equal(lowered(x), loaded(x))


def test_saving_changes_neither_the_module_nor_its_program(tmp_path: Path) -> None:
    lowered = _counting()
    lowered(torch.randn(2, 8))
    held = {name: id(value) for name, value in (*lowered.program.state_dict.items(), *lowered.named_buffers())}
    count = lowered.program.state_dict["count"].clone()

    save(lowered, tmp_path)

    after = (*lowered.program.state_dict.items(), *lowered.named_buffers())
    assert held == {name: id(value) for name, value in after}
    assert torch.equal(count, lowered.program.state_dict["count"])


def test_parameters_are_not_copied_to_be_saved() -> None:
    lowered = _counting()
    lowered(torch.randn(2, 8))

    replaced = replaced_tensors(lowered, lowered.program, lowered.qualified_names)

    program = {**lowered.program.state_dict, **lowered.program.constants}
    assert {id(program[name]) for name in ("count", "hidden", "plain")} == replaced.keys()
    assert {id(value) for value in replaced.values()}.isdisjoint(id(value) for value in program.values())


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


def test_tuples_of_torch_keep_their_names(tmp_path: Path) -> None:
    x = torch.randn(3, 8)
    lowered = lower(Sorted(), (x,), devices=cpu_pair())
    save(lowered, tmp_path / "out")

    for again in (load(tmp_path / "out"), pickle.loads(pickle.dumps(lowered))):
        _, answer = again(x)
        assert torch.equal(x.max(1).indices, answer["highest"].indices)
        assert type(torch.sort(x)) is type(answer["sorted"])


class Keyed(nn.Module):
    """Takes and gives back dicts by layer and place."""

    def forward(self, given: dict[tuple[int, str], Tensor]) -> dict[tuple[Any, ...], Tensor]:
        return {(key, (1, 2)): value + 1 for key, value in given.items()}


def test_tuples_stay_keys(tmp_path: Path) -> None:
    given = {(0, "a"): torch.ones(2), (1, "b"): torch.zeros(2)}
    lowered = lower(Keyed(), (given,), devices=cpu_pair())
    save(lowered, tmp_path / "out")

    for again in (load(tmp_path / "out"), pickle.loads(pickle.dumps(lowered))):
        answer = again(given)
        assert [((0, "a"), (1, 2)), ((1, "b"), (1, 2))] == list(answer)
        assert torch.equal(torch.full((2,), 2.0), answer[(0, "a"), (1, 2)])


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


class Shares(nn.Module):
    """A buffer, one that checkpoints leave out, another name of it and plain tensors, all in one memory."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(4, 8))
        self.register_buffer("rows", self.table[2:], persistent=False)
        self.register_buffer("same", self.table, persistent=False)
        self.first, self.column = self.table[0], self.table.t()[3]

    def forward(self, x: Tensor) -> Tensor:
        self.rows.add_(x)
        self.first.sub_(x)
        self.column.mul_(2)
        self.same.add_(1)
        return self.table.clone()


class Conjugates(nn.Module):
    """Tensors whose memory holds conjugates, or negatives, of what they are; one is written to."""

    def __init__(self) -> None:
        super().__init__()
        numbers = torch.complex(torch.randn(8, 8), torch.randn(8, 8))
        self.weight = nn.Parameter(numbers.conj())
        self.register_buffer("adjoint", numbers.mH)
        self.register_buffer("imaginary", numbers.conj().imag, persistent=False)
        self.register_buffer("sums", torch.zeros(8, dtype=torch.complex64).conj())

    def forward(self, x: Tensor) -> Tensor:
        self.sums.add_(x * (1 + 2j))
        result: Tensor = (x * self.weight) @ self.adjoint + self.imaginary + self.sums
        return result


def from_folder(lowered: LoweredModule, folder: Path) -> LoweredModule:
    save(lowered, folder)
    return load(folder)


def from_pickle(lowered: LoweredModule, _folder: Path) -> LoweredModule:
    again: LoweredModule = pickle.loads(pickle.dumps(lowered))
    return again


@pytest.mark.parametrize("back", [from_folder, from_pickle])
@pytest.mark.parametrize("kind", [Shares, Conjugates])
def test_what_torchs_format_forgets_of_memory_comes_back(
    kind: type[nn.Module], back: Callable[[LoweredModule, Path], LoweredModule], tmp_path: Path
) -> None:
    model, x = kind(), torch.arange(8.0)
    lowered = lower(model, (x,), devices=[Device("cpu")])
    model(x), lowered(x)

    again = back(lowered, tmp_path)

    expected = [model(x) for _ in range(2)]
    assert all(map(torch.equal, expected, [lowered(x) for _ in range(2)]))
    assert all(map(torch.equal, expected, [again(x) for _ in range(2)]))
    assert [name for name, _ in lowered.named_buffers()] == [name for name, _ in again.named_buffers()]


class ShowsWeights(nn.Module):
    """A buffer in the memory of a parameter, and one without memory beside such a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("rows", self.first.weight.detach()[:2])
        self.nothing = nn.Parameter(torch.zeros(0, 8))
        self.register_buffer("none", torch.zeros(0, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.first(x), self.rows, self.nothing, self.none])
        result: Tensor = self.second(x).pow(2).mean()
        return result


def from_program(lowered: LoweredModule, folder: Path) -> LoweredModule:
    torch.export.save(lowered.program, folder / "model.pt2")
    return lower(folder / "model.pt2", devices=cpu_pair(), objective="throughput")


@pytest.mark.parametrize("back", [from_folder, from_pickle, from_program])
def test_a_buffer_in_the_memory_of_a_parameter_learns_nothing_once_it_is_loaded(
    back: Callable[[LoweredModule, Path], LoweredModule], tmp_path: Path
) -> None:
    model, x = ShowsWeights(), torch.randn(4, 8)
    lowered = lower(model, (x,), devices=cpu_pair(), objective="throughput")

    again = back(lowered, tmp_path)

    assert dict.fromkeys(("rows", "none"), False) == {name: b.requires_grad for name, b in again.named_buffers()}
    copy.deepcopy(again)
    model(x).backward(), again(x).backward()
    found = dict(again.named_parameters())
    assert all(torch.equal(parameter.grad, found[name].grad) for name, parameter in model.named_parameters())


class Frozen(nn.Module):
    """A small region whose module is all that it has: in a file, torch.export forgets which module its result is of."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        with torch.no_grad():
            z = self.frozen(y)
        result: Tensor = self.last(z + y)
        return result


def test_a_small_region_without_gradients_is_found_again_in_the_file(tmp_path: Path) -> None:
    model, x = Frozen(), torch.randn(4, 8)
    lowered = lower(model, (x,), devices=cpu_pair(), objective="memory")
    save(lowered, tmp_path / "lowered")
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "program.pt2")

    again = lower(torch.export.load(tmp_path / "program.pt2"), plan=lowered.plan)

    assert len(lowered.plan.parts) == 2
    for each in (load(tmp_path / "lowered"), again, pickle.loads(pickle.dumps(lowered))):
        assert torch.equal(each(x), model(x))
        assert each.plan.parts == lowered.plan.parts


@pytest.mark.parametrize("call", range(1, 13))
def test_a_folder_that_cannot_be_replaced_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    def lowered(name: str) -> LoweredModule:
        return lower(nn.Linear(4, 4), (torch.ones(2, 4),), devices=[Device(name)])

    def fails(*paths: Path) -> None:
        calls.append(paths)
        if len(calls) == call:
            raise OSError(28, "No space left on device")
        replace(*paths)

    save(lowered("a"), tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    calls: list[tuple[Path, ...]] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", fails)

    with pytest.raises(InputError, match=r"cannot be written: No space left on device\.$"):
        save(lowered("b"), tmp_path)

    assert before == {file.name: file.read_bytes() for file in tmp_path.iterdir()}


def test_a_drawing_of_an_earlier_save_does_not_stay(tmp_path: Path) -> None:
    (tmp_path / "graph.svg").write_text("<svg/>")
    written = save(lower(nn.Linear(4, 4), (torch.ones(2, 4),), devices=[Device("a")]), tmp_path)

    assert {file.name for file in written} == {file.name for file in tmp_path.iterdir()}
    assert "<svg/>" not in {file.read_text() for file in tmp_path.glob("*.svg")}


@pytest.mark.parametrize("content", ["[]", '{"inputs": 3, "outputs": {"kind": "leaf"}}'])
def test_a_structure_of_other_types_is_refused(tmp_path: Path, content: str) -> None:
    save(lower(nn.Linear(4, 4), (torch.ones(2, 4),), devices=[Device("a")]), tmp_path)
    (tmp_path / "structure.json").write_text(content)

    with pytest.raises(InputError, match=r"structure\.json' is missing or broken \(.*\); save the model again\.$"):
        load(tmp_path)


def test_what_is_no_path_and_no_lowered_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^save\(\) takes what fxpasses\.lower\(\) g"):
        save(nn.Linear(4, 4), tmp_path / "out")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^The path of a saved model is a text or a pathlib\.Path, not None\.$"):
        load(None)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
