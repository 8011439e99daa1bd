"""How large symbols are: as in the example inputs, at their bound, or as what a tensor with so many elements allows.

Of a size that depends on data torch records a bound where that is a number. That ``nonzero`` finds no more elements
than there are is told by the graph alone, and so are the sizes that ``torch._check`` compares: a walk notes both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import sympy
import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from fxpasses.metadata import value_of
from fxpasses.values import nested_graph_modules, shape_env_of
from fxpasses.values.recorded_values import value_leaves

__all__ = ["Sizes", "largest", "note_limits"]

Sizes = Literal["hint", "upper"]
"""How a symbolic size counts: as in the example inputs, or as large as its constraints allow."""

UNKNOWN_SIZE = 4096
"""What a symbol without any bound counts as."""

_NO_BOUND = 2**40
"""Bounds from here on are those of the integers."""

aten = torch.ops.aten


class _Limit(NamedTuple):
    """How large a size that depends on data is at most, with the example inputs and with the largest ones."""

    hint: int
    upper: int


_LIMITS: WeakKeyDictionary[ShapeEnv, dict[sympy.Symbol, _Limit]] = WeakKeyDictionary()
"""A size does not know the graph that it is of: who walks the graph notes here what that says."""


def largest(expression: sympy.Expr, shape_env: ShapeEnv, sizes: Sizes) -> int | None:
    """The most that an expression may be, with each of its symbols between its bounds.

    Symbols of the example inputs are what they are there for ``sizes="hint"``. One without a bound counts as 4,096, or
    as in the example inputs if that is more.

    Returns:
        None where that is no number.
    """
    ranges = {symbol: _range(symbol, shape_env, sizes) for symbol in expression.free_symbols}
    upper = bound_sympy(expression, ranges).upper
    return int(upper) if _is_number(upper) else None


def _range(symbol: sympy.Symbol, shape_env: ShapeEnv, sizes: Sizes) -> ValueRanges[Any]:
    hint = shape_env.backed_var_to_val.get(symbol)
    if hint is not None and sizes == "hint":
        return ValueRanges(hint, hint)
    known = shape_env.var_to_range.get(symbol)
    bounds = []
    if known is not None and _is_number(known.upper) and known.upper < _NO_BOUND:
        bounds.append(int(known.upper))
    if (limit := _LIMITS.get(shape_env, {}).get(symbol)) is not None:
        bounds.append(getattr(limit, sizes))
    upper = min(bounds, default=max(UNKNOWN_SIZE, 0 if hint is None else int(hint)))
    lower = int(known.lower) if known is not None and _is_number(known.lower) else 0
    return ValueRanges(min(lower, upper), upper)


def _is_number(bound: sympy.Expr) -> bool:
    """Whether there is a bound: the infinity of the integers calls itself finite."""
    return bool(bound.is_finite) and bound not in (int_oo, -int_oo)


# ---------------------------------------------------------------------------------------------------------------------
# Sizes that depend on data
# ---------------------------------------------------------------------------------------------------------------------


def note_limits(graph_module: GraphModule) -> None:
    """Note how large sizes that depend on data may be, in a graph and in its bodies. O(nodes)."""
    for inner in nested_graph_modules(graph_module):
        for node in inner.graph.nodes:
            for symbol, most, shape_env in (*_found(node), *_checked(node)):
                hint, upper = largest(most, shape_env, "hint"), largest(most, shape_env, "upper")
                if hint is not None and upper is not None:
                    known = _LIMITS.setdefault(shape_env, {})
                    before = known.get(symbol, _Limit(hint, upper))
                    known[symbol] = _Limit(min(before.hint, hint), min(before.upper, upper))


def _found(node: Node) -> Iterator[tuple[sympy.Symbol, sympy.Expr, ShapeEnv]]:
    """What picks elements of a tensor picks no more than there are."""
    if "unbacked_bindings" not in node.meta or not isinstance(node.target, torch._ops.OpOverload):
        return
    shapes = [tuple(map(_expression, sizes)) for sizes in _searched(node)]
    shape_env = next(filter(None, map(shape_env_of, value_leaves(value_of(node)))), None)
    if shapes and shape_env is not None:
        together = zip_longest(*map(reversed, shapes), fillvalue=sympy.S.One)
        most = math.prod((sympy.Max(*sizes) for sizes in together), start=sympy.S.One)
        yield from ((symbol, most, shape_env) for symbol in node.meta["unbacked_bindings"])


def _searched(node: Node) -> Sequence[Sequence[Any]]:
    """The shapes of the tensors among which an operator looks for elements; several are repeated to one shape."""
    given = list(map(value_of, node.all_input_nodes))
    if node.target is aten.index.Tensor:
        masks = (each for each in given[1:] if isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8))
        return [each.shape for each in masks]
    name = node.target._schema.name if isinstance(node.target, torch._ops.OpOverload) else ""
    if (along := _along(node, name)) is not None:
        return [given[0].shape[along : along + 1 or None]]
    return [each.shape for each in given[: _SEARCHED.get(name, 0)] if isinstance(each, Tensor)]


def _along(node: Node, name: str) -> int | None:
    """The dimension of which an operator picks rows, if it does."""
    if (at := _DIMENSION_AT.get(name)) is None:
        return None
    along = node.args[at] if at < len(node.args) else node.kwargs.get("dim")
    return along if isinstance(along, int) else None


_DIMENSION_AT: Mapping[str, int] = {"aten::unique_dim": 1, "aten::unique_consecutive": 3}
"""Where the dimension stands whose rows are picked; without one they are elements."""

_SEARCHED: Mapping[str, int] = {
    **dict.fromkeys(("aten::nonzero", "aten::nonzero_numpy", "aten::argwhere"), 1),
    **dict.fromkeys(("aten::_unique", "aten::_unique2", "aten::unique_consecutive"), 1),
    "aten::masked_select": 2,
}
"""In how many of its operands an operator looks for elements."""


def _checked(node: Node) -> Iterator[tuple[sympy.Symbol, sympy.Expr, ShapeEnv]]:
    """What was checked to be less than another size: ``torch._check(n <= x.shape[0])``."""
    if node.target is not aten._assert_scalar.default or not isinstance(node.args[0], Node):
        return
    checked = value_of(node.args[0])
    if not isinstance(checked, torch.SymBool):
        return
    told = checked.node.expr
    if not isinstance(told, (sympy.StrictLessThan, sympy.LessThan, sympy.StrictGreaterThan, sympy.GreaterThan)):
        return
    less, more = told.lts, told.gts
    if isinstance(less, sympy.Symbol) and less not in more.free_symbols:
        strictly = 1 if isinstance(told, (sympy.StrictLessThan, sympy.StrictGreaterThan)) else 0
        yield less, more - strictly, checked.node.shape_env


def _expression(size: Any) -> sympy.Expr:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)
