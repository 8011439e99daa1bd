"""Placing the operators of real models: seconds of ``place_by_device`` beside the gap to the bound."""

from __future__ import annotations

import functools
import time
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from benchmarks.harness import Duel, case
from benchmarks.lowering import _llama
from fxpasses import fake_devices
from fxpasses.partitioners.by_device import place_by_device
from fxpasses.programs import capture


class _Inception(nn.Module):
    """Blocks of four branches that are put together again: the graphs with the most cuts."""

    def __init__(self, blocks: int, width: int = 64) -> None:
        super().__init__()
        kinds = (1, 3, 5, 7)
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(width, width // 4, kind, padding=kind // 2) for kind in kinds)
            for _ in range(blocks)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for branches in self.blocks:
            x = torch.cat([torch.relu(branch(x)) for branch in branches], dim=1)
        return x


class _Recurrent(nn.Module):
    """LSTM cells step by step, two layers."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states: list[Any] = [None] * len(self.cells)
        outputs = []
        for step in x.unbind(0):
            for index, cell in enumerate(self.cells):
                states[index] = cell(step, states[index])
                step = states[index][0]
            outputs.append(step)
        return torch.stack(outputs)


class _Residual(nn.Module):
    def __init__(self, blocks: int, width: int = 32) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
            for _ in range(blocks)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


def _bert(layers: int) -> tuple[nn.Module, dict[str, Any]]:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 4, "vocab_size": 500}
    model = BertModel(BertConfig(num_hidden_layers=layers, **sizes)).eval()
    return model, {"input_ids": torch.randint(0, 500, (1, 32))}


@functools.cache
def graph_of(name: str, size: int) -> GraphModule:
    """One of the models, exported."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if name == "llama":
        model, kwargs = _llama(size)
    elif name == "bert":
        model, kwargs = _bert(size)
    elif name == "inception":
        model, args = _Inception(size), (torch.randn(1, 64, 16, 16),)
    elif name == "resnet":
        model, args = _Residual(size).eval(), (torch.randn(1, 32, 16, 16),)
    else:
        model, args = _Recurrent(), (torch.randn(size, 4, 64),)
    graph_module: GraphModule = capture(model.eval(), args, kwargs).module(check_guards=False)
    return graph_module


def _place(name: str, size: int, objective: Any, contiguity: Any) -> Duel:
    graph_module = graph_of(name, size)
    held = sum(tensor.nbytes for tensor in (*graph_module.parameters(), *graph_module.buffers()))
    weights = [1.0, 1.3, 1.6, 2.0]
    memory = [int(2 * held * weight / sum(weights)) + 4_000_000 for weight in weights]
    devices = fake_devices(4, memory=memory, flops=[1e11, 2e11, 1e11, 4e11])

    def check(placement: Any, _peer: Any) -> None:
        assert 0 < placement.bound <= placement.objective_value
        nodes = len(placement.assignment.partition_of)
        print(
            f"    {name} {size}, {objective}, {contiguity}: {nodes} operators, {len(placement.assignment)} parts, "
            f"at most {placement.gap:.2%} above the best"
        )

    return Duel(lambda: place_by_device(graph_module, devices, objective=objective, contiguity=contiguity), None, check)


@case("place an exported Llama: throughput, pipeline (size: layers)", sizes=(8, 48), rounds=1)
def llama_pipeline(layers: int) -> Duel:
    return _place("llama", layers, "throughput", "pipeline")


@case("place an exported Llama: throughput, free", sizes=(8,), rounds=1)
def llama_free(layers: int) -> Duel:
    return _place("llama", layers, "throughput", "free")


@case("place an exported Llama: latency", sizes=(8,), rounds=1)
def llama_latency(layers: int) -> Duel:
    return _place("llama", layers, "latency", "pipeline")


@case("place an exported BERT: throughput, pipeline (size: layers)", sizes=(12,), rounds=1)
def bert_pipeline(layers: int) -> Duel:
    return _place("bert", layers, "throughput", "pipeline")


@case("place a residual net: throughput, pipeline (size: blocks)", sizes=(50, 1000), rounds=1)
def resnet_pipeline(blocks: int) -> Duel:
    return _place("resnet", blocks, "throughput", "pipeline")


@case("place an Inception-like net: throughput, pipeline (size: blocks)", sizes=(10, 40), rounds=1)
def inception_pipeline(blocks: int) -> Duel:
    return _place("inception", blocks, "throughput", "pipeline")


@case("place LSTM cells: throughput, pipeline (size: steps)", sizes=(16, 64), rounds=1)
def lstm_pipeline(steps: int) -> Duel:
    return _place("lstm", steps, "throughput", "pipeline")


def main() -> None:
    """Print CPU seconds of each model and how far the answer can be from the best."""
    for name, size, objective, contiguity in (
        ("llama", 8, "throughput", "pipeline"),
        ("llama", 8, "throughput", "free"),
        ("llama", 8, "latency", "pipeline"),
        ("bert", 12, "throughput", "pipeline"),
        ("resnet", 50, "throughput", "pipeline"),
        ("inception", 10, "throughput", "pipeline"),
        ("lstm", 16, "throughput", "pipeline"),
    ):
        duel = _place(name, size, objective, contiguity)
        begin = time.process_time()
        found = duel.ours()
        seconds = time.process_time() - begin
        duel.check(found, None)
        print(f"        {seconds:.2f} s of CPU", flush=True)


if __name__ == "__main__":
    main()
