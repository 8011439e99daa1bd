"""Give one stage of a model on ``meta`` its values, so that no process ever holds the whole model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from fxpasses.errors import StageError
from fxpasses.pipelining.stages import StageModule
from fxpasses.wording import listed

__all__ = ["StateSource", "materialize", "refuse_empty"]

StateSource = Mapping[str, torch.Tensor] | Callable[[str, torch.Tensor], torch.Tensor | None]
"""Tensors by name, or a function of a name and an empty tensor, which fills the tensor or gives another."""

Made = dict[tuple[int, torch.device], torch.Tensor]


def materialize(stage: StageModule, index: int, device: torch.device, state: StateSource | None, made: Made) -> None:
    """Replace what is on ``meta`` in a stage by real tensors.

    Args:
        stage: The stage; its parameters and buffers are replaced, those of the model stay.
        index: Its number, for messages.
        device: Where the tensors go.
        state: Where the values come from.
        made: What was made before in this process, by the identity of the tensor on ``meta``: tied ones stay tied.

    Raises:
        StageError: A value is missing, or of another shape; nothing is replaced then.
    """
    ready: dict[tuple[int, str], torch.Tensor] = {}
    missing: list[str] = []
    fresh: Made = {}
    for table, field, name, entry in _entries(stage):
        key = (id(entry), device)
        value = made.get(key, fresh.get(key))
        if value is None and entry.device.type == "meta":
            value = _value_of(stage, name, entry, device, state)
        elif value is None:
            value = _like(entry, entry.detach().to(device))
        if value is None:
            missing.append(name)
        else:
            fresh[key] = ready[id(table), field] = value
    if missing:
        raise StageError(_missing_text(stage, index, missing))
    for table, field, _, entry in list(_entries(stage)):
        table[field] = ready[id(table), field]
        if entry.device.type == "meta":
            made[id(entry), device] = table[field]


def refuse_empty(stage: StageModule, index: int) -> None:
    """Refuse to run a stage that has no values.

    Raises:
        StageError: A parameter or buffer is on ``meta``.
    """
    empty = [name for _, _, name, entry in _entries(stage) if entry.device.type == "meta"]
    if empty:
        raise StageError(
            f"stage {index} has no values for {listed(map(repr, empty))}, which are on meta; call "
            f"pipe.materialize({index}, device, state) first"
        )


def _entries(stage: torch.nn.Module) -> Iterator[tuple[dict[str, Any], str, str, torch.Tensor]]:
    """Each parameter and buffer: the table that holds it, its name there, and the model's name."""
    for path, module in stage.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for table in (module._parameters, module._buffers):
            for field, entry in list(table.items()):
                if entry is not None:
                    yield table, field, prefix + field, entry


def _value_of(
    stage: StageModule, name: str, entry: torch.Tensor, device: torch.device, state: StateSource | None
) -> torch.Tensor | None:
    names = (name, *stage.aliases.get(name, ()))
    if state is None:
        return None
    if isinstance(state, Mapping):
        found = next((state[each] for each in names if each in state), None)
        if found is None:
            return None
        _check_shape(name, entry, found)
        return _like(entry, found.detach().to(device=device, dtype=entry.dtype, copy=True))
    empty = torch.empty_like(entry, device=device, requires_grad=False)
    given = state(name, empty)
    if given is not None:
        _check_shape(name, entry, given)
        empty = given.detach().to(device=device, dtype=entry.dtype)
    return _like(entry, empty)


def _check_shape(name: str, entry: torch.Tensor, found: torch.Tensor) -> None:
    if found.shape != entry.shape:
        raise StageError(
            f"the value for {name!r} has the shape {tuple(found.shape)}, but the model has {tuple(entry.shape)}; "
            "load a checkpoint of this model"
        )


def _like(entry: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    if isinstance(entry, torch.nn.Parameter):
        return torch.nn.Parameter(value, requires_grad=entry.requires_grad)
    return value


def _missing_text(stage: StageModule, index: int, missing: list[str]) -> str:
    saved = stage.state_dict(keep_vars=True)
    unsaved = [name for name in missing if name not in saved]
    text = f"stage {index} has no value for {listed(map(repr, missing))}"
    if unsaved:
        text += (
            f"; no checkpoint has {listed(map(repr, unsaved))} (not persistent): build the model under "
            "parameters_on_meta(), which computes buffers, or give the value in state"
        )
    return text
