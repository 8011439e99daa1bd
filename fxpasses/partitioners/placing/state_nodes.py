"""Parameters that several operators use as nodes of a placement problem: they take no time, and make their bytes.

Where the users are on several devices, one of these sends the parameter to the others, as it sends a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from torch.fx import Node

from fxpasses.partitioners.costs.graph_figures import GraphFigures

__all__ = ["StateNode", "state_nodes", "with_first_user"]


class StateNode(NamedTuple):
    """A parameter or a buffer (its ``get_attr``), and the first operator that uses it; errors call it by its name."""

    state: Node
    first_user: Node

    def __repr__(self) -> str:
        return f"the shared {self.state.target}"


def state_nodes(figures: GraphFigures) -> dict[StateNode, tuple[Node, ...]]:
    """The operators that use each parameter or buffer that several use, in graph order."""
    found: dict[StateNode, tuple[Node, ...]] = {}
    for state in figures.shared_state:
        users = tuple(user for user in state.users if user in figures.position)
        if len(users) > 1 and figures.sent(state.names[0]):
            found[StateNode(state.names[0], users[0])] = users
    return found


def with_first_user(
    figures: GraphFigures, users: Mapping[StateNode, tuple[Node, ...]]
) -> Iterator[tuple[StateNode, Node]]:
    """Each node whose other users all need the first one, with that one: no other device had better hold it.

    Time for the edges of the graph, times the number of different first users / 64.
    """
    bit = {first: 1 << index for index, first in enumerate(dict.fromkeys(key.first_user for key in users))}
    reached: dict[Node, int] = {}
    for node in figures.nodes if bit else ():
        mask = bit.get(node, 0)
        for used in node.all_input_nodes:
            mask |= reached.get(used, 0)
        reached[node] = mask
    for key, (first, *others) in users.items():
        if all(reached[other] & bit[first] for other in others):
            yield key, first
