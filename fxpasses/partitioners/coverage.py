"""How much of a graph a backend gets, why not more, and which operator to support next.

:func:`measure_coverage` makes a proposal and tells about it; the answer prints as a table and dumps as JSON.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from torch.fx import GraphModule, Node

from fxpasses.dependencies import Dependencies
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.given import module_of
from fxpasses.partitioners.grouping.keep_together import form_units, tuple_followers
from fxpasses.partitioners.grouping.levels import alternation_levels, contract
from fxpasses.partitioners.grouping.proposing import CapabilityOptions, propose
from fxpasses.partitioners.grouping.small_parts import SizeRule, value_bytes
from fxpasses.partitioners.support import CALLS, target_name

__all__ = ["Coverage", "Cut", "NextOperator", "OperatorCount", "border_bytes", "measure_coverage"]


@attrs.frozen
class OperatorCount:
    """One operator of the graph.

    Args:
        name: Its name, as support tables write it.
        inside: How many of its calls are in parts.
        outside: How many are not.
        reasons: Why those are not: each reason and how often.
    """

    name: str
    inside: int
    outside: int
    reasons: Mapping[str, int]


@attrs.frozen
class Cut:
    """An edge that crosses the border of a part.

    Args:
        producer: The node whose value crosses.
        user: The node that uses it.
        reason: Why the two are not in one part.
    """

    producer: str
    user: str
    reason: str


@attrs.frozen
class NextOperator:
    """What supporting one more operator would bring.

    Args:
        name: The operator.
        calls: How many of its calls are unsupported.
        parts_merged: By how many the number of parts falls (negative: it grows).
        bytes_saved: By how much the bytes that cross borders fall.
    """

    name: str
    calls: int
    parts_merged: int
    bytes_saved: int


@attrs.frozen
class Coverage:
    """What a proposal covers.

    Args:
        assignment: The proposal.
        operators: All operators, those with the most calls outside first.
        cuts: The edges that cross borders, in graph order.
        implement_next: The unsupported operators, the most useful one first.
        border_bytes: The bytes that cross borders of parts.
    """

    assignment: Assignment
    operators: tuple[OperatorCount, ...]
    cuts: tuple[Cut, ...]
    implement_next: tuple[NextOperator, ...]
    border_bytes: int

    @property
    def inside(self) -> int:
        """How many calls are in parts."""
        return sum(each.inside for each in self.operators)

    @property
    def calls(self) -> int:
        """How many calls there are."""
        return self.inside + sum(each.outside for each in self.operators)

    def to_dict(self) -> dict[str, Any]:
        """All facts as plain dictionaries, lists, numbers and strings."""
        return {
            "calls": self.calls,
            "inside": self.inside,
            "parts": [
                {"name": str(name), "nodes": [node.name for node in nodes]}
                for name, nodes in self.assignment.partitions.items()
            ],
            "outside": {node.name: self.assignment.why(node) for node in self.assignment.outside if node.op in CALLS},
            "border_bytes": self.border_bytes,
            "operators": [{**attrs.asdict(each), "reasons": dict(each.reasons)} for each in self.operators],
            "cuts": [attrs.asdict(cut) for cut in self.cuts],
            "implement_next": [attrs.asdict(each) for each in self.implement_next],
        }

    def to_json(self, indent: int | None = 2) -> str:
        """:meth:`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    def to_table(self, width: int = 120) -> str:
        """Two tables as text: the operators, and what to implement next."""
        from rich.console import Console  # here: only printing needs rich
        from rich.table import Table

        share = f"{100 * self.inside / self.calls:.1f} %" if self.calls else "nothing"
        text = io.StringIO()
        console = Console(width=width, file=text, color_system=None)
        title = f"{self.inside} of {self.calls} calls ({share}) in {len(self.assignment)} parts"
        operators = Table("operator", "inside", "outside", "why", title=title)
        for each in self.operators:
            why = "; ".join(f"{reason} ({count}x)" for reason, count in each.reasons.items())
            operators.add_row(each.name, str(each.inside), str(each.outside), why)
        upcoming = Table("implement next", "calls", "parts merged", "bytes saved at borders")
        for offer in self.implement_next:
            upcoming.add_row(offer.name, str(offer.calls), str(offer.parts_merged), str(offer.bytes_saved))
        console.print(operators)
        console.print(upcoming)
        return text.getvalue()


def measure_coverage(
    graph_module: GraphModule,
    operator_support: Any,
    options: CapabilityOptions | None = None,
    *,
    size_rule: SizeRule | None = None,
) -> Coverage:
    """Make a proposal and tell what it covers.

    Args:
        graph_module: The graph; it is not changed.
        operator_support: Asked once about each call.
        options: As for :func:`fxpasses.partitioners.by_capability.partition_by_capability`.
        size_rule: Which parts are too small.

    Complexity:
        O(V + E) for each unsupported operator.
    """
    root = module_of(graph_module)
    proposal = propose(root, operator_support, options or CapabilityOptions(), size_rule)
    assignment = proposal.assignment()
    submodules = dict(root.named_modules())
    names = {node: target_name(node, submodules) for node in root.graph.nodes if node.op in CALLS}
    return Coverage(
        assignment,
        _count_operators(assignment, names),
        tuple(_find_cuts(assignment)),
        _rank_next(assignment, proposal.unsupported, names),
        border_bytes(assignment.dependencies, assignment.partition_of),
    )


def _count_operators(assignment: Assignment, names: Mapping[Node, str]) -> tuple[OperatorCount, ...]:
    inside: dict[str, int] = {}
    reasons: dict[str, dict[str, int]] = {}
    for node, name in names.items():
        inside.setdefault(name, 0)
        known = reasons.setdefault(name, {})
        if node in assignment.partition_of:
            inside[name] += 1
        else:
            why = assignment.why(node)
            known[why] = known.get(why, 0) + 1
    counts = [OperatorCount(name, inside[name], sum(reasons[name].values()), reasons[name]) for name in inside]
    return tuple(sorted(counts, key=lambda each: (-each.outside, -each.inside, each.name)))


def _find_cuts(assignment: Assignment, explained: int = 50) -> list[Cut]:
    """The edges between calls that cross the border of a part, with the reason.

    Args:
        assignment: The proposal.
        explained: For how many pairs of parts to look for the path that keeps them apart; each takes O(V + E).
    """
    cuts: list[Cut] = []
    known: dict[tuple[Any, Any], str] = {}
    home = assignment.partition_of
    for node in assignment.graph.nodes:
        for user in node.users if node.op in CALLS else ():
            outside = [each for each in (node, user) if each not in home]
            if user.op not in CALLS or len(outside) == 2 or (not outside and home[node] == home[user]):
                continue
            if outside:
                reason = f"{outside[0].name} is outside: {assignment.why(outside[0])}"
            else:
                pair = (home[node], home[user])
                if pair not in known:
                    known[pair] = assignment.explain(node, user) if len(known) < explained else "see explain()"
                reason = known[pair]
            cuts.append(Cut(node.name, user.name, reason))
    return cuts


def border_bytes(dependencies: Dependencies, home: Mapping[Node, Any]) -> int:
    """The bytes of calls' values that cross borders: each value once for each part, or the outside, that takes it."""
    total = 0
    for node in dependencies.nodes:
        if node.op in CALLS:
            takers = {home.get(user) for user in node.users}
            total += value_bytes(node) * len(takers - {home.get(node)})
    return total


def _rank_next(
    assignment: Assignment, unsupported: Sequence[Node], names: Mapping[Node, str]
) -> tuple[NextOperator, ...]:
    """What would change if one more operator were supported, for each; parts are counted before small ones go."""
    dependencies = assignment.dependencies
    position = dependencies.position
    followers = tuple_followers(dependencies)
    flags = [node.op in CALLS for node in dependencies.nodes]
    calls: dict[str, list[int]] = {}
    for node in unsupported:
        flags[position[node]] = False
        if position[node] not in followers:
            calls.setdefault(names[node], []).append(position[node])
    parts_now, bytes_now = _what_if(dependencies, flags, followers)
    offers = []
    for name, numbers in calls.items():
        supported = list(flags)
        for number in numbers:
            supported[number] = True
        parts, moved = _what_if(dependencies, supported, followers)
        offers.append(NextOperator(name, len(numbers), parts_now - parts, bytes_now - moved))
    return tuple(sorted(offers, key=lambda each: (-each.parts_merged, -each.bytes_saved, -each.calls, each.name)))


def _what_if(dependencies: Dependencies, supported: Sequence[bool], followers: Mapping[int, int]) -> tuple[int, int]:
    """How many parts there would be, and how many bytes would cross their borders."""
    units = form_units(dependencies, supported, (), followers)
    view, flags = dependencies, units.supported
    if not units.is_trivial:
        view = contract(dependencies, units.unit_of)
        flags = [False] * len(view)
        for number, unit in enumerate(units.unit_of):
            flags[unit] = units.supported[number]
    levels = alternation_levels(view, flags)
    home = {
        node: levels[units.unit_of[number]] for number, node in enumerate(dependencies.nodes) if units.supported[number]
    }
    return len(set(home.values())), border_bytes(dependencies, home)
