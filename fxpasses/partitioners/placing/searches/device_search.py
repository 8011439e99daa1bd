"""Search a placement of a graph whose budgets hold in the predicted memory, and know how good it is.

A problem for the solvers knows memory only roughly: what is alive depends on what runs where. So the first problem
counts only what must be on a device in any case: its bound holds for every placement, and if it has no answer there is
none. An answer is checked against :func:`~fxpasses.partitioners.costs.memory.predict_memory`; where it passes a
budget, the next problem counts what was seen to be alive beside each operator, or has a budget that is smaller by what
was over. Along the graph's own order bytes are known for all runs, and the best cut of it is an answer, too. In
training the moment at which the optimizer steps is a problem of its own, whose bound holds for every placement, too.
"""

from __future__ import annotations

import math

import attrs
import numpy as np

from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.costs.shared_state import sent_state
from fxpasses.partitioners.placing.device_runs import runs_by_schedule, runs_in_turns
from fxpasses.partitioners.placing.found_placements import Found
from fxpasses.partitioners.placing.graph_problems import homes_of
from fxpasses.partitioners.placing.objective_values import Objective
from fxpasses.partitioners.placing.requests import Contiguity, Request
from fxpasses.partitioners.placing.searches.asked_again import (
    solved_again,
    with_smaller_budgets,
    with_what_is_alive,
)
from fxpasses.partitioners.placing.searches.checked_answers import Checked, Solver, answer_if_any, answer_to
from fxpasses.partitioners.placing.searches.known_cuts import KnownCuts
from fxpasses.partitioners.placing.searches.near_placements import near_placements
from fxpasses.partitioners.placing.searches.nearest import Nearest
from fxpasses.partitioners.placing.searches.quick_checks import check_until_over
from fxpasses.partitioners.placing.searches.refusals import none_found, refuse_if_proven, refused, told_more
from fxpasses.partitioners.placing.searches.run_tables import BestPipeline
from fxpasses.partitioners.placing.searches.smaller_peaks import with_smaller_peaks
from fxpasses.partitioners.placing.searches.tight_budgets import with_room_to_spare
from fxpasses.partitioners.placing.searches.time_shares import (
    LITTLE_EFFORT,
    SHORT,
    begun_anew,
    seconds_of_leaps,
)
from fxpasses.partitioners.placing.state_nodes import StateNode
from fxpasses.partitioners.placing.training_figures import stepping_figures
from fxpasses.partitioners.solvers import PlacementProblem, PlacementSolution, solve_placement

__all__ = ["search"]

SHARED = 0.25
"""What a search with each shared parameter beside its first user gets of the seconds of the one before."""

QUICKER = 0.99
"""More parts have to take less than this share of the time of fewer: each is called on its own."""

QUICKLY = 0.25
"""What a first question gets of its seconds if its answer may well pass a budget."""
STEPPING = 0.5
"""What the question about the moment at which the optimizer steps gets of the seconds of the first."""


def search(
    figures: GraphFigures,
    request: Request,
    contiguity: Contiguity,
    solve: Solver = solve_placement,
    *,
    fallbacks: bool = True,
    cuts: KnownCuts | None = None,
    below: float = math.inf,
) -> Found:
    """Solve, check, and solve with what the check saw, until every budget holds.

    Args:
        figures: The measured graph.
        request: What the caller asks for.
        contiguity: What a device may take.
        solve: Answers problems.
        fallbacks: Whether what was made for the sake of the budgets, or for another objective, will do where nothing
            else is found.
        cuts: What is known without a solver, if the caller has it from another search for the same request.
        below: Only what is smaller is of use: once no placement can be, the search is over.

    Raises:
        InfeasibleError: proven that no placement of this kind keeps the budgets.
        PlacementError: none was found that does.
    """
    cuts = cuts or KnownCuts(figures, request)
    answers, bound, nearest = list[Found](), 0.0, Nearest()
    asked, leaps = iter([request]), 0.0
    if (request.objective, contiguity) == ("latency", "free"):
        has_room = _has_room(cuts, request, solve)
        asked, leaps = begun_anew(request, has_room, len(figures.nodes)), seconds_of_leaps(request, has_room)
    sends_otherwise = False
    for each in asked:
        answers += (several := _searched(cuts, each, contiguity, solve, nearest, below)).answers
        bound, sends_otherwise = max(bound, several.bound), sends_otherwise or several.sends_otherwise
        if any(found.is_best for found in answers):
            break
    if sends_otherwise and not any(found.is_best for found in answers):
        answers += _with_first_users(cuts, request, contiguity, solve)
    if answers and leaps and not any(found.is_best for found in answers):
        best = min(answers, key=lambda each: each.value)
        longer, first = attrs.evolve(request, time_budget=leaps), request.problem(figures, contiguity, figures.needs)
        answers += near_placements(figures, longer, first, [best.runs], bound)
    if not answers and fallbacks:
        spare = with_room_to_spare(figures, request, contiguity, bound) if contiguity == "free" else None
        spare = spare or _by_another(figures, request, contiguity, bound)
        answers += [] if spare is None else [spare]
    if not answers:
        raise none_found(figures, request, contiguity, nearest)
    return min(answers, key=lambda each: each.value).as_kind(contiguity, bound)


def _has_room(cuts: KnownCuts, request: Request, solve: Solver) -> bool:
    """Whether budgets hold where only what operators need in any case is counted, as a short search says."""
    if request.time_budget <= SHORT:
        return False
    short = attrs.evolve(request, time_budget=0.0, effort=0.0, explain="never").problem(
        cuts.figures, "free", cuts.figures.needs
    )
    solution = answer_if_any(short, solve)
    return solution is not None and Checked.of(cuts.figures, request, solution, 0.0).fits


@attrs.frozen(eq=False)
class _Several:
    """Placements that keep the budgets, and what none is below."""

    answers: list[Found]
    bound: float
    sends_otherwise: bool
    """Whether a parameter crosses in one of them from elsewhere than the solver thought."""


def _searched(
    cuts: KnownCuts, request: Request, contiguity: Contiguity, solve: Solver, nearest: Nearest, below: float
) -> _Several:
    """What one search finds, unless it is proven that nothing is below a value."""
    figures = cuts.figures
    try:
        first, solution, checked = _first_answer(cuts, request, contiguity, solve)
    except InfeasibleError as error:
        raise told_more(figures, request, contiguity, error) from None
    bound = 0.0 if solution is None else solution.bound
    answers, solved = list[Found](), list[_Finished]()
    if checked is not None and not checked.fits:
        nearest.look_at(checked.runs, checked.seen)
    if checked is not None and checked.fits and request.objective != "memory":
        solved.append(_Finished.of(figures, checked, contiguity, bound))
        answers.append(solved[0].found)
        if (request.objective, contiguity) == ("latency", "free") and not answers[0].is_best:
            answers += near_placements(figures, request, first, [answers[0].runs], bound)  # as parts run, not operators
        return _Several(answers, bound, solved[0].sends_otherwise)
    if bound >= below:
        return _Several(answers, bound, False)
    if request.training is not None and (stepped := _while_stepping(figures, request, contiguity, solve)) is not None:
        bound = max(bound, stepped.solution.bound)
        solved += [_Finished.of(figures, stepped, contiguity, bound)] if stepped.fits else []
        answers += [each.found for each in solved]
        if bound >= below or any(found.is_best for found in answers):
            return _Several(answers, bound, False)
    known = _known_pipelines(cuts, request, bound) if contiguity == "pipeline" else cuts.best
    if known is not None and contiguity == "pipeline":
        bound = max(bound, known.bound)
        if known.is_best and known.found is not None:
            return _Several([known.found.as_kind(contiguity, bound)], bound, False)
        if bound >= below:
            return _Several(answers, bound, False)
    again, along = _answers(cuts, contiguity, bound, checked, solve), cuts.along_own_order
    solved += again
    answers += [each.found for each in again]
    answers += [] if along is None else [along.as_kind(contiguity, bound)]
    if known is not None and contiguity == "pipeline":
        better = min(answers, key=lambda each: each.value, default=None)
        if better is not None and (known.found is None or better.value < known.found.value):
            known = cuts.refined(better, bound, request.time_budget)
            bound = max(bound, known.bound)
    if known is not None and known.found is not None:
        answers.append(known.found.as_kind(contiguity, bound))
    if contiguity == "free":
        answers.sort(key=lambda each: each.value)
        starts = [each.runs for each in answers] or ([] if checked is None else [checked.runs])
        answers += near_placements(figures, request, first, starts, bound, nearest)
    return _Several(answers, bound, any(each.sends_otherwise for each in solved))


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


def _known_pipelines(cuts: KnownCuts, request: Request, bound: float) -> BestPipeline:
    """What is known of all pipelines: by their ideals where these are few, else by those under a threshold.

    Raises:
        InfeasibleError: proven that none keeps the budgets.
    """
    known = cuts.best or BestPipeline(None, 0.0)
    if not known.missing_bytes and not known.is_best:
        known = cuts.refined(known.found, max(bound, known.bound), request.time_budget)
    if known.missing_bytes:
        raise refused(cuts.figures, request, "pipeline", known.missing_bytes)
    return known


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


def _answers(
    cuts: KnownCuts, contiguity: Contiguity, bound: float, checked: Checked | None, solve: Solver
) -> list[_Finished]:
    """What is found where the first answer passes a budget, or where the solvers do not see what is made small.

    Raises:
        InfeasibleError: proven that no placement of this kind keeps the budgets.
    """
    fits = checked is not None and checked.fits
    figures, along = cuts.figures, cuts.along_own_order
    if not fits and along is None:
        refuse_if_proven(figures, cuts.request, contiguity)
    answers = [checked]
    if checked is not None and not fits:
        again = solved_again(figures, checked, with_what_is_alive(figures, contiguity, solve))
        answers = [again]
        if again is None or contiguity == "free":
            answers.append(solved_again(figures, checked, with_smaller_budgets(figures, contiguity, solve)))
    found = [_Finished.of(figures, each, contiguity, bound) for each in answers if each is not None]
    known = [*(each.found for each in found), *([] if along is None else [along])]
    if checked is not None and known and (cuts.request.objective, contiguity) == ("memory", "free"):
        smaller = with_smaller_peaks(figures, checked, contiguity, solve, min(known, key=lambda each: each.value))
        found += [_Finished.of(figures, each, contiguity, bound) for each in smaller]
    return found


@attrs.frozen(eq=False)
class _Finished:
    """An answer that keeps the budgets, made better by what the solvers do not know.

    Args:
        found: The answer.
        sends_otherwise: Whether a parameter crosses from elsewhere than the solver thought, which thought that better.
    """

    found: Found
    sends_otherwise: bool

    @classmethod
    def of(cls, figures: GraphFigures, checked: Checked, contiguity: Contiguity, bound: float) -> _Finished:
        """Make an answer that keeps the budgets better."""
        request, solution = checked.request, checked.solution
        found = Found.of(figures, request, contiguity, checked.runs, bound)
        if request.objective == "latency" and contiguity == "free":
            found = _side_by_side(figures, request, solution, found)
        otherwise = not request.state_with_first_user and _sends_otherwise(figures, request, solution, found)
        return cls(found, otherwise)


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


def _sends_otherwise(figures: GraphFigures, request: Request, solution: PlacementSolution, found: Found) -> bool:
    """Whether a parameter crosses from elsewhere than the solver thought, which thought that better."""
    if request.objective == "throughput" and found.value <= solution.objective_value * (1 + 1e-9):
        return False
    device_of = found.runs.devices(request.topology)
    thought = {key.state: name for key, name in solution.device_of.items() if isinstance(key, StateNode)}
    sent = sent_state(figures.shared_state, found.runs.assignment, device_of)
    return any(thought.get(state.names[0]) != state.source for state in sent)


def _with_first_users(cuts: KnownCuts, request: Request, contiguity: Contiguity, solve: Solver) -> list[Found]:
    """What a short search finds with each shared parameter beside its first user; it bounds no other placement."""
    cuts = cuts.with_first_users
    shorter, effort = SHARED * request.time_budget, 0.0 if request.objective == "latency" else LITTLE_EFFORT
    held = attrs.evolve(cuts.request, time_budget=shorter, effort=effort, explain="never")
    try:
        other = search(cuts.figures, held, contiguity, solve, fallbacks=False, cuts=cuts)
    except PlacementError:
        return []
    return [attrs.evolve(other, bound=0.0)]


def _by_another(figures: GraphFigures, request: Request, contiguity: Contiguity, bound: float) -> Found | None:
    """What another objective finds, where nothing else was found: the budgets are the same.

    That is what balances loads; or a schedule, whose operators run in another order than the graph's. For pipelines
    both look at the same cuts.
    """
    others: list[Objective] = ["throughput", "latency"] if contiguity == "free" else ["throughput"]
    for objective in others:
        if objective == request.objective:
            continue
        other = attrs.evolve(request, objective=objective, effort=LITTLE_EFFORT)
        try:
            runs = search(figures, other, contiguity, fallbacks=False).runs
        except PlacementError:
            continue
        return Found.of(figures, request, contiguity, runs, bound)
    return None
