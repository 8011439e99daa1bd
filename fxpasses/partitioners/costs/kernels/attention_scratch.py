"""What attention on the CPU needs: a block of weights for each thread, forward and backward.

Source: Dao, "FlashAttention-2" (arXiv:2307.08691), algorithms 1 and 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fxpasses.partitioners.costs.kernels.processor_blocks import has_tiles, round_up
from fxpasses.partitioners.costs.kernels.product_scratch import lays_out
from fxpasses.partitioners.costs.kernels.tile_products import TileProduct
from fxpasses.partitioners.tensor_sizes import concrete_size, is_half, tensor_bytes

__all__ = ["attention_backward_scratch_bytes", "attention_scratch_bytes"]

_BLOCKS = ((768, 256), (192, 64), (0, 32))
"""From how many queries on so many rows of attention are computed at once."""
_KEYS = 512
"""The most keys at once."""
_CAUSAL = 4
"""Which operand says whether later keys are hidden."""
_LEAST_LAID_OUT, _OFTEN = 64, 4
"""From so many queries and keys on they may be laid out, if each number is read so often."""
_TABLES = 22_000
_FLOAT = 4


def attention_scratch_bytes(args: Sequence[Any], _result: Any) -> int:
    """What each thread has of a block of attention: weights, their maxima and sums, and rows of the result.

    In half precision the weights are there twice. Processors with AMX may have keys and values laid out, too.

    Returns:
        Bytes; 0 on other devices than the CPU.
    """
    query, key = args[0], args[1]
    if query.device.type != "cpu":
        return 0
    rows, keys, width = _block(query, key)
    weights = rows * keys
    in_half = 2 * weights if is_half(query) else 0
    laid_out = 0
    if has_tiles(query.dtype) and _lays_out_keys(query, key, is_causal=len(args) > _CAUSAL and bool(args[_CAUSAL])):
        in_half = 2 * rows * round_up(keys, 2)
        laid_out = _laid_out_keys(query, key)
    return laid_out + torch.get_num_threads() * (_sum_size(query) * (weights + 2 * rows + rows * width) + in_half)


def attention_backward_scratch_bytes(args: Sequence[Any], _result: Any) -> int:
    """The same of its backward: weights and their gradients, and the sums of a block's rows.

    In half precision both are there twice, and products lay out blocks: the larger ones that were seen count.
    """
    gradient, query, key = args[:3]
    if query.device.type != "cpu":
        return 0
    rows, keys, width = _block(query, key)
    blocks = 2 * rows * keys * _sum_size(query)
    of_products = 0
    if is_half(query):
        blocks += blocks // 2
        if has_tiles(query.dtype):
            of_products = _product_bytes(query, key) + _FLOAT
        elif lays_out(query.dtype):
            laid_out = 2 * (round_up(rows, 32) * round_up(keys, 64) + round_up(keys, 64) * width)
            blocks += laid_out + _TABLES
    copied = 0 if gradient.transpose(1, 2).is_contiguous() else tensor_bytes(gradient)
    return copied + rows * _sum_size(query) + of_products + torch.get_num_threads() * blocks


# ---------------------------------------------------------------------------------------------------------------------
# Processors with AMX
# ---------------------------------------------------------------------------------------------------------------------


def _lays_out_keys(query: Tensor, key: Tensor, *, is_causal: bool) -> bool:
    """Whether each thread multiplies with them often enough to make up for it."""
    queries, keys, _ = _sizes(query, key)
    if min(queries, keys) < _LEAST_LAID_OUT:
        return False
    rows, _, _ = _block(query, key)
    heads = _heads(query)
    blocks = -(-heads * -(-queries // rows) // torch.get_num_threads())
    seen = min(queries, keys) if is_causal else keys
    return blocks * rows * seen >= _OFTEN * heads * keys


def _laid_out_keys(query: Tensor, key: Tensor) -> int:
    """Keys and values of all heads in pairs, and what each thread turns; of an odd width queries are padded, too."""
    _, keys, width = _sizes(query, key)
    rows, together, _ = _block(query, key)
    padded = round_up(width, 2)
    numbers = _heads(query) * (padded * keys + round_up(keys, 2) * width)
    turned = together * width + (rows * padded if width % 2 else 0)
    return (numbers + torch.get_num_threads() * turned) * query.element_size()


def _product_bytes(query: Tensor, key: Tensor) -> int:
    """The most that one of the products of a block lays out, or of a last one, which is smaller."""
    queries, keys, width = _sizes(query, key)
    rows, together, _ = _block(query, key)
    blocks = [
        (down, right) for down in {rows, queries % rows or rows} for right in {together, keys % together or together}
    ]
    return max(_tiles_of_block(down, right, width) for down, right in blocks)


def _tiles_of_block(rows: int, keys: int, width: int) -> int:
    """The weights, the gradients of keys and values, and those of queries."""
    products = (
        TileProduct(rows=rows, depth=width, columns=keys, right_by_columns=True),
        TileProduct(rows=keys, depth=rows, columns=width, left_by_columns=True),
        TileProduct(rows=rows, depth=keys, columns=width),
    )
    return max(product.scratch_bytes() for product in products)


# ---------------------------------------------------------------------------------------------------------------------
# Sizes
# ---------------------------------------------------------------------------------------------------------------------


def _block(query: Tensor, key: Tensor) -> tuple[int, int, int]:
    """How many rows and keys are taken at once, and how wide a head is."""
    queries, keys, width = _sizes(query, key)
    rows = min(queries, next(rows for least, rows in _BLOCKS if queries >= least))
    return rows, min(keys, _KEYS), width


def _sizes(query: Tensor, key: Tensor) -> tuple[int, int, int]:
    """How many queries and keys there are, and how wide a head is."""
    return concrete_size(query.shape[-2]), concrete_size(key.shape[-2]), concrete_size(query.shape[-1])


def _heads(query: Tensor) -> int:
    """Those of all samples."""
    return math.prod(map(concrete_size, query.shape[:-2]))


def _sum_size(query: Tensor) -> int:
    """Bytes of a number that is added up."""
    return max(_FLOAT, query.element_size())
