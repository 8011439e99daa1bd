"""Names that every lowered model uses itself, so that nothing of the model and no part can be held under them."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

from fxpasses.errors import CaptureError
from fxpasses.lowering.lowered_module import LoweredModule

__all__ = ["is_taken_by_lowered_models", "refuse_taken_names"]


def is_taken_by_lowered_models(name: str) -> bool:
    """Whether each lowered model has something by a name that other modules have not."""
    return name in LoweredModule.__annotations__ or (
        hasattr(LoweredModule, name) and not hasattr(torch.nn.Module, name)
    )


def refuse_taken_names(placed: GraphModule) -> None:
    """Refuse a placed graph that holds something of the model under such a name; what is in a part has any name.

    Raises:
        CaptureError: a module, parameter or buffer at the top of the model is called so.
    """
    held = (*placed._parameters, *placed._buffers, *placed._modules, *vars(placed))
    if (name := next(filter(is_taken_by_lowered_models, held), None)) is not None:
        raise CaptureError(
            f"The model has a module, parameter or buffer called {name!r} that no part holds alone, and so is "
            "something that every lowered model has; give it another name, or lower a module that holds the model.",
            reason=f"{name!r} is an attribute of every lowered model",
        )
