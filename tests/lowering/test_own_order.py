"""Parameters of a lowered model in the model's own order, also from a module around it."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from lowering_models import cpu_pair
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from fxpasses import LoweredModule, lower


class Backwards(nn.Module):
    """What runs last is registered first; all has one shape, so that nothing tells the two apart."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.body(x).relu())
        return result


X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def pair() -> tuple[nn.Module, LoweredModule]:
    torch.manual_seed(0)
    model = Backwards()
    return model, lower(copy.deepcopy(model), (X,), devices=cpu_pair(), device_map={"body": "left", "": "right"})


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(X).square().sum().backward()
    optimizer.step()


def test_averages_of_weights_stay_with_their_weights() -> None:
    """An average of weights counts parameters from a module around the model, beside those of the model itself."""
    averages = []
    for model in pair():
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
        for _ in range(3):
            step(model, optimizer)
            average.update_parameters(model)
        averages.append(average(X))

    assert torch.equal(*averages)


def test_a_checkpoint_of_an_optimizer_fits_where_the_model_is_part_of_another() -> None:
    model, lowered = (nn.Sequential(each) for each in pair())
    first = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    step(model, first)
    second = torch.optim.SGD(lowered.parameters(), 0.01, momentum=0.9)
    lowered.load_state_dict(model.state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))

    step(model, first)
    step(lowered, second)

    for name, value in model.state_dict().items():
        torch.testing.assert_close(lowered.state_dict()[name], value, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda lowered: torch.load(saved(lowered), weights_only=False)])
def test_a_copy_lists_its_own_parameters_in_the_same_order(again: object) -> None:
    _model, lowered = pair()
    assert callable(again)
    copied = again(lowered)

    assert [name for name, _ in lowered.named_parameters()] == [name for name, _ in copied.named_parameters()]
    assert not {id(each) for each in lowered.parameters()} & {id(each) for each in copied.parameters()}
    assert {id(each) for each in copied.parameters()} == {
        id(each) for part in copied.children() for each in part.parameters()
    }


class Twice(nn.Module):
    """One module that runs on both devices."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.shared = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.shared(self.inner(self.shared(x)).relu())
        return result


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_around_a_lowered_model_each_module_and_parameter_is_what_it_was() -> None:
    """What tells the order is listed beside them, and only where each is taken once."""
    lowered = lower(Twice(), (X,), devices=cpu_pair(), device_map={"inner": "left", "shared": "right"})
    around = nn.Sequential(lowered)

    assert lowered is dict(around.named_modules())["0"]
    assert lowered is next(iter(lowered.modules()))
    assert [] == list(lowered.named_parameters(recurse=False)) == list(around.named_parameters(recurse=False))
    names = [name for name, _ in lowered.named_parameters(remove_duplicate=False)]
    assert len(set(names)) == len(names)
    assert sorted(f"0.{name}" for name in names) == sorted(
        name for name, _ in around.named_parameters(remove_duplicate=False)
    )
    for module in (lowered, around):
        assert torch.equal(torch.jit.trace(module, (X,))(X), lowered(X))
        assert torch.equal(torch.export.export(module, (X,)).module()(X), lowered(X))
        assert torch.equal(torch.compile(module, backend="eager")(X), lowered(X))


class Statistics(nn.Module):
    """Buffers of all kinds: those of a norm, one that checkpoints leave out, one that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(8), persistent=False)
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("scale", torch.ones(8))
        self.register_buffer("unread", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x * self.scale) + self.shift


def test_buffers_are_in_the_models_own_order() -> None:
    """Averages that take buffers along, and whoever goes through the buffers of both models, pair them by place."""
    model = Statistics()
    lowered = lower(model, (X,), devices=cpu_pair(), device_map={"norm": "left", "": "right"})
    loaded = torch.load(saved(lowered), weights_only=False)

    for module, prefix in ((lowered, ""), (loaded, ""), (nn.Sequential(lowered), "0.")):
        assert [prefix + name for name, _ in model.named_buffers()] == [name for name, _ in module.named_buffers()]


def test_a_parameter_that_is_replaced_or_added_is_listed() -> None:
    _model, lowered = pair()
    name = next(name for name, _ in lowered.named_parameters())
    part, _, own = name.rpartition(".")
    new, more = nn.Parameter(torch.ones(8, 8)), nn.Parameter(torch.ones(1))

    setattr(lowered.get_submodule(part), own, new)
    lowered.more = more
    listed = dict(lowered.named_parameters())

    assert listed[name] is new
    assert (listed["more"], list(listed)[-1]) == (more, "more")
    assert 5 == len(list(lowered.parameters()))
    assert "more" in lowered.state_dict()


def saved(lowered: LoweredModule) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(lowered, file)
    file.seek(0)
    return file


class Scaled(nn.Module):
    """Takes whole numbers, so that it can be converted."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(10, 8), nn.Linear(8, 8)
        self.register_buffer("scale", torch.rand(8))
        self.register_buffer("runs", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        return self.head(self.table(x)) * self.scale


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_pickle_keeps_the_types_that_the_model_was_converted_to(dtype: torch.dtype) -> None:
    """Buffers came back in the type of the program."""
    model, x = Scaled(), torch.arange(6)
    lowered = lower(model, (x,), devices=cpu_pair(), device_map={"table": "left", "": "right"}).to(dtype)
    before = {name: each.clone() for name, each in lowered.state_dict().items()}

    loaded = torch.load(saved(lowered), weights_only=False)

    types = {name: each.dtype for name, each in model.to(dtype).state_dict().items()}
    assert types == {name: each.dtype for name, each in loaded.state_dict().items()}
    for name, each in loaded.state_dict().items():
        assert torch.equal(before[name], each), name
    assert torch.equal(lowered(x), loaded(x))
    assert {"meta"} == {each.device.type for each in lowered.to("meta").parameters()}
