"""Parts that other compilers and runtimes run: the same numbers, the model's own names, clear refusals."""

from __future__ import annotations

import sys

import pytest
import torch
from lowering_models import KeyValueCache, Mlp

from fxpasses import Device, InputError, lower
from fxpasses.backends import backend_names
from fxpasses.backends.runtimes import RuntimePart
from fxpasses.devices import BACKENDS
from fxpasses.units import KiB


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_part_runs_in_another_runtime_with_the_same_numbers_and_names(backend: str) -> None:
    """Complaint 23: two backends in one model, each on its own part."""
    model = Mlp(4).eval()
    x = torch.randn(2, 64)
    devices = [Device("first", 40 * KiB, backend=backend), Device("second", 40 * KiB)]

    with torch.no_grad():
        lowered = lower(model, (x,), devices=devices)
        actual = lowered(x)

    assert isinstance(lowered.first, RuntimePart)
    assert backend == lowered.first.backend
    torch.testing.assert_close(model(x).detach(), actual, rtol=1e-5, atol=1e-5)
    assert set(model.state_dict()) == set(lowered.state_dict())


def test_inductor_compiles_a_part_when_it_first_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda _module, **options: asked.append(options))

    lower(Mlp(), (torch.randn(2, 64),), devices=[Device("only", backend="inductor")])

    assert [{"backend": "inductor", "fullgraph": True}] == asked


def test_a_part_that_writes_to_a_buffer_is_refused_by_a_runtime() -> None:
    args = (torch.randn(1, 1, 16), torch.tensor([0]))

    with pytest.raises(InputError, match=r"^The backend 'openvino' cannot run a part that writes to its inputs"):
        lower(KeyValueCache().eval(), args, devices=[Device("only", backend="openvino")])


def test_a_runtime_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)

    with pytest.raises(InputError, match=r"install it with pip install 'fxpasses\[openvino\]'\.$"):
        lower(Mlp(), (torch.randn(2, 64),), devices=[Device("only", backend="openvino")])


def test_an_unknown_backend_lists_what_there_is() -> None:
    assert ["eager", "inductor", "onnxruntime", "openvino"] == backend_names()
    assert list(BACKENDS) == backend_names()
    with pytest.raises(InputError, match=r"^There is no backend 'npu'; there are eager, inductor, onnx"):
        lower(Mlp(), (torch.randn(2, 64),), devices=[Device("only", backend="npu")])
