"""What no mode takes apart.

An atom is a node with the elements of the tuple it makes, a region with its markers, or what writes in place with
those whose value others still read. In most graphs each node is one.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node

from fxpasses.dependencies import Dependencies
from fxpasses.partitioners.assignment import group_order
from fxpasses.partitioners.grouping.keep_together import KeptGroup, element_homes, form_units, region_groups

__all__ = ["find_atoms"]


def find_atoms(dependencies: Dependencies, nodes: Sequence[Node]) -> list[tuple[Node, ...]]:
    """Contract what belongs together; groups that wait for each other become one."""
    computes = set(nodes)
    groups = [*region_groups(dependencies), *_containers(dependencies, computes), *_writers(dependencies, computes)]
    units = form_units(dependencies, [True] * len(dependencies), groups, _elements(dependencies))
    members: dict[int, list[Node]] = {}
    for node in nodes:
        members.setdefault(units.unit_of[dependencies.position[node]], []).append(node)
    if len(members) == len(nodes):
        return [(node,) for node in nodes]
    number = {unit: place for place, unit in enumerate(members)}
    labels = [number.get(unit, -1) for unit in units.unit_of]
    found = list(members.values())
    return [tuple(found[place]) for place in group_order(dependencies, labels, len(found)) or range(len(found))]


def _elements(dependencies: Dependencies) -> dict[int, int]:
    """The elements of tuples, by position, with what makes the tuple; a piece of a tensor is a node like others."""
    homes, nodes = element_homes(dependencies), dependencies.nodes
    return {number: home for number, home in homes.items() if not _is_tensor(nodes[number].all_input_nodes[0])}


def _is_tensor(node: Node) -> bool:
    """Whether a node is known to give one tensor, or was recorded by torch's own ``ShapeProp`` to do so."""
    value = next((node.meta[name] for name in ("val", "example_value", "tensor_meta") if name in node.meta), None)
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _containers(dependencies: Dependencies, computes: set[Node]) -> list[KeptGroup]:
    """A tuple or list with all that use it as a whole."""
    groups = []
    for node in dependencies.nodes:
        if node in computes and type(node.meta.get("val", node.meta.get("example_value"))) in (tuple, list):
            users = [dependencies.position[user] for user in node.users if user in computes]
            groups.append(KeptGroup(f"tuple {node.name}", (dependencies.position[node], *users)))
    return [group for group in groups if len(group.members) > 1]


def _writers(dependencies: Dependencies, computes: set[Node]) -> list[KeptGroup]:
    """What touches a storage up to its last write, where an older name of it is read later; all that touches state."""
    effects = dependencies.effects
    if effects is None or not (written := [storage for storage in effects.written_storages if storage >= 0]):
        return []
    touching: dict[int, list[int]] = {storage: [] for storage in sorted(written)}
    last = dict.fromkeys(touching, 0)
    for number, node in enumerate(dependencies.nodes):
        if node not in computes:
            continue
        for storage in dict.fromkeys((*effects.storages(node), *effects.of(node).reads, *effects.of(node).writes)):
            if storage in touching:
                touching[storage].append(number)
        for storage in effects.of(node).writes:
            if storage in last:
                last[storage] = number
    state = {
        storage
        for node in dependencies.nodes
        if node.op in ("placeholder", "get_attr")
        for storage in effects.storages(node)
    }
    groups = []
    for storage, users in touching.items():
        early = [number for number in users if number < last[storage]]
        if storage in state or storage in effects.real_tensors():
            early = [number for number in users if number != last[storage]]
        elif not any(max(dependencies.successor_lists[number], default=0) > last[storage] for number in early):
            continue
        if early:
            groups.append(KeptGroup(f"storage {storage}", (*early, last[storage])))
    return groups
