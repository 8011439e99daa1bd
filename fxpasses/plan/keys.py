"""Names of operators that survive another export: module path, operator, ordinal there."""

from __future__ import annotations

import operator
from typing import Any

from torch.fx import Graph, GraphModule, Node

from fxpasses.outlining.regions import BODY_AT, body_of_region, is_region
from fxpasses.partitioners.costs.graph_figures import is_compute
from fxpasses.partitioners.placing.names.device_maps import holders
from fxpasses.partitioners.placing.replication.replicas import REPLICA_OF
from fxpasses.partitioners.support import module_paths
from fxpasses.plan.size_operators import handles_sizes

__all__ = ["covering_entries", "module_path", "names_region", "names_size", "op_name", "path_in", "stable_keys"]


def module_path(node: Node) -> str:
    """The path of the innermost module that a node comes from; ``""`` for the model itself.

    A tuple's elements come from where it is made, and what a region gives from where that is made inside: files of
    torch.export do not say it of them.
    """
    while node.target is operator.getitem and isinstance(made := node.args[0], Node) and is_compute(made):
        node = _inside(made, node.args[1]) if is_region(made) else made
    return (module_paths(node) or [""])[-1]


def _inside(region: Node, index: Any) -> Node:
    """What a region gives at a place of its results; the region itself where that is one of its inputs."""
    body = body_of_region(region)
    results = None if body is None else body.graph.output_node().args[0]
    found = results[index] if isinstance(results, (list, tuple)) and isinstance(index, int) else None
    return found if isinstance(found, Node) and is_compute(found) else region


def op_name(node: Node) -> str:
    """The name of what is called; what computes sizes has one of its own, so that it counts with no other operator."""
    target = node.target
    if isinstance(target, str):
        return target
    packet = getattr(target, "overloadpacket", target)
    name = str(getattr(packet, "__name__", packet))
    return f"sym_{name}" if handles_sizes(node) and not name.startswith(("sym_", "_")) else name


def stable_keys(graph: Graph | GraphModule) -> dict[Node, str]:
    """Name each compute node by module path, operator and ordinal, in graph order.

    A replica is called after what it stands for, with its part: ``/cos#0@right``.
    """
    graph = graph.graph if isinstance(graph, GraphModule) else graph
    seen: dict[str, int] = {}
    keys: dict[Node, str] = {}
    for node in graph.nodes:
        if is_compute(node) and not REPLICA_OF.has(node):
            stem = f"{module_path(node)}/{op_name(node)}"
            seen[stem] = seen.get(stem, -1) + 1
            keys[node] = f"{stem}#{seen[stem]}"
    by_name = {node.name: key for node, key in keys.items()}
    for node in graph.nodes:
        if REPLICA_OF.has(node):
            replica = REPLICA_OF.read(node)
            keys[node] = f"{by_name.get(replica.node, replica.node)}@{replica.part}"
    return keys


def path_in(entry: str) -> str:
    """The module path in a key, or in the entry of a plan that names a whole module.

    >>> path_in("layers.0/linear#1"), path_in("layers.0/*"), path_in("/relu#0")
    ('layers.0', 'layers.0', '')
    """
    return entry.rpartition("/")[0]


def covering_entries(key: str) -> list[str]:
    """All entries that would name an operator, the one that counts first.

    >>> covering_entries("a.b/linear#0")
    ['a.b/linear#0', 'a.b/*', 'a/*', '/*']
    """
    return [key, *(f"{path}/*" for path in holders(path_in(key)))]


def names_region(entry: str) -> bool:
    """Whether an entry names a region of autocast or of a grad mode as one operator."""
    return entry.rpartition("/")[2].partition("#")[0] in BODY_AT


def names_size(entry: str) -> bool:
    """Whether an entry names one operator that only reads or computes sizes.

    >>> names_size("layers.0/sym_size#0"), names_size("layers.0/*")
    (True, False)
    """
    return entry.rpartition("/")[2].startswith("sym_")
