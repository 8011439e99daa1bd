"""What the searches for pipelines share: a reduced problem with its devices, an account of steps, answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import cached_property

import attrs
import numpy as np

from fxpasses.partitioners.solvers.contiguous.absorbing import absorbed
from fxpasses.partitioners.solvers.contiguous.ideals.classes import device_classes
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import Words
from fxpasses.partitioners.solvers.contiguous.ideals.device_class import DeviceClass
from fxpasses.partitioners.solvers.contiguous.ideals.lifetimes import Lifetimes
from fxpasses.partitioners.solvers.contiguous.ideals.states import States
from fxpasses.partitioners.solvers.contiguous.ideals.stops import stops_of
from fxpasses.partitioners.solvers.contiguous.long_graphs import MAX_UNITS, is_long
from fxpasses.partitioners.solvers.contiguous.refined.refining import Refined, Refining
from fxpasses.partitioners.solvers.contiguous.refined.spare import Payment
from fxpasses.partitioners.solvers.contiguous.tables.beams import Beam
from fxpasses.partitioners.solvers.contiguous.tables.deciding import Decision
from fxpasses.partitioners.solvers.contiguous.tables.dynamic_program import Measure, Outcome, PipelineSearch
from fxpasses.partitioners.solvers.contiguous.tables.filled_tables import Pipeline
from fxpasses.partitioners.solvers.contiguous.twins import twins_in_order
from fxpasses.partitioners.solvers.problem import PlacementProblem
from fxpasses.partitioners.solvers.proofs.bounds import Prices
from fxpasses.partitioners.solvers.proofs.covering import Rooms
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.reducing import Units, contract
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Floats, Ints, evaluate

__all__ = [
    "BETTER",
    "FEW_STATES",
    "IDEALS_A_SECOND",
    "Account",
    "Answer",
    "Search",
]

IDEALS_A_SECOND = 60_000
STEPS_A_SECOND = 300e6
OTHERS_STEPS = STEPS_A_SECOND
"""What it may take to find more answers than the best."""
FIRST_SECONDS = 0.2
"""What the first answer may take beside the budget; the searches after it do not pay for that."""
MAX_STATES = 8192
SOME_STATES = 64
"""States from which on no question about many ideals has an answer within a second."""
FEW_STATES = 700
"""States from which on the first answer uses the devices in one order."""
BEAM_STOPS = 300
MUCH_TIME = 4.0
"""Seconds from which on ideals of long graphs are found from a coarse problem on."""
LINK_SECONDS = 1e-7
"""How long it takes to find out what a unit sends over a link."""
PREPARING = 15
"""Steps that it takes to prepare an ideal, for each unit."""
PREPARING_USE = 0.6
"""The same for each value and each of its users, where these are more than that."""
OVER = 2
"""How many times the steps that are left this may take: nothing else proves an answer to a long graph."""
BETTER = 1 - 1e-9


@attrs.define
class Account:
    """The steps that all searches for one problem took so far: what a budget in seconds is turned into.

    The first answer to a long graph does not count: it takes what it takes.
    """

    spent: float = 0.0
    first: float = math.inf
    """What may be spent on the first answer and on what lies around its cuts, all together; else each takes its own."""

    @property
    def is_limited(self) -> bool:
        """Whether the first answer counts."""
        return self.first < math.inf

    def within(self, steps: float) -> float:
        """So many steps, or what is left for the first answer; that may be negative."""
        return min(steps, self.first - self.spent)

    def limits(self, budget: float) -> tuple[float, int]:
        """How many steps are left, half of the budget at least, and how many ideals there may be."""
        left = STEPS_A_SECOND * (budget + FIRST_SECONDS) - self.spent
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
    rooms: Rooms | None = None
    """What each device can take with its transfers, where that is asked for."""
    lives: Lifetimes | None = None
    """What is on a device while it runs, where that is known; only refining asks for it."""
    account: Account = attrs.field(factory=Account)

    @classmethod
    def of(cls, problem: PlacementProblem, tables: CostTables, units: Units, prices: Prices) -> Search:
        """Group the devices by what units and values cost there."""
        return cls(problem, tables, units, device_classes(tables, units), prices)

    def contracted(self, order: Ints, stops: Ints) -> Search:
        """The same with the units between stops of an order joined."""
        weight: Floats = np.add.reduceat(self.prices.weight[order], stops[:-1])
        prices = attrs.evolve(self.prices, weight=weight)
        units = contract(self.units, order, stops)
        classes = device_classes(self.tables, units, self.devices)
        return Search(self.problem, self.tables, units, classes, prices, self.order, account=self.account)

    @property
    def devices(self) -> set[int]:
        """The devices that there are to use."""
        return {device for group in self.classes for device in group.devices}

    def on(self, chosen: Collection[int]) -> Search:
        """The same on some of the devices."""
        return attrs.evolve(self, classes=device_classes(self.tables, self.units, chosen))

    def measure(self, below: float) -> Measure:
        """Weights of the units and rooms of the devices under a threshold: prices, or bytes when there is none."""
        memory = np.array([group.memory for group in self.classes])
        if not math.isfinite(below):
            return Measure(self.units.kept.astype(np.float64), memory)
        held = np.where(np.isfinite(self.tables.memory), self.tables.memory, 0.0)
        room = self.prices.load * below + self.prices.byte * held
        return Measure(self.prices.weight, np.array([room[list(group.devices)].max() for group in self.classes]))

    def _measures(self, below: float) -> tuple[Measure, ...]:
        """All that windows follow from: prices, bytes, and what devices can take with their transfers."""
        memory = np.array([group.memory for group in self.classes])
        by_bytes = Measure(self.units.kept.astype(np.float64), memory)
        if self.rooms is None or below > self.rooms.below:
            return self.measure(below), by_bytes
        room = self.rooms.within(below).astype(np.float64)
        most = np.array([room[list(group.devices)].max() for group in self.classes])
        return self.measure(below), by_bytes, Measure(self.rooms.work.astype(np.float64), most)

    def with_rooms(self, below: float, seconds: float) -> Search:
        """The same with what each device can take under a threshold and its transfers, if that takes few seconds."""
        pairs = self.units.size * len(self.tables.memory) ** 2
        if self.rooms is not None or self.problem.objective != "throughput" or pairs * LINK_SECONDS > seconds:
            return self
        model = LoadModel.of(self.units, self.tables)
        return attrs.evolve(self, rooms=Rooms.of(model, self.prices, below, seconds))

    @property
    def least(self) -> float:
        """What no pipeline is below, as far as what devices can take tells."""
        return 0.0 if self.rooms is None else self.rooms.bound() * BETTER

    @property
    def has_many_states(self) -> bool:
        """Whether questions about many ideals take long."""
        return self.given is None and self.order is None and States.count(self.classes) > SOME_STATES

    @property
    def can_refine(self) -> bool:
        """Whether ideals can be found from a coarse problem on: for links and states of one kind only."""
        is_simple = self.given is None and self.order is None and self.problem.objective == "throughput"
        has_time = self.problem.time_budget >= MUCH_TIME and self.units.size <= MAX_UNITS
        is_quick = not is_long(self.units) or has_time
        return is_simple and is_quick and States.count(self.classes) <= FEW_STATES

    def refined(
        self,
        below: float,
        steps: float,
        limit: int,
        least: float = math.inf,
        look: Callable[[float], float] | None = None,
    ) -> Refined:
        """All ideals at which a pipeline under a threshold may be cut, found from a coarse problem on.

        Where the steps do not reach, the threshold is lowered, but not to ``least``. ``look`` is told the steps that it
        took, from time to time, and tells a lower threshold where something better was found.
        """
        refined = self._refining.ideals(self._payment, below, steps, limit, least, look)
        self.account.spent += refined.steps
        return refined

    def promising(self, least: float, below: float, most: int, steps: float = math.inf) -> Refined:
        """Some of the ideals at which a pipeline under a threshold may be cut, found in the same way."""
        refined = self._refining.promising(self._payment, least, below, most, steps)
        self.account.spent += refined.steps
        return refined

    def _payment(self, below: float) -> Payment:
        first = np.array([group.devices[0] for group in self.classes])
        return Payment(self.measure(below).room, self.prices.load[first], self.prices.byte[first])

    @cached_property
    def in_order(self) -> Units:
        """The units whose ideals are enough to look at: what is there while a device runs tells twins apart."""
        return twins_in_order(self.units, self.tables) if self.lives is None else self.units

    @cached_property
    def _refining(self) -> Refining:
        load = self.prices.load[[group.devices[0] for group in self.classes]]
        return Refining(self.in_order, self.classes, self.states, self.prices.weight, load, self.lives)

    @property
    def kinds(self) -> list[tuple[Floats, Floats, Floats]]:
        """For each class of devices the seconds of units, and of values that leave and enter."""
        return [(np.where(group.banned, np.inf, group.weight), group.leaving, group.entering) for group in self.classes]

    def run(self, words: Words, below: float, states: States | None = None, steps: float = math.inf) -> Outcome:
        """The best pipeline under a threshold that cuts at some ideals."""
        search = self._dynamic_program(below, self.states if states is None else states)
        return self._counted(search.run(words, below, steps), words)

    def others(self, words: Words, below: float, count: int) -> list[Answer]:
        """Some of the best under a threshold that cut at some ideals; they use or end with other devices.

        None where that takes long. It may run beside other work, so nothing is counted.
        """
        search = self._dynamic_program(below, self.states)
        return [Answer.of(self, pipeline) for pipeline in search.others(words, below, count, OTHERS_STEPS)]

    def _dynamic_program(self, below: float, states: States) -> PipelineSearch:
        fewest = self.problem.objective == "devices"
        return PipelineSearch(self.units, self.classes, states, self.measure(below), self.credit, fewest=fewest)

    def decide(self, words: Words, below: float, steps: float = math.inf) -> Outcome:
        """Some pipeline under a threshold, if there is one: much less work than the best one in wide graphs."""
        left = OVER * steps - self._preparing(words)
        if left <= 0:
            return Outcome(None, False, 0.0)
        fine = absorbed(self.units, self.classes)
        if self.credit is not None or not math.isfinite(below):  # only bytes count
            fine[:] = True
        elif self.given is not None:  # what comes next and before counts, too
            fine[:] = False
        search = Decision(self.units, self.classes, self.states, self._measures(below), fine, self.credit)
        return self._counted(search.run(words, below, min(steps, left)), words)

    def _counted(self, outcome: Outcome, words: Words) -> Outcome:
        """The outcome with the steps that it takes to prepare the ideals."""
        steps = outcome.steps + self._preparing(words)
        self.account.spent += steps
        return attrs.evolve(outcome, steps=steps)

    def _preparing(self, words: Words) -> float:
        return self.steps_of_ideal * len(words)

    @property
    def steps_of_ideal(self) -> float:
        """How many steps it takes to prepare an ideal."""
        units = self.units
        return max(PREPARING * units.size, PREPARING_USE * (len(units.source) + len(units.uses)))

    def affordable(self, steps: float) -> int:
        """How many ideals are prepared in some steps, or in a few more than that."""
        return int(OVER * steps / self.steps_of_ideal)

    @cached_property
    def states(self) -> States:
        """The numbers of devices of each class, or the first ones in order."""
        if self.given is not None:
            return self.given
        return States.of(self.classes) if self.order is None else States.along(self.classes, self.order)

    def ordered(self, bound: float) -> Search:
        """The same with an order of the devices, if that is needed to keep the number of states small."""
        if States.count(self.classes) <= FEW_STATES:
            return self
        coarse = self._coarse
        found = Beam.of(coarse.units, coarse.classes, self.credit).best_order(bound, coarse.measure)
        given = sorted(self.devices)
        devices = tuple(given) if found is None else (*found, *(device for device in given if device not in found))
        return attrs.evolve(self, order=devices)

    def fewest_devices(self, least: int, most: int) -> list[int] | None:
        """As few devices as a beam search finds, in an order in which they have room for everything."""
        coarse = self._coarse
        return Beam.of(coarse.units, coarse.classes, self.credit).fewest(least, most, coarse.measure(math.inf))

    @property
    def _coarse(self) -> Search:
        """The same with units that follow each other joined, so that few are left."""
        order = np.arange(self.units.size)
        return self.contracted(order, stops_of(order, self.prices.weight, BEAM_STOPS, 1))

    @property
    def credit(self) -> tuple[float, ...] | None:
        """Nothing, for each class, where the load is bytes."""
        return (0.0,) * len(self.classes) if self.problem.objective == "memory" else None

    def homes(self, pipeline: Pipeline) -> Ints:
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
        device_of = search.homes(pipeline)
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
