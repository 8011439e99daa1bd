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

__all__ = ["BiasInPlace", "on_cpu"]

aten = torch.ops.aten


def on_cpu(target: Any) -> Callable[..., Any] | None:
    """What does, on the CPU, what an operator does there in inference; None where the operator itself does so.

    With :class:`BiasInPlace`, that is.
    """
    return target if target in _WITH_BIAS else _ON_CPU.get(target)


class BiasInPlace(FollowedStorages):  # type: ignore[no-untyped-call]  # torch does not say
    """Follows what an operator makes that adds a bias to a product of its own in place: one of what is not dense."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.add.Tensor and isinstance(args[1], Tensor) and self._is_biased(*args):
            func = aten.add_.Tensor
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _is_biased(self, product: Tensor, bias: Tensor) -> bool:
        own = [storage._cdata in self.alive for storage in storages_in((product, bias))]
        return own == [True, False] and bias.dim() == 1 and product.dim() != 2  # one of rows is a single operator


def _singular_values(matrix: Tensor, *, driver: str | None = None) -> Tensor:
    """Without vectors."""
    values: Tensor = aten._linalg_svd.default(matrix, False, False, driver=driver)[1]
    return values


def _eigenvalues(matrix: Tensor, half: str = "L") -> Tensor:
    values: Tensor = aten._linalg_eigh.default(matrix, half, False)[0]
    return values


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


_WITH_BIAS = frozenset((aten.linear.default, aten.gru.input, aten.lstm.input, aten.rnn_tanh.input, aten.rnn_relu.input))

_ON_CPU: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.linalg_svdvals.default: _singular_values,
        aten.linalg_eigvalsh.default: _eigenvalues,
        aten.max_pool1d.default: _largest_in_windows,
    }
)
