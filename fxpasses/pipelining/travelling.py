"""How one value travels from a stage to the next: as a dense floating-point tensor that can have a gradient.

Schedules send contiguous tensors and ask for a gradient for each of them. Numbers that are not floating-point travel
bit by bit inside a floating-point type of the same width, other layouts as the permutation that is contiguous, what is
repeated once, and what a stage does not use gets a gradient of zeros.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import sympy
import torch
from torch import Tensor

from fxpasses.errors import StageError
from fxpasses.partitioners.tensor_sizes import concrete_size
from fxpasses.pipelining.sizes import (
    Size,
    Symbols,
    bind_sizes,
    known_symbols,
    shape_text,
    size_of,
    sizes_at,
    symbols_in,
)

__all__ = ["Traveller", "arrive", "depart", "told_by"]

_SAME_WIDTH = {torch.int64: torch.float64, torch.int32: torch.float32, torch.int16: torch.float16}
_NARROW = (torch.bool, torch.uint8, torch.int8)  # all their values are exact in float16
_NUMBERS: dict[type, torch.dtype] = {
    torch.SymInt: torch.int64,
    int: torch.int64,
    torch.SymFloat: torch.float64,
    float: torch.float64,
    torch.SymBool: torch.bool,
    bool: torch.bool,
}


@attrs.frozen
class Traveller:
    """A value that crosses from one stage to the next.

    Args:
        slot: Its number among all values of the pipeline.
        name: The node that made it.
        shape: Its sizes: numbers, or expressions in symbols.
        dtype: Its type in the model.
        order: Its dimensions by falling stride; it is sent contiguous in this order.
        repeated: Dimensions along which it is one value many times (stride 0), which is sent once.
        differentiable: Whether it can have a gradient other than zero.
        captured: Its sizes when the model was captured.
        is_number: Whether it is a number and no tensor; it is sent as a tensor without dimensions.
    """

    slot: int
    name: str
    shape: tuple[Size, ...]
    dtype: torch.dtype
    order: tuple[int, ...]
    repeated: tuple[int, ...]
    differentiable: bool
    captured: tuple[int, ...] = ()
    is_number: bool = False

    @classmethod
    def of(
        cls, slot: int, name: str, value: Tensor, *, differentiable: bool = False, is_input: bool = False
    ) -> Traveller:
        """Describe a recorded value; the layout of a user's input may be another one at each call."""
        stride = tuple(concrete_size(step) for step in value.stride())
        order = tuple(sorted(range(value.dim()), key=lambda dimension: (-stride[dimension], dimension)))
        repeated = [at for at, step in enumerate(stride) if step == 0 and concrete_size(value.shape[at]) > 1]
        shape = tuple(size_of(size) for size in value.shape)
        captured = tuple(concrete_size(size) for size in value.shape)
        return cls(slot, name, shape, value.dtype, order, () if is_input else tuple(repeated), differentiable, captured)

    @classmethod
    def number(cls, slot: int, name: str, value: Any) -> Traveller:
        """Describe a recorded number."""
        dtype = _NUMBERS[type(value)]
        return cls(slot, name, (), dtype, (), (), differentiable=False, is_number=True)

    @property
    def bytes(self) -> int:
        """How many are sent, at the sizes of the example."""
        sizes = [size for at, size in enumerate(self.captured) if at not in self.repeated]
        return math.prod(sizes) * self.sent_dtype.itemsize

    @property
    def sent_dtype(self) -> torch.dtype:
        """The floating-point type that it travels in."""
        if self.dtype in _NARROW:
            return torch.float16
        return _SAME_WIDTH.get(self.dtype, self.dtype)

    @property
    def sent_shape(self) -> tuple[Size, ...]:
        """The sizes of what is sent."""
        return tuple(1 if dimension in self.repeated else self.shape[dimension] for dimension in self.order)

    def told_by(self, known: Mapping[sympy.Symbol, None]) -> Traveller:
        """The same value, sent in full where nothing tells the receiver how often to repeat it."""
        sure = [at for at in self.repeated if all(symbol in known for symbol in symbols_in([self.shape[at]]))]
        return attrs.evolve(self, repeated=tuple(sure))

    def example(self, symbols: Symbols | None = None) -> Tensor:
        """What is sent, without data; at the sizes of the example, or at others."""
        sizes = [1 if dimension in self.repeated else self.captured[dimension] for dimension in self.order]
        if symbols is not None:
            sizes = list(sizes_at(self.sent_shape, symbols))
        return torch.empty(sizes, dtype=self.sent_dtype, device="meta", requires_grad=True)

    def pack(self, value: Any, device: torch.device | None = None) -> Tensor:
        """What is sent for a value.

        Raises:
            StageError: The value is not laid out as it was recorded, and so one element does not stand for all.
        """
        if self.is_number:
            value = torch.tensor(value, dtype=self.dtype, device=device)
        for dimension in self.repeated:
            if value.stride(dimension) != 0 and value.shape[dimension] > 1:
                raise StageError(
                    f"{self.name} was recorded as one value repeated along dimension {dimension}, but now it is not; "
                    "call pipeline() with inputs laid out as they are now"
                )
            value = value.narrow(dimension, 0, 1)
        if self.dtype in _NARROW:
            value = value.to(torch.float16)
        elif self.dtype in _SAME_WIDTH:
            value = value.view(_SAME_WIDTH[self.dtype])
        packed: Tensor = value.permute(self.order).contiguous()
        return packed

    def unpack(self, sent: Tensor) -> Tensor:
        """The value again, with its type; see :meth:`laid_out` for its layout."""
        if self.dtype in _NARROW:
            return sent.to(self.dtype)
        return sent.view(self.dtype) if self.dtype in _SAME_WIDTH else sent

    def laid_out(self, value: Tensor, symbols: Symbols) -> Any:
        """The dimensions in their own order and size again; a number as a number."""
        if self.is_number:
            return value.item()
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        value = value if back == list(range(len(back))) else value.permute(back)
        return value.expand(sizes_at(self.shape, symbols)) if self.repeated else value

    def check(self, sent: Tensor, symbols: Symbols) -> None:
        """Refuse what has another shape than it was captured with.

        Raises:
            StageError: The shape changed.
        """
        expected = sizes_at(self.sent_shape, symbols)
        fits = len(expected) == sent.dim() and all(
            want in (found, -1) for want, found in zip(expected, sent.shape, strict=True)
        )
        if not fits:
            raise StageError(
                f"{self.name} came with the shape {tuple(sent.shape)} from the stage before, but the model was "
                f"captured for {shape_text(self.sent_shape)}; give micro-batches of the captured size, or call "
                "pipeline() with dynamic_shapes"
            )


def told_by(travellers: Sequence[Traveller]) -> dict[sympy.Symbol, None]:
    """The symbols that can be read off what crosses."""
    known: dict[sympy.Symbol, None] = {}
    for traveller in travellers:
        known.update(known_symbols(traveller.shape, traveller.repeated))
    return known


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
        filled = [  # contiguous: a backward in halves sends them as they are
            gradient.contiguous() if real and gradient is not None else torch.zeros(shape, dtype=dtype, device=device)
            for gradient, real, (shape, dtype, device) in zip(gradients, ctx.has_gradient, ctx.like, strict=True)
        ]
        return (None, *filled)


def arrive(travellers: Sequence[Traveller], sent: Sequence[Tensor]) -> tuple[list[Any], dict[sympy.Symbol, int]]:
    """The values that a stage received, as the model knows them; and the sizes that they tell."""
    symbols: dict[sympy.Symbol, int] = {}
    for traveller, value in zip(travellers, sent, strict=True):
        bind_sizes(symbols, traveller.sent_shape, value)
    if not travellers:
        return [], symbols
    for traveller, value in zip(travellers, sent, strict=True):
        traveller.check(value, symbols)
    values = _Arrival.apply(tuple(travellers), *sent)  # type: ignore[no-untyped-call]  # torch's
    pairs = zip(travellers, values, strict=True)
    return [traveller.laid_out(value, symbols) for traveller, value in pairs], symbols


def depart(travellers: Sequence[Traveller], values: Sequence[Any]) -> tuple[Tensor, ...]:
    """What a stage sends for the values that the next one takes."""
    device = next((value.device for value in values if isinstance(value, Tensor)), None)
    return tuple(traveller.pack(value, device) for traveller, value in zip(travellers, values, strict=True))
