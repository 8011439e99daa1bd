"""Buffers of a lowered model's own: those that it writes to, so that it never disturbs the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule

__all__ = ["in_storage", "own_buffers"]


def own_buffers(graph_module: GraphModule, written: Sequence[torch.Tensor]) -> None:
    """Put copies in the place of tensors; those that share memory, under whatever name, share the copy of it."""
    copies = {_memory(each): _copied_memory(each) for each in written if not isinstance(each, torch.nn.Parameter)}
    owned: dict[int, torch.Tensor] = {}
    for module in graph_module.modules() if copies else ():
        tables: tuple[dict[str, Any], ...] = (module._buffers, vars(module))
        for table in tables:
            for name, held in table.items():
                if isinstance(held, torch.Tensor) and (copied := copies.get(_memory(held))) is not None:
                    if id(held) not in owned:
                        owned[id(held)] = copied if isinstance(copied, torch.Tensor) else in_storage(held, copied)
                    table[name] = owned[id(held)]


def _memory(tensor: torch.Tensor) -> int:
    """What tells memory from other: the storage, or the tensor where it has none, as a sparse one."""
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else id(tensor)


def _copied_memory(tensor: torch.Tensor) -> torch.UntypedStorage | torch.Tensor:
    if tensor.layout != torch.strided:
        return tensor.clone()
    storage: torch.UntypedStorage = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]  # torch's
    return storage


def in_storage(tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    """The same tensor in another storage."""
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    made = made.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    made = made.conj() if tensor.is_conj() else made
    return torch._neg_view(made) if tensor.is_neg() else made
