"""The best pipeline: cut linear orders, look around the cuts, then all ideals if the budget reaches."""

from __future__ import annotations

import math
from collections.abc import Iterator

import attrs
import numpy as np

from fxpasses.errors import PlacementError
from fxpasses.partitioners.solvers.beams import Beam
from fxpasses.partitioners.solvers.bounds import Prices, load_bound, prices_of
from fxpasses.partitioners.solvers.classes import device_classes, optimistic
from fxpasses.partitioners.solvers.contiguous import Measure, Pipeline, PipelineSearch
from fxpasses.partitioners.solvers.cutting import (
    Window,
    Words,
    all_ideals,
    ideals_near,
    prefixes,
    stops_near,
    stops_of,
)
from fxpasses.partitioners.solvers.explaining import no_pipeline
from fxpasses.partitioners.solvers.leaves import fold_leaves
from fxpasses.partitioners.solvers.orders import linear_orders
from fxpasses.partitioners.solvers.problem import PlacementProblem
from fxpasses.partitioners.solvers.reducing import Units, contract
from fxpasses.partitioners.solvers.spans import DeviceClass
from fxpasses.partitioners.solvers.states import States
from fxpasses.partitioners.solvers.tables import CostTables, Floats, Ints, evaluate

__all__ = ["fewest_by_memory", "solve_pipeline"]

IDEALS_A_SECOND = 60_000
STEPS_A_SECOND = 250e6
MAX_STATES = 8192
FEW_STATES = 700
"""States from which on the first answer uses the devices in one order."""
ORDERS = 6
NEAR = (300, 2000)
"""Ideals that are looked at around each cut of an answer."""
ALL_NEAR = 20_000
BEAM_STOPS = 300
LONG = 2000
"""Units from which on one linear order is cut, instead of ``ORDERS``."""
STOPS = 1000
REFINING = 8
BETTER = 1 - 1e-9


@attrs.frozen(eq=False)
class _Search:
    """A reduced problem with the classes of its devices, as the links are at their best."""

    problem: PlacementProblem
    tables: CostTables
    units: Units
    classes: tuple[DeviceClass, ...]
    prices: Prices
    order: tuple[int, ...] | None = None
    """In which order devices are used, where there are too many states for any order."""

    @classmethod
    def of(cls, problem: PlacementProblem, tables: CostTables, units: Units, prices: Prices) -> _Search:
        return cls(problem, tables, units, device_classes(problem, tables, units), prices)

    def contracted(self, order: Ints, stops: Ints) -> _Search:
        """The same with the units between stops of an order joined."""
        weight: Floats = np.add.reduceat(self.prices.weight[order], stops[:-1])
        prices = attrs.evolve(self.prices, weight=weight)
        units = contract(self.units, order, stops)
        classes = device_classes(self.problem, self.tables, units)
        return _Search(self.problem, self.tables, units, classes, prices, self.order)

    def measure(self, below: float) -> Measure:
        memory = np.array([group.memory for group in self.classes])
        if not math.isfinite(below):
            return Measure(self.units.kept.astype(np.float64), memory)
        held = np.where(np.isfinite(self.tables.memory), self.tables.memory, 0.0)
        room = self.prices.load * below + self.prices.byte * held
        return Measure(self.prices.weight, np.array([room[list(group.devices)].max() for group in self.classes]))

    def run(
        self, words: Words, below: float, states: States | None = None, steps: float = math.inf
    ) -> tuple[Pipeline | None, bool]:
        states = self.states() if states is None else states
        objective = self.problem.objective
        search = PipelineSearch(
            self.units, self.classes, states, self.measure(below), self.credit, fewest=objective == "devices"
        )
        return search.run(words, below, steps)

    def states(self) -> States:
        return States.of(self.classes) if self.order is None else States.along(self.classes, self.order)

    def ordered(self, bound: float) -> _Search:
        """The same with an order of the devices, if that is needed to keep the number of states small."""
        if States.count(self.classes) <= FEW_STATES:
            return self
        order = np.arange(self.units.size)
        coarse = self.contracted(order, stops_of(order, self.prices.weight, BEAM_STOPS, 1))
        found = Beam.of(coarse.units, coarse.classes, self.credit).best_order(bound, coarse.measure)
        given = range(len(self.tables.memory))
        devices = tuple(given) if found is None else (*found, *(device for device in given if device not in found))
        return attrs.evolve(self, order=devices)

    @property
    def credit(self) -> tuple[float, ...] | None:
        """Nothing, for each class, where the load is bytes."""
        return (0.0,) * len(self.classes) if self.problem.objective == "memory" else None

    def devices(self, pipeline: Pipeline) -> Ints:
        """The position of each node's device."""
        home = np.zeros(self.units.size, dtype=np.int64)
        for device, units in pipeline.runs:
            home[list(units)] = device
        return home[self.units.unit_of]

    def cuts(self, pipeline: Pipeline) -> list[list[int]]:
        """The ideals between the devices."""
        held: list[int] = []
        found = []
        for _device, units in pipeline.runs[:-1]:
            held = [*held, *units]
            found.append(held)
        return found


@attrs.frozen(eq=False)
class _Answer:
    """A placement by the position of each node's device, with the devices in order, and how good it is."""

    device_of: Ints
    order: tuple[int, ...]
    rank: tuple[float, float]
    pipeline: Pipeline

    @classmethod
    def of(cls, search: _Search, pipeline: Pipeline) -> _Answer:
        device_of = search.devices(pipeline)
        rank = evaluate(search.tables, device_of).rank(search.problem.objective)
        return cls(device_of, tuple(device for device, _units in pipeline.runs), rank, pipeline)

    def by_rank(self) -> tuple[float, float]:
        """What decides between two answers."""
        return self.rank


def solve_pipeline(problem: PlacementProblem, tables: CostTables, units: Units) -> tuple[Ints, tuple[int, ...], float]:
    """Place a reduced problem whose units each fit some device.

    Returns:
        The position of each node's device; the devices in execution order; a bound on every pipeline.

    Raises:
        InfeasibleError: proven that none exists; says by how many bytes and which node.
        PlacementError: none was found, and the budget was too small to prove that none exists.
    """
    units = fold_leaves(problem, tables, units)
    search = _Search.of(problem, tables, units, prices_of(units, tables.memory, problem.objective))
    bound = load_bound(units, tables.memory, problem.objective)
    if problem.objective == "devices":
        best, bound = _fewest(search)
    else:
        best = _first_answer(search.ordered(bound), bound)
        if best is None or best.rank[0] > bound:
            best, proven = _exact_answer(search, best, bound)
            bound = max(bound, proven)
    return best.device_of, best.order, bound


def _first_answer(search: _Search, bound: float) -> _Answer | None:
    """The best over prefixes of linear orders; the threshold that prunes grows until something is found."""
    if search.units.size > LONG:
        return _long_answer(search, bound)
    words = prefixes(linear_orders(search.units, ORDERS, search.problem.seed))
    best = next(_answers(search, words, bound), None)
    return None if best is None else _improved(search, best)


def _answers(search: _Search, words: Words, bound: float) -> Iterator[_Answer]:
    for below in (1.1 * bound, 2 * bound, math.inf):
        if below > 0:
            pipeline, _finished = search.run(words, below)
            if pipeline is not None:
                yield _Answer.of(search, pipeline)


def _improved(search: _Search, best: _Answer) -> _Answer:
    """Look at the ideals around the cuts of an answer, more of them once that does not help any more."""
    for limit in NEAR:
        while True:
            cuts = search.cuts(best.pipeline)
            words = ideals_near(search.units, cuts, min(limit, ALL_NEAR // max(1, len(cuts))))
            below = math.inf if search.problem.objective == "devices" else best.rank[0] * BETTER
            pipeline, _finished = search.run(words, below, steps=STEPS_A_SECOND)
            found = None if pipeline is None else _Answer.of(search, pipeline)
            if found is None or found.rank >= best.rank:
                break
            best = found
    return best


def _long_answer(search: _Search, bound: float) -> _Answer | None:
    """Cut one order coarsely, then ever finer around the cuts that were found."""
    order = np.arange(search.units.size)
    weight = search.prices.weight
    stops = stops_of(order, weight, STOPS, len(search.tables.memory))
    coarse = search.contracted(order, stops)
    best = next(_answers(coarse, prefixes([range(coarse.units.size)]), bound), None)
    if best is None:
        return None
    cuts, share = stops[_stops(best)], 1.0 / STOPS
    while share * search.units.size > 1:
        share /= REFINING
        stops = stops_near(order, cuts, weight, share, REFINING)
        fine = search.contracted(order, stops)
        pipeline, _finished = fine.run(prefixes([range(fine.units.size)]), best.rank[0])
        found = best if pipeline is None else _Answer.of(fine, pipeline)
        if found.rank < best.rank:
            best, cuts = found, stops[_stops(found)]
    near = search.contracted(order, stops_near(order, cuts, weight, 1.0 / search.units.size, REFINING))
    pipeline, _finished = near.run(prefixes([range(near.units.size)]), best.rank[0] * (1 + 1e-9))
    return best if pipeline is None else min(best, _improved(near, _Answer.of(near, pipeline)), key=_Answer.by_rank)


def _stops(answer: _Answer) -> Ints:
    """After how many units of the order each device of an answer stops."""
    return np.cumsum([len(units) for _device, units in answer.pipeline.runs])


def _exact_answer(search: _Search, best: _Answer | None, bound: float) -> tuple[_Answer, float]:
    """The best over all ideals with the proven bound, or what there is when the budget does not reach."""
    budget = search.problem.time_budget
    goal = math.inf if best is None else best.rank[0] * BETTER
    found, proven = _smallest(search, bound, goal, budget)
    if found is None and proven == math.inf:
        raise no_pipeline(search.problem, search.tables, search.units, search.classes)
    answers = [answer for answer in (found, best) if answer is not None]
    if not answers:
        raise _not_found(budget)
    best = min(answers, key=_Answer.by_rank)
    if found is None and proven < goal and States.count(search.classes) > FEW_STATES:
        _found, relaxed = _smallest(attrs.evolve(search, classes=optimistic(search.classes)), bound, goal, budget)
        proven = max(proven, relaxed)
    return best, min(proven / BETTER, best.rank[0])


def _smallest(search: _Search, bound: float, goal: float, budget: float) -> tuple[_Answer | None, float]:
    """The pipeline of the smallest value under a goal, over all ideals, and what no pipeline can be below.

    The threshold starts near the bound, where few ideals are of interest, and grows. The second is ``goal`` or more if
    all was looked at and nothing found.
    """
    steps, limit, proven = STEPS_A_SECOND * budget, int(IDEALS_A_SECOND * budget), 0.0
    for below in _thresholds(bound, goal):
        words = _ideals(search, below, limit)
        if words is None:
            break
        pipeline, finished = search.run(words, below, steps=steps)
        if not finished:
            break
        if pipeline is not None:
            return _Answer.of(search, pipeline), pipeline.value * BETTER
        proven = below
    return None, proven


def _not_found(budget: float) -> PlacementError:
    return PlacementError(
        "No placement that keeps every budget was found, and the search did not get far enough to prove that none "
        f"exists; raise time_budget (it is {budget:g} s) or the memory of a device."
    )


def _thresholds(bound: float, goal: float) -> Iterator[float]:
    """From just above the bound to the goal, in steps that double."""
    share = 0.01
    while bound > 0 and bound * (1 + share) < goal and share < 3:
        yield bound * (1 + share)
        share *= 2
    yield goal


def _ideals(search: _Search, below: float, limit: int, most: int | None = None) -> Words | None:
    """All ideals that a pipeline under a threshold may cut at, or None when there are too many."""
    if not limit or States.count(search.classes) > MAX_STATES or search.units.size > LONG:
        return None
    measure = search.measure(below)
    total = float(measure.weight.sum())
    low, high = measure.window(States.of(search.classes, most), total)
    order = np.argsort(low, kind="stable")
    low, high = low[order], np.maximum.accumulate(high[order])
    begins = np.flatnonzero(np.append(True, low[1:] > high[:-1]))
    ends = np.append(begins[1:] - 1, len(low) - 1)
    return all_ideals(search.units, limit, Window(measure.weight, low[begins], high[ends]))


def _fewest(search: _Search) -> tuple[_Answer, float]:
    """The fewest devices that keep the budgets, then the smallest largest load; with a bound on their number."""
    best = _first_answer(search.ordered(0.0), 0.0)
    budget, bound = search.problem.time_budget, fewest_by_memory(search.units, search.tables.memory)
    steps, limit = STEPS_A_SECOND * budget, int(IDEALS_A_SECOND * budget)
    most = len(search.tables.memory) if best is None else int(best.rank[0])
    for count in range(bound, most + 1):
        below = best.rank[1] * BETTER if best is not None and count == most else math.inf
        words = _ideals(search, below, limit, count)
        if words is None:
            break
        states = States.of(search.classes, count)
        pipeline, finished = search.run(words, below, states, steps)
        if pipeline is not None:
            found = _Answer.of(search, pipeline)
            return (found if best is None else min(found, best, key=_Answer.by_rank)), float(count)
        if not finished:
            break
        bound = min(count + 1, most)
        if count == most and best is None:
            raise no_pipeline(search.problem, search.tables, search.units, search.classes)
    if best is None:
        raise _not_found(budget)
    return best, float(bound)


def fewest_by_memory(units: Units, memory: Floats) -> int:
    """How many of the largest devices have room for all bytes, each shared key once."""
    total = float(units.kept.sum() + units.shared.sum() + units.live.max())
    held = np.cumsum(np.sort(memory)[::-1])
    return min(int(np.searchsorted(held, total)) + 1, len(held))
