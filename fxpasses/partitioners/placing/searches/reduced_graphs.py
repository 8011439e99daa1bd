"""A measured graph as the problem of its pipelines that the solvers see, and what memory they do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import attrs
import numpy as np
from torch.fx import Node

from fxpasses.devices import Topology
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.requests import Request
from fxpasses.partitioners.placing.searches.run_bytes import lifetimes_of
from fxpasses.partitioners.solvers.contiguous.ideals.classes import device_classes
from fxpasses.partitioners.solvers.contiguous.ideals.device_class import DeviceClass
from fxpasses.partitioners.solvers.contiguous.ideals.lifetimes import Lifetimes
from fxpasses.partitioners.solvers.contiguous.linked.swapping import links_differ
from fxpasses.partitioners.solvers.contiguous.long_graphs import is_long
from fxpasses.partitioners.solvers.problem import PlacementProblem
from fxpasses.partitioners.solvers.reduced.reducing import Units, reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import CostTables, tables_of

__all__ = ["ReducedGraph", "tells_lives"]

MUCH = 0.1
"""The share of a device's memory that is much."""


@attrs.frozen(eq=False, slots=False)
class ReducedGraph:
    """A graph whose pipelines are asked for.

    Args:
        figures: The measured graph.
        request: What the caller asks for.
        problem: The problem that counts what operators need in any case.
        tables: What its nodes cost.
        units: The problem, reduced.
    """

    figures: GraphFigures
    request: Request
    problem: PlacementProblem
    tables: CostTables
    units: Units

    @classmethod
    def of(cls, figures: GraphFigures, request: Request) -> ReducedGraph:
        """Pose the problem, and reduce it."""
        problem = request.problem(figures, "pipeline", figures.needs)
        tables = tables_of(problem)
        return cls(figures, request, problem, tables, reduce_problem(problem, tables))

    @cached_property
    def nodes(self) -> tuple[tuple[Node, ...], ...]:
        """The compute nodes of each unit."""
        places = self.tables.nodes
        return tuple(tuple(node for at in own if isinstance(node := places[at], Node)) for own in self.units.members)

    @cached_property
    def unit_of(self) -> dict[Node, int]:
        """The unit of each compute node."""
        return {node: unit for unit, own in enumerate(self.nodes) for node in own}

    @cached_property
    def classes(self) -> tuple[DeviceClass, ...]:
        """The devices, those of a class on one torch device."""
        alike = device_classes(self.tables, self.units)
        return tuple(_apart(self.request.topology, alike, links_differ(self.tables)))

    @cached_property
    def knows_lives(self) -> bool:
        """Whether it is of use what is on a device while it runs: it is known, and some device has not room for all.

        Not in long graphs, of which solvers ask less.
        """
        if not tells_lives(self.request) or is_long(self.units):
            return False
        room = self.tables.memory.min(initial=np.inf) - self.tables.kept.sum() - self.tables.shared.sum()
        return bool(sum(self.figures.sizes.values()) > room and self.lives.most > room)

    @property
    def needs_lives(self) -> bool:
        """Whether answers of solvers that do not know it will mostly pass a budget: it is much for some device."""
        return self.knows_lives and bool(self.lives.most > MUCH * self.tables.memory.min())

    @cached_property
    def lives(self) -> Lifetimes:
        """What is on a device while it runs; in a training step that is more."""
        return lifetimes_of(self.figures, self.unit_of)


def tells_lives(request: Request) -> bool:
    """Whether it may be of use what is on a device while it runs: that is known of a run, and some budget is given."""
    has_budget = any(device.memory is not None for device in request.topology.devices)
    return has_budget and request.training is None and request.objective == "throughput"


def _apart(topology: Topology, classes: Sequence[DeviceClass], is_each: bool) -> Iterator[DeviceClass]:
    """Each device as a class, or those together that are on one torch device: inputs are there all the time."""
    for group in classes:
        alike: dict[object, list[int]] = {}
        for device in group.devices:
            alike.setdefault(device if is_each else topology.devices[device].torch_device, []).append(device)
        yield from (attrs.evolve(group, devices=tuple(own)) for own in alike.values())
