"""The best placement over several kinds: pipelines, convex sets, anything, and parts that run as wholes in turn."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Hashable

import attrs

from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.device_reasons import TOO_LARGE_TOGETHER, does_not_fit
from fxpasses.partitioners.placing.device_runs import Runs
from fxpasses.partitioners.placing.found_placements import EQUAL, Found
from fxpasses.partitioners.placing.requests import Contiguity, Request
from fxpasses.partitioners.placing.searches.device_search import search
from fxpasses.partitioners.placing.searches.known_cuts import KnownCuts
from fxpasses.partitioners.placing.searches.near_placements import near_placements
from fxpasses.partitioners.placing.state_nodes import state_nodes
from fxpasses.partitioners.solvers.solving import bound_in_turn, solve_in_turn, solve_whole_parts

__all__ = ["best_of", "best_of_one", "best_or_free"]

ENOUGH = 0.005
"""A pipeline that is proven to take at most this share more than the best is not searched further."""
NEAR = 1.15
"""How many times the latency of a free placement a quick pipeline may have so that better ones are looked for."""
FEW = 100
"""Operators up to which quick pipelines are looked at one by one, whatever memory there is."""
BESIDE_FREE = 0.5
"""What pipelines get of the seconds where a free placement is known."""

NOR_FREE = "Nor does a free placement, in which a device has several turns."
MAYBE_FREE = 'A free placement, in which a device has several turns, may: contiguity="free".'


def best_of(
    figures: GraphFigures,
    request: Request,
    kinds: tuple[Contiguity, ...],
    alone: Found | None,
    cuts: KnownCuts | None = None,
) -> Found:
    """The best answer over several kinds of placements; the first of those that are as good."""
    answers = [] if alone is None else [alone]
    failures: list[PlacementError] = []
    for kind in kinds:
        try:
            is_in_turn = request.objective == "latency" and kind != "free"
            answers += _in_turn(figures, request, kind) if is_in_turn else [search(figures, request, kind, cuts=cuts)]
        except InfeasibleError as error:
            failures.append(does_not_fit(figures, request.topology, error, kind))
        except PlacementError as error:
            failures.append(error)
    if not answers:
        raise failures[-1]
    return min(answers, key=lambda found: found.value)


def best_of_one(figures: GraphFigures, request: Request, kind: Contiguity) -> Found:
    """The best answer of the kind that was asked for; where memory keeps it from existing, another kind is named."""
    if kind == "free":
        return _free_or_pipeline(figures, request)
    try:
        return best_of(figures, request, (kind,), None)
    except InfeasibleError as error:
        if error.missing_bytes is not None and error.reason != TOO_LARGE_TOGETHER:
            error.message += f" {MAYBE_FREE}"
        raise


def _free_or_pipeline(figures: GraphFigures, request: Request) -> Found:
    """The best free placement that is found; a pipeline is one, too, and what looks for it may find a better one."""
    cuts = KnownCuts(figures, request)
    free: Found | None = None
    failure: PlacementError | None = None
    try:
        free = best_of(figures, request, ("free",), None, cuts)
    except InfeasibleError:
        raise
    except PlacementError as error:
        failure = error
    if free is not None and free.is_best:
        return free
    bound = 0.0 if free is None else free.bound
    found = [] if free is None else [free]
    with contextlib.suppress(PlacementError):
        if free is None:
            found += _pipelines(figures, request, cuts, math.inf)
        else:
            shorter = attrs.evolve(request, time_budget=BESIDE_FREE * request.time_budget)
            found += _pipelines(figures, shorter, cuts, free.value)
    if failure is not None and not found:
        raise failure
    return min(found, key=lambda each: each.value).as_kind("free", bound)


def _pipelines(figures: GraphFigures, request: Request, cuts: KnownCuts, below: float) -> list[Found]:
    """What is found for pipelines; not the best latency where quick ones are far above a value that is known."""
    if request.objective == "latency":
        return _in_turn(figures, request, "pipeline", cuts, below)
    return [search(figures, request, "pipeline", fallbacks=False, cuts=cuts, below=below)]


def best_or_free(figures: GraphFigures, request: Request, kinds: tuple[Contiguity, ...], alone: Found | None) -> Found:
    """Where no pipeline keeps the budgets, a free placement may; if none does, what the pipelines lack is told.

    Pins may be what no pipeline can keep, whatever the memory: then it is told what the free ones lack.
    """
    try:
        return best_of(figures, request, kinds, alone)
    except PlacementError as error:
        if "free" in kinds or error.reason == TOO_LARGE_TOGETHER:
            raise
        try:
            return best_of(figures, request, ("free",), None)
        except InfeasibleError:
            if not isinstance(error, InfeasibleError):
                raise error from None
            if error.missing_bytes is None:
                raise
            error.message += f" {NOR_FREE}"
            raise error from None


def _in_turn(
    figures: GraphFigures, request: Request, kind: Contiguity, cuts: KnownCuts | None = None, below: float = math.inf
) -> list[Found]:
    """The pipeline whose parts take the least time one after the other; where that is far from proven, searched ones.

    Each part runs as a whole, so parts seldom gain by running side by side, as the operators of the search do. Where
    they may, pipelines of whole parts are annealed, from those that are known. Where only what takes less than
    ``below`` is of use, none are searched if that one is far above it, or if none can be.
    """
    found: list[Found] = []
    cuts = cuts or KnownCuts(figures, request)
    with contextlib.suppress(PlacementError):
        found.append(search(figures, request, "pipeline", solve_in_turn, fallbacks=False, cuts=cuts))
    bound = _bound_in_turn(figures, request, found) if kind == "pipeline" else 0.0
    is_small = len(figures.nodes) <= FEW and request.training is None
    if found and is_small and kind == "pipeline" and _least(found) > bound * (1 + EQUAL):
        known = cuts.best
        if known is not None:
            found += [] if known.found is None or known.found.value >= _least(found) else [known.found]
            bound = max(bound, known.bound)
    if found and (bound >= below or _least(found) > NEAR * below):
        return found
    if not found or _least(found) > bound * (1 + ENOUGH):
        with contextlib.suppress(PlacementError) if found else contextlib.nullcontext():
            found.append(search(figures, request, kind, cuts=cuts))
            bound = max(bound, found[-1].bound)
    if _least(found) > bound * (1 + ENOUGH):
        starts = [*map(_homes, found)]
        parameters = state_nodes(figures).keys()
        whole = functools.partial(solve_whole_parts, starts=starts, parameters=parameters)
        told = attrs.evolve(request, state_with_first_user=True)  # these send a parameter from there
        if parameters:
            cuts = cuts.with_first_users
        with contextlib.suppress(PlacementError):
            found.append(search(figures, told, "pipeline", whole, fallbacks=False, cuts=cuts))
    if found and _least(found) > bound * (1 + ENOUGH):
        problem = request.problem(figures, "pipeline", figures.needs)
        found += near_placements(figures, request, problem, _starts(found), bound)
    bound = max([bound, *(each.bound for each in found if each.contiguity == kind)])
    return [attrs.evolve(each, contiguity=kind, bound=min(bound, each.value)) for each in found]


def _bound_in_turn(figures: GraphFigures, request: Request, found: list[Found]) -> float:
    plain = attrs.evolve(figures, sends_state=False) if figures.shared_state else figures
    problem = request.problem(plain, "pipeline", plain.needs)  # a parameter is sent beside the work
    return bound_in_turn(problem, _least(found))


def _starts(found: list[Found]) -> list[Runs]:
    return [each.runs for each in sorted(found, key=lambda each: each.value)]


def _least(found: list[Found]) -> float:
    return min((each.value for each in found), default=math.inf)


def _homes(found: Found) -> dict[Hashable, str]:
    """The device of each operator."""
    return {node: found.runs.device_of[str(part)] for node, part in found.runs.assignment.partition_of.items()}
