"""One load of a parameter from main memory to a device."""

from __future__ import annotations

import attrs
from torch.fx import Node

__all__ = ["ParameterLoad"]


@attrs.frozen(eq=False)
class ParameterLoad:
    """One load of one run, and what a training step makes of it.

    Args:
        value: What is loaded.
        part: For which part.
        last_position: The position of the schedule until which it stays.
        size: Bytes.
        seconds: How long it takes.
        again: How many backwards load it again, and wait for it.
        is_trained: Whether its gradient goes back, which is as large.
    """

    value: Node
    part: str
    last_position: int
    size: int
    seconds: float
    again: int = 0
    is_trained: bool = False

    @property
    def times(self) -> int:
        """How often so many bytes cross in a run, or in a training step."""
        return 1 + self.again + self.is_trained
