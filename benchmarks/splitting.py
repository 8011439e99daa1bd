"""Splitting, fusing and merging against torch 2.13, and what a split costs when it runs."""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from benchmarks.harness import Duel, case
from benchmarks.models import wide_llama
from fxpasses.passes import fuse_by_partitions, merge, split, split_module

SIZES = (1_000, 10_000, 100_000)


@functools.cache
def chain(length: int) -> GraphModule:
    """A chain of ATen additions in which every tenth node reads the input again."""
    graph = Graph()
    x = value = graph.placeholder("x")
    for place in range(length):
        value = graph.call_function(torch.ops.aten.add.Tensor, (value, x if place % 10 == 0 else 1))
    graph.output(value)
    return GraphModule(nn.Module(), graph)


def _labels(source: GraphModule, parts: int) -> dict[Node, int]:
    nodes = source.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor)
    return {node: place * parts // len(nodes) for place, node in enumerate(nodes)}


def _same_texts(ours: GraphModule, theirs: GraphModule | None) -> None:
    """The same parts with the same code; inputs may be in another order."""
    x = torch.zeros(1)
    if theirs is not None and len(ours.graph.nodes) < 2_000:
        torch.testing.assert_close(ours(x), theirs(x))
    parts = [child for child in ours.children() if isinstance(child, GraphModule)]
    if theirs is not None:
        others = [child for child in theirs.children() if isinstance(child, GraphModule)]
        assert [len(part.graph.nodes) for part in others] == [len(part.graph.nodes) for part in parts]


def _split_duel(size: int, parts: int) -> Duel:
    from torch.fx.passes.split_module import split_module as torchs

    source = chain(size)
    labels = _labels(source, parts)
    return Duel(
        ours=lambda: split_module(source, None, labels.__getitem__),
        peer=lambda: torchs(source, None, labels.__getitem__),
        check=_same_texts,
        peer_rounds=1 if size >= 100_000 else 3,
    )


@case("split_module into 8 parts", sizes=SIZES, promise=3, rounds=3)
def split_into_8(size: int) -> Duel:
    """Few large parts."""
    return _split_duel(size, 8)


@case("split_module into 64 parts", sizes=SIZES, promise=3, rounds=3)
def split_into_64(size: int) -> Duel:
    """As many parts as a model has layers."""
    return _split_duel(size, 64)


@case("split_module into n/10 parts", sizes=SIZES, promise=3, rounds=3)
def split_into_many(size: int) -> Duel:
    """Many small parts."""
    return _split_duel(size, size // 10)


@case("split_module into 100 parts, and run it once", sizes=(2_000,), promise=1, rounds=3)
def split_and_run(size: int) -> Duel:
    """What was put off is paid on the first run, and is no more than what torch pays at once."""
    from torch.fx.passes.split_module import split_module as torchs

    source = chain(size)
    labels, x = _labels(source, 100), torch.zeros(1)

    def check(ours: Any, theirs: Any) -> None:
        torch.testing.assert_close(ours, theirs)

    return Duel(
        ours=lambda: split_module(source, None, labels.__getitem__)(x),
        peer=lambda: torchs(source, None, labels.__getitem__)(x),
        check=check,
    )


@case("split by an assignment into n/10 parts", sizes=SIZES, rounds=3)
def split_by_assignment(size: int) -> Duel:
    """With names of state, origins of nodes and recorded values; torch has nothing like it."""
    source = chain(size)
    labels = _labels(source, size // 10)

    def check(ours: Any, _: Any) -> None:
        assert len(ours.parts) == size // 10

    return Duel(ours=lambda: split(source, labels), peer=None, check=check)


@case("merge n/10 parts", sizes=SIZES, rounds=3)
def merge_many(size: int) -> Duel:
    """Back to one graph with the text of the source."""
    source = chain(size)
    done = split(source, _labels(source, size // 10))

    def check(merged: Any, _: Any) -> None:
        assert str(merged.graph) == str(source.graph)

    return Duel(ours=lambda: merge(done), peer=None, check=check)


@case("fuse n/20 parts", sizes=(1_000, 3_000), promise=3, rounds=3)
def fuse_many(size: int) -> Duel:
    """In place, every other run of ten nodes."""
    from torch.fx.passes.utils.fuser_utils import fuse_by_partitions as torchs

    def fresh() -> tuple[GraphModule, list[dict[Node, None]]]:
        chain.cache_clear()
        source = chain(size)
        nodes = list(_labels(source, 1))
        return source, [dict.fromkeys(nodes[place : place + 10]) for place in range(0, size, 20)]

    def check(ours: GraphModule, theirs: GraphModule | None) -> None:
        assert theirs is not None
        assert [node.name for node in theirs.graph.nodes] == [node.name for node in ours.graph.nodes]
        ours.recompile()
        theirs.recompile()
        x = torch.zeros(1)
        torch.testing.assert_close(ours(x), theirs(x))

    return Duel(
        ours=lambda given: fuse_by_partitions(*given), peer=lambda given: torchs(*given), check=check, prepare=fresh
    )


def _block(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.LayerNorm(width))


@case("run an exported Llama split at every layer (peer: the unsplit module)", sizes=(16,), promise=0.98, rounds=31)
def run_split_llama(layers: int) -> Duel:
    """The forward of a split module is at most 1.02x that of the module it was made from."""
    kwargs = {"input_ids": torch.randint(0, 1000, (1, 64))}
    source = torch.export.export(wide_llama(layers), (), kwargs).module(check_guards=False)
    nodes = [node for node in source.graph.nodes if node.op == "call_function"]
    done = split(source, {node: place * layers // len(nodes) for place, node in enumerate(nodes)}).graph_module

    def check(ours: Any, theirs: Any) -> None:
        torch.testing.assert_close(ours.logits, theirs.logits, rtol=0, atol=0)

    def run(module: nn.Module) -> Any:
        with torch.no_grad():
            return module(**kwargs)

    run(done), run(source)  # both have run before they are timed
    return Duel(ours=lambda: run(done), peer=lambda: run(source), check=check)


@case("run 32 parts of 0.2 ms each (peer: the unsplit module)", sizes=(64, 128), rounds=15)
def run_split(width: int) -> Duel:
    """A part costs some microseconds to call, which shows where parts are tiny."""
    torch.manual_seed(0)
    model = nn.Sequential(*(_block(width) for _ in range(32))).requires_grad_(False)
    x = torch.rand(64, width)
    source = torch.export.export(model, (x,)).module()
    nodes = [node for node in source.graph.nodes if node.op == "call_function"]
    done = split(source, {node: place * 32 // len(nodes) for place, node in enumerate(nodes)}).graph_module
    functools.reduce(operator.add, (done(x).sum(), source(x).sum()))  # both have run before they are timed

    def check(ours: Any, theirs: Any) -> None:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)

    def often(module: nn.Module) -> Any:
        for _ in range(5):
            result = module(x)
        return result

    return Duel(ours=lambda: often(done), peer=lambda: often(source), check=check)
