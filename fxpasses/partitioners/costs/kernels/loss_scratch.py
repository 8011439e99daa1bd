"""What losses on the CPU need: that of each element before it is added up, means as floats, operands in one type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fxpasses.partitioners.costs.kernels.converted_operands import common_type, copies_bytes, in_place_bytes
from fxpasses.partitioners.costs.kernels.laid_out_copies import dense_copies
from fxpasses.partitioners.tensor_sizes import bytes_as, tensor_bytes

__all__ = ["LOSSES"]

_NONE, _MEAN = 0, 1
"""How a loss is put together, as torch's operators have it."""
_NUMBERS = 16
"""Bytes of what a sum is divided by."""
aten = torch.ops.aten


def _difference_bytes(args: Sequence[Any], _result: Any) -> int:
    """The loss of each element, beside what a kernel makes that is as large as its operands; none if all are asked for.

    Operands are converted for what the kernel makes, and once more for the losses.
    """
    given, target = args[:2]
    common, reduction = common_type(given, target), _reduction(args, 2)
    copied = copies_bytes((given, target), common)
    if reduction == _NONE:
        return copied
    return 2 * copied + bytes_as(given, common) + (_mean_bytes(given, common) if reduction == _MEAN else 0)


def _huber_bytes(args: Sequence[Any], _result: Any) -> int:
    """The loss of each element, in the type of the operand, unless all are asked for."""
    given, target = args[:2]
    common, reduction = common_type(given, target), _reduction(args, 2)
    copied = copies_bytes((given, target), common)
    writing = copied + copies_bytes((given,), common)
    if reduction == _NONE:
        return writing
    mean = _mean_bytes(given, given.dtype) if reduction == _MEAN else 0
    return tensor_bytes(given) + max(writing, copied + mean)


def _soft_margin_bytes(args: Sequence[Any], _result: Any) -> int:
    """The operand is multiplied in place, in the memory of the result; then there is a sum, or a mean."""
    given, target = args[:2]
    reduction = _reduction(args, 2)
    mean = _mean_bytes(given, given.dtype) if reduction == _MEAN else 0
    return max(in_place_bytes(given, target), mean, 0 if reduction == _NONE else given.element_size())


def _entropy_bytes(args: Sequence[Any], _result: Any) -> int:
    """A number beside the losses, and a mean."""
    given: Tensor = args[0]
    reduction = _reduction(args, 3)
    number = 0 if reduction == _NONE else given.element_size()
    return number + (_mean_bytes(given, given.dtype) if reduction == _MEAN else 0)


def _entropy_backward(args: Sequence[Any], _result: Any) -> int:
    """What a mean was divided by."""
    return _NUMBERS if _reduction(args, 4) == _MEAN else 0


def _logits_bytes(args: Sequence[Any], _result: Any) -> int:
    """What is added to a loss, which is made of a dense operand, and what it is multiplied by.

    The loss has the type of the target, and is multiplied, added to and weighted in place.
    """
    given, target, weight, positive = (*args, None, None)[:4]
    reduction, losses = _reduction(args, 4), tensor_bytes(target)
    weighted = 0
    if isinstance(positive, Tensor):
        likely = torch.empty(target.shape, dtype=common_type(positive, target), device="meta")
        copied = max(copies_bytes((positive, target), likely.dtype), in_place_bytes(given, likely))
        weighted = 2 * tensor_bytes(positive) + tensor_bytes(likely) + copied
    weighing = in_place_bytes(target, weight) if isinstance(weight, Tensor) else 0
    mean = _mean_bytes(target, target.dtype) if reduction == _MEAN else 0
    made = losses + max(in_place_bytes(target, given), weighing, mean)
    logistic = tensor_bytes(given) + dense_copies(args, None)
    return tensor_bytes(given) + max(logistic, weighted, made) + _NUMBERS - (losses if reduction == _NONE else 0)


def _reduction(args: Sequence[Any], place: int) -> int:
    reduction: int = args[place] if len(args) > place else _MEAN
    return reduction


def _mean_bytes(given: Tensor, dtype: torch.dtype) -> int:
    """A mean of half precision is one of floats."""
    is_half = dtype in (torch.bfloat16, torch.float16)
    return (bytes_as(given, torch.float32) if is_half else 0) + _NUMBERS


def _difference_backward(args: Sequence[Any], result: Tensor) -> int:
    """All operands in one type, and the gradient before it is converted back."""
    gradient, given, target = args[:3]
    return copies_bytes((gradient, given, target, result), common_type(gradient, given, target))


def _margin_backward(args: Sequence[Any], result: Tensor) -> int:
    """The target, negative, and two values in between, ahead of the gradient; or one, and the gradient in its type."""
    _, given, target = args[:3]
    common = common_type(given, target)
    between = bytes_as(given, common)
    ahead = tensor_bytes(target) + between + max(between, copies_bytes((given, target), common)) - tensor_bytes(result)
    return max(ahead, between + max(copies_bytes((target, result), common), copies_bytes((result, result), common)))


def _labels_bytes(args: Sequence[Any], result: Any, *, place: int = 0) -> int:
    """Dense operands, and the least or the largest label, which are asked about; labels come behind the operand."""
    labels: Tensor = args[place + 1]
    return dense_copies(args, result, places=(place, place + 1)) + labels.element_size()


def _alignment_backward(args: Sequence[Any], _result: Any) -> int:
    """How likely the rest of each alignment is, beside how likely its beginning."""
    beginnings: Tensor = args[6]
    return tensor_bytes(beginnings)


LOSSES: Mapping[Any, Callable[[Sequence[Any], Any], int]] = MappingProxyType(
    {
        **dict.fromkeys((aten.mse_loss.default, aten.smooth_l1_loss.default), _difference_bytes),
        aten.huber_loss.default: _huber_bytes,
        aten.soft_margin_loss.default: _soft_margin_bytes,
        aten.binary_cross_entropy.default: _entropy_bytes,
        aten.binary_cross_entropy_backward.default: _entropy_backward,
        aten.multilabel_margin_loss_forward.default: _labels_bytes,
        aten.multilabel_margin_loss_backward.default: partial(_labels_bytes, place=1),
        aten.binary_cross_entropy_with_logits.default: _logits_bytes,
        **dict.fromkeys((aten.mse_loss_backward.default, aten.smooth_l1_loss_backward.default), _difference_backward),
        aten.soft_margin_loss_backward.default: _margin_backward,
        **dict.fromkeys((aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor), _alignment_backward),
    }
)
