"""Names of operators that survive another export: module path, operator, ordinal there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from torch.fx import Graph, GraphModule, Node

from fxpasses.partitioners.device_maps import holders

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = ["condensed", "graph_of", "listed", "module_path", "stable_keys"]


def module_path(node: Node) -> str:
    """The path of the innermost module that a node comes from; ``""`` for the model itself."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    entry = list(stack.values())[-1]
    path = entry[0] if isinstance(entry, tuple) else str(entry)
    return str(path).removeprefix("L['self']").removeprefix("L__self__").strip("._")


def _op_name(node: Node) -> str:
    target = node.target
    if isinstance(target, str):
        return target
    packet = getattr(target, "overloadpacket", target)
    return str(getattr(packet, "__name__", packet))


def stable_keys(graph: Graph | GraphModule) -> dict[Node, str]:
    """Name each compute node by module path, operator and ordinal, in graph order."""
    graph = graph.graph if isinstance(graph, GraphModule) else graph
    seen: dict[str, int] = {}
    keys: dict[Node, str] = {}
    for node in graph.nodes:
        if node.op not in ("placeholder", "get_attr", "output"):
            stem = f"{module_path(node)}/{_op_name(node)}"
            seen[stem] = seen.get(stem, -1) + 1
            keys[node] = f"{stem}#{seen[stem]}"
    return keys


def graph_of(model: GraphModule | ExportedProgram) -> GraphModule:
    """The graph that plans are about: a program as a module that holds its state."""
    return model if isinstance(model, GraphModule) else model.module(check_guards=False)


def condensed(keys: Sequence[str], owner: Mapping[str, str]) -> list[str]:
    """Write ``path/*`` for every largest module whose operators all have one owner.

    Args:
        keys: The operators of one owner.
        owner: The owner of every operator of the graph.
    """
    owners: dict[str, str | None] = {}
    for key, part in owner.items():
        for prefix in holders(key.rpartition("/")[0]):
            owners[prefix] = part if owners.get(prefix, part) == part else None
    entries: dict[str, None] = {}
    for key in keys:
        whole = next((path for path in reversed(holders(key.rpartition("/")[0])) if owners[path] is not None), None)
        entries[key if whole is None else f"{whole}/*"] = None
    return list(entries)


def listed(names: Iterable[str], most: int = 3) -> str:
    """The first few of some names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
