"""On which device each module of a plan is, for a device map; and whether such a map says what the plan says."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from torch.fx import GraphModule, Node

from fxpasses.devices import Device, Topology
from fxpasses.errors import PlanError
from fxpasses.partitioners.by_device_map import devices_by_map
from fxpasses.partitioners.placing.names.device_maps import covering
from fxpasses.plan.keys import names_region, path_in, stable_keys
from fxpasses.plan.parts import PartPlan

__all__ = ["devices_by_module", "refuse_elsewhere"]


def devices_by_module(parts: Sequence[PartPlan]) -> Iterator[tuple[str, str]]:
    """Module path and device of each entry; a module with exceptions counts once more than they are.

    A region is where the module is that fills it, and needs no entry (:mod:`~.placing.module_origins`).
    """
    whole = {path_in(op): part.device for part in parts for op in part.ops if op.endswith("/*")}
    for part in parts:
        for entry in part.ops:
            if names_region(entry):
                continue
            path = path_in(entry)
            around = covering(path, whole)
            if not entry.endswith("/*") and around is not None and whole[around] != part.device:
                yield from [(path, whole[around])] * 2
            yield path, part.device


def refuse_elsewhere(
    graph_module: GraphModule,
    device_map: Mapping[str, str],
    partition_of: Mapping[Node, Hashable],
    device_of: Mapping[str, Device],
    topology: Topology,
) -> None:
    """Follow a map in a graph, and refuse it where it puts an operator elsewhere than a plan does.

    Raises:
        PlanError: it does; says which is the first one.
    """
    mapped = devices_by_map(graph_module, device_map, topology)
    for node, part in partition_of.items():
        planned = device_of[str(part)]
        if node in mapped and mapped[node].name != planned.name:
            key = stable_keys(graph_module.graph)[node]
            raise PlanError(
                f"No device map says what this plan says: {key} runs on {planned.name}, and a map puts it on "
                f"{mapped[node].name}; device_map(strict=False) gives the nearest map, and the plan itself "
                "(lower_with_plan) stays exact."
            )
