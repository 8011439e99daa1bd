"""Anneal pipelines of one search: units go to devices between those of their neighbours, devices change places.

What is compiled does not hold the interpreter, so some run at the same time, and beside other work. Each draws for
itself: what they find does not depend on what runs beside them, nor on how many cores there are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial

import attrs
import networkx as nx
import numpy as np

from fxpasses.partitioners.solvers.annealing.annealer import Annealer
from fxpasses.partitioners.solvers.annealing.graphs import Cooling
from fxpasses.partitioners.solvers.contiguous.long_graphs import is_long
from fxpasses.partitioners.solvers.contiguous.searching import Answer, Search
from fxpasses.partitioners.solvers.contiguous.tables.filled_tables import Pipeline
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["AT_ONCE", "LOADING", "Annealing", "PipelineAnnealer", "Run", "answer_of", "with_changed_places"]

LOADING = 0.2
"""Seconds that it takes to load what is compiled; a budget below that has no annealing."""
MATRIX = 5_000_000
"""Units times pairs of devices up to which there is any."""
AT_ONCE = 2
"""Annealings that run at the same time, one of them where others are waited for; a budget counts on as many cores."""


@attrs.frozen(eq=False)
class Run:
    """An annealing that nobody was given yet.

    Args:
        start: Where it starts, which is asked when it does; None for one that goes through orders of the devices, and
            starts in each of them anew.
        cooling: How it cools; of one through orders, how it does in each, in so many steps for all.
    """

    start: Callable[[], Answer] | None
    cooling: Cooling


@attrs.define(eq=False)
class Annealing:
    """One that a thread was given, or that was taken from it again before it began."""

    _run: Callable[[], list[Ints]]
    _future: Future[list[Ints]]

    def help(self) -> None:
        """Run it here, unless it has begun."""
        if self._future.cancel():
            self._future = Future()
            self._future.set_result(self._run())

    def homes(self) -> list[Ints]:
        """The device of each unit in the best answers on the way; none where nothing kept the budgets."""
        return self._future.result()


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
        homes = self._best_homes(Run(lambda: start, cooling), *self._draw.spawn(1))
        return next((answer_of(self.search, home) for home in homes), None)

    @cached_property
    def orders(self) -> int:
        """How many orders the devices have, alike ones in any; 0 where a device cannot run some unit."""
        counts = [len(each.devices) for each in self.search.classes]
        alike = math.prod(map(math.factorial, counts))
        return 0 if any(each.banned.any() for each in self.search.classes) else math.factorial(sum(counts)) // alike

    @cached_property
    def without_transfers(self) -> float:
        """The load of each device if units went to them as they come and could be cut anywhere, and nothing were sent.

        Where every device can run every unit.
        """
        seconds = np.array([each.weight.sum() for each in self.search.classes for _device in each.devices])
        return 1.0 / float((1.0 / seconds).sum()) if seconds.all() else 0.0

    def begun(self, runs: Sequence[Run], threads: ThreadPoolExecutor) -> list[Annealing]:
        """Annealings that some threads are given."""
        draws = self._draw.spawn(len(runs))
        own = [partial(self._best_homes, run, draw) for run, draw in zip(runs, draws, strict=True)]
        return [Annealing(each, threads.submit(each)) for each in own]

    def answers(self, annealings: Sequence[Annealing]) -> list[Answer]:
        """What annealings came to, without those where nothing kept the budgets.

        Who waits for them runs those that have not begun, the last of them first.
        """
        for each in reversed(annealings):
            each.help()
        return [answer_of(self.search, home) for each in annealings for home in each.homes()]

    def _best_homes(self, run: Run, draw: np.random.Generator) -> list[Ints]:
        if run.start is None:
            return self._annealer.orders(run.cooling, draw)
        answer = run.start()
        best = self._annealer.run(_home_of(self.search, answer), run.cooling, draw, self._order(answer))[0]
        return [] if best is None else [best]

    def _order(self, answer: Answer) -> tuple[int, ...]:
        """All devices, those that an answer does not use at the end."""
        unused = (device for device in range(len(self.search.tables.memory)) if device not in answer.order)
        return (*answer.order, *unused)


def with_changed_places(search: Search, answer: Answer, count: int) -> list[Answer]:
    """The best answers in which a device and the next one, which differs, change places: annealings hardly do that.

    Their units are cut again between them where the larger of the two loads is the smallest.
    """
    kind = {device: number for number, each in enumerate(search.classes) for device in each.devices}
    seconds = [np.where(each.banned, np.inf, each.weight) for each in search.classes]
    home, found = _home_of(search, answer), []
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
    return sorted((each for each in found if math.isfinite(each.rank[0])), key=Answer.by_rank)[:count]


def _home_of(search: Search, answer: Answer) -> Ints:
    """The device of each unit."""
    home = np.zeros(search.units.size, dtype=np.int64)
    home[search.units.unit_of] = answer.device_of
    return home


def answer_of(search: Search, home: Ints) -> Answer:
    """An assignment of units as runs, in an order in which values flow."""
    quotient: nx.DiGraph[int] = nx.DiGraph()
    quotient.add_nodes_from(np.unique(home).tolist())
    quotient.add_edges_from((first, second) for first, second in home[search.units.before].tolist() if first != second)
    order = nx.lexicographical_topological_sort(quotient)
    runs = tuple((device, tuple(np.flatnonzero(home == device).tolist())) for device in order)
    answer = Answer.of(search, Pipeline(runs, math.inf))
    return attrs.evolve(answer, pipeline=Pipeline(runs, answer.rank[0]))
