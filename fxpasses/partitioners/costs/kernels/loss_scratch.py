"""What losses on the CPU need: the loss of each element before it is added up, and means of them as floats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fxpasses.partitioners.tensor_sizes import concrete_size, tensor_bytes

__all__ = ["LOSSES"]

_NONE, _MEAN = 0, 1
"""How a loss is put together, as torch's operators have it."""
_NUMBERS = 16
"""Bytes of what a sum is divided by."""
aten = torch.ops.aten


def _loss_bytes(args: Sequence[Any], _result: Any, *, reduction_at: int, losses: int) -> int:
    """The loss of each element, beside what a kernel makes that is as large as its operands; none if all are asked for.

    A mean of half precision is one of floats.
    """
    given: Tensor = args[0]
    reduction = args[reduction_at] if len(args) > reduction_at else _MEAN
    if reduction == _NONE:
        return 0
    return losses * tensor_bytes(given) + (_mean_bytes(given) if reduction == _MEAN else 0)


def _logits_bytes(args: Sequence[Any], _result: Any) -> int:
    """What is added to a loss, and what it is multiplied by, which lies as it lies."""
    given, target = args[:2]
    reduction = args[4] if len(args) > 4 else _MEAN
    is_dense = given.is_contiguous() and target.is_contiguous()
    size, beside = tensor_bytes(given), 1 if is_dense else 2
    weight = tensor_bytes(args[3]) if len(args) > 3 and isinstance(args[3], Tensor) else 0
    if reduction == _NONE:
        return beside * size + weight
    mean = 2 * size + _mean_bytes(given) if reduction == _MEAN else 0
    return max((beside + 1) * size + weight, mean) + _NUMBERS


def _mean_bytes(given: Tensor) -> int:
    is_half = given.dtype in (torch.bfloat16, torch.float16)
    return (concrete_size(given.numel()) * torch.float32.itemsize if is_half else 0) + _NUMBERS


def _margin_backward(_args: Sequence[Any], result: Tensor) -> int:
    """Two values in between."""
    return 2 * tensor_bytes(result)


def _alignment_backward(args: Sequence[Any], _result: Any) -> int:
    """How likely the rest of each alignment is, beside how likely its beginning."""
    beginnings: Tensor = args[6]
    return tensor_bytes(beginnings)


LOSSES: Mapping[Any, Callable[[Sequence[Any], Any], int]] = MappingProxyType(
    {
        aten.mse_loss.default: partial(_loss_bytes, reduction_at=2, losses=1),
        aten.smooth_l1_loss.default: partial(_loss_bytes, reduction_at=2, losses=1),
        aten.huber_loss.default: partial(_loss_bytes, reduction_at=2, losses=1),
        aten.soft_margin_loss.default: partial(_loss_bytes, reduction_at=2, losses=0),
        aten.binary_cross_entropy.default: partial(_loss_bytes, reduction_at=3, losses=0),
        aten.binary_cross_entropy_with_logits.default: _logits_bytes,
        aten.soft_margin_loss_backward.default: _margin_backward,
        **dict.fromkeys((aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor), _alignment_backward),
    }
)
