"""Lay a plan over a graph: which operator gets which part, and what does not fit.

An entry that names an operator counts before one that names a module, and an inner module before an outer one. What
only handles sizes needs no entry (:mod:`fxpasses.plan.size_operators`), and an entry for it may name nothing: which
sizes are numbers differs between two exports of one model.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import attrs
from torch.fx import Node

from fxpasses.outlining.regions import is_region
from fxpasses.partitioners.placing.worthwhile_cuts import is_worth_cutting
from fxpasses.plan.keys import covering_entries, names_region, names_size, path_in
from fxpasses.plan.parts import PartPlan
from fxpasses.plan.size_operators import with_sizes

__all__ = ["Fit", "fit"]


@attrs.frozen(eq=False)
class Fit:
    """What became of the entries of a plan, and of the operators of a graph.

    Args:
        keys: The stable key of each operator.
        part_of: The part of each operator that has one.
        homeless: Keys of operators that no entry names.
        unused: Entries that name nothing that the graph has, with their parts; but for those of sizes.
        doubled: Entries that stand in two parts, with both.
        again: What each part computes again, without what is its own anyway.
        again_by_entry: The same, entry by entry: the part, the entry, and the operators that it names.
    """

    keys: Mapping[Node, str]
    part_of: Mapping[Node, str]
    homeless: tuple[str, ...]
    unused: tuple[tuple[str, str], ...]
    doubled: tuple[tuple[str, str, str], ...]
    again: Mapping[Any, tuple[Node, ...]] = attrs.field(factory=dict)
    again_by_entry: tuple[tuple[str, str, tuple[Node, ...]], ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every operator has one part, and every entry an operator."""
        return not (self.homeless or self.unused or self.doubled)

    @property
    def fits_nothing(self) -> bool:
        """Whether no operator has a part; those in no module do not count where the plan names modules in vain.

        A last ``/mul#0`` is in many models.
        """
        names_modules = any(path_in(entry) for entry, _part in self.unused)
        fitting = [node for node in self.part_of if path_in(self.keys[node]) or not names_modules]
        return bool(self.keys) and not fitting

    @property
    def is_for_another_model(self) -> bool:
        """Whether nothing fits, and not because regions were one operator in one of the two."""
        return self.fits_nothing and not (self.has_closed_region or self.names_closed_region)

    @property
    def has_closed_region(self) -> bool:
        """Whether a region that had better be opened is one operator of the graph, which no entry names."""
        without_part = (node for node in self.keys if node not in self.part_of)
        return any(is_region(node) and is_worth_cutting(node) for node in without_part)

    @property
    def names_closed_region(self) -> bool:
        """Whether the plan names a region that the graph does not have as one operator."""
        return any(names_region(entry) for entry, _part in self.unused)


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
    names_something: set[str] = set()
    for node, key in keys.items():
        matching = [entry for entry in covering_entries(key) if entry in owner]
        names_something.update(matching)  # one that finer entries leave nothing is no mistake
        if matching:
            part_of[node] = owner[matching[0]]
    part_of = _with_sizes(parts, keys, part_of, owner)
    homeless = [key for node, key in keys.items() if node not in part_of]
    unused = tuple(each for each in owner.items() if each[0] not in names_something and not names_size(each[0]))
    by_entry, unknown = _again(parts, keys, part_of)
    again: dict[str, tuple[Node, ...]] = {}
    for part, _entry, nodes in by_entry:
        again[part] = tuple(dict.fromkeys((*again.get(part, ()), *nodes)))
    return Fit(keys, part_of, tuple(homeless), (*unused, *unknown), tuple(doubled), again, by_entry)


def _with_sizes(
    parts: Sequence[PartPlan], keys: Mapping[Node, str], part_of: Mapping[Node, str], owner: Container[str]
) -> dict[Node, str]:
    """The part of each operator, what handles sizes included."""
    names = list(dict.fromkeys(part.name for part in parts))
    rank = {name: place for place, name in enumerate(names)}
    again: dict[Node, int] = {}
    for part, _entry, nodes in _again(parts, keys, part_of)[0]:
        for node in nodes:
            again.setdefault(node, rank[part])
    named = {node for node, key in keys.items() if key in owner}
    places = with_sizes(list(keys), {node: rank[name] for node, name in part_of.items()}, named, again)
    return {node: names[places[node]] for node in keys if node in places}


def _again(
    parts: Sequence[PartPlan], keys: Mapping[Node, str], part_of: Mapping[Node, str]
) -> tuple[tuple[tuple[str, str, tuple[Node, ...]], ...], list[tuple[str, str]]]:
    """What each part computes again, by entries, and the entries that name nothing."""
    covered: dict[str, list[Node]] = {}
    if any(part.again for part in parts):
        for node, key in keys.items():
            for entry in covering_entries(key):
                covered.setdefault(entry, []).append(node)
    given = [(part.name, entry) for part in parts for entry in part.again]
    named = (
        (part, entry, tuple(node for node in covered.get(entry, ()) if part_of.get(node, part) != part))
        for part, entry in given
    )
    unknown = [(entry, part) for part, entry in given if entry not in covered and not names_size(entry)]
    return tuple(found for found in named if found[2]), unknown
