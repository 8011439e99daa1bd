"""What callers hand to partitioners: graphs, and lists of nodes and of what to look for; anything else is refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from fxpasses.errors import PartitionError, also_as

__all__ = ["graph_of", "list_of", "lists_of_nodes", "module_of", "nodes_of"]


def graph_of(given: Any) -> Graph:
    """The graph of a module or a program, or the graph itself.

    Raises:
        PartitionError: It is none of them (also a TypeError).
    """
    if isinstance(given, GraphModule | ExportedProgram):
        graph: Graph = given.graph
        return graph
    if not isinstance(given, Graph):
        raise _not_captured("a graph is a torch.fx.Graph, a GraphModule or an ExportedProgram", given)
    return given


def module_of(given: Any) -> GraphModule:
    """The module itself, or the graph module of a program.

    Raises:
        PartitionError: It is neither (also a TypeError).
    """
    if isinstance(given, ExportedProgram):
        module: GraphModule = given.graph_module
        return module
    if not isinstance(given, GraphModule):
        raise _not_captured("a partitioner takes a torch.fx.GraphModule or an ExportedProgram", given)
    return given


def list_of(given: Any, what: str) -> list[Any]:
    """The things in a list, or in anything else that holds several.

    Args:
        given: The list.
        what: What is in it, in the plural, for the message.

    Raises:
        PartitionError: It is a single thing, a text or nothing (also a TypeError).
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise also_as(PartitionError, TypeError())(f"{what} come in a list, not as {_shown(given)}")
    return list(given)


def nodes_of(given: Any, what: str) -> list[Node]:
    """The nodes in a list; the arguments are those of :func:`list_of`.

    Raises:
        PartitionError: It is no list, or holds something else (also a TypeError).
    """
    nodes = list_of(given, what)
    for node in nodes:
        if not isinstance(node, Node):
            raise also_as(PartitionError, TypeError())(f"{what} are torch.fx nodes, not {node!r}")
    return nodes


def lists_of_nodes(given: Any) -> list[list[Node]]:
    """Groups of nodes, each as a list.

    Raises:
        PartitionError: They are no lists in a list (also a TypeError).
    """
    return [list_of(group, f"the nodes of group {number}") for number, group in enumerate(list_of(given, "groups"))]


def _not_captured(wanted: str, given: Any) -> PartitionError:
    return also_as(PartitionError, TypeError())(
        f"{wanted}, not {type(given).__name__}; capture the model with torch.export or torch.fx.symbolic_trace first"
    )


def _shown(given: Any) -> str:
    return f"the node {given.name!r}" if isinstance(given, Node) else repr(given)
