"""Random models with regions in regions, pinned anywhere: always the program's outputs, gradients and buffers."""

from __future__ import annotations

import copy
from typing import Any

import torch
from fuzz import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fxpasses import Device, PlacementError, lower

WIDTH, LAYERS = 4, 4

Step = tuple[Any, ...]


class Drawn(nn.Module):
    """Does what it is told: each step takes earlier values; a region holds steps of its own."""

    def __init__(self, steps: list[Step]) -> None:
        super().__init__()
        self.steps = steps
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.register_buffer("seen", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        values = [x.clone()]
        self._run(self.steps, values)
        return values[-1], sum(value.float() for value in values)

    def _run(self, steps: list[Step], values: list[Tensor]) -> None:
        for name, choice, inside in steps:
            value = values[choice % len(values)]
            if name == "layer":
                values.append(self.layers[choice % LAYERS](value.float()))
            elif name == "random":
                values.append(nn.functional.dropout(value, 0.4))
            elif name == "write":
                self.seen.add_(value.detach().float().mean(0))
            elif name == "in place":
                values.append((value + self.seen).mul_(2).add_(1))
            elif name == "autocast":
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=choice % 3 > 0):
                    self._run(inside, values)
            elif torch.is_autocast_enabled("cpu"):  # torch.export forgets a grad mode inside of autocast
                self._run(inside, values)
            else:
                with torch.no_grad():
                    self._run(inside, values)


def steps(depth: int = 2) -> st.SearchStrategy[list[Step]]:
    names = st.sampled_from(["layer", "layer", "layer", "random", "write", "in place"])
    single = st.tuples(names, st.integers(0, 9), st.none())
    if depth == 0:
        return st.lists(single, min_size=1, max_size=4)
    region = st.tuples(st.sampled_from(["autocast", "no_grad"]), st.integers(0, 9), steps(depth - 1))
    return st.lists(single | region, min_size=2, max_size=5)


@given(steps=steps(), homes=st.lists(st.integers(0, 2), min_size=LAYERS, max_size=LAYERS), seed=st.integers(0, 9))
@settings(max_examples=examples(8), deadline=None)
def test_a_random_model_with_regions_computes_what_its_program_does(
    steps: list[Step], homes: list[int], seed: int
) -> None:
    """Outputs, types, whether gradients flow, and buffers, bit for bit; gradients but for the order of sums."""
    torch.manual_seed(seed)
    x = torch.randn(3, WIDTH)
    program = torch.export.export(Drawn(steps), (x,))
    names = {str(entry[0]) for node in _nodes(program) for entry in (node.meta.get("nn_module_stack") or {}).values()}
    pins = {f"layers.{number}": "abc"[home] for number, home in enumerate(homes) if f"layers.{number}" in names}
    reference = copy.deepcopy(program).module(check_guards=False)
    devices = [Device(name) for name in "abc"]
    try:
        lowered = lower(program, devices=devices, pinned=pins)
    except PlacementError:  # what is written in place keeps layers with different pins together
        lowered = lower(program, devices=devices)
    given_to = [x.clone().requires_grad_() for _ in range(2)]
    results = []
    for module, inputs in zip((reference, lowered), given_to, strict=True):
        torch.manual_seed(seed)
        results.append(module(inputs))

    for want, found in zip(*results, strict=True):
        assert torch.equal(want, found)
        assert (want.dtype, want.requires_grad) == (found.dtype, found.requires_grad)
    assert torch.equal(reference.get_buffer("seen"), lowered.state_dict()["seen"])
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    for result in results:
        sum(value.float().sum() for value in result if value.requires_grad).backward()
    assert torch.allclose(given_to[0].grad, given_to[1].grad, rtol=0.02, atol=0.02)


def _nodes(program: torch.export.ExportedProgram) -> list[torch.fx.Node]:
    modules = program.graph_module.modules()
    return [node for module in modules if isinstance(module, torch.fx.GraphModule) for node in module.graph.nodes]
