"""Give up parts that are not worth having: dead, too small, or dearer at their borders than what they save.

Each function takes a :class:`Draft` and gives a new one; nodes that leave a part get the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import attrs
from torch.fx import Node

from fxpasses.dependencies import Dependencies
from fxpasses.partitioners.grouping.keep_together import is_getitem
from fxpasses.partitioners.grouping.levels import contract, number_by_first
from fxpasses.partitioners.support import CALLS, function_name
from fxpasses.partitioners.tensor_sizes import tensor_bytes, tensors_in

__all__ = [
    "CostRule",
    "Draft",
    "SizeRule",
    "TransferCost",
    "absorb",
    "drop_costly",
    "drop_dead",
    "drop_small",
    "live_nodes",
]

CostRule = Callable[[Sequence[Node], Sequence[Node], Sequence[Node]], str | None]
"""Takes the nodes of a part, its input values and its output values; gives the reason why it does not pay, or None."""

NON_COMPUTE_OPS = frozenset({"torch.ops.aten.view", "_operator.getitem"})
"""What never counts as a call when torch's partitioner looks for parts with a single one."""


@attrs.frozen
class Draft:
    """Parts on the way to a proposal, by node number.

    Args:
        parts: The parts in the order in which they run; the nodes of each in graph order.
        ids: The number of each part.
        appended: Nodes that joined their part after it was found (elements of tuples).
        reasons: Why nodes are outside.
    """

    parts: list[list[int]]
    ids: list[int]
    appended: tuple[int, ...] = ()
    reasons: dict[int, str] = attrs.field(factory=dict)

    @property
    def covered(self) -> int:
        """How many nodes are in parts."""
        return sum(map(len, self.parts))

    def without(self, reasons: dict[int, str]) -> Draft:
        """The draft without the parts at these places, each with the reason for its nodes."""
        if not reasons:
            return self
        why = {node: reason for place, reason in reasons.items() for node in self.parts[place]}
        kept = [place for place in range(len(self.parts)) if place not in reasons]
        return attrs.evolve(
            self,
            parts=[self.parts[place] for place in kept],
            ids=[self.ids[place] for place in kept],
            reasons={**self.reasons, **why},
        )


@attrs.frozen
class SizeRule:
    """Torch's rule for parts of a single call.

    Only calls of functions count. Views, getitem and ``non_compute_ops`` do not; ``allowed_single`` count double.
    """

    non_compute_ops: frozenset[str] = frozenset()
    allowed_single: frozenset[str] = frozenset()

    def too_small(self, nodes: Iterable[Node]) -> str | None:
        """The reason why these nodes are too few to be a part; None if they are enough."""
        count = 0
        for node in nodes:
            if node.op == "call_function":
                name = function_name(node.target)
                count += name not in NON_COMPUTE_OPS and name not in self.non_compute_ops
                count += name in self.allowed_single
            if count > 1:
                return None
        return (
            f"its block is too small: {count} function call{'' if count == 1 else 's'} that compute, at least 2 are "
            "needed unless allows_single_node_partition is set"
        )


def drop_small(dependencies: Dependencies, draft: Draft, rule: SizeRule | None) -> Draft:
    """Give up the parts that torch's rule finds too small."""
    if rule is None:
        return draft
    found = [rule.too_small(dependencies.nodes[number] for number in part) for part in draft.parts]
    return draft.without({place: reason for place, reason in enumerate(found) if reason is not None})


def live_nodes(dependencies: Dependencies) -> list[bool] | None:
    """For each node, whether an output or an effect depends on it; None where nothing is left unused. O(V + E)."""
    nodes = dependencies.nodes
    if all(node.users or node.op in ("output", "placeholder", "get_attr") for node in nodes):
        return None
    effects = dependencies.effects
    alive = [False] * len(nodes)
    for number in range(len(nodes) - 1, -1, -1):
        node = nodes[number]
        alive[number] = (
            node.op == "output"
            or any(alive[dependencies.position[user]] for user in node.users)
            or (node.op in CALLS and effects is not None and not effects.is_removable(node))
        )
    return alive


def drop_dead(dependencies: Dependencies, draft: Draft) -> Draft:
    """Give up the parts of which nothing can be seen: no output and no effect depends on them."""
    if (alive := live_nodes(dependencies)) is None:
        return draft
    dead = [place for place, part in enumerate(draft.parts) if not any(alive[number] for number in part)]
    return draft.without(dict.fromkeys(dead, "it is dead: no output and no effect depends on its block"))


def absorb(dependencies: Dependencies, draft: Draft, unit_of: Sequence[int], min_block_size: int) -> Draft:
    """Give up parts with too few calls; their units join a larger part next to them where that closes no cycle.

    Args:
        dependencies: Data and order edges.
        draft: The parts so far.
        unit_of: What stays together.
        min_block_size: The fewest calls of a part; elements of tuples do not count.
    """
    small = [place for place, part in enumerate(draft.parts) if _calls(dependencies, part) < min_block_size]
    if not small:
        return draft
    reason = "its block is too small: {} of at least {} calls (min_block_size)"
    reasons = {place: reason.format(_calls(dependencies, draft.parts[place]), min_block_size) for place in small}
    left = draft.without(reasons)
    if not left.parts:
        return left
    home = _attach(dependencies, left, [number for place in small for number in draft.parts[place]], unit_of)
    parts = [sorted([*part, *home.get(place, ())]) for place, part in enumerate(left.parts)]
    moved = {number for numbers in home.values() for number in numbers}
    kept = {number: why for number, why in left.reasons.items() if number not in moved}
    return attrs.evolve(left, parts=parts, reasons=kept)


def _calls(dependencies: Dependencies, part: Sequence[int]) -> int:
    return sum(not is_getitem(dependencies.nodes[number]) for number in part)


def _attach(
    dependencies: Dependencies, draft: Draft, loose: Sequence[int], unit_of: Sequence[int]
) -> dict[int, list[int]]:
    """For parts of the draft, the loose nodes that can join them; nearest to the outputs first, then once forward."""
    base = max(unit_of) + 1
    labels = list(unit_of)
    for place, part in enumerate(draft.parts):
        for number in part:
            labels[number] = base + place
    labels = number_by_first(labels)
    view = contract(dependencies, labels)
    merger = view.merger()
    part_at = {labels[part[0]]: place for place, part in enumerate(draft.parts)}
    waiting = {labels[number] for number in loose}
    for unit in [*sorted(waiting, reverse=True), *sorted(waiting)]:
        if merger.find(unit) in part_at:
            continue
        neighbours = [*view.successor_lists[unit], *view.predecessor_lists[unit]]
        shared = Counter(root for other in neighbours if (root := merger.find(other)) in part_at)
        for root, _ in sorted(shared.items(), key=lambda item: (-item[1], part_at[item[0]])):
            if merger.may_merge(unit, root):
                place = part_at.pop(root)
                part_at[merger.merge(unit, root)] = place
                break
    home: dict[int, list[int]] = {}
    for number in loose:
        if (place := part_at.get(merger.find(labels[number]), -1)) >= 0:
            home.setdefault(place, []).append(number)
    return home


def drop_costly(dependencies: Dependencies, draft: Draft, rule: CostRule | None) -> Draft:
    """Give up the parts that the rule says do not pay."""
    if rule is None:
        return draft
    reasons: dict[int, str] = {}
    for place, part in enumerate(draft.parts):
        nodes = [dependencies.nodes[number] for number in part]
        members = set(nodes)
        taken = {dependencies.position[used] for node in nodes for used in node.all_input_nodes if used not in members}
        inputs = [dependencies.nodes[number] for number in sorted(taken)]
        outputs = [node for node in nodes if any(user not in members for user in node.users)]
        if (reason := rule(nodes, [node for node in inputs if node.op != "get_attr"], outputs)) is not None:
            reasons[place] = reason
    return draft.without(reasons)


@attrs.frozen(kw_only=True)
class TransferCost:
    """A cost rule: a part must save more seconds than copying its inputs in and its outputs out takes.

    Args:
        seconds_saved: What running one node in the part saves, in seconds.
        bandwidth: Bytes per second across the border.
        latency: Seconds for each copy, whatever its size.
    """

    seconds_saved: Callable[[Node], float]
    bandwidth: float
    latency: float = 0.0

    def __call__(self, nodes: Sequence[Node], inputs: Sequence[Node], outputs: Sequence[Node]) -> str | None:
        """Why the part does not pay, or None."""
        saved = sum(self.seconds_saved(node) for node in nodes)
        copied = sum(value_bytes(node) for node in (*inputs, *outputs))
        copies = len(inputs) + len(outputs)
        spent = copied / self.bandwidth + copies * self.latency
        if saved > spent:
            return None
        return (
            f"its block does not pay: it saves {saved * 1e6:.3g} us, "
            f"and copying {copied} bytes in {copies} values costs {spent * 1e6:.3g} us"
        )


def value_bytes(node: Node) -> int:
    """The bytes of a node's value, after ``meta["val"]``; 0 where it is not known."""
    return sum(tensor_bytes(tensor) for tensor in tensors_in(node.meta.get("val")))
