"""The main job: seconds per node by step, and what a lowered module costs over the unsplit one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.harness import Duel, case
from benchmarks.models import chain_program, wide_llama
from fxpasses import Device, LoweredModule, lower
from fxpasses.units import GiB


def _llama(layers: int, width: int = 256) -> tuple[nn.Module, dict[str, Any]]:
    return wide_llama(layers, width), {"input_ids": torch.randint(0, 1000, (1, 64))}


def _lower_step(step: str, layers: int) -> Duel:
    """Lower an exported Llama; what is timed is one step of it, by itself."""
    from fxpasses.lowering.preparing import run_passes, stateful
    from fxpasses.partitioners.by_device import place_by_device
    from fxpasses.passes import split

    model, kwargs = _llama(layers)
    program = torch.export.export(model, (), kwargs)
    graph_module = stateful(program)
    devices = [Device("left", GiB), Device("right", GiB)]
    assignment = place_by_device(graph_module, devices).assignment
    steps: dict[str, Any] = {
        "passes": lambda: run_passes(program, "remove-detach,remove-no-ops,eliminate-dead-code")[0],
        "place": lambda: place_by_device(graph_module, devices),
        "split": lambda: split(graph_module, assignment, names=lambda part: f"part_{part}"),
        "all but capture": lambda: lower(program, devices=devices),
    }

    def check(result: Any, _peer: Any) -> None:
        assert result is not None

    return Duel(steps[step], None, check)


@case("lower an exported Llama: passes (size: layers)", sizes=(4, 16), rounds=3)
def lower_passes(layers: int) -> Duel:
    return _lower_step("passes", layers)


@case("lower an exported Llama: place", sizes=(4, 16), rounds=3)
def lower_place(layers: int) -> Duel:
    return _lower_step("place", layers)


@case("lower an exported Llama: split", sizes=(4, 16), rounds=3)
def lower_split(layers: int) -> Duel:
    return _lower_step("split", layers)


@case("lower an exported Llama: all but capture", sizes=(4, 16), rounds=3)
def lower_all(layers: int) -> Duel:
    return _lower_step("all but capture", layers)


@case("lower a chain of operators, all but capture", sizes=(1_000, 10_000, 30_000), rounds=1)
def lower_chain(length: int) -> Duel:
    program, devices = chain_program(length), [Device("left", GiB), Device("right", GiB)]

    def check(lowered: LoweredModule, _peer: Any) -> None:
        x = torch.randn(3)
        assert torch.equal(x, lowered(x))

    return Duel(lambda: lower(program, devices=devices), None, check)


def _forward_duel(lowered: LoweredModule, program: torch.export.ExportedProgram, kwargs: dict[str, Any]) -> Duel:
    unsplit = program.module(check_guards=False)

    def run(module: nn.Module) -> Any:
        with torch.no_grad():
            return module(**kwargs)

    def check(ours: Any, theirs: Any) -> None:
        assert torch.equal(ours.logits, theirs.logits)

    return Duel(lambda: run(lowered), lambda: run(unsplit), check)


@case("run a lowered Llama on one device; the peer is the unsplit graph", sizes=(8,), promise=1 / 1.02, rounds=31)
def run_on_one(layers: int) -> Duel:
    model, kwargs = _llama(layers)
    program = torch.export.export(model, (), kwargs)
    return _forward_duel(lower(program, devices=[Device("one")], pipeline=[]), program, kwargs)


@case("run a lowered Llama on two CPU devices; the peer is the unsplit graph", sizes=(8,), rounds=31)
def run_on_two(layers: int) -> Duel:
    model, kwargs = _llama(layers)
    program = torch.export.export(model, (), kwargs)
    held = sum(p.numel() * p.element_size() for p in model.parameters())
    devices = [Device("left", int(held * 0.7)), Device("right", int(held * 0.7))]
    return _forward_duel(lower(program, devices=devices, pipeline=[]), program, kwargs)
