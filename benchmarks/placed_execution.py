"""What running in parts costs, beside Hugging Face accelerate with the same map.

All devices are the CPU, so that any machine can run it. ``dispatch_model`` with one kind of device would install no
hooks, and ``force_hooks=True`` makes it install those that it has on two GPUs: each module of the map gets a hook
around its ``forward`` that sends its inputs to its device. Between two CPUs neither side sends anything. The model
itself, without hooks, stands in a case of its own. With offloading, accelerate's hooks put the tensors of each module
in place and take them out again; ours copies them, and no more than two parts are loaded at a time.

The less there is to compute, the more the Python around the kernels counts: one token is nearly all Python.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from benchmarks.harness import Duel, case
from benchmarks.models import wide_llama
from fxpasses import Device, lower


def _llama(layers: int, tokens: int = 64) -> tuple[nn.Module, dict[str, Any]]:
    return wide_llama(layers), {"input_ids": torch.randint(0, 1000, (1, tokens))}


def _two_way_map(layers: int, left: Any, right: Any) -> dict[str, Any]:
    blocks = {f"model.layers.{i}": left if i < layers // 2 else right for i in range(layers)}
    ends = {"model.norm": right, "model.rotary_emb": left, "lm_head": right}
    return {"model.embed_tokens": left, **blocks, **ends}


def _inference(ours: nn.Module, peer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Duel:
    def run(module: nn.Module) -> Any:
        with torch.no_grad():
            result = module(*args, **kwargs)
        return result if isinstance(result, torch.Tensor) else result.logits

    def check(mine: Any, theirs: Any) -> None:
        assert torch.equal(mine, theirs)

    check(run(ours), run(peer))  # the first run writes code
    return Duel(lambda: run(ours), lambda: run(peer), check)


def _in_two(layers: int, tokens: int, *, hooks: bool = True) -> Duel:
    from accelerate import dispatch_model

    model, kwargs = _llama(layers, tokens)
    devices = [Device("left"), Device("right")]
    ours = lower(model, (), kwargs, devices=devices, device_map=_two_way_map(layers, "left", "right"))
    assert {"left", "right"} == {part.device for part in ours.plan.parts}
    peer = copy.deepcopy(model)
    if hooks:
        peer = dispatch_model(peer, _two_way_map(layers, "cpu", "cpu"), force_hooks=True)
    return _inference(ours, peer, (), kwargs)


@case(
    "run a Llama in two parts; the peer is accelerate's dispatch_model with the same map (size: layers)",
    sizes=(2, 8),
    promise=1.03,
    rounds=31,
)
def beside_dispatch_model(layers: int) -> Duel:
    return _in_two(layers, 64)


@case(
    "run one token through a Llama in two parts; the peer is accelerate's dispatch_model (size: layers)",
    sizes=(2, 8),
    promise=1.2,
    rounds=31,
)
def one_token_beside_dispatch_model(layers: int) -> Duel:
    return _in_two(layers, 1)


@case(
    "run one token through a Llama in two parts; the peer is the model itself (size: layers)",
    sizes=(2, 8),
    promise=1.0,
    rounds=31,
)
def one_token_beside_the_model(layers: int) -> Duel:
    return _in_two(layers, 1, hooks=False)


@case(
    "run a hundred small layers in two parts; the peer is accelerate's dispatch_model (size: layers)",
    sizes=(100,),
    promise=1.2,
    rounds=31,
)
def many_small_layers(layers: int) -> Duel:
    from accelerate import dispatch_model

    torch.manual_seed(0)
    model, x = nn.Sequential(*(nn.Linear(32, 32) for _ in range(layers))).eval(), torch.randn(4, 32)
    halves = {str(i): "left" if i < layers // 2 else "right" for i in range(layers)}
    ours = lower(model, (x,), devices=[Device("left"), Device("right")], device_map=halves)
    peer = dispatch_model(copy.deepcopy(model), dict.fromkeys(halves, "cpu"), force_hooks=True)
    return _inference(ours, peer, (x,), {})


@case(
    "run a Llama with its parameters offloaded; the peer is accelerate's cpu_offload (size: layers)",
    sizes=(8,),
    rounds=15,
)
def beside_cpu_offload(layers: int) -> Duel:
    from accelerate import cpu_offload

    model, kwargs = _llama(layers)
    held = sum(p.numel() * p.element_size() for p in model.parameters())
    ours = lower(model, (), kwargs, devices=[Device("small", int(held * 0.5))], offload="cpu")
    peer = cpu_offload(copy.deepcopy(model), execution_device=torch.device("cpu"))
    assert ours.report.devices[0].traffic_bytes
    return _inference(ours, peer, (), kwargs)
