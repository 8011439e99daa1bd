"""How a proposal by capability is made: ask, keep together, group by level, give up what is too small.

:mod:`fxpasses.partitioners.by_capability` is the face of this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
from torch.fx import GraphModule, Node

from fxpasses.dependencies import Dependencies
from fxpasses.partitioners.assignment import Assignment, group_order
from fxpasses.partitioners.grouping.keep_together import (
    KeptGroup,
    Units,
    element_homes,
    follower_reason,
    form_units,
    given_groups,
    is_getitem,
    non_tensor_groups,
    quantization_groups,
    region_groups,
    tuple_followers,
)
from fxpasses.partitioners.grouping.levels import alternation_levels, contract, fewer_borders
from fxpasses.partitioners.grouping.small_parts import (
    CostRule,
    Draft,
    SizeRule,
    absorb,
    drop_costly,
    drop_dead,
    drop_small,
)
from fxpasses.partitioners.grouping.viewing import view_of
from fxpasses.partitioners.support import CALLS, OpSupports, Verdicts, ask_support, chain, check_support

__all__ = ["CapabilityOptions", "Proposal", "draft_around", "propose"]


@attrs.frozen(kw_only=True)
class CapabilityOptions:
    """What a proposal by capability may and must do, beside being supported.

    Args:
        horizontal: Whether parts that no edge connects may be one part.
        min_block_size: Parts with fewer calls are given up; their nodes join other parts where they can.
        keep_together: Groups of nodes that go into one part or stay outside, each as a whole.
        partial_groups: Whether of a group in ``keep_together`` only the supported nodes must go together.
        keep_patterns: The same for each match of these patterns.
        keep_regions: Whether autocast, grad-mode and inference regions are never cut: a region that cannot be wholly
            in one part keeps its markers outside.
        keep_quantization: Whether a quantize and its dequantize are kept together.
        tensors_only_at_borders: Whether values that are not one tensor (tuples, sizes, numbers) may not cross a border;
            None means only if there is a ``min_block_size``.
        deny_names: Nodes with these names stay outside.
        deny_module_paths: Nodes from modules at or below these paths stay outside.
        deny_module_types: Nodes from modules of these types stay outside.
        deny_targets: Calls of these targets stay outside.
        cost_rule: Says of a part what it saves and what its borders cost; parts that do not pay are given up.
        fewer_borders: Among the answers with the fewest parts, look for one with fewer border values, instead of
            torch's own.
    """

    horizontal: bool = True
    min_block_size: int = 1
    keep_together: Sequence[Iterable[Node]] = ()
    partial_groups: bool = False
    keep_patterns: Sequence[Any] = ()
    keep_regions: bool = True
    keep_quantization: bool = False
    tensors_only_at_borders: bool | None = None
    deny_names: Sequence[str] = ()
    deny_module_paths: Sequence[str] = ()
    deny_module_types: Sequence[type] = ()
    deny_targets: Sequence[Any] = ()
    cost_rule: CostRule | None = None
    fewer_borders: bool = False

    @property
    def is_simple(self) -> bool:
        """Whether a graph that is wholly supported is one part under these options."""
        asks_more = self.keep_together or self.keep_patterns or self.cost_rule is not None
        return self.horizontal and self.min_block_size <= 1 and not asks_more

    @property
    def only_tensors_cross(self) -> bool:
        """Whether values that are not one tensor may not cross a border."""
        return self.min_block_size > 1 if self.tensors_only_at_borders is None else self.tensors_only_at_borders

    def denials(self) -> list[Any]:
        """The denial rules as support objects."""
        rules: list[tuple[Sequence[Any], Callable[[Any], Any]]] = [
            (self.deny_names, OpSupports.decline_if_node_in_names),
            (self.deny_module_paths, OpSupports.decline_if_module_path),
            (self.deny_module_types, OpSupports.decline_if_module_type),
            (self.deny_targets, OpSupports.decline_if_target),
        ]
        return [make(given) for given, make in rules if given]


@attrs.frozen
class Proposal:
    """What :func:`propose` found.

    Args:
        graph_module: The graph.
        dependencies: Its dependencies; None if they were not needed (all of the graph is one part).
        draft: The parts.
        reasons: Why nodes are outside.
        unsupported: The nodes to which the support object said no.
    """

    graph_module: GraphModule
    dependencies: Dependencies | None
    draft: Draft
    reasons: Mapping[Node, str]
    unsupported: tuple[Node, ...] = ()

    def assignment(self) -> Assignment:
        """Partitions 0, 1, 2, ... in execution order."""
        nodes = list(self.graph_module.graph.nodes)
        partition_of = {nodes[number]: name for name, part in enumerate(self.draft.parts) for number in part}
        order = range(len(self.draft.parts))
        return Assignment(self.graph_module.graph, partition_of, order, self.reasons, dependencies=self.dependencies)

    def listed(self) -> list[tuple[int, list[Node], list[Any]]]:
        """Number, nodes and places (counted from the end) of each part, as torch's partitioner lists them."""
        nodes = list(self.graph_module.graph.nodes)
        found = []
        appended = {number: place for place, number in enumerate(self.draft.appended)}
        for name, part in sorted(zip(self.draft.ids, self.draft.parts, strict=True)):
            moved = sorted((number for number in part if number in appended), key=appended.__getitem__)
            members = [number for number in part if number not in appended]
            orders = [len(nodes) - 1 - number for number in members]
            found.append((name, [nodes[number] for number in [*members, *moved]], [*orders, *[None] * len(moved)]))
        return found


def propose(
    graph_module: GraphModule,
    operator_support: Any,
    options: CapabilityOptions,
    size_rule: SizeRule | None,
    *,
    keep_dead: bool = False,
) -> Proposal:
    """Make a proposal; see :func:`fxpasses.partitioners.by_capability.partition_by_capability` for the arguments.

    Args:
        graph_module: The graph.
        operator_support: Asked once about each call.
        options: What else to mind.
        size_rule: Which parts are too small.
        keep_dead: Whether parts that nothing depends on are proposed.
    """
    denials = options.denials()
    support = chain(*denials, check_support(operator_support)) if denials else operator_support
    verdicts = ask_support(graph_module, support)
    if _is_wholly_supported(graph_module, verdicts) and options.is_simple:
        whole = _whole(graph_module, size_rule)
        reasons = {
            node: whole.reasons[number]
            for number, node in enumerate(graph_module.graph.nodes)
            if number in whole.reasons
        }
        return Proposal(graph_module, None, whole, reasons)
    dependencies = view_of(graph_module)
    supported = [node in verdicts.supported for node in dependencies.nodes]
    groups = _groups(dependencies, options, supported)
    followers = tuple_followers(dependencies)
    draft = _best_draft(dependencies, supported, groups, followers, options, size_rule, keep_dead)
    inside = {number for part in draft.parts for number in part}
    reasons = {node: reason for node, reason in verdicts.reasons.items() if dependencies.position[node] not in inside}
    for number, reason in draft.reasons.items():
        if number not in inside:
            reasons.setdefault(dependencies.nodes[number], reason)
    return Proposal(graph_module, dependencies, draft, reasons, tuple(verdicts.reasons))


def draft_around(
    dependencies: Dependencies, supported: Sequence[bool], opaque: Sequence[Sequence[int]], options: CapabilityOptions
) -> Draft:
    """Parts among the supported nodes, around parts that others have already.

    Args:
        dependencies: Data and order edges.
        supported: One flag per node.
        opaque: The parts of others; they are not looked into, and nothing waits for itself through them.
        options: What else to mind.
    """
    groups = _groups(dependencies, options, supported)
    taken = {number for part in opaque for number in part}
    followers = {node: home for node, home in element_homes(dependencies).items() if node not in taken}
    units = form_units(dependencies, supported, groups, followers, opaque)
    return _give_up(dependencies, _group(dependencies, units, options), units, options, None)


def _is_wholly_supported(graph_module: GraphModule, verdicts: Verdicts) -> bool:
    """Whether all calls are supported, the output uses one of them, and no tuple comes from a placeholder."""
    if verdicts.reasons or not verdicts.supported:
        return False
    if any(
        is_getitem(node) and any(used.op not in CALLS for used in node.all_input_nodes[:1])
        for node in verdicts.supported
    ):
        return False
    outputs = graph_module.graph.find_nodes(op="output")
    return any(used in verdicts.supported for node in outputs for used in node.all_input_nodes)


def _whole(graph_module: GraphModule, size_rule: SizeRule | None) -> Draft:
    """All calls as one part, if it is large enough; needs no view of the graph."""
    nodes = list(graph_module.graph.nodes)
    members = [number for number, node in enumerate(nodes) if node.op in CALLS]
    reason = size_rule.too_small(nodes[number] for number in members) if size_rule else None
    draft = Draft([members], _numbers_of_creation([members], members))
    return draft.without({0: reason} if reason else {})


def _groups(dependencies: Dependencies, options: CapabilityOptions, supported: Sequence[bool]) -> list[KeptGroup]:
    groups = given_groups(dependencies, options.keep_together)
    if options.partial_groups:
        able = [tuple(number for number in group.members if supported[number]) for group in groups]
        groups = [attrs.evolve(group, members=left) for group, left in zip(groups, able, strict=True) if len(left) > 1]
    if options.keep_patterns and dependencies.nodes:
        from fxpasses.partitioners.by_pattern import (
            match_groups,  # here: only callers with patterns pay for the matcher
        )

        matches = match_groups(dependencies.nodes[0].graph, options.keep_patterns)
        groups.extend(given_groups(dependencies, matches, "match"))
    if options.keep_regions:
        groups.extend(region_groups(dependencies))
    if options.keep_quantization:
        groups.extend(quantization_groups(dependencies))
    if options.only_tensors_cross:
        groups.extend(non_tensor_groups(dependencies))
    return groups


def _best_draft(
    dependencies: Dependencies,
    supported: Sequence[bool],
    groups: Sequence[KeptGroup],
    followers: Mapping[int, int],
    options: CapabilityOptions,
    size_rule: SizeRule | None,
    keep_dead: bool,
) -> Draft:
    """Torch's own answer, or a better one: more nodes in no more parts, or as many in fewer.

    Torch groups the elements of a tuple like any other node and moves them to their producer afterwards. Taking both as
    one unit from the start can only need fewer groups, but groups differently.
    """
    candidates: list[tuple[Draft, Units]] = []
    moved = False
    if not groups:
        units = form_units(dependencies, supported)
        grouped = _group(dependencies, units, options)
        draft = _follow(dependencies, grouped, followers, supported)
        moved = draft is not grouped
        if not moved or group_order(dependencies, _labels_of(dependencies, draft), len(draft.parts)) is not None:
            candidates.append((draft, units))
    has_torchs = bool(candidates)
    if moved or not candidates:
        units = form_units(dependencies, supported, groups, followers)
        candidates.append((_group(dependencies, units, options), units))
        if options.horizontal and not options.fewer_borders:
            candidates.append((_group(dependencies, units, attrs.evolve(options, fewer_borders=True)), units))
    if not keep_dead:
        candidates = [(drop_dead(dependencies, draft), units) for draft, units in candidates]
    drafts = [_give_up(dependencies, draft, units, options, size_rule) for draft, units in candidates]
    return _best_of(dependencies, drafts, has_torchs)


def _best_of(dependencies: Dependencies, drafts: Sequence[Draft], has_torchs: bool) -> Draft:
    """The draft that covers most in fewest parts; of equals torch's (the first), else what exports least."""
    best = drafts[0]
    for draft in drafts[1:]:
        gained, saved = draft.covered - best.covered, len(best.parts) - len(draft.parts)
        if gained < 0 or saved < 0:
            continue
        is_equal = gained == saved == 0
        if not is_equal or (
            not (has_torchs and best is drafts[0]) and _exported(dependencies, draft) < _exported(dependencies, best)
        ):
            best = draft
    return best


def _exported(dependencies: Dependencies, draft: Draft) -> int:
    """How many values of parts are used outside of their part."""
    home = _labels_of(dependencies, draft)
    position = dependencies.position
    return sum(
        any(home[position[user]] != place for user in dependencies.nodes[number].users)
        for place, part in enumerate(draft.parts)
        for number in part
    )


def _group(dependencies: Dependencies, units: Units, options: CapabilityOptions) -> Draft:
    """Group the supported units: by level, or only along edges."""
    if not options.horizontal:
        return _group_along_edges(dependencies, units)
    view, flags = dependencies, units.supported
    if not units.is_trivial:
        view = contract(dependencies, units.unit_of)
        flags = [False] * len(view)
        for number, unit in enumerate(units.unit_of):
            flags[unit] = units.supported[number]
    levels = alternation_levels(view, flags)
    if options.fewer_borders:
        levels = fewer_borders(view, flags, levels)
    parts: dict[int, list[int]] = {}
    members = [number for number, flag in enumerate(units.supported) if flag]
    for number in members:
        parts.setdefault(levels[units.unit_of[number]], []).append(number)
    ordered = [parts[level] for level in sorted(parts, reverse=True)]
    return Draft(ordered, _numbers_of_creation(ordered, members), reasons=dict(units.reasons))


def _numbers_of_creation(parts: Sequence[Sequence[int]], members: Sequence[int]) -> list[int]:
    """The numbers that torch's walk gives to groups which take in one node after the other, from the last one back.

    Each supported node starts a group with the next number. Of two groups that merge, the larger one keeps its number,
    and of two single nodes the one that came later; so a group is called after its second node from the end.
    """
    created = {number: place for place, number in enumerate(reversed(members))}
    return [created[part[-2] if len(part) > 1 else part[-1]] for part in parts]


def _group_along_edges(dependencies: Dependencies, units: Units) -> Draft:
    """Join each node with the groups that use it, from the last node back, wherever that closes no cycle."""
    merger = dependencies.merger()
    first_of: dict[int, int] = {}
    for number, unit in enumerate(units.unit_of):
        if first_of.setdefault(unit, number) != number:
            merger.merge(first_of[unit], number)
    numbers: dict[int, int] = {}
    sizes: dict[int, int] = {}
    created = 0
    for number in range(len(dependencies) - 1, -1, -1):
        if not units.supported[number]:
            continue
        own = merger.find(number)
        if own not in numbers:
            numbers[own], sizes[own] = created, 1
        else:
            sizes[own] += 1
        created += 1
        for user in dependencies.nodes[number].users:
            own, other = merger.find(number), merger.find(dependencies.position[user])
            if own == other or other not in numbers or not merger.may_merge(own, other):
                continue
            name = numbers[own] if sizes[own] >= sizes[other] else numbers[other]
            size = sizes.pop(own) + sizes.pop(other)
            del numbers[own], numbers[other]
            merged = merger.merge(own, other)
            numbers[merged], sizes[merged] = name, size
    parts: dict[int, list[int]] = {}
    for number, flag in enumerate(units.supported):
        if flag:
            parts.setdefault(merger.find(number), []).append(number)
    draft = Draft(list(parts.values()), [numbers[root] for root in parts], reasons=dict(units.reasons))
    return _in_order(dependencies, draft)


def _in_order(dependencies: Dependencies, draft: Draft) -> Draft:
    """The draft with its parts in an order in which they can run."""
    order = group_order(dependencies, _labels_of(dependencies, draft), len(draft.parts))
    if order is None:
        raise AssertionError("groups that were merged one by one without a cycle have one")
    return attrs.evolve(draft, parts=[draft.parts[place] for place in order], ids=[draft.ids[place] for place in order])


def _labels_of(dependencies: Dependencies, draft: Draft) -> list[int]:
    labels = [-1] * len(dependencies)
    for place, part in enumerate(draft.parts):
        for number in part:
            labels[number] = place
    return labels


def _follow(dependencies: Dependencies, draft: Draft, followers: Mapping[int, int], supported: Sequence[bool]) -> Draft:
    """Move the elements of tuples to where their producer is, inside or outside."""
    home = _labels_of(dependencies, draft)
    appended: list[int] = []
    reasons = dict(draft.reasons)
    for node, producer in followers.items():
        if home[node] == home[producer]:
            continue
        home[node] = home[producer]
        if home[producer] >= 0:
            appended.append(node)
        elif supported[node]:
            reasons[node] = follower_reason(dependencies, producer)
    if not appended and len(reasons) == len(draft.reasons):
        return draft
    parts: list[list[int]] = [[] for _ in draft.parts]
    for number, place in enumerate(home):
        if place >= 0:
            parts[place].append(number)
    kept = [place for place, part in enumerate(parts) if part]
    ids = [draft.ids[place] for place in kept]
    return Draft([parts[place] for place in kept], ids, tuple(appended), reasons)


def _give_up(
    dependencies: Dependencies, draft: Draft, units: Units, options: CapabilityOptions, size_rule: SizeRule | None
) -> Draft:
    """Apply the rules that give parts up, and let their nodes join others where that is asked for."""
    draft = drop_small(dependencies, draft, size_rule)
    if options.min_block_size > 1:
        draft = absorb(dependencies, draft, units.unit_of, options.min_block_size)
    return drop_costly(dependencies, draft, options.cost_rule)
