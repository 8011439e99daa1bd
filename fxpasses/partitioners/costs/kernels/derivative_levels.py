"""Run operators inside of derivatives (``torch.func.jvp``), on operands that have tangents there.

The tangent of what has none is a tensor of one zero that is repeated; without data torch takes it for a full one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._functorch import predispatch
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

from fxpasses.partitioners.costs.kernels.followed_storages import FollowedStorages, storages_in
from fxpasses.partitioners.jvp_tangents import Levels
from fxpasses.partitioners.tensor_sizes import tensor_bytes, tensors_in

__all__ = ["InDerivative", "parts_of", "with_tangents"]

aten = torch.ops.aten
_PRODUCTS = (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar)
_SUMS = (aten.add.Tensor, aten.sub.Tensor)


@contextmanager
def with_tangents(operands: Sequence[Any], levels: Sequence[Levels]) -> Iterator[list[Any]]:
    """Inside, the operands have tangents in these derivatives."""
    operands = list(operands)
    found = sorted({level for each in levels for level in each})
    try:
        for level in found:
            predispatch._jvp_increment_nesting()
            if level == found[0]:
                predispatch._enter_dual_level()
            operands = [
                predispatch._make_dual(each, torch.empty_like(each)) if level in own else each
                for each, own in zip(operands, levels, strict=True)
            ]
        yield operands
    finally:
        if found:
            predispatch._exit_dual_level(level=0)
        for _ in found:
            predispatch._jvp_decrement_nesting()


def parts_of(tensor: Tensor) -> Iterator[Tensor]:
    """A tensor as kernels see it, and its tangents in the derivatives that are open."""
    functorch = torch._C._functorch
    depth, is_wrapped = functorch.get_dynamic_layer_stack_depth(), functorch.is_functorch_wrapped_tensor(tensor)
    is_batched = functorch.is_batchedtensor(tensor)
    if (is_wrapped or not depth) and not is_batched:
        tangent = predispatch._unpack_dual(tensor, level=0)[1]
        yield from () if tangent is None else parts_of(tangent)
    if not is_wrapped:
        yield tensor
        return
    is_of_this_level = functorch.maybe_get_level(tensor) == depth
    with temporarily_pop_interpreter_stack() if depth else nullcontext():
        yield from parts_of(functorch.get_unwrapped(tensor) if is_of_this_level or not depth else tensor)


class InDerivative(FollowedStorages):  # type: ignore[no-untyped-call]  # torch does not say
    """Follows what operators make in a derivative, where zeros are one number.

    Products with them are zeros again, a sum copies the other operand, and all others take them as a full tensor.
    """

    def __init__(self) -> None:
        super().__init__()
        self._zeros: dict[int, Tensor] = {}  # by storage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten._efficientzerotensor.default:
            return self._zero(func(*args, **(kwargs or {})))
        given = tensors_in([args, kwargs])
        zeros = [each for each in given if self._is_zero(each)]
        if func in _PRODUCTS and zeros:
            return self._zero(func(*args, **(kwargs or {})))
        if func in _SUMS and len(zeros) == 2:  # both of them
            return self._zero(func(*args, **(kwargs or {})))
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if zeros and func not in _SUMS and not self._is_zero(result):
            self.need(sum(map(tensor_bytes, zeros)))
        return result

    def _is_zero(self, value: Any) -> bool:
        return isinstance(value, Tensor) and next(storages_in(value))._cdata in self._zeros

    def _zero(self, like: Tensor) -> Tensor:
        with self:
            zero = like.new_empty(()).expand(like.shape)
        self._zeros[next(storages_in(zero))._cdata] = zero
        return zero
