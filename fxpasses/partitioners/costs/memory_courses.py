"""What is on each device over time: parameters, and values that come and go, in positions of a schedule."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np
from numpy.typing import NDArray
from torch.fx import Node

from fxpasses.partitioners.costs.device_storages import DeviceStorages, Place

__all__ = ["DeviceMemory", "Life", "MemoryCourse"]


@attrs.frozen
class DeviceMemory:
    """Bytes on one device.

    Args:
        parameters: Parameters, buffers and constants; tied ones once.
        activations: Most bytes of values alive at one time, copies included.
        copies: Most bytes of received copies alive at one time.
        gradients: Gradients of the parameters, in training.
        optimizer_state: What the optimizer keeps, in training.
    """

    parameters: int = 0
    activations: int = 0
    copies: int = 0
    gradients: int = 0
    optimizer_state: int = 0

    @property
    def peak(self) -> int:
        """The most bytes held at one time: what has to fit the budget."""
        return self.parameters + self.activations + self.gradients + self.optimizer_state


@attrs.define
class Life:
    """From when to when a storage is on a device, in positions of the schedule, both included.

    Args:
        start: The position at which it comes.
        stop: The last position at which it is there; the length of the schedule for what the model returns.
        size: Bytes.
        copied: Whether it was received from another device, or from the caller.
        value: The first node whose value is in it.
        inside: Whether it is what an operator needs for itself while it runs.
        place: What tells it from others; None for what is no value.
    """

    start: int
    stop: int
    size: int
    copied: bool
    value: Node
    inside: bool = False
    place: Place | None = None


@attrs.frozen(eq=False)
class MemoryCourse:
    """What is on each device while the parts run one after the other.

    Args:
        schedule: The nodes of all parts in the order in which they run.
        held: Bytes of parameters, buffers and constants on each device.
        lives: What comes and goes on each device.
        state: Of what is held, the bytes that are no parameters.
        storages: Where each value lives on each device.
        unread: Of what is held, the bytes that no operator reads: they stay where the model lay before it was placed.
    """

    schedule: tuple[Node, ...]
    held: Mapping[str, int]
    lives: Mapping[str, tuple[Life, ...]]
    state: Mapping[str, int] = attrs.field(factory=dict)
    storages: DeviceStorages = attrs.field(factory=DeviceStorages)
    unread: Mapping[str, int] = attrs.field(factory=dict, kw_only=True)

    @property
    def forward(self) -> tuple[Node, ...]:
        """The schedule of the forward."""
        return self.schedule

    def curve(self, device: str, *, copies_only: bool = False) -> NDArray[np.int64]:
        """Bytes that come and go on a device while each node of the schedule runs, and after the last one."""
        end = len(self.schedule)
        change = np.zeros(end + 2, dtype=np.int64)
        for life in self.lives[device]:
            if life.copied or not copies_only:
                change[life.start] += life.size
                change[min(life.stop, end) + 1] -= life.size
        curve: NDArray[np.int64] = np.cumsum(change)[: end + 1]
        return curve

    def fullest(self, device: str) -> int:
        """The first position at which most is on a device."""
        return int(np.argmax(self.curve(device)))

    def node_at(self, position: int) -> Node | None:
        """The node that runs at a position, the last one after all of them; None where nothing runs."""
        return self.schedule[min(position, len(self.schedule) - 1)] if self.schedule else None

    def memory(self, device: str) -> DeviceMemory:
        """The most of everything on one device."""
        activations = int(self.curve(device).max(initial=0))
        return DeviceMemory(self.held[device], activations, int(self.curve(device, copies_only=True).max(initial=0)))
