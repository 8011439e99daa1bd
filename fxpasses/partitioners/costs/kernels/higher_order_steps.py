"""What torch's own loops and its attention with a function for scores do: their steps, to be run without data.

Rows are alike, so that only the first few are run, and what is kept of the others is made at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

__all__ = ["HIGHER_ORDER_STEPS"]

_DIFFERENT_ROWS = 3
"""Rows of a scan until one is like the next: the first is kept, and there while the third is made, with the second."""


def _mapped(body: Callable[..., Any], rows: Sequence[Tensor], others: Sequence[Any]) -> tuple[Any, ...]:
    """What is made of each row is kept until all are stacked."""
    count = rows[0].shape[0]
    made = body(*(each[0] for each in rows), *others)
    kept = [each.new_empty(max(0, count - 2), *each.shape) for each in _own(made, (*rows, *others))]
    last = body(*(each[-1] for each in rows), *others) if count > 1 else made
    stacked = tuple(None if each is None else each.new_empty(count, *each.shape) for each in made)
    del kept, last
    return stacked


def _own(made: Sequence[Any], operands: Sequence[Any]) -> list[Tensor]:
    """Those that are not memory of an operand."""
    given = {each.untyped_storage()._cdata for each in operands if isinstance(each, Tensor)}
    return [each for each in made if isinstance(each, Tensor) and each.untyped_storage()._cdata not in given]


def _scanned(
    body: Callable[..., Any], carry: Sequence[Any], rows: Sequence[Tensor], others: Sequence[Any]
) -> tuple[Any, ...]:
    """What is made of each row is scattered into what has been made for all, by an index of each of its elements.

    What was made of the first row stays.
    """
    size, count = len(carry), rows[0].shape[0]
    carry, first = _carry_and_out(body(*carry, *(each[0] for each in rows), *others), size)
    stacked = [None if each is None else each.new_empty(count, *each.shape) for each in first]
    places = [None if each is None else torch.ones_like(each, dtype=torch.int64).unsqueeze(0) for each in first]
    _store(first, stacked, places)
    for row in range(1, min(count, _DIFFERENT_ROWS)):
        carry, out = _carry_and_out(body(*carry, *(each[row] for each in rows), *others), size)
        _store(out, stacked, places)
    return (*carry, *stacked)


def _carry_and_out(made: Sequence[Any], size: int) -> tuple[Sequence[Any], Sequence[Any]]:
    """Apart, so that nothing else holds what the body made."""
    return made[:size], made[size:]


def _store(made: Sequence[Any], stacked: Sequence[Any], places: Sequence[Any]) -> None:
    for each, into, place in zip(made, stacked, places, strict=True):
        if each is not None:
            into.scatter_(0, 1 * place, each.unsqueeze(0))


def _attention(*args: Any) -> Any:
    """All scores at once."""
    from torch._higher_order_ops.flex_attention import sdpa_dense  # loaded where it is used

    return sdpa_dense(*args)


HIGHER_ORDER_STEPS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "map_impl": _mapped,
        "scan": _scanned,
        "flex_attention": _attention,
    }
)
"""By name, as torch makes some of these operators only when they are asked for."""
