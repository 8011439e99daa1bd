"""Names of operators that survive another export: module path, operator, ordinal there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from torch.fx import Graph, GraphModule, Node

from fxpasses.errors import InputError
from fxpasses.outlining.opening import open_regions
from fxpasses.partitioners.costs.graph_figures import is_compute
from fxpasses.partitioners.placing.device_maps import holders
from fxpasses.partitioners.placing.replicas import REPLICA_OF
from fxpasses.partitioners.placing.worthwhile_cuts import is_worth_cutting

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = ["condensed", "graph_of", "listed", "module_homes", "module_path", "stable_keys"]


_NO_MODULE = "empty_nn_module_stack_from_metadata_hook"
"""What torch.export calls the module of an operator that it made itself."""


def module_path(node: Node) -> str:
    """The path of the innermost module that a node comes from; ``""`` for the model itself."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    entry = list(stack.values())[-1]
    path = str(entry[0] if isinstance(entry, tuple) else entry)
    path = path.removeprefix("L['self']").removeprefix("L__self__").strip("._")
    return "" if path == _NO_MODULE else path


def _op_name(node: Node) -> str:
    target = node.target
    if isinstance(target, str):
        return target
    packet = getattr(target, "overloadpacket", target)
    return str(getattr(packet, "__name__", packet))


def stable_keys(graph: Graph | GraphModule) -> dict[Node, str]:
    """Name each compute node by module path, operator and ordinal, in graph order.

    A replica is called after what it stands for, with its part: ``/cos#0@right``.
    """
    graph = graph.graph if isinstance(graph, GraphModule) else graph
    seen: dict[str, int] = {}
    keys: dict[Node, str] = {}
    for node in graph.nodes:
        if is_compute(node) and not REPLICA_OF.has(node):
            stem = f"{module_path(node)}/{_op_name(node)}"
            seen[stem] = seen.get(stem, -1) + 1
            keys[node] = f"{stem}#{seen[stem]}"
    by_name = {node.name: key for node, key in keys.items()}
    for node in graph.nodes:
        if REPLICA_OF.has(node):
            replica = REPLICA_OF.read(node)
            keys[node] = f"{by_name.get(replica.node, replica.node)}@{replica.part}"
    return keys


def graph_of(model: GraphModule | ExportedProgram) -> GraphModule:
    """The graph that plans are about: a program as a module that holds its state, its regions opened.

    Of a lowered module it is that of its program.

    Raises:
        InputError: it is neither.
    """
    program = getattr(model, "program", model) if isinstance(model, GraphModule) else model
    if not isinstance(program, GraphModule) and not callable(getattr(program, "module", None)):
        raise InputError(
            f"A plan is about a GraphModule or an ExportedProgram, not {type(model).__name__}; export the model first, "
            "or take the program of what place() gives."
        )
    if isinstance(program, GraphModule):
        return program
    graph_module = program.module(check_guards=False)
    open_regions(graph_module, is_worth_cutting)
    return graph_module


def condensed(keys: Sequence[str], owner: Mapping[str, str], homes: Mapping[str, str | None]) -> list[str]:
    """Write ``path/*`` for every largest module that belongs to one owner, but for single operators.

    Args:
        keys: The operators of one owner.
        owner: The owner of every operator of the graph.
        homes: To whom each module belongs, as :func:`module_homes` says.
    """
    entries: dict[str, None] = {}
    for key in keys:
        paths = reversed(holders(key.rpartition("/")[0]))
        whole = next((path for path in paths if homes[path] is not None), None)
        is_whole = whole is not None and homes[whole] == owner[key]
        entries[f"{whole}/*" if is_whole else key] = None
    return list(entries)


def module_homes(owner: Mapping[str, str], *, strict: bool = False) -> dict[str, str | None]:
    """To whom a module belongs: who has most of its own operators, and of those of each module inside; else None.

    Args:
        owner: The owner of every operator, by its key.
        strict: Who has all of them, not only most.
    """
    counts: dict[str, dict[str, int]] = {}
    for key, part in owner.items():
        own = counts.setdefault(key.rpartition("/")[0], {})
        own[part] = own.get(part, 0) + 1
    homes: dict[str, str | None] = {}
    for path, own in counts.items():
        first = max(own, key=own.__getitem__)
        total = sum(own.values())
        most = first if own[first] == total or (2 * own[first] > total and not strict) else None
        for holder in holders(path):
            homes[holder] = most if homes.get(holder, most) == most else None
    return homes


def listed(names: Iterable[str], most: int = 3) -> str:
    """The first few of some names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
