"""Many runs from one ideal to another, some thousands at a time: as many as a processor has at hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["in_blocks"]

BLOCK = 4096


def in_blocks(bytes_of: Callable[[Ints, Ints], Floats], first: Ints, last: Ints) -> Floats:
    """What a function says of pairs of ideals, asked for some of them at a time."""
    blocks = [slice(start, start + BLOCK) for start in range(0, len(first), BLOCK)]
    return np.concatenate([np.zeros(0), *(bytes_of(first[block], last[block]) for block in blocks)])
