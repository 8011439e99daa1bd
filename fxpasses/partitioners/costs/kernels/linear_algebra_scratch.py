"""What decompositions of matrices on the CPU need for themselves: copies, and what LAPACK says it wants to work in.

The sizes are those of the LAPACK that torch's wheels for x86 have, MKL's; each begins with what its documentation says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fxpasses.partitioners.costs.kernels.laid_out_copies import triangle_copies
from fxpasses.partitioners.costs.kernels.product_scratch import product_scratch_bytes
from fxpasses.partitioners.costs.kernels.transposed_copies import TILE_ELEMENTS, tile_bytes
from fxpasses.partitioners.tensor_sizes import concrete_size, tensor_bytes

__all__ = ["LINEAR_ALGEBRA"]

_INT = 4
_FLAGS = 64
"""Bytes of numbers with which torch asks whether a matrix was singular."""
_PANELS, _FEW_REFLECTIONS, _LARGE = (16, 32, 64), 64, 1000
"""Columns that are orthogonalized at once: of up to so many, of most matrices, and of those with more on two sides."""
_PANEL, _OF_OTHER_THREADS = 32, 442
"""The same of complex numbers, and where reflections are applied to others; and what threads want for each column."""
_LEAST = 32
"""Matrices with fewer rows are orthogonalized column by column."""
_NARROW, _WIDE, _FEW = 17, 49, 300
"""Columns that are looked at together where there are few, and where there are more than so many."""
_FEWEST = 10
"""Up to so many reflections are found one by one."""
_SHARED, _OF_THREAD, _REST = 100, 704, 600
"""From how many reflections on threads share blocks, and numbers of such blocks."""
_VALUES_ONLY, _VALUES_OF_FLOATS, _OF_COMPLEX = 26, 22, 33
"""Rows to work in, for eigenvalues of a symmetric matrix alone, and for vectors too."""
_GENERAL, _GENERAL_VALUES, _FEW_VALUES, _FEW_ROWS = 386, 34, 3, 128
"""The same of a matrix that is not symmetric: for both, for values alone, and of doubles in fewer rows than so many."""
_NUMBERS, _COMPLEX_NUMBERS = 24, 96
"""Rows to work in where a symmetric matrix that is not positive is factorized."""
_ROWS, _LEFT = 2, 3
"""Dimensions of one matrix, and which operand says from which side reflections are applied."""
aten = torch.ops.aten


def _size(matrix: Tensor) -> tuple[int, int, int]:
    """How many matrices, of how many rows and columns."""
    *batch, rows, columns = map(concrete_size, matrix.shape)
    return math.prod(batch), rows, columns


def _bytes(matrix: Tensor) -> int:
    return math.prod(_size(matrix)) * matrix.element_size()


def _tile(matrix: Tensor) -> int:
    """What a copy of one matrix by its columns goes through."""
    count, rows, columns = _size(matrix)
    return TILE_ELEMENTS * matrix.element_size() if count == 1 and rows * columns >= TILE_ELEMENTS else 0


def _turned(matrix: Tensor) -> int:
    """The same where it is not by columns already."""
    return tile_bytes(matrix.mT)


def _inverse(args: Sequence[Any], _result: Any) -> int:
    """A copy that is factorized, its pivots, and which of them are zero."""
    count, rows, _ = _size(args[0])
    return _bytes(args[0]) + count * (rows * (_INT + 1) + _INT) + _FLAGS


def _symmetric(args: Sequence[Any], _result: Any) -> int:
    """Where only the values are wanted, a copy and some rows."""
    matrix: Tensor = args[0]
    count, rows, _ = _size(matrix)
    flags = 2 * count * _INT + _FLAGS
    if len(args) < 3 or args[2]:
        return _divided(matrix) + flags
    work = (_VALUES_OF_FLOATS if matrix.dtype is torch.float32 else _VALUES_ONLY) * rows + 1
    return _bytes(matrix) + max(work * matrix.element_size(), _turned(matrix)) + flags


def _divided(matrix: Tensor) -> int:
    """Divide and conquer wants ``1 + 6n + 2n^2`` numbers, and of complex ones some rows and a square more."""
    rows = _size(matrix)[1]
    numbers, more = 1 + 6 * rows + 2 * rows * rows, 0
    if matrix.is_complex():
        more = ((_OF_COMPLEX + rows) * rows + 1) * matrix.element_size()
    size = matrix.element_size() // (2 if matrix.is_complex() else 1)
    return numbers * size + more + (3 + 5 * rows) * _INT


def _singular(args: Sequence[Any], _result: Any) -> int:
    """A copy, made by its columns."""
    return _bytes(args[0]) + _turned(args[0]) + 2 * _size(args[0])[0] * _INT + _FLAGS


def _orthogonal(args: Sequence[Any], _result: Any) -> int:
    """The lengths of the reflections; then what finds them, a square of several tall matrices, or what applies them.

    Where only the triangle is asked for, the reflections of tall ones are there beside it.
    """
    matrix: Tensor = args[0]
    count, rows, columns = _size(matrix)
    reflections, mode = min(rows, columns), args[1] if len(args) > 1 else "reduced"
    applied = _applied(matrix, rows if mode == "complete" else reflections)
    found = _reflections(reflections, columns, torch.get_num_threads())
    square = count * columns * columns if matrix.dim() > _ROWS and rows > columns and mode != "complete" else 0
    beside = count * rows * columns if mode == "r" and rows > columns else 0
    return (count * reflections + beside + max(found, square, applied)) * matrix.element_size() + _FLAGS


def _applied(matrix: Tensor, made: int) -> int:
    """Numbers to make columns from reflections; several threads want a panel of all rows, and two of the columns."""
    _, rows, columns = _size(matrix)
    reflections, threads = min(rows, columns), torch.get_num_threads()
    if rows < _LEAST:
        return made + 1
    panel = _PANELS[0] if reflections <= _FEW_REFLECTIONS else _PANELS[1 + (rows + reflections > _LARGE)]
    panel = _PANEL if matrix.is_complex() else panel
    return panel * (made if threads == 1 else rows + reflections + made) + 1


def _found_reflections(args: Sequence[Any], _result: Any) -> int:
    matrix: Tensor = args[0]
    _, rows, columns = _size(matrix)
    return _reflections(min(rows, columns), columns, torch.get_num_threads()) * matrix.element_size() + _FLAGS


def _product_of_reflections(args: Sequence[Any], _result: Any) -> int:
    matrix: Tensor = args[0]
    return _applied(matrix, _size(matrix)[2]) * matrix.element_size() + _FLAGS


def _applied_reflections(args: Sequence[Any], _result: Any) -> int:
    """A panel of their columns, and of what they are applied to; several threads want more."""
    reflections, other = args[0], args[2]
    _, rows, columns = _size(other)
    is_left = len(args) < _LEFT + 1 or args[_LEFT]
    together = _size(reflections)[2] + (columns if is_left else rows)
    together += (torch.get_num_threads() - 1) * _OF_OTHER_THREADS
    more: int = _PANEL * together * other.element_size() + _FLAGS
    return more


def _reflections(reflections: int, columns: int, threads: int) -> int:
    """Numbers to find them with: a narrow panel, and blocks for each thread where there are many."""
    if columns < _LEAST:
        return columns + 1
    if reflections <= _FEWEST:
        return (threads + 1) * columns
    if threads == 1:
        return (_NARROW if reflections <= _FEW else _WIDE) * (columns + 1)
    if reflections < _SHARED:
        return _NARROW * (columns + 1) + (threads - 1) * columns
    return (_NARROW - 1) * columns + threads * _OF_THREAD + _REST


def _solved(args: Sequence[Any], _result: Any) -> int:
    """Which pivots are zero, and a copy of one column for each matrix."""
    count, rows, _ = _size(args[0])
    other = args[1]
    vectors = tensor_bytes(other) if isinstance(other, Tensor) and other.dim() < args[0].dim() else 0
    return count * (rows + _INT) + vectors + _FLAGS


def _solved_triangle(args: Sequence[Any], result: Any) -> int:
    """A copy of triangles of which neither rows nor columns are dense, or of one that is used several times."""
    matrix: Tensor = args[0]
    is_dense = matrix.is_contiguous() or matrix.mT.is_contiguous()
    together, (count, rows, columns) = _size(result)[0], _size(matrix)
    return 0 if is_dense and count == together else together * rows * columns * matrix.element_size()


def _unpacked(args: Sequence[Any], _result: Any) -> int:
    """The order of the rows, of several matrices once more; before, a copy of a part of them that is no whole one."""
    given: Tensor = args[0]
    count, rows, columns = _size(given)
    both = min(rows, columns)
    parts = given[..., :both], given[..., :both, :]
    return max(_order(count, rows), *(triangle_copies([part], None) for part in parts))


def _order(count: int, rows: int) -> int:
    return rows * torch.int64.itemsize * (1 if count == 1 else 1 + count)


def _determinant(args: Sequence[Any], _result: Any) -> int:
    """Pivots, and what their signs are multiplied from."""
    count, rows, _ = _size(args[0])
    return count * (13 * rows + _FLAGS) + 2 * _FLAGS


def _copied_factor(args: Sequence[Any], _result: Any) -> int:
    """A copy of the factor."""
    return _bytes(args[1]) + 2 * _size(args[1])[0] * _INT + _FLAGS


def _general(args: Sequence[Any], _result: Any) -> int:
    """A copy, real vectors, real and imaginary parts of the values, and rows to work in.

    Complex values and vectors are made as they are.
    """
    matrix: Tensor = args[0]
    count, rows, _ = _size(matrix)
    if matrix.is_complex():
        numbers = min(2 * rows + 4, _GENERAL + 2) * rows
        return _bytes(matrix) + numbers * matrix.element_size() + 2 * count * _INT + _FLAGS
    numbers = _GENERAL * rows + 1 + 2 * count * rows
    return 2 * _bytes(matrix) + numbers * matrix.element_size() + 2 * count * _INT + _FLAGS


def _general_values(args: Sequence[Any], _result: Any) -> int:
    """A copy, real and imaginary parts, and rows to work in."""
    matrix: Tensor = args[0]
    count, rows, _ = _size(matrix)
    is_few = matrix.dtype is torch.float64 and rows < _FEW_ROWS
    numbers = (_FEW_VALUES if is_few else _GENERAL_VALUES) * rows + 1 + 2 * count * rows
    return _bytes(matrix) + numbers * matrix.element_size() + 2 * count * _INT + _FLAGS


def _factors(args: Sequence[Any], _result: Any) -> int:
    """Both factors in one copy, made by its columns; then the order of the rows, of several matrices once more."""
    count, rows, columns = _size(args[0])
    return max(_bytes(args[0]) + _tile(args[0]), _order(count, rows)) + count * (min(rows, columns) + 1) * _INT + _FLAGS


def _indefinite(args: Sequence[Any], _result: Any) -> int:
    """Rows to work in."""
    matrix: Tensor = args[0]
    rows = _size(matrix)[1]
    return (_COMPLEX_NUMBERS if matrix.is_complex() else _NUMBERS) * rows * matrix.element_size() + _FLAGS


def _checked(args: Sequence[Any], _result: Any) -> int:
    """Which of the matrices, and whether any."""
    return concrete_size(args[0].numel()) + _FLAGS


def _exponential(args: Sequence[Any], _result: Any) -> int:
    """The powers of a polynomial of degree 18, sums of them, and what a product of two needs."""
    matrix: Tensor = args[0]
    count, *sizes = _size(matrix)
    power = matrix.new_empty(sizes if count == 1 else [count, *sizes])
    product = product_scratch_bytes((power, power), power)
    return (12 if count == 1 else 10) * _bytes(matrix) + product + count * _FLAGS + _FLAGS


LINEAR_ALGEBRA: Mapping[Any, Callable[[Sequence[Any], Any], int]] = MappingProxyType(
    {
        aten.linalg_inv_ex.default: _inverse,
        aten._linalg_eigh.default: _symmetric,
        aten._linalg_svd.default: _singular,
        aten.linalg_qr.default: _orthogonal,
        aten.geqrf.default: _found_reflections,
        aten.linalg_householder_product.default: _product_of_reflections,
        aten.ormqr.default: _applied_reflections,
        aten.linalg_solve_triangular.default: _solved_triangle,
        aten.lu_unpack.default: _unpacked,
        **dict.fromkeys((aten._linalg_solve_ex.default, aten.linalg_lu_solve.default), _solved),
        aten._linalg_slogdet.default: _determinant,
        aten._linalg_det.default: _determinant,
        aten.cholesky_solve.default: _copied_factor,
        aten.linalg_eig.default: _general,
        aten._linalg_eigvals.default: _general_values,
        aten.linalg_lu.default: _factors,
        aten.linalg_ldl_factor_ex.default: _indefinite,
        aten._linalg_check_errors.default: _checked,
        aten.linalg_matrix_exp.default: _exponential,
    }
)
