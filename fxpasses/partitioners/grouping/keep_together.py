"""Nodes that must not be cut apart, as units that a partitioner takes or leaves whole.

Units come from the caller (groups of nodes, matches of patterns) and from the graph: the elements of a tuple with what
makes it, a region with its markers, a quantize with its dequantize, a value that is no tensor with all that use it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence

import attrs
import torch
from torch.fx import Node

from fxpasses.dependencies import Dependencies
from fxpasses.errors import PartitionError
from fxpasses.guards import is_guard
from fxpasses.metadata import value_of
from fxpasses.partitioners.grouping.levels import number_by_first, strong_units
from fxpasses.partitioners.support import CALLS

__all__ = [
    "KeptGroup",
    "Units",
    "element_homes",
    "form_units",
    "given_groups",
    "non_tensor_groups",
    "quantization_groups",
    "region_groups",
    "runs_anywhere",
    "tuple_followers",
]


@attrs.frozen
class KeptGroup:
    """Node numbers that go into one part together, or stay outside together.

    Args:
        label: How messages call the group.
        members: Numbers of its nodes.
        fragile: Of these only, the nodes that must stay outside when the group cannot be kept; None means all.
    """

    label: str
    members: tuple[int, ...]
    fragile: tuple[int, ...] | None = None


@attrs.frozen
class Units:
    """The graph seen as units.

    Args:
        unit_of: The unit of each node; units are numbered in the order of their first nodes.
        supported: One flag per node; the same for all nodes of a unit.
        reasons: Why nodes became unsupported here.
    """

    unit_of: list[int]
    supported: list[bool]
    reasons: dict[int, str]

    @property
    def is_trivial(self) -> bool:
        """Whether every node is a unit of its own."""
        return not self.unit_of or max(self.unit_of) == len(self.unit_of) - 1


def form_units(
    dependencies: Dependencies,
    supported: Sequence[bool],
    groups: Sequence[KeptGroup] = (),
    followers: Mapping[int, int] | None = None,
    opaque: Sequence[Sequence[int]] = (),
) -> Units:
    """Contract groups to units that can be placed without a cycle.

    A group with an unsupported member, or around one (a path leaves the group, passes an unsupported node and comes
    back), cannot be in a part: its nodes become unsupported. Supported nodes between the members join the unit.

    Args:
        dependencies: Data and order edges.
        supported: One flag per node.
        groups: What to keep together.
        followers: For a node the one whose part it shares whatever its own support says (an element of a tuple).
        opaque: Parts that were found before; each is one unit, and none of its nodes is supported.

    Complexity:
        O(V + E).
    """
    flags = list(supported)
    reasons: dict[int, str] = {}
    leader = list(range(len(dependencies)))
    for node, producer in (followers or {}).items():
        leader[node] = leader[producer]
        flags[node] = flags[leader[producer]]
        if supported[node] and not flags[node]:
            reasons[node] = follower_reason(dependencies, producer)
    if opaque:
        leader = _joined(leader, [KeptGroup("part", tuple(part)) for part in opaque])
    if not groups and not followers and not opaque:
        return Units(leader, flags, reasons)
    kept, unit_of = list(groups), leader
    while True:
        kept = _settled(dependencies, kept, leader, flags, reasons)
        unit_of = strong_units(dependencies, _joined(leader, kept))
        blocked = _blocked_groups(dependencies, kept, unit_of, flags, reasons)
        if not blocked:
            return Units(number_by_first(unit_of), flags, reasons)
        kept = [group for group in kept if group not in blocked]


def _settled(
    dependencies: Dependencies,
    groups: Sequence[KeptGroup],
    leader: Sequence[int],
    flags: list[bool],
    reasons: dict[int, str],
) -> list[KeptGroup]:
    """The groups without unsupported members, once all that follows from leaving the others outside is done."""
    together: dict[int, list[int]] = {}
    for node, first in enumerate(leader):
        if first != node:
            together.setdefault(first, [first]).append(node)
    tuples = [KeptGroup(f"tuple {dependencies.nodes[first]}", tuple(nodes)) for first, nodes in together.items()]
    every = [*tuples, *groups]
    holding: dict[int, list[int]] = {}
    for place, group in enumerate(every):
        for node in group.members:
            holding.setdefault(node, []).append(place)
    waiting = [node for node in holding if not flags[node]]
    refused: set[int] = set()
    for outside in waiting:  # grows while it is walked
        for place in holding[outside]:
            if place in refused:
                continue
            refused.add(place)
            group = every[place]
            why = f"{group.label} is kept together, and {dependencies.nodes[outside]} is outside"
            waiting.extend(node for node in _leave_outside(group, why, flags, reasons) if node in holding)
    return [group for place, group in enumerate(every) if place >= len(tuples) and place not in refused]


def _blocked_groups(
    dependencies: Dependencies,
    kept: Sequence[KeptGroup],
    unit_of: Sequence[int],
    flags: list[bool],
    reasons: dict[int, str],
) -> list[KeptGroup]:
    """The groups whose unit holds an unsupported node; they are left outside."""
    blocker = {unit: node for node, unit in enumerate(unit_of) if not flags[node]}
    blocked = [group for group in kept if unit_of[group.members[0]] in blocker]
    through = {id(group): _way_around(dependencies, group, blocker[unit_of[group.members[0]]]) for group in blocked}
    for group in blocked:
        why = f"{group.label} is kept together and would close a cycle: {through[id(group)]}"
        _leave_outside(group, why, flags, reasons)
    return blocked


def _way_around(dependencies: Dependencies, group: KeptGroup, blocker: int) -> str:
    path = dependencies.convexity_violation(group.members)
    return dependencies.describe(path) if path else str(dependencies.nodes[blocker])


def _leave_outside(group: KeptGroup, reason: str, flags: list[bool], reasons: dict[int, str]) -> list[int]:
    """Make the fragile nodes of a group unsupported; gives those that were supported before."""
    left = [node for node in (group.members if group.fragile is None else group.fragile) if flags[node]]
    for node in left:
        flags[node] = False
        reasons[node] = reason
    return left


def _joined(leader: Sequence[int], groups: Iterable[KeptGroup]) -> list[int]:
    """The leaders after joining each group: disjoint sets with path halving (Tarjan and van Leeuwen 1984)."""
    parent = list(leader)

    def find(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for group in groups:
        first = find(group.members[0])
        for node in group.members[1:]:
            parent[find(node)] = first
    return [find(node) for node in range(len(parent))]


def given_groups(dependencies: Dependencies, groups: Sequence[Iterable[Node]], label: str = "group") -> list[KeptGroup]:
    """Groups that the caller wrote.

    Raises:
        PartitionError: A group holds something that is no call of this graph.
    """
    kept = []
    for number, group in enumerate(groups):
        members = list(dict.fromkeys(group))
        for node in members:
            if not isinstance(node, Node) or node not in dependencies.position:
                raise PartitionError(f"{label} {number} holds {node!r}, which is not a node of this graph")
            if node.op in ("placeholder", "output"):
                raise PartitionError(f"{label} {number} holds {node.name}, a node of kind {node.op}", node=node)
        numbers = tuple(dependencies.position[node] for node in members if node.op in CALLS)
        if len(numbers) > 1:
            kept.append(KeptGroup(f"{label} {number}", numbers))
    return kept


def tuple_followers(dependencies: Dependencies) -> dict[int, int]:
    """The ``getitem`` nodes that live with what they take an element of: ``{getitem: producer}``, producers first.

    A getitem follows if all users of its producer are getitems, as in torch's partitioner, and if nothing else that it
    waits for could wait for the producer.
    """
    followers: dict[int, int] = {}
    if not any(is_getitem(node) for node in dependencies.nodes):
        return followers
    for number, node in enumerate(dependencies.nodes):
        if not node.users or node.op == "output" or not all(is_getitem(user) for user in node.users):
            continue
        home = followers.get(number, number)
        for user in node.users:
            follower = dependencies.position[user]
            others = [index for index in dependencies.predecessor_lists[follower] if index != number]
            if all(index < home or followers.get(index) == home for index in others):
                followers[follower] = home
    return followers


def element_homes(dependencies: Dependencies) -> dict[int, int]:
    """The followers of calls; elements of placeholders are free to go anywhere."""
    nodes = dependencies.nodes
    return {node: home for node, home in tuple_followers(dependencies).items() if nodes[home].op in CALLS}


def follower_reason(dependencies: Dependencies, producer: int) -> str:
    """Why an element of a tuple is outside though it is supported itself."""
    return f"it is an element of {dependencies.nodes[producer]}, which is outside"


def is_getitem(node: Node) -> bool:
    """Whether the node is a call of ``operator.getitem``."""
    return node.op == "call_function" and node.target is operator.getitem


_ASKS_FOR_A_SHAPE = ("_assert_tensor_metadata", "sym_numel", "sym_size", "sym_storage_offset", "sym_stride")


def runs_anywhere(node: Node) -> bool:
    """Whether no device has to support a node, for the host runs it.

    Elements of tuples, guards of inputs, sizes and arithmetic on them.
    """
    if node.op != "call_function":
        return is_guard(node)
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name.partition("::")[2] in _ASKS_FOR_A_SHAPE
    is_number = isinstance(value_of(node), (int, float, torch.SymInt, torch.SymFloat, torch.SymBool))
    return is_getitem(node) or (is_number and not isinstance(node.target, torch._ops.HigherOrderOperator))


def region_groups(dependencies: Dependencies) -> list[KeptGroup]:
    """One group for each outermost autocast, grad-mode or inference region: its markers and all between them.

    If a region cannot be in one part, only its markers have to stay outside: they order all that stands around them.
    """
    effects = dependencies.effects
    if not effects:
        return []
    spans: list[list[int]] = []
    markers: set[int] = set()
    is_open = False
    for number, node in enumerate(dependencies.nodes):
        if node.op not in CALLS:
            continue
        inside = bool(effects.region_stack(node))
        if not inside and not is_open:
            continue
        kind = effects.of(node).region
        is_marker = kind is not None and kind.is_barrier
        if is_marker:
            markers.add(number)
        if inside and not is_open:
            spans.append([])
        if inside or (is_open and is_marker):
            spans[-1].append(number)
        is_open = inside
    return [
        KeptGroup(
            f"region {dependencies.nodes[span[0]].name}", tuple(span), tuple(node for node in span if node in markers)
        )
        for span in spans
    ]


def quantization_groups(dependencies: Dependencies) -> list[KeptGroup]:
    """Pairs of a quantize and the dequantize calls that read it."""
    groups = []
    for number, node in enumerate(dependencies.nodes):
        if node.op not in CALLS or not _is_quantize(node):
            continue
        readers = [dependencies.position[user] for user in node.users if _is_dequantize(user)]
        if readers:
            groups.append(KeptGroup(f"quantization {node.name}", (number, *readers)))
    return groups


def _is_quantize(node: Node) -> bool:
    return _short_name(node).startswith(("quantize_per", "quantize_affine", "fake_quantize"))


def _is_dequantize(node: Node) -> bool:
    return _short_name(node).startswith(("dequantize_per", "dequantize_affine", "dequantize"))


def _short_name(node: Node) -> str:
    if node.op == "call_method":
        return str(node.target)
    if node.op != "call_function":
        return ""
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(packet, "__name__", ""))


def non_tensor_groups(dependencies: Dependencies) -> list[KeptGroup]:
    """Each value that is known not to be one tensor, with all that use it: such a value never crosses a border."""
    groups = []
    for number, node in enumerate(dependencies.nodes):
        if node.op not in CALLS or "val" not in node.meta or isinstance(node.meta["val"], torch.Tensor):
            continue
        users = [dependencies.position[user] for user in node.users if user.op != "output"]
        if users:
            groups.append(KeptGroup(f"non-tensor value {node.name}", (number, *users)))
    return groups
