"""Which operators of a graph must share a device, or lose nothing by it.

What must: a tuple and what takes it apart; what touches a storage up to its last write; all users of state that the
model writes; what runs between switches of torch's state that parts cannot set again. What loses nothing: views that
are all that is used of a value, and together no larger, go where that value is made, and a view of a constant goes
where its one user is. And what only counts, as a batch norm does its batches, goes where its module is.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

import numpy as np
from networkx.utils import UnionFind
from numpy.typing import NDArray
from torch.fx import Node

from fxpasses.metadata import module_stack, value_of
from fxpasses.partitioners.costs.graph_figures import GraphFigures, is_compute, value_bytes
from fxpasses.partitioners.grouping.keep_together import region_groups
from fxpasses.partitioners.placing.joint_graphs import backward_by_number, backward_by_order
from fxpasses.partitioners.tensor_sizes import tensors_in

__all__ = [
    "backward_partners",
    "kept_together",
    "must_share",
    "uncuttable",
    "why_shared",
]


def kept_together(
    figures: GraphFigures,
    hard: Sequence[tuple[Node, ...]],
    alone: Set[Node] = frozenset(),
    pins: Mapping[Node, str] | None = None,
) -> list[tuple[Node, ...]]:
    """Groups of compute nodes that share a device; groups may overlap.

    Args:
        figures: The measured graph.
        hard: The groups that no placement may cut, see :func:`must_share`.
        alone: Nodes that need not be where their base or their user is: they are computed wherever they are used.
        pins: The device of each pinned node; what would lose nothing by sharing a device is not kept from its pin.
    """
    soft = [group for group in (*_views(figures), *_counters(figures, hard)) if alone.isdisjoint(group)]
    return [group for group in (*hard, *_following_pins(soft, hard, pins or {})) if len(group) > 1]


def _following_pins(
    groups: Iterable[tuple[Node, ...]], hard: Iterable[tuple[Node, ...]], pins: Mapping[Node, str]
) -> Iterator[tuple[Node, ...]]:
    """The groups that join no two nodes with different pins, all groups before taken together."""
    if len(set(pins.values())) < 2:
        yield from groups
        return
    together: UnionFind[Node] = UnionFind(pins)
    for group in hard:
        together.union(*group)
    pin_of = {together[node]: pin for node, pin in pins.items()}
    for group in groups:
        found = dict.fromkeys(pin_of[together[node]] for node in group if together[node] in pin_of)
        if len(found) < 2:
            together.union(*group)
            pin_of.update((together[group[0]], pin) for pin in found)
            yield group


def must_share(figures: GraphFigures) -> list[tuple[Node, ...]]:
    """The groups of these that no placement may cut, whatever it costs."""
    groups = (*_containers(figures), *_written(figures), *_switched(figures))
    return [group for group in groups if len(group) > 1]


def why_shared(group: Sequence[Node], first: Node, second: Node, figures: GraphFigures) -> str:
    """Why two members of a group that no placement may cut share a device, in words; the first comes earlier."""
    made = group[0]
    if isinstance(value_of(made), (tuple, list)):
        if first is made:
            return f"{second.name} takes an element of the results of {made.name}"
        return f"both take an element of the results of {made.name}"
    writer = next((node for node in reversed(group) if figures.effects.of(node).writes), None)
    if writer is not None:
        return f"both use what {writer.name} writes to"
    return "both run under one switch of torch's state"


def uncuttable(figures: GraphFigures) -> NDArray[np.bool_]:
    """For each compute node, whether a cut right before it would tear what must be one part, not just on one device."""
    change = np.zeros(len(figures.nodes) + 1, dtype=np.int64)
    for group in (*_containers(figures), *_switched(figures)):
        places = [figures.position[node] for node in group]
        change[min(places) + 1] += 1
        change[max(places) + 1] -= 1
    return np.cumsum(change)[: len(figures.nodes)] > 0


def _containers(figures: GraphFigures) -> Iterator[tuple[Node, ...]]:
    """A list or tuple never crosses: it stays with all that use it."""
    for node in figures.nodes:
        if isinstance(value_of(node), (tuple, list)):
            yield (node, *(user for user in node.users if is_compute(user)))


def _written(figures: GraphFigures) -> Iterator[tuple[Node, ...]]:
    """For each storage that is written, its users up to the last write; for state of the model, all of them."""
    effects = figures.effects
    written = {storage for storage in effects.written_storages if storage >= 0}
    if not written:
        return
    state = written.intersection(effects.real_tensors())
    users: dict[int, list[Node]] = {}
    last: dict[int, int] = {}
    for node, touched, constants in zip(figures.nodes, figures.touched, figures.constants, strict=True):
        for storage in (*touched, *filter(state.__contains__, constants)):
            if storage in written:
                users.setdefault(storage, []).append(node)
                if storage in effects.of(node).writes or storage in state:
                    last[storage] = len(users[storage])
    for storage, nodes in users.items():
        yield tuple(nodes[: last.get(storage, 0)])


def _switched(figures: GraphFigures) -> Iterator[tuple[Node, ...]]:
    """What runs between switches of torch's state; autocast and grad modes, which parts enter again, are none."""
    nodes, effects = figures.dependencies.nodes, figures.effects
    for group in region_groups(figures.dependencies):
        members = [nodes[index] for index in group.members if is_compute(nodes[index])]
        kinds = (effects.of(node).region for node in members)
        if any(kind is not None and kind.is_barrier for kind in kinds):
            yield tuple(members)


def _views(figures: GraphFigures) -> Iterator[tuple[Node, ...]]:
    """A view with its base, where only views use the base and sending it instead of them would not be cheaper."""
    views: dict[Node, list[Node]] = {}
    sizes = functools.cache(value_bytes)  # a list that all is taken from is asked for again and again
    for index, node in enumerate(figures.nodes):
        if figures.costs[index].bytes_written or not tensors_in(value_of(node)):
            continue
        if figures.constants[index]:
            if len(users := [user for user in node.users if is_compute(user)]) == 1:
                yield node, users[0]
        elif (base := _base_of(figures, node, sizes)) is not None:
            views.setdefault(base, []).append(node)
    for base, found in views.items():
        if len(found) == len(base.users) and sum(map(value_bytes, found)) <= value_bytes(base):
            yield from ((base, view) for view in found)


def _counters(figures: GraphFigures, hard: Iterable[tuple[Node, ...]]) -> Iterator[tuple[Node, Node]]:
    """What only updates state, from nothing but state, with the next operator of its module, or the last one before.

    Nothing ties the counter of a batch norm to it but that both are of one module, whose state is in one place then.
    """
    if not figures.effects.written_storages:
        return
    joined: UnionFind[Node] = UnionFind(figures.nodes)
    for node in figures.nodes:
        joined.union(node, *(user for user in node.users if is_compute(user)))
    for group in hard:
        joined.union(*group)
    tied = {joined[node] for node in figures.nodes if any(not is_compute(user) for user in node.users)}
    for given in figures.graph_module.graph.find_nodes(op="placeholder"):
        tied.update(joined[user] for user in given.users if user in figures.position)
    counting: list[Node] = []
    mates: dict[str, list[Node]] = {}
    for node in figures.nodes:
        if joined[node] not in tied:
            counting.append(node)
        elif path := _module_of(node):
            mates.setdefault(path, []).append(node)
    for node in counting:
        if own := mates.get(_module_of(node)):
            place = bisect_left(own, figures.position[node], key=figures.position.__getitem__)
            yield node, own[min(place, len(own) - 1)]


def _module_of(node: Node) -> str:
    """The path of the module that a node is of; empty where that is not known."""
    entry = next(reversed(module_stack(node).values()), "")
    return str(entry[0] if isinstance(entry, tuple) else entry)


def _base_of(figures: GraphFigures, node: Node, sizes: Callable[[Node], int]) -> Node | None:
    """The value that a node is a view of, if it is no smaller and made after all else that the view needs."""
    effects, position = figures.effects, figures.position
    base, *others = node.all_input_nodes or [node]
    shares = base in position and base is not node and effects.storages(node) == effects.storages(base) != ()
    made_before = shares and all(position.get(other, -1) < position[base] for other in others)
    return base if made_before and value_bytes(node) <= sizes(base) else None


def backward_partners(figures: GraphFigures) -> dict[Node, Node]:
    """The forward node of each backward node of a joint graph: by metadata where it is there, else by the order."""
    if any("seq_nr" in node.meta for node in figures.nodes):
        return backward_by_number(figures.nodes)
    return backward_by_order(figures.nodes)
