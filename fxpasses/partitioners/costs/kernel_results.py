"""Results of kernels of which torch's run without data says less than there is, as large as they really are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

__all__ = ["as_large_as_real"]

_PAGE, _LINE, _BYTES = 4096, 16, 4  # floats in a cache line
aten = torch.ops.aten


def as_large_as_real(func: Any, args: tuple[Any, ...], result: Any) -> Any:
    """The result of an operator on tensors without data, with results as large as those of its kernel."""
    enlarged = _ENLARGED.get(func)
    return result if enlarged is None else enlarged(args, result)


def _lstm(args: tuple[Any, ...], result: Any) -> Any:
    """What is kept for the backward is said to be empty."""
    if not torch.is_grad_enabled():
        return result
    size = lstm_workspace_bytes(args[0], hidden=args[10], batch_first=args[14])
    return (*result[:3], torch.empty(size, dtype=torch.uint8, device=args[0].device))


def _lstm_backward(_args: tuple[Any, ...], result: Any) -> Any:
    """The gradients of the two biases are said to be one tensor."""
    return (*result[:4], torch.empty_like(result[4]), *result[5:])


def _embedding_bag(args: tuple[Any, ...], result: Any) -> Any:
    """To which bag each index belongs: one more than there are indices."""
    bag_of = result[1].new_empty(args[1].shape[0] + 1) if result[1].numel() else result[1]
    return (result[0], bag_of, *result[2:])


_ENLARGED: Mapping[Any, Callable[[tuple[Any, ...], Any], Any]] = MappingProxyType(
    {
        aten.mkldnn_rnn_layer.default: _lstm,
        aten.mkldnn_rnn_layer_backward.default: _lstm_backward,
        aten._embedding_bag.default: _embedding_bag,
        aten._embedding_bag_forward_only.default: _embedding_bag,
    }
)


def lstm_workspace_bytes(given: Tensor, *, hidden: int, batch_first: bool) -> int:
    """At least what oneDNN keeps of one layer of an LSTM in one direction: gates, states and their gradients.

    It is exact for most layers, and 1.1 times as much for narrow ones; in half the precision 1.5 times.

    Source: oneDNN, ``src/cpu/rnn/rnn_utils.hpp``: ``set_workspace_sizes`` and ``get_good_ld``.
    """
    batch, steps = (given.shape[0], given.shape[1]) if batch_first else (given.shape[1], given.shape[0])
    states = 2 * (steps + 1) * batch
    wide, narrow = _row(max(given.shape[2], hidden)), _row(hidden)
    sizes = (steps * batch * _row(4 * hidden), *3 * [states * wide], *2 * [states * narrow], steps * batch * narrow)
    return sum(-(-size // _PAGE) * _PAGE for size in sizes)


def _row(width: int) -> int:
    """Bytes of a row: whole cache lines, and no multiple of 256 elements, which would share places in the cache."""
    padded = -(-width // _LINE) * _LINE
    return _BYTES * (padded + _LINE if padded % 256 == 0 else padded)
