"""Graphs like those on which papers measure placement: Inception-v3, GNMT, experts, U-shapes; mixed devices.

The sizes follow the workloads of Tarnawski et al., "Efficient algorithms for device placement of DNN graph operators",
NeurIPS 2020. Costs come from the roofline of :mod:`benchmarks.placement_problems`; :func:`shuffled` draws others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import networkx as nx

from benchmarks.placement_problems import (
    LINK,
    Builder,
    convolution,
    convolutional,
    needed_bytes,
    recurrent,
    training,
    transformer,
)
from fxpasses.devices import Device, Link
from fxpasses.partitioners import PlacementProblem

__all__ = ["DEVICES", "WORKLOADS", "experts", "inception_v3", "mixed", "shuffled", "translation", "u_shape"]

Graph = nx.DiGraph

BRANCHES: dict[str, tuple[tuple[int, ...], ...]] = {
    "a": ((1,), (1, 5), (1, 3, 3), (0, 1)),
    "b": ((3,), (1, 3, 3), (0,)),
    "c": ((1,), (1, 7, 7), (1, 7, 7, 7, 7), (0, 1)),
    "d": ((1, 3), (1, 7, 7, 3), (0,)),
    "e": ((1,), (1, 3), (1, 3, 3), (0, 1)),
}
"""Kernels along each branch of each kind of block of Inception-v3; 0 is pooling."""


def inception_v3(*, batch: int = 32, relu: bool = True) -> Graph:
    """The eleven blocks of Inception-v3, a node for each convolution, norm, activation, pooling and concatenation."""
    make = Builder()
    last, inside = "", 3
    for step, (kernel, outside) in enumerate(((3, 32), (3, 32), (3, 64), (1, 80), (3, 192))):
        needs = (last,) if last else ()
        last = convolution(make, f"stem.{step}", batch, 149 if step < 3 else 71, inside, outside, kernel, needs)
        inside = outside
    for block, kind in enumerate("aaabccccdee"):
        pixels, outside = {"a": (35, 64), "b": (17, 96), "c": (17, 192), "d": (8, 192), "e": (8, 384)}[kind]
        ends = [
            _branch(make, f"{block}{kind}.{row}", last, kernels, batch, pixels, (inside, outside), relu)
            for row, kernels in enumerate(BRANCHES[kind])
        ]
        inside = outside * len(ends)
        last = make.op(f"{block}{kind}.join", *ends, output=2 * batch * pixels**2 * inside)
    mean = make.op("mean", last, output=2 * batch * inside)
    make.op("classes", mean, flops=2 * batch * inside * 1000, parameters=2 * inside * 1000, output=2 * batch * 1000)
    return make.graph


def _branch(
    make: Builder,
    name: str,
    end: str,
    kernels: Sequence[int],
    batch: int,
    pixels: int,
    channels: tuple[int, int],
    relu: bool,
) -> str:
    inside, outside = channels
    for step, kernel in enumerate(kernels):
        if not kernel:
            end = make.op(f"{name}.{step}.pool", end, output=2 * batch * pixels**2 * inside)
            continue
        end = convolution(make, f"{name}.{step}", batch, pixels, inside, outside, kernel, (end,), relu=relu)
        inside = outside
    return end


def translation(layers: int = 8, *, steps: int = 1, width: int = 1024, batch: int = 64, words: int = 32_000) -> Graph:
    """GNMT: an encoder whose first layer goes both ways, a decoder that reads attention in each layer, residuals.

    With one step a node is a layer over a whole sentence of 50 words; else ``steps`` parts of it are unrolled.
    """
    make, part = Builder(), -(-50 // steps)
    size, cost = 2 * batch * part * width, 16 * batch * part * width**2
    table, cell = 2 * words * width, 16 * width**2

    def row(name: str, below: Sequence[Sequence[str]], order: Sequence[int]) -> list[str]:
        last, found = "", dict.fromkeys(range(steps), "")
        for step in order:
            needs = [*below[step], *([last] if last else [])]
            last = make.op(f"{name}.{step}", *needs, flops=cost, output=size, shared_bytes={name: cell})
            found[step] = last
        return list(found.values())

    def added(name: str, first: Sequence[str], second: Sequence[str]) -> list[str]:
        return [
            make.op(f"{name}.{step}.add", *pair, output=size)
            for step, pair in enumerate(zip(first, second, strict=True))
        ]

    ahead, every = range(steps), [f"{side}.{step}" for side in ("source", "target") for step in range(steps)]
    for name in every:
        make.op(name, output=size, shared_bytes={name.split(".")[0]: table})
    source, target = every[:steps], every[steps:]
    right, left = row("right", [[x] for x in source], ahead), row("left", [[x] for x in source], ahead[::-1])
    state = row("encoder1", list(zip(right, left, strict=True)), ahead)
    for layer in range(2, layers):
        state = added(f"encoder{layer}", row(f"encoder{layer}", [[x] for x in state], ahead), state)
    keys = make.op(
        "keys", *state, flops=2 * batch * 50 * width**2, parameters=2 * width**2, output=2 * batch * 50 * width
    )
    state = row("decoder0", [[x] for x in target], ahead)
    context = [make.op(f"attention.{step}", x, keys, flops=cost / 8, output=size) for step, x in enumerate(state)]
    for layer in range(1, layers):
        above = row(f"decoder{layer}", list(zip(state, context, strict=True)), ahead)
        state = added(f"decoder{layer}", above, state) if layer > 1 else above
    for step, x in enumerate(state):
        head = {"head": table}
        wide = 2 * batch * part * words
        make.op(f"head.{step}", x, flops=wide * width, output=wide, shared_bytes=head)
    return make.graph


def experts(layers: int = 6, count: int = 4, *, width: int = 1024, tokens: int = 2048) -> Graph:
    """A transformer of mixtures of experts: attention, a router, experts of two products each, their sum."""
    make, size, square = Builder(), 2 * tokens * width, 2 * tokens * width**2
    last = make.op("embed", output=size, parameters=64_000 * width)
    for layer in range(layers):
        mixed = make.op(f"{layer}.attention", last, flops=5 * square, parameters=8 * width**2, output=size)
        route = make.op(f"{layer}.router", mixed, flops=2 * tokens * width * count, output=4 * tokens)
        ends = []
        for each in range(count):
            share = 2 * size // count
            own = make.op(f"{layer}.{each}.take", mixed, route, output=share)
            up = make.op(
                f"{layer}.{each}.up", own, flops=8 * square // count, parameters=8 * width**2, output=4 * share
            )
            ends.append(
                make.op(f"{layer}.{each}.down", up, flops=8 * square // count, parameters=8 * width**2, output=share)
            )
        last = make.op(f"{layer}.sum", mixed, route, *ends, output=size)
    make.op("head", last, flops=2 * tokens * width * 32_000, parameters=64_000 * width, output=64_000 * tokens)
    return make.graph


def u_shape(depth: int = 5, *, batch: int = 8, pixels: int = 256) -> Graph:
    """A U-net: two convolutions on each level down and up, and values that go across from each level."""
    make, across = Builder(), []
    last, inside = convolution(make, "in", batch, pixels, 3, 64, 3, ()), 64
    for level in range(depth):
        outside, side = 64 * 2**level, pixels // 2**level
        for step in range(2):
            last = convolution(make, f"down.{level}.{step}", batch, side, inside, outside, 3, (last,))
            inside = outside
        across.append((last, inside, side))
        last = make.op(f"down.{level}.pool", last, output=2 * batch * (side // 2) ** 2 * inside)
    for level, (other, outside, side) in reversed(list(enumerate(across))):
        wide = make.op(f"up.{level}.wide", last, output=2 * batch * side**2 * inside)
        last = make.op(f"up.{level}.join", wide, other, output=2 * batch * side**2 * (inside + outside))
        for step in range(2):
            channels = inside + outside if step == 0 else outside
            last = convolution(make, f"up.{level}.{step}", batch, side, channels, outside, 3, (last,))
        inside = outside
    make.op("out", last, flops=2 * batch * pixels**2 * inside, output=2 * batch * pixels**2)
    return make.graph


def shuffled(graph: Graph, seed: int, spread: float = 4.0) -> Graph:
    """The same graph with other costs: seconds and bytes of each node times a number from 1/spread to spread."""
    draw, other = random.Random(seed), graph.copy()
    for _node, facts in other.nodes(data=True):
        for key in ("seconds", "output_bytes", "kept_bytes"):
            if key in facts:  # what runs backward keeps nothing of its own
                scaled = facts[key] * spread ** draw.uniform(-1, 1)
                facts[key] = scaled if key == "seconds" else int(scaled)
    return other


def mixed(graph: Graph, speeds: Sequence[float], *, memory: float | None = None, **options: Any) -> PlacementProblem:
    """A problem on devices of some speeds; one of less than a tenth stands for a host, whose memory has no limit.

    ``memory`` is what the others have together, as a multiple of what the nodes need, each as much as it is fast.
    """
    names = [f"d{index}" for index in range(len(speeds))]
    graph = graph.copy()
    for _node, facts in graph.nodes(data=True):
        facts["seconds"] = {name: facts["seconds"] / speed for name, speed in zip(names, speeds, strict=True)}
    need, spare = needed_bytes(graph)
    fast = sum(speed for speed in speeds if speed >= 0.1)
    sizes = [
        None if memory is None or speed < 0.1 else int(need * memory * speed / fast) + (spare if memory >= 1 else 0)
        for speed in speeds
    ]
    links = [Link(a, b, LINK, 10e-6) for index, a in enumerate(names) for b in names[index + 1 :]]
    return PlacementProblem(
        graph, [Device(name, size) for name, size in zip(names, sizes, strict=True)], links, **options
    )


def _both(name: str, make: Callable[[], Graph]) -> dict[str, Callable[[], Graph]]:
    return {name: make, f"{name}, training": lambda: training(make())}


WORKLOADS: dict[str, Callable[[], Graph]] = {
    **_both("bert-24, layers", lambda: transformer(28, by_layer=True)),
    **_both("bert-3, operators", lambda: transformer(9)),
    **_both("bert-12, operators", lambda: transformer(30)),
    **_both("resnet-50, layers", lambda: convolutional()),
    **_both("inception-v3, layers", lambda: inception_v3()),
    **_both("gnmt, layers", lambda: translation()),
    **_both("gnmt, 4 layers of 6 steps", lambda: translation(4, steps=6)),
    **_both("recurrent, 5 layers of 20 steps", lambda: recurrent(5, 20)),
    **_both("recurrent, 6 layers of 16 steps", lambda: recurrent(6, 16)),
    **_both("experts, 6 layers of 4", lambda: experts()),
    **_both("u-net", lambda: u_shape()),
}

DEVICES: dict[str, tuple[tuple[float, ...], float | None]] = {
    "2 equal": ((1,) * 2, None),
    "3 different, tight": ((1, 0.8, 0.55), 1.1),
    "4 equal, tight": ((1,) * 4, 1.1),
    "4 of two kinds, tight": ((1, 1, 0.5, 0.5), 1.3),
    "6 equal": ((1,) * 6, None),
    "6 equal and a host, too small without": ((1,) * 6 + (0.05,), 0.9),
    "8 equal, tight": ((1,) * 8, 1.3),
    "8 of two kinds, tight": ((1,) * 4 + (0.5,) * 4, 1.3),
    "8 different": ((1, 0.95, 0.85, 0.8, 0.7, 0.6, 0.55, 0.5), None),
    "8 different, tight": ((1, 0.95, 0.85, 0.8, 0.7, 0.6, 0.55, 0.5), 1.3),
}
"""Speeds, and the memory of all as a multiple of what is needed."""
