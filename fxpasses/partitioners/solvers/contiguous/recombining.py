"""Better pipelines from many short annealings, whose cuts one dynamic program puts together.

Annealings start from the best answer, and from those in which two of its devices have changed places, at several
temperatures: the hotter they are, the more often devices change places. Others go on from the best of what these came
to. The cuts of the best answers are ideals, and so are the intersections and unions of these; the best pipeline along
all of them, with the devices in any order, is mostly better than each, and the next annealings start from it, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import attrs
import networkx as nx
import numpy as np

from fxpasses.partitioners.solvers.annealing.annealer import STEPS_PER_SECOND, Annealer
from fxpasses.partitioners.solvers.annealing.graphs import Cooling
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import Words, by_weight, ideals_near, pack
from fxpasses.partitioners.solvers.contiguous.long_graphs import is_long
from fxpasses.partitioners.solvers.contiguous.searching import BETTER, STEPS_A_SECOND, Answer, Search
from fxpasses.partitioners.solvers.contiguous.tables.filled_tables import Pipeline
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["SLOW", "Meanwhile", "PipelineAnnealer", "answer_of", "recombined"]

LOADING = 0.2
"""Seconds that it takes to load what is compiled; a budget below that has no annealing."""
MATRIX = 5_000_000
"""Units times pairs of devices up to which there is any."""
COLD, SQUARINGS = 5e-4, (5, 6)
"""The last temperature; and the norms, which take turns."""
AT_ONCE = 2
"""Annealings that run at the same time; a budget counts on as many cores."""
ANSWERING = 0.6e6
"""Steps that it takes to evaluate what an annealing found."""
STEPS_A_UNIT, LONGEST = 80_000, 3
"""Steps of each annealing, for each unit; and how many times as many where there is time for more than the most."""
FEWEST, MOST = 12, 100
"""How many annealings start from the same answers."""
ROUND, LONGER = 0.8, 2
"""Seconds of the first round of annealings where there is more time, and how many times as long the others take."""
MEANWHILE = 0.5
"""Seconds of one core for annealings that run while something else is done."""
CHANGED = 7
"""From how many other answers they start, too, in which two devices have changed places."""
SLOW = 0.05 * STEPS_A_SECOND
"""Steps from which on that is worth it: what is proven by then needs none."""
MUCH = 4
"""Rounds from whose time on what they found is put together at the end."""


@attrs.frozen
class _Stage:
    """Annealings that start from the same answers.

    Args:
        share: The part of a round that they take.
        hot: Their first temperatures, which take turns.
        starts: From how many of the best answers they start.
    """

    share: float
    hot: tuple[float, ...]
    starts: int


STAGES = (_Stage(0.4, (0.1, 0.03, 0.012, 0.006), 1), _Stage(0.6, (0.005,), 4))
KEPT = 16
"""Answers whose cuts are looked at, the best ones."""
BESIDE = 10
"""With how many cuts of about as much weight each cut is put together."""
NEAR = 200
"""Ideals that are looked at around each cut of the best answer."""


class PipelineAnnealer:
    """Annealings of pipelines for one search."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self._annealer = Annealer(LoadModel.of(search.units, search.tables), search.units.before)
        self._draw = np.random.default_rng([search.problem.seed, int(search.account.spent)])  # others each time

    @staticmethod
    def takes(search: Search) -> bool:
        """Whether the budget reaches for one, and memory for its tables."""
        pairs = search.units.size * len(search.tables.memory) ** 2
        return search.problem.time_budget >= LOADING and not is_long(search.units) and pairs <= MATRIX

    def annealed(self, start: Answer, cooling: Cooling) -> Answer | None:
        """The best on the way from an answer, or None where nothing kept the budgets."""
        return next(iter(self.all_annealed([(start, cooling)])), None)

    def all_annealed(self, runs: Sequence[tuple[Answer, Cooling]]) -> list[Answer]:
        """The same for some answers, without those where nothing did; some at once, which changes none of them."""
        with ThreadPoolExecutor(AT_ONCE) as threads:
            return self.answers(self.begun(runs, threads))

    def begun(self, runs: Sequence[tuple[Answer, Cooling]], threads: ThreadPoolExecutor) -> list[Future[Ints | None]]:
        """Annealings that some threads are given."""
        draws = self._draw.spawn(len(runs))
        return [threads.submit(self._best_home, *run, draw) for run, draw in zip(runs, draws, strict=True)]

    def answers(self, annealings: Iterable[Future[Ints | None]]) -> list[Answer]:
        """What annealings came to, once they are done."""
        homes = [annealing.result() for annealing in annealings]
        return [answer_of(self.search, home) for home in homes if home is not None]

    def _best_home(self, start: Answer, cooling: Cooling, draw: np.random.Generator) -> Ints | None:
        """The devices of the units in the best answer on the way."""
        units = self.search.units
        home = np.zeros(units.size, dtype=np.int64)
        home[units.unit_of] = start.device_of
        return self._annealer.run(home, cooling, draw, self._order(start))[0]

    def _order(self, answer: Answer) -> tuple[int, ...]:
        """All devices, those that an answer does not use at the end."""
        unused = (device for device in range(len(self.search.tables.memory)) if device not in answer.order)
        return (*answer.order, *unused)


class Meanwhile:
    """Annealings from one answer that run while something else is done, on a core that is free.

    Each draws for itself, so what they find does not depend on what runs beside them, nor on how many cores there are.
    """

    def __init__(self, search: Search) -> None:
        self._search = search
        self._threads = ThreadPoolExecutor(1)
        self._annealer: PipelineAnnealer | None = None
        self._annealings: list[Future[Ints | None]] = []

    def __enter__(self) -> Meanwhile:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def begin(self, start: Answer | None) -> None:
        """Begin them, if they are not, there is an answer, and the budget reaches for them."""
        if self._annealer is None and start is not None and PipelineAnnealer.takes(self._search):
            self._annealer = PipelineAnnealer(self._search)
            seconds = MEANWHILE * min(1.0, self._search.problem.time_budget)
            starts = [start, *_with_changed_places(self._search, start)]
            self._annealings = self._annealer.begun(_runs(STAGES[0], starts, seconds), self._threads)

    def answers(self) -> list[Answer]:
        """What they came to, once; nothing where they did not begin."""
        if self._annealer is None:
            return []
        answers, self._annealings = self._annealer.answers(self._annealings), []
        self._search.account.spent += len(answers) * ANSWERING
        return answers


def _with_changed_places(search: Search, answer: Answer) -> list[Answer]:
    """The best answers in which a device and the next one, which differs, change places: annealings hardly do that.

    Their units are cut again between them where the larger of the two loads is the smallest.
    """
    kind = {device: number for number, each in enumerate(search.classes) for device in each.devices}
    seconds = [np.where(each.banned, np.inf, each.weight) for each in search.classes]
    home = np.zeros(search.units.size, dtype=np.int64)
    home[search.units.unit_of] = answer.device_of
    found = []
    for first, second in itertools.pairwise(answer.order):
        if kind[first] == kind[second]:
            continue
        own = np.flatnonzero((home == first) | (home == second))  # units are numbered as values flow
        before = np.cumsum([0.0, *seconds[kind[second]][own]])
        after = np.cumsum([0.0, *seconds[kind[first]][own][::-1]])[::-1]
        cut = int(np.argmin(np.maximum(before, after)))
        changed = home.copy()
        changed[own[:cut]], changed[own[cut:]] = second, first
        found.append(answer_of(search, changed))
    return sorted((each for each in found if math.isfinite(each.rank[0])), key=Answer.by_rank)[:CHANGED]


def recombined(search: Search, best: Answer, bound: float, seconds: float, known: Sequence[Answer] = ()) -> Answer:
    """The best of what annealings and dynamic programs in turn find in some seconds, or until the bound is met.

    Each round begins at the same answer, as what another one found is seldom left again; the last one puts together
    what all have found. ``known`` is what annealings have found already; they are the first ones of the first round.
    """
    if best.rank[0] <= bound:
        return best
    annealer, begun, start = PipelineAnnealer(search), search.account.spent, best
    found = {best.rank: best}

    def left() -> float:
        return seconds - (search.account.spent - begun) / STEPS_A_SECOND

    while (length := min(left(), ROUND if len(found) == 1 else LONGER * ROUND)) > 0:
        own = {start.rank: start}
        for stage in STAGES:
            is_known = stage is STAGES[0] and known and len(found) == 1
            best = _put_together(search, own, known) if is_known else _after(annealer, stage, own, length)
            found |= own
            if best.rank[0] <= bound:
                return best
    return _after(annealer, STAGES[-1], found, ROUND) if seconds > MUCH * ROUND else found[min(found)]


def _after(
    annealer: PipelineAnnealer, stage: _Stage, found: dict[tuple[float, float], Answer], length: float
) -> Answer:
    """The best answer after some annealings and the dynamic program along what they found; they join the others."""
    search, starts = annealer.search, sorted(found.values(), key=Answer.by_rank)[: stage.starts]
    runs = _runs(stage, starts, AT_ONCE * length * stage.share)
    answers = annealer.all_annealed(runs)
    steps = sum(cooling.steps for _start, cooling in runs)
    search.account.spent += steps * STEPS_A_SECOND / STEPS_PER_SECOND / AT_ONCE + len(runs) * ANSWERING
    return _put_together(search, found, answers)


def _runs(stage: _Stage, starts: list[Answer], seconds: float) -> list[tuple[Answer, Cooling]]:
    """From which answers annealings start, and how they cool, for some seconds of one core together."""
    steps, usual = seconds * STEPS_PER_SECOND, STEPS_A_UNIT * sum(len(run) for _device, run in starts[0].pipeline.runs)
    count = min(max(FEWEST, round(steps / usual)), MOST)  # short ones find more than long
    each = min(steps / count, LONGEST * usual)
    turns = zip(range(count), *map(itertools.cycle, (starts, stage.hot, SQUARINGS)), strict=False)
    return [(start, Cooling(each, hot, COLD, norm)) for _, start, hot, norm in turns]


def _put_together(search: Search, found: dict[tuple[float, float], Answer], answers: Sequence[Answer]) -> Answer:
    """Let answers join those that were found, and the best pipeline along the cuts of the best of them; that one."""
    for answer in answers:
        found.setdefault(answer.rank, answer)
    best = sorted(found.values(), key=Answer.by_rank)[:KEPT]
    pipeline = search.run(_together(search, best), best[0].goal(search) * BETTER).pipeline
    if pipeline is None:
        return best[0]
    together = Answer.of(search, pipeline)
    return found.setdefault(together.rank, together)


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
