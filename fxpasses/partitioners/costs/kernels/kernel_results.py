"""Results of kernels of which torch's run without data says less than there is, or something else, as they really are.

A view has a stride also along a dimension of one element, and it decides whether channels are taken to come last: of a
batch of one, ``x.transpose(1, 2).view(1, channels, rows, columns)`` has them last without data, and not with data.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch._prims_common import (
    is_non_overlapping_and_dense_or_false,
    make_contiguous_strides_for,
    suggest_memory_format,
)
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes

from fxpasses.metadata import value_of
from fxpasses.partitioners.costs.kernels.lstm_bytes import lstm_workspace_bytes
from fxpasses.partitioners.tensor_sizes import bytes_by_place, concrete_size, tensor_bytes, tensors_in
from fxpasses.partitioners.vmap_rows import rows_of

__all__ = [
    "all_places_bytes",
    "as_real",
    "elements_spanned",
    "elements_together",
    "note_made_within",
    "result_bytes",
]

aten = torch.ops.aten

_MADE_WITHIN: WeakKeyDictionary[Node, Mapping[int, int]] = WeakKeyDictionary()
"""Of an operator with a body the bytes of the storages that the body makes for its results, by their places."""


def as_real(func: Any, args: tuple[Any, ...], result: Any) -> Any:
    """The result of an operator on tensors without data, as large and laid out as that of its kernel."""
    corrected = _CORRECTED.get(func)
    return result if corrected is None else corrected(args, result)


def result_bytes(node: Node, places: Sequence[int]) -> dict[int, int]:
    """The bytes of memory that the result of a node lies in, by the storages that its tensors have."""
    result = _made(node)
    found = bytes_by_place(places, result)
    if found and node.target in _IN_MEMORY_OF_OPERANDS:
        size = elements_together([value_of(used) for used in node.all_input_nodes]) * result[0].element_size()
        found = {place: max(least, size) for place, least in found.items()}
    if found and node.target in _INTO_COPIES and isinstance(given := value_of(node.all_input_nodes[0]), Tensor):
        found = {place: max(least, elements_spanned(given) * given.element_size()) for place, least in found.items()}
    if found and getattr(node.target, "overloadpacket", None) in _WINDOWS and _is_periodic(node):
        found = {place: least + result[0].element_size() for place, least in found.items()}
    if found and node.target in _TO_SPARSE and isinstance(given := value_of(node.all_input_nodes[0]), Tensor):
        found = dict.fromkeys(found, all_places_bytes(given))
    if found and node.target is aten._sparse_sum.dim and result[0].layout is torch.sparse_coo:
        found = dict.fromkeys(found, all_places_bytes(value_of(node.all_input_nodes[0]), result[0].dim()))
    if found and node.target in _BAGS:
        found |= _noted_of_bags(_values_of(node.args), places)
    rows = rows_of(node)
    found = found if rows == 1 else {place: rows * size for place, size in found.items()}
    noted = _MADE_WITHIN.get(node, {}) if _MADE_WITHIN else {}
    return {**found, **{places[slot]: size for slot, size in noted.items()}}


def note_made_within(node: Node, sizes: Mapping[int, int]) -> None:
    """Note how many bytes the body of a node makes for some of its results: one may be a view of what is larger."""
    if sizes:
        _MADE_WITHIN[node] = sizes
    elif _MADE_WITHIN:
        _MADE_WITHIN.pop(node, None)


def _made(node: Node) -> list[Tensor]:
    """The results of a node, in the types that they really have; one value may be two of its operands."""
    result = tensors_in(value_of(node))
    if not result or (place := _WRITTEN_AS.get(node.target)) is None:
        return result
    operands = [each for each in (*node.args, *node.kwargs.values()) if isinstance(each, Node)]
    dtype = value_of(operands[place]).dtype
    return [torch.empty(result[0].shape, dtype=dtype, device="meta")]


def _noted_of_bags(args: Sequence[Any], places: Sequence[int]) -> dict[int, int]:
    """The size of each bag, and of what ends them; nothing where it is said to which bag each belongs, but is not."""
    sizes = {places[2]: tensor_bytes(args[2])}
    return {places[1]: 0, **sizes} if _adds_up_bags(args) else sizes


def _values_of(args: Sequence[Any]) -> list[Any]:
    return [value_of(each) if isinstance(each, Node) else each for each in args]


def _is_periodic(node: Node) -> bool:
    """Whether a window is one element shorter than what it is cut from; one of a single element is not."""
    periodic = node.args[1] if len(node.args) > 1 else True
    return periodic is not False and value_of(node).numel() > 1


def _view(args: tuple[Any, ...], result: Any) -> Any:
    """What a kernel says to be the strides of a view."""
    if 1 not in result.shape or (source := _layout(args[0])) is None or (made := _layout(result)) is None:
        return result
    return _with_strides(result, _strides_of_view(*source, made[0]))


@lru_cache(maxsize=4096)
def _strides_of_view(shape: tuple[int, ...], stride: tuple[int, ...], viewed: tuple[int, ...]) -> tuple[int, ...]:
    with _disable_current_modes():
        return torch.empty_strided(shape, stride, device="meta").view(viewed).stride()


def _of_smaller(args: tuple[Any, ...], result: Any) -> Any:
    """What is made of each element, where one operand is a number, smaller than the others, or repeated.

    Without data a number is not counted among the operands; then all others look as if they had the same shape, and
    dimensions of one element get other strides. So do all dimensions if one operand is as large as the other because it
    is repeated.
    """
    is_repeated = any(isinstance(operand, Tensor) and 0 in operand.stride() for operand in args)
    if 1 not in result.shape and not is_repeated:
        return result
    layouts = tuple(layout for operand in args if (layout := _layout(operand)) is not None)
    if len(layouts) < len(args) or (len({shape for shape, _stride in layouts}) == 1 and not is_repeated):
        return result
    return _with_strides(result, _strides_of_elements(layouts))


def _with_strides(result: Tensor, strides: tuple[int, ...]) -> Tensor:
    return result if strides == result.stride() else result.as_strided(result.shape, strides)


def _layout(operand: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Shape and strides of an operand; those of a number are empty, and there are none that depend on a symbol."""
    if not isinstance(operand, Tensor):
        return (), ()
    sizes = tuple(operand.shape), operand.stride()
    return sizes if all(isinstance(size, int) for size in itertools.chain(*sizes)) else None


@lru_cache(maxsize=4096)
def _strides_of_elements(layouts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]) -> tuple[int, ...]:
    with _disable_current_modes():
        first, *others = [torch.empty_strided(*layout, device="meta") for layout in layouts]
        return torch.addcmul(first, others[0], others[-1]).stride()


def _flipped(args: tuple[Any, ...], result: Any) -> Any:
    """It is laid out as the operand, also along dimensions of one element."""
    given: Tensor = args[0]
    is_dense = is_non_overlapping_and_dense_or_false(given)
    return _with_strides(result, given.stride()) if is_dense and 1 in given.shape else result


def _written_as(args: tuple[Any, ...], result: Any, *, place: int) -> Any:
    """What is computed in the type of several operands and written in that of one is said to have the common one."""
    return result.to(args[place].dtype)


def _soft_margin(args: tuple[Any, ...], result: Any) -> Any:
    """Both are said otherwise: its type, and how large its memory is."""
    return _in_memory_of_operands(args, _written_as(args, result, place=0))


def _in_memory_of_operands(args: tuple[Any, ...], result: Any) -> Any:
    """What is smaller than the operands lies at the beginning of memory as large as they are."""
    count = elements_together(args)
    if count * result.element_size() <= concrete_size(result.untyped_storage().nbytes()):
        return result
    return result.new_empty(count).as_strided(result.shape, result.stride())


def _with_gaps(args: tuple[Any, ...], result: Any) -> Any:
    """What is scattered into a copy that has the strides of the operand, and all that lies between."""
    span = elements_spanned(args[0])
    if span * result.element_size() <= concrete_size(result.untyped_storage().nbytes()):
        return result
    return result.new_empty(span).as_strided(result.shape, result.stride())


def all_places_bytes(given: Tensor, places: int | None = None) -> int:
    """All elements of a tensor, each with its place, or with so many numbers of it: a sparse one may have so many."""
    numbers = given.dim() if places is None else places
    return concrete_size(given.numel()) * (given.element_size() + torch.int64.itemsize * numbers)


def elements_spanned(given: Tensor) -> int:
    """Elements from the first to the last one in memory."""
    sizes = [
        (concrete_size(size), concrete_size(stride)) for size, stride in zip(given.shape, given.stride(), strict=True)
    ]
    return 1 + sum((size - 1) * stride for size, stride in sizes) if all(size for size, _ in sizes) else 0


def elements_together(operands: Sequence[Any]) -> int:
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


def _group_norm_backward(args: tuple[Any, ...], result: Any) -> Any:
    """With weights as floats, the gradient of half precision is said to be floats."""
    gradient = result[0]
    return (gradient.to(args[1].dtype), *result[1:]) if isinstance(gradient, Tensor) else result


def _batch_norm(args: tuple[Any, ...], result: Any) -> Any:
    """What may be taken to have channels last is given so, all else is dense; without data all strides count."""
    given, last = args[0], _LAST.get(args[0].dim())
    if last is not None and given.is_contiguous(memory_format=last) and not given.is_contiguous():
        return (torch.empty_like(result[0], memory_format=last), *result[1:])
    dense = make_contiguous_strides_for(given.shape)
    is_last = last is not None and suggest_memory_format(given) is last
    return result if is_last else (_with_strides(result[0], dense), *result[1:])


def _batch_norm_backward(args: tuple[Any, ...], result: Any) -> Any:
    """The gradient of what went in is only made where somebody asks for it."""
    return result if args[9][0] else (None, *result[1:])


def _with_channels(args: tuple[Any, ...], result: Any) -> Any:
    """Dense, with channels last where the operand has them so."""
    return _in_format(result, suggest_memory_format(args[0]))


def _in_format(result: Tensor, form: torch.memory_format) -> Tensor:
    return result if result.is_contiguous(memory_format=form) else torch.empty_like(result, memory_format=form)


def _dense(_args: tuple[Any, ...], result: Any) -> Any:
    """Dense, however the operand is laid out."""
    made, *others = [result] if isinstance(result, Tensor) else result
    made = _in_format(made, torch.contiguous_format)
    return made if isinstance(result, Tensor) else (made, *others)


def _layer_norm(args: tuple[Any, ...], result: Any) -> Any:
    """The kernel makes a result without gaps, in the order of the dimensions, however the operand is laid out."""
    made: Tensor = result[0]
    return (_with_strides(made, make_contiguous_strides_for(made.shape)), *result[1:])


def _rolled(args: tuple[Any, ...], result: Any) -> Any:
    """What has channels last keeps them so, unless all elements are rolled as one row."""
    last = suggest_memory_format(args[0])
    is_whole = len(args) < _WITH_DIMENSIONS or not args[2]
    return result if is_whole else _in_format(result, last)


def _padding_backward(args: tuple[Any, ...], result: Any) -> Any:
    """The gradient of what has channels last is said to have them first."""
    return result.contiguous(memory_format=suggest_memory_format(args[1]))


def _embedding_bag(args: tuple[Any, ...], result: Any) -> Any:
    """To which bag each index belongs: one more than there are indices; the size of each bag, and of what ends them."""
    count = args[1].shape[0] + 1 if result[1].numel() and not _adds_up_bags(args) else 0
    bag_of = result[1].new_empty(count)
    sizes = result[2].new_empty(args[2].shape[0])[: result[2].shape[0]]
    return (result[0], bag_of, sizes, *result[3:])


def _adds_up_bags(args: Sequence[Any]) -> bool:
    """Whether sums are made without noting to which bag each index belongs; of bfloat16 the opposite is said."""
    given = dict(enumerate(args))
    weight, scale, padding = given[0], given.get(_SCALE), given.get(_LEFT_OUT)
    is_dense = weight.stride(1) == 1 and (scale is None or scale.stride(0) == 1)
    is_float = weight.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return given.get(_MODE, 0) == 0 and is_dense and is_float and (padding is None or padding < 0)


_MODE, _SCALE, _LEFT_OUT = 4, 6, 8
"""Which operands of bags say what is made of one, how much each counts, and which index counts nothing."""
_WITH_DIMENSIONS = 3
"""Operands of ``roll`` where some are given."""
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}

_IN_MEMORY_OF_OPERANDS = (
    *(aten.col2im.default, aten.im2col.default),
    *(aten.binary_cross_entropy.default, aten.mse_loss.default),
    *(aten.smooth_l1_loss.default, aten.soft_margin_loss.default),
)
"""Kernels that take memory as large as their operands, and shrink the result in it."""

_WRITTEN_AS: Mapping[Any, int] = MappingProxyType(
    {
        **dict.fromkeys((aten.huber_loss.default, aten.soft_margin_loss.default), 0),
        **dict.fromkeys((aten.mse_loss_backward.default, aten.smooth_l1_loss_backward.default), 1),
        aten.soft_margin_loss_backward.default: 1,
    }
)
"""Kernels that take operands of two types, and in which operand's type they write."""

_INTO_COPIES = (
    *(aten.select_scatter.default, aten.slice_scatter.default, aten.diagonal_scatter.default),
    aten.as_strided_scatter.default,
)
"""Kernels that copy an operand with its strides, and write into that."""

_TO_SPARSE = (aten.to_sparse.default, aten._to_sparse.default)
"""What makes a sparse tensor of a dense one, of which nobody knows how many elements are zero."""

_WINDOWS = (aten.hann_window, aten.hamming_window, aten.blackman_window, aten.bartlett_window, aten.kaiser_window)
"""Kernels that make one element more of a periodic window, and leave it out."""

_BAGS = (
    *(aten.embedding_bag.default, aten.embedding_bag.padding_idx),
    *(aten._embedding_bag.default, aten._embedding_bag_forward_only.default),
)
"""Kernels of bags, the second result of which says to which bag each index belongs."""

_OF_TWO = (
    *(aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.div.Tensor_mode),
    *(aten.add.Scalar, aten.sub.Scalar, aten.mul.Scalar, aten.div.Scalar, aten.div.Scalar_mode, aten.rsub.Scalar),
    *(aten.remainder.Scalar, aten.fmod.Scalar, aten.floor_divide.default, aten.floor_divide.Scalar),
    *(aten.copysign.Scalar, aten.xlogy.Scalar_Other, aten._prelu_kernel.default),
    *(aten.gt.Scalar, aten.ge.Scalar, aten.lt.Scalar, aten.le.Scalar, aten.eq.Scalar, aten.ne.Scalar),
)
"""Kernels of each element of two operands that may be a number and a tensor."""

_CORRECTED: Mapping[Any, Callable[[tuple[Any, ...], Any], Any]] = MappingProxyType(
    {
        **dict.fromkeys(_IN_MEMORY_OF_OPERANDS, _in_memory_of_operands),
        **{func: partial(_written_as, place=place) for func, place in _WRITTEN_AS.items()},
        aten.soft_margin_loss.default: _soft_margin,
        **dict.fromkeys(_INTO_COPIES, _with_gaps),
        **dict.fromkeys((aten.view.default, aten._unsafe_view.default), _view),
        **dict.fromkeys(_OF_TWO, lambda args, result: _of_smaller(args[:2], result)),
        **dict.fromkeys((aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf), _of_smaller),
        aten.flip.default: _flipped,
        aten.roll.default: _rolled,
        **dict.fromkeys(
            (
                *(aten.channel_shuffle.default, aten.native_channel_shuffle.default, aten.max_unpool2d.default),
                *(aten.replication_pad3d.default, aten.reflection_pad3d.default),
            ),
            _with_channels,
        ),
        **dict.fromkeys((aten.log_sigmoid_forward.default, aten.pow.Scalar), _dense),
        aten.native_layer_norm.default: _layer_norm,
        aten.mkldnn_rnn_layer.default: _lstm,
        aten.mkldnn_rnn_layer_backward.default: _lstm_backward,
        **dict.fromkeys(
            (
                *(aten.native_batch_norm.default, aten._native_batch_norm_legit.default),
                *(aten._native_batch_norm_legit_no_training.default, aten._batch_norm_with_update.default),
            ),
            _batch_norm,
        ),
        aten.native_batch_norm_backward.default: _batch_norm_backward,
        aten.native_group_norm_backward.default: _group_norm_backward,
        **dict.fromkeys(
            (
                *(aten.reflection_pad2d_backward.default, aten.replication_pad2d_backward.default),
                *(aten.reflection_pad3d_backward.default, aten.replication_pad3d_backward.default),
            ),
            _padding_backward,
        ),
        aten._embedding_bag.default: _embedding_bag,
        aten._embedding_bag_forward_only.default: _embedding_bag,
    }
)
