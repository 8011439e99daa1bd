"""How one value travels from a stage to the next: as a dense floating-point tensor that can have a gradient.

Schedules send contiguous tensors and ask for a gradient for each of them. Numbers that are not floating-point travel
bit by bit inside a floating-point type of the same width, other layouts as the permutation that is contiguous, what is
repeated once, and what a stage does not use gets a gradient of zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from fxpasses.errors import StageError

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
        order: Its dimensions by falling stride; it is sent contiguous in this order.
        repeated: Dimensions along which it is one value many times (stride 0), which is sent once.
        differentiable: Whether it can have a gradient other than zero.
    """

    slot: int
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    order: tuple[int, ...]
    repeated: tuple[int, ...]
    differentiable: bool

    @classmethod
    def of(cls, slot: int, name: str, value: Tensor, *, differentiable: bool, is_input: bool) -> Traveller:
        """Describe a recorded value; the layout of a user's input may be another one at each call."""
        shape = tuple(int(size) for size in value.shape)
        stride = tuple(int(step) for step in value.stride())
        order = tuple(sorted(range(len(shape)), key=lambda dimension: (-stride[dimension], dimension)))
        repeated = [dimension for dimension, step in enumerate(stride) if step == 0 and shape[dimension] > 1]
        return cls(slot, name, shape, value.dtype, order, () if is_input else tuple(repeated), differentiable)

    @property
    def sent_dtype(self) -> torch.dtype:
        """The floating-point type that it travels in."""
        if self.dtype in _NARROW:
            return torch.float16
        return _SAME_WIDTH.get(self.dtype, self.dtype)

    def example(self) -> Tensor:
        """What is sent, without data."""
        sizes = [1 if dimension in self.repeated else self.shape[dimension] for dimension in self.order]
        return torch.empty(sizes, dtype=self.sent_dtype, device="meta", requires_grad=True)

    def pack(self, value: Tensor) -> Tensor:
        """What is sent for a value.

        Raises:
            StageError: The value is not laid out as it was recorded, and so one element does not stand for all.
        """
        for dimension in self.repeated:
            if value.stride(dimension) != 0:
                raise StageError(
                    f"{self.name} was recorded as one value repeated along dimension {dimension}, but now it is not; "
                    "call pipeline() with inputs laid out as they are now"
                )
            value = value.narrow(dimension, 0, 1)
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
        """The dimensions in their own order and size again."""
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        value = value if back == list(range(len(back))) else value.permute(back)
        return value.expand(self.shape) if self.repeated else value


class _Arrival(torch.autograd.Function):
    """Hand all received values on; every one of them gets a gradient, of zeros where there is none."""

    @staticmethod
    def forward(ctx: Any, travellers: Sequence[Traveller], *sent: Tensor) -> tuple[Tensor, ...]:
        ctx.like = [(value.shape, value.dtype, value.device) for value in sent]
        ctx.has_gradient = [traveller.differentiable for traveller in travellers]
        values = tuple(
            value.view_as(value) if traveller.differentiable else traveller.unpack(value.detach())
            for traveller, value in zip(travellers, sent, strict=True)
        )
        ctx.mark_non_differentiable(*(value for value, real in zip(values, ctx.has_gradient, strict=True) if not real))
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        filled = [
            gradient if real and gradient is not None else torch.zeros(shape, dtype=dtype, device=device)
            for gradient, real, (shape, dtype, device) in zip(gradients, ctx.has_gradient, ctx.like, strict=True)
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
