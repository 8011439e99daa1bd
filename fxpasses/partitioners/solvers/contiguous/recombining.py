"""Better pipelines from many short annealings, whose cuts one dynamic program puts together.

A dynamic program over some ideals knows all pipelines along them. Some of these that are nearly as good as the best
answer are drawn at random: they differ in the order of the devices, and in what a device runs. An annealing of a few
thousandths of a second makes each of them better. Their cuts are ideals, and so are the intersections and unions of
these; the best pipeline along all of them, with the devices in any order, is mostly better than each, and the next
annealings start at the best pipelines so far. Where that does not help, others are drawn.
"""

from __future__ import annotations

import math

import attrs
import networkx as nx
import numpy as np

from fxpasses.partitioners.solvers.annealing.annealer import STEPS_PER_SECOND, Annealer
from fxpasses.partitioners.solvers.annealing.graphs import Cooling
from fxpasses.partitioners.solvers.contiguous.cutting import Words, by_weight, ideals_near, pack
from fxpasses.partitioners.solvers.contiguous.filled_tables import Pipeline
from fxpasses.partitioners.solvers.contiguous.long_graphs import is_long
from fxpasses.partitioners.solvers.contiguous.orders import ideals_along
from fxpasses.partitioners.solvers.contiguous.searching import BETTER, STEPS_A_SECOND, Answer, Search
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["PipelineAnnealer", "answer_of", "recombined"]

LOADING = 0.2
"""Seconds that it takes to load what is compiled; a budget below that has no annealing."""
MATRIX = 5_000_000
"""Units times pairs of devices up to which there is any."""
HOT, COLD, SQUARINGS = 0.003, 2e-4, (4, 5)
"""Temperatures; the norms take turns."""
ANSWERING = 0.6e6
"""Steps that it takes to evaluate what an annealing found."""
STEPS_A_UNIT = 7_000
"""Steps of each annealing, for each unit."""
DRAWN, WORSE = 60, 1.04
"""Pipelines that are drawn for the first annealings, and how many times as large as the best answer they may be."""
PARTS = (6, 13)
"""In how many parts two orders are cut for the ideals that these are drawn from."""
TOGETHER, AGAIN = 12, 2
"""Annealings between two dynamic programs after the first ones, and how many times as long and as hot they are."""
BEST = 16
"""From how many of the best answers these start."""
KEPT = 40
"""Answers whose cuts are looked at, the best ones."""
BESIDE = 20
"""With how many cuts of about as much weight each cut is put together."""
NEAR = 200
"""Ideals that are looked at around each cut of the best answer."""


class PipelineAnnealer:
    """Annealings of pipelines for one search, one after the other."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self._annealer = Annealer(LoadModel.of(search.units, search.tables), search.units.before)
        self._draw = np.random.default_rng([search.problem.seed, int(search.account.spent)])  # others each time

    def drawn(self, best: Answer) -> list[Answer]:
        """Pipelines that are not much worse than an answer, drawn at random; the answer itself where there are none."""
        search = self.search
        words = ideals_along(search.units, search.prices.weight, PARTS, search.problem.seed)
        found = search.drawn(words, best.goal(search) * WORSE, DRAWN, self._draw)
        return [Answer.of(search, pipeline) for pipeline in found] or [best]

    @staticmethod
    def takes(search: Search) -> bool:
        """Whether the budget reaches for one, and memory for its tables."""
        pairs = search.units.size * len(search.tables.memory) ** 2
        return search.problem.time_budget >= LOADING and not is_long(search.units) and pairs <= MATRIX

    def annealed(self, start: Answer, cooling: Cooling) -> Answer | None:
        """The best on the way from an answer, or None where nothing kept the budgets."""
        search = self.search
        home = np.zeros(search.units.size, dtype=np.int64)
        home[search.units.unit_of] = start.device_of
        found, _state = self._annealer.run(home, cooling, self._draw, self._order(start))
        return None if found is None else answer_of(search, found)

    def _order(self, answer: Answer) -> tuple[int, ...]:
        """All devices, those that an answer does not use at the end."""
        unused = (device for device in range(len(self.search.tables.memory)) if device not in answer.order)
        return (*answer.order, *unused)


def recombined(search: Search, best: Answer, bound: float, seconds: float) -> Answer:
    """The best of what annealings and dynamic programs in turn find in some seconds, or until the bound is met."""
    if best.rank[0] <= bound:
        return best
    begun, most = search.account.spent, seconds * STEPS_A_SECOND
    each = min(STEPS_A_UNIT * search.units.size, seconds * STEPS_PER_SECOND / DRAWN)
    annealer, found = PipelineAnnealer(search), {best.rank: best}
    starts, count = annealer.drawn(best), DRAWN
    while best.rank[0] > bound and search.account.spent - begun < most:
        longer = 1 if count == DRAWN else AGAIN
        for turn in range(count):
            cooling = Cooling(longer * each, longer * HOT, COLD, SQUARINGS[turn % len(SQUARINGS)])
            answer = annealer.annealed(starts[turn % len(starts)], cooling)
            if answer is not None:
                found.setdefault(answer.rank, answer)
        search.account.spent += count * (longer * each * STEPS_A_SECOND / STEPS_PER_SECOND + ANSWERING)
        starts, last = sorted(found.values(), key=Answer.by_rank)[:KEPT], best
        pipeline = search.run(_together(search, starts), starts[0].goal(search) * BETTER).pipeline
        if pipeline is not None:
            starts.insert(0, Answer.of(search, pipeline))
            found[starts[0].rank] = starts[0]
        starts, best, count = starts[:BEST], starts[0], TOGETHER
        if best.rank >= last.rank and search.account.spent - begun < most:
            starts, count = annealer.drawn(best), DRAWN
    return best


def _together(search: Search, answers: list[Answer]) -> Words:
    """The cuts of answers, what cuts of about the same weight share and hold together, and what lies near the first."""
    cuts = np.unique(np.concatenate([_cuts(search, answer) for answer in answers]), axis=0)
    cuts = cuts[by_weight(cuts, search.prices.weight)]
    found = [cuts, ideals_near(search.units, search.cuts(answers[0].pipeline), NEAR)]
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
