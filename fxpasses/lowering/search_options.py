"""What a search for a placement is asked for, beside the devices."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import Any

import attrs
from torch.fx import GraphModule, Node

from fxpasses.devices import Topology
from fxpasses.errors import PlacementError
from fxpasses.partitioners.by_device import place_measured
from fxpasses.partitioners.costs.memory_facts import MemoryFacts
from fxpasses.partitioners.costs.training.training_course import Training
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.partitioners.placing.device_placements import DevicePlacement
from fxpasses.partitioners.placing.measured_graphs import MeasuredGraph
from fxpasses.partitioners.placing.names.selectors import Selector, as_bans, as_pins
from fxpasses.partitioners.placing.objective_values import Objective
from fxpasses.partitioners.placing.requests import Contiguity, Replicate, Request
from fxpasses.partitioners.placing.searches.time_shares import LITTLE_EFFORT
from fxpasses.partitioners.solvers.problem import as_groups
from fxpasses.plan import stable_keys

__all__ = ["SearchOptions"]

_BY_SELECTOR = ("pinned", "forbidden")
"""The options that are tables by operators and modules."""


@attrs.frozen(eq=False)
class SearchOptions:
    """What a search is asked for, beside devices; the fields are those of :func:`fxpasses.place`."""

    objective: Objective = "latency"
    contiguity: Contiguity | None = None
    pinned: Mapping[Selector, str] | None = attrs.field(default=None, converter=as_pins)
    forbidden: Mapping[Selector, Collection[str]] | None = attrs.field(default=None, converter=as_bans)
    colocate: Iterable[Iterable[Selector]] = attrs.field(default=(), converter=as_groups)
    time_budget: float = 0.5
    seed: int = 0
    replicate: Replicate = "cheaper"
    training: Training | None = None

    def placing(self, graph_module: GraphModule) -> dict[str, Any]:
        """What a request for it says beside devices and objective."""
        given = {field.name: getattr(self, field.name) for field in attrs.fields(SearchOptions)}
        del given["objective"], given["training"]
        meant = _Meant(graph_module)
        named = {option: {meant[each]: value for each, value in given[option].items()} for option in _BY_SELECTOR}
        return {**given, **named, "colocate": [[meant[each] for each in group] for group in self.colocate]}

    def placed_quickly(self, memory: MemoryFacts, topology: Topology, step: TrainingStep | None) -> DevicePlacement:
        """Place a measured graph on other devices: without a search, and with few seconds for integer programs."""
        options = {**self.placing(memory.graph_module), "time_budget": 0.0, "effort": LITTLE_EFFORT}
        measured = MeasuredGraph.of(memory.graph_module, topology.devices, step, memory=memory)
        return place_measured(measured, Request(topology, self.objective, **options))


@attrs.frozen(eq=False, slots=False)
class _Meant:
    """What a selector means that is an entry of a plan: the operator of a key, the module before ``/*``.

    All others mean what they say.
    """

    graph_module: GraphModule

    def __getitem__(self, selector: Selector) -> Selector:
        """The node or the module.

        Raises:
            PlacementError: It reads like the key of an operator, and is none; says the nearest ones.
        """
        if not isinstance(selector, str) or "/" not in selector:
            return selector
        if "#" not in selector:
            return selector.removesuffix("/*")
        if selector not in self._by_key:
            near = difflib.get_close_matches(selector, self._by_key, n=3)
            hint = f"the nearest are {', '.join(near)}" if near else "the file of a plan lists them"
            raise PlacementError(f"No operator has the key {selector!r}; {hint}.")
        return self._by_key[selector]

    @cached_property
    def _by_key(self) -> dict[str, Node]:
        return {key: node for node, key in stable_keys(self.graph_module).items()}
