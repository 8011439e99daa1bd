"""Sizes that differ from micro-batch to micro-batch: told by symbols, and read off the tensors that arrive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import sympy
from torch import Tensor

from fxpasses.partitioners.tensor_sizes import concrete_size

__all__ = [
    "Size",
    "Symbols",
    "bind_sizes",
    "hints_of",
    "known_symbols",
    "shape_text",
    "size_of",
    "sizes_at",
    "symbols_in",
]

Size: TypeAlias = int | sympy.Expr
Symbols: TypeAlias = Mapping[sympy.Symbol, int]


def size_of(size: Any) -> Size:
    """A recorded size: a number, or an expression in symbols."""
    if isinstance(size, int):
        return int(size)
    expression = size.node.expr
    return int(expression) if expression.is_Integer else expression


def symbols_in(sizes: Iterable[Size]) -> dict[sympy.Symbol, None]:
    """The symbols in some sizes, in their order."""
    found: dict[sympy.Symbol, None] = {}
    for size in sizes:
        if not isinstance(size, int):
            found.update(dict.fromkeys(sorted(size.free_symbols, key=str)))
    return found


def known_symbols(shape: Sequence[Size], besides: Sequence[int] = ()) -> dict[sympy.Symbol, None]:
    """The symbols that a tensor of this shape tells: those that are a size of their own."""
    told = [size for dimension, size in enumerate(shape) if dimension not in besides]
    return {size: None for size in told if isinstance(size, sympy.Symbol)}


def bind_sizes(symbols: dict[sympy.Symbol, int], shape: Sequence[Size], tensor: Tensor) -> None:
    """Note what the shape of a tensor tells about symbols."""
    for expected, found in zip(shape, tensor.shape, strict=False):
        if isinstance(expected, sympy.Symbol):
            symbols.setdefault(expected, int(found))


def sizes_at(sizes: Sequence[Size], symbols: Symbols) -> tuple[int, ...]:
    """Sizes as numbers; a size whose symbols are not all known is -1."""
    return tuple(size if isinstance(size, int) else _value(size, symbols) for size in sizes)


def _value(size: sympy.Expr, symbols: Symbols) -> int:
    if isinstance(size, sympy.Symbol):
        return symbols.get(size, -1)
    value = size.xreplace({symbol: sympy.Integer(number) for symbol, number in symbols.items()})
    return int(value) if not value.free_symbols else -1


def hints_of(sizes: Iterable[Any]) -> dict[sympy.Symbol, int]:
    """The sizes that symbols had when the model was captured."""
    hints: dict[sympy.Symbol, int] = {}
    for size in sizes:
        expected = None if isinstance(size, int) else size_of(size)
        if isinstance(expected, sympy.Symbol):
            hints.setdefault(expected, concrete_size(size))
    return hints


def shape_text(shape: Sequence[Size]) -> str:
    """A shape for messages: ``(s0, 4)``."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
