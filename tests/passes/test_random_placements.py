"""Random programs with effects on random devices, every copy as late as it may be: they mean what they meant."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import pytest
import torch
from fake_streams import LateStreams
from fuzz import FUZZ, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from networkx.utils import UnionFind
from programs import STEPS, random_program
from torch import nn
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxpasses import Device, PassError, PlacementError
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.colocation import must_share
from fxpasses.passes import split
from fxpasses.passes.placement import PlaceOnDevices, copies_of
from fxpasses.passes.placing_parts.direct_run import DirectRun
from fxpasses.passes.placing_parts.streams import streams_for

DEVICES = tuple(Device(name) for name in ("left", "middle", "right"))


def random_parts(
    graph_module: GraphModule, rng: random.Random, *, tears: bool = False, devices: Sequence[Device] = DEVICES
) -> tuple[Assignment, dict[str, Device]]:
    """Runs of operators on random devices; what must share a device does, unless it is torn."""
    figures = GraphFigures.of(graph_module)
    together: UnionFind[Node] = UnionFind(figures.nodes)
    for group in () if tears else must_share(figures):
        together.union(*group)
    drawn = {together[node]: rng.choice(devices) for node in figures.nodes}
    part_of: dict[Node, str] = {}
    device_of: dict[str, Device] = {}
    before = None
    for node in figures.nodes:
        device = drawn[together[node]]
        if device is not before or not device_of:
            device_of[f"part{len(device_of)}"] = device
        part_of[node], before = list(device_of)[-1], device
    return Assignment.of(graph_module, part_of, order=list(device_of)), device_of


def meaning(module: Callable[..., Any], state: GraphModule, inputs: Any) -> list[torch.Tensor]:
    """Outputs, written inputs, state and random numbers; the state is as before afterwards."""
    tensors = [*state.parameters(), *state.buffers()]
    before = [tensor.detach().clone() for tensor in tensors]
    given = [tensor.clone() for tensor in inputs]
    torch.manual_seed(0)
    with torch.no_grad():
        results = [leaf for leaf in pytree.tree_leaves((module(*given), given)) if isinstance(leaf, torch.Tensor)]
        shown = [leaf.clone() for leaf in (*results, *tensors)]
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(old)
    return [*shown, torch.get_rng_state()]


def check_meaning(seed: int, *, tears: bool) -> None:
    rng = random.Random(seed)
    program = random_program(rng, size=rng.randint(3, 14))
    graph_module = program.graph_module
    assignment, device_of = random_parts(graph_module, rng, tears=tears)
    streams = LateStreams() if rng.random() < 0.7 else None
    expected = meaning(graph_module, graph_module, program.inputs)

    placed = split(graph_module, assignment, names=str, constants=rng.choice(["share", "pass_in"])).graph_module
    with patch("fxpasses.passes.placement.streams_for", lambda _devices: streams):
        PlaceOnDevices({name: device_of[name] for name in device_of if name in placed._modules})(placed)
    actual = meaning(placed, graph_module, program.inputs)
    run = DirectRun()
    directly = meaning(lambda *given: run(placed, given), graph_module, program.inputs)

    assert streams is None or 0 == streams.lost
    assert run.source(placed) is not None
    for one, other, third in zip(expected, actual, directly, strict=True):
        assert torch.equal(one.nan_to_num(), other.nan_to_num())
        assert torch.equal(one.nan_to_num(), third.nan_to_num())
    if not tears:
        copies = copies_of(placed)
        assert len(copies) == len({(copy.value, copy.target) for copy in copies})


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 10**6))
def test_a_random_program_means_the_same_on_random_devices(seed: int) -> None:
    check_meaning(seed, tears=False)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 10**6))
def test_parts_that_tear_memory_are_refused_and_never_wrong(seed: int) -> None:
    """Parts made by hand: a write that another device would have to see is an error, not a wrong answer."""
    try:
        check_meaning(seed, tears=True)
    except PassError as error:
        assert isinstance(error.__cause__, PlacementError)  # noqa: PT017  # refusing is one of two right answers


APART = (Device("left", torch_device="cpu:1"), Device("middle"), Device("right", torch_device="cpu:1"))
"""``cpu:1`` is main memory, and yet another torch device: what goes there is copied."""


def shown_by(run: Callable[..., Any], module: nn.Module, inputs: Any) -> dict[str, torch.Tensor]:
    """Outputs, written inputs and state by name, in main memory; the state is as before afterwards."""
    state = module.state_dict(keep_vars=True)
    before = {name: value.detach().clone() for name, value in state.items()}
    given = [tensor.clone() for tensor in inputs]
    with torch.no_grad():
        leaves = [leaf for leaf in pytree.tree_leaves((run(*given), given)) if isinstance(leaf, torch.Tensor)]
        named = {**{str(index): leaf for index, leaf in enumerate(leaves)}, **state}
        found = {name: value.detach().cpu().clone() for name, value in named.items()}
        for name, value in state.items():
            value.copy_(before[name])
    return found


def check_memories(seed: int, devices: Sequence[Device], streams: Any = None, *, tears: bool = False) -> int:
    """A program means on devices with memories of their own what it meant; tells how many copies there are."""
    rng = random.Random(seed)
    steps = tuple(step for step in STEPS if step not in ("random", "autocast"))  # other devices draw, and round, others
    program = random_program(rng, size=rng.randint(3, 14), steps=steps)
    graph_module = program.graph_module
    assignment, device_of = random_parts(graph_module, rng, devices=devices, tears=tears)
    before = {name: value.clone() for name, value in graph_module.state_dict().items()}
    expected = shown_by(graph_module, graph_module, program.inputs)
    placed = split(graph_module, assignment, names=str, constants=rng.choice(["share", "pass_in"])).graph_module
    with patch("fxpasses.passes.placement.streams_for", streams or streams_for):
        PlaceOnDevices({name: device_of[name] for name in device_of if name in placed._modules})(placed)
    run = DirectRun()
    for way in (placed, lambda *given: run(placed, given)):
        found = shown_by(way, placed, program.inputs)
        for name in expected.keys() - found.keys():  # what nobody writes to, each device has for itself
            assert torch.equal(before[name], expected[name]), name
        for name in expected.keys() & found.keys():
            torch.testing.assert_close(
                found[name], expected[name], rtol=1e-5, atol=1e-5, equal_nan=True, msg=f"{name}, seed {seed}"
            )
    return len(copies_of(placed))


@pytest.mark.parametrize("begin", range(0, 200 * FUZZ, 50))
def test_a_random_program_means_the_same_in_several_memories(begin: int) -> None:
    """What is written to copies of inputs, or to views of them, comes back; state is one tensor in one place."""
    assert 100 < sum(check_memories(seed, APART) for seed in range(begin, begin + 50))


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 10**6))
def test_parts_that_tear_memory_are_refused_or_right_in_several_memories(seed: int) -> None:
    try:
        check_memories(seed, APART, tears=True)
    except PassError as error:
        assert isinstance(error.__cause__, PlacementError)  # noqa: PT017  # refusing is one of two right answers
