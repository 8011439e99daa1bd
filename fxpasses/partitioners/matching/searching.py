"""The search: lay one pattern over one graph from an anchor, with backtracking that does not blow up.

Idea. A stack of goals ``(pattern, value)``; each is expanded by its pattern into further goals. Where there are several
ways (swapped operands, alternatives, lengths of lists), the state is kept as a choice point and taken up again on
failure. Three things keep that from being exponential where patterns are used in practice:

- *Feasibility*: before a way is chosen, an AND-OR evaluation that ignores shared values and remembers every
  ``(pattern, node)`` pair says whether it can work at all. For tree patterns this is exact: the search never backs up.
- *Sure things first*: goals without a choice run before those with one, so shared values are known when choosing.
- *Further roots are joined through shared values*: the candidates of a second anchor are found by walking from a
  bound value to its users, instead of trying every pair of nodes.

What remains (shared values among many interchangeable operands is subgraph isomorphism) is cut off by a budget of
steps, and reported. Nothing recurses over nodes. Cost: O(pattern) for an anchor of a pattern without choices.

Sources: Hoffmann and O'Donnell, Pattern Matching in Trees, JACM 1982 (memoised pairs); Warren's abstract machine
(goals, trail, choice points).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.fx import Node

from fxpasses.partitioners.matching.compiling import Bridge, CompiledPattern
from fxpasses.partitioners.matching.literals import same_value
from fxpasses.partitioners.matching.terms import Alternative, Call, Not, Pattern, Repeat, Role
from fxpasses.partitioners.matching.views import GraphView

__all__ = ["Search"]

Scope = Any  # None, or (repeat, item, outer scope)
Observer = Callable[[Pattern, Any, str], None]
_MISSING = object()
_MEMO_LIMIT = 1_000_000


class _Choice:
    """A state to come back to, and the ways that are left there."""

    __slots__ = ("next_root", "scope", "sure", "trail", "undecided", "ways")

    def __init__(self, search: Search, ways: Iterator[Alternative], scope: Scope) -> None:
        self.sure, self.undecided = search.sure, search.undecided
        self.next_root, self.trail = search.next_root, len(search.trail)
        self.ways, self.scope = ways, scope


class Search:
    """One pattern on one graph; :meth:`solutions` may be asked for one anchor after the other.

    Args:
        pattern: The pattern.
        view: The graph.
        taken: Nodes that no solution may own; may grow while the search is used.
        observe: Called with ``(pattern, value, reason)`` at every mismatch; slow, for explanations.
    """

    def __init__(
        self,
        pattern: CompiledPattern,
        view: GraphView,
        taken: set[Node] | None = None,
        observe: Observer | None = None,
    ) -> None:
        self.pattern, self.view = pattern, view
        self.taken: set[Node] = set() if taken is None else taken
        self.observe = observe
        self.budget = 20_000 + 500 * len(pattern.patterns)
        self.gave_up: list[Node] = []
        self._joins: dict[tuple[int, Any], list[Any]] = {}
        self._reset()

    def _reset(self) -> None:
        self.bound: dict[Any, Any] = {}
        self.owner: dict[Node, Any] = {}
        self.taking: dict[Node, int] = {}
        self.trail: list[tuple[Any, Role]] = []
        self.choices: list[_Choice] = []
        self.sure: Any = None
        self.undecided: Any = None
        self.next_root = 1

    def solutions(self, anchor: Node) -> Iterator[dict[Any, Any]]:
        """The ways to lay the pattern so that its first root is ``anchor``: pattern to value, in order of binding."""
        root = self.pattern.roots[0]
        self._reset()
        if root in self.pattern.has_choice and self.observe is None and not self.feasible(root, anchor):
            return
        self._push(((root, anchor),), None)
        for _ in self._run(len(self.pattern.roots), anchor):
            yield dict(self.bound)

    # ---------------------------------------------------------------------------------------------- the machine
    def _run(self, num_roots: int, anchor: Any) -> Iterator[None]:
        for _ in range(self.budget):
            if self.sure is not None:
                goal, self.sure = self.sure
                is_fine = self._step(*goal)
            elif self.undecided is not None:
                goal, self.undecided = self.undecided
                is_fine = self._step(*goal)
            elif self.next_root < num_roots:
                is_fine = self._join()
            else:
                yield
                is_fine = False
            if not is_fine and not self._back():
                return
        if isinstance(anchor, Node):
            self.gave_up.append(anchor)

    def _step(self, pattern: Pattern, value: Any, scope: Scope) -> bool:
        key = pattern if scope is None or pattern not in self.pattern.scoped else (pattern, scope)
        known = self.bound.get(key, _MISSING)
        if known is not _MISSING:
            return same_value(known, value) or self._fail(pattern, value, "is another value than in the first place")
        ways = pattern.expand(value, self.view)
        if not ways:
            return self._fail(pattern, value, None)
        if not self._claim(pattern, key, value):
            return self._fail(pattern, value, "stands for another part of the pattern already")
        if isinstance(pattern, Repeat):
            for place, item in enumerate(value):
                self._push(((pattern.pattern, item),), (pattern, place, scope))
            return True
        if isinstance(pattern, Not):
            return not self._holds(pattern.pattern, value) or self._fail(pattern, value, None)
        if len(ways) > 1:
            return self._choose(ways, scope)
        self._push(ways[0], scope)
        return True

    def _push(self, goals: Alternative, scope: Scope) -> None:
        has_choice = self.pattern.has_choice
        for pattern, value in reversed(goals):
            goal = (pattern, value, scope)
            if pattern in has_choice:
                self.undecided = (goal, self.undecided)
            else:
                self.sure = (goal, self.sure)

    def _choose(self, ways: Sequence[Alternative], scope: Scope) -> bool:
        if self.observe is None and self.pattern.has_choice:
            ways = [way for way in ways if all(self.feasible(pattern, value) for pattern, value in way)]
            if not ways:
                return False
        if len(ways) > 1:
            self.choices.append(_Choice(self, iter(ways[1:]), scope))
        self._push(ways[0], scope)
        return True

    def _back(self) -> bool:
        """Take up the latest choice that has a way left."""
        while self.choices:
            choice = self.choices[-1]
            self._undo(choice.trail)
            way = next(choice.ways, None)
            if way is None:
                self.choices.pop()
                continue
            self.sure, self.undecided, self.next_root = choice.sure, choice.undecided, choice.next_root
            self._push(way, choice.scope)
            return True
        return False

    def _claim(self, pattern: Pattern, key: Any, value: Any) -> bool:
        """Bind; a node is owned by one pattern at most, and no match owns its own input."""
        role = self.pattern.roles.get(pattern, Role.NOTES)
        if role is Role.NOTES or not isinstance(value, Node):
            role = Role.NOTES
        elif role is Role.OWNS:
            if value in self.owner or value in self.taking or value in self.taken:
                return False
            self.owner[value] = key
        else:
            if value in self.owner:
                return False
            self.taking[value] = self.taking.get(value, 0) + 1
        self.bound[key] = value
        self.trail.append((key, role))
        return True

    def _undo(self, length: int) -> None:
        while len(self.trail) > length:
            key, role = self.trail.pop()
            value = self.bound.pop(key)
            if role is Role.OWNS:
                del self.owner[value]
            elif role is Role.TAKES:
                self.taking[value] -= 1
                if not self.taking[value]:
                    del self.taking[value]

    def _fail(self, pattern: Pattern, value: Any, reason: str | None) -> bool:
        if self.observe is not None:
            self.observe(pattern, value, reason if reason is not None else pattern.why_not(value, self.view))
        return False

    def _holds(self, pattern: Pattern, value: Any) -> bool:
        """Whether a negated pattern matches, given what is bound so far."""
        inner = Search(self.pattern, self.view)
        inner.bound, inner.owner, inner.taking = dict(self.bound), dict(self.owner), dict(self.taking)
        inner.owner.pop(value, None) if isinstance(value, Node) else None
        inner._push(((pattern, value),), None)
        return any(True for _ in inner._run(0, None))

    # ---------------------------------------------------------------------------------------------- further roots
    def _join(self) -> bool:
        place = self.next_root
        root = self.pattern.roots[place]
        self.next_root += 1
        if root in self.bound:
            return True
        ways = (((root, node),) for node in self._candidates(place, root))
        self.choices.append(_Choice(self, ways, None))
        return False  # which takes the first way

    def _candidates(self, place: int, root: Pattern) -> Iterator[Node]:
        """Nodes that the root may stand for, in graph order, without those that are taken."""
        key, bridge = self._best_bridge(place)
        if (place, key) not in self._joins:
            found = self.view.candidates(root) if bridge is None or key is None else self._across(bridge, key)
            self._joins[place, key] = [found, 0]
        entry = self._joins[place, key]
        nodes = entry[0]
        while entry[1] < len(nodes) and nodes[entry[1]] in self.taken:
            entry[1] += 1  # taken nodes stay taken: the list is walked once in all
        for index in range(entry[1], len(nodes)):
            if nodes[index] not in self.taken and nodes[index] not in self.owner:
                yield nodes[index]

    def _best_bridge(self, place: int) -> tuple[Node | None, Bridge | None]:
        """The bound value with the fewest users from which the root can be reached."""
        best: tuple[Node | None, Bridge | None] = (None, None)
        for bridge in self.pattern.bridges[place]:
            start = self.bound.get(bridge.start)
            if isinstance(start, Node) and (best[0] is None or len(start.users) < len(best[0].users)):
                best = (start, bridge)
        return best

    def _across(self, bridge: Bridge, start: Node) -> list[Node]:
        frontier = [start]
        for step in bridge.steps:
            users = dict.fromkeys(user for node in frontier for user in node.users)
            frontier = [user for user in users if _calls(step, user, self.view)]
        return sorted((n for n in frontier if n in self.view.position), key=self.view.position.__getitem__)

    # ---------------------------------------------------------------------------------------------- feasibility
    def feasible(self, pattern: Pattern, value: Any) -> bool:
        """Whether the pattern can stand for the value if no value were shared; remembered for each pair."""
        memo = self.view.feasible
        if len(memo) > _MEMO_LIMIT:
            memo.clear()
        answer: bool | None = None
        stack: list[list[Any]] = []
        fresh: tuple[Pattern, Any] | None = (pattern, value)
        while True:
            if fresh is not None:
                answer = self._known(fresh)
                if answer is None:
                    stack.append([fresh, self._ways(*fresh), 0, 0])
                fresh = None
            if not stack:
                return bool(answer)
            frame = stack[-1]
            if answer is not None:
                frame[2], frame[3] = (frame[2], frame[3] + 1) if answer else (frame[2] + 1, 0)
            goal, ways, way, place = frame
            if way == len(ways):
                answer = False
            elif place == len(ways[way]):
                answer = True
            else:
                fresh, answer = ways[way][place], None
                continue
            stack.pop()
            if isinstance(goal[1], Node):
                memo[goal] = answer

    def _known(self, goal: tuple[Pattern, Any]) -> bool | None:
        return self.view.feasible.get(goal) if isinstance(goal[1], Node) else None

    def _ways(self, pattern: Pattern, value: Any) -> Sequence[Alternative]:
        ways = pattern.expand(value, self.view)
        if ways and isinstance(pattern, Repeat):
            return (tuple((pattern.pattern, item) for item in value),)
        return ways


def _calls(step: Call, node: Node, view: GraphView) -> bool:
    return step.calls(node, view)
