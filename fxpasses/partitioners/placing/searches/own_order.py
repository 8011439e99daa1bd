"""Cut the graph's own order into one run a device, with the bytes that each run needs as they are predicted.

The solvers see bytes of operators, and what is alive beside one depends on what runs with it. Along one order that can
be known for all runs, so whether some devices hold the model, and which ones take what, is a dynamic program: the best
value with which a set of devices runs the first operators (Narayanan et al., "PipeDream", SOSP 2019, section 3.1, with
sets of devices instead of their number).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import attrs
import numpy as np
from numpy.typing import NDArray
from torch.fx import Node

from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.searches.span_bytes import span_bytes
from fxpasses.partitioners.placing.searches.walks import smallest_walk
from fxpasses.partitioners.solvers.contiguous.ideals.classes import device_classes
from fxpasses.partitioners.solvers.contiguous.ideals.device_class import DeviceClass
from fxpasses.partitioners.solvers.contiguous.ideals.orders import linear_orders
from fxpasses.partitioners.solvers.contiguous.ideals.states import States
from fxpasses.partitioners.solvers.contiguous.tables.beams import Beam
from fxpasses.partitioners.solvers.contiguous.tables.dynamic_program import Measure
from fxpasses.partitioners.solvers.problem import PlacementProblem
from fxpasses.partitioners.solvers.reduced.reducing import Units, contract, reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import CostTables, tables_of

__all__ = ["Cut", "OwnOrder"]

Floats = NDArray[np.float64]

STOPS = 700
"""Places to cut at, at most."""
CELLS = 4e8
"""Pairs of places times steps from one set of devices to the next, up to which all sets are looked at."""


@attrs.frozen(eq=False)
class Cut:
    """Which device runs each compute node, and what was made small: seconds, or bytes that are missing."""

    home: Mapping[Node, str]
    value: float
    first_over: Node | None = None
    over_on: str = ""


@attrs.frozen(eq=False)
class OwnOrder:
    """All runs along the order of a graph.

    Args:
        names: The devices.
        runs: The compute nodes between each two neighbouring places to cut at.
        classes: The devices by what they can run and how fast.
        need: Bytes of each run from one place to another, ``(f, f)``.
        load: For each class, seconds of each run, ``inf`` where it cannot run it, ``(f, f)``.
        memory: The budget of each device, ``(k,)``.
        in_turn: Whether loads add up, because the devices work one after the other.
    """

    names: tuple[str, ...]
    runs: tuple[tuple[Node, ...], ...]
    classes: tuple[DeviceClass, ...]
    need: Floats
    load: tuple[Floats, ...]
    memory: Floats
    in_turn: bool

    @classmethod
    def several(cls, figures: GraphFigures, problem: PlacementProblem) -> Iterator[OwnOrder]:
        """Measure all runs of a problem that was posed for a graph: along its own order, then depth first.

        A part runs its operators in the order of the graph, so along others bytes are only about right.
        Time for each O(places² × devices + (nodes + uses) × places), of 700 places at most.
        """
        similar = attrs.evolve(problem, contiguity="pipeline")
        tables = tables_of(similar)
        units = reduce_problem(similar, tables)
        stops = np.unique(np.linspace(0, units.size, STOPS + 1).astype(np.int64))
        for order in _orders(units, problem.seed):
            yield cls._along(figures, similar, tables, contract(units, np.array(order, dtype=np.int64), stops))

    @classmethod
    def _along(cls, figures: GraphFigures, problem: PlacementProblem, tables: CostTables, units: Units) -> OwnOrder:
        place, nodes = figures.position, tables.nodes
        members = (
            [node for index in own if isinstance(node := nodes[index], Node)] for own in units.members
        )  # without markers of order edges
        runs = tuple(tuple(sorted(own, key=place.__getitem__)) for own in members)
        classes = device_classes(tables, units)
        roomy = tuple(attrs.evolve(group, memory=math.inf) for group in classes)
        order = np.array([figures.position[node] for run in runs for node in run], dtype=np.int64)
        need = span_bytes(figures, order, np.cumsum([0, *map(len, runs)])).astype(np.float64)
        load = Beam.of(units, roomy, None).loads
        names = tuple(device.name for device in problem.devices)
        if problem.objective == "memory":
            load = tuple(np.where(np.isfinite(each), need, np.inf) for each in load)
        return cls(names, runs, classes, need, load, tables.memory, problem.objective == "latency")

    def best(self, margin: Mapping[str, int]) -> Cut | None:
        """The cut of the smallest value that keeps the budgets, less a margin for each device."""
        room = self.memory - np.array([margin.get(name, 0) for name in self.names])
        own = [np.array([room[device] for device in group.devices]).min() for group in self.classes]
        loads = [np.where(self.need <= limit, load, np.inf) for load, limit in zip(self.load, own, strict=True)]
        found = self._smallest(loads)
        return None if found is None else self._cut(*found)

    def nearest(self) -> Cut | None:
        """The cut of which the fullest device lacks the fewest bytes; its value says how many."""
        missing = [
            np.where(np.isfinite(load), np.maximum(self.need - group.memory, 0.0), np.inf)
            for load, group in zip(self.load, self.classes, strict=True)
        ]
        found = attrs.evolve(self, in_turn=False)._smallest(missing)
        return None if found is None else self._told(*found)

    def roomiest(self) -> Cut | None:
        """The cut that leaves most room on its fullest device, or lacks least; for what needs more than is counted."""
        used = [
            np.where(np.isfinite(load), self.need + (self.memory.max() - group.memory), np.inf)
            for load, group in zip(self.load, self.classes, strict=True)
        ]
        found = attrs.evolve(self, in_turn=False)._smallest(used)
        return None if found is None else self._cut(*found)

    def _smallest(self, loads: list[Floats]) -> tuple[list[tuple[int, int, int]], float] | None:
        """Triples (device, from place, to place) of the smallest value, and that value; None: there is none."""
        states = (
            States.of(self.classes) if States.count(self.classes) * len(self.classes) * loads[0].size < CELLS else None
        )
        if states is None:
            beam = Beam(tuple(loads), self.classes)
            order = beam.best_order(self._bound(loads), self._measure)
            if order is None:
                return None
            rest = [device for device in range(len(self.names)) if device not in order]
            states = States.along(self.classes, [*order, *rest])
        return smallest_walk(states, loads, in_turn=self.in_turn)

    def _bound(self, loads: list[Floats]) -> float:
        finite = [float(load[np.isfinite(load) & (load > 0)].min(initial=math.inf)) for load in loads]
        return min(finite) if math.isfinite(min(finite)) else 1.0

    def _measure(self, _below: float) -> Measure:
        """Bytes tell how far a set of devices should get."""
        memory = np.array([group.memory for group in self.classes])
        return Measure(np.diff(self.need[0]), memory)

    def _cut(self, path: list[tuple[int, int, int]], value: float) -> Cut:
        home = {
            node: self.names[device] for device, first, last in path for run in self.runs[first:last] for node in run
        }
        return Cut(home, value)

    def _told(self, path: list[tuple[int, int, int]], value: float) -> Cut:
        """The same with the first operator that does not fit on the device that lacks most."""
        over = [(self.need[first, last] - self.memory[device], device, first, last) for device, first, last in path]
        _most, device, first, last = max(over)
        stop = int(np.argmax(self.need[first, first + 1 : last + 1] > self.memory[device])) + first
        nodes = [node for run in self.runs[stop:last] for node in run]
        return attrs.evolve(self._cut(path, value), first_over=nodes[0] if nodes else None, over_on=self.names[device])


def _orders(units: Units, seed: int) -> list[list[int]]:
    """The given order, and depth first: few values are open in both."""
    return linear_orders(units, 2, seed)
