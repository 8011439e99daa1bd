"""How many floating-point operations an operator takes, from the shapes of what it reads and makes.

A multiply-add is two operations. Products, convolutions, attention and recurrent layers have a formula.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fxpasses.partitioners.tensor_sizes import concrete_size

__all__ = ["COUNTERS", "Counter", "body_runs", "shape_of"]

Counter = Callable[[Sequence[Any], Any], int]
"""Operations from positional inputs and the output."""


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape of a tensor as numbers; ``()`` for anything else."""
    return tuple(concrete_size(size) for size in value.shape) if isinstance(value, torch.Tensor) else ()


def _product(inputs: Sequence[Any], output: Any) -> int:
    """Matrix products in all their forms: two operations for each output element and inner index."""
    first = shape_of(inputs[0])
    inner = first[-1] if first else 1
    return 2 * math.prod(shape_of(output)) * inner


def _added_product(inputs: Sequence[Any], output: Any) -> int:
    return _product(inputs[1:], output)


def _summed_product(inputs: Sequence[Any], output: Any) -> int:
    """``addbmm`` adds the products of a batch up."""
    return shape_of(inputs[1])[0] * _product(inputs[1:], output)


def _grouped_product(inputs: Sequence[Any], output: Any) -> int:
    """Rows or inner indices are shared out among the products of a mixture of experts."""
    return 2 * math.prod(shape_of(inputs[0])) * shape_of(output)[-1]


def _grouped_product_backward(inputs: Sequence[Any], _output: Any) -> int:
    """A product for the gradient of the rows, one for that of the experts."""
    return 2 * _grouped_product(inputs, inputs[3])


def _broadcast(*shapes: Sequence[int]) -> Sequence[int]:
    """Shapes aligned at their ends, each dimension as large as the largest: also of heads in groups.

    >>> _broadcast((4, 1), (3, 1, 5), ())
    [3, 4, 5]
    """
    aligned = itertools.zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    return [max(sizes) for sizes in aligned][::-1]


def _products_of_rows(inputs: Sequence[Any], _output: Any) -> int:
    return 2 * math.prod(_broadcast(*map(shape_of, inputs[:2])))


def _distances_backward(inputs: Sequence[Any], _output: Any) -> int:
    """A difference of two rows for each of their distances."""
    return 2 * math.prod(shape_of(inputs[0])) * shape_of(inputs[1])[-1]


def _bilinear(inputs: Sequence[Any], output: Any) -> int:
    return 2 * math.prod(shape_of(output)) * math.prod(shape_of(inputs[2])[1:])


def _trilinear(inputs: Sequence[Any], _output: Any) -> int:
    """Three tensors get the dimensions they lack; where all have their places, they are multiplied and added up."""
    shapes = [list(shape_of(each)) for each in inputs[:3]]
    for shape, lacking in zip(shapes, inputs[3:6], strict=True):
        for dim in sorted(lacking):
            shape.insert(dim, 1)
    space: list[int] = [max(sizes) for sizes in zip(*shapes, strict=True)]
    return 2 * math.prod(space)


def _convolution(inputs: Sequence[Any], output: Any) -> int:
    """Each output element gathers ``weight[0].numel()`` products (Dumoulin & Visin, arXiv:1603.07285)."""
    return 2 * math.prod(shape_of(output)) * math.prod(shape_of(inputs[1])[1:])


def _time_first_convolution(inputs: Sequence[Any], output: Any) -> int:
    return 2 * math.prod(shape_of(output)) * math.prod(shape_of(inputs[1])[:2])


def _transposed_convolution(inputs: Sequence[Any], _output: Any) -> int:
    return 2 * math.prod(shape_of(inputs[0])) * math.prod(shape_of(inputs[1])[1:])


def _any_convolution(inputs: Sequence[Any], output: Any) -> int:
    transposed = len(inputs) > 6 and inputs[6] is True
    return (_transposed_convolution if transposed else _convolution)(inputs, output)


def _convolution_backward(inputs: Sequence[Any], _output: Any) -> int:
    """As much as the forward for the gradient of the input, and for that of the weight, where they are asked for."""
    gradient, value, weight = inputs[:3]
    once = _transposed_convolution if inputs[7] else _convolution
    return sum(map(int, inputs[10][:2])) * once((value, weight), gradient)


def _attention(inputs: Sequence[Any], _output: Any) -> int:
    """``Q·Kᵀ`` and ``P·V``, heads grouped or not; the mask does not shorten it."""
    query, key, value = map(shape_of, inputs[:3])
    batch = math.prod(_broadcast(query[:-2], key[:-2], value[:-2]))
    return 2 * batch * query[-2] * key[-2] * (query[-1] + value[-1])


def _fused_attention(inputs: Sequence[Any], _output: Any) -> int:
    """The projections of queries, keys and values, attention, and the projection of what it gives."""
    (*batch, rows, width), columns = shape_of(inputs[0]), shape_of(inputs[1])[-2]
    projected = 2 * width * width * (2 * rows + 2 * columns)
    return math.prod(batch) * (projected + 4 * rows * columns * width)


def _fused_encoder_layer(inputs: Sequence[Any], output: Any) -> int:
    """Attention of a sequence to itself, and two layers behind it."""
    source, first, second = inputs[0], inputs[14], inputs[16]
    layers = math.prod(shape_of(first)) + math.prod(shape_of(second))
    return _fused_attention((source, source), output) + 2 * math.prod(shape_of(source)[:-1]) * layers


def _attention_backward(inputs: Sequence[Any], output: Any) -> int:
    """``Q·Kᵀ`` again, and a product for each of the gradients of P, Q, K and V (Dao et al., arXiv:2205.14135)."""
    return 5 * _attention(inputs[1:4], output) // 2


def _scored_attention_backward(inputs: Sequence[Any], output: Any) -> int:
    return 5 * _attention(inputs, output) // 2


def _recurrent_layer(inputs: Sequence[Any], _output: Any) -> int:
    """Each step of each sample is multiplied with both weights of all gates."""
    *rows, _width = shape_of(inputs[0])
    return 2 * math.prod(rows) * sum(math.prod(shape_of(weight)) for weight in inputs[1:3])


def _recurrent_layer_backward(inputs: Sequence[Any], output: Any) -> int:
    return 2 * _recurrent_layer(inputs, output)


COUNTERS: Mapping[str, Counter] = {
    **dict.fromkeys(("linear", "matmul", "mm", "bmm", "_int_mm", "__matmul__", "mv", "dot", "vdot"), _product),
    "_sparse_mm": _product,  # as if it were dense: how many elements there are is data
    **dict.fromkeys(("_scaled_mm", "_weight_int8pack_mm", "_weight_int4pack_mm"), _product),
    **dict.fromkeys(("_weight_int4pack_mm_for_cpu", "_weight_int4pack_mm_with_scales_and_zeros"), _product),
    **dict.fromkeys(("cdist", "_cdist_forward", "_cdist_backward", "_euclidean_dist"), _product),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "_addmm_activation"), _added_product),
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm", "grouped_mm_fallback"), _grouped_product),
    "grouped_mm_fallback_backward": _grouped_product_backward,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _transposed_convolution),
    **dict.fromkeys(("convolution", "_convolution"), _any_convolution),
    **dict.fromkeys(
        (
            "scaled_dot_product_attention",
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention",
            "flex_attention",
        ),
        _attention,
    ),
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention_backward",
            "_scaled_dot_product_flash_attention_for_cpu_backward",
            "_scaled_dot_product_efficient_attention_backward",
            "_scaled_dot_product_cudnn_attention_backward",
        ),
        _attention_backward,
    ),
    "_native_multi_head_attention": _fused_attention,
    "_transformer_encoder_layer_fwd": _fused_encoder_layer,
    "addbmm": _summed_product,
    "conv_tbc": _time_first_convolution,
    "convolution_backward": _convolution_backward,
    "bilinear": _bilinear,
    "_trilinear": _trilinear,
    "linalg_vecdot": _products_of_rows,
    "_pdist_backward": _distances_backward,
    "flex_attention_backward": _scored_attention_backward,
    "mkldnn_rnn_layer": _recurrent_layer,
    "mkldnn_rnn_layer_backward": _recurrent_layer_backward,
}
"""The formula of an operator, by its name without namespace and overload. Needs two tensors or more as inputs."""


_SCANNED = {"scan": 2, "map_impl": 1, "map": 1}
"""The argument that a loop goes through row by row."""


def body_runs(name: str, inputs: Sequence[Any]) -> int:
    """How many times a higher-order operator runs its body: once for each row, or each score; else once.

    Args:
        name: Its name without namespace.
        inputs: Its positional inputs.
    """
    if name.startswith("flex_attention"):
        return math.prod(shape_of(inputs[0])[:-1]) * shape_of(inputs[1])[-2]
    at = _SCANNED.get(name)
    rows = next((shape_of(each) for each in pytree.tree_leaves(inputs[at]) if shape_of(each)), ()) if at else ()
    return rows[0] if rows else 1
