"""How many operations factorizations of matrices, Fourier transforms and distances take: many for each element."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fxpasses.partitioners.costs.operation_counts import Counter, shape_of
from fxpasses.partitioners.tensor_sizes import tensors_in

__all__ = ["TRANSFORM_COUNTERS"]

_Dims = Callable[[Sequence[Any], int], Sequence[int]]
"""The dimensions that are transformed, from positional inputs and the rank."""
_Length = Callable[[Sequence[Any], int], int]
"""How many numbers a dimension has, from positional inputs."""


def _each_matrix(count: Callable[[int, int], float]) -> Counter:
    """A count of one matrix of ``rows x columns``, ``rows`` the larger, for all matrices of a batch."""

    def counter(inputs: Sequence[Any], _output: Any) -> int:
        *batch, rows, columns = (1, 1, *shape_of(inputs[0]))
        return int(math.prod(batch) * count(max(rows, columns), min(rows, columns)))

    return counter


def _solution(count: Callable[[int], float], passes: int = 1, factors: int = 0) -> Counter:
    """A factorization, then substitutions of ``n * n`` operations for each right side; ``factors`` is the matrix."""

    def counter(inputs: Sequence[Any], output: Any) -> int:
        *batch, size, _ = (1, 1, *shape_of(inputs[factors]))
        substituted = passes * size * math.prod(shape_of(tensors_in(output)[0]))
        return int(math.prod(batch) * count(size)) + substituted

    return counter


def _fourier(dims: _Dims, *, halves: _Length | None = None) -> Counter:
    """``5 n log2 n`` operations for ``n`` complex numbers, half of it for real ones.

    Where the result has only one half of what is symmetric, ``halves`` tells ``n`` of its last dimension.
    """

    def counter(inputs: Sequence[Any], output: Any) -> int:
        sizes = list(shape_of(output))
        over = list(dims(inputs, len(sizes)))
        if halves is not None and over:
            sizes[over[-1]] = halves(inputs, over[-1])
        length = math.prod(sizes[dim] for dim in over)
        is_real = not (inputs[0].is_complex() and output.is_complex())
        return int(5 * math.prod(sizes) * math.log2(max(2, length)) / (2 if is_real else 1))

    return counter


def _as_long(inputs: Sequence[Any], dim: int) -> int:
    return int(shape_of(inputs[0])[dim])


def _cut_or_filled(inputs: Sequence[Any], dim: int) -> int:
    """The length that is asked for; -1 and None: as it is."""
    asked = inputs[1] if len(inputs) > 1 else None
    length = asked[-1] if isinstance(asked, Sequence) else asked
    return _as_long(inputs, dim) if length is None or length == -1 else int(length)


def _given(at: int, default: Sequence[int] | None) -> _Dims:
    """The dimensions that stand at a place of the inputs; None: all of them."""

    def dims(inputs: Sequence[Any], rank: int) -> Sequence[int]:
        found = inputs[at] if len(inputs) > at and inputs[at] is not None else default
        return range(rank) if found is None else (found,) if isinstance(found, int) else found

    return dims


def _short_time_fourier(inputs: Sequence[Any], output: Any) -> int:
    window = inputs[1]
    frames = math.prod(shape_of(output)) // (window // 2 + 1)
    return int(2.5 * frames * window * math.log2(window))


def _short_time_fourier_back(inputs: Sequence[Any], _output: Any) -> int:
    *_, frames = shape_of(inputs[0])
    signals = math.prod(shape_of(inputs[0])[:-2])
    return int(2.5 * signals * frames * inputs[1] * math.log2(inputs[1]))


def _reflections(inputs: Sequence[Any], _output: Any) -> int:
    """The matrix that some Householder vectors, which are columns, stand for."""
    *batch, rows, columns = shape_of(inputs[0])
    vectors = shape_of(inputs[1])[-1]
    once = 4 * rows * columns * vectors - 2 * (rows + columns) * vectors**2 + 4 * vectors**3 / 3
    return int(math.prod(batch) * once)


def _reflected(inputs: Sequence[Any], output: Any) -> int:
    """A product with such a matrix, which is not made."""
    rows, vectors = shape_of(inputs[0])[-2], shape_of(inputs[1])[-1]
    return 2 * math.prod(shape_of(output)) // rows * vectors * (2 * rows - vectors)


def _distances_of_rows(inputs: Sequence[Any], output: Any) -> int:
    return 2 * math.prod(shape_of(output)) * shape_of(inputs[0])[-1]


_HALVES = {"rfft": _cut_or_filled, "ihfft": _cut_or_filled}
_FOURIER = {
    f"{kind}{more}": _fourier(_given(2, dims), halves=_HALVES.get(kind))
    for more, dims in (("", (-1,)), ("2", (-2, -1)), ("n", None))
    for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
}

_CHOLESKY = _each_matrix(lambda m, n: n**3 / 3)
_LU = _each_matrix(lambda m, n: n * n * (m - n / 3))
_INVERSE = _each_matrix(lambda m, n: 2 * n**3)
_QR = _each_matrix(lambda m, n: 4 * n * n * (m - n / 3))
_SVD = _each_matrix(lambda m, n: 14 * m * n * n + 8 * n**3)
_SINGULAR_VALUES = _each_matrix(lambda m, n: 4 * n * n * (m - n / 3))
_EIGH = _each_matrix(lambda m, n: 9 * n**3)
_EIG = _each_matrix(lambda m, n: 25 * n**3)
_EXPONENTIAL = _each_matrix(lambda m, n: 20 * n**3)
_SOLVE = _solution(lambda n: 2 * n**3 / 3, passes=2)
_SUBSTITUTE = _solution(lambda n: 0)
_SUBSTITUTE_TWICE = _solution(lambda n: 0, passes=2)
_SUBSTITUTE_TWICE_BY_SECOND = _solution(lambda n: 0, passes=2, factors=1)

TRANSFORM_COUNTERS: Mapping[str, Counter] = {
    **dict.fromkeys(("cholesky", "linalg_cholesky", "linalg_cholesky_ex"), _CHOLESKY),
    **dict.fromkeys(("linalg_ldl_factor", "linalg_ldl_factor_ex"), _CHOLESKY),
    **dict.fromkeys(("lu", "linalg_lu", "linalg_lu_factor", "linalg_lu_factor_ex"), _LU),
    **dict.fromkeys(
        ("det", "logdet", "slogdet", "linalg_det", "linalg_slogdet", "_linalg_det", "_linalg_slogdet"), _LU
    ),
    **dict.fromkeys(("inverse", "linalg_inv", "linalg_inv_ex", "cholesky_inverse"), _INVERSE),
    **dict.fromkeys(("qr", "linalg_qr", "geqrf"), _QR),
    **dict.fromkeys(("svd", "linalg_svd", "_linalg_svd", "pinverse", "linalg_pinv", "linalg_lstsq"), _SVD),
    "linalg_svdvals": _SINGULAR_VALUES,
    **dict.fromkeys(("linalg_eigh", "_linalg_eigh", "linalg_eigvalsh"), _EIGH),
    **dict.fromkeys(("linalg_eig", "linalg_eigvals"), _EIG),
    **dict.fromkeys(("matrix_exp", "linalg_matrix_exp"), _EXPONENTIAL),
    **dict.fromkeys(("linalg_solve", "linalg_solve_ex", "_linalg_solve_ex"), _SOLVE),
    "linalg_solve_triangular": _SUBSTITUTE,
    "triangular_solve": _solution(lambda n: 0, factors=1),
    **dict.fromkeys(("linalg_lu_solve", "linalg_ldl_solve"), _SUBSTITUTE_TWICE),
    **dict.fromkeys(("cholesky_solve", "lu_solve"), _SUBSTITUTE_TWICE_BY_SECOND),
    **{f"fft_{kind}": counter for kind, counter in _FOURIER.items()},
    **dict.fromkeys(("_fft_c2c", "_fft_c2r"), _fourier(_given(1, None))),
    "_fft_r2c": _fourier(_given(1, None), halves=_as_long),
    "stft": _short_time_fourier,
    "istft": _short_time_fourier_back,
    **dict.fromkeys(("linalg_householder_product", "orgqr"), _reflections),
    "ormqr": _reflected,
    **dict.fromkeys(("pdist", "_pdist_forward"), _distances_of_rows),
}
"""The formula of an operator, by its name without namespace and overload; of those that iterate, as much as is usual.

Source: Golub, Van Loan, "Matrix Computations", 4th edition, 2013; Cooley, Tukey, Mathematics of Computation 19, 1965.
"""
