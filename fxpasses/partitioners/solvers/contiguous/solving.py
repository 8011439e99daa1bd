"""The best pipeline: cut linear orders, look around the cuts, then all ideals if the budget reaches."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from functools import partial

import attrs
import numpy as np

from fxpasses.errors import PlacementError
from fxpasses.partitioners.solvers.contiguous.certifying import every_ideal, smallest
from fxpasses.partitioners.solvers.contiguous.ideals.classes import optimistic
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import Words, prefixes
from fxpasses.partitioners.solvers.contiguous.ideals.orders import (
    BASIC,
    MANY,
    ideals_along,
    linear_orders,
    long_orders,
    orders_between,
)
from fxpasses.partitioners.solvers.contiguous.ideals.states import States
from fxpasses.partitioners.solvers.contiguous.ideals.stops import stops_near, stops_of
from fxpasses.partitioners.solvers.contiguous.improving import NEAREST, improved, improved_far
from fxpasses.partitioners.solvers.contiguous.leaves import fold_leaves, fold_leaves_without_bytes
from fxpasses.partitioners.solvers.contiguous.linked.descending import descended
from fxpasses.partitioners.solvers.contiguous.linked.linking import by_links
from fxpasses.partitioners.solvers.contiguous.linked.swapping import links_differ, swapped
from fxpasses.partitioners.solvers.contiguous.long_graphs import MAX_UNITS, is_long
from fxpasses.partitioners.solvers.contiguous.passing_on import beside_first_users, passed_on, without_passing_on
from fxpasses.partitioners.solvers.contiguous.proving import is_small, proven_small
from fxpasses.partitioners.solvers.contiguous.recombining import OTHERS, Recombining
from fxpasses.partitioners.solvers.contiguous.searching import BETTER, FEW_STATES, STEPS_A_SECOND, Answer, Search
from fxpasses.partitioners.solvers.contiguous.spreading import spread
from fxpasses.partitioners.solvers.contiguous.tables.filled_tables import Pipeline
from fxpasses.partitioners.solvers.contiguous.tight_memory.explaining import no_pipeline
from fxpasses.partitioners.solvers.contiguous.tight_memory.tight import tight_answer, why_not
from fxpasses.partitioners.solvers.problem import USUAL_SECONDS, PlacementProblem
from fxpasses.partitioners.solvers.proofs.bounds import load_bound, prices_of
from fxpasses.partitioners.solvers.proofs.choosing import distinct_sets
from fxpasses.partitioners.solvers.proofs.heavy_units import heavy_bound
from fxpasses.partitioners.solvers.reduced.fitting import where_they_fit
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Floats, Ints, evaluate

__all__ = ["fewest_by_memory", "solve_pipeline"]

ORDERS = 12
"""Linear orders; others are put between the first of them."""
LADDER, SHORT_LADDER = (2, 6, 30), (2, 6, 12)
"""How many orders are cut at a time, fewer where there are many states; the answer along a few of them is the threshold
that prunes the next search."""
NOT_MUCH_WORSE = 1.15
"""How many times the best load others may have at which annealings begin, too."""
BETWEEN = (0.25, 0.5, 0.75)
CROSSED = (6, 13)
"""In how many parts two orders are cut that make ideals together."""
PREFIXES = 10_000
"""How many prefixes all orders of a wide graph have together; of a long one fewer orders are cut."""
FEWEST = 6
LEAST_AT_ONCE = STEPS_A_SECOND / 2
"""The steps that are left at least for the question whether anything fits along all orders."""
FIRST_STEPS, CROSSED_STEPS, AROUND_STEPS = STEPS_A_SECOND / 6, STEPS_A_SECOND / 4, STEPS_A_SECOND / 10
"""What it may take to cut more orders, what two of them make together, and to look around the cuts at the end."""
SOON = 0.02 * STEPS_A_SECOND
"""What it may take to look around the cuts before more orders are cut: annealings that begin there find more."""
SHARES = (1.1, 1.3, 2.0, math.inf)
"""Thresholds of the first searches, as multiples of the bound."""
MUCH_TIME = 5.0
"""Seconds of time_budget from which on a bound is asked for that ignores the bytes of leaves."""
FEW_UNITS = 120
"""Units up to which it is asked for in any case."""
LIGHT, LIGHT_AT_ONCE = 0.5, 0.3
"""The part of time_budget for that bound where it is mostly worth it, and where it is asked for in any case."""
MANY_VIEWS = 100
"""Units that only pass a value on from which on a bound is asked for that lets them run anywhere."""
MORE = 2.0
"""How many times the usual seconds are so many that these are spent once more, and half of them."""
SHARED = 0.5
"""The part of the time for the search where an integer program may follow, or what knows that links differ."""
STOPS = 1000
REFINING = 8
SETS = 8
"""Sets of as many devices that are asked, those with the most memory."""
ROUNDING = 1e-12
"""What sums in another order may differ by: no more than that is left to prove of an answer."""
LESS = 0.99
"""How much less the load has to become for cuts to be moved once more by as much."""


def solve_pipeline(
    problem: PlacementProblem, tables: CostTables, units: Units, seconds: float = math.inf
) -> tuple[Ints, tuple[int, ...], float]:
    """Place a reduced problem whose units each fit some device.

    Args:
        problem: What to place, where.
        tables: What nodes cost.
        units: The problem, reduced.
        seconds: About how long the first answer and what lies around it may take, where the graph is not a long one;
            the budget is for what comes after that.

    Returns:
        The position of each node's device; the devices in execution order; a bound on every pipeline.

    Raises:
        InfeasibleError: proven that none exists; says by how many bytes and which node.
        PlacementError: none was found, and the budget was too small to prove that none exists.
    """
    units = fold_leaves(problem, tables, units)
    fitted = where_they_fit(units, tables.memory)
    if fitted is not None:
        try:
            return _never_worse(problem, tables, fold_leaves(problem, tables, fitted), seconds)
        except PlacementError:  # what is missing is told about the problem as it was put
            if problem.explain == "never":
                raise
    return _never_worse(problem, tables, units, seconds)


def _never_worse(
    problem: PlacementProblem, tables: CostTables, units: Units, seconds: float
) -> tuple[Ints, tuple[int, ...], float]:
    """The answer for units that are left when all that can be joined is joined; with more time no worse than usual.

    Searches go other ways with more time, and mostly find more; what they do not prove is looked for as usual, and in
    half of that time, too.
    """
    found = _solved(problem, tables, units, seconds)
    if problem.time_budget < MORE * USUAL_SECONDS or problem.has_little_effort or is_long(units):
        return found
    for less in (USUAL_SECONDS, USUAL_SECONDS / 2):
        if _is_proven(problem, tables, found):
            break
        with contextlib.suppress(PlacementError):  # it was found with more time only
            other = _solved(attrs.evolve(problem, time_budget=less, explain="never"), tables, units, seconds)
            best = min(found, other, key=lambda each: evaluate(tables, each[0]).rank(problem.objective))
            found = (*best[:2], max(found[2], other[2]))
    return found


def _is_proven(problem: PlacementProblem, tables: CostTables, found: tuple[Ints, tuple[int, ...], float]) -> bool:
    return evaluate(tables, found[0]).value(problem.objective) * BETTER <= found[2]


def _solved(
    problem: PlacementProblem, tables: CostTables, units: Units, seconds: float
) -> tuple[Ints, tuple[int, ...], float]:
    """The same, searched for in the time that is given."""
    search = Search.of(problem, tables, units, prices_of(units, tables.memory, problem.objective))
    if not is_long(units):
        search.account.first = STEPS_A_SECOND * seconds
    bound = load_bound(units, tables.memory, problem.objective, search.prices)
    is_timed = problem.objective == "throughput"
    is_linked = is_timed and links_differ(tables)
    if is_timed and not is_long(units):
        bound = heavy_bound(units, search.kinds, bound)
    if problem.objective == "devices":
        best, bound = _fewest(search)
    else:
        ordered = search.ordered(bound)
        with Recombining(search) as beside:
            first = _first_answer(ordered, bound, beside)
            if first is not None and ordered.order is not None and not is_long(units):
                first, _finished = improved_far(ordered, first, search.account.within(STEPS_A_SECOND))
            if first is not None and first.rank[0] <= bound:
                return first.device_of, first.order, bound
            has_more = is_linked or (problem.time_budget >= MUCH_TIME and is_timed and is_small(search))
            budget = problem.time_budget * (SHARED if has_more else 1.0)
            best, proven = _exact_answer(search, first, bound, budget, beside)
        bound = max(bound, proven)
        if is_timed and not is_linked:
            best, bound = proven_small(search, best, bound)
    if is_linked and best.rank[0] > bound:
        takes = swapped(tables, best.device_of, problem.objective)
        best = best.renamed(search, takes)
        best, proven = by_links(search, best, bound)
        bound = max(bound, proven)
        best = descended(search, best, bound)
    return best.device_of, best.order, bound


def _first_answer(search: Search, bound: float, beside: Recombining) -> Answer | None:
    """The best over prefixes of linear orders; the threshold that prunes grows until something is found.

    Where nothing fits along a few orders, it is asked at once whether anything does along more of them, along all where
    steps count.
    """
    if is_long(search.units):
        best = _long_answer(search, bound) or tight_answer(search)
        search.account.spent = 0.0
        return best
    best, account, orders, cut = None, search.account, _many_orders(search), 0
    steps, ladder = account.within(FIRST_STEPS), SHORT_LADDER if search.has_many_states else LADDER
    for count in ladder:
        at_once = best is None and cut > 0
        if at_once and (cut == len(orders) or (account.is_limited and count < ladder[-1])):
            continue
        words, cut = prefixes(orders[:count]), min(count, len(orders))
        if best is None:
            most = max(LEAST_AT_ONCE, account.within(math.inf)) if at_once else math.inf
            best = next(_answers(search, words, 0.0 if at_once else bound, most), None)
        elif best.rank[0] > bound and account.within(steps) > 0:
            if search.has_many_states:
                most = min(SOON, account.within(steps))
                best = improved(search, best, most, NEAREST)  # a lower threshold saves more than that takes
                if search.can_refine:
                    beside.begin(best, partial(search.others, words, best.rank[0] * NOT_MUCH_WORSE, OTHERS))
            best, taken = _better(search, best, words, account.within(steps))
            steps -= taken
    if best is None:
        return tight_answer(search)
    if best.rank[0] <= bound:
        return best
    return _crossed(search, best) if search.has_many_states else improved(search, best, account.within(AROUND_STEPS))


def _crossed(search: Search, best: Answer) -> Answer:
    """Cut what two orders make together, then look around the cuts."""
    if (steps := search.account.within(CROSSED_STEPS)) <= 0:
        return best
    words = ideals_along(search.units, search.prices.weight, CROSSED, search.problem.seed)
    best, taken = _better(search, best, words, steps)
    return improved(search, best, steps - taken, NEAREST)


def _better(search: Search, best: Answer, words: Words, steps: float) -> tuple[Answer, float]:
    """A better answer that cuts at some ideals, if there is one, and the steps that it took to look for it."""
    outcome = search.run(words, best.goal(search) * BETTER, steps=steps)
    if outcome.pipeline is None:
        return best, outcome.steps
    return min(best, Answer.of(search, outcome.pipeline), key=Answer.by_rank), outcome.steps


def _many_orders(search: Search) -> list[list[int]]:
    """Orders that go through branches differently, and others between the first of them."""
    orders = linear_orders(search.units, ORDERS, search.problem.seed)
    orders += orders_between(orders[:BASIC], BETWEEN)
    return orders[: max(FEWEST, PREFIXES // search.units.size)]


def _answers(search: Search, words: Words, bound: float, steps: float = math.inf) -> Iterator[Answer]:
    for share in SHARES:
        if bound > 0 or share == math.inf:
            pipeline = search.run(words, share * bound if bound > 0 else share, steps=steps).pipeline
            if pipeline is not None:
                yield Answer.of(search, pipeline)


def _long_answer(search: Search, bound: float) -> Answer | None:
    """Cut some orders coarsely, then ever finer around the cuts that were found; of very many units only the best."""
    weight = search.prices.weight
    found = []
    for order in long_orders(search.units, search.problem.seed):
        stops = stops_of(order, weight, STOPS, len(search.tables.memory))
        coarse = search.contracted(order, stops)
        answer = next(_answers(coarse, prefixes([range(coarse.units.size)]), bound), None)
        if answer is not None:
            found.append((answer, order, stops[_stops(answer)]))
    found.sort(key=lambda each: each[0].rank)
    fine = [_refined(search, *each, bound) for each in (found[:1] if search.units.size > MANY else found)]
    return min(fine, key=Answer.by_rank, default=None)


def _refined(search: Search, best: Answer, order: Ints, cuts: Ints, bound: float) -> Answer:
    weight, share, too_low = search.prices.weight, 1.0 / STOPS, bound
    while share * search.units.size > 1:
        share, before = share / REFINING, math.inf
        while best.rank[0] < before * LESS:
            before = best.rank[0]
            there, too_low = spread(search, best, order, cuts, bound, too_low)
            stops = stops_near(order, np.concatenate([cuts, there]), weight, share, REFINING)
            fine = search.contracted(order, stops)
            pipeline = fine.run(prefixes([range(fine.units.size)]), best.goal(search)).pipeline
            found = best if pipeline is None else Answer.of(fine, pipeline)
            if found.rank < best.rank:
                best, cuts = found, stops[_stops(found)]
    stops = stops_near(order, cuts, weight, 1.0 / search.units.size, REFINING)
    fine = search.contracted(order, stops)
    pipeline = fine.run(prefixes([range(fine.units.size)]), best.goal(search) * (1 + 1e-9)).pipeline
    return best if pipeline is None else min(best, improved(fine, Answer.of(fine, pipeline)), key=Answer.by_rank)


def _stops(answer: Answer) -> Ints:
    """After how many units of the order each device of an answer stops."""
    return np.cumsum([len(units) for _device, units in answer.pipeline.runs])


def _exact_answer(
    search: Search, best: Answer | None, bound: float, budget: float, beside: Recombining
) -> tuple[Answer, float]:
    """The best over all ideals with the proven bound, or what there is when the budget does not reach."""
    goal = math.inf if best is None else best.rank[0] * BETTER
    settled, light = _light_answer(search, bound, goal)
    if best is not None and settled is not None and settled.rank < best.rank:
        best, goal = settled, settled.rank[0] * BETTER
    if best is not None and light >= goal * BETTER:
        return best, best.rank[0]
    found, proven = smallest(search, max(bound, light), goal, budget, best, beside)
    proven = max(proven, light)
    if found is None and proven == math.inf:
        raise _none(search)
    answers = [answer for answer in (found, best) if answer is not None]
    if not answers:
        raise why_not(search)
    best = min(answers, key=Answer.by_rank)
    if proven < best.rank[0] * BETTER and States.count(search.classes) > FEW_STATES:
        _found, relaxed = smallest(attrs.evolve(search, classes=optimistic(search.classes)), bound, goal, budget)
        proven = max(proven, relaxed)
    reached = proven >= best.rank[0] * BETTER * (1 - ROUNDING)
    return best, best.rank[0] if reached else proven / BETTER


def _light_answer(search: Search, bound: float, goal: float) -> tuple[Answer | None, float]:
    """The best of a problem with far fewer ideals, and a bound up to the goal.

    What only passes a value on runs anywhere, for nothing; leaves leave their bytes behind. The answer is one to the
    given problem where it still keeps the budgets.
    """
    problem, tables = search.problem, search.tables
    if problem.objective != "throughput" or not math.isfinite(goal) or search.units.size > MAX_UNITS:
        return None, bound
    passed = passed_on(search.units, search.classes)
    if len(passed) < MANY_VIEWS:
        passed = {}
    is_few = search.units.size <= FEW_UNITS and not search.has_many_states
    if not passed and problem.time_budget < MUCH_TIME and not is_few:
        return None, bound
    units = fold_leaves_without_bytes(tables, without_passing_on(search.units, passed))
    if units.size == search.units.size:
        return None, bound
    relaxed = Search.of(problem, tables, units, prices_of(units, tables.memory, problem.objective))
    is_worth_it = bool(passed) or problem.time_budget >= MUCH_TIME
    with Recombining(relaxed, is_idle=not is_worth_it) as beside:
        share = LIGHT if is_worth_it else LIGHT_AT_ONCE
        found, proven = smallest(relaxed, bound, goal, share * problem.time_budget, recombining=beside)
    return None if found is None else _settled(search, found, passed), max(bound, min(proven, goal))


def _settled(search: Search, found: Answer, passed: dict[int, int]) -> Answer | None:
    """An answer to the relaxed problem as one to the given problem; None where it breaks a budget."""
    place = np.zeros(len(search.tables.memory), dtype=np.int64)
    place[list(found.order)] = np.arange(len(found.order))
    home = np.zeros(search.units.size, dtype=np.int64)
    home[search.units.unit_of] = found.device_of
    home = beside_first_users(search.units, passed, home, place)
    figures = evaluate(search.tables, home[search.units.unit_of])
    if (figures.kept > search.tables.memory).any() or not np.isfinite(figures.load).all():
        return None
    runs = tuple((device, tuple(np.flatnonzero(home == device).tolist())) for device in found.order)
    return improved(search, Answer.of(search, Pipeline(runs, figures.value(search.problem.objective))))


def _none(search: Search) -> PlacementError:
    """Why there is none, when that is proven."""
    if States.count(search.classes) > FEW_STATES or search.problem.explain == "never":
        return why_not(search, proven=True)
    return no_pipeline(search.problem, search.tables, search.units, search.classes)


def _fewest(search: Search) -> tuple[Answer, float]:
    """The fewest devices that keep the budgets, then the smallest largest load; with a bound on their number."""
    best = _first_answer(search.ordered(0.0), 0.0, Recombining(search, is_idle=True))
    budget, bound = search.problem.time_budget, fewest_by_memory(search.units, search.tables.memory)
    steps, limit = search.account.limits(budget)
    most = len(search.tables.memory) if best is None else int(best.rank[0])
    for count in range(bound, most + 1):
        below = best.rank[1] * BETTER if best is not None and count == most else math.inf
        words = every_ideal(search, below, min(limit, search.affordable(steps)), count)
        if words is None:
            break
        states = States.of(search.classes, count)
        outcome = search.run(words, below, states, steps)
        steps -= outcome.steps
        if outcome.pipeline is not None:
            found = Answer.of(search, outcome.pipeline)
            return (found if best is None else min(found, best, key=Answer.by_rank)), float(count)
        if not outcome.finished:
            break
        bound = min(count + 1, most)
        if count == most and best is None:
            raise _none(search)
    best = _on_fewer(search, best, bound)
    if best is None:
        raise why_not(search)
    return best, float(bound)


def _on_fewer(search: Search, best: Answer | None, least: int) -> Answer | None:
    """A pipeline on fewer devices, or on as many, where all sets of devices are too many to ask for at once.

    A beam search says how few there may be; the largest sets of so many are tried, too, for a smaller load.
    """
    most = len(search.tables.memory) if best is None else int(best.rank[0])
    devices = search.fewest_devices(least, most) if search.has_many_states else None
    if devices is None:
        return best
    sets = itertools.islice(distinct_sets(search.tables, search.units, len(devices)), SETS)
    given = [attrs.evolve(search.on(devices), order=tuple(devices)), *(search.on(each).ordered(0.0) for each in sets)]
    answers = [answer for answer in (best, *map(_soon, given)) if answer is not None]
    return min(answers, key=Answer.by_rank, default=None)


def _soon(search: Search) -> Answer | None:
    """The best over prefixes of a few linear orders."""
    if is_long(search.units):
        return _long_answer(search, 0.0)
    orders = [list(range(search.units.size)), *_many_orders(search)[:FEWEST]]
    return next(_answers(search, prefixes(orders), 0.0, LEAST_AT_ONCE), None)


def fewest_by_memory(units: Units, memory: Floats) -> int:
    """How many of the largest devices have room for all bytes, each shared key once."""
    total = float(units.kept.sum() + units.shared.sum() + units.live.max())
    held = np.cumsum(np.sort(memory)[::-1])
    return min(int(np.searchsorted(held, total)) + 1, len(held))
