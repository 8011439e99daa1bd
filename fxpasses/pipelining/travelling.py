"""How one value travels from a stage to the next: as a dense floating-point tensor that can have a gradient.

Schedules send contiguous tensors and ask for a gradient for each of them. Numbers that are not floating-point travel
bit by bit inside a floating-point type of the same width, other layouts as the permutation that is contiguous, and
what a stage does not use gets a gradient of zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

__all__ = ["Traveller", "arrive", "depart"]

_SAME_WIDTH = {torch.int64: torch.float64, torch.int32: torch.float32, torch.int16: torch.float16}
_NARROW = (torch.bool, torch.uint8, torch.int8)  # all their values are exact in float16


@attrs.frozen
class Traveller:
    """A value that crosses from one stage to the next.

    Args:
        slot: Its number among all values of the pipeline.
        name: The node that made it.
        shape: Its sizes.
        dtype: Its type in the model.
        order: Its dimensions by falling stride.
    """

    slot: int
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    order: tuple[int, ...]

    @classmethod
    def of(cls, slot: int, name: str, value: Tensor) -> Traveller:
        """Describe a recorded value."""
        shape = tuple(int(size) for size in value.shape)
        return cls(slot, name, shape, value.dtype, _dense_order(shape, tuple(int(step) for step in value.stride())))

    @property
    def sent_dtype(self) -> torch.dtype:
        """The floating-point type that it travels in."""
        if self.dtype in _NARROW:
            return torch.float16
        return _SAME_WIDTH.get(self.dtype, self.dtype)

    @property
    def is_float(self) -> bool:
        """Whether it can have a real gradient."""
        return self.dtype.is_floating_point or self.dtype.is_complex

    def example(self) -> Tensor:
        """What is sent, without data."""
        sizes = [self.shape[dimension] for dimension in self.order]
        return torch.empty(sizes, dtype=self.sent_dtype, device="meta", requires_grad=True)

    def pack(self, value: Tensor) -> Tensor:
        """What is sent for a value."""
        if self.dtype in _NARROW:
            value = value.to(torch.float16)
        elif self.dtype in _SAME_WIDTH:
            value = value.view(_SAME_WIDTH[self.dtype])
        return value.permute(self.order).contiguous()

    def unpack(self, sent: Tensor) -> Tensor:
        """The value again, with its type; see :meth:`laid_out` for its layout."""
        if self.dtype in _NARROW:
            return sent.to(self.dtype)
        return sent.view(self.dtype) if self.dtype in _SAME_WIDTH else sent

    def laid_out(self, value: Tensor) -> Tensor:
        """The dimensions in their own order again."""
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        return value if back == list(range(len(back))) else value.permute(back)


def _dense_order(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation in which a dense layout is contiguous; the identity for all others."""
    order = tuple(sorted(range(len(shape)), key=lambda dimension: (-stride[dimension], dimension)))
    expected = 1
    for dimension in reversed(order):
        if shape[dimension] != 1 and stride[dimension] != expected:
            return tuple(range(len(shape)))
        expected *= shape[dimension]
    return order


class _Arrival(torch.autograd.Function):
    """Hand all received values on; every one of them gets a gradient, of zeros where there is none."""

    @staticmethod
    def forward(ctx: Any, travellers: Sequence[Traveller], *sent: Tensor) -> tuple[Tensor, ...]:
        ctx.like = [(value.shape, value.dtype, value.device) for value in sent]
        ctx.is_float = [traveller.is_float for traveller in travellers]
        values = tuple(
            value.view_as(value) if traveller.is_float else traveller.unpack(value.detach())
            for traveller, value in zip(travellers, sent, strict=True)
        )
        ctx.mark_non_differentiable(*(value for value, real in zip(values, ctx.is_float, strict=True) if not real))
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        filled = [
            gradient if real and gradient is not None else torch.zeros(shape, dtype=dtype, device=device)
            for gradient, real, (shape, dtype, device) in zip(gradients, ctx.is_float, ctx.like, strict=True)
        ]
        return (None, *filled)


def arrive(travellers: Sequence[Traveller], sent: Sequence[Tensor]) -> list[Tensor]:
    """The values that a stage received, as the model knows them."""
    if not travellers:
        return []
    values = _Arrival.apply(tuple(travellers), *sent)  # type: ignore[no-untyped-call]  # torch's
    return [traveller.laid_out(value) for traveller, value in zip(travellers, values, strict=True)]


def depart(travellers: Sequence[Traveller], values: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """What a stage sends for the values that the next one takes."""
    return tuple(traveller.pack(value) for traveller, value in zip(travellers, values, strict=True))
