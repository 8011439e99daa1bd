"""Inputs for checking a rule: shapes that fit together, dtypes, strides, shared memory, odd values; and simpler ones.

A sample is a description, so that it can be made smaller piece by piece and built again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import torch

__all__ = ["Sample", "build", "random_sample", "smaller"]

Shape = tuple[int, ...]
_SIZES = (1, 2, 3, 4, 5)
_STRIDES = ("contiguous", "transposed", "step", "expanded", "offset")
_FILLS = ("ones", "zeros", "small", "normal", "large", "special")
_SPECIAL = (math.nan, math.inf, -math.inf, -0.0, 1e-40, 1.0, -1.0)


@attrs.frozen
class Sample:
    """How to make the inputs.

    Args:
        shapes: One for each input.
        dtypes: One for each input.
        fills: What values they get: ``ones``, ``zeros``, ``small``, ``normal``, ``large``, ``special``.
        strides: How they lie in memory.
        shared: Pairs of inputs of which the second is the first.
        seed: For the values.
    """

    shapes: tuple[Shape, ...]
    dtypes: tuple[torch.dtype, ...]
    fills: tuple[str, ...]
    strides: tuple[str, ...]
    shared: tuple[tuple[int, int], ...] = ()
    seed: int = 0


def random_sample(
    rng: random.Random,
    count: int,
    dtypes: Sequence[torch.dtype],
    *,
    special_values: bool = True,
    like: Sequence[Shape] | None = None,
) -> Sample:
    """A random sample for so many inputs; with ``like``, its shapes with every size replaced by another."""
    shapes = _resized(rng, like) if like is not None else _shapes(rng, count)
    dtype = rng.choice(list(dtypes))
    mixed = rng.random() < 0.1
    fills = [f for f in _FILLS if special_values or f != "special"]
    shared = [(a, b) for b in range(count) for a in range(b) if shapes[a] == shapes[b] and rng.random() < 0.15]
    return Sample(
        shapes=shapes,
        dtypes=tuple(rng.choice(list(dtypes)) if mixed else dtype for _ in range(count)),
        fills=tuple(rng.choice(fills) for _ in range(count)),
        strides=tuple(rng.choice(_STRIDES) if rng.random() < 0.5 else "contiguous" for _ in range(count)),
        shared=tuple(shared[:1]),
        seed=rng.randrange(2**31),
    )


def _shapes(rng: random.Random, count: int) -> tuple[Shape, ...]:
    """Shapes of inputs that many operators accept together."""
    a, b, c = (rng.choice(_SIZES) for _ in range(3))
    rank = rng.choice((0, 1, 1, 2, 2, 3, 4))
    base = tuple(rng.choice(_SIZES) if rng.random() < 0.95 else 0 for _ in range(rank))
    way = rng.randrange(7)
    if way == 0:  # all alike
        return (base,) * count
    if way == 1:  # all square, of any rank
        return tuple((a,) * rng.choice((1, 2, 2, 3)) for _ in range(count))
    if way == 2:  # broadcast against the first
        return tuple(base if i == 0 else _broadcast(rng, base) for i in range(count))
    if way == 3:  # rows and vectors
        return tuple(base if i == 0 else base[-1:] for i in range(count))
    if way == 4:  # product of matrices
        lead = base[:-2] if rank > 2 else ()
        return tuple([(*lead, a, b), (*lead, b, c), (*lead, a, c), (c,)][min(i, 3)] for i in range(count))
    if way == 5:  # linear
        lead = base[:-1] if rank else (a,)
        return tuple([(*lead, b), (c, b), (c,)][min(i, 2)] for i in range(count))
    return tuple([(a, b, 5, 5), (c, b, 3, 3), (c,)][min(i, 2)] for i in range(count))  # convolution


def _broadcast(rng: random.Random, shape: Shape) -> Shape:
    kept = tuple(1 if rng.random() < 0.3 else size for size in shape)
    return kept[rng.randrange(len(kept) + 1) :] if rng.random() < 0.4 else kept


def _resized(rng: random.Random, like: Sequence[Shape]) -> tuple[Shape, ...]:
    """Each size above one becomes another everywhere, so that what had to agree still does."""
    sizes = dict.fromkeys(size for shape in like for size in shape if size > 1)
    to = {size: size if rng.random() < 0.5 else rng.choice((1, 2, 3, 4, 6)) for size in sizes}
    return tuple(tuple(to.get(size, size) for size in shape) for shape in like)


def build(sample: Sample) -> list[torch.Tensor]:
    """The inputs that a sample describes."""
    made: list[torch.Tensor] = []
    for place, shape in enumerate(sample.shapes):
        generator = torch.Generator().manual_seed(sample.seed + place)
        values = _filled(shape, sample.dtypes[place], sample.fills[place], generator)
        made.append(_strided(values, sample.strides[place]))
    for first, second in sample.shared:
        if made[first].dtype == made[second].dtype and made[first].shape == made[second].shape:
            made[second] = made[first]
    return made


def _filled(shape: Shape, dtype: torch.dtype, fill: str, generator: torch.Generator) -> torch.Tensor:
    if fill in ("ones", "zeros"):
        return torch.full(shape, 1 if fill == "ones" else 0, dtype=dtype)
    if fill == "small" or not dtype.is_floating_point:
        low, high = (0, 2) if dtype == torch.bool else (-3, 4)
        return torch.randint(low, high, shape, generator=generator).to(dtype)
    values = torch.randn(shape, generator=generator)
    if fill == "large":
        values = values * 100
    if fill == "special":
        picks = torch.randint(0, len(_SPECIAL), shape, generator=generator)
        mask = torch.rand(shape, generator=generator) < 0.4
        values = torch.where(mask, torch.tensor(_SPECIAL)[picks], values)
    return values.to(dtype)


def _strided(values: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "transposed" and values.dim() >= 2:
        return values.transpose(-1, -2).contiguous().transpose(-1, -2)
    if kind == "step" and values.dim() >= 1:
        return torch.stack([values, values], -1).flatten(-2)[..., ::2]
    if kind == "expanded" and values.dim() >= 1 and values.shape[0] > 1:
        return values[:1].expand(values.shape)
    if kind == "offset" and values.numel():
        return torch.cat([values.reshape(-1)[:1], values.reshape(-1)])[1:].reshape(values.shape)
    return values


def smaller(sample: Sample) -> Iterator[Sample]:
    """Simpler samples, the biggest steps first."""
    count = len(sample.shapes)
    if sample.shared:
        yield attrs.evolve(sample, shared=())
    if any(kind != "contiguous" for kind in sample.strides):
        yield attrs.evolve(sample, strides=("contiguous",) * count)
    if any(dtype != torch.float32 for dtype in sample.dtypes):
        yield attrs.evolve(sample, dtypes=(torch.float32,) * count)
    if len(set(sample.shapes)) == 1 and sample.shapes and sample.shapes[0]:
        yield attrs.evolve(sample, shapes=(sample.shapes[0][1:],) * count)
        yield attrs.evolve(sample, shapes=((),) * count)
    if all(len(shape) > 1 for shape in sample.shapes):
        yield attrs.evolve(sample, shapes=tuple(shape[1:] for shape in sample.shapes))
    for size in sorted({size for shape in sample.shapes for size in shape if size > 1}, reverse=True):
        for less in dict.fromkeys((1, 2, size - 1)):
            if less < size:
                yield attrs.evolve(sample, shapes=_with_size(sample.shapes, size, less))
    for place in range(count):
        for fill in _FILLS[: _FILLS.index(sample.fills[place])]:
            yield attrs.evolve(sample, fills=_with(sample.fills, place, fill))
        if sample.strides[place] != "contiguous":
            yield attrs.evolve(sample, strides=_with(sample.strides, place, "contiguous"))


def _with(items: tuple[Any, ...], place: int, item: Any) -> tuple[Any, ...]:
    return (*items[:place], item, *items[place + 1 :])


def _with_size(shapes: tuple[Shape, ...], size: int, less: int) -> tuple[Shape, ...]:
    return tuple(tuple(less if s == size else s for s in shape) for shape in shapes)
