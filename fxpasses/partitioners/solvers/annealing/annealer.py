"""Anneal assignments of one model, and keep the best that is legal; what is compiled is in :mod:`.cooling`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.annealing.graphs import Cooling, Orders, State, graph_of, state_of
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["STEPS_PER_SECOND", "Annealer", "Best"]

STEPS_PER_SECOND = 1100e6
"""Elementary steps of annealing on one core of 2024 in a second."""

PENALTY = 3.0
"""What a device that needs twice its budget adds to the energy, in average loads."""

ORDERS, DRAWN, WORSE = 6, 30, 0.003
"""In how many orders of a pipeline's devices the best assignments are kept; how many orders are drawn at first; and by
how much an order may be worse than the one before, in the mean."""
QUICK, LONG = 500, 2000
"""Steps for each unit of the annealings in an order: of the first, and of the other one where that is promising."""


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
        value = anneal(self.graph, state, best, math.inf, cooling, self.scale, PENALTY, random)
        return best if math.isfinite(value) else None, state

    def orders(self, cooling: Cooling, draw: np.random.Generator) -> list[Ints]:
        """The best assignments of a pipeline that keep every budget, in the best orders of its devices.

        Every device can run every unit.

        Args:
            cooling: How units are annealed in each order, in so many steps for all orders.
            draw: What is drawn.
        """
        from fxpasses.partitioners.solvers.annealing.ordering import search_orders  # numba is heavy

        size, devices = self.model.weight.shape
        quick, long = (cooling._replace(steps=each * size, exchanges=0.0) for each in (QUICK, LONG))
        ahead = np.zeros((devices, size + 1))
        np.cumsum(self.model.weight.T, axis=1, out=ahead[:, 1:])
        nowhere, values = np.zeros(size, dtype=np.int64), np.full(ORDERS, math.inf)
        found, homes = (np.zeros((ORDERS, count), dtype=np.int64) for count in (devices, size))
        at = np.arange(devices)
        orders = Orders(cooling.steps, DRAWN, WORSE, quick, long, ahead, at, nowhere, found, homes, values)
        random = draw.integers(1, 2**63, 2).astype(np.uint64)
        search_orders(self.graph, state_of(self.model, self.graph, nowhere), orders, self.scale, PENALTY, random)
        return [homes[place] for place in np.argsort(values, kind="stable") if math.isfinite(values[place])]
