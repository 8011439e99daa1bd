"""What the submodule of a part is called: as somebody wishes, where Python and modules leave the name free."""

from __future__ import annotations

import functools
import keyword
from collections.abc import Callable, Hashable, Iterable, Mapping

import torch
from torch.fx import Graph, GraphModule

__all__ = ["PartNames", "identifier", "is_taken", "numbered_names", "plain", "unique_name", "wished_names"]

PartNames = Mapping[Hashable, str] | Callable[[Hashable], str]


def wished_names(order: Iterable[Hashable], names: PartNames | None) -> dict[Hashable, str]:
    """A name for each part, each another one: the wished one as an identifier, or else ``submod_`` and the part."""
    wished: dict[Hashable, str] = {}
    used: set[str] = set()
    for partition in order:
        given = names(partition) if callable(names) else (names or {}).get(partition)
        wished[partition] = unique_name(identifier(given or f"submod_{partition}"), used)
    return wished


def numbered_names(order: Iterable[Hashable], prefix: str) -> dict[Hashable, str]:
    """The prefix and the part, as ``split_module`` of torch names parts, as far as such a name can be."""
    used: set[str] = set()
    return {partition: unique_name(child_name(f"{prefix}{partition}"), used) for partition in order}


def is_taken(name: str) -> bool:
    """Whether no submodule can have a name: a word of Python, or what every graph module has under it."""
    return keyword.iskeyword(name) or name == "self" or hasattr(_empty(), name)


@functools.cache
def _empty() -> GraphModule:
    return GraphModule(torch.nn.Module(), Graph())


def identifier(name: str) -> str:
    """A name as an identifier that is free: strange letters become ``_``, and a name that is taken gets one more."""
    cleaned = plain(str(name))
    if is_taken(cleaned):
        return f"{cleaned}_"
    return cleaned if cleaned[:1].isalpha() or cleaned[:1] == "_" else f"_{cleaned}"


def child_name(name: str) -> str:
    """A name as it is, if generated code can ask for such a child (``submod_-1``); else as an identifier."""
    is_askable = name.isprintable() and not any(letter in name for letter in '."\\')
    return name if name and is_askable and not is_taken(name) else identifier(name)


def plain(name: str) -> str:
    """A name in which strange letters are ``_``."""
    return "".join(letter if letter.isalnum() or letter == "_" else "_" for letter in name)


def unique_name(name: str, used: set[str]) -> str:
    """The name, or the first one with a number that is not in use; it is in use from now on."""
    fresh, number = name, 0
    while fresh in used:
        number += 1
        fresh = f"{name}_{number}"
    used.add(fresh)
    return fresh
