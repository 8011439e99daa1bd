"""Copies of containers that share what is in them, and comparisons by identity: what a snapshot is made of."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any

import torch

from fxpasses.effects.aliasing import storage_key
from fxpasses.journal.changes import ChangeParts

__all__ = [
    "CONTAINERS",
    "DICTS",
    "MISSING",
    "TensorState",
    "copied",
    "copied_meta",
    "describe_tensor",
    "equal_meta",
    "put_back",
    "refill",
    "restore_requires_grad",
    "same_container",
    "same_fields",
    "tensor_state",
    "what_happened",
]

DICTS: frozenset[Any] = frozenset({dict, OrderedDict, defaultdict})


CONTAINERS: frozenset[Any] = DICTS | {list, set}


MISSING: Any = object()


def copied(entry: Any) -> Any:
    """The entry itself, or a copy if it is a container, so that what is written into it later is not seen here."""
    kind = type(entry)
    if kind not in CONTAINERS:
        return entry
    made = entry.copy()
    parts = made.items() if kind in DICTS else enumerate(made) if kind is list else ()
    for key, part in parts:
        if type(part) in CONTAINERS:
            made[key] = copied(part)
    return made


def copied_meta(meta: dict[str, Any]) -> dict[str, Any]:
    """A copy of ``node.meta`` whose containers are copies too."""
    made = meta.copy()
    for key, entry in meta.items():
        if type(entry) in CONTAINERS:
            made[key] = copied(entry)
    return made


def put_back(live: dict[Any, Any], saved: Mapping[Any, Any]) -> None:
    """Make ``live`` equal to ``saved``; containers in it keep their identity where they are still there."""
    for key, entry in saved.items():
        now = live.get(key, MISSING)
        if type(entry) in DICTS and type(now) is type(entry):
            put_back(now, entry)
        elif type(entry) is list and type(now) is list:
            now[:] = copied(entry)
        elif now is not entry:
            live[key] = copied(entry)
    if list(live) != list(saved):
        ordered = {key: live[key] for key in saved}
        live.clear()
        live.update(ordered)


def refill(live: dict[Any, Any], saved: Mapping[Any, Any]) -> None:
    """Make ``live`` hold exactly what ``saved`` holds, in its order."""
    if live != saved or list(live) != list(saved):
        live.clear()
        live.update(saved)


def equal_meta(left: Sequence[Mapping[str, Any]], right: Sequence[Mapping[str, Any]]) -> bool:
    """Whether no entry was written or replaced."""
    try:
        return bool(left == right)  # identical entries are not compared, so tensors in there cost nothing
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        return False  # two different tensors under one key: the comparison gives a tensor, and the entry was replaced


def same_fields(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether two tables hold the same objects, in the same order."""
    return list(left) == list(right) and all(map(is_, left.values(), right.values()))


def same_container(left: Any, right: Any) -> bool:
    """Whether two containers hold the same objects."""
    if type(left) is not type(right) or len(left) != len(right):
        return False
    if isinstance(left, dict):
        return same_fields(left, right)
    if isinstance(left, list):
        return all(map(is_, left, right))
    return bool(left == right)


def what_happened(left: Mapping[str, Any], right: Mapping[str, Any], key: str) -> str | None:
    """Whether ``key`` was added, removed or replaced; None if neither."""
    if key not in left:
        return "added"
    if key not in right:
        return "removed"
    return None if left[key] is right[key] else "replaced"


TensorState = tuple[int | None, tuple[str, int], bool]
"""How often a tensor was written in place, which memory it has, whether it requires a gradient."""


def tensor_state(tensor: torch.Tensor) -> TensorState:
    """What can be seen of a tensor without reading it; equal states mean that nobody touched it."""
    version = None if tensor.is_inference() else tensor._version  # inference tensors do not count their writes
    return version, storage_key(tensor), tensor.requires_grad


def restore_requires_grad(tensors: Mapping[str, torch.Tensor], states: Mapping[str, TensorState]) -> None:
    """Put back the one thing about a tensor that can be: whether it requires a gradient."""
    for name, tensor in tensors.items():
        if tensor.requires_grad != states[name][2]:
            tensor.requires_grad_(states[name][2])


def describe_tensor(name: str, before: TensorState, after: TensorState, parts: ChangeParts) -> None:
    """Note what happened to a tensor that is still the same object."""
    if before[:2] != after[:2]:
        parts.written.append(name)
    if before[2] != after[2]:
        parts.attributes[name] = "requires_grad changed"
