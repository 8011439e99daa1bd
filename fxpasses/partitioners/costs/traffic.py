"""How many bytes a node reads and writes: of a table or a cache only the rows that it looks up or writes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.fx import Node

from fxpasses.partitioners.costs.operation_counts import shape_of
from fxpasses.partitioners.tensor_sizes import storage_bytes, tensor_bytes

__all__ = ["BAGS", "LOOKUPS", "bytes_moved", "bytes_of_rows", "rows_looked_up", "state_bytes"]

LOOKUPS = ("embedding", "gather", "getitem", "index", "index_select", "take", "take_along_dim", "_unsafe_index")
BAGS = ("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
_OVERWRITES = ("copy_", "fill_", "zero_")


def bytes_moved(node: Node, name: str, operands: Sequence[torch.Tensor], written: int) -> tuple[int, int]:
    """Bytes that a node reads and writes: of a table that it looks rows up in only these."""
    sizes = [min(tensor_bytes(tensor), storage_bytes(tensor)) for tensor in operands]
    if node.op == "call_module":
        state = state_bytes(node)
        return sum(sizes) + int(min(state, _module_rows(node, operands, written))), written
    if name.startswith("new_") or name.endswith("_like"):  # only the shape of what they are like counts
        return 0, written
    if name in (*LOOKUPS, *BAGS) and sizes:
        table = _table_among(name, operands)
        looked_up = written if name in LOOKUPS else rows_looked_up(name, operands)[1]
        return sum(sizes) - sizes[table] + min(sizes[table], looked_up), written
    return sum(sizes[1:] if name in _OVERWRITES else sizes), written


def bytes_of_rows(operands: Sequence[torch.Tensor], elements: int, *, adds: bool) -> tuple[int, int]:
    """What is read and written where so many elements of the first operand are: no more of others than is written."""
    written = elements * operands[0].element_size()
    *indices, value = [0, *(min(tensor_bytes(each), storage_bytes(each)) for each in operands[1:])]
    if len(operands) > 1 and not operands[-1].is_floating_point() and operands[0].is_floating_point():
        indices, value = [*indices, value], 0  # what is written is a number
    return sum(indices) + min(value, written) + (written if adds else 0), written


def rows_looked_up(name: str, operands: Sequence[torch.Tensor]) -> tuple[int, int]:
    """Elements and bytes of the rows that a bag adds up: as many as there are indices."""
    place = _table_among(name, operands)
    table, others = operands[place], (*operands[:place], *operands[place + 1 :])
    rows = next((math.prod(shape_of(each)) for each in others if not each.is_floating_point()), 0)
    elements = rows * (shape_of(table)[-1] if table.dim() else 1)
    return elements, elements * table.element_size()


def _table_among(name: str, operands: Sequence[torch.Tensor]) -> int:
    """Which operand rows are looked up in: the first one, but functions for embeddings take the indices before it."""
    is_embedding = name in BAGS or name == "embedding"
    weights = (place for place, each in enumerate(operands) if is_embedding and each.is_floating_point())
    return next(weights, 0)


def _module_rows(node: Node, operands: Sequence[torch.Tensor], written: int) -> float:
    """The most bytes that a called module reads of its state: of a table as many rows as there are indices."""
    owner = node.graph.owning_module
    module = owner.get_submodule(str(node.target)) if owner is not None else None
    if isinstance(module, torch.nn.EmbeddingBag) and operands:
        row = module.embedding_dim * module.weight.element_size()
        return math.prod(shape_of(operands[0])) * row
    return written if isinstance(module, torch.nn.Embedding) else math.inf


def state_bytes(node: Node) -> int:
    """Bytes of the parameters and buffers of a called module, tied ones once."""
    owner = node.graph.owning_module
    module = owner.get_submodule(str(node.target)) if owner is not None else torch.nn.Module()
    return sum(map(tensor_bytes, (*module.parameters(), *module.buffers())))
