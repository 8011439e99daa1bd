"""How many bytes a node reads and writes: of a table or a cache only the rows that it looks up or writes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.fx import Node

from fxpasses.partitioners.costs.operation_counts import shape_of
from fxpasses.partitioners.tensor_sizes import storage_bytes, tensor_bytes

__all__ = ["BAGS", "LOOKUPS", "WRITES_ROWS", "bytes_moved", "rows_looked_up", "state_bytes"]

LOOKUPS = ("embedding", "gather", "getitem", "index", "index_select", "take", "take_along_dim", "_unsafe_index")
BAGS = ("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
_ADDS_ROWS = ("index_add_", "index_reduce_", "scatter_add_", "scatter_reduce_")
WRITES_ROWS = ("index_copy_", "index_put_", "scatter_", "setitem", *_ADDS_ROWS)
_OVERWRITES = ("copy_", "fill_", "zero_")


def bytes_moved(node: Node, name: str, operands: Sequence[torch.Tensor], written: int) -> tuple[int, int]:
    """Bytes that a node reads and writes: of a table that it looks rows up in, and of one it writes to, only these."""
    sizes = [min(tensor_bytes(tensor), storage_bytes(tensor)) for tensor in operands]
    if node.op == "call_module":
        state = state_bytes(node)
        return sum(sizes) + (min(state, written) if _is_table(node) else state), written
    if name.startswith("new_") or name.endswith("_like"):  # only the shape of what they are like counts
        return 0, written
    if name in (*LOOKUPS, *BAGS) and sizes:
        table = max(sizes)
        looked_up = written if name in LOOKUPS else rows_looked_up(operands)[1]
        return sum(sizes) - table + min(table, looked_up), written
    if name in WRITES_ROWS and len(sizes) > 1:
        return sum(sizes[1:]) + (sizes[-1] if name in _ADDS_ROWS else 0), sizes[-1]
    return sum(sizes[1:] if name in _OVERWRITES else sizes), written


def rows_looked_up(operands: Sequence[torch.Tensor]) -> tuple[int, int]:
    """Elements and bytes of the rows that a bag adds up: as many as there are indices."""
    rows = max((math.prod(shape_of(each)) for each in operands if not each.is_floating_point()), default=0)
    table = max(operands, key=tensor_bytes)
    elements = rows * (shape_of(table)[-1] if table.dim() else 1)
    return elements, elements * table.element_size()


def _is_table(node: Node) -> bool:
    owner = node.graph.owning_module
    module = owner.get_submodule(str(node.target)) if owner is not None else None
    return isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))


def state_bytes(node: Node) -> int:
    """Bytes of the parameters and buffers of a called module, tied ones once."""
    owner = node.graph.owning_module
    module = owner.get_submodule(str(node.target)) if owner is not None else torch.nn.Module()
    return sum(map(tensor_bytes, (*module.parameters(), *module.buffers())))
