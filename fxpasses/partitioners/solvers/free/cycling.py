"""Cycles of a search: anneal clusters of units, then smaller ones, then the units; and a pool of what came out.

Which clusters, how hot and how long is the caller's choice; see :mod:`fxpasses.partitioners.solvers.free.searching`.
"""

from __future__ import annotations

import math

import attrs
import numpy as np

from fxpasses.partitioners.solvers.free.annealing import Annealer, Best
from fxpasses.partitioners.solvers.free.coarsening import chopped, clustered
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["SETUP", "Cycle", "Level", "Pool", "step_seconds"]

ROWS = 16
"""Assignments that are annealed together."""
SETUP = 3e-5
"""Seconds of preparing one annealing, for each unit."""
POOL, ALIKE = 6, 0.02
"""Good assignments that are kept; those are alike that differ in fewer units."""
WORSE = 1.003
"""How much worse than the best an assignment may be that a cycle starts from."""


@attrs.frozen
class Level:
    """One annealing: of how many clusters, as a share of the units; from and to which temperature; for how long."""

    share: float
    hot: float
    cold: float
    seconds: float


@attrs.frozen(eq=False)
class Cycle:
    """Annealings from clusters to units.

    Args:
        home: Where it starts.
        kept: Assignments that no cluster of the first level cuts, ``(p, m)``; those of the next keep what was found.
        levels: The annealings.
        sweeps: Temperatures of each, at most.
        squarings: The norm is of order ``2 ** squarings``.
        soft: What passing a budget costs at first.
        is_chopped: Whether the first clusters are runs of units.
    """

    home: Ints
    kept: Ints
    levels: tuple[Level, ...]
    sweeps: int
    squarings: int
    soft: float
    is_chopped: bool = False

    def run(self, model: LoadModel, scale: float, draw: np.random.Generator) -> tuple[Ints, float]:
        """The assignment at the end, and about how many seconds it took."""
        home, kept, spent = self.home, self.kept, 0.0
        average = float(model.weight.mean(axis=1).sum()) / model.devices
        is_free = not kept.any()
        for level in self.levels:
            count = max(2 * model.devices, int(level.share * model.size))
            cluster = np.arange(model.size)
            if is_free and self.is_chopped:
                cluster = chopped(model, count, draw)
            elif count < model.size:
                cluster = clustered(model, kept, count, average * draw.uniform(0.1, 0.7), draw)
            small = model.merged(cluster)
            first = np.unique(cluster, return_index=True)[1]
            homes = (
                draw.integers(0, model.devices, (ROWS, len(first))) if is_free else home[first][None].repeat(ROWS, 0)
            )
            annealer = Annealer(small, homes, scale=scale, squarings=self.squarings, draw=draw)
            found, steps = _annealed(annealer, level, self.soft, self.sweeps)
            home = found[cluster]
            spent += steps * step_seconds(small) + model.size * SETUP
            kept, is_free = home[None], False
        return home, spent


class Pool:
    """A few good assignments that differ."""

    def __init__(self, model: LoadModel, homes: Ints) -> None:
        self.model = model
        self.homes: list[Ints] = []
        self.ranks: list[tuple[float, float]] = []
        for home in homes:
            self.take(home)

    def take(self, home: Ints) -> None:
        """Put one in, in place of the one that is like it, or of the worst."""
        over = np.maximum(self.model.needs(home[None])[0] / np.maximum(self.model.memory, 1.0) - 1.0, 0.0)
        banned = self.model.banned[np.arange(self.model.size), home].sum()
        rank = (float(over.sum() + banned), float(self.model.figures(home[None]).max()))
        near = [place for place, known in enumerate(self.homes) if (known != home).mean() < ALIKE]
        place = (
            near[0]
            if near
            else (int(np.lexsort(np.array(self.ranks).T[::-1])[-1]) if len(self.homes) == POOL else None)
        )
        if place is None:
            self.homes.append(home)
            self.ranks.append(rank)
        elif rank < self.ranks[place]:
            self.homes[place], self.ranks[place] = home, rank

    def any(self, draw: np.random.Generator, best: Best) -> Ints:
        """The best, or one of the others that is near it."""
        if not math.isfinite(best.value):
            return self.homes[self.ranks.index(min(self.ranks))]
        near = [home for home, rank in zip(self.homes, self.ranks, strict=True) if rank <= (0.0, best.value * WORSE)]
        return near[int(draw.integers(len(near)))] if near and draw.random() < 0.5 else best.home

    def two(self, draw: np.random.Generator) -> tuple[Ints, Ints]:
        """Two of them, the better one first."""
        first, second = np.sort(draw.permutation(len(self.homes))[:2]).tolist()
        if self.ranks[second] < self.ranks[first]:
            first, second = second, first
        return self.homes[first], self.homes[second]


def _annealed(annealer: Annealer, level: Level, soft: float, sweeps: int) -> tuple[Ints, int]:
    """The best legal assignment of one annealing, or the one of the least energy where none is legal; and its steps."""
    best, steps = Best(math.inf, annealer.homes[0]), 0
    most = level.seconds / step_seconds(annealer.model)
    for sweep in range(sweeps):
        done = max(sweep / (sweeps - 1), steps / most)
        if done > 1 and sweep > 1:
            break
        hard = min(1.0, soft * (1.5 / soft) ** done)
        steps += annealer.sweep(level.hot * (level.cold / level.hot) ** min(done, 1.0), best, hard)
        annealer.resample(0.1)
    return best.home if math.isfinite(best.value) else annealer.homes[int(np.argmin(annealer.energy()))], steps


def step_seconds(model: LoadModel) -> float:
    """About how long one step takes."""
    counts_bytes = model.by_bytes or bool(np.isfinite(model.memory).any())
    return (100e-6 if counts_bytes else 60e-6) + ROWS * model.devices**2 * 40e-9
