"""Parameters of a lowered model in the model's own order, for whoever counts them: optimizers, averages of weights."""

from __future__ import annotations

import copy
from collections.abc import ItemsView, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["list_in_order", "listing_its_own"]


class _InOrder(dict[str, torch.nn.Parameter]):
    """What a lowered model itself holds, mostly nothing; whoever goes through it gets what its parts hold, in order.

    Torch goes through the parameters of a module before those of the modules in it, also from a module around it, and
    takes each once: so the order here counts everywhere.
    """

    def __init__(self, held: Mapping[str, torch.nn.Parameter], module: torch.nn.Module, places: Mapping[str, int]):
        super().__init__(held)
        self._module, self._places = module, places

    def items(self) -> ItemsView[str, torch.nn.Parameter]:  # type: ignore[override]  # no class that can be named
        """Of the parts under their names here, then its own; those that the model did not have come last."""
        found = {
            f"{prefix}.{name}": parameter
            for prefix, part in self._module.named_modules()
            if part is not self._module
            for name, parameter in part._parameters.items()
            if parameter is not None
        }
        last = len(self._places)
        ordered = sorted(found, key=lambda name: self._places.get(name, last))
        return {**{name: found[name] for name in ordered}, **dict(super().items())}.items()

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, torch.nn.Parameter]:
        """A copy lists its own, until it is told the order."""
        return {name: copy.deepcopy(parameter, memo) for name, parameter in super().items()}

    def own(self) -> dict[str, torch.nn.Parameter]:
        """What the module itself holds."""
        return dict(super().items())


def list_in_order(module: torch.nn.Module, places: Mapping[str, int]) -> None:
    """Let parameters of a module's parts be listed in an order.

    Args:
        module: Holds the parts.
        places: The place of each parameter, by its name here.
    """
    vars(module)["_parameters"] = _InOrder(
        {name: own for name, own in module._parameters.items() if own is not None}, module, places
    )


@contextmanager
def listing_its_own(module: torch.nn.Module) -> Iterator[None]:
    """While torch changes or replaces what each module holds, every parameter is met where it is held, once."""
    listing = vars(module)["_parameters"]
    if not isinstance(listing, _InOrder):
        yield
        return
    vars(module)["_parameters"] = held = listing.own()
    try:
        yield
    finally:
        listing.clear()
        listing.update(held)
        vars(module)["_parameters"] = listing
