"""Better placements of small graphs, budgets kept as memory is predicted: one unit moves, or two change places.

The solvers know memory only roughly, so where budgets are tight their answers pass them, or keep far from them; and
they do not know that parts run as wholes. Of a tiny graph all free placements are looked at. Otherwise each change is
followed as a placement would run; what passes budgets by fewer bytes is better, then what takes less. Where no change
helps any more, a leap is made, and changes begin there (iterated local search: Lourenço, Martin and Stützle 2003).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import attrs
import numpy as np
from torch.fx import Node

from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.device_runs import Runs, runs_by_schedule, runs_of
from fxpasses.partitioners.placing.found_placements import Found
from fxpasses.partitioners.placing.objective_values import objective_value
from fxpasses.partitioners.placing.requests import Contiguity, Request
from fxpasses.partitioners.placing.searches.every_placement import best_of_all
from fxpasses.partitioners.placing.searches.least_values import LeastValues
from fxpasses.partitioners.placing.searches.movable_units import MovableUnit, movable_units
from fxpasses.partitioners.placing.searches.nearest import Nearest
from fxpasses.partitioners.placing.searches.quick_checks import check_until_over
from fxpasses.partitioners.placing.searches.time_shares import seconds_of_trial, trials_of
from fxpasses.partitioners.placing.searches.unit_changes import AnyChanges, PipelineChanges, UnitChanges
from fxpasses.partitioners.solvers import PlacementProblem
from fxpasses.partitioners.solvers.reduced.reducing import Units, reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import CostTables, tables_of

__all__ = ["near_placements"]

TRACE_A_NODE = 2e-3
"""Seconds a node of tracing another order of a forward, which gives its backward another order, too."""
AGAIN = 0.05
"""What a placement counts that was seen before, in trials."""
LEAST_SECONDS = 0.5
APART = 1 << 60
"""What a part beside one for each device counts in bytes, where a pipeline is wanted."""
AFTERWARDS = 200
"""How many changes may follow a leap before the best is gone on from again."""


def near_placements(
    figures: GraphFigures,
    request: Request,
    problem: PlacementProblem,
    starts: Sequence[Runs],
    bound: float,
    nearest: Nearest | None = None,
) -> list[Found]:
    """Placements that changes of some lead to, where they keep the budgets; none for larger graphs.

    Args:
        figures: The measured graph.
        request: What the caller asks for.
        problem: What it is as a problem of free placements, or of pipelines: these are looked for.
        starts: Placements, the most promising first; as many as there is time for are changed as long as that helps.
        bound: No such placement is below it.
        nearest: What is told of those that pass budgets.
    """
    contiguity: Contiguity = "pipeline" if problem.contiguity == "pipeline" else "free"
    trials = trials_of(request, LEAST_SECONDS, len(figures.nodes))
    if trials < len(starts):
        return []
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    found = list[Found]()
    if contiguity == "free":
        known, is_all = best_of_all(figures, request, tables, units, trials, bound)
        found = [] if known is None else [known]
        if is_all and (found or request.objective != "latency"):  # other turns may need fewer bytes than the graph's
            return found
    nearby = _Nearby.of(figures, request, contiguity, tables, units)
    units_of_start = len(nearby.units) * len(request.topology.devices)
    starts = starts[: max(trials // units_of_start, int(2 * trials >= len(nearby.units)))]
    for start in starts:
        best = nearby.best(start, trials // len(starts), bound)
        if not best.over:
            found.append(Found.of(figures, request, contiguity, best.runs, bound))
        elif nearest is not None and best.over < APART:
            nearest.look_at(best.runs, check_until_over(figures, request, best.runs))
    return found


@attrs.frozen(eq=False)
class _Trial:
    """A placement, the bytes by which it passes budgets, and what it takes."""

    home: Mapping[Node, str]
    runs: Runs
    over: int
    value: float

    @property
    def rank(self) -> tuple[int, float]:
        """Fewer bytes over come first."""
        return self.over, self.value


@attrs.frozen
class _Seen:
    """What was found out about a placement: the bytes over, None if memory was not followed; what it takes at least."""

    over: int | None
    value: float

    def may_be_better(self, best: _Trial) -> bool:
        """Whether it is better than another one, as far as that is known."""
        if best.over:
            return self.over is None or self.over < best.over
        return not self.over and self.value < best.value


@attrs.frozen(eq=False)
class _Nearby:
    """What placements of a graph are changed to, with what tells which value no parts of one are below."""

    figures: GraphFigures
    request: Request
    changes: UnitChanges
    least: Callable[[Mapping[Node, str]], float]
    _seen: dict[tuple[str, ...], _Seen] = attrs.field(factory=dict, init=False)

    @classmethod
    def of(
        cls, figures: GraphFigures, request: Request, contiguity: Contiguity, tables: CostTables, units: Units
    ) -> _Nearby:
        names = tuple(device.name for device in request.topology.devices)
        found = movable_units(tables, units, names)
        kind: type[AnyChanges | PipelineChanges] = PipelineChanges if contiguity == "pipeline" else AnyChanges
        least = LeastValues.of(figures, request.topology).asked(request.objective)
        return cls(figures, request, kind.among(names, found), least)

    @property
    def units(self) -> tuple[MovableUnit, ...]:
        """What moves from one device to another."""
        return self.changes.units

    def best(self, start: Runs, trials: float, bound: float) -> _Trial:
        """Take the first change that helps, and go on from there, until none does; then leap from the best, and so on.

        Latency may ask for parts that are cut where one has to wait; then operators keep their turns in the start.
        """
        home = {node: start.device_of[str(part)] for node, part in start.assignment.partition_of.items()}
        best, turns = self._tried(home, None), None
        if self.request.objective == "latency" and isinstance(self.changes, AnyChanges):
            turns = _turns(start)
            best, turns = min((best, None), (self._tried(home, turns), turns), key=lambda each: each[0].rank)
        self._seen.clear()  # they were seen in the turns of another start
        best, left = self._improved(best, turns, trials)
        draw, leaps = np.random.default_rng(self.request.seed), self.changes.leaps(best.home)
        while left > 0 and best.value > bound * (1 + 1e-9):
            traced, (first, home) = self._traced, next(leaps, None) or self.changes.leap(best.home, draw)
            there = self._tried(home, turns)
            left -= self._took(traced)
            found, left = self._improved(there, turns, left, first, most=AFTERWARDS, pairs=False)
            best = min(best, found, key=lambda each: each.rank)
        return best

    def _improved(
        self,
        best: _Trial,
        turns: Mapping[Node, float] | None,
        trials: float,
        first: int = 0,
        *,
        most: float = math.inf,
        pairs: bool = True,
    ) -> tuple[_Trial, float]:
        """Where ``most`` changes that help lead to, the first one each time, and how many trials are left then."""
        while True:
            for number, home in self.changes.of(best.home, first, pairs):
                if trials <= 0 or most <= 0:
                    return best, max(trials, 0.0)
                better, took = self._better(home, turns, best)
                trials, most = trials - took, most - 1
                if better is not None:
                    best, first = better, number
                    break
            else:
                return best, trials

    def _tried(self, home: Mapping[Node, str], turns: Mapping[Node, float] | None) -> _Trial:
        """What a placement needs and takes."""
        runs = self._runs(home, turns)
        over = self._over(runs)
        return _Trial(home, runs, over, math.inf if over else self._value(runs))

    def _better(
        self, home: Mapping[Node, str], turns: Mapping[Node, float] | None, best: _Trial
    ) -> tuple[_Trial | None, float]:
        """A placement if it is better than another one, and how many trials it took to find out.

        What takes longer in any case is not cut into parts; the memory of what takes longer as parts is not followed.
        """
        key = tuple(home[nodes[0]] for nodes, _ in self.units)
        seen, traced = self._seen.get(key), self._traced
        if seen is not None and not seen.may_be_better(best):
            return None, AGAIN
        if best.over:
            found = self._tried(home, turns)
            self._seen[key] = _Seen(found.over, found.value)
            return found if found.rank < best.rank else None, self._took(traced)
        if (least := self.least(home)) >= best.value:
            self._seen[key] = _Seen(None, least)
            return None, self._took(traced)
        runs = self._runs(home, turns)
        value = self._value(runs)
        if value >= best.value:
            self._seen[key] = _Seen(None, value)
            return None, self._took(traced) if seen is None else AGAIN  # it was counted when it was not cut
        over = self._over(runs)
        self._seen[key] = _Seen(over, value)
        return None if over else _Trial(home, runs, 0, value), self._took(traced)

    @property
    def _traced(self) -> int:
        """How many orders of the forward were traced."""
        return 0 if self.request.training is None else self.request.training.orders_traced

    def _took(self, traced: int) -> float:
        """A trial, and those in whose time another order was traced."""
        nodes = len(self.figures.nodes)
        tracing = TRACE_A_NODE * nodes / seconds_of_trial(self.request, nodes)
        return 1.0 + (self._traced - traced) * tracing

    def _runs(self, home: Mapping[Node, str], turns: Mapping[Node, float] | None) -> Runs:
        cut = runs_of if turns is None else runs_by_schedule
        return cut(self.figures.graph_module, home, self.figures.dependencies, turns)

    def _over(self, runs: Runs) -> int:
        if apart := self.changes.apart(runs):
            return apart * APART
        return sum(check_until_over(self.figures, self.request, runs).over.values())

    def _value(self, runs: Runs) -> float:
        request = self.request
        return objective_value(self.figures, request.topology, request.objective, runs, request.training)


def _turns(runs: Runs) -> dict[Node, float]:
    """The place of the part of each operator among all parts."""
    place = {str(part): float(number) for number, part in enumerate(runs.assignment.order)}
    return {node: place[str(part)] for node, part in runs.assignment.partition_of.items()}
