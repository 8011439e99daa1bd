"""One search for a placement, in stages: each asks for more than the one before, until nothing better can be found.

A problem for the solvers knows memory only roughly: what is alive depends on what runs where. So the first problem
counts only what must be on a device in any case: its bound holds for every placement, and if it has no answer there is
none. An answer is checked against :func:`~fxpasses.partitioners.costs.memory.predict_memory`; where it passes a
budget, the next problem counts what was seen to be alive beside each operator, or has a budget that is smaller by what
was over. Along the graph's own order bytes are known for all runs, and the best cut of it is an answer, too. In
training the moment at which the optimizer steps is a problem of its own, whose bound holds for every placement, too.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import numpy as np

from fxpasses.errors import InfeasibleError
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.costs.shared_state import sent_state
from fxpasses.partitioners.placing.device_runs import Runs, runs_by_schedule, runs_in_turns
from fxpasses.partitioners.placing.found_placements import Found
from fxpasses.partitioners.placing.graph_problems import homes_of
from fxpasses.partitioners.placing.requests import Contiguity, Request
from fxpasses.partitioners.placing.searches.asked_again import (
    solved_again,
    with_smaller_budgets,
    with_what_is_alive,
)
from fxpasses.partitioners.placing.searches.checked_answers import Checked, Solver, answer_to
from fxpasses.partitioners.placing.searches.known_cuts import KnownCuts
from fxpasses.partitioners.placing.searches.near_placements import near_placements
from fxpasses.partitioners.placing.searches.nearest import Nearest
from fxpasses.partitioners.placing.searches.quick_checks import check_until_over
from fxpasses.partitioners.placing.searches.refusals import refuse_if_proven, refused, told_more
from fxpasses.partitioners.placing.searches.relieving import relieved
from fxpasses.partitioners.placing.searches.run_tables import BestPipeline
from fxpasses.partitioners.placing.searches.smaller_peaks import with_smaller_peaks
from fxpasses.partitioners.placing.state_nodes import StateNode
from fxpasses.partitioners.placing.training_figures import stepping_figures
from fxpasses.partitioners.solvers import PlacementProblem, PlacementSolution

__all__ = ["OneSearch"]

QUICKER = 0.99
"""More parts have to take less than this share of the time of fewer: each is called on its own."""
QUICKLY = 0.25
"""What a first question gets of its seconds if its answer may well pass a budget."""
STEPPING = 0.5
"""What the question about the moment at which the optimizer steps gets of the seconds of the first."""


@attrs.define(eq=False)
class OneSearch:
    """A search and what it has found so far.

    Args:
        cuts: What is known without a solver.
        request: What the caller asks for.
        contiguity: What a device may take.
        solve: Answers problems.
        nearest: Where placements that pass a budget are noted.
        below: Only what is smaller is of use.
        answers: Placements that keep the budgets.
        bound: What none is below.
        sends_otherwise: Whether a parameter crosses in one of them from elsewhere than the solver thought; not where
            that does not matter.
    """

    cuts: KnownCuts
    request: Request
    contiguity: Contiguity
    solve: Solver
    nearest: Nearest
    below: float
    answers: list[Found] = attrs.field(factory=list, init=False)
    bound: float = attrs.field(default=0.0, init=False)
    sends_otherwise: bool = attrs.field(default=False, init=False)
    _relieved: list[Runs] = attrs.field(factory=list, init=False)

    @classmethod
    def run(
        cls, cuts: KnownCuts, request: Request, contiguity: Contiguity, solve: Solver, nearest: Nearest, below: float
    ) -> OneSearch:
        """Search, unless it is proven that nothing is below a value.

        Raises:
            InfeasibleError: proven that no placement of this kind keeps the budgets.
        """
        own = cls(cuts, request, contiguity, solve, nearest, below)
        own._search()
        return own

    def _search(self) -> None:
        first, checked = self._ask_first()
        fits = checked is not None and checked.fits
        if checked is not None and fits and self.request.objective != "memory":
            self.sends_otherwise = self._take([checked])
            if (self.request.objective, self.contiguity) == ("latency", "free") and not self.answers[0].is_best:
                self._look_nearby(first, [self.answers[0].runs])  # as parts run, not operators
            return
        otherwise = False
        if self.request.training is not None and not self._is_over():
            otherwise = self._ask_while_stepping()
        if self._is_over():
            return
        known = self._known_pipelines() if self.contiguity == "pipeline" else self.cuts.best
        if known is not None and known.is_best and known.found is not None and self.contiguity == "pipeline":
            self.answers = [known.found.as_kind(self.contiguity, self.bound)]
            return
        if self._is_over():
            return
        self.sends_otherwise = self._ask_again(checked) or otherwise
        if known is not None:
            self._look_up(known)
        if self.contiguity == "free":
            self.answers.sort(key=lambda each: each.value)
            starts = [each.runs for each in self.answers] or ([] if checked is None else [checked.runs])
            self._relieve(first)  # of what other changes lead to, too: either may go on where the other one ends
            self._look_nearby(first, starts, self.nearest)
            self._relieve(first)

    def _is_over(self) -> bool:
        """Whether nothing is left to look for."""
        return self.bound >= self.below or any(found.is_best for found in self.answers)

    def _ask_first(self) -> tuple[PlacementProblem, Checked | None]:
        """The problem of what operators need in any case, and its answer."""
        try:
            first, solution, checked = _first_answer(self.cuts, self.request, self.contiguity, self.solve)
        except InfeasibleError as error:
            raise told_more(self.cuts.figures, self.request, self.contiguity, error) from None
        self.bound = 0.0 if solution is None else solution.bound
        if checked is not None and not checked.fits:
            self.nearest.look_at(checked.runs, checked.seen)
        return first, checked

    def _ask_while_stepping(self) -> bool:
        """Ask about the moment at which the optimizer steps; whether an answer sends a parameter otherwise."""
        stepped = _while_stepping(self.cuts.figures, self.request, self.contiguity, self.solve)
        if stepped is None:
            return False
        self.bound = max(self.bound, stepped.solution.bound)
        return self._take([stepped] if stepped.fits else [])

    def _known_pipelines(self) -> BestPipeline:
        """What is known of all pipelines: by their ideals where these are few, else by those under a threshold.

        Raises:
            InfeasibleError: proven that none keeps the budgets.
        """
        cuts, request = self.cuts, self.request
        known = cuts.best or BestPipeline(None, 0.0)
        if not known.missing_bytes and not known.is_best:
            known = cuts.refined(known.found, max(self.bound, known.bound), request.time_budget)
        if known.missing_bytes:
            raise refused(cuts.figures, request, "pipeline", known.missing_bytes)
        self.bound = max(self.bound, known.bound)
        return known

    def _ask_again(self, checked: Checked | None) -> bool:
        """Ask where the first answer passes a budget, or where the solvers do not see what is made small.

        Whether an answer sends a parameter otherwise.

        Raises:
            InfeasibleError: proven that no placement of this kind keeps the budgets.
        """
        cuts, contiguity, figures = self.cuts, self.contiguity, self.cuts.figures
        fits, along, before = checked is not None and checked.fits, cuts.along_own_order, len(self.answers)
        if not fits and along is None:
            refuse_if_proven(figures, cuts.request, contiguity)
        asked = [checked]
        if checked is not None and not fits:
            again = solved_again(figures, checked, with_what_is_alive(figures, contiguity, self.solve))
            asked = [again]
            if again is None or contiguity == "free":
                asked.append(solved_again(figures, checked, with_smaller_budgets(figures, contiguity, self.solve)))
        otherwise = self._take([each for each in asked if each is not None])
        known = [*self.answers[before:], *([] if along is None else [along])]
        if checked is not None and known and (cuts.request.objective, contiguity) == ("memory", "free"):
            best = min(known, key=lambda each: each.value)
            otherwise |= self._take(with_smaller_peaks(figures, checked, contiguity, self.solve, best))
        self.answers += [] if along is None else [along.as_kind(contiguity, self.bound)]
        return otherwise

    def _look_up(self, known: BestPipeline) -> None:
        """Take what is known of pipelines, with what is known below a better answer to a search for one."""
        if self.contiguity == "pipeline":
            better = min(self.answers, key=lambda each: each.value, default=None)
            if better is not None and (known.found is None or better.value < known.found.value):
                known = self.cuts.refined(better, self.bound, self.request.time_budget)
                self.bound = max(self.bound, known.bound)
        if known.found is not None:
            self.answers.append(known.found.as_kind(self.contiguity, self.bound))

    def _relieve(self, first: PlacementProblem) -> None:
        """Take something off the fullest device of the best placement; of the nearest one where none keeps budgets."""
        figures, request = self.cuts.figures, self.request
        best = min(self.answers, key=lambda each: each.value, default=None)
        start = self.nearest.runs if best is None else best.runs
        if start is None or (best is not None and (request.objective != "memory" or best.is_best)):
            return
        if any(start is each for each in self._relieved):  # that leads to the same again
            return
        runs, is_settled = relieved(figures, request, first, start)
        self._relieved += [start, runs] if is_settled else [start]
        seen = check_until_over(figures, request, runs)
        if seen.over:
            self.nearest.look_at(runs, seen)
        elif runs is not start:
            self.answers.append(Found.of(figures, request, self.contiguity, runs, self.bound))

    def _look_nearby(self, first: PlacementProblem, starts: list[Runs], nearest: Nearest | None = None) -> None:
        self.answers += near_placements(self.cuts.figures, self.request, first, starts, self.bound, nearest)

    def _take(self, checked: Iterable[Checked]) -> bool:
        """Take answers that keep the budgets; whether a parameter crosses in one from elsewhere than was thought."""
        figures, otherwise = self.cuts.figures, False
        for each in checked:
            found = _finished(figures, each, self.contiguity, self.bound)
            self.answers.append(found)
            otherwise |= not each.request.state_with_first_user and _sends_otherwise(figures, each, found)
        return otherwise


def _first_answer(
    cuts: KnownCuts, request: Request, contiguity: Contiguity, solve: Solver
) -> tuple[PlacementProblem, PlacementSolution | None, Checked | None]:
    """The answer to what operators need in any case.

    Where memory is small it is asked for quickly at first: where that answer passes a budget, more can be known in the
    same time.
    """
    figures = cuts.figures
    first = request.problem(figures, contiguity, figures.needs)
    if contiguity == "pipeline" and cuts.needs_lives and request.time_budget > 0:
        quick = attrs.evolve(first, time_budget=QUICKLY * request.time_budget)
        solution = answer_to(quick, solve)
        checked = None if solution is None else Checked.of(figures, request, solution, first.program_effort)
        if solution is not None and checked is not None and (solution.is_optimal or not checked.fits):
            return first, solution, checked
    solution = answer_to(first, solve)
    return first, solution, None if solution is None else Checked.of(figures, request, solution, first.program_effort)


def _while_stepping(figures: GraphFigures, request: Request, contiguity: Contiguity, solve: Solver) -> Checked | None:
    """The answer to what is there while the optimizer steps: where parameters are large, that is the worst moment.

    Raises:
        InfeasibleError: proven that no placement of this kind keeps the budgets then.
    """
    assert request.training is not None
    shorter = attrs.evolve(request, time_budget=STEPPING * request.time_budget)
    stepping = stepping_figures(figures, request.training)
    problem = shorter.problem(stepping, contiguity, np.zeros_like(figures.needs))
    try:
        solution = answer_to(problem, solve)
    except InfeasibleError as error:
        raise told_more(figures, request, contiguity, error) from None
    return None if solution is None else Checked.of(figures, request, solution, problem.program_effort)


def _finished(figures: GraphFigures, checked: Checked, contiguity: Contiguity, bound: float) -> Found:
    """An answer that keeps the budgets, made better by what the solvers do not know."""
    request = checked.request
    found = Found.of(figures, request, contiguity, checked.runs, bound)
    if request.objective == "latency" and contiguity == "free":
        return _side_by_side(figures, request, checked.solution, found)
    return found


def _side_by_side(figures: GraphFigures, request: Request, solution: PlacementSolution, found: Found) -> Found:
    """The same devices in more parts, cut where one has to wait, if that is quicker: a part needs all its inputs."""
    best, limit = found, QUICKER * found.value
    for cut in (runs_in_turns, runs_by_schedule):
        runs = cut(figures.graph_module, homes_of(solution), figures.dependencies, solution.schedule)
        if len(runs.device_of) <= len(best.runs.device_of):
            continue
        other = Found.of(figures, request, found.contiguity, runs, found.bound)
        if other.value < limit and not check_until_over(figures, request, runs).over:
            best, limit = other, QUICKER * other.value
    return best


def _sends_otherwise(figures: GraphFigures, checked: Checked, found: Found) -> bool:
    """Whether a parameter crosses from elsewhere than the solver thought, which thought that better."""
    request, solution = checked.request, checked.solution
    if request.objective == "throughput" and found.value <= solution.objective_value * (1 + 1e-9):
        return False
    device_of = found.runs.devices(request.topology)
    thought = {key.state: name for key, name in solution.device_of.items() if isinstance(key, StateNode)}
    sent = sent_state(figures.shared_state, found.runs.assignment, device_of)
    return any(thought.get(state.names[0]) != state.source for state in sent)
