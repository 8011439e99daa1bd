"""Nodes that only check what is known anyway; a match may ignore them, and they go when what they check goes."""

from __future__ import annotations

import torch
from torch.fx import Node

from fxpasses.guards import is_guard

__all__ = ["is_bookkeeping"]

_CHECKS = frozenset([torch.ops.aten._assert_tensor_metadata.default])


def is_bookkeeping(node: Node) -> bool:
    """Whether a node is export's guard function, or an assertion on a tensor's metadata."""
    return is_guard(node) or node.target in _CHECKS
