"""Run operators inside of ``torch.vmap``, on operands of all rows: batching rules make more than one row times rows.

``linear`` becomes a product and a sum there, and a matrix that has no rows is copied for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch._functorch import predispatch

from fxpasses.partitioners.vmap_rows import Rows

__all__ = ["with_rows"]


@contextmanager
def with_rows(operands: Sequence[Any], rows: Sequence[Rows], own: Rows) -> Iterator[list[Any]]:
    """Inside, levels are open, and the operands have rows there; given are tensors that hold all rows, outermost first.

    Args:
        operands: Tensors, and what else an operator is given.
        rows: For each operand the levels in which it has rows.
        own: Those in which the result has some: random numbers may have more than the operands.
    """
    operands, opened = list(operands), 0
    sizes = dict(sorted(pair for each in (own, *rows) for pair in each))
    try:
        for level, size in sizes.items():
            predispatch._vmap_increment_nesting(size, "different")
            opened += 1
            operands = [
                predispatch._add_batch_dim(operand, 0, opened) if level in dict(levels) else operand
                for operand, levels in zip(operands, rows, strict=True)
            ]
        yield operands
    finally:
        for _ in range(opened):
            predispatch._vmap_decrement_nesting()
