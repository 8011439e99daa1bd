"""Assertions of exported graphs that their recorded values prove: they do nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from fxpasses.arguments import normalized_arguments
from fxpasses.metadata import value_of

__all__ = ["is_proven_assertion"]


def is_proven_assertion(node: Node) -> bool:
    """Whether a node is an assertion about a tensor that the recorded value of its operand meets, whatever the inputs.

    What is said about symbolic sizes is not proven: to compare them would add guards.
    """
    if node.target is not torch.ops.aten._assert_tensor_metadata.default:
        return False
    named = normalized_arguments(node)
    value = value_of(named.pop("a"))
    return isinstance(value, torch.Tensor) and all(
        wanted is None or _meets(value, name, wanted) for name, wanted in named.items()
    )


def _meets(value: torch.Tensor, name: str, wanted: Any) -> bool:
    if name not in ("size", "stride"):
        return bool(wanted == getattr(value, name))
    found = list(value.shape if name == "size" else value.stride())
    return all(isinstance(each, int) for each in found) and found == list(wanted)
