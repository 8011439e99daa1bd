"""The best pipeline that cuts at some ideals, its budgets kept as memory is predicted.

A problem for the solvers counts only the bytes that operators need in any case. Where it is known at which ideals a
pipeline may be cut, more can be known: what a device holds that runs from one ideal to another depends on nothing else.
So a dynamic program over ideals runs with the bytes that are needed in any case; what the runs of its answer need, and
the runs that could take their place, is counted and written down; then the program runs again, until the memory of its
answer, which is followed, keeps the budgets. As nothing was struck out that fits, that answer is the best there is; and
where no way is left, no pipeline fits. Where time runs out before, what the program still hoped for is a bound.

In training runs count with what they are expected to need, so an answer is a good one, and nothing is proven.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.placing.device_runs import runs_of
from fxpasses.partitioners.placing.found_placements import EQUAL, Found
from fxpasses.partitioners.placing.searches.quick_checks import check_in_order, check_until_over
from fxpasses.partitioners.placing.searches.reduced_graphs import ReducedGraph
from fxpasses.partitioners.placing.searches.run_bytes import RunBytes
from fxpasses.partitioners.placing.searches.step_bytes import StepBytes
from fxpasses.partitioners.placing.searches.time_shares import trials_of
from fxpasses.partitioners.placing.searches.waiting_parts import Arrivals, QuickWalks
from fxpasses.partitioners.placing.searches.walks import Step, every_walk, smallest_walk
from fxpasses.partitioners.placing.training_figures import stepping_figures
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import CutFamily, Words
from fxpasses.partitioners.solvers.contiguous.ideals.spans import Spans
from fxpasses.partitioners.solvers.contiguous.ideals.states import States
from fxpasses.partitioners.solvers.contiguous.tight_memory.impossible import pair_bytes
from fxpasses.partitioners.solvers.reduced.reducing import with_bytes
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints, tables_of

__all__ = ["BestPipeline", "RunTable"]

Bools = NDArray[np.bool_]

SECONDS_A_CELL, SECONDS_A_NODE = 3e-9, 3e-5
"""About what one run of the program takes, and to follow the memory of its answer: what rounds are counted in."""
LEAST_ROUNDS = 20
AHEAD, COUNTED, AT_ONCE = 1.2, 6e7, 2e7
"""How much more than the answer runs may take that are counted with it; and how many of their operators are, in a
second, and at once."""
LEAST_SECONDS = 0.5
WAYS = 1_000_000
"""Ways that are begun in a second."""


@attrs.frozen(eq=False)
class BestPipeline:
    """What is known of the pipelines of a graph.

    Args:
        found: The best one that was seen to keep the budgets.
        bound: No pipeline that keeps them is below it.
        is_best: Whether all were looked at, so that nothing else need be tried.
        missing_bytes: Where it is proven that none keeps them, what each lacks at least on some device.
    """

    found: Found | None
    bound: float
    is_best: bool = False
    missing_bytes: int = 0


@attrs.frozen(eq=False)
class RunTable:
    """What a device takes and needs that runs from one ideal to another.

    Args:
        graph: The graph.
        inside: The units of each ideal, ``(m, f)``.
        load: For each class what one takes between two ideals, ``inf`` where it cannot run that, ``(f, f)``.
        work: The same without what crosses.
        need: For each class the bytes between two ideals, as far as they are known.
        counted: The runs whose bytes are counted already, ``(f, f)``.
        bytes_of: What counts them.
        is_whole: Whether these are all ideals at which a pipeline of a value under ``below`` may be cut.
        below: Runs that take as much are of no interest.
    """

    graph: ReducedGraph
    inside: Bools
    load: tuple[Floats, ...]
    work: tuple[Floats, ...]
    need: tuple[Floats, ...]
    counted: Bools
    bytes_of: RunBytes | StepBytes
    is_whole: bool
    below: float

    @classmethod
    def of(cls, graph: ReducedGraph, words: Words, *, is_whole: bool, below: float = math.inf) -> RunTable:
        """Prepare the runs between some ideals; time O(operators × ideals²).

        Args:
            graph: The graph.
            words: The ideals.
            is_whole: Whether there are no others at which a pipeline of a value under ``below`` may be cut.
            below: Runs that take as much are of no interest.
        """
        figures, request, units = graph.figures, graph.request, graph.units
        family = CutFamily.of(words, np.ones(units.size))
        roomy = tuple(attrs.evolve(group, memory=np.inf) for group in graph.classes)
        everything = slice(0, family.count)
        spans = Spans.of(units, family, roomy)
        load = spans.loads(everything, everything, below)
        work = tuple(weight[None, :] - weight[:, None] for weight in spans.weight)
        bytes_of: RunBytes | StepBytes
        if request.training is None:
            bytes_of = RunBytes.of(graph.lives, units, family)
        else:
            step = request.training
            problems = (
                request.problem(stepping_figures(figures, step), "pipeline", np.zeros_like(figures.needs)),
                request.problem(figures, "pipeline", np.zeros_like(figures.needs)),
            )
            held = [pair_bytes(with_bytes(units, tables_of(each)), family) for each in problems]
            bytes_of = StepBytes.of(figures, step, family, graph.unit_of, np.maximum(*held))
        needs = tuple(bytes_of.least.copy() for _ in graph.classes)
        counted = np.zeros(bytes_of.least.shape, dtype=bool)
        return cls(graph, family.inside, tuple(load), work, needs, counted, bytes_of, is_whole, below)

    def looked_at(self) -> BestPipeline:
        """What is known once the runs of a table are, as far as there is time for that."""
        figures, request, classes = self.graph.figures, self.graph.request, self.graph.classes
        rounds, best, bound = self.rounds(request.time_budget), None, 0.0
        if request.objective == "latency" and self.is_exact:
            self._count_all(self._seconds)
        for most in self.numbers_of_devices():
            for round_ in range(rounds):
                values = self.values()
                walked = smallest_walk(States.of(classes, most), values, in_turn=request.objective == "latency")
                if walked is None:
                    break
                steps, value = walked
                bound = self.bound(value, most)
                if self.count(steps, values, value):
                    continue
                found, is_as_expected = self.follow(steps)
                if found is None:
                    continue
                if is_as_expected:
                    return self.best(found, value, most, rounds - round_)
                best = found if best is None else min(best, found, key=lambda each: each.value)
            else:
                best = None if best is None else Found.of(figures, request, "pipeline", best.runs, 0.0)
                return BestPipeline(best, bound if best is None else min(bound, best.value))
        if not self.is_exact or self.below < math.inf:
            return BestPipeline(best, self.below if self.is_exact else 0.0)
        return BestPipeline(best, 0.0, missing_bytes=self.least_missing(request.time_budget))

    def least_value(self) -> float:
        """What no pipeline is below whose runs need what they are known to need, as far as there is time for that."""
        least = 0.0
        for _round in range(self.rounds(self.graph.request.time_budget)):
            values = self.values()
            walked = smallest_walk(States.of(self.graph.classes), values, in_turn=False)
            if walked is None:
                return self.below
            steps, least = walked
            if not self.count(steps, values, least):
                break
        return least

    @property
    def is_exact(self) -> bool:
        """Whether no pipeline is left out, and no run needs less than is known."""
        return self.is_whole and self.graph.request.training is None

    @property
    def _seconds(self) -> float:
        """How long counting bytes, or looking at ways, may take."""
        return max(LEAST_SECONDS, self.graph.request.time_budget)

    def numbers_of_devices(self) -> Iterator[int]:
        """How many devices there may be: ever more, if as few as possible are wanted."""
        count = len(self.graph.request.topology.devices)
        yield from range(1, count + 1) if self.graph.request.objective == "devices" else (count,)

    def rounds(self, budget: float) -> int:
        """How often the program runs in some seconds."""
        cells = States.count(self.graph.classes) * len(self.graph.classes) * float(self.inside.shape[1]) ** 2
        seconds = SECONDS_A_CELL * cells + SECONDS_A_NODE * len(self.graph.figures.nodes)
        return max(LEAST_ROUNDS, int(budget / seconds))

    def values(self) -> list[Floats]:
        """What is made small, for each run; ``inf`` where it is known to need too much."""
        return self._where_it_fits(self.need if self.graph.request.objective == "memory" else self.load)

    def bound(self, value: float, most: int) -> float:
        """What no pipeline is below if the smallest way has a value and no fewer devices will do."""
        if not self.is_exact or self.graph.request.objective == "latency":  # its parts may run side by side
            return 0.0
        return float(most) if self.graph.request.objective == "devices" else value

    def count(self, steps: Sequence[Step], values: Sequence[Floats], value: float) -> bool:
        """Count the bytes of runs that may be part of an answer as good as a way.

        Returns:
            Whether one of its own was new; not where there is no time for more.
        """
        operators = len(self.graph.figures.nodes)
        left = COUNTED * self._seconds / operators - self.counted.sum()
        own = tuple(np.array([step[1:] for step in steps]).T)
        if left <= 0 or self.counted[own].all():
            return False
        least = np.where(self.counted, np.inf, np.minimum.reduce(list(values)))
        least[own] = value  # first of all
        first, last = np.nonzero(least <= value * AHEAD)
        most = int(min(left, AT_ONCE / operators))
        if len(first) > most:  # those that take long are likely to be in an answer, and to need much
            heaviest = np.argpartition(-least[first, last], most)[:most]
            first, last = np.concatenate([own[0], first[heaviest]]), np.concatenate([own[1], last[heaviest]])
        self._note(first, last)
        return True

    def _where_it_fits(self, values: Sequence[Floats]) -> list[Floats]:
        """What each run takes, ``inf`` where it cannot be or is known to need too much."""
        return [
            np.where(np.isfinite(load) & (need <= group.memory), own, np.inf)
            for load, need, own, group in zip(self.load, self.need, values, self.graph.classes, strict=True)
        ]

    def follow(self, steps: Sequence[Step]) -> tuple[Found | None, bool]:
        """Follow the memory of a way, and write down what each run needs.

        Returns:
            The answer, if no budget is passed; where it is memory that is made small in training, as if the backward
            ran in the graph's own order. And whether its value is what was expected.
        """
        figures, request = self.graph.figures, self.graph.request
        names = [device.name for device in request.topology.devices]
        home = {
            node: names[device]
            for device, first, last in steps
            for unit in np.flatnonzero(self.inside[:, last] & ~self.inside[:, first]).tolist()
            for node in self.graph.nodes[unit]
        }
        runs, is_memory = runs_of(figures.graph_module, home, figures.dependencies), request.objective == "memory"
        check = check_in_order if is_memory else check_until_over
        seen = check(figures, request, runs, always=True)
        changed = False
        for device, first, last in steps:
            need, peak = self.need[self._kind(device)], seen.peaks.get(names[device], 0)
            known = peak if request.training is not None else max(need[first, last], peak)
            changed |= known != need[first, last]
            need[first, last] = known
        if seen.over:
            return None, False
        if is_memory:
            return Found(runs, "pipeline", float(seen.fullest), 0.0), not changed
        return Found.of(figures, request, "pipeline", runs, 0.0), True

    def _kind(self, device: int) -> int:
        return next(kind for kind, group in enumerate(self.graph.classes) if device in group.devices)

    def best(self, found: Found, value: float, most: int, rounds: int) -> BestPipeline:
        """The best pipeline, once one is known that keeps the budgets, and what the program thinks of it."""
        objective = self.graph.request.objective
        if not self.is_exact:
            return BestPipeline(Found.of(self.graph.figures, self.graph.request, "pipeline", found.runs, 0.0), 0.0)
        if objective == "devices":
            return BestPipeline(found, float(most), is_best=True)
        if objective == "latency":
            return self._of_quickest(found)
        if objective == "throughput" and found.value > value * (1 + EQUAL):  # it counts each device's best link
            return self._of_all(found, value, rounds, self._where_it_fits(self.load))
        return BestPipeline(found, min(value, found.value), is_best=True)

    def _of_all(self, best: Found, bound: float, rounds: int, least: list[Floats]) -> BestPipeline:
        """Look at each way that may be better, by what its runs take at least."""
        ways = every_walk(States.of(self.graph.classes), least, best.value)
        for _round, steps in zip(range(rounds), ways, strict=False):
            found, _is_as_expected = self.follow(steps)
            best = best if found is None else min(best, found, key=lambda each: each.value)
        is_best = next(ways, None) is None
        return BestPipeline(best, best.value if is_best else bound, is_best=is_best)

    def _of_quickest(self, best: Found) -> BestPipeline:
        """Look at each way whose parts may end sooner, the quickest first: parts may run side by side.

        Where ways are too many to weigh them all, the best of some tells of more that they are too slow.
        """
        figures, request = self.graph.figures, self.graph.request
        states, arrivals = States.of(self.graph.classes), Arrivals.of(self.graph)
        trials = trials_of(request, LEAST_SECONDS, len(figures.nodes))
        while True:
            before, work = best.value, self._where_it_fits(self.work)
            ways, least, is_whole = QuickWalks(states, self.inside, work, arrivals).before(
                best.value, int(WAYS * self._seconds)
            )
            for way, value in zip(ways, least.tolist(), strict=True):
                if value >= best.value * (1 - EQUAL):
                    break
                if trials <= 0:
                    return BestPipeline(best, value if is_whole else 0.0)
                trials -= 1
                found, _is_as_expected = self.follow(way)
                best = best if found is None else min(best, found, key=lambda each: each.value)
            if is_whole:
                return BestPipeline(best, best.value, is_best=True)
            if best.value >= before:
                return BestPipeline(best, 0.0)

    def _count_all(self, seconds: float) -> None:
        """Count the bytes of all runs, if that takes no longer than some seconds."""
        is_run = np.logical_or.reduce([np.isfinite(load) for load in self.load])
        first, last = np.nonzero(is_run & ~self.counted)
        if len(first) * len(self.graph.figures.nodes) <= COUNTED * seconds:
            self._note(first, last)

    def _note(self, first: Ints, last: Ints) -> None:
        counted = self.bytes_of.of_runs(first, last)
        for need in self.need:
            need[first, last] = np.maximum(need[first, last], counted)
        self.counted[first, last] = True

    def least_missing(self, budget: float) -> int:
        """The fewest bytes that every pipeline lacks on some device, as far as that is known."""
        least = 0.0
        for _round in range(self.rounds(budget)):
            missing: list[Floats] = [
                np.subtract(need, group.memory, out=np.full(need.shape, np.inf), where=np.isfinite(load)).clip(min=0.0)
                for load, need, group in zip(self.load, self.need, self.graph.classes, strict=True)
            ]
            walked = smallest_walk(States.of(self.graph.classes), missing, in_turn=False)
            if walked is None:
                return 0
            steps, least = walked
            if self.count(steps, missing, least):
                continue
            before = [self.need[self._kind(device)][first, last] for device, first, last in steps]
            self.follow(steps)
            if before == [self.need[self._kind(device)][first, last] for device, first, last in steps]:
                break
        return int(least)
