"""What products of matrices on the CPU need for themselves: dense copies, and blocks that oneDNN lays out.

In half precision oneDNN computes sums as floats, block by block: a block of the result, one of the right operand, and
one of the left, where it is not as it should be. The blocks that it takes were found by what torch's allocator was
asked for, on a processor with AVX512 and its instructions for these types; where they vary, the larger ones count.
Without these instructions the result is there once more as floats, and processors with AVX2 lay out nothing. Those with
AMX have other kernels for bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fxpasses.partitioners.costs.kernels.processor_blocks import has_tiles, round_up
from fxpasses.partitioners.costs.kernels.tile_products import FEWEST_PRODUCTS, TileProduct
from fxpasses.partitioners.tensor_sizes import concrete_size, is_half, tensor_bytes

__all__ = ["lays_out", "product_scratch_bytes", "vector_scratch_bytes"]

_ROWS, _COLUMNS, _WIDE = 256, 64, 192
"""Rows and columns of a block, and columns where both operands are large."""
_SHORT, _LONG, _LONGEST = 512, 1024, 1088
"""How many products are added up at once, where there are up to twice as many or more, and at most."""
_PADDING, _TABLES, _OF_ONE_COLUMN = 16, 1152, 1664
_MARGIN = 1.3
_WIDER = 4
"""How many times as wide as high a result is of which threads have columns."""
_FLOAT = 4
_BATCHED = 3
"""Dimensions of several matrices."""


def product_scratch_bytes(args: Sequence[Any], _result: Any) -> int:
    """What ``mm``, ``bmm``, ``mv``, ``dot`` and the like have beside their operands and their result.

    Args:
        args: Those of the operator; the last two tensors are multiplied.

    Returns:
        Bytes; 0 on other devices than the CPU.
    """
    left, right = [each for each in args if isinstance(each, Tensor)][-2:]
    if left.device.type != "cpu" or 0 in (*left.shape, *right.shape):
        return 0
    if not is_half(left) or not lays_out(left.dtype):
        return _dense_copy_bytes(left) + _dense_copy_bytes(right)
    if left.dim() == right.dim() == _BATCHED - 1:
        copied = _dense_copy_bytes(left) + _dense_copy_bytes(right)
    else:
        copied = sum(tensor_bytes(each) for each in (left, right) if not _is_taken(each))
    return copied + _half_bytes(left, right)


def _is_taken(operand: Tensor) -> bool:
    """Whether oneDNN takes matrices as they are: one after the other, by rows or by columns; of one, too."""
    if operand.is_contiguous() or operand.dim() == 1:
        return operand.is_contiguous()
    rows, columns = map(concrete_size, operand.shape[-2:])
    by_columns = (rows * columns, 1, rows)
    return tuple(map(concrete_size, operand.stride())) == by_columns[-operand.dim() :]


def _dense_copy_bytes(operand: Tensor) -> int:
    """A copy of a matrix, one after the other, of which neither rows nor columns are dense.

    What is to be conjugated is copied, of several matrices all at once; columns of one are conjugated by BLAS.
    """
    if operand.dim() == 1:
        return tensor_bytes(operand) if operand.is_conj() else 0
    rows, columns = map(concrete_size, operand.shape[-2:])
    down, right = map(concrete_size, operand.stride()[-2:])
    if operand.is_conj() and (operand.dim() == _BATCHED or right == 1):
        return tensor_bytes(operand)
    is_dense = (right == 1 and (down >= columns or rows == 1)) or (down == 1 and (right >= rows or columns == 1))
    return 0 if is_dense else rows * columns * operand.element_size()


def vector_scratch_bytes(args: Sequence[Any], result: Any) -> int:
    """The same; a matrix that is multiplied with a vector is conjugated in a copy, however it lies.

    Of two vectors BLAS conjugates the one that is to be, or what comes out.
    """
    left, right = [each for each in args if isinstance(each, Tensor)][-2:]
    if left.dim() == right.dim() == 1:
        return product_scratch_bytes([each.conj() if each.is_conj() else each for each in (left, right)], result)
    beside = product_scratch_bytes(args, result)
    is_by_columns = left.is_conj() and _dense_copy_bytes(left) == 0 and left.device.type == "cpu"
    return beside + (tensor_bytes(left) if is_by_columns else 0)


def _half_bytes(left: Tensor, right: Tensor) -> int:
    """Blocks; a product with a vector is one of a batch."""
    depth = concrete_size(left.shape[-1])
    rows = concrete_size(left.shape[-2]) if left.dim() > 1 else 1
    columns = concrete_size(right.shape[-1]) if right.dim() > 1 else 1
    is_batch = _BATCHED in (left.dim(), right.dim() + 2)
    count = concrete_size(left.shape[0]) if left.dim() == _BATCHED else 1
    if has_tiles(left.dtype):
        lies = {"left_by_columns": _lies_by_columns(left), "right_by_columns": _lies_by_columns(right)}
        several = count if count > 1 else 0
        return TileProduct(count=several, rows=rows, depth=depth, columns=columns, **lies).scratch_bytes()
    if count * rows * depth * columns <= FEWEST_PRODUCTS:
        return 0
    if left.dtype is torch.bfloat16 and not torch.cpu._is_avx512_bf16_supported():
        return 0 if 1 in (rows, columns) else rows * columns * _FLOAT
    is_vector = columns == 1 and not is_batch
    if is_vector:
        rows, columns = 1, rows
    if left.dtype is torch.float16 and not is_batch:
        rows = _rows_of_a_thread(rows, columns)
    rows, is_long = min(rows, _ROWS), depth > _LONG and rows > 1
    depth = round_up(depth, _PADDING if left.dtype is torch.float16 else 2 * _PADDING)
    if left.dtype is torch.bfloat16 and (is_vector or left.stride(-1) == 1):
        together = min(depth, _LONG if is_long else _SHORT)
        blocks = _COLUMNS * together * left.element_size() + rows * min(columns, _COLUMNS) * _FLOAT
    elif columns > _COLUMNS and depth > _SHORT and rows > 1:
        blocks = _with_left(left, rows, min(depth, _LONGEST), _WIDE, _WIDE)
    else:
        together = min(depth, _LONG if is_long else _SHORT)
        blocks = _with_left(left, rows, together, _COLUMNS, columns if rows == 1 else min(columns, _COLUMNS))
        blocks += _OF_ONE_COLUMN if columns == 1 else 0
        if left.dtype is torch.bfloat16 and depth > together:  # rows of the left operand are moved further apart
            blocks += rows * _PADDING * left.element_size()
    return torch.get_num_threads() * (blocks + _TABLES)


def _rows_of_a_thread(rows: int, columns: int) -> int:
    """Threads share the rows, unless each has a block of columns, or there are far more columns than rows."""
    threads = torch.get_num_threads()
    if (_COLUMNS < columns and max(rows, columns) <= threads * _COLUMNS) or columns > _WIDER * rows:
        return rows
    return min(rows, max(-(-rows // threads), _PADDING))


def _lies_by_columns(matrix: Tensor) -> bool:
    """As oneDNN has it: a batch that it does not take is copied by rows."""
    if matrix.dim() == 1 or (matrix.dim() == _BATCHED and not _is_taken(matrix)):
        return False
    return concrete_size(matrix.stride(-2)) == 1 and (matrix.shape[-1] == 1 or concrete_size(matrix.stride(-1)) != 1)


def lays_out(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies in half precision on this processor."""
    asked = torch.ops.mkldnn
    supported = asked._is_mkldnn_bf16_supported if dtype is torch.bfloat16 else asked._is_mkldnn_fp16_supported
    return bool(supported())


def _with_left(left: Tensor, rows: int, together: int, laid_out: int, columns: int) -> int:
    """Where the left operand is laid out, too; float16 as floats."""
    if left.dtype is torch.float16:
        element, margin = _FLOAT, 1.0
    else:
        element, margin = left.element_size(), _MARGIN if together > _SHORT else 1.0
    padded = together + (_PADDING if together >= _SHORT else 0)
    return int(margin * (rows * padded * element + laid_out * together * element + rows * columns * _FLOAT))
