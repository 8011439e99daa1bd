"""Find all matches of a pattern in a graph, by a stated rule and in time linear in the graph.

The rule: candidates for the first anchor are tried in graph order. For each, the first way to lay the pattern that is
whole (no inner value is used outside), convex (along data and effects), in the pattern's order where effects order its
nodes, and accepted by the filters is the match. Unless overlapping matches are asked for, its nodes then belong to it
alone, and it is the only match at that anchor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import attrs
from torch.fx import Graph, GraphModule, Node

from fxpasses.errors import PatternError, also_as
from fxpasses.partitioners.matching.compiling import CompiledPattern, PatternLike, compile_pattern
from fxpasses.partitioners.matching.matches import PatternMatch, leak, misordered, tangle
from fxpasses.partitioners.matching.probing import Probe, probe_of
from fxpasses.partitioners.matching.searching import Search
from fxpasses.partitioners.matching.terms import Call
from fxpasses.partitioners.matching.views import GraphView

__all__ = ["MatchFilter", "Matcher", "checked_filters", "find_matches", "impossible_calls"]

logger = logging.getLogger(__name__)

MatchFilter = Callable[[PatternMatch], bool]
_MAX_REFUSALS = 256
_TALL = 8  # below this height, walking down a failing candidate is cheaper than knowing its depth


@attrs.define(eq=False)
class Matcher:
    """One pattern, looked for in one graph; several matchers may share ``taken`` so that their matches do not overlap.

    Args:
        pattern: The pattern.
        view: The graph.
        filters: Questions that a match must also answer with yes.
        taken: Nodes that belong to other matches; None if matches may overlap.
        keeps_shared: A value inside the match may be used outside: it stays, beside what replaces the match.
    """

    pattern: CompiledPattern
    view: GraphView
    filters: Sequence[MatchFilter] = ()
    taken: set[Node] | None = None
    keeps_shared: bool = False
    search: Search = attrs.field(init=False)
    _probe: Probe | None = attrs.field(init=False)
    _depths: list[int] = attrs.field(init=False, factory=list)

    def __attrs_post_init__(self) -> None:
        self.search = Search(self.pattern, self.view, self.taken)
        self._probe = probe_of(self.pattern.roots[0])

    def candidates(self) -> list[Node]:
        """The nodes at which :meth:`at` is worth asking."""
        return self.view.candidates(self.pattern.roots[0])

    def at(self, anchor: Node) -> PatternMatch | None:
        """The match whose first anchor is this node, if there is one; its nodes are taken then."""
        if self.taken is not None and anchor in self.taken:
            return None
        if self._probe is not None and not self._probe.may_match(anchor):
            return None
        if self.pattern.height > _TALL and not self._is_deep_enough(anchor):
            return None
        match = next(self.valid(anchor), None)
        if match is not None and self.taken is not None:
            self.taken.update(match.nodes)
        return match

    def _is_deep_enough(self, anchor: Node) -> bool:
        """Whether a chain of untaken nodes as long as the pattern ends here; keeps tall patterns linear on chains."""
        depths, position, taken = self._depths, self.view.position, self.taken or ()
        for place in range(len(depths), position[anchor] + 1):
            node = self.view.nodes[place]
            below = (depths[position[each]] for each in node.all_input_nodes if each not in taken)
            depths.append(0 if node.op == "placeholder" or node in taken else 1 + max(below, default=0))
        return depths[position[anchor]] >= self.pattern.height

    def valid(self, anchor: Node) -> Iterator[PatternMatch]:
        """All valid ways to lay the pattern at this anchor; after 256 refusals no more are tried."""
        refusals = 0
        for bound in self.search.solutions(anchor):
            match = PatternMatch(self.pattern, bound)
            reason = self.why_refused(match)
            if reason is None:
                yield match
                continue
            logger.debug("match at %s refused: %s", anchor, reason)
            refusals += 1
            if refusals == _MAX_REFUSALS:
                self.search.gave_up.append(anchor)
                return

    def why_refused(self, match: PatternMatch) -> str | None:
        """Why a way to lay the pattern is no valid match; None if it is one."""
        if not self.keeps_shared and (reason := leak(match)) is not None:
            return reason
        if len(match.nodes) > 1 and (reason := self._why_disordered(match)) is not None:
            return reason
        for accepts in self.filters:
            if not _ask(accepts, match):
                return f"the filter {getattr(accepts, '__name__', accepts)} refused it"
        return None

    def _why_disordered(self, match: PatternMatch) -> str | None:
        """Why the nodes of a match cannot run at one place, in the pattern's order; None if they can."""
        if (path := tangle(match, self.view)) is not None:
            return describe_path(path, self.view)
        if (pair := misordered(match, self.view)) is not None:
            first, second = pair
            why = self.view.effects.why_ordered(first, second) if self.view.effects is not None else ""
            return f"{first.name} runs before {second.name}, in the pattern it runs after it ({why})"
        return None


def describe_path(path: Sequence[Node], view: GraphView) -> str:
    """A path that leaves a match and comes back, with the reason of each step that effects make."""
    steps = [why for a, b in pairwise(path) if b not in a.users and (why := view.why_ordered(a, b))]
    text = f"a path leaves the match and comes back: {' -> '.join(node.name for node in path)}"
    return f"{text} ({'; '.join(steps)})" if steps else text


def _ask(accepts: MatchFilter, match: PatternMatch) -> bool:
    try:
        return bool(accepts(match))
    except PatternError:
        raise
    except Exception as error:
        name = getattr(accepts, "__name__", repr(accepts))
        raise also_as(PatternError, error)(
            f"the match filter {name} raised {type(error).__name__}: {error} (asked about {match!r})",
            node=match.anchors[0],
            reason=str(error),
        ) from error


def checked_filters(given: Any) -> tuple[Any, ...]:
    """Filters as a tuple.

    Raises:
        PatternError: They are no list, or one of them is no function (also a TypeError).
    """
    if not isinstance(given, Iterable):
        advice = "; put it into a list" if callable(given) else ""
        raise also_as(PatternError, TypeError())(
            f"match filters are a list of functions, got the {type(given).__name__} "
            f"{getattr(given, '__name__', given)!s}{advice}"
        )
    filters = tuple(given)
    for each in filters:
        if not callable(each):
            raise also_as(PatternError, TypeError())(
                f"a match filter is a function that is asked about each match, got {each!r}"
            )
    return filters


def find_matches(
    pattern: PatternLike,
    graph: Graph | GraphModule | GraphView,
    *,
    filters: Sequence[MatchFilter] = (),
    overlapping: bool = False,
    effects: Any = None,
    **options: Any,
) -> list[PatternMatch]:
    """All matches of a pattern in one graph; bodies of control flow are graphs of their own (``nested_graph_modules``).

    Args:
        pattern: The pattern in any of its forms.
        graph: Where to look.
        filters: Questions that a match must also answer with yes.
        overlapping: Also give matches that share nodes; each set of nodes once for the same anchors.
        effects: An ``EffectAnalysis`` to use; False to look at data dependencies only.
        options: As for ``compile_pattern``.

    Returns:
        The matches in the order of their first anchors.

    Raises:
        PatternError: The pattern cannot work, ``filters`` is no list of functions, or a filter raised.

    Complexity:
        O(nodes + candidates x pattern) without overlapping matches.
    """
    filters = checked_filters(filters)
    compiled = compile_pattern(pattern, **options)
    view = graph if isinstance(graph, GraphView) else GraphView(graph, effects=effects)
    matcher = Matcher(compiled, view, filters, taken=None if overlapping else set())
    if not overlapping:
        return [match for node in matcher.candidates() if (match := matcher.at(node)) is not None]
    found: dict[tuple[tuple[Node, ...], frozenset[Node]], PatternMatch] = {}
    for node in matcher.candidates():
        for match in matcher.valid(node):
            found.setdefault((tuple(match.anchors), frozenset(match.nodes)), match)
    return list(found.values())


def impossible_calls(pattern: CompiledPattern, view: GraphView) -> list[Call]:
    """The calls of a pattern whose targets nothing in the graph calls (alternatives and negations left out)."""
    needed: list[Call] = []
    waiting, seen = list(pattern.roots), set(pattern.roots)
    while waiting:
        each = waiting.pop()
        if isinstance(each, Call):
            needed.append(each)
        elif type(each).__name__ in ("Either", "Not", "Maybe", "Repeat"):
            continue
        for child in each.children():
            if child not in seen:
                seen.add(child)
                waiting.append(child)
    present = {key: nodes[0] for key, nodes in view.index.items()}
    return [
        call
        for call in needed
        if not call.name_contains and not any(call.calls(node, view) for node in present.values()) and not call._types
    ]
