"""How a placement is changed: a unit goes elsewhere, two change places, a few that are joined leap.

Where a pipeline is wanted, what a unit cannot do without goes with it, so that each device keeps one part; and two
devices change places.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import attrs
import networkx as nx
import numpy as np
from torch.fx import Node

from fxpasses.partitioners.placing.device_runs import Runs
from fxpasses.partitioners.placing.searches.movable_units import MovableUnit

__all__ = ["AnyChanges", "Change", "PipelineChanges", "UnitChanges"]

LEAP = 3
"""The most units that go elsewhere together, and the most changes of a pipeline in a leap."""
Home = Mapping[Node, str]
"""The device of each node."""
Change = tuple[int, dict[Node, str]]
"""The number of a unit from which the next changes are looked for, and where each node is then."""


class UnitChanges(Protocol):
    """The changes of placements of a kind."""

    units: tuple[MovableUnit, ...]

    def of(self, home: Home, first: int, pairs: bool) -> Iterator[Change]:
        """Small changes, those of one unit in turn from ``first`` on, and those of two for ``pairs``."""

    def leaps(self, home: Home) -> Iterator[Change]:
        """Large changes that are tried first where no small one helps any more."""

    def leap(self, home: Home, draw: np.random.Generator) -> Change:
        """A larger change that is drawn."""

    def apart(self, runs: Runs) -> int:
        """How many parts there are too many."""


@attrs.frozen(eq=False)
class AnyChanges(UnitChanges):
    """Changes of free placements.

    Args:
        names: The devices.
        units: What moves together, and where to it may.
        joined: The units that use values of each or make those it uses.
    """

    names: tuple[str, ...]
    units: tuple[MovableUnit, ...]
    joined: tuple[tuple[int, ...], ...]

    @classmethod
    def among(cls, names: tuple[str, ...], units: tuple[MovableUnit, ...]) -> AnyChanges:
        """Look up which units are joined."""
        return cls(names, units, _reached(units, lambda node: (*node.all_input_nodes, *node.users)))

    def of(self, home: Home, first: int, pairs: bool) -> Iterator[Change]:
        """One unit on another device, first where a neighbour is; then two in each other's place."""
        turn = [(first + step) % len(self.units) for step in range(len(self.units))]
        at = [home[nodes[0]] for nodes, _ in self.units]
        for beside in (True, False):
            for number in turn:
                nodes, may = self.units[number]
                near = {at[other] for other in self.joined[number]}
                for name in may:
                    if name != at[number] and (name in near) == beside:
                        yield number, {**home, **dict.fromkeys(nodes, name)}
        for number, partner in itertools.combinations(turn, 2) if pairs else ():
            (one, may_one), (other, may_other) = self.units[number], self.units[partner]
            here, there = at[number], at[partner]
            if here != there and there in may_one and here in may_other:
                yield number, {**home, **dict.fromkeys(one, there), **dict.fromkeys(other, here)}

    def leaps(self, home: Home) -> Iterator[Change]:
        """None but those that are drawn."""
        yield from ()

    def leap(self, home: Home, draw: np.random.Generator) -> Change:
        """A few units that are joined on a device where the first of them is not."""
        first, size = int(draw.integers(len(self.units))), int(draw.integers(1, LEAP + 1))
        nodes, may = self.units[first]
        others = [name for name in may if name != home[nodes[0]]]
        if not others:
            return first, dict(home)
        target, leaping, near = others[int(draw.integers(len(others)))], [first], self.joined[first]
        while near and len(leaping) < size:
            leaping.append(near[int(draw.integers(len(near)))])
            beside = dict.fromkeys(other for number in leaping for other in self.joined[number])
            near = tuple(other for other in beside if other not in leaping)
        moved = (nodes for nodes, may in map(self.units.__getitem__, leaping) if target in may)
        return first, {**home, **dict.fromkeys(itertools.chain.from_iterable(moved), target)}

    def apart(self, runs: Runs) -> int:
        """A device may have as many parts as it takes."""
        return 0


@attrs.frozen(eq=False)
class PipelineChanges(UnitChanges):
    """Changes of pipelines.

    Args:
        names: The devices.
        units: What moves together, and where to it may.
        before: The units whose values each uses.
        after: The units that use values of each.
    """

    names: tuple[str, ...]
    units: tuple[MovableUnit, ...]
    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]

    @classmethod
    def among(cls, names: tuple[str, ...], units: tuple[MovableUnit, ...]) -> PipelineChanges:
        """Look up which units use which."""
        before = _reached(units, lambda node: node.all_input_nodes)
        return cls(names, units, before, _reached(units, lambda node: node.users))

    def of(self, home: Home, first: int, pairs: bool) -> Iterator[Change]:
        """Two devices in each other's place, for ``pairs``; then one unit elsewhere, with what has to go with it."""
        if pairs:
            yield from self.leaps(home)
        turn = [(first + step) % len(self.units) for step in range(len(self.units))]
        for number in turn:
            for moved in self._moved(home, number):
                yield number, moved

    def leaps(self, home: Home) -> Iterator[Change]:
        """All units of two devices in each other's place."""
        at = self._at(home)
        for one, other in itertools.combinations(self.names, 2):
            takes = {one: other, other: one}
            if any(name in takes for name in at):
                moved = self._on(home, {number: takes[name] for number, name in enumerate(at) if name in takes})
                yield from ((0, each) for each in moved)

    def leap(self, home: Home, draw: np.random.Generator) -> Change:
        """A few units elsewhere, each with what has to go with it."""
        first = int(draw.integers(len(self.units)))
        number, there = first, dict(home)
        for _change in range(int(draw.integers(1, LEAP + 1))):
            ways = list(self._moved(there, number))
            there = ways[int(draw.integers(len(ways)))] if ways else there
            number = int(draw.integers(len(self.units)))
        return first, there

    def apart(self, runs: Runs) -> int:
        """Each device has one part."""
        return len(runs.device_of) - len(set(runs.device_of.values()))

    def _at(self, home: Home) -> list[str]:
        return [home[nodes[0]] for nodes, _ in self.units]

    def _moved(self, home: Home, number: int) -> Iterator[dict[Node, str]]:
        """A unit on each other device, with those on the way there that need it, or that it needs.

        On one that has nothing yet it comes before what it leaves, or after it.
        """
        at = self._at(home)
        place = {name: float(turn) for turn, name in enumerate(self._order(at))}
        own = place[at[number]]
        for name in self.names:
            if name != at[number]:
                for there in (place[name],) if name in place else (own - 0.5, own + 0.5):
                    onwards = self.after if there > own else self.before
                    low, high = sorted((own, there))
                    between = {each for each, turn in place.items() if low <= turn <= high and each != name}
                    going = self._going_along(number, onwards, between, at)
                    yield from self._on(home, dict.fromkeys(going, name))

    def _going_along(
        self, number: int, onwards: Sequence[Sequence[int]], between: set[str], at: Sequence[str]
    ) -> list[int]:
        """A unit and those that are reached from it on some devices."""
        going = [number]
        known = {number}
        for unit in going:
            more = [other for other in onwards[unit] if at[other] in between and other not in known]
            going += more
            known.update(more)
        return going

    def _order(self, at: Sequence[str]) -> list[str]:
        """The devices in the order in which they run; in that of their first units where they wait for each other."""
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(at)
        graph.add_edges_from(
            (at[unit], at[other]) for unit, own in enumerate(self.after) for other in own if at[unit] != at[other]
        )
        return list(nx.topological_sort(graph)) if nx.is_directed_acyclic_graph(graph) else list(graph)

    def _on(self, home: Home, takes: Mapping[int, str]) -> Iterator[dict[Node, str]]:
        """Some units on other devices, if these can run them."""
        if all(name in self.units[number][1] for number, name in takes.items()):
            yield {**home, **{node: name for number, name in takes.items() for node in self.units[number][0]}}


def _reached(units: Sequence[MovableUnit], nodes_of: Callable[[Node], Iterable[Node]]) -> tuple[tuple[int, ...], ...]:
    """For each unit the others that have some of the nodes that ``nodes_of`` tells of its own."""
    number = {node: at for at, (nodes, _) in enumerate(units) for node in nodes}
    found = []
    for at, (nodes, _) in enumerate(units):
        others = dict.fromkeys(number[other] for node in nodes for other in nodes_of(node) if other in number)
        found.append(tuple(other for other in others if other != at))
    return tuple(found)
