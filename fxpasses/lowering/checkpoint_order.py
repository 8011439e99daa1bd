"""The order of a model's checkpoint, which an exported program does not keep.

A program lists all parameters, then all buffers. A module lists its own parameters, its own buffers, then what its
children hold, one after the other. Parameters and buffers both say in which order children come; a child that has only
buffers may stand anywhere between two that have some, if these have others between them.
"""

from __future__ import annotations

import itertools

import networkx as nx
import torch
from torch.export import ExportedProgram

__all__ = ["checkpoint_places"]


def checkpoint_places(program: ExportedProgram) -> dict[str, int]:
    """The place of each entry of the model's checkpoint, by name. Time O(names × depth of modules)."""
    is_buffer = {name: not isinstance(value, torch.nn.Parameter) for name, value in program.state_dict.items()}
    parameters, buffers = ([name for name, kind in is_buffer.items() if kind is wanted] for wanted in (False, True))
    rank = _ranks([_paths(parameters), _paths(buffers)])
    depth = {path: [rank[above] for above in _above(path)] for path in rank}
    order = sorted(is_buffer, key=lambda name: (depth[name.rpartition(".")[0]], is_buffer[name]))
    return {name: place for place, name in enumerate(order)}


def _paths(names: list[str]) -> list[str]:
    """The modules that hold some tensors and the modules that hold these, in the order of the tensors."""
    return list(dict.fromkeys(above for name in names for above in _above(name.rpartition(".")[0])))


def _above(path: str) -> list[str]:
    """A module and those that it is in, from the model down."""
    atoms = path.split(".") if path else []
    return ["", *itertools.accumulate(atoms, lambda before, atom: f"{before}.{atom}")]


def _ranks(orders: list[list[str]]) -> dict[str, int]:
    """The place of each module among its siblings, where each order has some of them."""
    first = {path: place for place, path in enumerate(dict.fromkeys(itertools.chain(*orders)))}
    following: nx.DiGraph[str] = nx.DiGraph()
    following.add_nodes_from(first)
    for order in orders:
        last: dict[str, str] = {}
        for path in order:
            parent = path.rpartition(".")[0]
            if path and parent in last:
                following.add_edge(last[parent], path)
            if path:
                last[parent] = path
    if nx.is_directed_acyclic_graph(following):
        return {path: place for place, path in enumerate(nx.lexicographical_topological_sort(following, first.get))}
    return first  # a tied weight may come under its second name first
