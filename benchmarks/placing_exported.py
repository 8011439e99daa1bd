"""Pipelines over the operators of exported transformers: CPU seconds to the certificate.

Their weights are on ``meta``: only shapes count. ``python -m benchmarks.placing_exported`` prints every problem.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import attrs
import torch

from benchmarks.harness import Duel, case
from fxpasses import Device, fake_devices, place
from fxpasses.devices import Topology
from fxpasses.partitioners import PlacementProblem, PlacementSolution, placement_problem, solve_placement

SPEEDS: dict[str, list[float]] = {
    "4 equal": [1.0] * 4,
    "8 equal": [1.0] * 8,
    "8 of two kinds": [1.0] * 4 + [2.0] * 4,
    "4 different": [1.0, 1.5, 2.0, 3.0],
}


def _tokens(length: int) -> torch.Tensor:
    return torch.zeros(1, length, dtype=torch.long, device="meta")


def _llama(layers: int, width: int, length: int) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": width, "intermediate_size": width * 11 // 4, "vocab_size": 32_000}
    heads = {"num_attention_heads": width // 64, "num_key_value_heads": width // 128}
    config = LlamaConfig(num_hidden_layers=layers, use_cache=False, **sizes, **heads)
    return LlamaForCausalLM(config).eval(), {"input_ids": _tokens(length)}


def _bert() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig()).eval(), {"input_ids": _tokens(128)}


def _gpt2() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    from transformers import GPT2Config, GPT2Model

    return GPT2Model(GPT2Config(use_cache=False)).eval(), {"input_ids": _tokens(256)}


def _vit() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    from transformers import ViTConfig, ViTModel

    return ViTModel(ViTConfig()).eval(), {"pixel_values": torch.zeros(2, 3, 224, 224, device="meta")}


def _mixtral() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = MixtralConfig(num_hidden_layers=4, vocab_size=1000, num_local_experts=4, use_cache=False, **sizes)
    return MixtralForCausalLM(config).eval(), {"input_ids": _tokens(64)}


def _t5() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    from transformers import T5Config, T5Model

    config = T5Config(d_model=256, d_ff=1024, num_layers=4, num_heads=4, vocab_size=1000, use_cache=False)
    return T5Model(config).eval(), {"input_ids": _tokens(64), "decoder_input_ids": _tokens(64)}


MODELS: dict[str, Callable[[], tuple[torch.nn.Module, dict[str, torch.Tensor]]]] = {
    "Llama, 4 layers of 256": lambda: _llama(4, 256, 128),
    "Llama, 8 layers of 512": lambda: _llama(8, 512, 256),
    "Llama, 8 layers of 1024": lambda: _llama(8, 1024, 512),
    "BERT base": _bert,
    "GPT-2": _gpt2,
    "ViT base": _vit,
    "Mixtral, 4 layers of 4 experts": _mixtral,
    "T5, 4 and 4 layers": _t5,
}
CERTIFIED = ("Llama, 4 layers of 256", "Llama, 8 layers of 512", "BERT base", "GPT-2", "ViT base")


@functools.cache
def _prepared(name: str) -> torch.fx.GraphModule:
    with torch.device("meta"):
        model, kwargs = MODELS[name]()
    planned = place(model, (), kwargs, devices=fake_devices(8), objective="throughput", time_budget=0)
    return planned.prepared.graph_module


def problem(name: str, speeds: list[float], budget: float) -> PlacementProblem:
    """A pipeline of a model's operators on devices of some speeds."""
    plain = fake_devices(len(speeds))
    devices = [
        Device(each.name, each.available_mem_bytes, flops=each.peak_flops("float32") * speed, bandwidth=each.bandwidth)
        for each, speed in zip(plain, speeds, strict=True)
    ]
    topology = Topology.of(devices)
    return placement_problem(_prepared(name), topology, objective="throughput", time_budget=budget)


@case("certificates for exported transformers on 4 or 8 equal devices, time_budget=5", sizes=(4, 8), rounds=1)
def certify_exported(devices: int) -> Duel:
    """Five models of 180 to 500 operators."""
    posed = [problem(name, SPEEDS[f"{devices} equal"], 5.0) for name in CERTIFIED]

    def check(found: list[PlacementSolution], _peer: Any) -> None:
        assert all(solution.is_optimal for solution in found)

    return Duel(ours=lambda: [solve_placement(each) for each in posed], peer=None, check=check)


def main() -> None:
    """Print every model on every set of devices: the default, and with ten seconds where that proves nothing."""
    for name in MODELS:
        for kind, speeds in SPEEDS.items():
            posed = problem(name, speeds, 1.0)
            rows = []
            for budget in (1.0, 10.0):
                begin = time.process_time()
                solution = solve_placement(attrs.evolve(posed, time_budget=budget))
                rows.append(f"{time.process_time() - begin:.2f} s, gap {solution.gap:.3%}")
                if solution.is_optimal:
                    break
            print(f"{name:32}{len(posed.graph):4} {kind:15}", "; ".join(rows), flush=True)


if __name__ == "__main__":
    main()
