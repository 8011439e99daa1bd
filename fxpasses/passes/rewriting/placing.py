"""Where a replacement stands: after all that it reads, before all that reads it, and on its side of every effect.

The window is bounded from below by the inputs that the replacement uses and by the nodes that effects keep in front of
the match, from above by the users of the results and by the nodes that effects keep behind it. If the window is empty,
the producers in the way are moved up in front of it, as far as no data or effect edge forbids that; if one of them
needs the match itself, no order exists and the match is refused with the path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
from torch.fx import Node

from fxpasses.partitioners.matching import GraphView, PatternMatch
from fxpasses.passes.rewriting.uses import Uses

__all__ = ["Neighbours", "Place", "find_place"]


@attrs.frozen
class Place:
    """Where to insert, and what has to move there first.

    Args:
        before: The node in front of which the replacement goes.
        moved: Producers to be moved in front of ``before`` first, in graph order.
        refused: Why there is no place; the other fields then say nothing.
    """

    before: Node
    moved: tuple[Node, ...] = ()
    refused: str | None = None


@attrs.define(eq=False)
class Neighbours:
    """Who must stay in front of or behind a node because of effects, while matches are being replaced.

    Args:
        view: The graph as it was when the matches were found.
        uses: Who uses what by now.
        became: For nodes that are gone: what stands in their place.
    """

    view: GraphView
    uses: Uses = attrs.field(factory=Uses)
    became: dict[Node, list[Node]] = attrs.field(factory=dict)

    def earlier(self, node: Node) -> list[Node]:
        """The nodes that effects keep in front of ``node``, as they are now."""
        return self._present(self.view.earlier.get(node, ()))

    def later(self, node: Node) -> list[Node]:
        """The nodes that effects keep behind ``node``, as they are now."""
        return self._present(self.view.later.get(node, ()))

    def _present(self, nodes: Iterable[Node]) -> list[Node]:
        present: list[Node] = []
        for node in nodes:
            present.extend(self.became.get(node, (node,)))
        return present

    def replace(self, old: Iterable[Node], new: list[Node]) -> None:
        """Note that ``new`` stands where ``old`` stood, and inherits its order."""
        old = list(old)
        for table in (self.view.earlier, self.view.later):
            inherited = [other for node in old for other in table.get(node, ()) if other not in old]
            if inherited:
                table.update({node: list(dict.fromkeys(inherited)) for node in new})
        self.became.update(dict.fromkeys(old, new))


def find_place(match: PatternMatch, inputs: Iterable[Node], results: Iterable[Node], near: Neighbours) -> Place:
    """The place for the replacement of a match in the graph as it is now.

    Args:
        match: The match; its nodes are still there.
        inputs: The nodes that the replacement reads.
        results: The nodes that it replaces and that may be used.
        near: The order that effects ask for.
    """
    inside = dict.fromkeys(match.nodes)
    needed = [node for node in inputs if node not in inside]
    needed += [other for node in inside for other in near.earlier(node) if other not in inside]
    needing = [user for node in results for user in near.uses.users(node) if user not in inside]
    needing += [other for node in inside for other in near.later(node) if other not in inside]
    last = max(inside)
    upper = min(needing, default=None)
    lower = max(needed, default=None)
    if (upper is None or last < upper) and (lower is None or lower < last):
        return Place(last)
    if upper is None:
        return Place(last if lower is None else lower.next)
    if lower is None or lower < upper:
        return Place(upper)
    return _make_room(upper, [node for node in needed if not node < upper], inside, near)


def _make_room(upper: Node, late: list[Node], inside: Mapping[Node, None], near: Neighbours) -> Place:
    """Move ``late`` and what it needs in front of ``upper``."""
    needed_by: dict[Node, Node | None] = dict.fromkeys(late)
    waiting = list(needed_by)
    for node in waiting:  # grows while it is walked
        if node in inside or node is upper:
            return Place(upper, refused=_cycle(node, needed_by, node in inside))
        for other in (*near.uses.inputs(node), *near.earlier(node)):
            if other not in needed_by and (not other < upper or other in inside):
                needed_by[other] = node
                waiting.append(other)
    stuck = next((node for node in waiting if node.op == "placeholder"), None)
    if stuck is not None:
        return Place(upper, refused=f"the input {stuck.name} stands behind {upper.name} and cannot be moved")
    return Place(upper, moved=tuple(sorted(waiting)))


def _cycle(node: Node, needed_by: Mapping[Node, Node | None], is_inside: bool) -> str:
    path = [node]
    while (above := needed_by[path[-1]]) is not None:
        path.append(above)
    names = " -> ".join(each.name for each in path)
    what = "the match itself" if is_inside else f"{node.name}, which must come after the match"
    return f"no order exists: the replacement reads {path[-1].name}, which needs {what} ({names})"
