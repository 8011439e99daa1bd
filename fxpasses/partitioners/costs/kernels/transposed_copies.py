"""Copies of matrices that lie by their columns: torch's kernel on the CPU goes through a tile of its own."""

from __future__ import annotations

from torch import Tensor

from fxpasses.partitioners.tensor_sizes import concrete_size

__all__ = ["TILE_ELEMENTS", "tile_bytes"]

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
