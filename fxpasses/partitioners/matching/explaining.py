"""Why a pattern was not found: the best partial matches, each with the node and the argument that failed.

At every candidate for the first anchor the search is run again with an observer that keeps the mismatch at which most
of the pattern had been laid. A pattern whose anchor never occurs is looked for by its inner calls instead, largest part
first, because what differs is then likely what follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
from torch.fx import Graph, GraphModule, Node

from fxpasses.errors import PatternError, user_line
from fxpasses.partitioners.matching.compiling import CompiledPattern, PatternLike, compile_pattern
from fxpasses.partitioners.matching.literals import show
from fxpasses.partitioners.matching.matches import PatternMatch
from fxpasses.partitioners.matching.matching import Matcher, MatchFilter, checked_filters
from fxpasses.partitioners.matching.searching import Search
from fxpasses.partitioners.matching.terms import Call, Outputs, Pattern
from fxpasses.partitioners.matching.views import GraphView

__all__ = ["Explanation", "MatchFailure", "explain"]

_MAX_CANDIDATES = 2_000


@attrs.frozen(eq=False)
class MatchFailure:
    """One partial match.

    Args:
        anchor: Where it was tried; None if no node could be the anchor.
        node: The node (or literal) that failed.
        pattern: The part of the pattern that it should have been.
        reason: What is wrong with it, with the argument's name where an argument is wrong.
        matched: The nodes that did match, in graph order.
        total: How many calls the pattern has.
    """

    anchor: Node | None
    node: Any
    pattern: Pattern
    reason: str
    matched: tuple[Node, ...]
    total: int

    def __str__(self) -> str:
        where = f" at {self.anchor.name}" if self.anchor is not None else ""
        matched = f" ({', '.join(node.name for node in self.matched)})" if self.matched else ""
        text = f"{len(self.matched)} of {self.total} calls match{where}{matched}; {self.reason}"
        line = user_line(self.node) if isinstance(self.node, Node) else None
        return f"{text} [{line}]" if line else text


@attrs.frozen(eq=False)
class Explanation:
    """What became of a pattern in a graph.

    Args:
        matches: Where it does match.
        failures: Where it does not, best partial match first.
    """

    matches: tuple[PatternMatch, ...]
    failures: tuple[MatchFailure, ...]

    @property
    def best(self) -> MatchFailure | None:
        """The partial match that got furthest."""
        return self.failures[0] if self.failures else None

    def __str__(self) -> str:
        lines = [f"{len(self.matches)} matches"] if self.matches else ["no match"]
        return "\n".join([*lines, *(f"  {failure}" for failure in self.failures)])


def explain(
    pattern: PatternLike,
    graph: Graph | GraphModule,
    *,
    limit: int = 5,
    filters: Sequence[MatchFilter] = (),
    **options: Any,
) -> Explanation:
    """Say why a pattern does not match where one would expect it.

    >>> import torch
    >>> module = torch.fx.symbolic_trace(lambda x: torch.softmax(x * 2, dim=0))
    >>> print(explain(lambda x: torch.softmax(x * 2, dim=-1), module))
    no match
      0 of 2 calls match at softmax; argument 'dim' of softmax is 0, the pattern has -1

    Args:
        pattern: The pattern in any of its forms.
        graph: Where it was looked for.
        limit: How many partial matches to give.
        filters: Those that the matches had to pass.
        options: As for ``compile_pattern``.

    Raises:
        PatternError: The pattern cannot work, ``limit`` is not positive, or ``filters`` is no list of functions.
    """
    if limit < 1:
        raise PatternError(f"explain() needs a positive limit, got {limit}")
    compiled = compile_pattern(pattern, **options)
    view = GraphView(graph)
    matcher = Matcher(compiled, view, checked_filters(filters), set())
    candidates = matcher.candidates()
    matches, failures = [], []
    for anchor in candidates[:_MAX_CANDIDATES]:
        if (match := matcher.at(anchor)) is not None:
            matches.append(match)
        else:
            failures.append(_failure_at(compiled, view, anchor, matcher))
    if not candidates:
        failures = list(_inner_failures(compiled, view))
    failures.sort(key=lambda failure: -len(failure.matched))  # stable: graph order among equals
    return Explanation(tuple(matches), tuple(failures[:limit]))


class _Observer:
    """Keeps the mismatch at which most of the pattern was laid."""

    def __init__(self) -> None:
        self.search: Search | None = None
        self.best: tuple[Any, Pattern, str] | None = None
        self.matched: tuple[Node, ...] = ()

    def __call__(self, pattern: Pattern, value: Any, reason: str) -> None:
        matched = tuple(sorted(self.search.owner)) if self.search is not None else ()
        if self.best is None or len(matched) > len(self.matched):
            self.best, self.matched = (value, pattern, reason), matched


def _failure_at(compiled: CompiledPattern, view: GraphView, anchor: Node, matcher: Matcher) -> MatchFailure:
    observer = _Observer()
    search = Search(compiled, view, observe=observer)
    observer.search = search
    whole = next((PatternMatch(compiled, bound) for bound in search.solutions(anchor)), None)
    if whole is not None:
        reason = matcher.why_refused(whole) or "its nodes belong to an earlier match"
        nodes = tuple(sorted(whole.nodes))
        return MatchFailure(anchor, anchor, compiled.roots[0], reason, nodes, compiled.size)
    root = compiled.roots[0]
    node, pattern, reason = observer.best or (anchor, root, _unmatched_roots(compiled))
    return MatchFailure(anchor, node, pattern, reason, observer.matched, compiled.size)


def _unmatched_roots(compiled: CompiledPattern) -> str:
    names = ", ".join(root.describe() for root in compiled.roots[1:]) or compiled.roots[0].describe()
    return f"no node beside it fits the other result ({names})"


def _inner_failures(compiled: CompiledPattern, view: GraphView) -> Iterator[MatchFailure]:
    """No node can be the anchor: lay the largest inner part that occurs, and say what follows it instead."""
    root = compiled.roots[0]
    wanted = root.describe()
    for part in _inner_calls(compiled):
        inner = compile_pattern(Outputs((part,)))
        found = [m for n in view.candidates(part)[:_MAX_CANDIDATES] if (m := _first(inner, view, n)) is not None]
        for match in found:
            anchor = match.anchors[0]
            users = ", ".join(view.describe(user) for user in anchor.users) or "nothing"
            above = _parent(compiled, part)
            reason = f"expected {above.describe()} to use {anchor.name}, found {users}"
            nodes = tuple(sorted(match.nodes))
            yield MatchFailure(anchor, next(iter(anchor.users), anchor), above, reason, nodes, compiled.size)
        if found:
            return
    yield MatchFailure(None, None, root, f"no node of the graph calls {wanted}{_near(view)}", (), compiled.size)


def _inner_calls(compiled: CompiledPattern) -> list[Call]:
    return [p for p in compiled.patterns if isinstance(p, Call) and p not in compiled.roots]


def _first(inner: CompiledPattern, view: GraphView, node: Node) -> PatternMatch | None:
    return next((PatternMatch(inner, bound) for bound in Search(inner, view).solutions(node)), None)


def _parent(compiled: CompiledPattern, part: Pattern) -> Pattern:
    return next((p for p in compiled.patterns if part in p.children() and isinstance(p, Call)), compiled.roots[0])


def _near(view: GraphView) -> str:
    """What the graph does call, for a reader who wrote the pattern in another dialect."""
    names = dict.fromkeys(
        show(key[1]) if isinstance(key[1], str) else str(getattr(key[1], "__name__", key[1]))
        for key in view.index
        if key[0] in ("call_function", "call_method", "call_module")
    )
    listed = list(names)[:8]
    return f"; it calls {', '.join(listed)}{', ...' if len(names) > 8 else ''}" if listed else "; it calls nothing"
