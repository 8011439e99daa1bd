"""``sparse_nn``: embedding tables are spread over equal devices, and everything else is copied to each of these.

Nodes are cut into partitions that fit a device, never with embeddings and other nodes in one; then small partitions of
a kind are joined while two that are next to each other fit a device together.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Node

from fxpasses.devices import Device
from fxpasses.editing.attributes import find_attribute
from fxpasses.errors import PlacementError, also_as
from fxpasses.units import format_bytes
from fxpasses.wording import listed

from .bookkeeping import memory_of
from .mapping import map_to_devices
from .refusing import none_found, too_large, unmappable
from .workload import Filling, Group, Workload

__all__ = ["is_embedding", "partition_by_embedding"]


def is_embedding(node: Node) -> bool:
    """Whether a node looks rows up in a table: a module of an Embedding class, or an embedding operator."""
    if node.op == "call_module" and (owner := node.graph.owning_module) is not None:
        called = find_attribute(owner, str(node.target)).value
        return any("Embedding" in type(module).__name__ for module in called.modules())
    if node.op != "call_function":
        return False
    target = node.target
    name = target._schema.name if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", "")
    return "embedding" in name.lower()


def partition_by_embedding(workload: Workload, devices: Sequence[Device]) -> list[Group]:
    """Spread embeddings, copy the rest.

    Raises:
        PlacementError: The devices differ in memory, or no way was found; the message says what does not fit.
        InfeasibleError: An operator fits no device.
    """
    room = memory_of(devices[0])
    if unequal := [device for device in devices if memory_of(device) != room]:
        raise also_as(PlacementError, RuntimeError())(
            f"All devices must have same memory size! {devices[0].name!r} has {format_bytes(int(room))}, "
            f"{unequal[0].name!r} {format_bytes(int(memory_of(unequal[0])))}; size_based takes unequal devices"
        )
    groups, tables = _cut(workload, devices, room)
    groups, rest = _joined(workload, groups, [group for group in groups if group not in tables], room)
    groups, joined = _joined(workload, groups, [group for group in groups if group in tables], room)
    _spread(joined, rest, devices, room)
    if not joined and not map_to_devices(workload, groups, devices):
        raise unmappable(groups, devices)
    return groups


def _cut(workload: Workload, devices: Sequence[Device], room: float) -> tuple[list[Group], set[Group]]:
    """Runs of the graph order that fit a device, and those of them that hold tables."""
    runs: list[tuple[bool, list[int]]] = []
    filling = Filling(workload)
    for atom, members in enumerate(workload.atoms):
        kind = any(map(is_embedding, members))
        if not runs or runs[-1][0] != kind or filling.used + filling.extra(atom) > room:
            filling = Filling(workload)
            if (alone := filling.extra(atom)) > room:
                raise too_large(workload, atom, alone, devices)
            runs.append((kind, []))
        filling.add(atom)
        runs[-1][1].append(atom)
    groups = [workload.group(run) for _, run in runs]
    return groups, {group for group, (kind, _) in zip(groups, runs, strict=True) if kind}


def _joined(workload: Workload, groups: list[Group], kind: list[Group], room: float) -> tuple[list[Group], list[Group]]:
    """Join the smallest group of a kind with the largest that it fits a device with, until it fits none.

    Only groups whose levels differ by one at most are joined: a path through others would make the difference larger,
    so no cycle comes of it.
    """
    while len(kind) > 1:
        smallest, *others = sorted(kind, key=lambda group: group.used)
        level = dict(zip(groups, workload.levels(groups), strict=True))
        for other in reversed(others):
            if abs(level[smallest] - level[other]) > 1:
                continue
            joined = workload.group((*other.atoms, *smallest.atoms))
            if joined.used <= room:
                break
        else:
            break
        groups = [group for group in groups if group is not smallest and group is not other] + [joined]
        kind = [group for group in kind if group is not smallest and group is not other] + [joined]
    return groups, kind


def _spread(tables: Sequence[Group], rest: Sequence[Group], devices: Sequence[Device], room: float) -> None:
    """One device for each group of tables; all other groups on each of these.

    Raises:
        PlacementError: There are too few devices, or the rest does not fit beside the tables.
    """
    if len(tables) > len(devices):
        raise none_found(f"Need {len(tables)} devices, but only {len(devices)} provided")
    beside = sum(group.used for group in rest)
    for group, device in zip(tables, devices, strict=False):
        if beside + group.used > room:
            raise none_found(
                f"the embeddings {listed((node.name for node in group.nodes() if is_embedding(node)), 5)} "
                f"({format_bytes(group.used)}) and the non embedding partitions ({format_bytes(beside)}), which go to "
                f"each device, can not fit into one device of {format_bytes(int(room))}; "
                f"{format_bytes(int(beside + group.used - room))} are missing"
            )
        group.device_ids = [device.logical_id]
    for group in rest:
        group.device_ids = [device.logical_id for device in devices[: len(tables)]]
