"""The best pipeline under the value of one that is known, where ideals are many, with budgets kept as is predicted.

The solvers find the ideals at which a pipeline under a threshold may be cut from a coarse problem on. Told what is on a
device while it runs, they leave out what does not fit, and where few ideals are left, all pipelines through these are
looked at: the best of them is the best there is, and where none keeps the budgets, none does under the threshold.
"""

from __future__ import annotations

import attrs

from fxpasses.partitioners.placing.found_placements import EQUAL, Found
from fxpasses.partitioners.placing.searches.reduced_graphs import ReducedGraph
from fxpasses.partitioners.placing.searches.run_tables import BestPipeline, RunTable
from fxpasses.partitioners.solvers.contiguous.refined.refining import Refined
from fxpasses.partitioners.solvers.contiguous.searching import STEPS_A_SECOND, Search
from fxpasses.partitioners.solvers.proofs.bounds import prices_of

__all__ = ["refined_pipeline"]

IDEALS, MOST_IDEALS = 100_000, 2000
"""How many there may be while they are found, and when pipelines through them are looked at."""
NEXT, ENOUGH = 0.5, 0.001
"""Where the next threshold lies between what is proven and the value; and how near they come."""
EACH = 0.5
"""What each threshold gets of the steps that are left."""
PROVING, LOOKING = 0.5, 0.25
"""The parts of the steps that go into the first proof, and into looking for something better, or at what is missing."""
NEARLY = 1.05
"""How near it is told what all pipelines lack."""
PROMISING, VAIN = 500, 2
"""How many of the most promising ideals are looked at, and how many times in turn nothing is found among them."""


def refined_pipeline(graph: ReducedGraph, best: Found | None, bound: float, seconds: float) -> BestPipeline:
    """Look for better ones than a pipeline, and for what none is below.

    Args:
        graph: The graph.
        best: A pipeline that keeps the budgets, if one is known.
        bound: No pipeline is below it.
        seconds: About how long it may take, counted in steps.
    """
    if not graph.knows_lives:
        return BestPipeline(best, bound)
    prices = prices_of(graph.units, graph.tables.memory, graph.request.objective)
    search = Search(graph.problem, graph.tables, graph.units, graph.classes, prices, lives=graph.lives)
    if not search.can_refine:
        return BestPipeline(best, bound)
    steps = seconds * STEPS_A_SECOND
    gap, more = _Gap(graph, search, best, bound), LOOKING * steps
    steps -= gap.prove(PROVING * steps)
    if not gap.is_closed:
        steps -= gap.look_among_promising(more)
        if gap.best is not best:
            gap.prove(steps)
    if not gap.is_closed:
        return BestPipeline(gap.best, gap.bound)
    if gap.best is None:
        return BestPipeline(None, gap.bound, missing_bytes=_least_missing(search, gap.value, min(steps, more)))
    return BestPipeline(gap.best, gap.best.value, is_best=True)


def _least_missing(search: Search, below: float, steps: float) -> int:
    """The fewest bytes that every pipeline lacks on some device, as far as some steps tell; one is known to lack."""
    least, enough = 1, 0
    while steps > 0 and (not enough or enough > least * NEARLY):
        more = (least + enough) // 2 if enough else 2 * least
        classes = tuple(attrs.evolve(group, memory=group.memory + more) for group in search.classes)
        prices = prices_of(search.units, search.tables.memory + more, search.problem.objective)
        refined = attrs.evolve(search, classes=classes, prices=prices).refined(below, steps, IDEALS)
        steps -= refined.steps
        if refined.words is None or len(refined.words):
            enough = more
        else:
            least = more + 1
    return least


@attrs.define
class _Gap:
    """The best pipeline so far, and what none is below."""

    graph: ReducedGraph
    search: Search
    best: Found | None
    bound: float

    @property
    def value(self) -> float:
        """What is below this is better."""
        return self._everything if self.best is None else self.best.value

    @property
    def _everything(self) -> float:
        """More than any device takes."""
        taken = (group.weight.sum() + group.leaving.sum() + group.entering.sum() for group in self.search.classes)
        return 2 * float(sum(taken))

    @property
    def is_closed(self) -> bool:
        """Whether nothing is left between the two."""
        return self.value <= self.bound * (1 + EQUAL)

    def prove(self, steps: float) -> float:
        """Ask for all that is better; where that takes too much, under lower thresholds. What it took is told."""
        below, taken = self.value * (1 - EQUAL), 0.0
        while taken < steps and not self.is_closed:
            refined = self.search.refined(below, EACH * (steps - taken), IDEALS, self.bound)
            taken += refined.steps
            if refined.words is None or len(refined.words) > MOST_IDEALS:
                below = self.bound + NEXT * (below - self.bound)
                if below <= self.bound * (1 + ENOUGH):
                    break
                continue
            if not self._take(refined, is_whole=True) or self.value <= self.bound * (1 + ENOUGH):
                break
            is_lower = refined.below < below
            below = self.bound + NEXT * (self.value - self.bound) if is_lower else self.value * (1 - EQUAL)
        return taken

    def look_among_promising(self, steps: float) -> float:
        """Look among the most promising ideals, and among more, until that is vain. What it took is told."""
        most, vain, least, taken = PROMISING, 0, self.bound, 0.0
        while taken < steps and not self.is_closed and vain < VAIN:
            refined = self.search.promising(least, self.value * (1 - EQUAL), most, steps - taken)
            taken += refined.steps
            before = self.value
            if refined.words is not None and 0 < len(refined.words) <= MOST_IDEALS:
                self._take(refined, is_whole=False)
            if self.value < before:
                vain = 0
            else:
                most, vain, least = 2 * most, vain + 1, (least + self.value) / 2
        return taken

    def _take(self, refined: Refined, *, is_whole: bool) -> bool:
        """Look at the pipelines through some ideals; whether all is known of those."""
        assert refined.words is not None
        if len(refined.words):
            below = refined.below if is_whole else self.value * (1 - EQUAL)
            known = RunTable.of(self.graph, refined.words, is_whole=is_whole, below=below).looked_at()
        else:
            known = BestPipeline(None, refined.below)
        if known.found is not None and known.found.value < self.value:
            self.best = known.found
        if is_whole:
            self.bound = max(self.bound, min(self.value, known.bound))
        return known.is_best or known.bound >= refined.below
