"""Checkpoints of a placed graph under the model's own names, though each part holds what it uses."""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import attrs
import torch

__all__ = ["keep_own_names"]


def keep_own_names(graph_module: torch.nn.Module, parts: Iterable[str]) -> None:
    """Let ``state_dict`` and ``load_state_dict`` leave out the names of parts.

    A name that would then stand for two different tensors keeps its part.

    Args:
        graph_module: The top level of a split.
        parts: The names of its parts.
    """
    left_out = (
        f"{path}.{name}" if path else name
        for path, module in graph_module.named_modules(remove_duplicate=False)
        for name in sorted(module._non_persistent_buffers_set)
    )
    names = _OwnNames(tuple(parts), frozenset(left_out))
    # torch notes something on each hook, which a bound method does not take
    rename, expect, tell = (functools.partial(hook) for hook in (names.rename, names.expect, names.tell))
    graph_module.register_state_dict_post_hook(rename)  # type: ignore[no-untyped-call]  # torch does not say
    graph_module.register_load_state_dict_pre_hook(expect)  # type: ignore[no-untyped-call]
    graph_module.register_load_state_dict_post_hook(tell)  # type: ignore[no-untyped-call]


@attrs.frozen
class _OwnNames:
    """The hooks.

    Args:
        parts: The names of the parts.
        left_out: The buffers that are in no checkpoint; torch forgets that of them in a copy of a graph.
    """

    parts: tuple[str, ...]
    left_out: frozenset[str]

    def by_name_here(self, module: torch.nn.Module) -> dict[str, str]:
        """The model's name of each tensor that a part holds, by its name here."""
        held: dict[str, dict[str, torch.Tensor]] = {}
        for kind in (module.named_parameters, module.named_buffers):
            for here, tensor in kind(remove_duplicate=False):
                part, _, own = here.partition(".")
                held.setdefault(own if part in self.parts else here, {})[here] = tensor
        return {here: own for own, all_of in held.items() if len({*map(id, all_of.values())}) == 1 for here in all_of}

    def rename(self, module: torch.nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
        """After ``state_dict``."""
        names = {prefix + here: prefix + own for here, own in self.by_name_here(module).items()}
        gone = {prefix + here for here in self.left_out}
        entries = [(key, value) for key, value in state.items() if key not in gone]
        state.clear()
        state.update((names.get(key, key), value) for key, value in entries)

    def expect(self, module: torch.nn.Module, state: dict[str, Any], prefix: str, *_others: Any) -> None:
        """Before ``load_state_dict``, which asks for the names here."""
        names = self.by_name_here(module)
        given = {own: state[prefix + own] for own in set(names.values()) if prefix + own in state}
        for own in given:
            del state[prefix + own]
        state.update((prefix + here, given[own]) for here, own in names.items() if own in given)

    def tell(self, module: torch.nn.Module, keys: Any) -> None:
        """After it: what is missing, also where the graph is in a module, whose name then comes first."""
        names = self.by_name_here(module)
        missing = (key for key in keys.missing_keys if not _is_one_of(key, self.left_out))
        keys.missing_keys[:] = dict.fromkeys(_renamed(key, names) for key in missing)


def _tails(key: str) -> Iterator[str]:
    """A key without the names of modules around, from none to all."""
    steps = key.split(".")
    return (".".join(steps[at:]) for at in range(len(steps)))


def _is_one_of(key: str, names: Container[str]) -> bool:
    return any(tail in names for tail in _tails(key))


def _renamed(key: str, names: Mapping[str, str]) -> str:
    """A key of which the end is a name here, with the model's own in its place."""
    tail = next((tail for tail in _tails(key) if tail in names), None)
    return key if tail is None else key.removesuffix(tail) + names[tail]
