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

__all__ = ["on_cpu"]

aten = torch.ops.aten


def on_cpu(target: Any) -> Callable[..., Any] | None:
    """What does, on the CPU, what an operator does there in inference; None where the operator itself does so."""
    return _ON_CPU.get(target)


def _linear(given: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A product to which the bias is added in place where what goes in is not dense."""
    if bias is None or given.dim() == 2 or given.is_contiguous():  # a batch of rows
        whole: Tensor = aten.linear.default(given, weight, bias)
        return whole
    product: Tensor = aten.linear.default(given, weight)
    return product.add_(bias)


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


_ON_CPU: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.linear.default: _linear,
        aten.linalg_svdvals.default: _singular_values,
        aten.linalg_eigvalsh.default: _eigenvalues,
        aten.max_pool1d.default: _largest_in_windows,
    }
)
