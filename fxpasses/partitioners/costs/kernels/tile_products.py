"""What products in bfloat16 lay out on processors with AMX, which multiply tiles of 16 rows of 64 bytes each.

Tiles of the right operand hold pairs of rows, so it is always laid out: as a whole, block by block of the sums, or only
so many columns as are computed at once. The left operand is laid out where it lies by its columns, else only what is
left of its last tile. Which of these oneDNN takes depends on sizes, and on caches; where it varies, the larger counts.

Sizes agree with what torch's allocator was asked for, with one to eight threads.
"""

from __future__ import annotations

import attrs
import torch

from fxpasses.partitioners.costs.kernels.processor_blocks import ALIGNMENT, round_up

__all__ = ["FEWEST_PRODUCTS", "TileProduct"]

_ELEMENT, _FLOAT = 2, 4
_PAIRS, _COLUMNS = 32, 64
"""A tile has so many numbers in a row; so many columns are computed at once."""
_ROWS = 256
"""The most rows of the left operand that are laid out at once."""
_ROW_BLOCKS = ((64, 16), (128, 128))
"""Up to how many rows there are, they are laid out in blocks of so many."""
_ALIKE, _STEPS = 512, 16
"""Rows so far apart share places in caches; numbers for each step where a tile is not full."""
_LEFT_DEPTH, _RIGHT_DEPTH = 2048, 4096
"""Up to so many products are added up at once, of what is laid out of each operand."""
_MANY = 640
"""Of so many rows on the right operand is laid out as a whole, as far as it fits."""
_LARGEST = 2048 * 1024
"""Bytes of the right operand that fit into a cache with all the rest."""
_PADDED = 26
"""Rows that are padded at once where many products do not fill their last tile."""
_FLAT, _DEEP, _DEEPER = 2, 600, 960
"""Up to so many products, and from so many on, sums of many rows, or of all, are kept between blocks."""
_TILE, _TILE_ROWS = 1024, 16
"""Bytes and rows of a tile."""
FEWEST_PRODUCTS = 16**3
"""Products with fewer multiplications are done by torch itself."""


@attrs.frozen(kw_only=True)
class TileProduct:
    """A product of ``count`` matrices of ``rows`` by ``depth`` with as many of ``depth`` by ``columns``.

    Args:
        count: How many matrices there are; 0 for a product that is no batch.
        rows: Of the left operand.
        depth: How many products are added up for each number.
        columns: Of the right operand.
        left_by_columns: How the left operand lies.
        right_by_columns: How the right one does.
    """

    count: int = 0
    rows: int
    depth: int
    columns: int
    left_by_columns: bool = False
    right_by_columns: bool = False

    def scratch_bytes(self) -> int:
        """What all threads have."""
        if max(1, self.count) * self.rows * self.depth * self.columns <= FEWEST_PRODUCTS:
            return 0
        return torch.get_num_threads() * (self._left() + self._right() + self._sums() + self._tiles())

    @property
    def _padded(self) -> int:
        """The depth in whole tiles."""
        is_whole = self.left_by_columns or self.depth % _PAIRS == 0 or self.depth < 2 * _PAIRS
        return round_up(self.depth, _PAIRS if is_whole else 2 * _PAIRS)

    def _left(self) -> int:
        """A last tile that is not full has a step of its own; rows that are powers of two apart are moved apart."""
        if not self.left_by_columns:
            is_moved = self.depth % _PAIRS != 0 or (self.depth % _ALIKE == 0 and self._takes_few_columns())
            most = _MANY if self.depth % _PAIRS == 0 else _ROWS
            moved = min(self.rows, most) * 2 * _PAIRS * _ELEMENT if is_moved else 0
            return moved + (_PADDED * self.depth * _ELEMENT if self._is_deep_and_uneven(_ROWS) else 0)
        block = next((block for most, block in _ROW_BLOCKS if self.rows <= most), _ROWS)
        rows = min(round_up(self.rows, block), _ROWS)
        has_rest = self.depth % _PAIRS != 0 if self.depth > _PAIRS else self.depth % 2 != 0
        rest = rows * _PAIRS + _STEPS * self.depth if has_rest or self.depth % _ALIKE == 0 else 0
        if has_rest:
            rest += 3 * min(rows, _COLUMNS) * _PAIRS
        together = self._padded if self.columns == 1 else min(self._padded, _LEFT_DEPTH)
        return (rows * together + rest) * _ELEMENT

    def _is_deep_and_uneven(self, least: int) -> bool:
        """Whether a last tile is not full, of so many products."""
        return self.depth % _PAIRS != 0 and self.depth >= least and 1 not in (self.rows, self.columns)

    def _right(self) -> int:
        if 1 in (self.rows, self.columns):
            return self._padded * _COLUMNS * _ELEMENT
        if self.left_by_columns:
            columns = _PAIRS if self._is_one_block() and torch.get_num_threads() > 1 else _COLUMNS
            return min(self._padded, _RIGHT_DEPTH) * columns * _ELEMENT
        if self._takes_few_columns():
            return self._padded * (_COLUMNS if self.depth >= _LEFT_DEPTH else _PAIRS) * _ELEMENT
        return min(self._padded * self._columns_of_a_thread() * _ELEMENT, _LARGEST)

    def _takes_few_columns(self) -> bool:
        """Whether the right operand lies as tiles are read and is passed once: there are more columns than rows."""
        is_wide = self.rows * torch.get_num_threads() < self.columns
        has_many = self.rows > _MANY or (self.rows >= _ALIKE - _PAIRS and self.depth >= _LEFT_DEPTH)
        return self.right_by_columns and is_wide and self.depth > _PAIRS and not self.count and not has_many

    def _columns_of_a_thread(self) -> int:
        """Threads share columns, or rows where there are many: then each lays out the whole right operand."""
        threads = torch.get_num_threads()
        has_many = self.rows >= (1.5 if threads == 2 else 1) * self.columns
        if threads == 1 or self.count or has_many or self.depth <= _PAIRS:
            return round_up(self.columns, _PAIRS)
        return round_up(-(-self.columns // threads), _PAIRS if self.columns <= _COLUMNS else _COLUMNS)

    def _is_one_block(self) -> bool:
        """Whether threads can share nothing but the columns of one block."""
        return not self.count and max(self.rows, self.depth, self.columns) <= _COLUMNS and self.columns > _PAIRS

    def _tiles(self) -> int:
        """The tiles of sums, and more where some are not full."""
        if self.depth % _PAIRS and not self.left_by_columns:
            return 8 * _TILE
        is_narrow = self._takes_few_columns() or self._columns_of_a_thread() <= _PAIRS
        if not self.left_by_columns and 1 < self.rows <= _TILE_ROWS and is_narrow:
            return 3 * _TILE + ALIGNMENT
        return (5 if self.columns <= _COLUMNS or self.left_by_columns else 6) * _TILE + ALIGNMENT

    def _sums(self) -> int:
        if not (self.depth <= _FLAT or self.depth > _DEEPER or (self.depth >= _DEEP and self.rows > _COLUMNS)):
            return 0
        columns = round_up(self.columns, _PAIRS)
        sums = max(min(round_up(self.rows, _PAIRS), _ROWS) * min(columns, _COLUMNS), min(self.rows, _MANY) * _PAIRS)
        if self.depth >= _LEFT_DEPTH and self.right_by_columns and not self.count:
            sums = max(self.rows - _ALIKE, min(self.rows, _ROWS)) * min(columns, _ALIKE)
        if self._is_deep_and_uneven(_LEFT_DEPTH):
            sums = max(sums, round_up(min(self.rows, _MANY), _PAIRS) * min(columns, _ALIKE))
        return sums * _FLOAT
