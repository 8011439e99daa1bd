"""Better free placements of small graphs, budgets kept as memory is predicted: one unit moves, or two change places.

The solvers know memory only roughly, so where budgets are tight their answers pass them, or keep far from them; and
they do not know that parts run as wholes. Of a tiny graph all placements are looked at. Otherwise each change is
followed as a placement would run; what passes budgets by fewer bytes is better, then what takes less.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np
from torch.fx import Node

from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.budget_checks import check_budgets
from fxpasses.partitioners.placing.device_runs import Runs, runs_by_schedule, runs_of
from fxpasses.partitioners.placing.found_placements import Found
from fxpasses.partitioners.placing.objective_values import objective_value
from fxpasses.partitioners.placing.requests import Request
from fxpasses.partitioners.placing.searches.every_placement import best_of_all
from fxpasses.partitioners.solvers import PlacementProblem
from fxpasses.partitioners.solvers.reduced.reducing import Units, reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import CostTables, tables_of

__all__ = ["near_placements"]

SECONDS_A_NODE = 2e-5
"""About what it takes to follow one placement: what trials are counted in."""
LEAST_SECONDS = 0.5


def near_placements(
    figures: GraphFigures, request: Request, problem: PlacementProblem, starts: Sequence[Runs], bound: float
) -> list[Found]:
    """Free placements that changes of some lead to, where they keep the budgets; none for larger graphs.

    Args:
        figures: The measured graph.
        request: What the caller asks for.
        problem: What it is as a problem of free placements.
        starts: Placements, the most promising first; as many as there is time for are changed as long as that helps.
        bound: No free placement is below it.
    """
    trials = int(max(LEAST_SECONDS, request.time_budget) / (SECONDS_A_NODE * len(figures.nodes)))
    if trials < len(starts):
        return []
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    known, is_all = best_of_all(figures, request, tables, units, trials, bound)
    found = [] if known is None else [known]
    if is_all:
        return found
    nearby = _Nearby.of(figures, request, tables, units)
    units_of_start = len(nearby.units) * len(nearby.names)
    starts = starts[: max(trials // units_of_start, int(2 * trials >= len(nearby.units)))]
    for start in starts:
        best = nearby.best(start, trials // len(starts))
        if not best.over:
            found.append(Found.of(figures, request, "free", best.runs, bound))
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


@attrs.frozen(eq=False)
class _Nearby:
    """The units of a graph, and on which devices each may be."""

    figures: GraphFigures
    request: Request
    names: tuple[str, ...]
    units: tuple[tuple[tuple[Node, ...], tuple[str, ...]], ...]

    @classmethod
    def of(cls, figures: GraphFigures, request: Request, tables: CostTables, units: Units) -> _Nearby:
        names = tuple(device.name for device in request.topology.devices)
        found = []
        for own, allowed in zip(units.members, np.isfinite(units.seconds), strict=True):
            nodes = tuple(node for at in own if isinstance(node := tables.nodes[at], Node))
            may = tuple(name for name, fine in zip(names, allowed.tolist(), strict=True) if fine)
            if nodes:
                found.append((nodes, may))
        return cls(figures, request, names, tuple(found))

    def best(self, start: Runs, trials: int) -> _Trial:
        """Take the first change that helps, and go on from there, until none does.

        Latency may ask for parts that are cut where one has to wait; then operators keep their turns in the start.
        """
        home = {node: start.device_of[str(part)] for node, part in start.assignment.partition_of.items()}
        best, turns = self._tried(home, None), None
        if self.request.objective == "latency":
            turns = _turns(start)
            best, turns = min((best, None), (self._tried(home, turns), turns), key=lambda each: each[0].rank)
        first = 0
        while True:
            for number, home in self._changes(best.home, first):
                if trials <= 0:
                    return best
                trials -= 1
                if (trial := self._tried(home, turns)).rank < best.rank:
                    best, first = trial, number
                    break
            else:
                return best

    def _changes(self, home: Mapping[Node, str], first: int) -> Iterator[tuple[int, dict[Node, str]]]:
        """One unit on another device; then two of different devices, each in the other's place.

        Units come in turn from the first one on; each change is told with the number of its unit.
        """
        turn = [(first + step) % len(self.units) for step in range(len(self.units))]
        for number in turn:
            nodes, may = self.units[number]
            for name in may:
                if name != home[nodes[0]]:
                    yield number, {**home, **dict.fromkeys(nodes, name)}
        for number, partner in itertools.combinations(turn, 2):
            (one, may_one), (other, may_other) = self.units[number], self.units[partner]
            here, there = home[one[0]], home[other[0]]
            if here != there and there in may_one and here in may_other:
                yield number, {**home, **dict.fromkeys(one, there), **dict.fromkeys(other, here)}

    def _tried(self, home: Mapping[Node, str], turns: Mapping[Node, float] | None) -> _Trial:
        request, cut = self.request, runs_of if turns is None else runs_by_schedule
        runs = cut(self.figures.graph_module, home, self.figures.dependencies, turns)
        over = sum(check_budgets(self.figures, request.topology, runs, request.training).over.values())
        if over:
            return _Trial(home, runs, over, math.inf)
        value = objective_value(self.figures, request.topology, request.objective, runs, request.training)
        return _Trial(home, runs, 0, value)


def _turns(runs: Runs) -> dict[Node, float]:
    """The place of the part of each operator among all parts."""
    place = {str(part): float(number) for number, part in enumerate(runs.assignment.order)}
    return {node: place[str(part)] for node, part in runs.assignment.partition_of.items()}
