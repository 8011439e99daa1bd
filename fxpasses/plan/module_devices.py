"""On which device each module of a plan is, for a device map; and whether such a map says what the plan says."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from torch.fx import GraphModule, Node

from fxpasses.devices import Topology
from fxpasses.errors import PlanError
from fxpasses.partitioners.by_device_map import devices_by_map
from fxpasses.partitioners.placing.names.device_maps import covering
from fxpasses.plan.keys import names_region, path_in, stable_keys
from fxpasses.plan.parts import PartPlan

__all__ = ["devices_by_module", "refuse_elsewhere"]


def devices_by_module(parts: Sequence[PartPlan]) -> Iterator[tuple[str, str]]:
    """Module path and device of each entry; a module with exceptions counts once more than they are.

    A region is where the module is that fills it, and needs no entry (:mod:`~.placing.names.module_origins`).
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
    parts: Sequence[PartPlan],
    topology: Topology,
) -> None:
    """Follow a map in a graph, and refuse it where it does not say what the parts of a plan say.

    Raises:
        PlanError: it puts an operator elsewhere, or the plan computes one again; says which is the first one.
    """
    for part in parts:
        if part.again:
            raise _unsaid(f"{part.device} computes {part.again[0]} again, and a map has each operator once")
    planned, mapped = {part.name: part.device for part in parts}, devices_by_map(graph_module, device_map, topology)
    for node, name in partition_of.items():
        if node in mapped and mapped[node].name != planned[str(name)]:
            key = stable_keys(graph_module.graph)[node]
            raise _unsaid(f"{key} runs on {planned[str(name)]}, and a map puts it on {mapped[node].name}")


def _unsaid(what: str) -> PlanError:
    return PlanError(
        f"No device map says what this plan says: {what}; device_map(strict=False) gives the nearest map, and the plan "
        "itself (lower_with_plan) stays exact."
    )
