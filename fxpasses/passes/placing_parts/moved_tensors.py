"""Move tensors once each: tied ones stay one tensor, and views of one memory stay that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import torch

from fxpasses.devices import same_torch_device
from fxpasses.effects.aliasing import storage_key
from fxpasses.partitioners.tensor_sizes import memory_bytes, tensor_bytes

__all__ = ["ANYWHERE", "MovedTensors", "tables_of"]

ANYWHERE = ("meta",)
"""What is there stays there: it has no data."""


@attrs.frozen(eq=False)
class _Memory:
    """Bytes that several tensors show, each a part of them or all; or one, and some of them more than once.

    Args:
        shown_by: The tensors.
        first: The first element that any of them shows, counted from the beginning of the storage.
        count: The number of elements up to the last one.
    """

    shown_by: tuple[torch.Tensor, ...]
    first: int
    count: int

    def moved(self, target: torch.device) -> torch.Tensor:
        """The same elements on a device, in a row."""
        return self.shown_by[0].detach().as_strided((self.count,), (1,), self.first).to(target)


class MovedTensors:
    """What was moved so far, and where to.

    Args:
        root: The module that holds everything: which of its tensors show the same memory is found here.
    """

    def __init__(self, root: torch.nn.Module) -> None:
        self._memory_of = _shared_memories(root)
        self._tensors: dict[tuple[int, str], torch.Tensor] = {}
        self._kept: list[torch.Tensor] = []  # an id is used again once its tensor is gone
        self._memories: dict[tuple[_Memory, str], torch.Tensor] = {}

    def to(self, tensor: torch.Tensor, target: torch.device) -> torch.Tensor:
        """The tensor on a device: itself where it is there, and always the same one for the same tensor."""
        if same_torch_device(tensor.device, target) or tensor.device.type in ANYWHERE:
            return tensor
        key = (id(tensor), str(target))
        if key not in self._tensors:
            self._kept.append(tensor)
            with torch.inference_mode(False):  # what is made inside of one cannot be trained
                there = self._copy(tensor, target)
                self._tensors[key] = (
                    torch.nn.Parameter(there, requires_grad=tensor.requires_grad)
                    if isinstance(tensor, torch.nn.Parameter)
                    else there.requires_grad_(tensor.requires_grad)
                )
        return self._tensors[key]

    def places(self, tensor: torch.Tensor, places: Iterable[str]) -> list[str]:
        """To which of some devices a tensor was moved, or another one that shows its memory."""
        memory = self._memory_of.get(id(tensor))
        return [
            place
            for place in places
            if (id(tensor), place) in self._tensors or (memory is not None and (memory, place) in self._memories)
        ]

    def same_memory(self, tensor: torch.Tensor) -> object:
        """What is equal for two tensors exactly if they have to be on one device: they are one, or show one memory."""
        return self._memory_of.get(id(tensor), id(tensor))

    def _copy(self, tensor: torch.Tensor, target: torch.device) -> torch.Tensor:
        memory = self._memory_of.get(id(tensor))
        if memory is None:
            return tensor.detach().to(target)
        key = (memory, str(target))
        if key not in self._memories:
            self._memories[key] = memory.moved(target)
        return self._memories[key].as_strided(
            tensor.size(), tensor.stride(), int(tensor.storage_offset()) - memory.first
        )


def tables_of(module: torch.nn.Module) -> tuple[dict[str, Any], ...]:
    """Where a module holds tensors."""
    return module._parameters, module._buffers, vars(module)


def _shared_memories(root: torch.nn.Module) -> dict[int, _Memory]:
    """The memory of each tensor that shows some of what is shown elsewhere, by its identity. O(tensors log tensors).

    That is by another one, or by itself: what is expanded shows its elements many times.
    """
    by_storage: dict[Any, dict[int, torch.Tensor]] = {}
    for tensor in _tensors(root):
        if tensor.layout == torch.strided and tensor.numel() and not tensor.is_meta:
            by_storage.setdefault((storage_key(tensor), tensor.dtype), {})[id(tensor)] = tensor
    found: dict[int, _Memory] = {}
    for each in by_storage.values():
        for group in _overlapping(list(each.values())):
            if len(group) == 1 and memory_bytes(group[0]) == tensor_bytes(group[0]):
                continue
            first = min(int(tensor.storage_offset()) for tensor in group)
            memory = _Memory(tuple(group), first, max(map(_end, group)) - first)
            found.update((id(tensor), memory) for tensor in group)
    return found


def _tensors(root: torch.nn.Module) -> Iterator[torch.Tensor]:
    for module in root.modules():
        for table in tables_of(module):
            yield from (value for value in table.values() if isinstance(value, torch.Tensor))


def _overlapping(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Tensors of one storage in groups that have elements in common."""
    tensors.sort(key=lambda tensor: int(tensor.storage_offset()))
    group, end = [tensors[0]], _end(tensors[0])
    for tensor in tensors[1:]:
        if int(tensor.storage_offset()) >= end:
            yield group
            group = []
        group.append(tensor)
        end = max(end, _end(tensor))
    yield group


def _end(tensor: torch.Tensor) -> int:
    """The element behind the last one that a tensor shows."""
    steps = ((int(size) - 1) * int(stride) for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return int(tensor.storage_offset()) + sum(steps) + 1
