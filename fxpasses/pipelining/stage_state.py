"""Which state each stage holds, and under which of the model's names."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch.fx import GraphModule

from fxpasses.editing.attributes import find_attribute, install_attribute
from fxpasses.passes.splitting import Split

__all__ = ["aliases_in", "copied_parameters", "give_unused_state", "tied_names"]


def tied_names(source: GraphModule) -> dict[str, tuple[str, ...]]:
    """The other names of each tensor of the state that has several."""
    groups: dict[int, list[str]] = {}
    for name, value in source.state_dict(keep_vars=True).items():
        groups.setdefault(id(value), []).append(name)
    tied = [names for names in groups.values() if len(names) > 1]
    return {name: tuple(other for other in names if other != name) for names in tied for name in names}


def give_unused_state(cut: Split, parts: Sequence[GraphModule], aliases: Mapping[str, Sequence[str]]) -> None:
    """Put state that no operator uses into the stage with its nearest relatives, so that no checkpoint misses it."""
    names = [list(part.state_dict()) for part in parts]
    used = {name for held in names for name in held}
    for name in cut.source.state_dict():
        if name in used or used.intersection(aliases.get(name, ())):
            continue
        near = [max((_common_atoms(name, other) for other in held), default=0) for held in names]
        install_attribute(parts[near.index(max(near))], name, find_attribute(cut.source, name))


def _common_atoms(first: str, second: str) -> int:
    pairs = zip(first.split("."), second.split("."), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def aliases_in(part: torch.nn.Module, aliases: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """The names of tied state that a part does not hold itself, by the name that it holds."""
    held = part.state_dict()
    return {name: [other for other in aliases[name] if other not in held] for name in held if name in aliases}


def copied_parameters(cut: Split) -> list[dict[str, str]]:
    """Parameters that several stages hold: for each the model's name of it, by the name of the stage's module."""
    stages = set(cut.part_names.values())
    parameters = dict(cut.graph_module.named_parameters(remove_duplicate=False))
    groups = [
        {
            name.partition(".")[0]: cut.original_names.get(name, name)
            for name in names
            if name.partition(".")[0] in stages
        }
        for names in cut.shared
        if names[0] in parameters
    ]
    return [group for group in groups if len(group) > 1]
