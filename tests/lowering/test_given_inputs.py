"""What a caller gives: from another device it is brought to where it is read, twice the same tensor is two inputs."""

from __future__ import annotations

import re

import pytest
import torch
from lowering_models import Mlp
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fxpasses import Device, lower
from fxpasses.errors import InputError, PlacementError


def pair() -> list[Device]:
    return [Device("left"), Device("right")]


def on_a_gpu(shape: tuple[int, ...]) -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(shape, device="cuda")


def test_what_a_part_reads_is_brought_from_another_device() -> None:
    lowered = lower(Mlp(4, 64), (torch.randn(2, 64),), devices=pair(), device_map={"layers.0": "left", "": "right"})
    x = on_a_gpu((2, 64))

    (directly,) = lowered._inputs.leaves_of((x,), {})
    (by_graph,), named = lowered._inputs(lowered, (), {"x": x})

    assert ["cpu", "cpu"] == [directly.device.type, by_graph.device.type]
    assert {} == named
    assert "cuda" == x.device.type


def test_what_is_there_already_comes_as_it_is() -> None:
    lowered = lower(Mlp(4, 64), (torch.randn(2, 64),), devices=pair())
    x = torch.randn(2, 64)

    assert lowered._inputs.leaves_of((x,), {})[0] is x
    assert lowered._inputs(lowered, (x,), {})[0][0] is x


def test_inputs_that_nobody_reads_may_be_anywhere() -> None:
    class Ignoring(nn.Module):
        def forward(self, x: torch.Tensor, unread: dict[str, torch.Tensor]) -> torch.Tensor:
            return x + 1

    x, unread = torch.ones(2), {"a": torch.ones(3)}
    lowered = lower(Ignoring(), (x, unread), devices=pair())

    assert torch.equal(x + 1, lowered(x, {"a": torch.ones(3, device="meta")}))


@pytest.mark.parametrize("first", ["left", "right"])
def test_an_input_without_data_is_refused(first: str) -> None:
    """By what reads it, and where it is only copied, as to the second device."""
    devices = [Device("left"), Device("right", torch_device="cpu:1")]
    lowered = lower(Mlp(4, 64), (torch.randn(2, 64),), devices=devices, device_map={"layers.0": first, "": "left"})

    said = "The input 'x' is on meta, where there is no data, and the model reads it on cpu: give a tensor with data."
    with pytest.raises(InputError, match=re.escape(said)):
        lowered(torch.randn(2, 64, device="meta"))


def test_an_input_that_is_written_to_is_not_brought_from_elsewhere() -> None:
    """The caller would not see what was written to a copy."""

    class Writing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            return x * 2

    lowered = lower(Writing(), (torch.ones(2),), devices=pair())

    with pytest.raises(InputError, match="'x' is on cuda:0, but the model writes to it where it was captured, on cpu"):
        lowered._inputs.leaves_of((on_a_gpu((2,)),), {})


def test_a_model_captured_without_data_takes_inputs_from_anywhere() -> None:
    program = torch.export.export(Mlp(2, 8).to("meta"), (torch.ones(2, 8, device="meta"),))
    lowered = lower(program, devices=[Device("left")])

    assert not lowered._inputs.places


def test_a_lowered_model_is_not_moved_to_another_device() -> None:
    model, x = Mlp(4, 64), torch.randn(2, 64)
    lowered = lower(model, (x,), devices=pair())

    said = "A lowered model cannot be moved from cpu to cuda:0: its plan says where"
    for move in (lowered.to, nn.Sequential(lowered).to, lambda device: lowered.to_empty(device=device)):
        with FakeTensorMode(), pytest.raises(PlacementError, match=said):
            move("cuda:0")
    assert torch.equal(model(x), lowered.to("cpu")(x))
    assert {torch.float64} == {parameter.dtype for parameter in lowered.double().parameters()}


def test_a_lowered_model_is_not_moved_to_a_device_that_is_not_here() -> None:
    """On a torch without CUDA, where torch only says that it has none; what else goes wrong is left as it is."""
    lowered = lower(Mlp(4, 64), (torch.randn(2, 64),), devices=pair())

    for move in (lowered.cuda, lambda: lowered.to("cuda"), lambda: nn.Sequential(lowered).to("cuda")):
        with pytest.raises(PlacementError, match=r"^A lowered model cannot be moved from cpu to cuda(:0)?: its plan"):
            move()
    with pytest.raises(RuntimeError, match="no such conversion"):
        lowered._apply(_fails)


def _fails(tensor: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no such conversion")


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("offset", torch.ones(2))

    def forward(self, a: torch.Tensor, b: list[torch.Tensor], c: torch.Tensor) -> torch.Tensor:
        return a * self.weight + b[0] * 10 + c * 100 + self.offset * 1000


@pytest.mark.parametrize("strict", [False, True])
def test_an_example_that_is_given_twice_stands_for_two_inputs(strict: bool) -> None:
    """torch.export alone takes the last of them for all, whatever is given later."""
    x = torch.ones(2)
    model = Two()
    lowered = lower(model, (x, [x]), {"c": x}, devices=pair(), strict=strict)

    given = (torch.full((2,), 2.0), [torch.full((2,), 3.0)], torch.full((2,), 4.0))
    assert torch.equal(model(*given), lowered(*given))
    assert torch.equal(model(x, [x], x), lowered(x, [x], x))


def test_an_example_may_be_the_models_own_state() -> None:
    model = Two()
    lowered = lower(model, (model.weight, [model.weight], model.offset), devices=pair())

    given = (torch.full((2,), 2.0), [torch.full((2,), 3.0)], torch.full((2,), 4.0))
    assert torch.equal(model(*given), lowered(*given))
    lowered(*given).sum().backward()
    assert 1 == sum(parameter.grad is not None for parameter in lowered.parameters())


def test_inputs_in_another_layout_than_the_captured_one_give_the_same() -> None:
    """A capture leaves out ``contiguous()`` where it did nothing; the view behind it holds all the same."""

    class Flat(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.contiguous().view(-1) + 1

    lowered = lower(Flat(), (torch.randn(3, 4),), devices=pair())
    x = torch.randn(4, 3).t()

    assert torch.equal(Flat()(x), lowered(x))
