"""Backwards that a captured program does not have: those of ``torch.autograd.Function`` classes.

``torch.export`` keeps the operators that such a function runs forward. Gradients of the program are those of these
operators, whatever the function's own ``backward`` says: through a straight-through estimator none come back. What is
captured by bytecode calls no such function, so nothing is known of it then.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fxpasses.wording import listed

__all__ = ["telling_lost_backwards"]

_OWN = ("torch.", "fxpasses.")
"""Whose functions say backward what their operators say."""


@contextmanager
def telling_lost_backwards() -> Iterator[None]:
    """Warn, afterwards, of the functions through which gradients would have flowed, if a model was run in here."""
    used: dict[str, None] = {}
    apply = torch.autograd.Function.__dict__["apply"]

    def noting(cls: Any, *args: Any, **kwargs: Any) -> Any:
        has_gradient = any(isinstance(each, torch.Tensor) and each.requires_grad for each in (*args, *kwargs.values()))
        if has_gradient and torch.is_grad_enabled() and not f"{cls.__module__}.".startswith(_OWN):
            used[cls.__qualname__] = None
        return apply.__func__(cls, *args, **kwargs)

    torch.autograd.Function.apply = classmethod(noting)  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        torch.autograd.Function.apply = apply  # type: ignore[method-assign]
    if used:
        warnings.warn(
            f"torch.export keeps what {listed(used)} computes forward, and not the backward that is written for it: "
            "gradients of the captured model are those of its operators. Capture under torch.no_grad() if there are to "
            "be none; if they differ, make it a custom operator (torch.library.custom_op with register_autograd).",
            stacklevel=2,
        )
