"""Ask the allocator of a device what a call takes there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from fxpasses.partitioners.costs.kernels.followed_storages import storages_in
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
    """What a call and its backward take, with autograd on; each result gets a gradient.

    It is made while the backward runs and nobody else holds it, as in a model.
    """
    forward = _Taken(device)
    result = call()
    inside, kept = forward.beside(), max(0, forward.grown() - _bytes_of(_own_storages(result, call)))
    trained = [tensor for tensor in tensors_in(result) if tensor.requires_grad]
    if not trained:  # it has no backward after all
        return StepWorkspace(inside, kept, 0)
    given = _Given()
    loss = _Loss.apply(given, *trained)  # type: ignore[no-untyped-call]  # torch does not say
    del trained
    backward = _Taken(device)
    gradients = torch.autograd.grad(loss, call.trained, allow_unused=True)
    made = {**given.sizes, **_storages_of(gradients)}
    return StepWorkspace(inside, kept, backward.most() - _bytes_of(made))


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

    def most(self) -> int:
        """The most bytes at one time, beside those of the beginning."""
        most: int = self.allocator.max_memory_allocated(self.device)
        return most - self.before

    def beside(self) -> int:
        """The most bytes at one time, beside those of the beginning or of now."""
        return self.most() - max(0, self.grown())


@attrs.define
class _Given:
    """The gradients that a backward began with; who refers to a storage so keeps its number from being used again."""

    sizes: dict[int, int] = attrs.field(factory=dict)
    references: list[StorageWeakRef] = attrs.field(factory=list)


class _Loss(torch.autograd.Function):
    """Makes a number of results, and a gradient of each when it is asked for one."""

    @staticmethod
    def forward(ctx: Any, given: _Given, *results: torch.Tensor) -> torch.Tensor:
        ctx.given, ctx.device = given, results[0].device
        ctx.like = [torch.empty_like(result, device="meta") for result in results]
        return torch.zeros((), device=ctx.device)

    @staticmethod
    def backward(ctx: Any, _gradient: torch.Tensor) -> Any:
        made = [torch.ones_like(like, device=ctx.device) for like in ctx.like]
        ctx.given.sizes.update(_storages_of(made))
        ctx.given.references += [StorageWeakRef(each.untyped_storage()) for each in made]  # type: ignore[no-untyped-call]  # torch does not say
        return (None, *made)


def _storages_of(value: Any) -> dict[int, int]:
    """The bytes of each storage of a value."""
    return {storage._cdata: storage.nbytes() for storage in storages_in(value)}


def _own_storages(result: Any, call: AloneCall) -> dict[int, int]:
    """The bytes of each storage of a result that is not one of an operand."""
    operands = _storages_of(list(call.operands))
    return {key: size for key, size in _storages_of(result).items() if key not in operands}


def _bytes_of(sizes: Mapping[int, int]) -> int:
    """What storages take."""
    return sum(-(-size // _BLOCK) * _BLOCK for size in sizes.values())
