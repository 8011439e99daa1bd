"""What a search for a placement is asked for, beside the devices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import attrs
from torch.fx import GraphModule

from fxpasses.devices import Topology
from fxpasses.partitioners.by_device import place_by_device
from fxpasses.partitioners.costs.training.training_course import Training
from fxpasses.partitioners.placing.device_placements import DevicePlacement
from fxpasses.partitioners.placing.names.selectors import Selector, as_bans, as_pins
from fxpasses.partitioners.placing.objective_values import Objective
from fxpasses.partitioners.placing.replication.device_replicas import Replicate
from fxpasses.partitioners.placing.requests import Contiguity
from fxpasses.partitioners.placing.searches.time_shares import LITTLE_EFFORT
from fxpasses.partitioners.solvers.problem import as_groups

__all__ = ["SearchOptions"]


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

    @property
    def placing(self) -> dict[str, Any]:
        """What :func:`~fxpasses.partitioners.by_device.place_by_device` takes beside devices and objective."""
        return {
            field.name: getattr(self, field.name) for field in attrs.fields(SearchOptions) if field.name != "objective"
        }

    def placed_quickly(self, graph_module: GraphModule, topology: Topology) -> DevicePlacement:
        """Place a graph on other devices: without a search, and with few seconds for integer programs."""
        options = {**self.placing, "time_budget": 0.0, "effort": LITTLE_EFFORT}
        return place_by_device(graph_module, topology, objective=self.objective, **options)
