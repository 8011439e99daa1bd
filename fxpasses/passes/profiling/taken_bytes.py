"""Ask the allocator of a device what a call takes there."""

from __future__ import annotations

from typing import Any

import torch

from fxpasses.partitioners.costs.node_costs import StepWorkspace
from fxpasses.partitioners.tensor_sizes import tensors_in
from fxpasses.passes.profiling.running_alone import AloneCall

__all__ = ["step_workspace", "tells_bytes", "workspace_bytes"]

_BLOCK = 512
"""Bytes of which the allocators of accelerators give a multiple."""


def _allocator(device: torch.device) -> Any:
    """The module of torch that tells how much of a device is taken: ``torch.cuda``; None where none does."""
    module = getattr(torch, device.type, None)
    return module if hasattr(module, "reset_peak_memory_stats") else None


def tells_bytes(device: torch.device) -> bool:
    """Whether a device tells how much of it is taken."""
    return _allocator(device) is not None


def workspace_bytes(call: AloneCall, device: torch.device) -> int:
    """The most bytes of a device that a call has at one time beside its operands and its result.

    What its libraries keep from call to call was taken before.
    """
    taken = _Taken(device)
    result = call()
    most = taken.beside()
    del result
    return most


def step_workspace(call: AloneCall, device: torch.device) -> StepWorkspace:
    """What a call and its backward take, with autograd on; each result gets a gradient."""
    forward = _Taken(device)
    result = call()
    inside, kept = forward.beside(), forward.grown() - _made_bytes(result, call)
    outputs = [tensor for tensor in tensors_in(result) if tensor.requires_grad]
    given = [torch.ones_like(tensor) for tensor in outputs]
    backward = _Taken(device)
    gradients = torch.autograd.grad(outputs, call.trained, given, retain_graph=True, allow_unused=True)
    beside = backward.beside()
    del gradients
    return StepWorkspace(inside, max(0, kept), beside)


class _Taken:
    """What of a device is taken from now on."""

    def __init__(self, device: torch.device) -> None:
        self.allocator, self.device = _allocator(device), device
        self.before: int = self.allocator.memory_allocated(device)
        self.allocator.reset_peak_memory_stats(device)

    def grown(self) -> int:
        """Bytes more than in the beginning."""
        after: int = self.allocator.memory_allocated(self.device)
        return after - self.before

    def beside(self) -> int:
        """The most bytes at one time, beside those of the beginning or of now."""
        most: int = self.allocator.max_memory_allocated(self.device)
        return most - self.before - max(0, self.grown())


def _made_bytes(result: Any, call: AloneCall) -> int:
    """Bytes of a result that are not those of an operand."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors_in(result)}
    for operand in call.operands:
        storages.pop(operand.untyped_storage().data_ptr(), None)
    return sum(-(-size // _BLOCK) * _BLOCK for size in storages.values())
