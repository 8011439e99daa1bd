"""Comparing a lowered model with the model itself: results, and what a run leaves in buffers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fxpasses import Device, lower
from fxpasses.lowering.verification import compare_with_model
from fxpasses.report.summary import CheckRow


class Inner(nn.Module):
    """Keeps an average, in one of two ways; results do not depend on it."""

    def __init__(self, by_data: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.by_data, self.weight = by_data, nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        mean = 0.9 * self.mean + 0.1 * x.mean(0)
        if self.by_data:
            self.mean.data = mean
        else:
            self.mean = mean
        return x * self.weight


def test_a_buffer_that_is_not_kept_is_told() -> None:
    """torch.export drops what is assigned to ``data``."""
    model = nn.Sequential(Inner(by_data=True), nn.ReLU())

    with torch.no_grad():
        check = lower(model, (torch.ones(2, 4),), devices=[Device("a")], check=True).report.check

    assert check is not None
    assert not check.ok
    assert ("0.mean",) == check.stale
    assert (
        "NOT equal to the model itself: a run leaves something else in '0.mean'; let forward write in place, as in "
        "self.mean.copy_(...)" == check.sentence()
    )


def test_comparing_leaves_a_model_that_replaces_a_buffer_as_it_was() -> None:
    model = nn.Sequential(Inner(by_data=False), nn.ReLU())
    before = model[0].mean

    lowered = lower(model, (torch.ones(2, 4),), devices=[Device("a")], check=True)

    assert lowered.report.check is not None
    assert lowered.report.check.exact
    assert before is model[0].mean
    assert 0.0 == before.sum().item() == lowered.state_dict()["0.mean"].sum().item()


class Counted(nn.Module):
    """Writes to a tensor that is no buffer, to one in a list, and to the rows of its table that are too long."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8, max_norm=0.5)
        self.runs, self.sums = torch.zeros(8), [torch.zeros(8)]

    def forward(self, ids: Tensor) -> Tensor:
        self.runs.add_(1)
        self.sums[0].add_(self.runs)
        return self.table(ids) + self.sums[0]


@pytest.mark.parametrize("torch_device", ["cpu", "cpu:1"])
def test_comparing_puts_back_whatever_a_run_writes_to(torch_device: str) -> None:
    model = Counted()
    before = model.table.weight.detach().clone()

    lowered = lower(model, (torch.arange(3),), devices=[Device("a", torch_device=torch_device)], check=True)

    assert lowered.report.check is not None
    assert lowered.report.check.exact
    assert torch.equal(before, model.table.weight)
    assert torch.equal(before, lowered.table.weight)
    assert 0.0 == model.runs.sum() == model.sums[0].sum()
    assert torch.equal(model(torch.arange(3)), lowered(torch.arange(3)))


class Gives(nn.Module):
    """Some tensors, whatever goes in."""

    def __init__(self, *tensors: Tensor) -> None:
        super().__init__()
        for index, tensor in enumerate(tensors):
            self.register_buffer(f"tensor_{index}", tensor)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(buffer.clone() for buffer in self.buffers()) if x.dim() else (x,)


def compared(expected: list[Tensor], actual: list[Tensor]) -> CheckRow:
    model, inputs = Gives(*expected), (torch.ones(1),)
    return compare_with_model(model, torch.export.export(model, inputs), Gives(*actual), inputs, {})


NAN, INF, LARGEST = float("nan"), float("inf"), torch.finfo(torch.float32).max


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ([torch.tensor([0.0])], [torch.tensor([NAN])]),
        ([torch.tensor([NAN])], [torch.tensor([5.0])]),
        ([torch.tensor([INF])], [torch.tensor([LARGEST])]),
        ([torch.tensor([INF])], [torch.tensor([-INF])]),
        ([torch.tensor([-INF, 1.0])], [torch.tensor([-INF, 2.0])]),
        ([torch.tensor([-INF]), torch.tensor([1.0])], [torch.tensor([-INF]), torch.tensor([1000.0])]),
        ([torch.tensor([1e6]), torch.tensor([1.0])], [torch.tensor([1e6]), torch.tensor([1.1])]),
        ([torch.tensor([100.0]).bfloat16(), torch.tensor([3])], [torch.tensor([100.0]).bfloat16(), torch.tensor([4])]),
        ([torch.tensor([2**60])], [torch.tensor([2**60 + 1])]),
        ([torch.tensor([True])], [torch.tensor([False])]),
        ([torch.tensor([complex(0, INF)])], [torch.tensor([complex(0, 1)])]),
    ],
    ids=[
        "number-nan",
        "nan-number",
        "infinite-largest",
        "signs",
        "beside-infinite",
        "other-output-infinite",
        "other-output-large",
        "integers-beside-bfloat16",
        "large-integers",
        "bools",
        "complex",
    ],
)
def test_what_rounding_does_not_explain_is_told(expected: list[Tensor], actual: list[Tensor]) -> None:
    """NaN counted as zero, an infinite number as the largest; one output's scale was that of all."""
    check = compared(expected, actual)

    assert not check.ok
    assert not check.exact
    assert check.max_difference > 0
    assert compared(expected, expected).exact


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ([torch.tensor([NAN, -INF, 1.0])], [torch.tensor([NAN, -INF, 1.0 + 1e-6])]),
        ([torch.tensor([complex(1, 1)])], [torch.tensor([complex(1, 1 + 1e-6)])]),
        ([torch.ones(0)], [torch.ones(0)]),
    ],
    ids=["special", "complex", "empty"],
)
def test_rounding_is_no_difference(expected: list[Tensor], actual: list[Tensor]) -> None:
    assert compared(expected, actual).ok
