"""Which weights some of the units left out have together: a device runs each of them whole, or not at all.

Cells of a recurrent net weigh all alike, so a device with room for 12.9 of them takes 12. The sums are a set of whole
bins: as each weight may be rounded down or up, the bin of every true sum is in it (Bellman 1957).
"""

from __future__ import annotations

import attrs
import numpy as np

from fxpasses.partitioners.solvers.reduced.tables import Floats

__all__ = ["SubsetSums"]

BINS = 1 << 13
ROUNDING = 1e-12


@attrs.frozen(eq=False)
class SubsetSums:
    """The sums of some weights up to a limit.

    Args:
        most: For each bin the largest sum, at most, in it or in those before, ``(b,)``.
        scale: Bins for a unit of weight.
    """

    most: Floats
    scale: float

    @classmethod
    def of(cls, weights: Floats, limit: float) -> SubsetSums:
        """Time O(weights × bins / 64)."""
        if not 0 < limit < np.inf:
            return cls(np.zeros(0), 0.0)
        scale, every, mask = BINS / limit, 1, (1 << BINS) - 1
        for weight in weights[weights < limit].tolist():
            bins = int(weight * scale * (1 - ROUNDING))
            every |= ((every << bins) | (every << bins + 1)) & mask
        is_sum = np.unpackbits(np.frombuffer(every.to_bytes(BINS // 8, "little"), dtype=np.uint8), bitorder="little")
        most: Floats = np.maximum.accumulate(np.where(is_sum, np.arange(1, BINS + 1) / scale, 0.0))
        return cls(most, scale)
