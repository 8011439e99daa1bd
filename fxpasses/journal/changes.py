"""What is different between two moments of a program, in names."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

__all__ = [
    "ChangeParts",
    "Changes",
]


@attrs.frozen
class Changes:
    """What is different between a snapshot and now. Names only, so that a record keeps no graph alive.

    Nodes of nested graphs are written as ``path.to.graph/name``.

    Attributes:
        added: Nodes that are new, in graph order.
        removed: Nodes that are gone, in their former order.
        altered: Nodes whose target, arguments, name or type changed, by what changed.
        moved: The fewest nodes that explain the new order.
        attributes: Parameters, buffers, modules, signature entries and the like that were set, removed or replaced.
        written_in_place: Tensors whose content was written; a rollback cannot undo that.
        metadata: Nodes whose ``meta`` was written; this alone does not count as a change of the graph.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    altered: Mapping[str, str] = attrs.field(factory=dict)
    moved: tuple[str, ...] = ()
    attributes: Mapping[str, str] = attrs.field(factory=dict)
    written_in_place: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether the program changed; metadata alone does not count."""
        parts = (self.added, self.removed, self.altered, self.moved, self.attributes, self.written_in_place)
        return any(map(bool, parts))

    def __str__(self) -> str:
        """One line, such as ``2 added, 1 removed``; ``no changes`` when there are none."""
        counts = [
            (len(self.added), "added"),
            (len(self.removed), "removed"),
            (len(self.altered), "altered"),
            (len(self.moved), "moved"),
            (len(self.attributes), "attributes"),
            (len(self.written_in_place), "tensors written in place"),
        ]
        return ", ".join(f"{count} {what}" for count, what in counts if count) or "no changes"


class ChangeParts:
    """Changes while they are being collected."""

    def __init__(self) -> None:
        self.added: list[str] = []
        self.removed: list[str] = []
        self.altered: dict[str, str] = {}
        self.moved: list[str] = []
        self.attributes: dict[str, str] = {}
        self.written: list[str] = []
        self.metadata: list[str] = []

    def frozen(self) -> Changes:
        """The finished record."""
        return Changes(
            tuple(self.added),
            tuple(self.removed),
            self.altered,
            tuple(self.moved),
            self.attributes,
            tuple(self.written),
            tuple(self.metadata),
        )
