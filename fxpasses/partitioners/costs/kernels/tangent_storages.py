"""The storages of tangents: inside of ``torch.func.jvp`` each storage has others beside it, for as long as it is there.

A storage is a number; that of its tangents in a derivative is the same number with a bit for this derivative.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from torch.fx import Graph, Node

from fxpasses.partitioners.jvp_tangents import brings_tangent, level_of, tangent_levels

__all__ = ["join_tangent", "joined_tangents", "tangents_of", "unpacked"]

_FIRST_BIT = 44
Homes = Mapping[Node, tuple[int, ...]]


def joined_tangents(graph: Graph, homes: Homes) -> dict[int, int]:
    """The values that are made tangents of others, by the storage that the tangents of these would have."""
    joined: dict[int, int] = {}
    for node in graph.nodes:
        join_tangent(node, homes, joined)
    return joined


def join_tangent(node: Node, homes: Homes, joined: MutableMapping[int, int]) -> None:
    """Note it where a node makes a value the tangent of another one."""
    if brings_tangent(node) and (level := level_of(node)) is not None:
        value, tangent = node.args[:2]
        joined.update((_tangent(storage, level), homes[tangent][0]) for storage in homes[value] if homes[tangent])  # type: ignore[index]  # nodes


def unpacked(node: Node, homes: Homes, joined: Mapping[int, int]) -> tuple[int, ...] | None:
    """Where a value and its tangent are that a node takes apart; None for other nodes."""
    level = level_of(node)
    if level is None or brings_tangent(node):
        return None
    (storage, *_) = homes[node.all_input_nodes[0]]
    return storage, _in_memory(_tangent(storage, level), joined)


def tangents_of(node: Node, storage: int, joined: Mapping[int, int]) -> tuple[int, ...]:
    """The storages of all tangents of a value that lies in a storage."""
    found = [storage]
    for level in tangent_levels(node):
        found += [_in_memory(_tangent(each, level), joined) for each in found]
    return tuple(dict.fromkeys(found))[1:]


def _tangent(storage: int, level: int) -> int:
    return storage | 1 << _FIRST_BIT + level if storage >= 0 else storage


def _in_memory(storage: int, joined: Mapping[int, int]) -> int:
    return joined.get(storage, storage)
