"""What normalizations on the CPU need: sums for each channel, and floats where half precision is not dense."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from fxpasses.partitioners.costs.kernels.laid_out_copies import dense_copies, lie_together
from fxpasses.partitioners.tensor_sizes import concrete_size, is_half, tensor_bytes, tensors_in

__all__ = ["NORMALIZATIONS"]

_FLOAT = 4
_LARGE, _LARGE_BACKWARD = 1024, 2048
"""Elements of a channel of a sample from which on threads share samples with channels last."""
aten = torch.ops.aten


def _channel_bytes(args: Sequence[Any], result: Any) -> int:
    """What is multiplied by and added, for each channel; half precision that is not dense as floats."""
    given: Tensor = args[0]
    channels = 2 * (1 + torch.get_num_threads()) * concrete_size(given.shape[1]) * max(_FLOAT, given.element_size())
    made = tensors_in(result)
    keeps_sums = len(made) > 1 and 0 not in made[1].shape
    as_floats = _FLOAT * concrete_size(given.numel()) if is_half(given) and keeps_sums and not _is_dense(given) else 0
    return channels + as_floats


def _batch_backward(args: Sequence[Any], _result: Any) -> int:
    """The gradient of what went in, once more; of what is not dense in one way, half precision added up as floats."""
    gradient: Tensor = args[0]
    given: Tensor = args[1]
    channels = concrete_size(given.shape[1]) * max(_FLOAT, given.element_size())
    if _is_dense(given) and _is_dense(gradient) and suggest_memory_format(given) is suggest_memory_format(gradient):
        return max(tensor_bytes(given) if args[9][0] else 0, (2 * torch.get_num_threads() + 4) * channels)
    adds_numbers = lie_together(gradient, [place for place in range(given.dim()) if place != 1])
    is_converted = given.dtype is torch.float16 or (is_half(given) and not adds_numbers)
    as_floats = _FLOAT * concrete_size(given.numel()) if is_converted else 0
    return as_floats + 8 * channels


def _group_sums(args: Sequence[Any], _result: Any) -> int:
    """With channels last, the sum of each channel of each sample, and of its squares.

    Of large samples in each thread, and for each group what these come to.
    """
    given, (samples, channels, elements, groups) = args[0], map(concrete_size, args[3:7])
    if given.is_contiguous():
        return 0
    of_channels = 2 * samples * channels
    if elements >= _LARGE:
        of_channels = torch.get_num_threads() * of_channels + 2 * samples * groups
    size: int = max(_FLOAT, given.element_size())
    return of_channels * size


def _group_backward(args: Sequence[Any], _result: Any) -> int:
    """The same, for the gradients; where not all lie with channels last, of each thread, too."""
    given, (samples, channels, elements, groups) = args[1], map(concrete_size, args[5:9])
    of_channels = 2 * samples * channels
    if elements >= _LARGE_BACKWARD and not given.is_contiguous():
        of_channels += torch.get_num_threads() * of_channels + 2 * samples * groups
    size: int = max(_FLOAT, given.element_size())
    return of_channels * size


def _layer_bytes(args: Sequence[Any], result: Any) -> int:
    """A dense copy; of weights as floats, the statistics are floats, too, which torch says less of."""
    given, weight = args[0], args[2] if len(args) > 2 else None
    is_mixed = isinstance(weight, Tensor) and weight.dtype != given.dtype
    floats = 2 * concrete_size(tensors_in(result)[1].numel()) * _FLOAT if is_mixed else 0
    return dense_copies(args, result) + floats


def _layer_backward(args: Sequence[Any], result: Any) -> int:
    """Both operands, dense, and the gradients of the weights that each thread adds up."""
    given: Tensor = args[1]
    copied = dense_copies(args, result, places=(0, 1))
    if not any(args[7][1:]):
        return copied
    width = 1
    for size in args[2]:
        width *= concrete_size(size)
    return copied + torch.get_num_threads() * 2 * width * given.element_size()


def _is_dense(given: Tensor) -> bool:
    return given.is_contiguous(memory_format=suggest_memory_format(given))


NORMALIZATIONS: Mapping[Any, Callable[[Sequence[Any], Any], int]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *(aten._native_batch_norm_legit_no_training.default, aten.native_batch_norm.default),
                *(aten._native_batch_norm_legit.default, aten._native_batch_norm_legit_functional.default),
                *(aten._batch_norm_with_update.default, aten._batch_norm_with_update_functional.default),
                aten._batch_norm_no_update.default,
            ),
            _channel_bytes,
        ),
        **dict.fromkeys((aten.native_batch_norm_backward.default, aten.batch_norm_backward.default), _batch_backward),
        aten.native_group_norm.default: _group_sums,
        aten.native_group_norm_backward.default: _group_backward,
        aten.native_layer_norm.default: _layer_bytes,
        aten.native_layer_norm_backward.default: _layer_backward,
    }
)
