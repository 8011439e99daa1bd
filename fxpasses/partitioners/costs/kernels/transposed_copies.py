"""Copies of matrices that lie by their columns: torch's kernel on the CPU goes through a tile of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fxpasses.partitioners.tensor_sizes import concrete_size

__all__ = ["COPIED_INTO", "TILE_ELEMENTS", "copied_first", "tile_bytes"]

aten = torch.ops.aten

_MATRIX = 2
"""Dimensions of one."""

TILE_ELEMENTS = 60 * 60
"""Those of a tile; smaller matrices are copied without."""


def tile_bytes(source: Tensor) -> int:
    """What a dense copy of a tensor in the same type goes through: nothing but for a matrix by its columns."""
    if source.dim() != 2:  # rows and columns
        return 0
    rows, columns = map(concrete_size, source.shape)
    down, right = map(concrete_size, source.stride())
    is_by_columns = down == 1 and right == rows and rows * columns >= TILE_ELEMENTS
    return TILE_ELEMENTS * source.element_size() if is_by_columns else 0


def copied_first(args: Sequence[Any], result: Tensor) -> int:
    """The tile of operators that write to a dense copy of their first operand."""
    return _tile_into(args[0], result) if args[0].shape == result.shape else 0


def _tile_into(source: Tensor, rows: Tensor) -> int:
    """The tile through which a matrix is copied into dense rows of another one."""
    is_dense = source.dim() == rows.dim() == _MATRIX and rows.is_contiguous() and source.dtype == rows.dtype
    return tile_bytes(source) if is_dense and source.shape[1] == rows.shape[1] else 0


def _of_a_slice(args: Sequence[Any], result: Tensor) -> int:
    """Into rows that follow each other."""
    along, step = args[2], args[5]
    return _tile_into(args[0], result) if along % max(1, result.dim()) == 0 and step == 1 else 0


def _into_a_slice(args: Sequence[Any], result: Tensor) -> int:
    """The same, of a copy."""
    given: Sequence[Any] = args[2:]
    along, _begin, _end, step = [*given, *_DEFAULTS[len(given) :]]
    return _tile_into(args[1], result) if along % max(1, result.dim()) == 0 and step == 1 else 0


def _padded(args: Sequence[Any], result: Tensor) -> int:
    """The same, between rows."""
    return _tile_into(args[0], result)


_DEFAULTS: Sequence[Any] = (0, None, None, 1)
"""Along which dimension a slice is, from where to where, and in which steps."""

COPIED_INTO: Mapping[Any, Callable[[Sequence[Any], Any], int]] = MappingProxyType(
    {
        aten.slice_backward.default: _of_a_slice,
        aten.slice_scatter.default: _into_a_slice,
        aten.constant_pad_nd.default: _padded,
        **dict.fromkeys((aten.masked_fill.Scalar, aten.masked_fill.Tensor, aten.index_copy.default), copied_first),
    }
)
"""Operators that only copy: bytes by their operands and their result."""
