"""Recurrent cells in some steps, for tests of placements."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["Steps"]


class Steps(nn.Module):
    """Two cells in some steps: the parameters of each are used again and again."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.GRUCell(width, width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        states: list[Tensor | None] = [None, None]
        for step in x.unbind(0):
            for index, cell in enumerate(self.cells):
                step = states[index] = cell(step, states[index])
        return step
