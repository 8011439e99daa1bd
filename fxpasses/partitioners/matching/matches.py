"""What was found: one match of one pattern, and the reasons why a match may not be taken as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import attrs
from torch.fx import Node

from fxpasses.partitioners.matching.bookkeeping import is_bookkeeping
from fxpasses.partitioners.matching.compiling import CompiledPattern
from fxpasses.partitioners.matching.terms import Pattern, Repeat, Role
from fxpasses.partitioners.matching.views import GraphView

__all__ = ["PatternMatch", "leak", "misordered", "tangle"]


@attrs.frozen(eq=False, repr=False)
class PatternMatch:
    """One place of a graph where a pattern was found.

    Args:
        pattern: What was looked for.
        bound: What each part of the pattern stands for: a node, a literal, a list.
    """

    pattern: CompiledPattern
    bound: Mapping[Any, Any]

    @cached_property
    def anchors(self) -> list[Node]:
        """The nodes that the roots of the pattern stand for."""
        return [self._resolved(root) for root in self.pattern.roots]

    @cached_property
    def nodes(self) -> list[Node]:
        """The nodes that belong to the match, without its inputs, in the order in which they were found."""
        owned = (value for key, value in self.bound.items() if isinstance(value, Node) and self._owns(key))
        return list(dict.fromkeys(owned))

    def _owns(self, key: Any) -> bool:
        return self.pattern.roles[key[0] if isinstance(key, tuple) else key] is Role.OWNS

    @cached_property
    def turns(self) -> dict[Node, tuple[tuple[int, ...], ...]]:
        """When the pattern runs each of the nodes, for comparisons: items of a repeat run one after the other."""
        turns = self.pattern.turns
        return {
            value: _turn(key, turns) for key, value in self.bound.items() if isinstance(value, Node) and self._owns(key)
        }

    @cached_property
    def results(self) -> list[Any]:
        """What the pattern returns, in order."""
        return [self._resolved(result) for result in self.pattern.results]

    @cached_property
    def inputs(self) -> list[Any]:
        """For a pattern made from a graph: what each placeholder stands for."""
        return [self.bound.get(pattern) for pattern in self.pattern.inputs]

    @cached_property
    def captures(self) -> dict[str, Any]:
        """What the named parts stand for: nodes, literals, and lists for what is repeated; None if left out."""
        return {name: self._captured(patterns) for name, patterns in self.pattern.captures.items()}

    def __getitem__(self, name: str) -> Any:
        return self.captures[name]

    def _resolved(self, pattern: Pattern) -> Any:
        """The node that a result stands for: ``Either`` and ``Both`` stand for what their parts do."""
        return self.bound[pattern]

    def _captured(self, patterns: Iterable[Pattern]) -> Any:
        for pattern in patterns:
            if pattern in self.bound:
                value = self.bound[pattern]
                return list(value) if isinstance(pattern, Repeat) else value
            if pattern in self.pattern.scoped:
                scoped = [(key[1], value) for key, value in self.bound.items() if _is_for(key, pattern)]
                if scoped:
                    return [value for _, value in sorted(scoped, key=lambda each: _places(each[0]))]
        return [] if all(pattern in self.pattern.scoped for pattern in patterns) else None

    def __repr__(self) -> str:
        return f"<match at {', '.join(node.name for node in self.anchors)}: {', '.join(n.name for n in self.nodes)}>"


def _is_for(key: Any, pattern: Pattern) -> bool:
    return isinstance(key, tuple) and key[0] is pattern


def _places(scope: Any) -> tuple[int, ...]:
    """The items of nested repeats from the outermost in, for sorting."""
    places: list[int] = []
    while scope is not None:
        places.append(scope[1])
        scope = scope[2]
    return tuple(reversed(places))


def _turn(key: Any, turns: Mapping[Pattern, tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    pattern, scope = key if isinstance(key, tuple) else (key, None)
    turn: tuple[tuple[int, ...], ...] = (turns[pattern],)
    while scope is not None:
        repeat, place, scope = scope
        turn = (turns[repeat], (place,), *turn)
    return turn


def leak(match: PatternMatch) -> str | None:
    """Why the match cannot be lifted out: a value inside it that something outside uses; None if there is none."""
    inside = set(match.nodes)
    returned = {value for value in match.results if isinstance(value, Node)}
    for node in match.nodes:
        if node in returned:
            continue
        for user in node.users:
            if user not in inside and not is_bookkeeping(user):
                return f"{node.name} is inside the match and {user.name} uses it"
    return None


def tangle(match: PatternMatch, view: GraphView) -> list[Node] | None:
    """A path that leaves the match and comes back into it, along data or effects; None if the match is convex.

    Only nodes between the first exit and the last node of the match can be on such a path, so only they are visited.
    """
    inside = dict.fromkeys(match.nodes)
    position, later = view.position, view.later
    last = max(position[node] for node in inside)
    came_from: dict[Node, Node] = {}
    waiting: list[Node] = []
    for node in inside:
        for step in (*node.users, *later.get(node, ())):
            if step not in inside and position.get(step, last) < last and step not in came_from:
                came_from[step] = node
                waiting.append(step)
    for node in waiting:  # grows while it is walked
        for step in (*node.users, *later.get(node, ())):
            if step in inside:
                return _path(came_from, node, inside, step)
            if step not in came_from and position.get(step, last) < last:
                came_from[step] = node
                waiting.append(step)
    return None


def misordered(match: PatternMatch, view: GraphView) -> tuple[Node, Node] | None:
    """Two nodes that effects keep in another order than the pattern has them in; None if there are none.

    What replaces the match does what the pattern does, in its order. Nodes of a convex match that effects order over
    others are in a chain of such pairs, so pairs are all that is looked at.
    """
    if (effects := view.effects) is None:
        return None
    turns = match.turns
    for node, turn in turns.items():
        for other in view.later.get(node, ()):
            if turns.get(other, turn) < turn:
                return node, other
        for user in node.users:  # an argument that the pattern leaves open
            if turns.get(user, turn) < turn and effects.why_ordered(node, user):
                return node, user
    return None


def _path(came_from: Mapping[Node, Node], node: Node, inside: Mapping[Node, None], end: Node) -> list[Node]:
    path = [end, node]
    while path[-1] not in inside:
        path.append(came_from[path[-1]])
    return path[::-1]
