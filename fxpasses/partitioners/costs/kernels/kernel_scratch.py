"""What kernels on the CPU need for themselves while they run, and ask the allocator for where no dispatcher sees it.

Operands are converted to the type that is computed in, and laid out as the kernel wants them. Of other devices nothing
is known. The sizes are what torch's allocator was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fxpasses.partitioners.costs.kernels.attention_scratch import (
    attention_backward_scratch_bytes,
    attention_scratch_bytes,
)
from fxpasses.partitioners.costs.kernels.converted_operands import (
    common_type,
    converted_bytes,
    copies_bytes,
    is_pointwise,
    number_bytes,
    wraps_number,
)
from fxpasses.partitioners.costs.kernels.convolution_scratch import (
    convolution_backward_scratch_bytes,
    convolution_scratch_bytes,
)
from fxpasses.partitioners.costs.kernels.grouped_scratch import grouped_scratch_bytes
from fxpasses.partitioners.costs.kernels.kernel_results import all_places_bytes, elements_together
from fxpasses.partitioners.costs.kernels.laid_out_copies import (
    LAID_OUT_COPIES,
    dense_copies,
    flat_copies,
    transform_copies,
)
from fxpasses.partitioners.costs.kernels.linear_algebra_scratch import LINEAR_ALGEBRA
from fxpasses.partitioners.costs.kernels.loss_scratch import LOSSES
from fxpasses.partitioners.costs.kernels.lstm_bytes import lstm_backward_scratch_bytes, lstm_scratch_bytes
from fxpasses.partitioners.costs.kernels.normalization_scratch import NORMALIZATIONS
from fxpasses.partitioners.costs.kernels.picked_scratch import PICKED
from fxpasses.partitioners.costs.kernels.product_scratch import product_scratch_bytes, vector_scratch_bytes
from fxpasses.partitioners.costs.kernels.reduced_scratch import REDUCED, angle_bytes, length_bytes
from fxpasses.partitioners.costs.kernels.resized_scratch import RESIZED
from fxpasses.partitioners.costs.kernels.scattered_scratch import SCATTERED
from fxpasses.partitioners.costs.kernels.transposed_copies import COPIED_INTO, copied_first, tile_bytes
from fxpasses.partitioners.tensor_sizes import bytes_as, concrete_size, is_half, tensor_bytes, tensors_in

__all__ = ["may_need_scratch", "scratch_bytes"]

_NUMBER = 8
_MATRIX = 2
_TABLES = 512
_AGAIN, _SCALE, _WEIGHTS, _LARGEST = 2, 6, 10, 2
"""Which operands say that what is drawn may be drawn again, and weights of bags, also backward; the mode of maxima."""
_FEW_POINTS, _NEVER_BY_PRODUCT = 25, 2
"""Up to so many points distances are computed one by one, or always, if the caller says so."""
_SORTED_PLACE = 3
"""Numbers of each element of a sparse tensor while one that tells its place is sorted; it is made of several first."""
aten = torch.ops.aten


def scratch_bytes(func: Any, args: Sequence[Any], result: Any, named: Mapping[str, Any] | None = None) -> int:
    """The most bytes that a kernel has at one time beside its operands and its result.

    Args:
        func: An operator, as the dispatcher sees it.
        args: Its operands: tensors, with or without data.
        result: What it makes of them.
        named: Those that are given by name.
    """
    if (name := _BY_NAME.get(func)) is not None:
        args = (*args, (named or {}).get(name))
    if (asks := _SCRATCH.get(func)) is not None:
        return 0 if _is_elsewhere(next(iter(tensors_in([args, result])))) else asks(args, result)
    return (converted_bytes(func, args, result) if is_pointwise(func) else 0) + number_bytes(func, args, result)


def may_need_scratch(target: Any, args: Sequence[Any], operands: Sequence[Tensor], result: Any) -> bool:
    """Whether a kernel may need something for itself, by its name and by its operands and the type of its result.

    What is only said to be conjugated or negated is so in a copy, where a kernel does not know better.
    """
    if target in _SCRATCH or wraps_number(target, args) or any(each.is_conj() or each.is_neg() for each in operands):
        return True
    return is_pointwise(target) and len({each.dtype for each in (*operands, *tensors_in(result))}) > 1


def _infinite_bytes(args: Sequence[Any], _result: Any) -> int:
    """How large each is, and the largest number; of complex numbers, which of them are."""
    given: Tensor = args[0]
    size = bytes_as(given, given.dtype)
    if given.is_complex():
        return size // 2 + concrete_size(given.numel())
    return size + _NUMBER + given.element_size() if given.is_floating_point() else 0


def _grid_bytes(args: Sequence[Any], result: Tensor) -> int:
    """Places of an image with three coordinates, or four of a volume; products in half precision have blocks."""
    base = bytes_as(result, result.dtype) // int(result.shape[-1]) * (int(result.shape[-1]) + 1)
    return base + (base // 2 if is_half(args[0]) else 0)


def _drawn_bytes(args: Sequence[Any], result: Tensor) -> int:
    """Probabilities, divided by what is drawn, and the largest; where all may be drawn again, the sums of one row."""
    given: Tensor = args[0]
    is_again = len(args) > _AGAIN and args[_AGAIN] and args[1] > 1
    if is_again:
        return concrete_size(given.shape[-1]) * max(given.element_size(), torch.float32.itemsize) + _TABLES
    largest = bytes_as(result, given.dtype) if args[1] > 1 else 0
    return bytes_as(given, given.dtype) + largest + _TABLES


def _masked_softmax_bytes(_args: Sequence[Any], result: Tensor) -> int:
    """Which weights are minus infinity, and which rows have no others."""
    count = concrete_size(result.numel())
    return count + 2 * count // max(1, concrete_size(result.shape[-1])) + _TABLES


def _distance_of_all_bytes(args: Sequence[Any], _result: Any) -> int:
    """The difference, and operands in its type."""
    common = common_type(*args[:2])
    return elements_together(args[:2]) * common.itemsize + copies_bytes(args[:2], common)


def _added_products_bytes(args: Sequence[Any], result: Tensor) -> int:
    """What one product needs: they are added one after the other."""
    return product_scratch_bytes((args[1][0], args[2][0]), result) if concrete_size(args[1].shape[0]) else 0


def _bins_bytes(args: Sequence[Any], result: Tensor) -> int:
    """Where each begins, beside what it takes to count: dense elements where their range is asked for."""
    asked = dense_copies(args, result) if _is_whole_range(*args[2:4]) else 0
    begins = bytes_as(result, result.dtype) + result.element_size()
    return _counting_bytes([args[0]], result, begins, max(_counted_bytes(result), asked + 2 * result.element_size()))


def _counted_bins_bytes(args: Sequence[Any], result: Any) -> int:
    """The same where the result has where each begins; weights, which come last, are in one row, too."""
    least = 2 * result[0].element_size()
    return _counting_bytes([args[0], args[-1]], result, 0, max(_counted_bytes(result[0]), least))


def _counted_boxes_bytes(args: Sequence[Any], result: Tensor) -> int:
    """In several dimensions: where each begins, as given and as it is read."""
    begins = 2 * sum(count + 1 for count in args[1]) * result.element_size()
    return _counting_bytes([args[-1]], result, begins, _counted_bytes(result))


def _counted_bytes(bins: Tensor) -> int:
    """What each thread counts."""
    return torch.get_num_threads() * bytes_as(bins, bins.dtype)


def _counting_bytes(operands: Sequence[Any], result: Any, begins: int, inside: int) -> int:
    """Operands in one row, each copied through a tile ahead of the result, and what is there while they are counted."""
    copied = [each for each in operands if isinstance(each, Tensor) and flat_copies([each], None)]
    rows, made = sum(map(tensor_bytes, copied)), sum(map(tensor_bytes, tensors_in(result)))
    return rows + max(begins + inside, max(map(tile_bytes, copied), default=0) - made)


def _is_whole_range(least: float = 0, most: float = 0) -> bool:
    return least == most


def _drawn_around_bytes(_args: Sequence[Any], result: Tensor) -> int:
    """What is drawn, before it is moved."""
    return bytes_as(result, result.dtype)


def _gammas_bytes(args: Sequence[Any], result: Tensor) -> int:
    """One for each dimension, and which ones."""
    return int(args[1]) * (bytes_as(result, result.dtype) + _NUMBER) + _TABLES


def _segments_bytes(args: Sequence[Any], result: Tensor) -> int:
    """A dense copy, and where each segment begins."""
    return dense_copies(args, result) + _NUMBER * concrete_size(result.shape[0])


def _shortened_bytes(args: Sequence[Any], _result: Any) -> int:
    """How long each is, by the largest of complex numbers with how large all are; half precision as floats."""
    given: Tensor = args[0]
    lengths = 2 * concrete_size(given.shape[args[2]]) * max(_NUMBER, given.element_size())
    if given.is_complex() and math.isinf(args[1]):
        one_each = concrete_size(given.shape[args[2]]) * given.element_size() // 2
        return max(lengths, tensor_bytes(given) + tensor_bytes(given) // 2 + one_each)
    return lengths + (bytes_as(given, torch.float32) if is_half(given) else 0)


def _table_bytes(args: Sequence[Any], _result: Any) -> int:
    """How often each dimension is repeated, and with which steps."""
    return 4 * _NUMBER * len(args[1])


def _joined_bytes(args: Sequence[Any], result: Tensor) -> int:
    """What is of another type than the result is copied before it is converted, one after the other."""
    return max((tensor_bytes(each) for each in args[0] if each.dtype != result.dtype), default=0)


def _windows_bytes(args: Sequence[Any], _result: Any) -> int:
    """Where each element of a dimension is."""
    return _NUMBER * concrete_size(args[1][args[2]])


def _selected_bytes(args: Sequence[Any], _result: Any) -> int:
    """The tile through which a gradient is copied."""
    return tile_bytes(args[0])


def _bag_backward_bytes(args: Sequence[Any], _result: Any) -> int:
    """Where each index is, sorted, with which weight and, unless that is known, in which bag.

    Of maxima where they were, of bags that are not empty. The number more is the one by which what was kept of the
    forward is longer than is recorded: in which bag each index is.
    """
    gradient, indices = args[:2]
    mode, weights = args[8], args[10] if len(args) > _WEIGHTS else None
    if mode == _LARGEST:
        bags = gradient.shape[0]
        return (
            bytes_as(gradient, gradient.dtype) + bytes_as(gradient, torch.int64) + (concrete_size(bags) + 1) * _NUMBER
        )
    of_weights = bytes_as(weights, weights.dtype) if isinstance(weights, Tensor) else 0
    places = bytes_as(indices, torch.int64)
    bag_of = 0 if concrete_size(args[3].numel()) else places
    return dense_copies(args, None) + bag_of + 3 * places + of_weights + _NUMBER


def _copied_by_tiles(args: Sequence[Any], result: Any) -> int:
    """A dense copy of a matrix by its columns."""
    source = args[1] if len(args) > 1 and isinstance(args[1], Tensor) else args[0]
    made: Tensor = tensors_in(result)[0]
    is_by_tiles = made.is_contiguous() and made.dtype == source.dtype and made.shape == source.shape
    return tile_bytes(source) if is_by_tiles and not _is_elsewhere(made) else 0


def _copied_ahead(args: Sequence[Any], result: Tensor, *, asks: Callable[[Sequence[Any], Any], int]) -> int:
    """What a kernel needs, or ahead of it the copy of its first operand that it writes to."""
    return max(copied_first(args, result), asks(args, result))


def _dirichlet_bytes(_args: Sequence[Any], result: Tensor) -> int:
    """What is drawn, and its sums, in doubles."""
    return bytes_as(result, torch.float64) + bytes_as(result[..., 0], torch.float64)


def _found_bytes(args: Sequence[Any], _result: Any) -> int:
    """All places that may be found, of which so many are taken as are asked for."""
    given: Tensor = args[0]
    return given.dim() * _NUMBER * concrete_size(given.numel())


def _exchanged_by_tiles(args: Sequence[Any], result: Any) -> int:
    """A dense copy of a matrix of which rows and columns are exchanged: of one with two dimensions that is all."""
    source: Tensor = args[0]
    is_exchanged = source.dim() == _MATRIX and result.shape == source.mT.shape
    return _copied_by_tiles((source.mT,), result) if is_exchanged else 0


def _sorted_bytes(args: Sequence[Any], _result: Any) -> int:
    """Where each element of a row goes."""
    given: Tensor = args[0]
    along = args[1] if len(args) > 1 and isinstance(args[1], int) and not isinstance(args[1], bool) else -1
    if _is_elsewhere(given) or not given.dim():
        return 0
    return torch.get_num_threads() * torch.int64.itemsize * concrete_size(given.shape[along])


def _sorted_somewhere_bytes(args: Sequence[Any], _result: Any) -> int:
    """The same along the longest dimension: which one it is is not told."""
    given: Tensor = args[0]
    longest = max(map(concrete_size, given.shape), default=0)
    return 0 if _is_elsewhere(given) else torch.get_num_threads() * torch.int64.itemsize * longest


def _unfolded_bytes(args: Sequence[Any], result: Tensor) -> int:
    """Memory as large as the operand, which turns out to be too small, and a dense copy of it."""
    size = bytes_as(args[0], args[0].dtype)
    return (size if bytes_as(result, result.dtype) > size else 0) + dense_copies(args, result)


def _distance_bytes(args: Sequence[Any], result: Tensor) -> int:
    """Dense copies, and what a product of matrices needs that gives the distances, where it does."""
    left, right = args[:2]
    copied = dense_copies(args, result, places=(0, 1))
    mode = args[3]
    many = any(concrete_size(each.shape[-2]) > _FEW_POINTS for each in (left, right))
    if args[2] != 2 or mode == _NEVER_BY_PRODUCT or not (many or mode == 1):
        return copied
    return copied + _product_of_points_bytes(args, result)


def _product_of_points_bytes(args: Sequence[Any], result: Tensor) -> int:
    """Both operands with two columns more, and what their product needs; ahead of it one of them once more."""
    left: Tensor = args[0]
    right: Tensor = args[1]
    first, second = [_wider(each) for each in (left, right)]
    turned = second.mT
    if turned.dim() > 2 and turned.shape[0] == 1:  # as ``matmul`` has a batch of one
        width = concrete_size(turned.shape[1])
        turned = turned.as_strided(turned.shape, (width, 1, width))
    multiplying = tensor_bytes(first) + tensor_bytes(second) + product_scratch_bytes((first, turned), result)
    beside = 2 * sum(tensor_bytes(each[..., :1]) for each in (first, second)) + _NUMBER + left.element_size()
    return max(multiplying, tensor_bytes(left) + tensor_bytes(first) + beside - tensor_bytes(result))


def _places_first_bytes(args: Sequence[Any], result: Tensor) -> int:
    """What one product needs: those of all places of the kernel are added one after the other."""
    given, weight = args[:2]
    return product_scratch_bytes((given.flatten(0, 1), weight[0]), result)


def _wider(points: Tensor) -> Tensor:
    """Points, of one batch or of none, with the square of their length and a one."""
    *batch, count, width = map(concrete_size, points.shape)
    return points.new_empty([*[math.prod(batch)] * bool(batch), count, width + 2])


def _bag_bytes(args: Sequence[Any], result: Any) -> int:
    """How many there are in each bag, counted once more, and as floats, where it is said to which bag each belongs.

    Before, that is added up from where bags begin. Half precision is added up as floats, of rows that are not dense;
    of those that are, how much each counts is converted.
    """
    bags, bag_of, size_of = result[:3]
    if _is_elsewhere(bag_of):
        return 0
    if not concrete_size(bag_of.numel()):
        scale = args[_SCALE] if len(args) > _SCALE else None
        return bytes_as(scale, torch.float32) if isinstance(scale, Tensor) and is_half(args[0]) else 0
    is_in_floats = is_half(args[0]) and concrete_size(args[0].stride(1)) != 1
    summing = bytes_as(bags, torch.float32) + bytes_as(bags[:1], torch.float32) if is_in_floats else 0
    return max(bytes_as(size_of, torch.int64) * 3 // 2, bytes_as(bag_of, torch.int64), summing)


def _bag_of_each_bytes(args: Sequence[Any], _result: Any) -> int:
    """To which bag each index belongs, counted and added up, unless that is known."""
    indices, bag_of = args[2], args[4]
    return 0 if concrete_size(bag_of.numel()) else 2 * _NUMBER * (concrete_size(indices.numel()) + 1)


def _sparse_bytes(args: Sequence[Any], _result: Any) -> int:
    """Elements and their places, before they are put in order."""
    return all_places_bytes(args[0])


def _sparse_sum_bytes(args: Sequence[Any], _result: Any) -> int:
    """Elements with the places that are kept, before they are put in order, by one number for each, which is sorted.

    Where no place is kept they are added up as they are. How many there are is not known, so all count.
    """
    given: Tensor = args[0]
    kept = given.dim() - len({along % given.dim() for along in args[1]})
    numbers = 0 if kept == 0 else _SORTED_PLACE if kept == 1 else _SORTED_PLACE + 1
    return all_places_bytes(given, kept + numbers)


def _chunked_bytes(args: Sequence[Any], _result: Any) -> int:
    """All that do not come out even are filled up first."""
    tensors, along, count = args
    filled = 0
    for each in tensors:
        size = concrete_size(each.shape[along])
        chunk = -(-size // count)
        filled += tensor_bytes(each) // size * chunk * count if size and chunk * count != size else 0
    return filled


def _viewed_copy_bytes(args: Sequence[Any], _result: Any) -> int:
    """The tile of a matrix by its columns."""
    return tile_bytes(args[0])


def _is_elsewhere(tensor: Tensor) -> bool:
    return tensor.device.type != "cpu"


_WITH_BINS = (aten.histogram.bin_ct, aten.histogram.bins_tensor, aten._histogramdd_from_bin_cts.default)

_BY_NAME: Mapping[Any, str] = MappingProxyType(
    {aten.gelu_backward.default: "approximate", **dict.fromkeys(_WITH_BINS, "weight")}
)
"""Operands that are only given by name, and make a difference."""

_SCRATCH: Mapping[Any, Callable[[Sequence[Any], Any], int]] = MappingProxyType(
    {
        **LINEAR_ALGEBRA,
        **LAID_OUT_COPIES,
        **LOSSES,
        **NORMALIZATIONS,
        **RESIZED,
        **REDUCED,
        aten.abs.default: length_bytes,
        aten.angle.default: angle_bytes,
        **dict.fromkeys(
            (
                *(aten.mm.default, aten.bmm.default, aten.baddbmm.default),
                *(aten.addmm_.default, aten.baddbmm_.default),
            ),
            product_scratch_bytes,
        ),
        aten.addmm.default: partial(_copied_ahead, asks=product_scratch_bytes),
        aten._grouped_mm.default: grouped_scratch_bytes,
        **dict.fromkeys(
            (aten.mv.default, aten.addmv.default, aten.addmv_.default, aten.dot.default, aten.vdot.default),
            vector_scratch_bytes,
        ),
        **dict.fromkeys((aten.clone.default, aten.copy_.default, aten.copy.default), _copied_by_tiles),
        aten.view_copy.default: _viewed_copy_bytes,
        **dict.fromkeys((aten.t_copy.default, aten.transpose_copy.int, aten.permute_copy.default), _exchanged_by_tiles),
        **{func: partial(_copied_ahead, asks=asks) for func, asks in SCATTERED.items()},
        **PICKED,
        **COPIED_INTO,
        aten.masked_scatter.default: partial(_copied_ahead, asks=LAID_OUT_COPIES[aten.masked_scatter.default]),
        aten._sample_dirichlet.default: _dirichlet_bytes,
        aten.nonzero_static.default: _found_bytes,
        aten.dist.default: _distance_of_all_bytes,
        aten.addbmm.default: _added_products_bytes,
        aten.histc.default: _bins_bytes,
        **dict.fromkeys(_WITH_BINS[:2], _counted_bins_bytes),
        aten._histogramdd_from_bin_cts.default: _counted_boxes_bytes,
        **dict.fromkeys((aten.to_sparse.default, aten._to_sparse.default), _sparse_bytes),
        aten._sparse_sum.dim: _sparse_sum_bytes,
        aten._chunk_cat.default: _chunked_bytes,
        aten._embedding_bag_per_sample_weights_backward.default: _bag_of_each_bytes,
        **dict.fromkeys((aten.normal.Tensor_float, aten.normal_functional.default), _drawn_around_bytes),
        aten.mvlgamma.default: _gammas_bytes,
        aten.renorm.default: _shortened_bytes,
        aten.segment_reduce.default: _segments_bytes,
        aten.repeat.default: _table_bytes,
        **dict.fromkeys((aten.cat.default, aten.stack.default), _joined_bytes),
        aten.unfold_backward.default: _windows_bytes,
        aten.select_backward.default: _selected_bytes,
        aten.isinf.default: _infinite_bytes,
        aten.affine_grid_generator.default: _grid_bytes,
        aten.multinomial.default: _drawn_bytes,
        aten._safe_softmax.default: _masked_softmax_bytes,
        aten._embedding_bag_backward.default: _bag_backward_bytes,
        aten.sort.default: _sorted_bytes,
        aten.sort.stable: _sorted_somewhere_bytes,
        aten.im2col.default: _unfolded_bytes,
        aten._cdist_forward.default: _distance_bytes,
        aten._euclidean_dist.default: _product_of_points_bytes,
        aten.conv_tbc.default: _places_first_bytes,
        aten._fft_c2r.default: transform_copies,
        aten.mkldnn_rnn_layer.default: lstm_scratch_bytes,
        aten.mkldnn_rnn_layer_backward.default: lstm_backward_scratch_bytes,
        aten.convolution.default: convolution_scratch_bytes,
        aten.convolution_backward.default: convolution_backward_scratch_bytes,
        aten._scaled_dot_product_flash_attention_for_cpu.default: attention_scratch_bytes,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default: attention_backward_scratch_bytes,
        **dict.fromkeys((aten._embedding_bag.default, aten._embedding_bag_forward_only.default), _bag_bytes),
        **dict.fromkeys((aten._softmax.default, aten._log_softmax.default), dense_copies),
    }
)
