"""Results of kernels of which torch's run without data says less than there is, as large as they really are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from fxpasses.metadata import value_of
from fxpasses.partitioners.tensor_sizes import bytes_by_place, concrete_size, tensors_in

__all__ = ["as_large_as_real", "result_bytes", "scratch_bytes"]

_PAGE, _LINE, _BYTES = 4096, 16, 4  # floats in a cache line
_GATES, _BLOCK = 4, 32  # of an LSTM; oneDNN lays the weights of each gate out in whole blocks
aten = torch.ops.aten


def as_large_as_real(func: Any, args: tuple[Any, ...], result: Any) -> Any:
    """The result of an operator on tensors without data, with results as large as those of its kernel."""
    enlarged = _ENLARGED.get(func)
    return result if enlarged is None else enlarged(args, result)


def scratch_bytes(func: Any, args: tuple[Any, ...]) -> int:
    """What a kernel needs for itself while it runs, and asks for where nobody sees it."""
    return _lstm_scratch_bytes(args) if func is aten.mkldnn_rnn_layer.default else 0


def result_bytes(node: Node, places: Sequence[int]) -> dict[int, int]:
    """The bytes of memory that the result of a node lies in, by the storages that its tensors have."""
    result = tensors_in(value_of(node))
    found = bytes_by_place(places, result)
    if found and node.target in _IN_MEMORY_OF_OPERANDS:
        size = _elements_together([value_of(used) for used in node.all_input_nodes]) * result[0].element_size()
        found = {place: max(least, size) for place, least in found.items()}
    return found


def _in_memory_of_operands(args: tuple[Any, ...], result: Any) -> Any:
    """What is smaller than the operands lies at the beginning of memory as large as they are."""
    count = _elements_together(args)
    if count * result.element_size() <= concrete_size(result.untyped_storage().nbytes()):
        return result
    return result.new_empty(count).as_strided(result.shape, result.stride())


def _elements_together(operands: Sequence[Any]) -> int:
    """Of one tensor, or of what several have together when small ones are repeated."""
    shapes = [[concrete_size(size) for size in each.shape] for each in operands if isinstance(each, Tensor)]
    return math.prod(map(max, itertools.zip_longest(*map(reversed, shapes), fillvalue=1)))


def _lstm(args: tuple[Any, ...], result: Any) -> Any:
    """What is kept for the backward is said to be empty."""
    if not torch.is_grad_enabled():
        return result
    size = lstm_workspace_bytes(args[0], hidden=args[10])
    return (*result[:3], torch.empty(size, dtype=torch.uint8, device=args[0].device))


def _lstm_backward(_args: tuple[Any, ...], result: Any) -> Any:
    """The gradients of the two biases are said to be one tensor."""
    return (*result[:4], torch.empty_like(result[4]), *result[5:])


def _embedding_bag(args: tuple[Any, ...], result: Any) -> Any:
    """To which bag each index belongs: one more than there are indices; the size of each bag, and of what ends them."""
    bag_of = result[1].new_empty(args[1].shape[0] + 1) if result[1].numel() else result[1]
    sizes = result[2].new_empty(args[2].shape[0])[: result[2].shape[0]]
    return (result[0], bag_of, sizes, *result[3:])


_IN_MEMORY_OF_OPERANDS = (
    *(aten.col2im.default, aten.im2col.default),
    *(aten.binary_cross_entropy.default, aten.mse_loss.default),
    *(aten.smooth_l1_loss.default, aten.soft_margin_loss.default),
)
"""Kernels that take memory as large as their operands, and shrink the result in it."""

_ENLARGED: Mapping[Any, Callable[[tuple[Any, ...], Any], Any]] = MappingProxyType(
    {
        **dict.fromkeys(_IN_MEMORY_OF_OPERANDS, _in_memory_of_operands),
        aten.mkldnn_rnn_layer.default: _lstm,
        aten.mkldnn_rnn_layer_backward.default: _lstm_backward,
        aten._embedding_bag.default: _embedding_bag,
        aten._embedding_bag_forward_only.default: _embedding_bag,
    }
)


def lstm_workspace_bytes(given: Tensor, *, hidden: int) -> int:
    """At least what oneDNN keeps of one layer of an LSTM in one direction: gates, states and their gradients.

    The input is ``(steps, batch, width)`` whatever the module is given, as torch turns it before.

    It is exact for most layers, and 1.1 times as much for narrow ones; in half the precision 1.5 times.

    Source: oneDNN, ``src/cpu/rnn/rnn_utils.hpp``: ``set_workspace_sizes`` and ``get_good_ld``.
    """
    steps, batch, _ = given.shape
    states = 2 * (steps + 1) * batch
    wide, narrow = _row(max(given.shape[2], hidden)), _row(hidden)
    sizes = (steps * batch * _row(4 * hidden), *3 * [states * wide], *2 * [states * narrow], steps * batch * narrow)
    return sum(-(-size // _PAGE) * _PAGE for size in sizes)


def _lstm_scratch_bytes(args: tuple[Any, ...]) -> int:
    """About what oneDNN needs to run one layer of an LSTM in one direction, without a backward.

    Both weights in its own layout, the gates of all steps, rows of states (of all steps, where the input is wider), and
    the input with its steps first. The layout is exact; rows and pages are fitted to what was allocated, with a margin:
    docs/lowering.md says how near that is for models which were not looked at.
    """
    given, weight, hidden = args[0], args[1], args[10]
    if torch.is_grad_enabled():  # as large as what is kept for the backward, and counted there
        return 0
    steps, batch, width = given.shape
    weights = _GATES * -(-hidden // _BLOCK) * _BLOCK * (width + hidden) * weight.element_size()
    gates = steps * batch * _row(_GATES * hidden) * (2 if 1 in (steps, batch) else 1)
    rows, pages = (2.2 - hidden / width) * (steps + 1) if width > hidden else 13, 8 if width > hidden else 5
    states = rows * batch * _row(max(width, hidden)) + pages * _PAGE
    return int(weights + gates + states + (0 if given.is_contiguous() else given.nbytes))


def _row(width: int) -> int:
    """Bytes of a row: whole cache lines, and no multiple of 256 elements, which would share places in the cache."""
    padded = -(-width // _LINE) * _LINE
    return _BYTES * (padded + _LINE if padded % 256 == 0 else padded)
