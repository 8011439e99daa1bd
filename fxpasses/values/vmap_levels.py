"""Levels of ``torch.vmap`` and of derivatives: graphs open and close them by operators, and leave them open on failing.

As long as one is open, torch takes all that runs for a part of a transform, and refuses ``backward()``; in derivatives
it refuses hooks of saved tensors, too, and goes on to after their levels are closed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["Levels", "close_levels", "open_levels"]


class Levels(NamedTuple):
    """How many levels are open, why hooks of saved tensors are refused, if they are, and whether tangents are taken."""

    depth: int
    refused: str | None
    has_tangents: bool = False


def open_levels() -> Levels:
    """What is open."""
    return Levels(
        torch._C._functorch.get_dynamic_layer_stack_depth(),
        torch._C._autograd._saved_tensors_hooks_get_disabled_error_message(),
        _has_tangents(),
    )


def _has_tangents() -> bool:
    """Whether the one level of tangents is open, of which torch only says that there can be no other."""
    try:
        torch._C._exit_dual_level(level=torch._C._enter_dual_level())
    except RuntimeError:
        return True
    return False


def close_levels(kept: Levels) -> None:
    """Close all levels above those."""
    if _has_tangents() and not kept.has_tangents:
        torch._C._exit_dual_level(level=0)
    while torch._C._functorch.get_dynamic_layer_stack_depth() > kept.depth:
        kind = torch._C._functorch.peek_interpreter_stack().key()
        getattr(torch._C._functorch, f"_{kind.name.lower()}_decrement_nesting")()
    refused = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()
    if refused is not None and kept.refused is None:
        torch._C._autograd._saved_tensors_hooks_enable()
    elif kept.refused is not None and refused is None:
        torch._C._autograd._saved_tensors_hooks_disable(kept.refused)
