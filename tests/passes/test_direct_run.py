"""One function for the whole placed graph: it gives what the graph's own code gives, which runs when somebody looks."""

from __future__ import annotations

import copy
import traceback
from typing import Any

import pytest
import torch
from lowering_models import KeyValueCache, Mlp, Tied, cpu_pair
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fxpasses import Device, InputError, LoweredModule, lower
from fxpasses.cli.demo_model import demo_llama
from fxpasses.passes.placing_parts import direct_run


def in_two(model: nn.Module, *args: Tensor, **options: Any) -> LoweredModule:
    names = [name for name, _ in model.named_children()]
    halves = {name: "left" if index < len(names) // 2 else "right" for index, name in enumerate(names)}
    return lower(model, args, devices=cpu_pair(), device_map={**halves, "": "left"}, **options)


def mlp() -> tuple[nn.Sequential, Tensor, LoweredModule]:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()), torch.randn(2, 64)
    return model, x, lower(model, (x,), devices=cpu_pair(), device_map={"0": "left", "1": "left", "": "right"})


class Looking(TorchFunctionMode):
    """Somebody who looks: the graph's own code runs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each direct run, whether it gave the result."""
    ran: list[bool] = []
    run = direct_run.DirectRun.__call__

    def noted(self: Any, module: Any, leaves: Any) -> Any:
        result = run(self, module, leaves)
        ran.append(result is not direct_run.OTHERWISE)
        return result

    monkeypatch.setattr(direct_run.DirectRun, "__call__", noted)
    return ran


class Regions(nn.Module):
    """Gradients off and on again, slices of all kinds, a tuple from one operator, a number, lists and dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.shift = torch.full((8,), 0.5)

    def forward(self, x: Tensor, more: dict[str, list[Tensor]]) -> dict[str, Any]:
        y = self.first(x)
        with torch.no_grad():
            scale = y.abs().mean() + 1
            with torch.enable_grad():
                z = y * 2
        low, high = y.split(4, -1)
        self.steps.add_(1)
        joined = torch.cat([low[:, 1:], high[..., :-2], y[:, -3:], y[:, ::2]], -1)
        best = joined.max(-1)
        z = self.second(z / scale + self.shift + more["a"][0]) + joined.sum()
        return {"z": [z, best.values], "n": (3, None), "steps": self.steps + 0, "norm": float("inf")}


def llama() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    model, args, kwargs = demo_llama(2)
    halves = {"model.layers.0": "left", "model.layers.1": "right", "lm_head": "right", "": "left"}
    return model, args, kwargs, {"device_map": halves}


def regions() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    args = (torch.randn(2, 8), {"a": [torch.randn(8)]})
    return Regions(), args, {}, {"device_map": {"first": "left", "second": "right", "": "left"}}


def tied() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    return Tied(), (torch.randint(0, 50, (2, 5)),), {}, {"device_map": {"head": "right", "": "left"}}


@pytest.mark.parametrize("make", [regions, tied, llama])
def test_direct_code_gives_what_the_graph_gives(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results, state, gradients and which results have some: to the last bit."""
    ran = counted(monkeypatch)
    torch.manual_seed(0)
    model, args, kwargs, options = make()
    direct = lower(model, args, kwargs, devices=cpu_pair(), **options)
    graph = copy.deepcopy(direct)

    def outcome(lowered: LoweredModule) -> list[Any]:
        leaves = pytree.tree_leaves(lowered(*args, **kwargs))
        sums = [each.sum() for each in leaves if isinstance(each, Tensor) and each.requires_grad]
        torch.stack(sums).sum().backward()
        gradients = [parameter.grad for parameter in lowered.parameters()]
        return [*leaves, *gradients, *lowered.state_dict().values(), len(sums)]

    actual = outcome(direct)
    with Looking() as looking:
        expected = outcome(graph)

    assert [True] == ran
    assert looking.seen
    for one, other in zip(expected, actual, strict=True):
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other


def test_each_value_is_let_go_after_its_last_use() -> None:
    """Also across the border of two parts: nothing but results is there at the end."""
    model, args, kwargs, options = llama()
    code = lower(model, args, kwargs, devices=cpu_pair(), **options).direct_code
    assert code is not None
    lines = code.splitlines()

    made = [line.split(" = ")[0].strip() for line in lines if line.strip().startswith("v_")]
    freed = {name for line in lines for name in line.partition("; ")[2].removesuffix(" = None").split(" = ")}
    (returned,) = (line for line in lines if line.strip().startswith("return k_unflatten"))

    assert len(made) > 100
    assert all(name in freed or f"[{name}]" in returned for name in made)


def test_no_module_is_called_and_nothing_is_sent_from_a_device_to_itself() -> None:
    """Two names of one torch device; assertions about types are checked once for each parameter."""
    _, _, lowered = mlp()

    assert lowered.direct_code is not None
    for word in ("_to_copy", "assert", "(p0)", "left("):
        assert word not in lowered.direct_code


def test_modes_see_the_operators_of_the_graph() -> None:
    _, x, lowered = mlp()

    with Looking() as looking:
        lowered(x)

    assert "aten.linear.default" in looking.seen


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def test_the_graphs_own_code_runs_when_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modes, hooks, autocast, tracing, torch.compile; afterwards the direct code runs again."""
    ran = counted(monkeypatch)
    model, x, lowered = mlp()
    expected, heard = model(x), []

    with Watching():
        assert torch.equal(expected, lowered(x))
    hooks = [
        lowered.left.register_forward_hook(lambda *_: heard.append("part")),
        lowered.register_forward_hook(lambda *_: heard.append("whole")),
    ]
    assert torch.equal(expected, lowered(x))
    for hook in hooks:
        hook.remove()
    hook = nn.modules.module.register_module_forward_hook(lambda module, *_: heard.append("all"))
    assert torch.equal(expected, lowered(x))
    hook.remove()
    lowered.forward = lambda x: x  # type: ignore[method-assign]
    assert x is lowered(x)
    del lowered.forward
    with torch.autocast("cpu"):
        assert torch.bfloat16 == lowered(x).dtype
    torch.testing.assert_close(expected, torch.compile(lowered, backend="eager")(x))
    assert torch.equal(expected, torch.export.export(lowered, (x,)).module()(x))

    assert [] == ran
    assert ["part", "whole"] == heard[:2]
    assert "all" in heard
    assert torch.equal(expected, lowered(x))
    assert [True] == ran


def test_a_forward_set_on_the_module_is_called() -> None:
    """Libraries that wrap models put a forward on the instance."""
    _model, x, lowered = mlp()
    graph = lowered.forward

    lowered.forward = lambda value: -graph(value)

    assert torch.equal(-graph(x), lowered(x))


def test_a_hook_on_a_part_is_heard_and_the_rest_stays_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = counted(monkeypatch)
    model, x, lowered = mlp()
    heard: list[str] = []
    lowered(x)

    with torch.no_grad():
        hook = lowered.right.register_forward_hook(lambda *_: heard.append("right"))
        assert torch.equal(model(x), lowered(x))
        hook.remove()
        assert torch.equal(model(x), lowered(x))

    assert ["right"] == heard
    assert [True, True, True] == ran


def test_what_is_changed_counts_in_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that was edited, a part and a parameter that were replaced, values that were loaded."""
    ran = counted(monkeypatch)
    model, x, lowered = mlp()
    lowered(x)

    (last,) = lowered.right.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)
    last.target = torch.ops.aten.tanh.default
    lowered.right.recompile()
    edited = lowered(x)
    lowered.get_submodule("right.2").weight = nn.Parameter(torch.zeros(64, 64))
    replaced = lowered(x)
    lowered.right = nn.Identity()
    shorter = lowered(x)

    hidden = model[:2](x)
    assert torch.equal(torch.tanh(model[2](hidden)), edited)
    assert torch.equal(torch.tanh(model[2].bias).expand(2, 64), replaced)
    assert torch.equal(hidden, shorter)
    assert [True] * 4 == ran


def test_a_parameter_of_another_type_is_left_to_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph asserts the types that it was captured with, which direct code takes for granted."""
    ran = counted(monkeypatch)
    model, args, kwargs, options = llama()
    lowered = lower(model, args, kwargs, devices=cpu_pair(), **options)
    lowered(*args, **kwargs)

    lowered.get_submodule("left.model.layers.0.mlp").half()
    with pytest.raises(RuntimeError):
        lowered(*args, **kwargs)

    assert [True, False] == ran


def test_a_module_put_together_in_another_way_is_left_to_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parametrization computes what was a parameter."""
    ran = counted(monkeypatch)
    model, x, lowered = mlp()
    lowered(x)

    for layer in (model[2], lowered.get_submodule("right.2")):
        nn.utils.parametrize.register_parametrization(layer, "weight", nn.Tanh(), unsafe=True)

    assert torch.equal(model(x), lowered(x))
    assert False in ran


def test_gradient_mode_is_put_back_after_an_error() -> None:
    model, args, _, options = regions()
    lowered = lower(model, args, devices=cpu_pair(), **options)
    lowered(*args)

    lowered.get_submodule("left.first").weight = nn.Parameter(torch.zeros(8, 3))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        lowered(*args)

    assert torch.is_grad_enabled()
    assert "linear" in "".join(traceback.format_tb(caught.tb))


class MixedPrecision(nn.Module):
    """Layers under autocast, one of them without it and without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.second(self.first(x).relu())
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            scale = self.third(x.float()).abs().mean()
        return x * scale


@pytest.mark.parametrize("device_map", [{"second": "right", "": "left"}, {"": "left"}])
def test_autocast_is_written_out(device_map: dict[str, str]) -> None:
    """Its body is part of the function, and nothing of it is called as a module or as an operator with a body."""
    model, x = MixedPrecision(), torch.randn(2, 8)
    lowered = lower(copy.deepcopy(model), (x,), devices=cpu_pair(), device_map=device_map)
    given = [x.clone().requires_grad_() for _ in range(2)]
    want, found = model(given[0]), lowered(given[1])
    for result in (want, found):
        result.float().sum().backward()

    assert lowered.direct_code is not None
    assert "with k_autocast" in lowered.direct_code
    assert "wrap_with" not in lowered.direct_code
    assert (want.dtype, want.requires_grad) == (found.dtype, found.requires_grad)
    assert torch.equal(want, found)
    assert given[0].grad is not None
    assert given[1].grad is not None
    assert torch.equal(given[0].grad, given[1].grad)


def test_autocast_is_off_after_an_error() -> None:
    """Whatever happens inside."""
    model, x = MixedPrecision(), torch.randn(2, 8)
    lowered = lower(model, (x,), devices=cpu_pair(), device_map={"": "left"})
    lowered(x)

    next(lowered.children()).first.weight = nn.Parameter(torch.zeros(8, 3))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        lowered(x)

    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_grad_enabled()


def test_inputs_are_checked_in_words() -> None:
    _, x, lowered = mlp()

    with pytest.raises(InputError, match=r"The input 'input' has dtype torch\.float64"):
        lowered(x.double())
    with pytest.raises(InputError, match="The input 'input' is missing"):
        lowered()


def test_a_cache_is_followed_in_both_ways() -> None:
    """One step directly, one by the graph: they share the state."""
    model = KeyValueCache().eval()
    lowered = in_two(model, torch.randn(1, 1, 16), torch.tensor([0]))

    with torch.no_grad():
        for step in range(4):
            x, position = torch.randn(1, 1, 16), torch.tensor([step])
            expected = model(x, position)
            if step % 2:
                with Looking():
                    assert torch.equal(expected, lowered(x, position))
            else:
                assert torch.equal(expected, lowered(x, position))
    assert torch.equal(model.keys, lowered.state_dict()["keys"])


def test_a_copy_runs_alone() -> None:
    """``copy.deepcopy``: its own tensors and its own code, the model's names, plan and checks."""
    model, x, lowered = mlp()
    expected = lowered(x)

    copied = copy.deepcopy(lowered)
    with torch.no_grad():
        for parameter in lowered.parameters():
            parameter.zero_()

    assert torch.equal(expected, copied(x))
    assert 0 == lowered(x).abs().sum()
    assert list(model.state_dict()) == list(copied.state_dict())
    assert lowered.plan == copied.plan
    assert isinstance(copied, LoweredModule)
    with pytest.raises(InputError, match="is missing"):
        copied()


class Temporary(nn.Module):
    """A buffer and a constant that no checkpoint holds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("mask", torch.ones(8), persistent=False)
        self.shift = torch.ones(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.mask + self.shift


def test_a_copy_keeps_out_of_checkpoints_what_was_out() -> None:
    lowered = lower(Temporary(), (torch.randn(2, 8),), devices=[Device("one")])

    assert ["linear.weight", "linear.bias"] == list(copy.deepcopy(lowered).state_dict())


def test_a_device_of_another_backend_is_called() -> None:
    """What a backend made of a part is no graph; the parts around it are written out."""
    pytest.importorskip("onnxruntime")
    model, x = Mlp(4).eval(), torch.randn(2, 64)
    devices = [Device("plain"), Device("compiled", backend="onnxruntime")]
    lowered = lower(model, (x,), devices=devices, device_map={"layers.0": "plain", "": "compiled"})

    with torch.no_grad():
        torch.testing.assert_close(model(x), lowered(x))
    assert "_modules['compiled']" in (lowered.direct_code or "")
