"""A sequential model of which every module is a stage."""

from __future__ import annotations

from typing import Any

import torch

from fxpasses.pipelining.cuts.split_points import pipe_split

__all__ = ["PipeSequential"]


class PipeSequential(torch.nn.Sequential):
    """A ``Sequential`` of which every module is a stage of its own."""

    @classmethod
    def from_sequential(cls, sequential: torch.nn.Sequential) -> PipeSequential:
        """The same modules, with a split between each two."""
        return cls(*sequential)

    def forward(self, value: Any) -> Any:
        """Run one module after the other."""
        for index, module in enumerate(self):
            if index:
                pipe_split()
            value = module(value)
        return value
