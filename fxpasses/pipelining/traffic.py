"""What travels between stages and what is computed again, for reports."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from fxpasses.pipelining.routes import Route

__all__ = ["Hop", "Traffic"]


@attrs.frozen
class Hop:
    """What one stage sends to the next with each micro-batch; a gradient of the same size comes back.

    Args:
        sender: The number of the stage that sends.
        values: The name and the bytes of each value, in the order in which they are sent.
        worked_out: Sizes that the receiver reads off the shapes.
    """

    sender: int
    values: tuple[tuple[str, int], ...]
    worked_out: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """All bytes of one micro-batch."""
        return sum(size for _, size in self.values)


@attrs.frozen
class Traffic:
    """All hops of a pipe, and what each stage computes again instead of receiving it.

    Args:
        hops: From each stage to the next.
        recomputed: For each stage, the names of the nodes of earlier stages that it computes itself.
    """

    hops: tuple[Hop, ...]
    recomputed: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, routes: Sequence[Route], recomputed: tuple[tuple[str, ...], ...]) -> Traffic:
        """Read the traffic off the routes."""
        hops = [
            Hop(
                sender,
                tuple((traveller.name, traveller.bytes) for traveller in route.received),
                tuple(worked.name for worked in route.worked_out),
            )
            for sender, route in enumerate(routes[1:])
        ]
        return cls(tuple(hops), recomputed)

    def __str__(self) -> str:
        lines = [
            f"stage {hop.sender} -> {hop.sender + 1}: {hop.bytes} bytes"
            + "".join(f"\n  {name}: {size} bytes" for name, size in hop.values)
            for hop in self.hops
        ]
        lines += [
            f"stage {stage} computes again: {', '.join(names)}" for stage, names in enumerate(self.recomputed) if names
        ]
        return "\n".join(lines) or "one stage, nothing travels"
