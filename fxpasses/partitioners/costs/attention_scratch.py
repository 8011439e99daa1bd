"""What attention on the CPU needs: a block of weights for each thread, forward and backward.

Source: Dao, "FlashAttention-2" (arXiv:2307.08691), algorithms 1 and 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fxpasses.partitioners.costs.convolution_shapes import round_up
from fxpasses.partitioners.costs.product_scratch import lays_out
from fxpasses.partitioners.tensor_sizes import concrete_size, tensor_bytes

__all__ = ["attention_backward_scratch_bytes", "attention_scratch_bytes"]

_BLOCKS = ((768, 256), (192, 64), (0, 32))
"""From how many queries on so many rows of attention are computed at once."""
_KEYS = 512
"""The most keys at once."""
_TABLES = 22_000
_FLOAT = 4


def attention_scratch_bytes(args: Sequence[Any], _result: Any) -> int:
    """What each thread has of a block of attention: weights, their maxima and sums, and rows of the result.

    In half precision the weights are there twice.

    Returns:
        Bytes; 0 on other devices than the CPU.
    """
    query, key = args[0], args[1]
    if query.device.type != "cpu":
        return 0
    rows, keys, width = _block(query, key)
    weights = rows * keys
    in_half = 2 * weights if _is_half(query) else 0
    return torch.get_num_threads() * (_FLOAT * (weights + 2 * rows + rows * width) + in_half)


def attention_backward_scratch_bytes(args: Sequence[Any], _result: Any) -> int:
    """The same of its backward: weights and their gradients, and the sums of a block's rows.

    In half precision both are there twice, and products lay out blocks: the larger ones that were seen count.
    """
    gradient, query, key = args[:3]
    if query.device.type != "cpu":
        return 0
    rows, keys, width = _block(query, key)
    blocks = 2 * rows * keys * _FLOAT
    if _is_half(query):
        laid_out = 2 * (round_up(rows, 32) * round_up(keys, 64) + round_up(keys, 64) * width)
        blocks += blocks // 2 + (laid_out + _TABLES if lays_out(query.dtype) else 0)
    copied = 0 if gradient.transpose(1, 2).is_contiguous() else tensor_bytes(gradient)
    return copied + rows * _FLOAT + torch.get_num_threads() * blocks


def _block(query: Tensor, key: Tensor) -> tuple[int, int, int]:
    """How many rows and keys are taken at once, and how wide a head is."""
    queries, keys, width = (concrete_size(size) for size in (query.shape[-2], key.shape[-2], query.shape[-1]))
    rows = min(queries, next(rows for least, rows in _BLOCKS if queries >= least))
    return rows, min(keys, _KEYS), width


def _is_half(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.bfloat16, torch.float16)
