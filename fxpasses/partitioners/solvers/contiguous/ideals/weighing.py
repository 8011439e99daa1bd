"""What rows of booleans weigh, in parts that stay in the cache while they are numbers: families are large tables."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.reduced.tables import Floats

__all__ = ["weighed"]

PART = 512


def weighed(weight: Floats, chosen: NDArray[np.bool_]) -> Floats:
    """The weights of the chosen rows of each column together, ``(m,)`` or ``(·, m)`` times ``(m, f)``."""
    parts = range(0, max(1, chosen.shape[1]), PART)
    return np.concatenate([weight @ chosen[:, part : part + PART].astype(np.float64) for part in parts], axis=-1)
