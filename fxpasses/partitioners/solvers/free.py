"""Free placement: any unit on any device, so that the busiest device has the least to do.

Free means that a device may be visited several times by one sample; over many samples the devices still work side by
side, and the busiest one says how many go through in a second. Running it needs each device's units cut into runs whose
order has no cycle; there always is one, at worst a run for each unit.

The search goes in cycles: join units into clusters that the best assignment does not cut, anneal many assignments of
the clusters, then of smaller ones, then of the units. An integer program proves small problems. Budgets are counted in
steps, not in seconds, so the answer is the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from fxpasses.partitioners.solvers.annealing import Annealer, Best
from fxpasses.partitioners.solvers.coarsening import clustered
from fxpasses.partitioners.solvers.loads import LoadModel
from fxpasses.partitioners.solvers.packing import Packing
from fxpasses.partitioners.solvers.proving import ROUNDING, Proof, least_load, program_size
from fxpasses.partitioners.solvers.tables import Ints

__all__ = ["FreeAnswer", "FreeSearch"]

ROWS = 16
"""Assignments that are annealed together."""
SWEEPS = 20
"""Temperatures of one annealing, at most."""
HOT = (0.0007, 0.006)
"""Where the first temperature lies, as a share of the bound; the last is a tenth of it."""
SMALL_PROGRAM = (250, 150, 1000)
"""Variables up to which the integer program is asked: always, more for each second of the budget, and the most."""
VARIABLES_A_SECOND = 80_000
"""How many variables it takes to its branch-and-bound nodes in a second, times their number."""
SEARCH_FIRST = 0.05
"""Seconds of search before the integer program is asked, and whatever the budget."""
WORSE = 1.003
"""How much worse than the best the assignment may be that the next cycle starts from."""


@attrs.frozen(eq=False)
class FreeAnswer:
    """An assignment of units (None: none was found), and what no assignment can be below (``inf``: there is none)."""

    home: Ints | None
    value: float
    bound: float


@attrs.frozen(eq=False)
class FreeSearch:
    """A search for the assignment of the smallest largest load.

    Args:
        model: What units and values cost.
        bound: No assignment has a smaller largest load.
        budget: About how many seconds the search may take on a machine of 2024.
        seed: For everything that is drawn.
    """

    model: LoadModel
    bound: float
    budget: float
    seed: int

    def run(self, starts: Sequence[Ints]) -> FreeAnswer:
        """Search from some assignments (of units) and from the greedy one."""
        draw = np.random.default_rng(self.seed)
        best = Best(math.inf, np.zeros(self.model.size, dtype=np.int64))
        first = np.stack([*starts, self.greedy()])
        best.offer(self.model.figures(first), self.model.legal(first), first)
        bound = self.bound
        least, more, most = SMALL_PROGRAM
        if program_size(self.model) <= min(least + more * self.budget, most):
            self._cycles(best, draw, SEARCH_FIRST)
            bound = max(bound, self._proven(best))
        if best.value > bound * (1 + 1e-9) and not math.isinf(bound):
            self._cycles(best, draw, SEARCH_FIRST + self.budget)
        return FreeAnswer(best.home if math.isfinite(best.value) else None, best.value, min(bound, best.value))

    def greedy(self) -> Ints:
        """The longest unit first, each where the least is on it then, transfers left out (Graham 1969)."""
        model = self.model
        load, need = np.zeros(model.devices), np.zeros(model.devices)
        home = np.zeros(model.size, dtype=np.int64)
        longest = np.argsort(-model.weight.max(axis=1) - model.kept / (model.kept.sum() + 1), kind="stable")
        for unit in longest.tolist():
            after = load + model.weight[unit]
            after[model.banned[unit]] = np.inf
            after[need + model.kept[unit] + model.live[unit] > model.memory] += 1e9 * (1 + float(load.sum()))
            home[unit] = target = int(np.argmin(after))
            load[target] += model.weight[unit, target]
            need[target] += model.kept[unit]
        return home

    def _proven(self, best: Best) -> float:
        """What the integer program proves; it may find a better assignment, too."""
        if best.value <= self.bound * (1 + 1e-9):
            return 0.0
        nodes = int(VARIABLES_A_SECOND * (1 + self.budget / 2) / (1 + program_size(self.model)))
        if self.model.by_bytes:
            return self.settle(Packing.of(self.model, nodes=nodes).least_bytes(below=best.value), best)
        return self.settle(least_load(self.model, below=best.value, nodes=nodes), best)

    def settle(self, proof: Proof, best: Best) -> float:
        """Take what a program found; the bound is the value itself when they agree up to the program's rounding."""
        if proof.home is not None:
            found = proof.home[None]
            best.offer(self.model.figures(found), self.model.legal(found), found)
        return best.value if proof.bound >= best.value * (1 - ROUNDING) else max(proof.bound * (1 - ROUNDING), 0.0)

    def _cycles(self, best: Best, draw: np.random.Generator, seconds: float) -> None:
        scale = self.bound or 1.0
        current = best.home
        spent = 0.0
        while spent < seconds and best.value > self.bound * (1 + 1e-9):
            hot = math.exp(draw.uniform(math.log(HOT[0]), math.log(HOT[1])))
            squarings = int(draw.integers(3, 7))
            for cluster in self._levels(current, draw):
                model = self.model.merged(cluster)
                first = np.unique(cluster, return_index=True)[1]
                homes = np.repeat(current[None, first], ROWS, axis=0)
                sweep = model.size * _step_seconds(model)
                sweeps = min(SWEEPS, max(2, int((seconds - spent) / (2 * sweep))))
                spent += sweeps * sweep
                annealer = Annealer(model, homes, scale=scale, squarings=squarings, draw=draw)
                current = _annealed(annealer, hot, sweeps)[cluster]
                best.offer(self.model.figures(current[None]), self.model.legal(current[None]), current[None])
            if not self._is_near(current, best):
                current = best.home

    def _is_near(self, home: Ints, best: Best) -> bool:
        if math.isinf(best.value):
            return True
        is_legal = bool(self.model.legal(home[None])[0])
        return is_legal and float(self.model.figures(home[None]).max()) <= best.value * WORSE

    def _levels(self, home: Ints, draw: np.random.Generator) -> Iterator[Ints]:
        """Clusters of two sizes, then the units; none cuts what ``home`` keeps together."""
        kinds = self.model.devices
        average = float(self.model.weight.mean(axis=1).sum()) / kinds
        for share in np.sort(np.exp(draw.uniform(math.log(0.08), 0.0, 2))).tolist():
            count = max(2 * kinds, int(share * self.model.size))
            if count < self.model.size:
                yield clustered(self.model, home[None], count, average * draw.uniform(0.1, 0.7), draw)
        yield np.arange(self.model.size)


def _annealed(annealer: Annealer, hot: float, sweeps: int) -> Ints:
    """The best legal assignment of one annealing, or the one of the least energy where none is legal."""
    best = Best(math.inf, annealer.homes[0])
    for temperature in np.geomspace(hot, hot / 10, sweeps).tolist():
        annealer.sweep(temperature, best)
        annealer.resample(0.1)
    return best.home if math.isfinite(best.value) else annealer.homes[int(np.argmin(annealer.energy()))]


def _step_seconds(model: LoadModel) -> float:
    """About how long one step takes."""
    return 45e-6 + ROWS * model.devices**2 * 30e-9
