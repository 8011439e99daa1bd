"""How far an answer may be from the best one."""

from __future__ import annotations

import math

__all__ = ["gap_above"]


def gap_above(value: float, bound: float) -> float:
    """How far a value is above what none is below, as a share of that: 0 is proven optimal.

    >>> gap_above(3.0, 2.0), gap_above(2.0, 2.0), gap_above(2.0, 0.0)
    (0.5, 0.0, inf)
    """
    if value <= bound:
        return 0.0
    return value / bound - 1 if bound > 0 else math.inf
