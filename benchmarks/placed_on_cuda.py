"""What running on a GPU costs, beside the model itself and beside Hugging Face accelerate. Only where there is CUDA.

Each run ends when the GPU is done. ``dispatch_model`` takes ``cpu`` in a map that has a GPU for offloading: its hooks
send the parameters of each module to the GPU before it runs and drop them after it. Ours loads the same part of the
parameters from pinned memory, one part ahead.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.harness import Duel, case
from benchmarks.models import wide_llama
from fxpasses import Device, lower

_GPU = "cuda:0"


def _tokens(count: int) -> torch.Tensor:
    return torch.randint(0, 1000, (1, count))


def _halves(layers: int, first: Any, second: Any) -> dict[str, Any]:
    blocks = {f"model.layers.{i}": first if i < layers // 2 else second for i in range(layers)}
    ends = {"model.norm": second, "model.rotary_emb": first, "lm_head": second}
    return {"model.embed_tokens": first, **blocks, **ends}


def _run(module: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = module(input_ids=ids).logits
    torch.cuda.synchronize()
    return logits


def _inference(ours: nn.Module, peer: nn.Module, ids: torch.Tensor, peer_ids: torch.Tensor | None = None) -> Duel:
    theirs = ids if peer_ids is None else peer_ids

    def check(mine: torch.Tensor, other: torch.Tensor | None) -> None:
        assert other is not None
        torch.testing.assert_close(mine.cpu(), other.cpu(), rtol=1e-3, atol=1e-3)

    for _ in range(3):  # kernels are chosen and code is written
        check(_run(ours, ids), _run(peer, theirs))
    return Duel(lambda: _run(ours, ids), lambda: _run(peer, theirs), check)


def _beside_the_model(layers: int, tokens: int, width: int) -> Duel:
    model, ids = wide_llama(layers, width).cuda(), _tokens(tokens).cuda()
    ours = lower(model, (), {"input_ids": ids}, devices=[Device("gpu", torch_device=_GPU)])
    return _inference(ours, model, ids)


def _beside_dispatch_model(layers: int, tokens: int, width: int) -> Duel:
    from accelerate import dispatch_model

    model, ids = wide_llama(layers, width), _tokens(tokens)
    devices = [Device("left", torch_device=_GPU), Device("right", torch_device=_GPU)]
    ours = lower(model, (), {"input_ids": ids}, devices=devices, device_map=_halves(layers, "left", "right"))
    peer = dispatch_model(copy.deepcopy(model), _halves(layers, 0, 0), force_hooks=True)
    return _inference(ours, peer, ids)


def _beside_offloading(layers: int, tokens: int, width: int) -> Duel:
    from accelerate import dispatch_model

    model, ids = wide_llama(layers, width), _tokens(tokens)
    held = sum(parameter.nbytes for parameter in model.parameters())
    device = Device("gpu", held * 6 // 10, torch_device=_GPU)  # two parts are under way, so half of them stay
    ours = lower(model, (), {"input_ids": ids}, devices=[device], offload="cpu")
    assert ours.report.devices[0].traffic_bytes > held * 4 // 10
    peer = dispatch_model(copy.deepcopy(model), _halves(layers, 0, "cpu"), main_device=0)
    return _inference(ours, peer, ids)


_CASES: tuple[tuple[str, tuple[int, ...], float, int, Callable[[int], Duel]], ...] = (
    (
        "run one token through a Llama on one GPU; the peer is the model itself",
        *((2, 8), 1.0, 31, lambda layers: _beside_the_model(layers, 1, 256)),
    ),
    (
        "run 2,048 tokens through a Llama of width 2,048; the peer is the model itself",
        *((2, 8), 0.98, 21, lambda layers: _beside_the_model(layers, 2048, 2048)),
    ),
    (
        "run a Llama in two parts of one GPU; the peer is accelerate's dispatch_model",
        *((2, 8), 1.1, 31, lambda layers: _beside_dispatch_model(layers, 64, 256)),
    ),
    (
        "run a Llama of width 2,048 with half of its layers in main memory; the peer is accelerate's dispatch_model",
        *((4, 8), 2.0, 11, lambda layers: _beside_offloading(layers, 64, 2048)),
    ),
)
for _name, _sizes, _promise, _rounds, _make in _CASES if torch.cuda.is_available() else ():
    case(f"(CUDA) {_name} (size: layers)", sizes=_sizes, promise=_promise, rounds=_rounds)(_make)
