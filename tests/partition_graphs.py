"""Graphs and support objects for tests of partitioners."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node, symbolic_trace

from fxpasses.partitioners import OperatorSupportBase, create_op_support


def chain_of(*targets: Callable[[torch.Tensor], torch.Tensor]) -> GraphModule:
    """A graph that calls one function after the other."""
    graph = Graph()
    value = graph.placeholder("x")
    for target in targets:
        value = graph.call_function(target, (value,))
    graph.output(value)
    return GraphModule(torch.nn.Module(), graph)


def long_chain(length: int, unsupported_every: int = 2) -> tuple[GraphModule, OperatorSupportBase]:
    """A chain in which every n-th call, cos, is unsupported."""
    module = chain_of(*(torch.sin if (place + 1) % unsupported_every else torch.cos for place in range(length)))
    return module, supports(torch.sin)


def random_dag(
    rng: random.Random, size: int, *, getitems: bool = False, one_output: bool = False, supported: float = 0.65
) -> tuple[GraphModule, OperatorSupportBase, dict[Node, bool]]:
    """A random graph of unary and binary calls (and of tuples, if asked for), with a random support of its nodes."""
    graph = Graph()
    values = [graph.placeholder("x")]
    tuples: list[Node] = []
    verdicts: dict[Node, bool] = {}
    for _ in range(size):
        kind = rng.random()
        if getitems and tuples and kind < 0.3:
            node = graph.call_function(operator.getitem, (rng.choice(tuples), rng.randrange(2)))
            values.append(node)
        elif getitems and kind < 0.45:
            node = graph.call_function(torch.split, (rng.choice(values[-6:]), 2))
            tuples.append(node)
        else:
            taken = [rng.choice(values[-rng.choice([3, 8, 50]) :]) for _ in range(rng.choice([1, 1, 2]))]
            node = graph.call_function(torch.add if len(taken) == 2 else torch.sin, tuple(taken))
            values.append(node)
        verdicts[node] = rng.random() < supported
    graph.output((values[-1],) if one_output else tuple(node for node in graph.nodes if not node.users))
    return GraphModule(torch.nn.Module(), graph), supports_nodes(verdicts), verdicts


def supports_nodes(verdicts: dict[Node, bool]) -> OperatorSupportBase:
    """Support for the nodes that a dictionary says."""

    def is_listed(_: Any, node: Node) -> bool:
        return verdicts.get(node, False)

    return create_op_support(is_listed)


def supports(*targets: Any) -> OperatorSupportBase:
    """Support for calls of these targets."""

    def is_wanted(_: Any, node: Node) -> bool:
        return node.target in targets

    return create_op_support(is_wanted)


def named(module: GraphModule) -> dict[str, Node]:
    """The nodes of a graph by name."""
    return {node.name: node for node in module.graph.nodes}


def trace(function: Callable[..., Any]) -> tuple[GraphModule, dict[str, Node]]:
    """Trace a function; its module and its nodes by name."""
    module = symbolic_trace(function)
    return module, named(module)


def names_in(partitions: Collection[Any]) -> list[list[str]]:
    """The names of the nodes of each partition."""
    return [[node.name for node in partition.nodes] for partition in partitions]
