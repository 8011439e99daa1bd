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
from collections.abc import Sequence

import attrs
import numpy as np

from fxpasses.partitioners.solvers.free.annealing import Best
from fxpasses.partitioners.solvers.free.cycling import SETUP, Cycle, Level, Pool, step_seconds
from fxpasses.partitioners.solvers.proofs.assigning import ROUNDING, Proof, least_load, program_size
from fxpasses.partitioners.solvers.proofs.packing import Packing
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["FreeAnswer", "FreeSearch"]

SWEEPS = 20
"""Temperatures of one annealing, at most."""
HOT = (0.0007, 0.015)
"""Where the first temperature lies, as a share of the best load; the last is a tenth of it."""
GREAT = (0.015, 0.2)
"""Where the first temperature lies when a cycle starts from nothing."""
SOFT = (0.03, 1.0)
"""What passing a budget costs at first, as a share of what it costs in the end: units can change places then."""
SMALL_PROGRAM = (250, 150, 1000)
"""Variables up to which the integer program is asked: always, more for each second of the budget, and the most."""
NODES = 20_000_000
"""Branch-and-bound nodes of the program, times the square of its variables: a node takes longer in a large one."""
PACKING_SIZE, PACKING_NODES = 2000, 200
"""Variables up to which a program says what fits at all, and its branch-and-bound nodes."""
SEARCH_FIRST = 0.05
"""Seconds of search before the integer program is asked, and whatever the budget."""
SEARCH_SHARE = 0.8
"""The share of the budget that the search gets; the rest is for the first pipeline, bounds, and the program."""
INTENSE = 0.25
"""The share of the budget in which cycles only start from the best; then come others, too."""
FRESH, COMBINED = 0.3, 0.3
"""How often a cycle starts from nothing, and from two assignments."""
FLAT = 0.3
"""How often such a cycle has no clusters."""
LONG, LONG_SWEEPS = 0.2, 100
"""The share of the budget that a cycle from nothing takes at most, and sweeps that it takes at least."""
MANY_SWEEPS = 400
"""Temperatures of one annealing from nothing, at most."""
COMPILED_FROM, COMPILING = 10.0, 5.5
"""Budgets from which annealing is compiled, and seconds of it that are left for compiling."""
BEFORE = 0.05
"""The share of the budget that cycles get before compiled annealing."""


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
        if math.isinf(best.value):
            first = self._packed(best, first)
        pool, bound = Pool(self.model, first), self.bound
        least, more, most = SMALL_PROGRAM
        size = Packing.of(self.model, nodes=0).size if self.model.by_bytes else program_size(self.model)
        if size <= min(least + more * self.budget, most):
            self._cycles(best, pool, draw, SEARCH_FIRST)
            bound = max(bound, self._proven(best))
        if best.value > bound * (1 + 1e-9) and not math.isinf(bound):
            self._search(best, pool, draw)
        return FreeAnswer(best.home if math.isfinite(best.value) else None, best.value, min(bound, best.value))

    def _packed(self, best: Best, first: Ints) -> Ints:
        """Where nothing fits so far, let a program look for an assignment that keeps the budgets."""
        packing = Packing.of(self.model, nodes=PACKING_NODES)
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
        nodes = int(NODES * (1 + self.budget / 8) / (1 + program_size(self.model) ** 2))
        if self.model.by_bytes:
            return self.settle(Packing.of(self.model, nodes=nodes).least_bytes(below=best.value), best)
        return self.settle(least_load(self.model, below=best.value, nodes=nodes), best)

    def settle(self, proof: Proof, best: Best) -> float:
        """Take what a program found; the bound is the value itself when they agree up to the program's rounding."""
        if proof.home is not None:
            found = proof.home[None]
            best.offer(self.model.figures(found), self.model.legal(found), found)
        return best.value if proof.bound >= best.value * (1 - ROUNDING) else max(proof.bound * (1 - ROUNDING), 0.0)

    def _cycles(self, best: Best, pool: Pool, draw: np.random.Generator, seconds: float) -> None:
        """Intensify at first; then also from nothing, and from what two good assignments have in common."""
        spent = 0.0
        while spent + 3 * self.model.size * SETUP < seconds and best.value > self.bound * (1 + 1e-9):
            chance = draw.random() if spent > INTENSE * seconds else 1.0
            left = seconds - spent
            if chance < FRESH:
                cycle = self._from_nothing(
                    draw, min(left / 2, max(draw.uniform(0.2, 1.0) * LONG * seconds, self._long()))
                )
            elif chance < FRESH + COMBINED and len(pool.homes) > 1:
                cycle = self._common(pool, draw, left)
            else:
                cycle = self._around(pool.any(draw, best), draw, left)
            scale = best.value if math.isfinite(best.value) else max(self.bound, self._average())
            current, took = cycle.run(self.model, scale or 1.0, draw)
            spent += took
            best.offer(self.model.figures(current[None]), self.model.legal(current[None]), current[None])
            pool.take(current)

    def _search(self, best: Best, pool: Pool, draw: np.random.Generator) -> None:
        """Spend the budget: on cycles, or, where there is time to compile, on annealing that is compiled."""
        if self.budget < COMPILED_FROM or self.model.by_bytes:
            self._cycles(best, pool, draw, SEARCH_FIRST + SEARCH_SHARE * self.budget)
            return
        self._cycles(best, pool, draw, SEARCH_FIRST + BEFORE * self.budget)
        if best.value > self.bound * (1 + 1e-9):
            from fxpasses.partitioners.solvers.free.moving import search_moves  # numba is heavy

            search_moves(self.model, best, self.bound, (SEARCH_SHARE - BEFORE) * self.budget - COMPILING, draw)

    def _average(self) -> float:
        """The load of each device if all were as fast as they are on average, transfers left out."""
        return float(self.model.weight.mean(axis=1).sum()) / self.model.devices

    def _long(self) -> float:
        """Seconds of so many sweeps that a great heat can cool slowly."""
        return LONG_SWEEPS * self.model.size * step_seconds(self.model)

    def _around(self, home: Ints, draw: np.random.Generator, seconds: float) -> Cycle:
        """Clusters of two sizes, then the units; none cuts what ``home`` keeps together; little heat."""
        hot = math.exp(draw.uniform(math.log(HOT[0]), math.log(HOT[1])))
        shares = np.sort(np.exp(draw.uniform(math.log(0.08), 0.0, 2))).tolist()
        levels = [Level(share, hot, hot / 10, seconds / 6) for share in (*shares, 1.0)]
        return Cycle(home, home[None], tuple(levels), SWEEPS, int(draw.integers(3, 7)), _soft(draw))

    def _common(self, pool: Pool, draw: np.random.Generator, seconds: float) -> Cycle:
        """Clusters that neither of two assignments cuts, as in :meth:`_around`."""
        first, second = pool.two(draw)
        cycle = self._around(first, draw, seconds)
        return attrs.evolve(cycle, kept=np.stack([first, second]))

    def _from_nothing(self, draw: np.random.Generator, seconds: float) -> Cycle:
        """From a great heat: the units; or few clusters of units, or runs of them, then ever smaller ones."""
        nothing = np.zeros((1, self.model.size), dtype=np.int64)
        few = min(1.0, draw.uniform(2.0, 12.0) * self.model.devices / self.model.size)
        hot = math.exp(draw.uniform(math.log(GREAT[0]), math.log(GREAT[1])))
        levels: tuple[Level, ...] = (
            Level(few, hot, 0.002, 0.3 * seconds),
            Level(math.sqrt(few), hot / 4, 0.001, 0.3 * seconds),
            Level(1.0, hot / 10, 0.0003, 0.4 * seconds),
        )
        way = draw.random()
        if way < FLAT:
            levels = (Level(1.0, hot, 0.0003, seconds),)
        squarings, is_chopped = int(draw.integers(3, 6)), way >= (1 + FLAT) / 2
        return Cycle(self.greedy(), nothing, levels, MANY_SWEEPS, squarings, _soft(draw), is_chopped)


def _soft(draw: np.random.Generator) -> float:
    return math.exp(draw.uniform(math.log(SOFT[0]), math.log(SOFT[1])))
