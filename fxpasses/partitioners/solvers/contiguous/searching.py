"""What the searches for pipelines share: a reduced problem with its devices, answers, a look around cuts."""

from __future__ import annotations

import math
from collections.abc import Iterator

import attrs
import numpy as np

from fxpasses.partitioners.solvers.contiguous.absorbing import absorbed
from fxpasses.partitioners.solvers.contiguous.beams import Beam
from fxpasses.partitioners.solvers.contiguous.classes import device_classes
from fxpasses.partitioners.solvers.contiguous.cutting import Window, Words, all_ideals, ideals_near, stops_of
from fxpasses.partitioners.solvers.contiguous.deciding import Decision
from fxpasses.partitioners.solvers.contiguous.dynamic_program import Measure, Outcome, Pipeline, PipelineSearch
from fxpasses.partitioners.solvers.contiguous.narrowing import Narrowing
from fxpasses.partitioners.solvers.contiguous.spans import DeviceClass
from fxpasses.partitioners.solvers.contiguous.states import States
from fxpasses.partitioners.solvers.problem import PlacementProblem
from fxpasses.partitioners.solvers.proofs.bounds import Prices
from fxpasses.partitioners.solvers.reduced.reducing import Units, contract
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Floats, Ints, evaluate

__all__ = [
    "BETTER",
    "FEW_STATES",
    "LONG",
    "Account",
    "Answer",
    "Search",
    "every_ideal",
    "improved",
    "improved_far",
    "smallest",
]

IDEALS_A_SECOND = 60_000
STEPS_A_SECOND = 600e6
MAX_STATES = 8192
SOME_STATES = 200
"""States from which on no question about many ideals has an answer within a second."""
MOVES_A_SECOND = 16
"""Moves between states up to which windows are narrowed: each asks for some minimum cuts, a millisecond each."""
FEW_STATES = 700
"""States from which on the first answer uses the devices in one order."""
NEAR = (300, 2000)
"""Ideals that are looked at around each cut of an answer."""
ALL_NEAR = 20_000
BEAM_STOPS = 300
LONG = 2000
"""Units from which on few linear orders are cut, coarsely first."""
MAX_UNITS = 8000
"""Units up to which all ideals are asked for."""
FIRST_SHARE, LAST_SHARE = 0.02, 0.001
"""How much better an answer is asked for around the cuts of one."""
HALVINGS = 6
"""How often the interval is halved in which the least threshold lies that windows do not rule out."""
CALL = 10e6
"""Steps that it takes to prepare such a question."""
FEW = 1250
"""Ideals under the goal up to which windows need not be narrowed."""
PREPARING = 15
"""Steps that it takes to prepare an ideal, for each unit."""
MANY = 5000
"""Ideals from which on it is asked whether anything is better, not what is best."""
BETTER = 1 - 1e-9


@attrs.define
class Account:
    """The steps that all searches for one problem took so far: what a budget in seconds is turned into."""

    spent: float = 0.0

    def limits(self, budget: float) -> tuple[float, int]:
        """How many steps are left, half of the budget at least, and how many ideals there may be.

        The first answer has half a second of its own.
        """
        left = STEPS_A_SECOND * (budget + 0.5) - self.spent
        return max(STEPS_A_SECOND * budget / 2, left), int(IDEALS_A_SECOND * budget)


@attrs.frozen(eq=False)
class Search:
    """A reduced problem with the classes of its devices, as the links are at their best."""

    problem: PlacementProblem
    tables: CostTables
    units: Units
    classes: tuple[DeviceClass, ...]
    prices: Prices
    order: tuple[int, ...] | None = None
    """In which order devices are used, where there are too many states for any order."""
    given: States | None = None
    """States that know more than which devices are used."""
    narrowing: Narrowing | None = None
    """What crosses at least, where that is asked for."""
    account: Account = attrs.field(factory=Account)

    @classmethod
    def of(cls, problem: PlacementProblem, tables: CostTables, units: Units, prices: Prices) -> Search:
        """Group the devices by what units and values cost there."""
        return cls(problem, tables, units, device_classes(problem, tables, units), prices)

    def contracted(self, order: Ints, stops: Ints) -> Search:
        """The same with the units between stops of an order joined."""
        weight: Floats = np.add.reduceat(self.prices.weight[order], stops[:-1])
        prices = attrs.evolve(self.prices, weight=weight)
        units = contract(self.units, order, stops)
        classes = device_classes(self.problem, self.tables, units)
        return Search(self.problem, self.tables, units, classes, prices, self.order, account=self.account)

    def measure(self, below: float) -> Measure:
        """Weights of the units and rooms of the devices under a threshold: prices, or bytes when there is none."""
        memory = np.array([group.memory for group in self.classes])
        if not math.isfinite(below):
            return Measure(self.units.kept.astype(np.float64), memory)
        held = np.where(np.isfinite(self.tables.memory), self.tables.memory, 0.0)
        room = self.prices.load * below + self.prices.byte * held
        measure = Measure(self.prices.weight, np.array([room[list(group.devices)].max() for group in self.classes]))
        return measure if self.narrowing is None else self.narrowing.measure(measure)

    def narrowed(self) -> Search:
        """The same, its windows narrowed by what crosses at least; for links and states of one kind only."""
        is_simple = self.given is None and self.order is None and self.problem.objective == "throughput"
        if self.narrowing is not None or not is_simple or States.count(self.classes) > FEW_STATES:
            return self
        states = self.states()
        if sum(map(len, states.moves)) > MOVES_A_SECOND * self.problem.time_budget:
            return self
        price = np.array([self.prices.load[list(group.devices)].min() for group in self.classes])
        narrowing = Narrowing(self.units, self.classes, states, self.prices.weight, price)
        return attrs.evolve(self, narrowing=narrowing)

    @property
    def kinds(self) -> list[tuple[Floats, Floats, Floats]]:
        """For each class of devices the seconds of units, and of values that leave and enter."""
        return [(np.where(group.banned, np.inf, group.weight), group.leaving, group.entering) for group in self.classes]

    def run(self, words: Words, below: float, states: States | None = None, steps: float = math.inf) -> Outcome:
        """The best pipeline under a threshold that cuts at some ideals."""
        states = self.states() if states is None else states
        objective = self.problem.objective
        search = PipelineSearch(
            self.units, self.classes, states, self.measure(below), self.credit, fewest=objective == "devices"
        )
        return self._counted(search.run(words, below, steps), words)

    def decide(self, words: Words, below: float, steps: float = math.inf) -> Outcome:
        """Some pipeline under a threshold, if there is one: much less work than the best one in wide graphs."""
        fine = absorbed(self.units, self.classes)
        if self.credit is not None or not math.isfinite(below):  # only bytes count
            fine[:] = True
        elif self.given is not None:  # what comes next and before counts, too
            fine[:] = False
        search = Decision(self.units, self.classes, self.states(), self.measure(below), fine, self.credit)
        return self._counted(search.run(words, below, steps), words)

    def _counted(self, outcome: Outcome, words: Words) -> Outcome:
        """The outcome with the steps that it takes to prepare the ideals."""
        steps = outcome.steps + PREPARING * len(words) * self.units.size
        self.account.spent += steps
        return attrs.evolve(outcome, steps=steps)

    def states(self) -> States:
        """The numbers of devices of each class, or the first ones in order."""
        if self.given is not None:
            return self.given
        return States.of(self.classes) if self.order is None else States.along(self.classes, self.order)

    def ordered(self, bound: float) -> Search:
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
class Answer:
    """A placement by the position of each node's device, with the devices in order, and how good it is."""

    device_of: Ints
    order: tuple[int, ...]
    rank: tuple[float, float]
    pipeline: Pipeline

    @classmethod
    def of(cls, search: Search, pipeline: Pipeline) -> Answer:
        """Evaluate what was found."""
        device_of = search.devices(pipeline)
        rank = evaluate(search.tables, device_of).rank(search.problem.objective)
        return cls(device_of, tuple(device for device, _units in pipeline.runs), rank, pipeline)

    def renamed(self, search: Search, takes: Ints) -> Answer:
        """The same runs on other devices: ``takes[d]`` instead of ``d``."""
        runs = tuple((int(takes[device]), units) for device, units in self.pipeline.runs)
        device_of = takes[self.device_of]
        rank = evaluate(search.tables, device_of).rank(search.problem.objective)
        order = tuple(takes[list(self.order)].tolist())
        return Answer(device_of, order, rank, attrs.evolve(self.pipeline, runs=runs))

    def goal(self, search: Search) -> float:
        """What a better load is below; a better answer may have a larger one where fewer devices come first."""
        return math.inf if search.problem.objective == "devices" else self.rank[0]

    def by_rank(self) -> tuple[float, float]:
        """What decides between two answers."""
        return self.rank

    def by_value(self) -> float:
        """The objective as the search counts it, links at their best."""
        return self.pipeline.value


def improved(search: Search, best: Answer, steps: float = STEPS_A_SECOND) -> Answer:
    """Look at the ideals around the cuts of an answer as long as that helps."""
    while steps > 0:
        words = _near_cuts(search, best, NEAR[0])
        outcome = search.run(words, best.goal(search) * BETTER, steps=steps)
        steps -= outcome.steps
        found = None if outcome.pipeline is None else Answer.of(search, outcome.pipeline)
        if found is None or found.rank >= best.rank:
            break
        best = found
    return best


def improved_far(search: Search, best: Answer, steps: float) -> tuple[Answer, bool]:
    """Ask for something better among many ideals around the cuts: 2 % better first, in the end anything.

    Returns:
        The best answer, and whether the last question had an answer within the steps.
    """
    share, finished = FIRST_SHARE, True
    while steps > 0:
        words = _near_cuts(search, best, NEAR[1])
        outcome = search.decide(words, best.pipeline.value * (1 - share) * BETTER, steps)
        steps -= outcome.steps + CALL
        finished = outcome.finished
        if outcome.pipeline is not None:
            found = improved(search, Answer.of(search, outcome.pipeline))
            if found.by_value() >= best.by_value():
                break
            best = found
        elif share:
            share = share / 4 if share > LAST_SHARE else 0.0
        else:
            break
    return best, finished


def _near_cuts(search: Search, best: Answer, limit: int) -> Words:
    cuts = search.cuts(best.pipeline)
    return ideals_near(search.units, cuts, min(limit, ALL_NEAR // max(1, len(cuts))))


def smallest(
    search: Search, bound: float, goal: float, budget: float, known: Answer | None = None
) -> tuple[Answer | None, float]:
    """The pipeline of the smallest value under a goal, over all ideals, and what no pipeline can be below.

    ``known`` is an answer of the search that reaches the goal, if there is one.

    The threshold starts near the bound, where few ideals are of interest, and grows. The second is ``goal`` or more if
    all was looked at and nothing found.
    """
    (steps, limit), proven = search.account.limits(budget), 0.0
    narrowed, climbs = search.narrowed(), False
    if narrowed.narrowing is not None and bound > 0 and every_ideal(search, goal, FEW) is None:
        search, bound = narrowed, _least_threshold(narrowed, bound, goal)
        proven, climbs = bound, every_ideal(narrowed, goal, limit) is None
    for below in _thresholds(bound, goal):
        words = every_ideal(search, below, limit)
        many = words is None or len(words) > MANY
        if words is None or (many and (not climbs or below >= goal)):
            return _decided(search, proven, goal, (steps, limit), known)
        outcome = (search.decide if many else search.run)(words, below, steps=steps)
        steps -= outcome.steps
        if outcome.pipeline is not None and many:
            known = improved(search, Answer.of(search, outcome.pipeline))
            return _decided(search, proven, known.by_value() * BETTER, (steps, limit), known)
        if outcome.pipeline is not None:
            return Answer.of(search, outcome.pipeline), outcome.pipeline.value * BETTER
        if not outcome.finished:
            break
        proven = below
    return None, proven


def _decided(
    search: Search, proven: float, goal: float, budget: tuple[float, int], best: Answer | None
) -> tuple[Answer | None, float]:
    """The same from above: ask for something better until there is nothing."""
    steps, limit = budget
    if States.count(search.classes) > SOME_STATES and steps < 1.5 * STEPS_A_SECOND:
        return best, proven
    if best is not None and search.units.size <= LONG and States.count(search.classes) <= FEW_STATES:
        few = min(steps, STEPS_A_SECOND / 2)
        best, finished = improved_far(search, best, few)
        steps -= 0.0 if finished else few  # everything takes more than what is near
        goal = min(goal, best.by_value() * BETTER)
    while (words := every_ideal(search, goal, limit)) is not None:
        outcome = search.decide(words, goal, steps)
        steps -= outcome.steps
        if outcome.pipeline is None:
            return best, goal if outcome.finished else proven
        found = Answer.of(search, outcome.pipeline)
        best = min(found, improved(search, found), key=Answer.by_value)
        goal = best.by_value() * BETTER
    return best, proven


def _least_threshold(search: Search, low: float, high: float) -> float:
    """The largest threshold up to ``high`` found to be out of reach by the windows alone; ``low`` is known to be."""
    if not math.isfinite(high):
        return low
    for _step in range(HALVINGS):
        middle = high if not _step else (low + high) / 2
        if _is_empty(search.measure(middle), search.states()):
            low = middle
        else:
            high = middle
    return low


def _is_empty(measure: Measure, states: States) -> bool:
    low, high = measure.window(states, float(measure.weight.sum()))
    return bool((low > high).all())


def _thresholds(bound: float, goal: float) -> Iterator[float]:
    """From just above the bound to the goal, in steps that double."""
    share = 0.01
    while bound > 0 and bound * (1 + share) < goal and share < 3:
        yield bound * (1 + share)
        share *= 2
    yield goal


def every_ideal(search: Search, below: float, limit: int, most: int | None = None) -> Words | None:
    """All ideals that a pipeline under a threshold may cut at, or None when there are too many."""
    if (
        not limit
        or (search.order is None and search.given is None and States.count(search.classes) > MAX_STATES)
        or search.units.size > MAX_UNITS
    ):
        return None
    if search.narrowing is not None and math.isfinite(below):
        words = search.narrowing.ideals(search.measure(below), limit)
        if words is not None:
            return words
        search = attrs.evolve(search, narrowing=None)  # its windows overlap, and it counts what is in each
    states = search.states() if most is None else States.of(search.classes, most)
    measure = search.measure(below)
    total = float(measure.weight.sum())
    low, high = measure.window(states, total)
    order = np.argsort(low, kind="stable")
    low, high = low[order], np.maximum.accumulate(high[order])
    begins = np.flatnonzero(np.append(True, low[1:] > high[:-1]))
    ends = np.append(begins[1:] - 1, len(low) - 1)
    return all_ideals(search.units, limit, Window(measure.weight, low[begins], high[ends]))
