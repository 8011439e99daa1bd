"""The terms of which patterns are made: small frozen values that say what a piece of a graph looks like.

``language.py`` has the functions that users write them with; patterns given as callables, graphs or exported programs
are compiled to them too (``compiling.py``).

Each pattern answers one question, :meth:`Pattern.expand`: *may you stand for this value, and what must then hold of its
parts?* The answer is a list of alternatives, each a list of ``(pattern, value)`` goals; an empty list is a mismatch.
"""

# ruff: noqa: D102 - role, expand, children and describe are documented once, in Pattern
from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.fx import Node, Proxy

from fxpasses.partitioners.matching.conditions import Condition, conditions_from
from fxpasses.partitioners.matching.literals import same_literal, show, show_target

if TYPE_CHECKING:
    from fxpasses.partitioners.matching.views import GraphView

__all__ = [
    "Alternative",
    "Anything",
    "Both",
    "Call",
    "Constant",
    "Either",
    "Input",
    "Items",
    "Literal",
    "Maybe",
    "Not",
    "OneOf",
    "Outputs",
    "Pattern",
    "Repeat",
    "Role",
    "Target",
    "Value",
    "Weight",
    "parts",
]

Target = Any  # a function, an OpOverload, a method's name, a module's path or a module's type
_Goal = tuple["Pattern", Any]
Alternative = Sequence[_Goal]
_MATCHED: tuple[Alternative, ...] = ((),)
_MISMATCH: tuple[Alternative, ...] = ()


class Role(enum.Enum):
    """What the match does with the graph node that a pattern stands for."""

    OWNS = "owns"  # part of the match: erased when the match is replaced
    TAKES = "takes"  # an input: stays, and may be given to the replacement
    NOTES = "notes"  # looks at a value that another pattern owns or takes


@attrs.frozen(eq=False, repr=False)
class Pattern:
    """A term of the pattern language.

    Args:
        name: Under which name a match remembers the value, and the replacement asks for it.
        conditions: What must hold of the value beside its shape as a term.
    """

    name: str | None = attrs.field(default=None, kw_only=True)
    conditions: tuple[Condition, ...] = attrs.field(default=(), kw_only=True)

    @property
    def role(self) -> Role:
        """What becomes of the node that this pattern stands for."""
        return Role.NOTES

    def expand(self, value: Any, view: GraphView) -> Sequence[Alternative]:
        """The ways in which this pattern can stand for ``value``: goals that remain; no way is a mismatch."""
        raise NotImplementedError

    def why_not(self, value: Any, view: GraphView) -> str:
        """For a value that :meth:`expand` refuses: the reason, in words."""
        return self.failed_condition(value) or f"{show(value)} is not {self.describe()}"

    def children(self) -> Iterator[Pattern]:
        """The patterns directly inside this one."""
        return iter(())

    def describe(self) -> str:
        """What this pattern looks for, in a few words."""
        return type(self).__name__.lower()

    def named(self, name: str) -> Pattern:
        """The same pattern, whose value a match remembers as ``name``."""
        return attrs.evolve(self, name=name)

    def where(self, **conditions: Any) -> Pattern:
        """The same pattern with more conditions: ``dtype``, ``shape``, ``rank``, ``device``, ``users``, ``check``."""
        return attrs.evolve(self, conditions=self.conditions + conditions_from(conditions))

    def failed_condition(self, value: Any) -> str | None:
        """The first condition that does not hold, in words."""
        return next((why for c in self.conditions if (why := c.why_not(value)) is not None), None)

    def __repr__(self) -> str:
        return f"<{self.describe()}{f' as {self.name!r}' if self.name else ''}>"

    def __or__(self, other: Pattern) -> Either:
        return Either((self, other))

    def __and__(self, other: Pattern) -> Both:
        return Both((self, other))

    def __invert__(self) -> Not:
        return Not(self)


@attrs.frozen(eq=False, repr=False)
class Anything(Pattern):
    """Any node and any literal, lists included."""

    counts: bool = attrs.field(default=True, kw_only=True)

    @property
    def role(self) -> Role:
        return Role.TAKES if self.counts else Role.NOTES

    def expand(self, value: Any, view: GraphView) -> Sequence[Alternative]:
        return _MISMATCH if self.conditions and self.failed_condition(value) else _MATCHED


@attrs.frozen(eq=False, repr=False)
class Input(Anything):
    """An input of a pattern that was traced: anything, but what takes tensors only is given no literal by a swap."""


@attrs.frozen(eq=False, repr=False)
class Value(Pattern):
    """Any value that a node of the graph computes or holds, but no literal.

    Args:
        op: Only nodes with this opcode, such as ``"placeholder"``.
    """

    op: str | None = attrs.field(default=None, kw_only=True)

    @property
    def role(self) -> Role:
        return Role.TAKES

    def expand(self, value: Any, view: GraphView) -> Sequence[Alternative]:
        if not isinstance(value, Node) or (self.op is not None and value.op != self.op):
            return _MISMATCH
        return _MISMATCH if self.conditions and self.failed_condition(value) else _MATCHED

    def describe(self) -> str:
        return f"{self.op} node" if self.op else "node"


@attrs.frozen(eq=False, repr=False)
class Literal(Pattern):
    """A Python value written into the graph: any, one of a set, or a number in a range.

    Args:
        allowed: The values it may have; empty for all.
        at_least: The smallest number allowed.
        at_most: The largest number allowed.
        within: For numbers: how far from an allowed value they may lie, relatively.
    """

    allowed: tuple[Any, ...] = ()
    at_least: float = attrs.field(default=-math.inf, kw_only=True)
    at_most: float = attrs.field(default=math.inf, kw_only=True)
    within: float = attrs.field(default=0.0, kw_only=True)

    @property
    def role(self) -> Role:
        return Role.TAKES

    def expand(self, value: Any, view: GraphView) -> Sequence[Alternative]:
        if isinstance(value, Node) or not self._allows(value):
            return _MISMATCH
        return _MISMATCH if self.conditions and self.failed_condition(value) else _MATCHED

    def _allows(self, value: Any) -> bool:
        is_bounded = self.at_least > -math.inf or self.at_most < math.inf
        if is_bounded and not (isinstance(value, int | float) and self.at_least <= value <= self.at_most):
            return False
        return not self.allowed or any(self._equals(value, wanted) for wanted in self.allowed)

    def _equals(self, value: Any, wanted: Any) -> bool:
        if self.within and isinstance(value, int | float) and isinstance(wanted, int | float):
            return math.isclose(value, wanted, rel_tol=self.within)
        return same_literal(wanted, value)

    def describe(self) -> str:
        words = []
        if self.allowed:
            words.append(" or ".join(show(each) for each in self.allowed))
        if self.at_least > -math.inf:
            words.append(f"at least {self.at_least}")
        if self.at_most < math.inf:
            words.append(f"at most {self.at_most}")
        return "literal" + (f" {' and '.join(words)}" if words else "")


@attrs.frozen(eq=False, repr=False)
class Constant(Pattern):
    """A tensor that the graph module holds (``get_attr``) and that equals ``value``.

    Args:
        value: The tensor, or a number that all of its elements equal; None for any tensor constant.
        exact: Dtype and shape must agree too; without it a 0-dimensional 1.0 is also a 1-element 1.
    """

    value: Any = None
    exact: bool = attrs.field(default=True, kw_only=True)

    @property
    def role(self) -> Role:
        return Role.TAKES

    def expand(self, value: Any, view: GraphView) -> Sequence[Alternative]:
        tensor = view.constant(value) if isinstance(value, Node) else None
        if tensor is None or not self._equals(tensor, view):
            return _MISMATCH
        return _MISMATCH if self.conditions and self.failed_condition(value) else _MATCHED

    def _equals(self, tensor: Any, view: GraphView) -> bool:
        wanted = self.value
        if wanted is None:
            return True
        if not isinstance(wanted, torch.Tensor):
            return view.all_equal(tensor, wanted)
        if self.exact and (tensor.dtype != wanted.dtype or tensor.shape != wanted.shape):
            return False
        return view.same_tensor(tensor, wanted)

    def describe(self) -> str:
        return "tensor constant" if self.value is None else f"tensor constant {show(self.value)}"


@attrs.frozen(eq=False, repr=False)
class Weight(Pattern):
    """A parameter or buffer, whatever its values: a ``get_attr``, or the input that ``torch.export`` makes of one."""

    @property
    def role(self) -> Role:
        return Role.TAKES

    def expand(self, value: Any, view: GraphView) -> Sequence[Alternative]:
        if not isinstance(value, Node) or not view.is_weight(value):
            return _MISMATCH
        return _MISMATCH if self.conditions and self.failed_condition(value) else _MATCHED

    def describe(self) -> str:
        return "parameter or buffer"


@attrs.frozen(eq=False, repr=False)
class Call(Pattern):
    """A call of one of ``targets`` whose arguments match.

    Arguments are compared by schema: a default left out equals the default written, a keyword equals a position.
    ``...`` as the last argument leaves the rest open. The first two operands of a commutative operator may be swapped.

    Args:
        targets: Functions, operators or packets, method names (``op="call_method"``), paths or types of modules
            (``op="call_module"``).
        args: Positional arguments: patterns, literals, lists of them.
        kwargs: Keyword arguments.
        op: The node's opcode.
        commutes: Try both orders of the first two operands.
        normalize: Compare by schema where the spelling differs.
        open: Arguments that the pattern does not name may have any value.
        name_contains: A node whose name holds this text is accepted whatever it calls.
    """

    targets: tuple[Target, ...]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = attrs.field(factory=dict)
    op: str = "call_function"
    commutes: bool = False
    normalize: bool = True
    open: bool = False
    name_contains: str = ""
    keys: frozenset[tuple[str, Any]] = attrs.field(init=False)
    is_variadic: bool = attrs.field(init=False)
    _types: tuple[type, ...] = attrs.field(init=False)
    _packets: frozenset[Any] = attrs.field(init=False)

    @keys.default
    def _keys(self) -> frozenset[tuple[str, Any]]:
        return frozenset((self.op, t) for t in self.targets if not isinstance(t, type))

    @is_variadic.default
    def _has_repeats(self) -> bool:
        return any(isinstance(term, Repeat) for term in self.args)

    @_types.default
    def _types_of_modules(self) -> tuple[type, ...]:
        return tuple(t for t in self.targets if isinstance(t, type)) if self.op == "call_module" else ()

    @_packets.default
    def _packets_of_ops(self) -> frozenset[Any]:
        return frozenset(t for t in self.targets if isinstance(t, torch._ops.OpOverloadPacket))

    @property
    def role(self) -> Role:
        return Role.OWNS

    @property
    def has_packets(self) -> bool:
        """Whether a target is an overload packet, which stands for each of its overloads."""
        return bool(self._packets)

    def calls(self, node: Node, view: GraphView) -> bool:
        """Whether the node calls one of the targets, arguments aside."""
        if node.op == self.op:
            target = node.target
            if (node.op, target) in self.keys:
                return True
            if self._packets and getattr(target, "overloadpacket", None) in self._packets:
                return True
            if self._types and isinstance(view.module(node), self._types):
                return True
            if self.op == "output":
                return True
        return bool(self.name_contains) and self.name_contains in node.name

    def expand(self, value: Any, view: GraphView) -> Sequence[Alternative]:
        if not isinstance(value, Node) or not self.calls(value, view):
            return _MISMATCH
        if self.conditions and self.failed_condition(value):
            return _MISMATCH
        if (pairs := view.aligned(self, value)) is None:
            return _MISMATCH
        first = _goals(pairs)
        if not self.commutes or len(pairs) < 2 or not view.commutes(value):
            return _MISMATCH if first is None else (first,)
        (left, a), (right, b), *rest = pairs
        if isinstance(left, Input) and not isinstance(b, Node) and not _takes_literal_first(value, right):
            return _MISMATCH if first is None else (first,)
        swapped = _goals([(right, a), (left, b), *rest])
        return tuple(goals for goals in (first, swapped) if goals is not None)

    def why_not(self, value: Any, view: GraphView) -> str:
        if not isinstance(value, Node):
            return f"expected {self.describe()}, found the literal {show(value)}"
        if not self.calls(value, view):
            return f"expected {self.describe()}, found {view.describe(value)}"
        if failed := self.failed_condition(value):
            return f"{value.name}: {failed}"
        pairs = view.aligned(self, value)
        if pairs is None:
            return f"{value.name}: {view.misaligned(self, value)}"
        names = view.argument_names(self, value)
        for name, (term, given) in zip(names, pairs, strict=True):
            if not _pair_up(term, given, []):
                return f"argument {name} of {value.name} is {show(given)}, the pattern has {show(term)}"
        return f"arguments of {value.name} do not match"

    def children(self) -> Iterator[Pattern]:
        for term in (*self.args, *self.kwargs.values()):
            yield from parts(term)

    def describe(self) -> str:
        names = " or ".join(show_target(self.op, t) for t in self.targets)
        return names or self.op


@attrs.frozen(eq=False, repr=False)
class Either(Pattern):
    """Any of several patterns; the first that fits is taken, the others are tried if the rest then fails."""

    options: tuple[Pattern, ...]

    def expand(self, value: Any, view: GraphView) -> Sequence[Alternative]:
        if self.conditions and self.failed_condition(value):
            return _MISMATCH
        return tuple(((option, value),) for option in self.options)

    def children(self) -> Iterator[Pattern]:
        return iter(self.options)

    def describe(self) -> str:
        return " or ".join(option.describe() for option in self.options)


@attrs.frozen(eq=False, repr=False)
class Both(Pattern):
    """All of several patterns at once."""

    demands: tuple[Pattern, ...]

    def expand(self, value: Any, view: GraphView) -> Sequence[Alternative]:
        if self.conditions and self.failed_condition(value):
            return _MISMATCH
        return (tuple((demand, value) for demand in self.demands),)

    def children(self) -> Iterator[Pattern]:
        return iter(self.demands)

    def describe(self) -> str:
        return " and ".join(demand.describe() for demand in self.demands)


@attrs.frozen(eq=False, repr=False)
class Not(Pattern):
    """A value for which ``pattern`` does not match; what it would have named stays unknown."""

    pattern: Pattern

    def expand(self, value: Any, view: GraphView) -> Sequence[Alternative]:
        return _MISMATCH if self.conditions and self.failed_condition(value) else _MATCHED

    def children(self) -> Iterator[Pattern]:
        return iter((self.pattern,))

    def describe(self) -> str:
        return f"not {self.pattern.describe()}"


@attrs.frozen(eq=False, repr=False)
class Maybe(Pattern):
    """An argument that may be left out, or be None; where it is given, ``pattern`` must match."""

    pattern: Pattern

    def expand(self, value: Any, view: GraphView) -> Sequence[Alternative]:
        if value is None:
            return _MATCHED
        return (((self.pattern, value),),)

    def children(self) -> Iterator[Pattern]:
        return iter((self.pattern,))

    def describe(self) -> str:
        return f"nothing or {self.pattern.describe()}"


@attrs.frozen(eq=False, repr=False)
class Repeat(Pattern):
    """Any number of neighbouring items of a list, each like ``pattern``.

    What the inner pattern names is remembered as a list, one entry an item.

    Args:
        pattern: What each item looks like.
        at_least: The smallest number of items.
        at_most: The largest number of items; None for no bound.
    """

    pattern: Pattern
    at_least: int = attrs.field(default=0, kw_only=True)
    at_most: int | None = attrs.field(default=None, kw_only=True)

    def expand(self, value: Any, view: GraphView) -> Sequence[Alternative]:
        return _MATCHED if self.allows(len(value)) else _MISMATCH  # the search expands the items, each in its scope

    def allows(self, count: int) -> bool:
        """Whether so many items are allowed."""
        return count >= self.at_least and (self.at_most is None or count <= self.at_most)

    def children(self) -> Iterator[Pattern]:
        return iter((self.pattern,))

    def describe(self) -> str:
        return f"items like {self.pattern.describe()}"


@attrs.frozen(eq=False, repr=False)
class Items(Pattern):
    """A list or tuple of items, some of them :class:`Repeat`."""

    items: tuple[Any, ...]

    def expand(self, value: Any, view: GraphView) -> Sequence[Alternative]:
        if not isinstance(value, list | tuple):
            return _MISMATCH
        if self.conditions and self.failed_condition(value):
            return _MISMATCH
        return tuple(
            goals for counts in self._counts(len(value)) if (goals := self._goals(tuple(value), counts)) is not None
        )

    def _counts(self, length: int) -> Iterator[tuple[int, ...]]:
        """How many items each ``Repeat`` may get, greedily for the earlier ones."""
        repeats = [item for item in self.items if isinstance(item, Repeat)]
        spare = length - (len(self.items) - len(repeats))
        if spare < 0 or (not repeats and spare):
            return
        if len(repeats) <= 1:
            splits: Iterator[tuple[int, ...]] = iter([(spare,) if repeats else ()])
        else:
            splits = _compositions(spare, len(repeats))
        for counts in splits:
            if all(repeat.allows(count) for repeat, count in zip(repeats, counts, strict=True)):
                yield counts

    def _goals(self, value: tuple[Any, ...], counts: tuple[int, ...]) -> list[_Goal] | None:
        goals: list[_Goal] = []
        position, left = 0, iter(counts)
        for item in self.items:
            if isinstance(item, Repeat):
                count = next(left)
                goals.append((item, value[position : position + count]))
                position += count
            elif _pair_up(item, value[position], goals):
                position += 1
            else:
                return None
        return goals

    def children(self) -> Iterator[Pattern]:
        for item in self.items:
            yield from parts(item)

    def describe(self) -> str:
        return f"list of {len(self.items)} items"


@attrs.frozen
class Outputs:
    """Several patterns that together make one match, and whose values the rest of the graph may use."""

    patterns: tuple[Pattern, ...]


@attrs.frozen
class OneOf:
    """Stands for one of several functions inside a pattern that is written as a callable."""

    targets: tuple[Target, ...]
    op: str = "call_function"

    @property
    def __name__(self) -> str:
        return "one_of"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """While a pattern is traced: record the choice. Otherwise: the first of the functions."""
        tracer = next((each.tracer for each in (*args, *kwargs.values()) if isinstance(each, Proxy)), None)
        if tracer is None:
            return self.targets[0](*args, **kwargs)
        return tracer.create_proxy("call_function", self, args, kwargs)


def _compositions(total: int, count: int) -> Iterator[tuple[int, ...]]:
    """All ways to write ``total`` as an ordered sum of ``count`` numbers, the first as large as possible first."""
    for bars in combinations(range(total + count - 1), count - 1):
        edges = (-1, *bars, total + count - 1)
        yield tuple(reversed([b - a - 1 for a, b in pairwise(edges)]))


def _takes_literal_first(node: Node, second: Any) -> bool:
    """Whether a swap may bring a literal to the front: ``3 + x`` is spelled so, ``torch.add(3, x)`` cannot be.

    Nor if both operands are inputs: then it would be the same match, with a number where there was a tensor.
    """
    return getattr(node.target, "__module__", "") == "_operator" and not isinstance(second, Input)


def _goals(pairs: Sequence[tuple[Any, Any]]) -> list[_Goal] | None:
    goals: list[_Goal] = []
    for term, value in pairs:
        if not _pair_up(term, value, goals):
            return None
    return goals


def _pair_up(term: Any, value: Any, goals: list[_Goal]) -> bool:
    """Compare a term with a value as far as literals go; what patterns must decide is appended to ``goals``."""
    if isinstance(term, Pattern):
        goals.append((term, value))
        return True
    if isinstance(term, list | tuple):
        if not isinstance(value, list | tuple) or len(term) != len(value):
            return False
        return all(_pair_up(t, v, goals) for t, v in zip(term, value, strict=True))
    if isinstance(term, dict):
        if not isinstance(value, dict) or term.keys() != value.keys():
            return False
        return all(_pair_up(t, value[key], goals) for key, t in term.items())
    if isinstance(term, slice):
        return isinstance(value, slice) and _pair_up(_bounds(term), _bounds(value), goals)
    return not isinstance(value, Node) and same_literal(term, value)


def _bounds(piece: slice) -> tuple[Any, Any, Any]:
    return (piece.start, piece.stop, piece.step)


def parts(term: Any) -> Iterator[Pattern]:
    """The patterns inside a term, from left to right, without going into them."""
    if isinstance(term, Pattern):
        yield term
    elif isinstance(term, list | tuple):
        for item in term:
            yield from parts(item)
    elif isinstance(term, dict):
        for item in term.values():
            yield from parts(item)
    elif isinstance(term, slice):
        yield from parts(_bounds(term))
