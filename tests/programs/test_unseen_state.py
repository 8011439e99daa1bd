"""Capturing a model changes nothing in it, also where it keeps tensors outside of its modules' registers."""

from __future__ import annotations

import copy
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor, nn

from fxpasses import CaptureError, Device, lower
from fxpasses.programs import capture
from fxpasses.programs.unseen_state import unseen_tensors


class Cache:
    """An object that is no module, with a tensor in a list in it."""

    def __init__(self, count: Tensor) -> None:
        self.layers = [{"count": count}]


@attrs.define(slots=True)
class SlottedCache:
    layers: list[dict[str, Tensor]]


class Counting(nn.Module):
    """Counts its runs in a cache object, through which nobody sees a buffer."""

    def __init__(self, kind: str, registered: bool) -> None:
        super().__init__()
        count = torch.zeros(1)
        if registered:
            self.register_buffer("count", count)
        self.cache: Any = Cache(count) if kind == "object" else SlottedCache([{"count": count}])
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.cache.layers[0]["count"].add_(1)
        return self.linear(x) * self.cache.layers[0]["count"]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("registered", [False, True])
@pytest.mark.parametrize("kind", ["object", "slots"])
def test_capturing_leaves_what_the_model_holds_in_objects_alone(kind: str, registered: bool, strict: bool) -> None:
    """torch.export runs the model, and what forward writes to such a tensor is written for real; it is put back."""
    model = Counting(kind, registered)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    capture(model, (torch.ones(2, 4),), strict=strict)

    assert 0.0 == model.cache.layers[0]["count"].item()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("registered", [False, True])
def test_a_cache_outside_of_the_registers_is_counted_as_eager_counts(registered: bool) -> None:
    """The lowered model starts where the model is, and each goes on for itself."""
    model, x = Counting("object", registered), torch.ones(2, 4)
    eager = copy.deepcopy(model)

    lowered = lower(model, (x,), devices=[Device("a")])

    for _ in range(3):
        assert torch.equal(eager(x), lowered(x))
    assert 0.0 == model.cache.layers[0]["count"].item()


def test_a_model_that_cannot_be_captured_is_left_alone_as_well() -> None:
    class Failing(Counting):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y if y.sum() > 0 else x

    model = Failing("object", True)

    with pytest.raises(CaptureError, match=r"torch\.export cannot capture Failing"):
        capture(model, (torch.ones(2, 4),))

    assert 0.0 == model.cache.layers[0]["count"].item()


def test_unseen_tensors_are_found_in_any_nesting_once_and_registered_ones_are_not() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    one, two, three = torch.zeros(1), torch.zeros(2), torch.zeros(3)
    model[0].extra = ({"one": one}, [Cache(two)], one)
    model[1].helper = [nn.Linear(1, 1, bias=False)]  # a module that is not registered
    model.cache = SlottedCache([{"three": three}])
    model.itself = model
    deep: list[Any] = []
    for _ in range(5_000):  # deeper than Python's recursion goes
        deep = [deep]
    model.deep = deep

    found = {id(tensor) for tensor in unseen_tensors(model)}

    assert {id(one), id(two), id(three), id(model[1].helper[0].weight)} == found
    assert 4 == len(unseen_tensors(model))


def test_a_captured_graph_is_not_searched_for_tensors() -> None:
    """What the nodes of a graph hold in ``meta`` is written by no forward."""
    exported = capture(nn.Linear(4, 4), (torch.ones(2, 4),)).module()

    assert [] == unseen_tensors(exported)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_weights_of_recurrent_layers_are_not_copied(kind: type[nn.RNNBase]) -> None:
    """Torch lists their parameters a second time, and keeps the list in step with them."""
    layers = nn.ModuleList([kind(4, 4, num_layers=2, bidirectional=True)])
    own = torch.zeros(1)
    layers[0].extra = [own]

    assert [own] == unseen_tensors(layers)


def test_a_parameter_that_is_written_through_a_list_is_put_back() -> None:
    class Averaging(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.averaged = list(self.linear.parameters())

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.averaged[1].add_(1)
            return self.linear(x)

    model = Averaging()
    before = copy.deepcopy(model.state_dict())

    capture(model, (torch.ones(2, 4),))

    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_what_is_written_has_no_history_afterwards() -> None:
    """A cache that gradients flowed into cannot be copied, and the model it is in neither."""

    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.kept = nn.Linear(4, 4), [torch.zeros(3, 4)]

        def forward(self, x: Tensor, place: Tensor) -> Tensor:
            self.kept[0].index_copy_(0, place, self.linear(x))
            return self.kept[0].sum(0)

    model = Cache()

    capture(model, (torch.ones(1, 4), torch.tensor([1])))

    assert model.kept[0].grad_fn is None
    assert torch.equal(torch.zeros(3, 4), copy.deepcopy(model).kept[0])
