"""Seconds that are so small that floats have few digits left for them, or that quotients of them are no numbers.

Answers and figures are those of the given seconds; only the search counts others.
"""

from __future__ import annotations

import attrs
import numpy as np

from fxpasses.partitioners.solvers.reduced.tables import CostTables, Floats

__all__ = ["readable_times"]

TINY, SCALE = 1e-120, 2.0**600
"""Where all seconds of nodes are below this, all are multiplied, which is exact."""
MOST_SENT = 1e20
"""Seconds over a link up to which that leaves room above."""
NOTHING = 1e-60
"""Seconds of a share of the smallest largest load that no float can tell from nothing."""


def readable_times(tables: CostTables) -> tuple[CostTables, float]:
    """Costs to search with, and what seconds were multiplied with. Time O(nodes × devices)."""
    finite = np.where(np.isfinite(tables.seconds), tables.seconds, 0.0)
    sent = tables.latency.max() + tables.output.max() * tables.per_byte.max() if tables.output.any() else 0.0
    scale = SCALE if 0 < max(finite.max(), tables.fixed.max()) < TINY and sent < MOST_SENT else 1.0
    least = float(np.where(np.isfinite(tables.seconds).any(axis=1), tables.seconds.min(axis=1), 0.0).max())
    low = least * NOTHING
    if scale == 1.0 and not (_any_below(tables.seconds, low) or _any_below(tables.fixed, low)):
        return tables, 1.0

    def readable(times: Floats) -> Floats:
        return np.where(times < low, 0.0, times) * scale

    return (
        attrs.evolve(
            tables,
            seconds=readable(tables.seconds),
            fixed=readable(tables.fixed),
            latency=tables.latency * scale,
            per_byte=tables.per_byte * scale,
        ),
        scale,
    )


def _any_below(times: Floats, low: float) -> bool:
    return bool(((times > 0) & (times < low)).any())
