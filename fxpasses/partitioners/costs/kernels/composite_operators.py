"""Which operators torch runs by calling others, so that what they cost and make is told by those."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fxpasses.partitioners.costs.kernels.higher_order_steps import HIGHER_ORDER_STEPS
from fxpasses.partitioners.costs.kernels.trilinear_steps import trilinear_by_steps

__all__ = ["in_steps", "is_composite"]

aten = torch.ops.aten


@lru_cache(maxsize=4096)
def is_composite(operator: Any) -> bool:
    """Whether an overload is written in terms of others; False for operators of TorchScript, which no dispatcher knows.

    >>> is_composite(torch.ops.aten.matmul.default), is_composite(torch.ops.aten.mm.default)
    (True, False)
    """
    try:
        return bool(operator.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))
    except RuntimeError:  # an operator of TorchScript alone, on numbers or lists
        return False


@lru_cache(maxsize=4096)
def _has_no_kernel(operator: Any) -> bool:
    """Whether it is nothing but others: some that are written so have a kernel of the CPU, too, or all devices."""
    if not is_composite(operator):
        return False
    keys = torch._C.DispatchKey
    is_composed, has_kernel = (
        torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key)
        for key in (keys.CompositeImplicitAutograd, keys.CPU)
    )
    return is_composed and not has_kernel


def _last_one_apart(given: Tensor, dims: Sequence[int], normalization: int, size: int) -> Tensor:
    """The other dimensions are transformed first, where there are any."""
    if len(dims) > 1:
        given = aten._fft_c2c.default(given, dims[:-1], normalization, False)
    made: Tensor = aten._fft_c2r.default(given, dims[-1:], normalization, size)
    return made


def _times_power_of_two(given: Tensor, exponent: Tensor) -> Tensor:
    made: Tensor = aten.mul.Tensor(given, aten.pow.Tensor_Tensor(given.new_empty(()), exponent))
    return made


def _picked_by_mask(given: Tensor, mask: Tensor, indices: Sequence[Tensor | None], fill: float) -> Tensor:
    """Indices are brought into range; elements that the mask leaves out are written over in a copy."""
    clamped = _in_range(given, indices)  # there until the end
    made: Tensor = aten.index.Tensor(given, clamped)
    return made.masked_fill(mask.logical_not(), fill)


def _added_by_mask(given: Tensor, mask: Tensor, indices: Sequence[Tensor | None], values: Tensor) -> Tensor:
    """The same, backward."""
    clamped, added = _in_range(given, indices), values.masked_fill(mask.logical_not(), 0)
    made: Tensor = aten.index_put.default(given, clamped, added, True)
    return made


def _in_range(given: Tensor, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    sizes = zip(indices, given.shape, strict=False)
    return [None if index is None else index.clamp(-size, size - 1) for index, size in sizes]


def in_steps(func: Any, args: Sequence[Any]) -> Callable[..., Any] | None:
    """What does the same by calling others, where a dispatcher sees an operator whole; None for a kernel."""
    if isinstance(func, torch._ops.HigherOrderOperator):
        return HIGHER_ORDER_STEPS.get(func._name)
    if _has_no_kernel(func):  # called by a kernel below autograd
        return func.decompose  # type: ignore[no-any-return]  # an operator's
    return None if func is aten._fft_c2r.default and len(args[1]) == 1 else _IN_STEPS.get(func)


_IN_STEPS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.linalg_pinv.atol_rtol_tensor: partial(
            aten.linalg_pinv.atol_rtol_tensor._op_dk, torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional
        ),
        aten._fft_c2r.default: _last_one_apart,
        aten._trilinear.default: trilinear_by_steps,
        aten.ldexp.Tensor: _times_power_of_two,
        aten._unsafe_masked_index.default: _picked_by_mask,
        aten._unsafe_masked_index_put_accumulate.default: _added_by_mask,
    }
)
"""Operators that run by others, though dispatchers see them whole."""
