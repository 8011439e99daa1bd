"""Anneal assignments of one model, and keep the best that is legal; what is compiled is in :mod:`.cooling`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.annealing.graphs import Cooling, State, graph_of, state_of
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["STEPS_PER_SECOND", "Annealer", "Best"]

STEPS_PER_SECOND = 1100e6
"""Elementary steps of annealing on one core of 2024 in a second."""

PENALTY = 3.0
"""What a device that needs twice its budget adds to the energy, in average loads."""


@attrs.define(eq=False)
class Best:
    """The best assignment that was seen, and its largest load; ``inf`` while none kept every budget."""

    value: float
    home: Ints

    def offer(self, figures: Floats, legal: NDArray[np.bool_], homes: Ints) -> None:
        """Take the best of some assignments if it is better."""
        value = np.where(legal, figures.max(axis=1), np.inf)
        first = int(np.argmin(value))
        if value[first] < self.value:
            self.value, self.home = float(value[first]), homes[first].copy()

    def take(self, other: Best) -> None:
        """Be what another one is if that is better."""
        if other.value < self.value:
            self.value, self.home = other.value, other.home


class Annealer:
    """Annealing of one model.

    Args:
        model: What units and values cost.
        flow: For pipelines, pairs of units (before, after), ``(e, 2)``.
    """

    def __init__(self, model: LoadModel, flow: Ints | None = None) -> None:
        self.model = model
        self.graph = graph_of(model, flow)
        least = float(np.where(model.banned, np.inf, model.weight).min(axis=1).sum())
        if model.by_bytes:
            least += float(model.shared.sum() + model.live.max(initial=0.0))
        self.scale = least / model.devices or 1.0

    def anywhere(self, draw: np.random.Generator) -> Ints:
        """Each unit on any device that can run it."""
        chance = np.where(self.model.banned, np.inf, draw.random(self.model.banned.shape))
        home: Ints = np.argmin(chance, axis=1)
        return home

    def improved(self, home: Ints, cooling: Cooling, draw: np.random.Generator) -> Best:
        """What annealing from an assignment comes to."""
        found = self.along(home, cooling, draw)[None]
        best = Best(math.inf, found[0])
        best.offer(self.model.figures(found), self.model.legal(found), found)
        return best

    def along(self, home: Ints, cooling: Cooling, draw: np.random.Generator) -> Ints:
        """The best assignment on the way from one that gives no device what it cannot run; else where it ends."""
        best, state = self.run(home, cooling, draw)
        return state.home if best is None else best

    def run(
        self, home: Ints, cooling: Cooling, draw: np.random.Generator, order: Sequence[int] | None = None
    ) -> tuple[Ints | None, State]:
        """The best assignment that keeps every budget, and where the annealing ends, with all sums.

        ``order`` is that of all devices in a pipeline.
        """
        from fxpasses.partitioners.solvers.annealing.cooling import anneal  # numba is heavy

        state, best = state_of(self.model, self.graph, home, order), home.astype(np.int64)
        random = draw.integers(1, 2**63, 2).astype(np.uint64)
        value = anneal(self.graph, state, best, cooling, self.scale, PENALTY, random)
        return best if math.isfinite(value) else None, state
