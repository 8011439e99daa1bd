"""Rules about which passes a pipeline holds and in which order, and the order that obeys them.

>>> def fold(graph_module): ...
>>> def fuse(graph_module): ...
>>> [pass_.__name__ for pass_ in topological_sort_passes([fuse, fold], [this_before_that_pass_constraint(fold, fuse)])]
['fold', 'fuse']
"""

from __future__ import annotations

import abc
import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import attrs

from fxpasses.errors import PipelineError, also_as
from fxpasses.pass_base.naming import pass_name, same_name

__all__ = [
    "ConstraintType",
    "PassConstraint",
    "all_of",
    "must_also_run",
    "must_be_adjacent",
    "must_not_both",
    "this_before_that_pass_constraint",
    "topological_sort_passes",
    "validate_constraints",
]

ConstraintType: TypeAlias = Callable[[Any, Any], bool]


class PassConstraint(abc.ABC):
    """A rule about a list of passes.

    Called with two passes it says whether the first may stand before the second, which is all that upstream managers
    ask; :meth:`problems` looks at the whole list. Constraints compose with ``&``.

    A pass is named by the object itself, by an equal one, by its class, or by its name.
    """

    def __call__(self, earlier: Any, later: Any) -> bool:
        """Whether ``earlier`` may stand before ``later``."""
        return True

    @abc.abstractmethod
    def problems(self, passes: Sequence[Any]) -> Iterator[str]:
        """What is wrong with the list, as sentences."""

    def glued(self, passes: Sequence[Any]) -> Iterator[tuple[int, int]]:
        """Pairs of positions that must stand side by side, in this order."""
        return iter(())

    def __and__(self, other: ConstraintType) -> PassConstraint:
        return all_of(self, other)


@attrs.frozen
class this_before_that_pass_constraint(PassConstraint):  # noqa: N801 - the upstream name of a function
    """``this`` must stand before ``that``; both must be there.

    Args:
        this: The pass that runs first.
        that: The pass that runs later.
    """

    this: Any
    that: Any

    def __call__(self, earlier: Any, later: Any) -> bool:
        """False if ``earlier`` is ``that`` and ``later`` is ``this``."""
        return not (is_meant(self.that, earlier) and is_meant(self.this, later))

    def problems(self, passes: Sequence[Any]) -> Iterator[str]:
        """Missing passes, and pairs that stand the wrong way round."""
        yield from _missing(self, (self.this, self.that), passes)
        these, those = _positions(self.this, passes), _positions(self.that, passes)
        for early in those:
            for late in these:
                if early < late:
                    yield _wrong_order(passes, late, early)


@attrs.frozen
class must_also_run(PassConstraint):  # noqa: N801 - reads as a rule
    """A pipeline with ``this`` must hold ``that`` too, anywhere."""

    this: Any
    that: Any

    def problems(self, passes: Sequence[Any]) -> Iterator[str]:
        """The missing pass."""
        if _positions(self.this, passes) and not _positions(self.that, passes):
            yield f"'{_shown(self.this)}' needs '{_shown(self.that)}' in the same pipeline; add it ({_there(passes)})"


@attrs.frozen
class must_be_adjacent(PassConstraint):  # noqa: N801 - reads as a rule
    """``that`` must stand directly after ``this``; both must be there."""

    this: Any
    that: Any

    def __call__(self, earlier: Any, later: Any) -> bool:
        """False if ``earlier`` is ``that`` and ``later`` is ``this``."""
        return not (is_meant(self.that, earlier) and is_meant(self.this, later))

    def problems(self, passes: Sequence[Any]) -> Iterator[str]:
        """Missing passes, and a ``this`` that something else follows."""
        yield from _missing(self, (self.this, self.that), passes)
        thats = _positions(self.that, passes)
        for position in _positions(self.this, passes) if thats else ():
            if position + 1 not in thats:
                follower = f"'{pass_name(passes[position + 1])}'" if position + 1 < len(passes) else "nothing"
                yield (
                    f"'{_shown(self.that)}' must stand directly after '{_shown(self.this)}' (index {position}), but "
                    f"{follower} does"
                )

    def glued(self, passes: Sequence[Any]) -> Iterator[tuple[int, int]]:
        """Each ``this`` with one ``that``."""
        yield from zip(_positions(self.this, passes), _positions(self.that, passes), strict=False)


@attrs.frozen
class must_not_both(PassConstraint):  # noqa: N801 - reads as a rule
    """A pipeline may hold ``this`` or ``that``, not both."""

    this: Any
    that: Any

    def problems(self, passes: Sequence[Any]) -> Iterator[str]:
        """Where both of them stand."""
        these, those = _positions(self.this, passes), _positions(self.that, passes)
        if these and those:
            yield (
                f"'{_shown(self.this)}' (index {these[0]}) and '{_shown(self.that)}' (index {those[0]}) must not both "
                "run; remove one"
            )


@attrs.frozen(init=False)
class all_of(PassConstraint):  # noqa: N801 - reads as a rule
    """All of several constraints; what ``&`` makes."""

    constraints: tuple[ConstraintType, ...]

    def __init__(self, *constraints: ConstraintType) -> None:
        flat: list[ConstraintType] = []
        for one in constraints:
            flat.extend(one.constraints if isinstance(one, all_of) else [one])
        object.__setattr__(self, "constraints", tuple(flat))

    def __call__(self, earlier: Any, later: Any) -> bool:
        """Whether all of them agree."""
        return all(one(earlier, later) for one in self.constraints)

    def problems(self, passes: Sequence[Any]) -> Iterator[str]:
        """The problems of each."""
        for one in self.constraints:
            yield from problems_of(one, passes)

    def glued(self, passes: Sequence[Any]) -> Iterator[tuple[int, int]]:
        """The pairs of each."""
        for one in self.constraints:
            if isinstance(one, PassConstraint):
                yield from one.glued(passes)


def problems_of(constraint: ConstraintType, passes: Sequence[Any]) -> Iterator[str]:
    """What is wrong with a list under one constraint, which may be a plain function of two passes."""
    if isinstance(constraint, PassConstraint):
        yield from constraint.problems(passes)
        return
    for late in range(len(passes)):
        for early in range(late):
            if not constraint(passes[early], passes[late]):
                yield _wrong_order(passes, late, early)


def validate_constraints(passes: Sequence[Any], constraints: Iterable[ConstraintType]) -> None:
    """Refuse a list that breaks a constraint.

    Raises:
        PipelineError: What is wrong, all of it (also a ``RuntimeError``, as upstream's).
    """
    problems = [problem for constraint in constraints for problem in problems_of(constraint, passes)]
    if problems:
        raise order_error("pass schedule constraint violated. " + "; ".join(dict.fromkeys(problems)))


def topological_sort_passes(passes: Sequence[Any], constraints: Sequence[ConstraintType]) -> list[Any]:
    """Order passes so that every constraint holds, moving no more than it must.

    Kahn's algorithm (1962) over positions, taking the pass that stood first whenever there is a choice: a list that is
    fine stays as it is, and the same pass may be in it twice. O(n² c) calls of constraints for n passes, c constraints.

    Args:
        passes: Callables, in the order the user gave.
        constraints: Rules; see :class:`PassConstraint`.

    Returns:
        A new list.

    Raises:
        PipelineError: They contradict each other; the message shows the circle (also a ``RuntimeError``).
    """
    if not constraints:
        return list(passes)
    blocks = _glue(passes, constraints)
    block_of = {position: number for number, block in enumerate(blocks) for position in block}
    followers: list[set[int]] = [set() for _ in blocks]
    for first in range(len(passes)):
        for second in range(len(passes)):
            if first == second or all(constraint(passes[first], passes[second]) for constraint in constraints):
                continue
            if block_of[first] != block_of[second]:
                followers[block_of[second]].add(block_of[first])
    order = _kahn(followers)
    if len(order) < len(blocks):
        stuck = sorted(set(range(len(blocks))) - set(order))
        raise _circle_error(passes, blocks, followers, stuck)
    return [passes[position] for number in order for position in blocks[number]]


def _kahn(followers: Sequence[set[int]]) -> list[int]:
    waiting_for = [0] * len(followers)
    for later in followers:
        for number in later:
            waiting_for[number] += 1
    ready = [number for number, count in enumerate(waiting_for) if count == 0]
    order: list[int] = []
    while ready:
        number = heapq.heappop(ready)
        order.append(number)
        for later_number in followers[number]:
            waiting_for[later_number] -= 1
            if waiting_for[later_number] == 0:
                heapq.heappush(ready, later_number)
    return order


def _glue(passes: Sequence[Any], constraints: Sequence[ConstraintType]) -> list[list[int]]:
    """Blocks of positions that move as one, in the order of their first members."""
    following: dict[int, int] = {}
    for constraint in constraints:
        for first, second in constraint.glued(passes) if isinstance(constraint, PassConstraint) else ():
            if following.setdefault(first, second) != second or first == second:
                raise order_error(f"'{pass_name(passes[first])}' cannot stand directly before two passes at once")
    heads = [position for position in range(len(passes)) if position not in following.values()]
    blocks = []
    for head in heads:
        block = [head]
        while block[-1] in following:
            block.append(following[block[-1]])
        blocks.append(block)
    if sum(map(len, blocks)) < len(passes):
        raise order_error("must_be_adjacent constraints make a circle: each pass would follow the other")
    return blocks


def _circle_error(
    passes: Sequence[Any], blocks: Sequence[Sequence[int]], followers: Sequence[set[int]], stuck: Sequence[int]
) -> PipelineError:
    inside = set(stuck)
    walk, seen = [stuck[0]], {stuck[0]: 0}
    predecessors = {number: [one for one in stuck if number in followers[one]] for number in stuck}
    while True:  # every stuck block waits for a stuck one, so going back must come round
        before = min(number for number in predecessors[walk[-1]] if number in inside)
        if before in seen:
            circle = [before, *reversed(walk[seen[before] :])]
            break
        seen[before] = len(walk)
        walk.append(before)
    told = " before ".join(f"'{pass_name(passes[blocks[number][0]])}'" for number in circle)
    involved = [passes[position] for number in stuck for position in blocks[number]]
    upstream = f"Circular dependency detected within the following passes: {involved}"
    error = order_error(f"{upstream}; {told}")
    error.args = (upstream,)  # what upstream's own tests compare
    return error


def order_error(message: str) -> PipelineError:
    """A PipelineError that ``except RuntimeError`` catches too, as upstream raises."""
    return also_as(PipelineError, RuntimeError())(message)


def is_meant(asked: Any, pass_: Any) -> bool:
    """Whether a user who writes ``asked`` (a pass, its class, its name, or what it wraps) means ``pass_``."""
    if asked is pass_ or asked is getattr(pass_, "__wrapped__", pass_):
        return True
    if isinstance(asked, str):
        return same_name(asked, pass_name(pass_))
    if isinstance(asked, type):
        return isinstance(pass_, asked)
    return bool(asked == pass_)


def _positions(asked: Any, passes: Sequence[Any]) -> list[int]:
    return [position for position, pass_ in enumerate(passes) if is_meant(asked, pass_)]


def _missing(constraint: Any, wanted: Iterable[Any], passes: Sequence[Any]) -> Iterator[str]:
    for one in wanted:
        if not _positions(one, passes):
            yield (
                f"{type(constraint).__name__} is about '{_shown(one)}', which is not in the pipeline; add it or drop "
                f"the constraint ({_there(passes)})"
            )


def _there(passes: Sequence[Any]) -> str:
    return "there are: " + (", ".join(map(pass_name, passes)) or "none")


def _shown(asked: Any) -> str:
    return asked if isinstance(asked, str) else pass_name(asked)


def _wrong_order(passes: Sequence[Any], first: int, second: int) -> str:
    return (
        f"Expected '{pass_name(passes[first])}' before '{pass_name(passes[second])}' but found "
        f"'{pass_name(passes[second])}' at index {second} and '{pass_name(passes[first])}' at index {first}"
    )
