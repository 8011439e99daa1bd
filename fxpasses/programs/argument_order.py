"""The arguments of a graph that was captured before, as it takes them.

``torch.export`` gives the inputs of a graph module to its placeholders one after the other, as they come: keyword
inputs, and entries of dictionaries, in another order than the captured one would be taken for each other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule

from fxpasses.programs.input_contract import in_order

__all__ = ["in_captured_order"]


def in_captured_order(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments by position and by keyword as a graph was captured with; those of other modules as they are.

    Raises:
        InputError: one has another structure.
    """
    info = getattr(model.graph._codegen, "pytree_info", None) if isinstance(model, GraphModule) else None
    if info is None or info.in_spec is None or info.in_spec.num_children != 2:
        return args, kwargs
    by_position, by_keyword = info.in_spec.children()
    keywords = list(by_keyword.context or ())
    names = [*info.orig_args[: by_position.num_children], *keywords]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if len(args) > len(names) or len(given) != len(args) + len(kwargs) or given.keys() != {*names}:
        return args, kwargs  # too many, too few or unknown ones, of which whoever runs it tells
    specs = (*by_position.children(), *by_keyword.children())
    ordered = {name: in_order(given[name], spec, name) for name, spec in zip(names, specs, strict=True)}
    return tuple(ordered[name] for name in names[: by_position.num_children]), {key: ordered[key] for key in keywords}
