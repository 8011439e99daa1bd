"""What one call does, told in its own operands: which it writes, what it draws, what it shows to the world.

This file holds the words for it (:class:`CallEffects`) and where users say more (:class:`Registry`). Operators are read
in :mod:`fxpasses.effects.operators`, Python callables in :mod:`fxpasses.effects.purity`, modules and graphs that are
called in :mod:`fxpasses.effects.bodies`; :mod:`fxpasses.effects.analysis` puts the answers for a whole graph together.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import attrs
import torch
from torch.fx import Node

__all__ = [
    "NO_TENSOR",
    "NO_TENSOR_RULE",
    "PLAIN",
    "PLAIN_RULE",
    "SHAPE_ONLY",
    "SHAPE_RULE",
    "CallEffects",
    "Constant",
    "RegionKind",
    "Registry",
    "Rule",
    "aliasing_rule",
    "flat_nodes",
    "is_off",
    "name_of",
    "names_of",
    "opaque",
    "words",
]


class RegionKind(enum.Enum):
    """The kinds of state that a marker switches for every node behind it."""

    AUTOCAST = "autocast"
    GRAD_MODE = "grad mode"
    INFERENCE_MODE = "inference mode"
    EFFECT_TOKEN = "effect token"
    GLOBAL_STATE = "global state"

    @property
    def is_barrier(self) -> bool:
        """Whether no compute node may cross a marker of this kind; tokens order by data instead."""
        return self is not RegionKind.EFFECT_TOKEN


@attrs.frozen(slots=True)
class CallEffects:
    """What one call does to its operands and to the world.

    Attributes:
        reads: Operands whose contents are read; None means all of them.
        writes: Operands whose contents change.
        returns: How many tensors come back; 0 for none, 1 also for a list of unknown length.
        aliases: For each of the returns, the operands it may share memory with (missing entries: fresh memory).
        state_reads: Tensors beside the operands that are read, such as the parameters of a called module.
        state_writes: Tensors beside the operands that change, such as running statistics.
        state_aliases: For each of the returns, the tensors beside the operands that it may share memory with.
        random: Draws from a random number generator.
        world: Has an effect that no value shows: an assert, a print, a collective.
        region: The kind of state it switches, if it is a marker.
        opens: For a marker: True if it opens a region, False if it closes one.
        changes_shape: Changes the shape or strides of an operand in place (``t_``, ``resize_``).
        looks_only: Reads shapes and strides but no contents, as views do.
        guards: Operands whose symbols an assertion constrains.
        mixes: May make any two of the operands it writes share memory.
        is_known: Somebody told what it does; else it is taken to do anything.
        reason: Why it is not pure, in a few words; "" if it is pure.
    """

    reads: tuple[Node, ...] | None = None
    writes: tuple[Node, ...] = ()
    returns: int = 1
    aliases: tuple[tuple[Node, ...], ...] = ()
    state_reads: tuple[torch.Tensor, ...] = ()
    state_writes: tuple[torch.Tensor, ...] = ()
    state_aliases: tuple[tuple[torch.Tensor, ...], ...] = ()
    random: bool = False
    world: bool = False
    region: RegionKind | None = None
    opens: bool = True
    changes_shape: bool = False
    looks_only: bool = False
    guards: tuple[Node, ...] = ()
    mixes: bool = False
    is_known: bool = True
    reason: str = ""

    @property
    def is_pure(self) -> bool:
        """Whether the call only computes its result."""
        return not (self.writes or self.state_writes or self.random or self.world or self.region)


PLAIN = CallEffects()
"""Reads all operands, gives one fresh result."""

NO_TENSOR = CallEffects(returns=0)
"""Reads all operands, gives something that holds no memory (a number, a shape)."""

SHAPE_ONLY = CallEffects(returns=0, looks_only=True)
"""Asks an operand for its shape, strides, type or device."""

Rule = Callable[[Node], CallEffects]
TargetT = TypeVar("TargetT")


def flat_nodes(value: Any) -> Iterator[Node]:
    """The nodes in an argument, however deep in lists, tuples, dicts and slices."""
    if isinstance(value, Node):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from flat_nodes(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from flat_nodes(item)
    elif isinstance(value, slice):
        yield from flat_nodes((value.start, value.stop, value.step))


def opaque(node: Node, reason: str, *, state: Iterable[torch.Tensor] = ()) -> CallEffects:
    """The answer for a call that nobody can look into: it may do anything to what it can reach."""
    operands = tuple(node.all_input_nodes)
    tensors = tuple(state)
    return CallEffects(
        reads=operands,
        writes=operands,
        aliases=(operands,),
        state_reads=tensors,
        state_writes=tensors,
        state_aliases=(tensors,),
        random=True,
        world=True,
        mixes=True,
        is_known=False,
        reason=reason,
    )


class Registry:
    """What users say about targets that the schemas and tables do not know.

    A target is a callable, an operator, a method name (for ``call_method``) or a module class (for ``call_module``).

    >>> registry = Registry()
    >>> @registry.pure
    ... def my_kernel(x):
    ...     return x + 1
    >>> registry.rule_for(my_kernel) is not None
    True
    """

    def __init__(self, parent: Registry | None = None) -> None:
        self._rules: dict[Any, Rule] = {}
        self._parent = parent

    def pure(self, target: TargetT, *, may_alias: bool = False) -> TargetT:
        """Declare that calls of ``target`` only compute their result; usable as a decorator.

        Args:
            target: What is called.
            may_alias: Whether the result may share memory with an operand, as a view does.
        """
        self._rules[target] = aliasing_rule if may_alias else PLAIN_RULE
        return target

    def effects(self, target: Any, rule: Rule | None = None) -> Any:
        """Declare what calls of ``target`` do: ``rule`` takes the node and answers with :class:`CallEffects`.

        Without ``rule`` it is a decorator for the rule.
        """
        if rule is None:
            return functools.partial(self._decorate, target)
        self._rules[target] = rule
        return rule

    def _decorate(self, target: Any, rule: Rule) -> Rule:
        self._rules[target] = rule
        return rule

    def forget(self, target: Any) -> None:
        """Take back what was declared for ``target``."""
        self._rules.pop(target, None)

    def rule_for(self, target: Any) -> Rule | None:
        """The rule declared for ``target``, here or in the parent registry."""
        try:
            rule = self._rules.get(target)
        except TypeError:  # an unhashable callable object
            return None
        if rule is None and self._parent is not None:
            return self._parent.rule_for(target)
        return rule


@attrs.frozen(slots=True)
class Constant:
    """A rule that gives the same answer for every call."""

    always: CallEffects

    def __call__(self, _node: Node) -> CallEffects:
        """Give the answer."""
        return self.always


PLAIN_RULE = Constant(PLAIN)
NO_TENSOR_RULE = Constant(NO_TENSOR)
SHAPE_RULE = Constant(SHAPE_ONLY)


def aliasing_rule(node: Node) -> CallEffects:
    """The rule of what may hand back any of its operands."""
    return CallEffects(aliases=(tuple(node.all_input_nodes),))


def name_of(target: Any) -> str:
    """The short name of a target, for messages and tables."""
    return target if isinstance(target, str) else getattr(target, "__name__", None) or str(target)


def names_of(nodes: Iterable[Node]) -> str:
    """The names of nodes, for messages."""
    return ", ".join(node.name for node in nodes)


def words(text: str) -> frozenset[str]:
    """A table of names, written as text."""
    return frozenset(text.split())


def is_off(value: Any) -> bool:
    """Whether a switch or a probability says no; a value that the graph computes may say yes."""
    return value is False or (isinstance(value, (int, float)) and value == 0)
