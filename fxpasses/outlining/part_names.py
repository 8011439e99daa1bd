"""What the submodule of a part is called: as somebody wishes, where Python and modules leave the name free."""

from __future__ import annotations

import functools
import keyword
from collections.abc import Callable, Hashable, Iterable, Mapping

import torch
from torch.fx import Graph, GraphModule

__all__ = ["PartNames", "identifier", "is_taken", "unique_name", "wished_names"]

PartNames = Mapping[Hashable, str] | Callable[[Hashable], str]


def wished_names(order: Iterable[Hashable], names: PartNames | None, prefix: str = "submod_") -> dict[Hashable, str]:
    """A name for each part, each another one: the wished one as an identifier, or else the prefix and the part."""
    wished: dict[Hashable, str] = {}
    used: set[str] = set()
    for partition in order:
        given = names(partition) if callable(names) else (names or {}).get(partition)
        wished[partition] = unique_name(identifier(given or f"{prefix}{partition}"), used)
    return wished


def is_taken(name: str) -> bool:
    """Whether no submodule can have a name: a word of Python, or what every graph module has under it."""
    return keyword.iskeyword(name) or name == "self" or hasattr(_empty(), name)


@functools.cache
def _empty() -> GraphModule:
    return GraphModule(torch.nn.Module(), Graph())


def identifier(name: str) -> str:
    """A name as an identifier that is free: strange letters become ``_``, and a name that is taken gets one more."""
    cleaned = "".join(letter if letter.isalnum() or letter == "_" else "_" for letter in str(name))
    if is_taken(cleaned):
        return f"{cleaned}_"
    return cleaned if cleaned[:1].isalpha() or cleaned[:1] == "_" else f"_{cleaned}"


def unique_name(name: str, used: set[str]) -> str:
    """The name, or the first one with a number that is not in use; it is in use from now on."""
    fresh, number = name, 0
    while fresh in used:
        number += 1
        fresh = f"{name}_{number}"
    used.add(fresh)
    return fresh
