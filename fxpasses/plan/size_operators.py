"""Which operators only read or compute sizes, and where they go when no line of a plan names them.

A model that is exported again with dynamic shapes has them, and had none when its sizes were numbers. They take no time
and no memory, so they go where their values are used. So does the call that checks the inputs of ``program.module()``.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence

import torch
from torch.fx import Node

from fxpasses.guards import is_guard
from fxpasses.metadata import value_of
from fxpasses.partitioners.grouping.keep_together import runs_anywhere
from fxpasses.partitioners.tensor_sizes import tensors_in

__all__ = ["handles_sizes", "is_size", "with_sizes"]


def is_size(node: Node) -> bool:
    """Whether the value of a node is a number that the host has: a size, or what was computed from sizes."""
    return isinstance(value_of(node), (int, float, torch.SymInt, torch.SymFloat, torch.SymBool))


def handles_sizes(node: Node) -> bool:
    """Whether an operator reads a size, computes with sizes, or asserts something about them or about inputs."""
    if is_guard(node):
        return True
    if node.op != "call_function" or node.target is operator.getitem or tensors_in(value_of(node)):
        return False
    used = node.all_input_nodes
    return runs_anywhere(node) or (bool(used) and all(map(is_size, used)))


def with_sizes(
    nodes: Sequence[Node],
    ranks: Mapping[Node, int],
    named: Collection[Node],
    again: Mapping[Node, int],
) -> dict[Node, int]:
    """Put what handles sizes where it can run: not after the first who uses it, not before what it reads is there.

    Linear in nodes and edges.

    Args:
        nodes: The operators, in graph order.
        ranks: The place of the part of each operator that a line of the plan covers.
        named: Operators that have a line of their own, and stay.
        again: The first part that computes an operator again.

    Returns:
        The places, now also of what nothing covers; empty where nothing is covered.
    """
    found = dict(ranks)
    moving = [node for node in nodes if node not in named and handles_sizes(node)] if ranks else []
    for node in reversed(moving):
        users = [place[user] for place in (found, again) for user in node.users if user in place]
        if users:
            found[node] = min(*users, found.get(node, users[0]))
    for node in moving:
        read = max((found[used] for used in node.all_input_nodes if used in found), default=0)
        found[node] = max(read, found.get(node, read))
    return found
