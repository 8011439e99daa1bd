"""The function with which ``ExportedProgram.module()`` checks its inputs."""

from __future__ import annotations

from torch.fx import Node

__all__ = ["GUARDS", "is_guard"]

GUARDS = "_guards_fn"
"""Its name in the module that it checks."""


def is_guard(node: Node) -> bool:
    """Whether a node calls it, also in a module that holds the exported one; it computes nothing."""
    return node.op == "call_module" and str(node.target).rpartition(".")[2] == GUARDS
