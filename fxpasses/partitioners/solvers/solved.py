"""What a solver hands back: devices of nodes, and what its objective adds to that."""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["Solved"]


@attrs.frozen(eq=False)
class Solved:
    """An answer in positions.

    Args:
        device_of: The device of each node, ``(n,)``.
        order: The devices that are used; a pipeline's in the order in which values flow through them.
        bound: What no placement can be below.
        start: When each node starts, where the objective is the latency.
        value: The objective, where it is more than a figure of the devices.
        present: Where each node is computed, ``(n, k)``, when some are computed on several devices.
    """

    device_of: Ints
    order: tuple[int, ...]
    bound: float
    start: Floats | None = None
    value: float | None = None
    present: NDArray[np.bool_] | None = None

    def scaled(self, factor: float, objective: str) -> Solved:
        """The answer where each second takes so many."""
        is_timed = objective in ("throughput", "latency")
        return attrs.evolve(
            self,
            bound=self.bound * factor if is_timed else self.bound,
            start=None if self.start is None else self.start * factor,
            value=None if self.value is None else self.value * factor,
        )
