"""A model that is lowered onto the torch device ``meta`` can be looked at, not run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
import torch

from fxpasses.devices import Device, holds_no_data
from fxpasses.errors import PlacementError

__all__ = ["refuse_to_run_on_paper"]


@attrs.frozen
class _Refusal:
    """Stands before each call."""

    device: Device

    def __call__(self, _module: Any, _args: Any) -> None:
        raise PlacementError(
            f"The device {self.device.name!r} is the torch device {self.device.torch_device}, which holds no data: the "
            "lowered model can be looked at, not run; to run it, give another torch_device, such as cpu."
        )


def refuse_to_run_on_paper(lowered: torch.nn.Module, devices: Iterable[Device]) -> None:
    """Let a module say in one sentence, when it is called, that one of its devices holds no data."""
    device = next((device for device in devices if holds_no_data(device.torch_device)), None)
    if device is not None:
        lowered.register_forward_pre_hook(_Refusal(device), prepend=True)
