"""Free placements of a smaller peak: what is on the fullest device at its fullest moment goes elsewhere.

Of thousands of changes only those help that take something away there and then: what runs, what made the values that
are alive, what uses these, and what uses the largest parameters. The first one that helps is taken, and the next moment
is looked at. Where budgets are passed, the device that lacks most is relieved, so that fewer bytes lack.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence

import attrs
from torch.fx import Node

from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.costs.memory_courses import MemoryCourse
from fxpasses.partitioners.placing.budget_checks import course_of
from fxpasses.partitioners.placing.device_runs import Runs, runs_of
from fxpasses.partitioners.placing.requests import Request
from fxpasses.partitioners.placing.searches.movable_units import MovableUnit, movable_units
from fxpasses.partitioners.placing.searches.time_shares import trials_of
from fxpasses.partitioners.solvers import PlacementProblem
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of

__all__ = ["relieved"]

LEAST_SECONDS = 1.0
"""Seconds for trials where the search has less."""
ALIVE, HELD = 40, 10
"""How many of the largest values that are alive, and of the units with the largest parameters, may go elsewhere."""


def relieved(figures: GraphFigures, request: Request, problem: PlacementProblem, start: Runs) -> tuple[Runs, bool]:
    """A placement whose fullest device holds less, or whose devices lack fewer bytes; the start if none was found.

    With whether all changes of it were tried. Graphs of more than some 80,000 operators are left as they are, unless
    there is more time.

    Args:
        figures: The measured graph.
        request: What the caller asks for; in training the backward is followed in the graph's own order.
        problem: What it is as a problem of free placements.
        start: The placement that is changed.
    """
    trials = trials_of(request, LEAST_SECONDS, len(figures.nodes))
    if trials < 1:
        return start, False
    tables = tables_of(problem)
    names = [device.name for device in request.topology.devices]
    relieving = _Relieving.of(figures, request, movable_units(tables, reduce_problem(problem, tables), names))
    home = {node: start.device_of[str(part)] for node, part in start.assignment.partition_of.items()}
    best, is_settled = relieving.best(_Followed.of(figures, request, home, start), trials)
    return best.runs, is_settled


@attrs.frozen(eq=False)
class _Followed:
    """A placement, what is on each device over time, and how much at most."""

    home: Mapping[Node, str]
    runs: Runs
    course: MemoryCourse
    peaks: Mapping[str, int]
    over: Mapping[str, float]

    @classmethod
    def of(cls, figures: GraphFigures, request: Request, home: Mapping[Node, str], runs: Runs) -> _Followed:
        course = course_of(figures, request.topology, runs, request.training, in_order=False)
        peaks = {name: course.memory(name).peak for name in course.held}
        over = {name: peak - request.topology[name].memory for name, peak in peaks.items()}
        return cls(home, runs, course, peaks, over)

    @property
    def rank(self) -> tuple[float, int]:
        """Fewer bytes over budgets come first, then a smaller peak."""
        return sum(max(0.0, each) for each in self.over.values()), max(self.peaks.values(), default=0)

    @property
    def worst(self) -> str:
        """The device that lacks most; the fullest one where none does."""
        by = self.over if self.rank[0] else self.peaks
        return max(by, key=by.__getitem__)


@attrs.frozen(eq=False)
class _Relieving:
    """The units of a graph, and the largest parameters that each has."""

    figures: GraphFigures
    request: Request
    units: Sequence[MovableUnit]
    number: Mapping[Node, int]
    held: Sequence[int]

    @classmethod
    def of(cls, figures: GraphFigures, request: Request, units: Sequence[MovableUnit]) -> _Relieving:
        number = {node: at for at, (nodes, _may) in enumerate(units) for node in nodes}
        held = [0] * len(units)
        for node, constants in zip(figures.nodes, figures.constants, strict=True):
            if node in number:
                held[number[node]] += sum(constants.values())
        return cls(figures, request, units, number, held)

    def best(self, best: _Followed, trials: int) -> tuple[_Followed, bool]:
        """Where changes lead to that help, the first one each time, and whether none is left; a trial follows one."""
        while True:
            for home in self._changes(best):
                if trials <= 0:
                    return best, False
                trials -= 1
                runs = runs_of(self.figures.graph_module, home, self.figures.dependencies)
                found = _Followed.of(self.figures, self.request, home, runs)
                if found.rank < best.rank:
                    best = found
                    break
            else:
                return best, True

    def _changes(self, best: _Followed) -> Iterator[dict[Node, str]]:
        """One unit after the other that weighs on the worst device goes to another one, the emptiest first."""
        worst = best.worst
        emptiest = sorted(best.course.held, key=lambda name: best.over[name] if best.rank[0] else best.peaks[name])
        unused = [device.name for device in self.request.topology.devices if device.name not in best.course.held]
        for number in self._weighing(best, worst):
            nodes, may = self.units[number]
            for name in (*unused, *emptiest):
                if name != worst and name in may:
                    yield {**best.home, **dict.fromkeys(nodes, name)}

    def _weighing(self, best: _Followed, device: str) -> list[int]:
        """The units on a device that make it full: what runs, what is alive with what uses it, large parameters."""
        at = best.course.fullest(device)
        alive = [life for life in best.course.lives[device] if life.start <= at <= life.stop]
        found = [] if (running := best.course.node_at(at)) is None else [running]
        for life in heapq.nlargest(ALIVE, alive, key=lambda each: each.size):
            found += [life.value, *life.value.users]
        numbers = [self.number[node] for node in found if node in self.number]
        there = dict.fromkeys(self.number[node] for node, name in best.home.items() if name == device)
        numbers += heapq.nlargest(HELD, there, key=self.held.__getitem__)
        return [number for number in dict.fromkeys(numbers) if number in there]
