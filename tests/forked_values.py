"""Values with several users that need nothing from each other, for tests of training steps."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["Fork"]


class Fork(nn.Module):
    """A value with two users that need nothing from each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.first(x)
        return y.sin(), y.cos()
