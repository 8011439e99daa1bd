"""Levels of ``torch.vmap`` and of derivatives: graphs open and close them by operators, and leave them open on failing.

As long as one is open, torch takes all that runs for a part of a transform, and refuses ``backward()``.
"""

from __future__ import annotations

import torch

__all__ = ["close_levels", "open_levels"]


def open_levels() -> int:
    """How many levels are open."""
    depth: int = torch._C._functorch.get_dynamic_layer_stack_depth()
    return depth


def close_levels(kept: int) -> None:
    """Close those above the first ``kept``."""
    while open_levels() > kept:
        kind = torch._C._functorch.peek_interpreter_stack().key()
        getattr(torch._C._functorch, f"_{kind.name.lower()}_decrement_nesting")()
