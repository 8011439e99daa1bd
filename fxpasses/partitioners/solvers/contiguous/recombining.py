"""Better pipelines from many short annealings, whose cuts one dynamic program puts together.

An annealing of a hundredth of a second finds another good pipeline near the one that it starts from. Cuts of several
are ideals, and so are the intersections and unions of these; the best pipeline along all of them, with the devices in
any order, is mostly better than each, and the next annealings start there.
"""

from __future__ import annotations

import math

import attrs
import networkx as nx
import numpy as np

from fxpasses.partitioners.solvers.annealing.annealer import STEPS_PER_SECOND, Annealer
from fxpasses.partitioners.solvers.annealing.graphs import Cooling
from fxpasses.partitioners.solvers.contiguous.cutting import Words, by_weight, ideals_near, pack
from fxpasses.partitioners.solvers.contiguous.dynamic_program import Pipeline
from fxpasses.partitioners.solvers.contiguous.searching import BETTER, STEPS_A_SECOND, Answer, Search
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["PipelineAnnealer", "answer_of", "recombined"]

LOADING = 0.2
"""Seconds that it takes to load what is compiled; a budget below that has no annealing."""
MATRIX = 5_000_000
"""Units times pairs of devices up to which there is any."""
HOT, COLD, SQUARINGS = 0.01, 2e-4, (4, 3)
"""Temperatures; the norms take turns: a flat one finds other pipelines, a steep one makes them better."""
STEPS_A_UNIT = 20_000
"""Steps of each annealing, for each unit."""
TOGETHER = 8
"""Annealings between two dynamic programs."""
BEST = 16
"""From how many of the best answers annealings start, in turn."""
KEPT = 40
"""Answers whose cuts are looked at, the last ones."""
BESIDE = 20
"""With how many cuts of about as much weight each cut is put together."""
NEAR = 200
"""Ideals that are looked at around each cut of the best answer."""


class PipelineAnnealer:
    """Annealings of pipelines for one search, one after the other."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self._annealer = Annealer(LoadModel.of(search.units, search.tables), search.units.before)
        self._draw = np.random.default_rng(search.problem.seed)

    @staticmethod
    def takes(search: Search) -> bool:
        """Whether the budget reaches for one, and memory for its tables."""
        pairs = search.units.size * len(search.tables.memory) ** 2
        return search.problem.time_budget >= LOADING and pairs <= MATRIX

    def annealed(self, start: Answer, cooling: Cooling) -> Answer | None:
        """The best on the way from an answer, or None where nothing kept the budgets."""
        search = self.search
        home = np.zeros(search.units.size, dtype=np.int64)
        home[search.units.unit_of] = start.device_of
        unused = [device for device in range(len(search.tables.memory)) if device not in start.order]
        found, _state = self._annealer.run(home, cooling, self._draw, [*start.order, *unused])
        return None if found is None else answer_of(search, found)


def recombined(search: Search, best: Answer, bound: float, seconds: float) -> Answer:
    """The best of what annealings and dynamic programs in turn find in some seconds, or until the bound is met."""
    steps = seconds * STEPS_A_SECOND
    each = min(STEPS_A_UNIT * search.units.size, seconds * STEPS_PER_SECOND / TOGETHER)
    annealer, found = PipelineAnnealer(search), [best]
    while steps > 0 and best.rank[0] > bound:
        starts = sorted({answer.rank: answer for answer in found}.values(), key=Answer.by_rank)[:BEST]
        for turn in range(TOGETHER):
            cooling = Cooling(each, HOT, COLD, SQUARINGS[turn % len(SQUARINGS)])
            answer = annealer.annealed(starts[turn % len(starts)], cooling)
            found += [] if answer is None else [answer]
        taken = TOGETHER * each * STEPS_A_SECOND / STEPS_PER_SECOND
        search.account.spent += taken
        best = min(found, key=Answer.by_rank)
        outcome = search.run(_together(search, best, found[-KEPT:]), best.goal(search) * BETTER)
        steps -= taken + outcome.steps
        if outcome.pipeline is not None:
            found.append(Answer.of(search, outcome.pipeline))
            best = min(best, found[-1], key=Answer.by_rank)
    return best


def _together(search: Search, best: Answer, answers: list[Answer]) -> Words:
    """The cuts of answers, what cuts of about the same weight share and hold together, and what lies near the best."""
    cuts = np.unique(np.concatenate([_cuts(search, answer) for answer in answers]), axis=0)
    cuts = cuts[by_weight(cuts, search.prices.weight)]
    found = [cuts, ideals_near(search.units, search.cuts(best.pipeline), NEAR)]
    for apart in range(1, min(BESIDE + 1, len(cuts))):
        found += [cuts[apart:] & cuts[:-apart], cuts[apart:] | cuts[:-apart]]
    return np.unique(np.concatenate(found), axis=0)


def _cuts(search: Search, answer: Answer) -> Words:
    """The ideals between the devices of an answer, as rows of bits."""
    inside = np.zeros((len(answer.pipeline.runs), search.units.size), dtype=bool)
    for place, (_device, units) in enumerate(answer.pipeline.runs):
        inside[place:, list(units)] = True
    return pack(inside)


def answer_of(search: Search, home: Ints) -> Answer:
    """An assignment of units as runs, in an order in which values flow."""
    quotient: nx.DiGraph[int] = nx.DiGraph()
    quotient.add_nodes_from(np.unique(home).tolist())
    quotient.add_edges_from((first, second) for first, second in home[search.units.before].tolist() if first != second)
    order = nx.lexicographical_topological_sort(quotient)
    runs = tuple((device, tuple(np.flatnonzero(home == device).tolist())) for device in order)
    answer = Answer.of(search, Pipeline(runs, math.inf))
    return attrs.evolve(answer, pipeline=Pipeline(runs, answer.rank[0]))
