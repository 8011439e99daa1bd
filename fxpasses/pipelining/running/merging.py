"""The outputs of the micro-batches of a step as one output of the whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["merge_outputs"]


def merge_outputs(chunks: Sequence[Any]) -> Any:
    """Join tensors along their first dimension, and numbers as tensors, such as losses, along a new one.

    What is no tensor is given once where it is the same in all micro-batches, else as a list.

    Args:
        chunks: The output of each micro-batch, of one structure.
    """
    leaves, (spec, *_) = zip(*map(pytree.tree_flatten, chunks), strict=True)
    return pytree.tree_unflatten([_merged(each) for each in zip(*leaves, strict=True)], spec)


def _merged(leaves: tuple[Any, ...]) -> Any:
    if all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return torch.stack(leaves) if leaves[0].ndim == 0 else torch.cat(leaves)
    return leaves[0] if all(leaf == leaves[0] for leaf in leaves) else list(leaves)
