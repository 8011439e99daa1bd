"""Formulas of backwards that torch computes otherwise on the CPU than on tensors without data: in place, or by filling.

It takes tensors without data for ones of a subclass, of which it does not know whether they can be written to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fxpasses.partitioners.costs.kernels.converted_operands import common_type, copies_bytes, in_place_bytes
from fxpasses.partitioners.tensor_sizes import bytes_as, concrete_size, tensor_bytes

__all__ = ["formula_bytes"]

_NUMBERS = 64
"""Bytes of numbers that are made tensors on the way, of which a few are there at one time."""


def formula_bytes(function: Any) -> int | None:
    """The most bytes that a function of autograd makes at one time on the CPU, its result included.

    Args:
        function: What autograd runs, before it runs.

    Returns:
        Bytes; None for one that does the same wherever it runs.
    """
    asks = _FORMULAS.get(function.name())
    return None if asks is None else asks(function)


def _of_logits(function: Any) -> int:
    """What is multiplied by the weight of those that are true, in which the gradient is made; and the probabilities."""
    given, target, positive = function._saved_self, function._saved_target, function._saved_pos_weight
    if not isinstance(positive, Tensor):
        return tensor_bytes(given) + in_place_bytes(given, target) + _NUMBERS
    weighted = torch.empty_like(target, dtype=common_type(positive, target), device="meta")
    beside = max(in_place_bytes(weighted, target), tensor_bytes(given) + in_place_bytes(weighted, given))
    return 2 * tensor_bytes(weighted) + beside + _NUMBERS


def _of_one(function: Any) -> int:
    """Zeros, which of the elements it is, and that as numbers, to count them."""
    given: Tensor = function._saved_self
    return tensor_bytes(given) + concrete_size(given.numel()) + bytes_as(given, torch.int64) + _NUMBERS


def _of_all_others(function: Any) -> int:
    """Products of what comes before and behind each element, if one is zero, in the type of the product."""
    given, dtype = function._saved_self, function._saved_result.dtype
    return 6 * bytes_as(given, dtype) + copies_bytes((given,), dtype) + _NUMBERS


def _of_others_in_rows(function: Any) -> int:
    """The same of each row, with which elements are zeros, and how many of each row."""
    given, made = function._saved_self, function._saved_result
    zeros = concrete_size(given.numel()) + bytes_as(made, torch.int64)
    return _of_all_others(function) + zeros


def _of_reflections(function: Any) -> int:
    """The gradient, a triangle, and two squares: a product of reflections, and what the next one changes in it.

    Rows of each size are a few vectors.
    """
    given: Tensor = function._saved_input
    *batch, rows, columns = map(concrete_size, given.shape)
    squares = min(2, concrete_size(function._saved_tau.shape[-1]))
    numbers = squares * rows * rows + 4 * rows + 3 * columns
    return 2 * tensor_bytes(given) + math.prod(batch) * numbers * given.element_size() + _NUMBERS


_FORMULAS: Mapping[str, Callable[[Any], int]] = MappingProxyType(
    {
        "BinaryCrossEntropyWithLogitsBackward0": _of_logits,
        "LinalgHouseholderProductBackward0": _of_reflections,
        "ProdBackward0": _of_all_others,
        "ProdBackward1": _of_others_in_rows,
        "MaxBackward1": _of_one,
        "MinBackward1": _of_one,
        "MedianBackward0": _of_one,
        "NanmedianBackward0": _of_one,
    }
)
"""By the name of autograd's function."""
