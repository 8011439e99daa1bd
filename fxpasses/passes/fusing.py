"""Fusing groups of nodes is what partitioners do; its name is among the transformations, too, as it is in torch."""

from __future__ import annotations

from fxpasses.partitioners.fusing import fuse_by_partitions

__all__ = ["fuse_by_partitions"]
