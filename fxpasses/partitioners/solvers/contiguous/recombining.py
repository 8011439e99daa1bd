"""Better pipelines from many short annealings, whose cuts one dynamic program puts together.

Annealings start from the best answer, from others that end with other devices, and from those in which two devices have
changed places, at several temperatures: the hotter they are, the more often devices change places. Others go on from
the best of what these came to. The cuts of the best answers are ideals, and so are the intersections and unions of
these; the best pipeline along all of them, with the devices in any order, is mostly better than each. While it is
looked for, the next annealings run on a core that has nothing else to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial

import attrs
import numpy as np

from fxpasses.partitioners.solvers.annealing.annealer import STEPS_PER_SECOND
from fxpasses.partitioners.solvers.annealing.graphs import Cooling
from fxpasses.partitioners.solvers.contiguous.annealed_pipelines import (
    AT_ONCE,
    Annealing,
    PipelineAnnealer,
    Run,
    with_changed_places,
)
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import Words, by_weight, ideals_near, pack
from fxpasses.partitioners.solvers.contiguous.searching import BETTER, STEPS_A_SECOND, Answer, Search

__all__ = ["OTHERS", "SLOW", "Recombining"]

COLD, SQUARINGS = 5e-4, (5, 6)
"""The last temperature; and the norms, which take turns."""
ANSWERING = 0.6e6
"""Steps that it takes to evaluate what an annealing found."""
STEPS_A_UNIT, LONGEST = 80_000, 3
"""Steps of each annealing, for each unit; and how many times as many where there is time for more than the most."""
MANY_ORDERS, COMPUTE, WARM = 2000, 0.95, 0.006
"""Orders of the devices that annealings with exchanges do not get to; the part of an answer's load that it has without
transfers where the order decides, not what is sent; and the first temperature in each order."""
HELD = 0.003
"""The first temperature where devices keep their places: in every other annealing after those through orders."""
FEWEST, MOST = 12, 100
"""How many annealings start from the same answers."""
ROUND, LONGER = 0.8, 2
"""Seconds of the first round of annealings where there is more time, and how many times as long the others take."""
FIRST, THROUGH_ORDERS = 0.5, 1.1
"""Seconds of one core for the annealings that begin beside something else; and where they go through orders of devices,
for which a later stage is left out."""
OTHERS, CHANGED = 4, 3
"""From how many other answers they start, too: ones that end with other devices, ones whose devices change places."""
SLOW = 0.05 * STEPS_A_SECOND
"""Steps from which on that is worth it: what is proven by then needs none."""
LITTLE, LONG = 0.5, 0.2 * STEPS_A_SECOND
"""Seconds of a round in which no more annealings begin once it took so many steps to put together what was found."""
MUCH = 4
"""Rounds from whose time on what they found is put together at the end."""


@attrs.frozen
class _Stage:
    """Annealings that start from the same answers.

    Args:
        share: The part of a round that they take.
        hot: Their first temperatures, which take turns.
        starts: From how many of the best answers they start.
        orders: The part of them that goes through orders of the devices instead, where these decide.
    """

    share: float
    hot: tuple[float, ...]
    starts: int
    orders: float = 0.0


STAGES = (
    _Stage(0.4, (0.1, 0.03, 0.012, 0.006), 1, orders=0.85),
    *(_Stage(0.2, (0.005,), 4),) * 2,
)
KEPT = 40
"""Answers whose cuts are looked at, the best ones."""
BESIDE = 16
"""With how many cuts of about as much weight each cut is put together."""
NEAR, NEAREST, FAR = 50, 400, 800
"""Ideals that are looked at around each cut of the best answer, before other annealings and at the end of a short round
and of a longer one."""


@attrs.define(eq=False)
class _Round:
    """Answers found from one start, and the stages that have not begun."""

    found: dict[tuple[float, float], Answer]
    stages: list[_Stage]


class Recombining:
    """Annealings and dynamic programs in turn, for one search.

    In a ``with`` statement: what nobody waits for any more at its end does not begin. Idle, it begins nothing.
    """

    def __init__(self, search: Search, *, is_idle: bool = False) -> None:
        self.is_idle = is_idle
        self._search = search
        self._threads = ThreadPoolExecutor(AT_ONCE - 1)
        self._annealings: list[Annealing] = []
        self._round: _Round | None = None
        self._has_begun = self._goes_through_orders = False

    def __enter__(self) -> Recombining:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def has_time(self) -> bool:
        """Whether the budget reaches for any of that."""
        return not self.is_idle and PipelineAnnealer.takes(self._search)

    @property
    def first_seconds(self) -> float:
        """Seconds of one core that the first annealings take."""
        seconds = THROUGH_ORDERS if self._goes_through_orders else FIRST
        return seconds * min(1.0, self._search.problem.time_budget)

    def begin(self, start: Answer, others: Callable[[], list[Answer]] = list) -> None:
        """Let the first annealings begin from an answer, beside what else is done, unless they have.

        ``others`` finds more answers to start at, there, too.
        """
        if self._has_begun or not self.has_time:
            return
        decides = self._annealer.without_transfers > COMPUTE * start.rank[0]
        self._goes_through_orders = decides and self._annealer.orders > MANY_ORDERS
        stages = STAGES[2:] if self._goes_through_orders else STAGES[1:]
        self._round = _Round({start.rank: start}, list(stages))
        self._run(self._runs(STAGES[0], self._starts(start, others), self.first_seconds))

    def _starts(self, start: Answer, others: Callable[[], list[Answer]]) -> list[Callable[[], Answer]]:
        """Where the first annealings start: an answer, others that are found beside, and ones with changed places."""
        told = self._threads.submit(others)

        def other(place: int) -> Answer:
            found = told.result()
            return found[place % len(found)] if found else start

        changed = _given(with_changed_places(self._search, start, CHANGED))
        return [lambda: start, *(partial(other, place) for place in range(OTHERS)), *changed]

    def put_first_together(self, best: Answer, seconds: float) -> Answer:
        """The best answer after the first annealings; the next ones of a round of some seconds begin."""
        self.begin(best)
        return best if self._round is None else self._advance(self._round, best, seconds)

    def better(self, best: Answer, bound: float, seconds: float) -> Answer:
        """The best answer after some seconds, or once the bound is met.

        Each round begins at the same answer, as what another one found is seldom left again; the last one puts together
        what all have found.
        """
        search, begun, start = self._search, self._search.account.spent, best
        found = {best.rank: best}

        def left() -> float:
            return seconds - (search.account.spent - begun) / STEPS_A_SECOND

        while best.rank[0] > bound and (length := min(left(), ROUND if len(found) == 1 else LONGER * ROUND)) > 0:
            own = self._round or _Round({start.rank: start}, list(STAGES))
            while best.rank[0] > bound and (own.stages or self._annealings):
                if not self._annealings:
                    self._begin_next(own, length)
                best = self._advance(own, best, length)
            self._round = None
            found |= own.found
            if length < LITTLE:  # what is left of that is not enough for another round
                break
        if best.rank[0] > bound and seconds > MUCH * ROUND:
            last = _Round(found, [STAGES[-1]])
            self._begin_next(last, ROUND)
            self._advance(last, best, ROUND)
        return found[min(found)]

    def _begin_next(self, own: _Round, length: float) -> None:
        """Let the next stage of a round of some seconds begin."""
        stage = own.stages.pop(0)
        answers = sorted(own.found.values(), key=Answer.by_rank)[: stage.starts]
        runs = self._runs(stage, _given(answers), AT_ONCE * length * stage.share)
        seconds = sum(run.cooling.steps for run in runs) / STEPS_PER_SECOND / AT_ONCE
        self._search.account.spent += seconds * STEPS_A_SECOND
        self._run(runs)

    def _advance(self, own: _Round, best: Answer, length: float) -> Answer:
        """Wait for what has begun, let the next stage begin, and put together what was found so far."""
        answers, self._annealings = self._annealer.answers(self._annealings), []
        self._search.account.spent += len(answers) * ANSWERING
        own.found |= {answer.rank: answer for answer in (best, *answers)}
        if own.stages:
            self._begin_next(own, length)
        before = self._search.account.spent
        last = NEAREST if length < LITTLE else FAR
        best = _put_together(self._search, own.found, NEAR if own.stages else last)
        if length < LITTLE and self._search.account.spent - before > LONG:
            if not own.stages:  # this was the last and longest question, which those beside it would put again
                self._annealings = []
            own.stages.clear()
        return best

    def _runs(self, stage: _Stage, starts: Sequence[Callable[[], Answer]], seconds: float) -> list[Run]:
        """From which answers annealings start, and how they cool, for some seconds of one core together."""
        steps, usual = seconds * STEPS_PER_SECOND, STEPS_A_UNIT * self._search.units.size
        runs, holds = list[Run](), self._goes_through_orders and not stage.orders
        if self._goes_through_orders and stage.orders:
            runs += [Run(None, Cooling(stage.orders * steps / AT_ONCE, WARM, COLD, SQUARINGS[0]))] * AT_ONCE
            steps *= 1 - stage.orders
        count = min(max(FEWEST, round(steps / usual)), MOST)  # short ones find more than long
        each = min(steps / count, LONGEST * usual)
        for turn in range(count):
            place = turn // 2 if holds else turn
            cooling = Cooling(each, stage.hot[place % len(stage.hot)], COLD, SQUARINGS[place % len(SQUARINGS)])
            if holds and turn % 2:
                cooling = cooling._replace(hot=HELD, exchanges=0.0)
            runs.append(Run(starts[place % len(starts)], cooling))
        return runs

    def _run(self, runs: Sequence[Run]) -> None:
        self._has_begun = True
        self._annealings += self._annealer.begun(runs, self._threads)

    @cached_property
    def _annealer(self) -> PipelineAnnealer:
        return PipelineAnnealer(self._search)


def _given(answers: Sequence[Answer]) -> list[Callable[[], Answer]]:
    return [lambda answer=answer: answer for answer in answers]  # type: ignore[misc]  # mypy cannot infer defaults


def _put_together(search: Search, found: dict[tuple[float, float], Answer], near: int) -> Answer:
    """The best pipeline along the cuts of the best answers; it joins them."""
    best = sorted(found.values(), key=Answer.by_rank)[:KEPT]
    pipeline = search.run(_together(search, best, near), best[0].goal(search) * BETTER).pipeline
    if pipeline is None:
        return best[0]
    together = Answer.of(search, pipeline)
    return found.setdefault(together.rank, together)


def _together(search: Search, answers: list[Answer], near: int) -> Words:
    """The cuts of answers, what cuts of about the same weight share and hold together, and what lies near the first."""
    cuts = np.unique(np.concatenate([_cuts(search, answer) for answer in answers]), axis=0)
    cuts = cuts[by_weight(cuts, search.prices.weight)]
    found = [cuts, ideals_near(search.units, search.cuts(answers[0].pipeline), near)]
    for apart in range(1, min(BESIDE + 1, len(cuts))):
        found += [cuts[apart:] & cuts[:-apart], cuts[apart:] | cuts[:-apart]]
    return np.unique(np.concatenate(found), axis=0)


def _cuts(search: Search, answer: Answer) -> Words:
    """The ideals between the devices of an answer, as rows of bits."""
    inside = np.zeros((len(answer.pipeline.runs), search.units.size), dtype=bool)
    for place, (_device, units) in enumerate(answer.pipeline.runs):
        inside[place:, list(units)] = True
    return pack(inside)
