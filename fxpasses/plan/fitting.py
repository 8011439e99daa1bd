"""Lay a plan over a graph: which operator gets which part, what does not fit, and what is nearest to it.

An entry that names an operator counts before one that names a module, and an inner module before an outer one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import attrs
from torch.fx import GraphModule, Node

from fxpasses.effects import analyze_effects
from fxpasses.errors import PlanError
from fxpasses.outlining.regions import BODY_AT
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.colocation import must_share
from fxpasses.partitioners.placing.device_maps import holders
from fxpasses.partitioners.placing.replicas import why_not_replicable
from fxpasses.plan.keys import listed
from fxpasses.plan.reading import nearest

if TYPE_CHECKING:
    from fxpasses.plan.plans import PartPlan, Plan

__all__ = [
    "Fit",
    "Refused",
    "Torn",
    "assignment_of",
    "fit",
    "guess_renames",
    "hints",
    "misfit",
    "not_replicable",
    "refuse_unknown_module",
    "renamed",
    "torn_apart",
]

MOST_RENAMES = 8
MOST_UNEXPLAINED = 0.2
"""Share of the entries that may stay unexplained when a model all of whose names differ counts as renamed."""


@attrs.frozen(eq=False)
class Fit:
    """What became of the entries of a plan, and of the operators of a graph.

    Args:
        keys: The stable key of each operator.
        part_of: The part of each operator that has one.
        homeless: Keys of operators that no entry names.
        unused: Entries that name nothing that the graph has, with their parts.
        doubled: Entries that stand in two parts, with both.
        again: What each part computes again, without what is its own anyway.
    """

    keys: Mapping[Node, str]
    part_of: Mapping[Node, str]
    homeless: tuple[str, ...]
    unused: tuple[tuple[str, str], ...]
    doubled: tuple[tuple[str, str, str], ...]
    again: Mapping[Any, tuple[Node, ...]] = attrs.field(factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether every operator has one part, and every entry an operator."""
        return not (self.homeless or self.unused or self.doubled)

    @property
    def fits_nothing(self) -> bool:
        """Whether no operator has a part."""
        return bool(self.keys) and not self.part_of

    @property
    def is_for_another_model(self) -> bool:
        """Whether nothing fits, and not because regions were one operator in one of the two."""
        return self.fits_nothing and not (self.has_closed_region or self.names_closed_region)

    @property
    def has_closed_region(self) -> bool:
        """Whether a region is one operator of the graph that no entry names."""
        return any(map(_names_region, self.homeless))

    @property
    def names_closed_region(self) -> bool:
        """Whether the plan names a region that the graph does not have as one operator."""
        return any(_names_region(entry) for entry, _part in self.unused)


def fit(parts: Sequence[PartPlan], keys: Mapping[Node, str]) -> Fit:
    """Lay parts over operators. Linear in operators times the depth of modules.

    Args:
        parts: The parts of a plan.
        keys: The operators of a graph, as :func:`~fxpasses.plan.keys.stable_keys` names them.
    """
    owner: dict[str, str] = {}
    given = [(entry, part.name) for part in parts for entry in part.ops]
    doubled = [(entry, owner[entry], part) for entry, part in given if owner.setdefault(entry, part) != part]
    part_of: dict[Node, str] = {}
    homeless = []
    names_something: set[str] = set()
    for node, key in keys.items():
        matching = [entry for entry in (key, *(f"{path}/*" for path in holders(_path(key)))) if entry in owner]
        names_something.update(matching)  # one that finer entries leave nothing is no mistake
        if matching:
            part_of[node] = owner[matching[0]]
        else:
            homeless.append(key)
    unused = tuple((entry, part) for entry, part in owner.items() if entry not in names_something)
    again, unknown = _again(parts, keys, part_of)
    return Fit(keys, part_of, tuple(homeless), (*unused, *unknown), tuple(doubled), again)


def _again(
    parts: Sequence[PartPlan], keys: Mapping[Node, str], part_of: Mapping[Node, str]
) -> tuple[dict[str, tuple[Node, ...]], list[tuple[str, str]]]:
    """What each part computes again, and the entries that name nothing."""
    covered: dict[str, list[Node]] = {}
    if any(part.again for part in parts):
        for node, key in keys.items():
            for entry in (key, *(f"{path}/*" for path in holders(_path(key)))):
                covered.setdefault(entry, []).append(node)
    again: dict[str, tuple[Node, ...]] = {}
    for part in parts:
        named = dict.fromkeys(node for entry in part.again for node in covered.get(entry, ()))
        if found := tuple(node for node in named if part_of.get(node, part.name) != part.name):
            again[part.name] = found
    return again, [(entry, part.name) for part in parts for entry in part.again if entry not in covered]


def assignment_of(plan: Plan, graph_module: GraphModule, given: Fit) -> Assignment:
    """Make a fit without gaps an Assignment, parts in the order of the plan.

    Raises:
        PartitionError: the parts stand in an order in which they cannot run.
        CycleError: parts would wait for each other.
    """
    used = set(given.part_of.values())
    order = [part.name for part in plan.parts if part.name in used]
    return Assignment.of(graph_module, given.part_of, order=order, replicas=given.again)


@attrs.frozen(eq=False)
class Refused:
    """An operator that a part shall compute again and must not, and why."""

    node: Node
    part: str
    why: str


def not_replicable(graph_module: GraphModule, given: Fit) -> list[Refused]:
    """Find what parts must not compute again: what is random, has an effect, or reads what is written."""
    if not given.again:
        return []
    effects = analyze_effects(graph_module)
    return [
        Refused(node, part, why)
        for part, nodes in given.again.items()
        for node in nodes
        if (why := why_not_replicable(node, effects))
    ]


def _path(key: str) -> str:
    return key.rpartition("/")[0]


def _stem(key: str) -> str:
    return key.rpartition("#")[0]


def _renamed_entry(entry: str, old: str, new: str) -> str:
    path, _, rest = entry.rpartition("/")
    if old not in holders(path):
        return entry
    steps = [step for step in (new, path[len(old) :].strip(".")) if step]
    return f"{'.'.join(steps)}/{rest}"


def refuse_unknown_module(parts: Sequence[PartPlan], path: str) -> None:
    """Refuse to rename what no entry names.

    Raises:
        PlanError: no entry is in a module of that path.
    """
    known = dict.fromkeys(each for part in parts for op in (*part.ops, *part.again) for each in holders(_path(op)))
    if path not in known:
        raise PlanError(f"The plan names nothing in {path or 'the model itself'!r}{nearest(path, list(known))}")


def guess_renames(parts: Sequence[PartPlan], given: Fit) -> dict[str, str]:
    """Which modules seem to have another name now: renaming them lets more of the plan fit.

    Args:
        parts: The parts of the plan.
        given: How they fit without renaming.

    Returns:
        New name by old name, the one that explains most first.
    """
    keys, nothing_fits = given.keys, given.fits_nothing
    renames: dict[str, str] = {}
    while len(renames) < MOST_RENAMES and given.homeless and given.unused:
        before = len(given.homeless) + len(given.unused)
        best = None
        for old, new in _candidates(given):
            tried = renamed(parts, old, new)
            outcome = fit(tried, keys)
            left = len(outcome.homeless) + len(outcome.unused)
            if left < before:
                best, before = (old, new, tried, outcome), left
        if best is None:
            break
        old, new, parts, given = best
        renames[old] = new
    entries = sum(len(part.ops) for part in parts)
    if nothing_fits and len(given.unused) > entries * MOST_UNEXPLAINED:
        return {}  # another model, where a few names happen to be alike
    return renames


def renamed(parts: Sequence[PartPlan], old: str, new: str) -> list[PartPlan]:
    """The parts after a module was renamed; ``""`` stands for the model itself."""
    return [
        attrs.evolve(
            part,
            ops=tuple(_renamed_entry(op, old, new) for op in part.ops),
            again=tuple(_renamed_entry(op, old, new) for op in part.again),
        )
        for part in parts
    ]


def _candidates(given: Fit, most: int = 6) -> list[tuple[str, str]]:
    """Pairs of module paths that differ in one step, or by steps in front, ordered by how often they occur."""
    votes: dict[tuple[str, str], int] = {}
    gone = dict.fromkeys(_path(entry) for entry, _part in given.unused)
    come = dict.fromkeys(path for key in given.homeless for path in holders(_path(key)))
    for old in list(gone)[:60]:
        for new in list(come)[:400]:
            if (pair := _difference(old, new)) is not None:
                votes[pair] = votes.get(pair, 0) + 1
    return sorted(votes, key=lambda pair: (-votes[pair], pair))[:most]


def _difference(old: str, new: str) -> tuple[str, str] | None:
    """The prefixes that differ between two paths, if that is all that differs."""
    if new.endswith(f".{old}") and old:
        return "", new.removesuffix(f".{old}")
    if old.endswith(f".{new}") and new:
        return old.removesuffix(f".{new}"), ""
    was, now = old.split("."), new.split(".")
    differing = [index for index, (a, b) in enumerate(zip(was, now, strict=False)) if a != b]
    if len(was) != len(now) or len(differing) != 1 or not old or not new:
        return None
    at = differing[0] + 1
    if was[at - 1].isdigit() and now[at - 1].isdigit():
        return None  # another layer, not a renamed one
    return ".".join(was[:at]), ".".join(now[:at])


def hints(plan: Plan, given: Fit, renames: Mapping[str, str]) -> list[str]:
    """What may have happened to the model since, as sentences; :func:`guess_renames` says what was renamed."""
    if renames:
        names = [(old or "the model", new or "the model") for old, new in renames.items()]
        said = ", ".join(f"{old!r} seems to be called {new!r} now" for old, new in names)
        return [f"{said}: plan.rename_modules({dict(renames)!r}) adapts the plan"]
    found = []
    if given.has_closed_region:
        return ["the graph has a region of autocast or of a grad mode as one operator: OpenRegions() takes it apart"]
    if given.names_closed_region:
        return ["regions of autocast and of grad modes are placed operator by operator: place the model again"]
    for key in given.homeless[:1]:
        counted = sum(_stem(other) == _stem(key) for other in given.keys.values())
        known = [op for part in plan.parts for op in part.ops if _stem(op) == _stem(key)]
        if known:
            operator = _stem(key).rpartition("/")[2]
            found.append(f"{_path(key) or 'the model'} has {counted} x {operator} now, the plan knows {len(known)}")
        elif close := get_close_matches(key, [op for part in plan.parts for op in part.ops], n=2, cutoff=0.5):
            found.append(f"nearest to {key} in the plan: {', '.join(close)}")
    for entry, _part in given.unused[:1]:
        there = dict.fromkeys(
            [*given.keys.values(), *(f"{path}/*" for key in given.keys.values() for path in holders(_path(key)))]
        )
        if close := get_close_matches(entry, list(there), n=2, cutoff=0.5):
            found.append(f"nearest to {entry} in the model: {', '.join(close)}")
    return found


def _names_region(entry: str) -> bool:
    return entry.rpartition("/")[2].partition("#")[0] in BODY_AT


@attrs.frozen(eq=False)
class Torn:
    """Two operators that must share a device and do not, and why they must."""

    first: Node
    second: Node
    why: str


def torn_apart(graph_module: GraphModule, home: Mapping[Node, str]) -> list[Torn]:
    """Find what a placement must not separate: a copy would get the writes, or a tuple would be sent whole.

    Args:
        graph_module: The graph.
        home: The device of each operator.

    Raises:
        MissingMetadataError: a node has neither a value nor a cost.
    """
    figures = GraphFigures.of(graph_module)
    torn = []
    for first, *others in must_share(figures):
        second = next((node for node in others if home[node] != home[first]), None)
        if second is not None:
            torn.append(Torn(first, second, _why_together((first, *others), second, figures)))
    return torn


def _why_together(group: Sequence[Node], second: Node, figures: GraphFigures) -> str:
    if isinstance(group[0].meta.get("val"), (tuple, list)):
        return f"{second.name} takes an element of the results of {group[0].name}"
    writer = next((node for node in reversed(group) if figures.effects.of(node).writes), None)
    if writer is not None:
        return f"both use what {writer.name} writes to"
    return "both run under one switch of torch's state"


def misfit(plan: Plan, given: Fit) -> str:
    """One message about all that does not fit: what, and what may have happened."""
    renames = guess_renames(plan.parts, given)
    if given.is_for_another_model and not renames:
        shown = listed([op for part in plan.parts for op in part.ops]) or "no operator"
        there = listed(given.keys.values())
        return (
            f"This is a plan for {plan.model}, another model: it names {shown}, and this model has {there}. "
            "Place this model, or take the plan that was written for it."
        )
    said = []
    if given.homeless:
        said.append(
            f"has no part for {listed(given.homeless)}; the model changed since: place it again, or add "
            f"{'the operator' if len(given.homeless) == 1 else 'the operators'} to a part"
        )
    if given.unused:
        it = "this line" if len(given.unused) == 1 else "these lines"
        entries = listed(entry for entry, _part in given.unused)
        said.append(
            f"names {entries}, which the model does not have; it changed since: place it again, or take {it} out"
        )
    for entry, first, second in given.doubled[:1]:
        said.append(f"gives {entry} to two parts, {first} and {second}; take it out of one")
    tips = "".join(f" ({tip})" for tip in hints(plan, given, renames))
    return f"The plan for {plan.model} " + ", and ".join(said) + tips + "."
