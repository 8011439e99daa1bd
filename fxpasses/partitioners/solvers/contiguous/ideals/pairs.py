"""Some pairs of ideals of two sets: what is known of the ideals and of all pairs, as one list."""

from __future__ import annotations

from typing import TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["Pairs"]

T = TypeVar("T", bound=np.generic)


@attrs.frozen(eq=False)
class Pairs:
    """Pairs of ideals, sorted by the first.

    Args:
        count: How many there are for each ideal of the one set, ``(r,)``.
        last: The numbers of the other ideals of these, ``(n,)``.
        cells: Where the pairs stand in a table of all pairs, row by row, ``(n,)``.
    """

    count: Ints
    last: Ints
    cells: Ints

    @classmethod
    def where(cls, table: NDArray[np.bool_]) -> Pairs:
        """The pairs that a table ``(r, c)`` names. Time O(r c)."""
        count, cells = np.count_nonzero(table, axis=1), np.flatnonzero(table)
        return cls(count, cells - np.repeat(np.arange(len(table)) * table.shape[1], count), cells)

    def by_first(self, facts: NDArray[T]) -> NDArray[T]:
        """What is known of the first ideals, for each pair."""
        return np.repeat(facts, self.count)

    def of(self, table: NDArray[T]) -> NDArray[T]:
        """The cells of a table of all pairs."""
        return table.ravel()[self.cells]
