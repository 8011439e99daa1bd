"""The pattern language: functions with which a pattern reads like the code that it finds.

``call(torch.add, anything("x"), literal("c"))`` stands for a sum with some literal. The same object used in two places
means the same value in both; a name makes the value available to filters and to the replacement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fxpasses.errors import PatternError
from fxpasses.partitioners.matching.conditions import conditions_from, names_no_method
from fxpasses.partitioners.matching.terms import (
    Anything,
    Both,
    Call,
    Constant,
    Either,
    Items,
    Literal,
    Maybe,
    Not,
    OneOf,
    Outputs,
    Pattern,
    Repeat,
    Target,
    Value,
    Weight,
)

__all__ = [
    "anything",
    "both",
    "call",
    "call_method",
    "call_module",
    "constant",
    "either",
    "literal",
    "maybe",
    "not_",
    "one_of",
    "outputs",
    "repeat",
    "value",
    "weight",
]


def _lists_with_repeats(term: Any) -> Any:
    """Wrap each list that holds a ``Repeat``, because its length is not fixed."""
    if isinstance(term, list | tuple):
        items = tuple(_lists_with_repeats(item) for item in term)
        return Items(items) if any(isinstance(item, Repeat) for item in items) else items
    if isinstance(term, dict):
        return {key: _lists_with_repeats(item) for key, item in term.items()}
    return term


def _make_call(op: str, targets: Sequence[Target], args: Sequence[Any], kwargs: Mapping[str, Any], **rest: Any) -> Call:
    if not targets:
        raise PatternError("a call pattern needs at least one target")
    is_open = bool(args) and args[-1] is Ellipsis
    args = tuple(args[:-1] if is_open else args)
    if any(isinstance(each, OneOf) for each in targets):
        targets = tuple(t for each in targets for t in (each.targets if isinstance(each, OneOf) else (each,)))
    return Call(
        tuple(targets),
        tuple(_lists_with_repeats(a) if not isinstance(a, Repeat) else a for a in args),
        {key: _lists_with_repeats(a) for key, a in kwargs.items()},
        op=op,
        open=is_open,
        **rest,
    )


def _split_targets(target: Any) -> tuple[Target, ...]:
    return tuple(target) if isinstance(target, list | tuple | set | frozenset) else (target,)


def call(target: Target, *args: Any, commutes: bool = True, **kwargs: Any) -> Call:
    """A call of a function or operator (or of one of several, given as a list).

    >>> call([torch.reshape, torch.flatten], value("x"), ...)
    <reshape or flatten>

    Args:
        target: The function, ``OpOverload``, ``OpOverloadPacket`` (any overload), or a list of them.
        args: Patterns and literals; ``...`` at the end leaves the rest of the arguments open.
        commutes: Also try swapped operands, where the operator allows it.
        kwargs: Keyword arguments.

    Raises:
        PatternError: A target that cannot be called.
    """
    targets = _split_targets(target)
    for each in targets:
        if not callable(each):
            raise PatternError(f"call(): {each!r} is not a function or operator; use call_method for a method's name")
    return _make_call("call_function", targets, args, kwargs, commutes=commutes)


def call_method(target: str | Sequence[str], *args: Any, commutes: bool = True, **kwargs: Any) -> Call:
    """A call of a tensor's method (or of one of several), ``self`` being the first argument.

    Raises:
        PatternError: A name that is no method of a tensor.
    """
    targets = _split_targets(target)
    for each in targets:
        if names_no_method(each):
            raise PatternError(f"call_method(): a tensor has no method {each!r}")
    return _make_call("call_method", targets, args, kwargs, commutes=commutes)


def call_module(kind: type | str | Sequence[type | str], *args: Any, **kwargs: Any) -> Call:
    """A call of a submodule, by its type (subclasses included) or by its path.

    Raises:
        PatternError: Neither a module type nor a path.
    """
    targets = _split_targets(kind)
    for each in targets:
        if not isinstance(each, str) and not (isinstance(each, type) and issubclass(each, torch.nn.Module)):
            raise PatternError(f"call_module(): {each!r} is neither a module type nor a path")
    return _make_call("call_module", targets, args, kwargs)


def anything(name: str | None = None, **conditions: Any) -> Anything:
    """Any node or literal; conditions as in :meth:`Pattern.where`."""
    return Anything(name=name, conditions=conditions_from(conditions))


def value(name: str | None = None, *, op: str | None = None, **conditions: Any) -> Value:
    """Any value that a node holds; conditions as in :meth:`Pattern.where`."""
    return Value(name=name, op=op, conditions=conditions_from(conditions))


def literal(
    name: str | None = None,
    *,
    one_of: Sequence[Any] | set[Any] = (),
    at_least: float = -math.inf,
    at_most: float = math.inf,
    within: float = 0.0,
    check: Callable[[Any], bool] | None = None,
) -> Literal:
    """A literal: any, one of a set, or in a range; a name makes it available to the replacement."""
    conditions = conditions_from({"check": check} if check else {})
    allowed = tuple(sorted(one_of, key=repr)) if isinstance(one_of, set | frozenset) else tuple(one_of)
    return Literal(allowed, name=name, at_least=at_least, at_most=at_most, within=within, conditions=conditions)


def constant(equal_to: Any = None, name: str | None = None, *, exact: bool = True, **conditions: Any) -> Constant:
    """A tensor held by the graph module, equal to a tensor or everywhere equal to a number."""
    return Constant(equal_to, name=name, exact=exact, conditions=conditions_from(conditions))


def weight(name: str | None = None, **conditions: Any) -> Weight:
    """A parameter or buffer, whatever its values."""
    return Weight(name=name, conditions=conditions_from(conditions))


def either(*options: Pattern, name: str | None = None) -> Either:
    """Any of several patterns.

    Raises:
        PatternError: Nothing to choose from.
    """
    if not options:
        raise PatternError("either() needs at least one pattern")
    return Either(tuple(_as_pattern(option) for option in options), name=name)


def both(*demands: Pattern, name: str | None = None) -> Both:
    """All of several patterns at once.

    Raises:
        PatternError: No pattern is given.
    """
    if not demands:
        raise PatternError("both() needs at least one pattern")
    return Both(tuple(_as_pattern(demand) for demand in demands), name=name)


def not_(pattern: Pattern, name: str | None = None) -> Not:
    """A value that does not match."""
    return Not(_as_pattern(pattern), name=name)


def maybe(pattern: Any) -> Maybe:
    """An argument that may be left out or None."""
    return Maybe(_as_pattern(pattern))


def repeat(pattern: Any, *, at_least: int = 0, at_most: int | None = None, name: str | None = None) -> Repeat:
    """Any number of neighbouring items in a list or among the positional arguments.

    Raises:
        PatternError: Bounds that no number satisfies.
    """
    if at_least < 0 or (at_most is not None and at_most < at_least):
        raise PatternError(f"repeat(): no number is at least {at_least} and at most {at_most}")
    return Repeat(_as_pattern(pattern), at_least=at_least, at_most=at_most, name=name)


def outputs(*patterns: Pattern) -> Outputs:
    """Several results of one pattern; those that share no value are disconnected anchors.

    Raises:
        PatternError: No pattern is given.
    """
    if not patterns:
        raise PatternError("outputs() needs at least one pattern")
    return Outputs(tuple(_as_pattern(pattern) for pattern in patterns))


def one_of(*targets: Target) -> OneOf:
    """One of several functions, for use inside a callable pattern: ``one_of(torch.reshape, torch.flatten)(x, n)``.

    Raises:
        PatternError: Nothing to choose from, or something that cannot be called.
    """
    if not targets or not all(callable(target) for target in targets):
        raise PatternError(f"one_of() takes functions or operators, got {targets!r}")
    return OneOf(targets)


def _as_pattern(term: Any) -> Pattern:
    if isinstance(term, Pattern):
        return term
    if isinstance(term, list | tuple):
        return Items(tuple(_lists_with_repeats(item) for item in term))
    return Literal((term,))
