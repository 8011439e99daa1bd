"""Operands that kernels on the CPU copy because they want them dense, or with channels last where one is so.

One copy of each at most is there at one time with all others, as kernels copy first and compute then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import is_non_overlapping_and_dense_or_false, suggest_memory_format

from fxpasses.partitioners.costs.kernels.converted_operands import common_type, copies_bytes
from fxpasses.partitioners.costs.kernels.transposed_copies import tile_bytes
from fxpasses.partitioners.tensor_sizes import concrete_size, tensor_bytes

__all__ = [
    "LAID_OUT_COPIES",
    "dense_copies",
    "flat_copies",
    "lie_together",
    "transform_copies",
    "triangle_copies",
]

_ROLLED_ALONG, _TRAINING = 3, 4
"""So many operands ``roll`` has with dimensions; which operand says that a model is trained."""
_MATRIX = 2
"""Dimensions of one."""
aten = torch.ops.aten


def dense_copies(args: Sequence[Any], _result: Any, *, places: Sequence[int] = (0,)) -> int:
    """Bytes of the operands at these places that are not dense, and of the tile through which a matrix is copied."""
    copied = [each for each in _at(args, places) if not each.is_contiguous()]
    return sum(map(tensor_bytes, copied)) + max(map(tile_bytes, copied), default=0)


def _format_copies(args: Sequence[Any], result: Any, *, places: Sequence[int] = (0,), like: int = 0) -> int:
    """The same for kernels that know channels last: operands are laid out as the one at ``like``."""
    last = suggest_memory_format(args[like])
    if last is torch.contiguous_format:
        return dense_copies(args, result, places=places)
    return sum(tensor_bytes(each) for each in _at(args, places) if not each.is_contiguous(memory_format=last))


def _at(args: Sequence[Any], places: Sequence[int]) -> list[Tensor]:
    return [args[place] for place in places if place < len(args) and isinstance(args[place], Tensor)]


def flat_copies(args: Sequence[Any], _result: Any) -> int:
    """A copy of elements that do not lie in one row."""
    given: Tensor = args[0]
    return 0 if _in_one_row(given, range(given.dim())) else tensor_bytes(given)


def _flattened(args: Sequence[Any], result: Any) -> int:
    """Where the largest of all is looked for, elements in one row."""
    if len(args) > 1 and args[1] is not None:
        return 0
    copied = flat_copies(args, result)
    return copied + tile_bytes(args[0]) if copied else 0


def transform_copies(args: Sequence[Any], _result: Any) -> int:
    """Transforms of rows that do not lie one after the other, in any order, or are one that is repeated."""
    given: Tensor = args[0]
    if any(stride == 0 and size != 1 for size, stride in zip(given.shape, given.stride(), strict=True)):
        return tensor_bytes(given)
    along = {place % given.dim() for place in args[1]}
    others = [place for place in range(given.dim()) if place not in along]
    others.sort(key=lambda place: concrete_size(given.stride(place)), reverse=True)
    return 0 if _in_one_row(given, others) else tensor_bytes(given)


def _in_one_row(given: Tensor, places: Sequence[int]) -> bool:
    """Whether some dimensions are walked through with one step."""
    sizes = [(concrete_size(given.shape[p]), concrete_size(given.stride(p))) for p in places]
    sizes = [each for each in sizes if each[0] != 1]
    return all(outer[1] == inner[0] * inner[1] for outer, inner in pairwise(sizes))


def lie_together(given: Tensor, along: Sequence[int]) -> bool:
    """Whether some dimensions are walked through with one step, in the order in which they lie in memory."""
    places = {place % given.dim() for place in along}
    return _in_one_row(given, sorted(places, key=lambda place: concrete_size(given.stride(place)), reverse=True))


def triangle_copies(args: Sequence[Any], _result: Any) -> int:
    """Matrices of which one does not follow the other, however each of them lies."""
    given: Tensor = args[0]
    if given.is_contiguous() or given.dim() <= _MATRIX:
        return 0
    sizes, strides = (list(map(concrete_size, each)) for each in (given.shape, given.stride()))
    follows = sizes[-1] * sizes[-2]
    for place in range(given.dim() - _MATRIX - 1, -1, -1):
        if strides[place] != follows:
            return tensor_bytes(given)
        follows *= sizes[place]
    return 0


def _picked_rows(args: Sequence[Any], result: Tensor) -> int:
    """A dense copy where dimensions lie on both sides, and of columns; and of where they are."""
    given: Tensor = args[0]
    along = args[1] % max(1, given.dim())
    copied = dense_copies(args, result) if along == 1 or 0 < along < given.dim() - 1 else 0
    return copied + dense_copies(args, result, places=(2,))


def _looked_up(args: Sequence[Any], result: Tensor) -> int:
    """Where the rows are, in one row, through a tile that is gone before they are copied."""
    indices: Tensor = args[1]
    if indices.is_contiguous():
        return 0
    return tensor_bytes(indices) + max(0, tile_bytes(indices) - tensor_bytes(result))


def _rolled(args: Sequence[Any], result: Tensor) -> int:
    """One dimension after the other; a rolled one is there while the next is. All elements in one row are dense."""
    if len(args) < _ROLLED_ALONG or not args[2]:
        return dense_copies(args, result)
    return max(0, min(len(args[1]), 3) - 1) * tensor_bytes(result)


def _extremes(args: Sequence[Any], result: Any) -> int:
    """Of all elements, which are to be dense."""
    return 0 if result[0].dim() else dense_copies(args, result)


def _searched(args: Sequence[Any], result: Any) -> int:
    """Both dense, in one type."""
    return dense_copies(args, result, places=(0, 1)) + copies_bytes(args[:2], common_type(*args[:2]))


def _bent(args: Sequence[Any], result: Any) -> int:
    """Where there is noise."""
    return dense_copies(args, result) if len(args) > _TRAINING and args[_TRAINING] else 0


def _gelu_backward(args: Sequence[Any], _result: Any) -> int:
    """OneDNN wants the gradient as its dense operand is; what lies in another order is copied twice.

    It does not know the approximation by ``tanh``.
    """
    gradient, given, *_, approximate = args
    knows = given.dtype in (torch.float32, torch.bfloat16, torch.float16) and approximate != "tanh"
    if not knows or not given.is_contiguous() or gradient.is_contiguous():
        return 0
    return tensor_bytes(gradient) * (2 if is_non_overlapping_and_dense_or_false(gradient) else 1)


def _backward_copies(args: Sequence[Any], result: Tensor, *, places: Sequence[int] = (0,)) -> int:
    """The operands at some places, laid out as the gradient; and what is made once more, unless it is laid out so."""
    last = suggest_memory_format(args[0])
    made_twice = 0 if result.is_contiguous(memory_format=last) else tensor_bytes(result)
    return _format_copies(args, result, places=places) + made_twice


_DENSE = {
    **dict.fromkeys((aten.max.default, aten.min.default, aten.log_sigmoid_forward.default), (0,)),
    aten.narrow_copy.default: (0,),
    **dict.fromkeys((aten.nll_loss_forward.default,), (0, 2)),
    **dict.fromkeys((aten.normal.float_Tensor, aten.normal.Tensor_Tensor), (1,)),
    aten.masked_scatter.default: (2,),
    aten._segment_reduce_backward.default: (0, 1, 2),
    **dict.fromkeys((aten.avg_pool3d.default, aten.avg_pool3d_backward.default), (0,)),
    aten._adaptive_avg_pool3d_backward.default: (0,),
    aten.adaptive_max_pool3d_backward.default: (0, 2),
    **dict.fromkeys(
        (aten.fractional_max_pool2d.default, aten.fractional_max_pool3d.default, aten.col2im.default), (0,)
    ),
    **dict.fromkeys(
        (
            aten.upsample_bicubic2d_backward.default,
            aten._upsample_bicubic2d_aa_backward.default,
            *(aten.upsample_nearest1d_backward.default, aten._upsample_nearest_exact1d_backward.default),
            *(aten.upsample_linear1d_backward.default, aten.grid_sampler_2d_backward.default),
        ),
        (0,),
    ),
    **dict.fromkeys((aten._softmax_backward_data.default, aten._log_softmax_backward_data.default), (0, 1)),
    aten.multi_margin_loss.default: (0,),
    aten.multi_margin_loss_backward.default: (1,),
    aten._cdist_backward.default: (0, 1, 2),
    aten.embedding_dense_backward.default: (0, 1),
    aten.max_unpool3d.default: (0, 1),
}
_FORMATTED = {
    **dict.fromkeys(
        (
            *(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default),
            *(aten.adaptive_max_pool2d.default, aten.avg_pool2d.default, aten._adaptive_avg_pool2d.default),
            *(aten.reflection_pad1d.default, aten.replication_pad1d.default),
            *(aten.reflection_pad2d.default, aten.replication_pad2d.default),
            *(aten.reflection_pad3d.default, aten.replication_pad3d.default),
            *(aten.pixel_shuffle.default, aten.pixel_unshuffle.default, aten.channel_shuffle.default),
            *(aten.upsample_nearest2d_backward.default, aten._upsample_nearest_exact2d_backward.default),
            aten.upsample_bilinear2d_backward.default,
            *(aten.upsample_nearest3d_backward.default, aten.upsample_trilinear3d_backward.default),
        ),
        0,
    ),
}

LAID_OUT_COPIES: Mapping[Any, Callable[[Sequence[Any], Any], int]] = MappingProxyType(
    {
        **{func: partial(dense_copies, places=places) for func, places in _DENSE.items()},
        **{func: partial(_format_copies, like=like) for func, like in _FORMATTED.items()},
        **dict.fromkeys((aten.argmax.default, aten.argmin.default), _flattened),
        **dict.fromkeys((aten._fft_r2c.default, aten._fft_c2c.default), transform_copies),
        **dict.fromkeys((aten.tril.default, aten.triu.default), triangle_copies),
        aten.index_select.default: _picked_rows,
        aten.embedding.default: _looked_up,
        aten.max_unpool2d.default: partial(_format_copies, places=(0, 1)),
        aten.adaptive_max_pool2d_backward.default: partial(_format_copies, places=(0, 2), like=1),
        aten.roll.default: _rolled,
        aten.aminmax.default: _extremes,
        **dict.fromkeys((aten.searchsorted.Tensor, aten.bucketize.Tensor), _searched),
        aten.rrelu_with_noise.default: _bent,
        aten.gelu_backward.default: _gelu_backward,
        **dict.fromkeys(
            (
                *(aten.avg_pool2d_backward.default, aten._adaptive_avg_pool2d_backward.default),
                *(aten.reflection_pad1d_backward.default, aten.replication_pad1d_backward.default),
                *(aten.reflection_pad2d_backward.default, aten.replication_pad2d_backward.default),
                *(aten.reflection_pad3d_backward.default, aten.replication_pad3d_backward.default),
            ),
            _backward_copies,
        ),
        **dict.fromkeys(  # where maxima were
            (aten.max_pool2d_with_indices_backward.default, aten.max_pool3d_with_indices_backward.default),
            partial(_backward_copies, places=(0, 7)),
        ),
    }
)
"""Operators of which these copies are all that they need."""
