"""Operators that torch takes apart otherwise where they run on tensors without data than in inference on real ones.

It does so for all that it calls like a subclass of tensors: nothing is written in place then, and what only a gradient
needs is made. So it does where a mode looks on, as those that tell what operators make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch._meta_registrations import pooling_output_shape

from fxpasses.partitioners.costs.kernels.followed_storages import FollowedStorages, storages_in

__all__ = ["InInference", "on_cpu"]

aten = torch.ops.aten


def on_cpu(target: Any) -> Callable[..., Any] | None:
    """What does, on the CPU, what an operator does there in inference; None where the operator itself does so.

    With :class:`InInference`, that is.
    """
    packet = getattr(target, "overloadpacket", None)
    return target if target in _WITH_BIAS or packet in _WITHOUT_VECTORS else _ON_CPU.get(target)


class InInference(FollowedStorages):  # type: ignore[no-untyped-call]  # torch does not say
    """Follows what the operators that :func:`on_cpu` knows make there.

    A bias is added to a product of their own in place: to one of what is not dense. Values of matrices are made without
    the vectors, which only a gradient needs.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.add.Tensor and isinstance(args[1], Tensor) and self._is_biased(*args):
            func = aten.add_.Tensor
        elif func in _WITH_VECTORS:
            args = (args[0], _WITH_VECTORS[func], False)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _is_biased(self, product: Tensor, bias: Tensor) -> bool:
        own = [storage._cdata in self.alive for storage in storages_in((product, bias))]
        return own == [True, False] and bias.dim() == 1 and product.dim() != 2  # one of rows is a single operator


def _largest_in_windows(
    given: Tensor,
    window: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Tensor:
    """Of dense rows, without where they were."""
    rows = given.contiguous()
    (step,) = stride or window
    width = pooling_output_shape(rows.shape[-1], window[0], padding[0], step, dilation[0], ceil_mode)  # type: ignore[no-untyped-call]  # torch's
    return rows.new_empty((*rows.shape[:-1], width))


def _marked(places: Tensor, classes: int = -1) -> Tensor:
    """Zeros, in which ones are put."""
    return places.new_zeros((*places.shape, classes))


_WITH_BIAS = frozenset((aten.linear.default, aten.gru.input, aten.lstm.input, aten.rnn_tanh.input, aten.rnn_relu.input))

_WITH_VECTORS: Mapping[Any, Any] = MappingProxyType({aten._linalg_svd.default: False, aten._linalg_eigh.default: "L"})
"""What also makes vectors, unless its third operand says otherwise; the second one makes no difference then."""

_WITHOUT_VECTORS = frozenset(
    (
        *(aten.linalg_svdvals, aten.linalg_eigvalsh, aten.linalg_cond, aten.linalg_matrix_rank),
        *(aten.linalg_matrix_norm, aten.linalg_norm, aten.nuclear_norm),
    )
)

_ON_CPU: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.linalg_eigvals.default: aten._linalg_eigvals.default,
        aten.max_pool1d.default: _largest_in_windows,
        aten.one_hot.default: _marked,
    }
)
