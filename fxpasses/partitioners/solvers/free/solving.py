"""Solve a reduced problem freely, for each objective: start from a pipeline, search, prove, or say what is missing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import attrs
import numpy as np

from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners.solvers.contiguous.long_graphs import is_long
from fxpasses.partitioners.solvers.contiguous.solving import fewest_by_memory, solve_pipeline
from fxpasses.partitioners.solvers.contiguous.tight_memory.explaining import lacking
from fxpasses.partitioners.solvers.contiguous.tight_memory.tight import nearest_pipeline
from fxpasses.partitioners.solvers.free.searching import FreeAnswer, FreeSearch
from fxpasses.partitioners.solvers.problem import PlacementProblem
from fxpasses.partitioners.solvers.proofs.assigning import ROUNDING, WIDER, Extra, program_size, some_assignment
from fxpasses.partitioners.solvers.proofs.bounds import Prices, load_bound, prices_of
from fxpasses.partitioners.solvers.proofs.choosing import distinct_sets
from fxpasses.partitioners.solvers.proofs.covering import covering_bound
from fxpasses.partitioners.solvers.proofs.packing import Packing
from fxpasses.partitioners.solvers.reduced.fitting import kept_off
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.reducing import Units, reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Floats, Ints

__all__ = ["refuse", "solve_free"]

MAX_SENDING = 30_000_000
"""Entries of the table of sending times up to which there is a search at all; beyond, the pipeline is the answer."""
FIRST = 3.0
"""How many times the seconds of the budget, counted in steps, the first pipeline may take and what lies around it: as
long as by itself by default, and less where there is less time."""
SMALL = 2000
"""Variables up to which a packing program is asked."""
SUBSETS = 300
"""Sets of devices of one size that are looked at; all there are of eight that differ, or of many in few classes."""
WHOLE = 1e-3
"""Bytes that a proof of missing ones may lack of the next whole one at most."""
MANY_DEVICES, MANY_SETS = 16, 16
"""Devices from which on a pipeline is looked for first, and how many sets are looked at for less than it takes: half as
many for each further device."""
LEAST_SHARE = 1 / 16
"""Of the seconds of integer programs, what each of many sets gets: they say what fits at all."""


def solve_free(problem: PlacementProblem, tables: CostTables, units: Units) -> tuple[Ints, tuple[int, ...], float]:
    """Place a reduced problem whose units each fit some device.

    Returns:
        The position of each node's device; the devices that are used; a bound on every assignment.

    Raises:
        InfeasibleError: proven that none exists; says by how many bytes and which node.
        PlacementError: none was found, and none was proven not to exist.
    """
    home, bound = (_fewest if problem.objective == "devices" else _smallest)(problem, tables, units)
    return home[units.unit_of], tuple(np.unique(home).tolist()), bound


def _smallest(problem: PlacementProblem, tables: CostTables, units: Units) -> tuple[Ints, float]:
    """The assignment whose largest figure is the smallest."""
    fitted = kept_off(units, tables.memory) or units
    prices = prices_of(fitted, tables.memory, problem.objective)
    bound = load_bound(fitted, tables.memory, problem.objective, prices)
    starts = list(_pipeline(problem, tables, units))
    if len(units.source) * len(tables.memory) ** 2 > MAX_SENDING:
        if starts:
            return starts[0], bound
        raise PlacementError(
            f"No pipeline was found, and {units.size} units on {len(tables.memory)} devices are too many for the "
            "search among free placements; join nodes with `colocate`."
        )
    model = LoadModel.of(units, tables, problem.objective)
    best = min((float(model.figures(home[None]).max()) for home in starts), default=math.inf)
    if starts:
        bound = max(bound, _covering_bound(problem, model, prices, best))
    search = FreeSearch(model, bound, problem.time_budget, problem.seed, problem.program_seconds)
    if best > bound:
        starts += _without_time(problem, tables, units, search)
    answer = search.run(starts)
    if answer.home is None:
        raise refuse(problem, tables, units, model)
    known = answer.bound
    if math.isinf(best):
        known = max(known, _covering_bound(problem, model, prices, answer.value))
    return answer.home, min(known, answer.value)


def _without_time(problem: PlacementProblem, tables: CostTables, units: Units, search: FreeSearch) -> Iterator[Ints]:
    """What would be found without any time: with more it shall not be worse. Not where that takes long."""
    if problem.time_budget <= 0 or problem.wants_answer_only or is_long(units):
        return
    hasty = attrs.evolve(problem, time_budget=0.0)
    quick = attrs.evolve(search, budget=0.0, program_seconds=hasty.program_seconds)
    answer = quick.run(list(_pipeline(hasty, tables, units)))
    if answer.home is not None:
        yield answer.home


def _covering_bound(problem: PlacementProblem, model: LoadModel, prices: Prices, below: float) -> float:
    """A bound that knows transfers; it takes as long as a short search, so not where only an answer is wanted."""
    if problem.wants_answer_only:
        return 0.0
    return covering_bound(model, prices, below, problem.time_budget)


def _pipeline(problem: PlacementProblem, tables: CostTables, units: Units) -> Iterator[Ints]:
    """The best pipeline that is found without a program, if there is one: what that would prove says nothing here.

    Where only an answer is wanted, some pipeline will do.
    """
    seconds = min(problem.time_budget, 2.0)
    budget = 0.0 if problem.wants_answer_only else seconds
    similar = attrs.evolve(problem, contiguity="pipeline", time_budget=budget, effort=0.0, explain="never")
    try:
        is_hasty = seconds == 0 and not problem.wants_answer_only
        first = math.inf if is_hasty else FIRST * seconds  # without time it takes what a pipeline takes then
        device_of, _order, _bound = solve_pipeline(similar, tables, reduce_problem(similar, tables), first)
    except PlacementError:
        return  # a free placement may exist all the same
    yield units.homes(device_of)


def _fewest(problem: PlacementProblem, tables: CostTables, units: Units) -> tuple[Ints, float]:
    """The fewest devices that hold everything, and on them the smallest largest load."""
    model = LoadModel.of(units, tables, "devices")
    bound = fewest_by_memory(units, tables.memory)
    packing = Packing.of(model, seconds=problem.program_seconds)
    if packing.size <= SMALL:
        proof = packing.fewest_devices()
        if math.isfinite(proof.bound):
            bound = max(bound, int(proof.bound))
    known = next(_pipeline(problem, tables, units), None) if model.devices > MANY_DEVICES else None
    most = model.devices if known is None else len(np.unique(known)) - 1
    for asked, count in enumerate(range(bound, most + 1)):
        subsets = SUBSETS if known is None else MANY_SETS // 2**asked
        if not subsets:
            break
        found = _on_so_many(problem, tables, units, model, count, subsets)
        if found.home is not None:
            return found.home, float(bound)
        bound = count + 1 if found.is_refuted and bound == count else bound
    if known is None:
        raise refuse(problem, tables, units, model)
    chosen = tuple(np.unique(known).tolist())
    least = load_bound(*_restricted(units, tables, chosen), "throughput")
    better = _search(problem, model, chosen, least, 1 / 2).run([known]).home
    return known if better is None else better, float(bound)


@attrs.frozen(eq=False)
class _Found:
    """The best assignment to so many devices (None: none was found), and whether it is proven that there is none."""

    home: Ints | None
    is_refuted: bool


def _on_so_many(
    problem: PlacementProblem, tables: CostTables, units: Units, model: LoadModel, count: int, subsets: int
) -> _Found:
    """Try the sets of so many devices that can hold everything; first those on which the load can be the smallest."""
    sets = list(itertools.islice(distinct_sets(tables, units, count), subsets + 1))
    few = [chosen for chosen in sets[:subsets] if _has_room(model, chosen)]
    bounds = {chosen: load_bound(*_restricted(units, tables, chosen), "throughput") for chosen in few}
    best, refuted = FreeAnswer(None, math.inf, math.inf), len(sets) <= subsets
    share = 1 / (2 * max(1, len(few)))
    for chosen in sorted(few, key=lambda each: (bounds[each], each)):
        if bounds[chosen] >= best.value:
            continue
        answer = _search(problem, model, chosen, bounds[chosen], share).run([])
        refuted &= math.isinf(answer.bound)
        if answer.value < best.value:
            best, winner = answer, chosen
    if best.home is None:
        return _Found(None, refuted)
    more = _search(problem, model, winner, max(bounds[winner], best.bound), 1 / 2)
    return _Found(more.run([best.home]).home, False)


def _search(
    problem: PlacementProblem, model: LoadModel, chosen: tuple[int, ...], bound: float, share: float
) -> FreeSearch:
    """The search that uses some devices only, in a share of the time budget."""
    banned = model.banned | ~np.isin(np.arange(model.devices), chosen)
    seconds, programs = share * problem.time_budget, max(share, LEAST_SHARE) * problem.program_seconds
    return FreeSearch(attrs.evolve(model, banned=banned), bound, seconds, problem.seed, programs)


def _restricted(units: Units, tables: CostTables, chosen: tuple[int, ...]) -> tuple[Units, Floats]:
    """The units and memories of some devices."""
    own = list(chosen)
    return attrs.evolve(units, seconds=units.seconds[:, own]), tables.memory[own]


def _has_room(model: LoadModel, chosen: tuple[int, ...]) -> bool:
    """Whether some devices are large enough together, and each unit fits one of them."""
    own = list(chosen)
    room = np.where(model.banned[:, own], -np.inf, model.memory[own]).max(axis=1)
    total = float(model.kept.sum() + model.shared.sum() + model.live.max(initial=0.0))
    return bool((model.kept + model.live <= room).all()) and total <= float(model.memory[own].sum())


def refuse(
    problem: PlacementProblem, tables: CostTables, units: Units, model: LoadModel, extra: Extra = None
) -> PlacementError:
    """Why there is no answer: proven with the missing bytes, or not found."""
    packing = Packing.of(model, seconds=problem.program_seconds, extra=extra)
    if problem.explain == "never" or packing.size > SMALL:
        return _not_found(problem, tables, asked=packing.size <= SMALL)
    proof = packing.missing_bytes()
    if proof.home is None and math.isinf(proof.bound) and proof.bound > 0:
        return InfeasibleError(
            f"No {problem.contiguity} placement exists, however large the memories: with what the devices can run, "
            "pins and forbidden devices, some path would leave a device and come back. Let go of a pin or of a "
            "forbidden device, or ask for a free placement."
        )
    if proof.home is None:
        return _not_found(problem, tables, asked=True)
    missing, where = lacking(problem, tables, proof.home[units.unit_of])
    total = float(model.kept.sum() + model.shared.sum() + model.live.sum())
    off = max(WHOLE, WIDER * total)  # what a program may be off, in bytes, which are whole
    is_exact = off < 0.5 and proof.bound > missing - 1 + off
    is_proven = is_exact or proof.bound > missing * (1 - 1e3 * ROUNDING)
    while missing > 0 and not is_exact and program_size(model) <= SMALL:
        roomy = attrs.evolve(model, memory=model.memory + (missing - 1))
        proof = some_assignment(roomy, seconds=problem.program_seconds, extra=extra)
        if proof.home is None:
            is_proven |= math.isinf(proof.bound) and proof.bound > 0
            break
        missing, where = lacking(problem, tables, proof.home[units.unit_of])
    if missing <= 0 or not is_proven:
        return _not_found(problem, tables, asked=True)
    return InfeasibleError(
        f"No placement keeps every budget: the one that comes nearest {where}.",
        missing_bytes=missing,
    )


def _not_found(problem: PlacementProblem, tables: CostTables, *, asked: bool) -> PlacementError:
    """That nothing was found, what the nearest pipeline lacks, and what to raise: effort where that is too little."""
    seconds = f"time_budget (it is {problem.time_budget:g} s)"
    if asked and problem.effort is not None and problem.effort < 1:
        effort = f"effort (it is {problem.effort:g})"
        seconds = f"{effort}, {seconds}" if problem.effort else effort
    device_of = nearest_pipeline(problem, tables) if problem.explain == "always" else None
    missing, where = (0, "") if device_of is None else lacking(problem, tables, device_of)
    nearest = f": the nearest pipeline {where}" if missing > 0 else ""
    return PlacementError(
        f"No placement that keeps every budget was found{nearest}. It is not proven that none exists; raise {seconds} "
        "or the memory of a device."
    )
