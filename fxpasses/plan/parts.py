"""One part of a plan: its device, and the operators and whole modules in it."""

from __future__ import annotations

import attrs

__all__ = ["PartPlan"]


@attrs.frozen
class PartPlan:
    """One part: its name, its device, and the operators or whole modules in it.

    With ``offload="cpu"`` its parameters stay in main memory and are loaded in each run, one part ahead. ``again``
    names operators of other parts that it computes again, for itself and the later parts of its device, instead of
    having their values sent.
    """

    name: str
    device: str
    ops: tuple[str, ...]
    offload: str | None = None
    again: tuple[str, ...] = ()
