"""Sizes as numbers: symbolic ones at their hint or bound, bytes of tensors and of what keeps them alive."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fxpasses.partitioners.symbol_bounds import UNKNOWN_SIZE, Sizes, largest

__all__ = [
    "Sizes",
    "bytes_as",
    "bytes_by_place",
    "concrete_size",
    "concrete_value",
    "is_half",
    "lying_bytes",
    "memory_bytes",
    "storage_bytes",
    "tensor_bytes",
    "tensors_in",
]


def concrete_size(size: Any, default: int = UNKNOWN_SIZE, *, sizes: Sizes = "hint") -> int:
    """A symbolic size at its hint, else the most that it may be; ``default`` for what is no size.

    See :func:`~fxpasses.partitioners.symbol_bounds.largest`.
    """
    if isinstance(size, int):
        return int(size)
    node = getattr(size, "node", None)
    if node is None:
        return default
    hint = getattr(node, "hint", None)
    if hint is not None and sizes == "hint":
        return int(hint)
    most = largest(node.expr, node.shape_env, sizes) if getattr(node, "shape_env", None) is not None else None
    if most is not None:
        return most
    return default if hint is None else max(default, int(hint))


def concrete_value(value: Any, sizes: Sizes = "hint") -> Any:
    """A recorded value with numbers for symbols: tensors of symbolic shape become dense ``meta`` tensors.

    Nothing is known of numbers with a fraction that a tensor gives (``item``); 1 stands for these.
    """

    def concrete(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and not all(isinstance(size, int) for size in leaf.shape):
            shape = [concrete_size(size, sizes=sizes) for size in leaf.shape]
            return torch.empty(shape, dtype=leaf.dtype, device="meta")
        if isinstance(leaf, torch.SymFloat):
            return 1.0 if leaf.node.hint is None else float(leaf.node.hint)
        return concrete_size(leaf, sizes=sizes) if isinstance(leaf, torch.SymInt) else leaf

    if isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, int, float)):  # nearly all: a walk is slow
        return concrete(value)
    return pytree.tree_map(concrete, value)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in a value of any nesting, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple, dict)):
        return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return []


def bytes_as(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    """The bytes of as many elements of a type as a tensor has."""
    return math.prod(map(concrete_size, tensor.shape)) * dtype.itemsize


def is_half(tensor: torch.Tensor) -> bool:
    """Whether its elements are of half precision."""
    return tensor.dtype in (torch.bfloat16, torch.float16)


def tensor_bytes(tensor: torch.Tensor) -> int:
    """The bytes of a tensor's elements, for real, fake, symbolic and sparse-free quantised tensors."""
    return math.prod(concrete_size(size) for size in tensor.shape) * tensor.element_size()


def memory_bytes(tensor: torch.Tensor) -> int:
    """The bytes of memory that a tensor's elements lie in: what ``expand`` repeats, or windows share, is there once.

    >>> memory_bytes(torch.zeros(4, 1).expand(4, 100)), tensor_bytes(torch.zeros(4, 1).expand(4, 100))
    (16, 1600)
    >>> memory_bytes(torch.zeros(100).unfold(0, 10, 1))
    400
    """
    if tensor.layout is not torch.strided:
        return tensor_bytes(tensor)
    shape, strides = map(concrete_size, tensor.shape), map(concrete_size, tensor.stride())
    walked = [(size, stride) for size, stride in zip(shape, strides, strict=True) if stride != 0]
    span = 1 + sum((size - 1) * stride for size, stride in walked)
    return min(math.prod(size for size, _ in walked), max(0, span)) * tensor.element_size()


def bytes_by_place(
    places: Sequence[int], tensors: Sequence[torch.Tensor], measure: Callable[[torch.Tensor], int] = memory_bytes
) -> dict[int, int]:
    """The bytes of each storage that the tensors of a value lie in: one for each, or else equal shares of all.

    >>> bytes_by_place((7, 8), (torch.zeros(3), torch.zeros(5)))
    {7: 12, 8: 20}
    """
    sizes = list(map(measure, tensors))
    if len(sizes) != len(places):
        return dict.fromkeys(places, sum(sizes) // len(places)) if places else {}
    found: dict[int, int] = {}
    for place, size in zip(places, sizes, strict=True):
        found[place] = found.get(place, 0) + size
    return found


def storage_bytes(tensor: torch.Tensor) -> int:
    """The bytes that keeping a tensor alive keeps: its whole storage, of which it may be a small view."""
    try:
        size = tensor.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError):
        return tensor_bytes(tensor)
    return concrete_size(size, tensor_bytes(tensor))


def lying_bytes(tensor: torch.Tensor) -> int:
    """The bytes that a tensor lies in, gaps between its elements included, and one behind the last.

    What repeats a part of its storage counts as all of it, as far as it has elements.

    >>> lying_bytes(torch.zeros(10, 20)[:, ::2]), lying_bytes(torch.zeros(10, 20)[3:5])
    (800, 160)
    >>> lying_bytes(torch.zeros(4, 1).expand(4, 100))
    16
    """
    if tensor.layout is not torch.strided:
        return tensor_bytes(tensor)
    shape, strides = list(map(concrete_size, tensor.shape)), list(map(concrete_size, tensor.stride()))
    if not all(shape):
        return 0
    span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    most = max([math.prod(shape), *(size * stride for size, stride in zip(shape, strides, strict=True))])
    return max(span * tensor.element_size(), min(most * tensor.element_size(), storage_bytes(tensor)))
