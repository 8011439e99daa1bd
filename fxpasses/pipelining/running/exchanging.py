"""Sums and broadcasts among some ranks of a pipeline, from one rank to another, without a process group of their own.

torch names a group that only its members make after the groups that each of them already has; where these differ the
members wait for each other for ever. Point-to-point exchanges over the pipeline's own group cannot.
"""

from __future__ import annotations

import attrs
import torch
import torch.distributed as dist

__all__ = ["Holders"]


@attrs.frozen
class Holders:
    """The ranks that hold something in common.

    Args:
        ranks: Their global ranks, at least two; the first one adds up, in this order, so that all get the same bits.
        group: The processes of the pipeline; None for all.
    """

    ranks: tuple[int, ...]
    group: dist.ProcessGroup | None

    def all_reduce(self, value: torch.Tensor) -> None:
        """Add up a contiguous tensor in place; to be called on every one of the ranks."""
        first, *others = self.ranks
        if dist.get_rank() == first:
            for other in others:
                arrived = torch.empty_like(value)
                dist.recv(arrived, src=other, group=self.group)
                value += arrived
        else:
            dist.send(value, dst=first, group=self.group)
        self.broadcast(value, first)

    def broadcast(self, value: torch.Tensor, source: int) -> None:
        """Give all ranks the value that one of them has."""
        if dist.get_rank() != source:
            dist.recv(value, src=source, group=self.group)
            return
        for other in self.ranks:
            if other != source:
                dist.send(value, dst=other, group=self.group)
