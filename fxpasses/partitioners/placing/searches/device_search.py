"""Search a placement of a graph whose budgets hold in the predicted memory, and know how good it is.

That is one search (:mod:`.one_search`), or several with more and more effort, and what is asked for the sake of what
one found: with shared parameters elsewhere, around its answers, or under other budgets and objectives where it found
nothing.
"""

from __future__ import annotations

import math

import attrs

from fxpasses.errors import PlacementError
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.found_placements import Found
from fxpasses.partitioners.placing.objective_values import Objective
from fxpasses.partitioners.placing.requests import Contiguity, Request
from fxpasses.partitioners.placing.searches.checked_answers import Checked, Solver, answer_if_any
from fxpasses.partitioners.placing.searches.known_cuts import KnownCuts
from fxpasses.partitioners.placing.searches.near_placements import near_placements
from fxpasses.partitioners.placing.searches.nearest import Nearest
from fxpasses.partitioners.placing.searches.one_search import OneSearch
from fxpasses.partitioners.placing.searches.quick_checks import check_until_over
from fxpasses.partitioners.placing.searches.refusals import none_found
from fxpasses.partitioners.placing.searches.relieving import relieved
from fxpasses.partitioners.placing.searches.tight_budgets import with_room_to_spare
from fxpasses.partitioners.placing.searches.time_shares import (
    LITTLE_EFFORT,
    SHORT,
    begun_anew,
    in_tight_memory,
    seconds_of_leaps,
)
from fxpasses.partitioners.solvers import solve_placement

__all__ = ["search"]

SHARED = 0.25
"""What a search with each shared parameter beside its first user gets of the seconds of the one before."""


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
    elif contiguity == "free" and request.time_budget > SHORT and not _has_room(cuts, request, solve):
        asked = in_tight_memory(request)
    sends_otherwise = False
    for each in asked:
        one = OneSearch.run(cuts, each, contiguity, solve, nearest, below)
        answers, bound = [*answers, *one.answers], max(bound, one.bound)
        sends_otherwise = sends_otherwise or one.sends_otherwise
        if any(found.is_best for found in answers):
            break
    if sends_otherwise and not any(found.is_best for found in answers):
        answers += _with_first_users(cuts, request, contiguity, solve)
    if answers and leaps and not any(found.is_best for found in answers):
        best = min(answers, key=lambda each: each.value)
        longer, first = attrs.evolve(request, time_budget=leaps), request.problem(figures, contiguity, figures.needs)
        answers += near_placements(figures, longer, first, [best.runs], bound)
    if not answers and fallbacks and not request.is_brief:
        spare = with_room_to_spare(figures, request, contiguity, bound) if contiguity == "free" else None
        spare = spare or _by_another(figures, request, contiguity, bound)
        if spare is None and contiguity == "free" and request.explain != "never":
            spare = _without_budgets(figures, request, request.objective, bound)
        if spare is None and contiguity == "free" and request.explain != "never":
            spare = _without_budgets(figures, request, "memory", bound)
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

    That is what balances loads; or a schedule, whose operators run in another order than the graph's. What balances
    bytes takes long: it is asked last, where an error would be told. For pipelines all look at the same cuts.
    """
    others: list[Objective] = ["throughput", "latency"] if contiguity == "free" else ["throughput"]
    if contiguity == "free" and request.explain != "never":
        others.append("memory")
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


def _without_budgets(figures: GraphFigures, request: Request, objective: Objective, bound: float) -> Found | None:
    """A free placement that is found without budgets, and then changed until it keeps them.

    It takes as long as another search, so it is asked where an error would be told. Under tight budgets searches see
    too little of what makes a peak small: their answers pass them, where one of a small peak, or one that leaves the
    operators in their turns, may keep them.
    """
    roomy = [attrs.evolve(device, available_mem_bytes=None) for device in request.topology.devices]
    topology = attrs.evolve(request.topology, devices=roomy)
    freely = attrs.evolve(request, objective=objective, topology=topology, effort=LITTLE_EFFORT, explain="never")
    try:
        runs = search(figures, freely, "free", fallbacks=False).runs
    except PlacementError:
        return None
    if check_until_over(figures, request, runs).over:
        runs, _is_settled = relieved(figures, request, request.problem(figures, "free", figures.needs), runs)
    if check_until_over(figures, request, runs).over:
        return None
    return Found.of(figures, request, "free", runs, bound)
