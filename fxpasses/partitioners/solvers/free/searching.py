"""Free placement: any unit on any device, so that the busiest device has the least to do.

Free means that a device may be visited several times by one sample; over many samples the devices still work side by
side, and the busiest one says how many go through in a second. Running it needs each device's units cut into runs whose
order has no cycle; there always is one, at worst a run for each unit.

An integer program proves small problems; the others are annealed. Budgets are counted in steps, not in seconds, so the
answer is the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import numpy as np

from fxpasses.partitioners.solvers.annealing.annealer import Best
from fxpasses.partitioners.solvers.free.packing_moves import packed_by_moves
from fxpasses.partitioners.solvers.free.rounds import Rounds
from fxpasses.partitioners.solvers.proofs.assigning import FAR, ROUNDING, Proof, least_load, program_size
from fxpasses.partitioners.solvers.proofs.packing import Packing
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["FreeAnswer", "FreeSearch"]

SMALL_PROGRAM = (250, 150, 1000)
"""Variables up to which the integer program is asked: always, more for each second of the budget, and the most."""
PACKING_SIZE = 2000
"""Variables up to which a program says what fits at all."""
SEARCH_FIRST = 0.05
"""Seconds of search whatever the budget."""
SEARCH_SHARE, LOADING = 0.75, 0.2
"""The share of the budget that the search gets, and seconds of it that loading what is compiled takes; the rest is for
the first pipeline, bounds, and the program."""
MUCH, LONG_SHARE = 10.0, 0.5
"""Seconds up to which that holds, as steps take longer in long annealings; and its share of those after them."""


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
        program_seconds: How long an integer program may take, about.
    """

    model: LoadModel
    bound: float
    budget: float
    seed: int
    program_seconds: float

    def run(self, starts: Sequence[Ints]) -> FreeAnswer:
        """Search from some assignments (of units) and from the greedy one."""
        draw = np.random.default_rng(self.seed)
        best = Best(math.inf, np.zeros(self.model.size, dtype=np.int64))
        first = np.stack([*starts, self.greedy()])
        best.offer(self.model.figures(first), self.model.legal(first), first)
        if math.isinf(best.value):
            first = self._packed(best, first, draw)
        bound = self.bound
        least, more, most = SMALL_PROGRAM
        size = Packing.of(self.model, seconds=0).size if self.model.by_bytes else program_size(self.model)
        if size <= min(least + more * self.budget, most):
            bound = max(bound, self._proven(best))
        if best.value > bound * (1 + 1e-9) and not math.isinf(bound):
            usual = min(self.budget, MUCH)
            seconds = max(SEARCH_FIRST, SEARCH_SHARE * usual + LONG_SHARE * (self.budget - usual) - LOADING)
            Rounds(self.model, bound, draw).search(best, seconds)
        return FreeAnswer(best.home if math.isfinite(best.value) else None, best.value, min(bound, best.value))

    def _packed(self, best: Best, first: Ints, draw: np.random.Generator) -> Ints:
        """Where nothing fits so far, look for an assignment that keeps the budgets: by moves, then by a program."""
        home = packed_by_moves(self.model, first[-1], draw)
        if home is None:
            packing = Packing.of(self.model, seconds=self.program_seconds)
            home = packing.missing_bytes().home if packing.size <= PACKING_SIZE else None
        if home is None:
            return first
        best.offer(self.model.figures(home[None]), self.model.legal(home[None]), home[None])
        return np.concatenate([first, home[None]])

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
        seconds = self.program_seconds
        if self.model.by_bytes:
            return self.settle(Packing.of(self.model, seconds=seconds).least_bytes(below=best.value), best)
        while True:
            below = best.value
            bound = self.settle(least_load(self.model, below=below, seconds=seconds), best)
            if below <= FAR * best.value or math.isinf(below):
                return bound

    def settle(self, proof: Proof, best: Best) -> float:
        """Take what a program found; the bound is the value itself when they agree up to the program's rounding."""
        if proof.home is not None:
            found = proof.home[None]
            best.offer(self.model.figures(found), self.model.legal(found), found)
        return best.value if proof.bound >= best.value * (1 - ROUNDING) else max(proof.bound * (1 - ROUNDING), 0.0)
