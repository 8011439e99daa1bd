"""Placement problems like those of real models: operator and layer graphs, inference and training, equal and unequal
devices, loose and tight memory. Deterministic, without torch.

Costs come from a roofline: an operator takes the longer of its arithmetic and its memory traffic, plus a launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import networkx as nx

from fxpasses.devices import Device, Link
from fxpasses.partitioners import PlacementProblem

__all__ = ["GRAPHS", "chain", "convolutional", "inception", "place", "recurrent", "training", "transformer"]

Graph = nx.DiGraph

FLOPS, BANDWIDTH, LAUNCH, LINK = 14e12, 900e9, 5e-6, 12e9


@attrs.define
class Builder:
    """Adds operators to a graph: seconds by the roofline, bytes of parameters, bytes of the output."""

    graph: Graph = attrs.field(factory=Graph)

    def op(self, name: str, *needs: str, flops: float = 0.0, parameters: int = 0, output: int = 0, **facts: Any) -> str:
        read = sum(self.graph.nodes[need]["output_bytes"] for need in needs)
        seconds = max(flops / FLOPS, (read + parameters + output) / BANDWIDTH) + LAUNCH
        self.graph.add_node(
            name, seconds=seconds, kept_bytes=parameters, output_bytes=output, live_bytes=read + output, **facts
        )
        self.graph.add_edges_from((need, name) for need in needs)
        return name


def transformer(
    layers: int, *, width: int = 1024, tokens: int = 2048, vocabulary: int = 32_000, by_layer: bool = False
) -> Graph:
    """A decoder: norms, three projections, attention, two matrix products; a mask that each layer reads; tied weights.

    About 22 operators a layer, or one node a layer.
    """
    make, size, table = Builder(), 2 * tokens * width, 2 * vocabulary * width
    mask = make.op("mask", output=2 * tokens * 64)
    last = make.op("embed", output=size, shared_bytes={"table": table})
    for layer in range(layers):
        if by_layer:
            cost = 24 * tokens * width**2 + 4 * tokens**2 * width
            last = make.op(f"layer{layer}", last, mask, flops=cost, parameters=24 * width**2, output=size)
        else:
            last = _block(make, f"{layer}.", last, mask, width, tokens)
    last = make.op("norm", last, parameters=4 * width, output=size)
    head = make.op(
        "head",
        last,
        flops=2 * tokens * width * vocabulary,
        output=2 * tokens * vocabulary,
        shared_bytes={"table": table},
    )
    make.op("loss", head, output=4)
    return make.graph


def _block(make: Builder, name: str, last: str, mask: str, width: int, tokens: int) -> str:
    size, square, scores = 2 * tokens * width, 2 * tokens * width**2, 2 * tokens**2 * (width // 64)
    norm = make.op(f"{name}norm", last, parameters=4 * width, output=size)
    heads = []
    for part in ("query", "key", "value"):
        product = make.op(f"{name}{part}", norm, flops=square, parameters=2 * width**2, output=size)
        bias = make.op(f"{name}{part}.bias", product, parameters=2 * width, output=size)
        heads.append(make.op(f"{name}{part}.heads", bias, output=size))
    turned = make.op(f"{name}key.turned", heads[1], output=size)
    score = make.op(f"{name}scores", heads[0], turned, flops=2 * tokens**2 * width, output=scores)
    masked = make.op(f"{name}masked", score, mask, output=scores)
    weights = make.op(f"{name}softmax", masked, output=scores)
    mixed = make.op(f"{name}mixed", weights, heads[2], flops=2 * tokens**2 * width, output=size)
    joined = make.op(f"{name}joined", mixed, output=size)
    out = make.op(f"{name}out", joined, flops=square, parameters=2 * width**2, output=size)
    last = make.op(f"{name}residual", out, last, output=size)
    norm = make.op(f"{name}norm2", last, parameters=4 * width, output=size)
    wide = make.op(f"{name}up", norm, flops=4 * square, parameters=8 * width**2, output=4 * size)
    bent = make.op(f"{name}gelu", wide, output=4 * size)
    down = make.op(f"{name}down", bent, flops=4 * square, parameters=8 * width**2, output=size)
    return make.op(f"{name}residual2", down, last, output=size)


def convolutional(stages: Sequence[int] = (3, 4, 6, 3), *, batch: int = 32) -> Graph:
    """A residual net: bottleneck blocks of convolution, norm and activation, with a projection where sizes change."""
    make, pixels, channels = Builder(), 56, 64
    last = convolution(make, "stem", batch, 112, 3, 64, 7, ("image",))
    last = make.op("pool", last, output=2 * batch * 56**2 * 64)
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            name, wide = f"{stage}.{block}", 4 * 64 * 2**stage
            side = last
            if block == 0:
                pixels = pixels if stage == 0 else pixels // 2
                side = convolution(make, f"{name}.side", batch, pixels, channels, wide, 1, (last,), relu=False)
            one = convolution(make, f"{name}.one", batch, pixels, channels, wide // 4, 1, (last,))
            two = convolution(make, f"{name}.two", batch, pixels, wide // 4, wide // 4, 3, (one,))
            three = convolution(make, f"{name}.three", batch, pixels, wide // 4, wide, 1, (two,), relu=False)
            added = make.op(f"{name}.add", three, side, output=2 * batch * pixels**2 * wide)
            last = make.op(f"{name}.relu", added, output=2 * batch * pixels**2 * wide)
            channels = wide
    mean = make.op("mean", last, output=2 * batch * channels)
    make.op("classes", mean, flops=2 * batch * channels * 1000, parameters=2 * channels * 1000, output=2 * batch * 1000)
    return make.graph


def convolution(
    make: Builder,
    name: str,
    batch: int,
    pixels: int,
    inside: int,
    outside: int,
    kernel: int,
    needs: Sequence[str],
    *,
    relu: bool = True,
) -> str:
    """A convolution, its norm and its activation; the name of the last of them."""
    size = 2 * batch * pixels**2 * outside
    known = [need for need in needs if need in make.graph]
    weights = kernel**2 * inside * outside
    last = make.op(f"{name}.conv", *known, flops=2 * batch * pixels**2 * weights, parameters=2 * weights, output=size)
    last = make.op(f"{name}.norm", last, parameters=8 * outside, output=size)
    return make.op(f"{name}.relu", last, output=size) if relu else last


def inception(blocks: int = 9, *, batch: int = 32) -> Graph:
    """A wide net: in each block four branches of one to three convolutions, joined by their channels."""
    make = Builder()
    last, channels = convolution(make, "stem", batch, 35, 3, 192, 3, ()), 192
    for block in range(blocks):
        pixels = 35 if block < blocks // 3 else 17
        ends = []
        for branch, kernels in enumerate(((1,), (1, 5), (1, 3, 3), (1,))):
            end, inside = last, channels
            if branch == 3:
                end = make.op(f"{block}.pool", end, output=2 * batch * pixels**2 * channels)
            for step, kernel in enumerate(kernels):
                outside = 64 + 32 * step
                end = convolution(make, f"{block}.{branch}.{step}", batch, pixels, inside, outside, kernel, (end,))
                inside = outside
            ends.append(end)
        channels = 64 + 96 + 128 + 64
        last = make.op(f"{block}.join", *ends, output=2 * batch * pixels**2 * channels)
    make.op("classes", last, flops=2 * batch * channels * 1000, parameters=2 * channels * 1000, output=2 * batch * 1000)
    return make.graph


def recurrent(layers: int, steps: int, *, width: int = 1024, batch: int = 64) -> Graph:
    """An unrolled recurrent net: a cell needs the cell below and the one before; the steps of a layer share weights."""
    make, size = Builder(), 2 * batch * width
    for step in range(steps):
        make.op(f"in.{step}", output=size)
    for layer in range(layers):
        for step in range(steps):
            below = f"in.{step}" if layer == 0 else f"{layer - 1}.{step}"
            before = [f"{layer}.{step - 1}"] if step else []
            cost, weights = 16 * batch * width**2, {f"layer{layer}": 16 * width**2}
            make.op(f"{layer}.{step}", below, *before, flops=cost, output=2 * size, shared_bytes=weights)
    make.op("head", *(f"{layers - 1}.{step}" for step in range(steps)), flops=2e9, output=size)
    return make.graph


def chain(count: int) -> Graph:
    """Blocks of five operators one after the other, of costs that vary, each with an edge around it."""
    graph = Graph()
    last: int | None = None
    for node in range(count):
        seconds = (0.4 + (node * 7919 % 101) / 60) * 1e-4
        graph.add_node(node, seconds=seconds, kept_bytes=1 << 16, output_bytes=1 << 10)
        if node:
            graph.add_edge(node - 1, node)
        if node % 5 == 4:
            if last is not None:
                graph.add_edge(last, node)
            last = node
    return graph


def training(graph: Graph) -> Graph:
    """Add the backward graph: of each node, twice its seconds, on what it read, in the other direction.

    Parameters get a gradient and two moments; what a node reads stays alive until its backward node ran. Nodes that no
    parameter reaches need no backward.
    """
    both, learns = graph.copy(), _learning(graph)
    for node, facts in graph.nodes(data=True):
        if node not in learns:
            continue
        read = [graph.nodes[need]["output_bytes"] for need in graph.predecessors(node)]
        both.nodes[node]["kept_bytes"] = 4 * facts["kept_bytes"] + sum(read)
        if "shared_bytes" in facts:
            both.nodes[node]["shared_bytes"] = {key: 4 * size for key, size in facts["shared_bytes"].items()}
        both.add_node(
            f"{node}.backward",
            seconds=2 * facts["seconds"],
            output_bytes=max(read, default=0),
            live_bytes=2 * facts.get("live_bytes", 0),
            backward_of=node,
        )
    for before, after in graph.edges:
        if after in learns:
            both.add_edge(before, f"{after}.backward")
        if before in learns:
            both.add_edge(f"{after}.backward", f"{before}.backward")
    return both


def _learning(graph: Graph) -> dict[Any, bool]:
    """The nodes that parameters reach."""
    found: dict[Any, bool] = {}
    for node in nx.topological_sort(graph):
        facts = graph.nodes[node]
        if facts["kept_bytes"] or "shared_bytes" in facts or any(need in found for need in graph.predecessors(node)):
            found[node] = True
    return found


def place(
    graph: Graph, count: int, *, equal: bool = True, memory: float | None = None, **options: Any
) -> PlacementProblem:
    """A problem on ``count`` devices.

    Args:
        graph: What to place.
        count: The number of devices.
        equal: Whether they are alike; else the second half has half the speed and three quarters of the memory.
        memory: How much all devices have together, as a multiple of what the nodes need; None for no limit.
        options: Other options of the problem.
    """
    names = [f"d{index}" for index in range(count)]
    slow = set() if equal else set(names[count // 2 :])
    if slow:
        graph = graph.copy()
        for _node, facts in graph.nodes(data=True):
            facts["seconds"] = {name: facts["seconds"] * (2 if name in slow else 1) for name in names}
    sizes = dict.fromkeys(names)
    if memory is not None:
        shares = {name: 0.75 if name in slow else 1.0 for name in names}
        need, spare = needed_bytes(graph)
        sizes = {name: int(need * memory * share / sum(shares.values())) + spare for name, share in shares.items()}
    links = [Link(a, b, LINK, 10e-6) for index, a in enumerate(names) for b in names[index + 1 :]]
    return PlacementProblem(graph, [Device(name, size) for name, size in sizes.items()], links, **options)


def _alone(facts: dict[str, Any]) -> int:
    """What no cut can divide: what is alive, and what is shared."""
    return facts.get("live_bytes", 0) + sum(facts.get("shared_bytes", {}).values())


def needed_bytes(graph: Graph) -> tuple[int, int]:
    """What all nodes keep together, and the most that no cut can divide."""
    shared: dict[str, int] = {}
    for _node, facts in graph.nodes(data=True):
        shared |= facts.get("shared_bytes", {})
    kept = sum(facts.get("kept_bytes", 0) for _node, facts in graph.nodes(data=True)) + sum(shared.values())
    return kept, max(_alone(facts) for _node, facts in graph.nodes(data=True))


GRAPHS: dict[str, Callable[[], Graph]] = {
    "transformer, layers": lambda: transformer(48, by_layer=True),
    "transformer, operators": lambda: transformer(12),
    "transformer, operators, large": lambda: transformer(30),
    "transformer, operators, training": lambda: training(transformer(14)),
    "residual net": lambda: convolutional(),
    "residual net, training": lambda: training(convolutional()),
    "recurrent, 2 layers": lambda: recurrent(2, 60),
    "recurrent, 2 layers, training": lambda: training(recurrent(2, 40)),
    "recurrent, 4 layers": lambda: recurrent(4, 20),
    "inception, layers": lambda: inception(3),
}
"""Graphs of 30 to 700 nodes."""
WIDE: dict[str, Callable[[], Graph]] = {
    "inception": lambda: inception(9),
    "inception, training": lambda: training(inception(9)),
}
