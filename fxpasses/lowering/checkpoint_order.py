"""The order of a model's checkpoint, which an exported program does not keep.

A program lists all parameters, then all buffers. A module lists its own parameters, its own buffers, then what its
children hold, one after the other. Parameters and buffers both say in which order children come, and so do the modules
that a program lists: where its tracer calls them in another order than the model has them, they are not asked.
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
    own = [_paths(parameters), _paths(buffers)]
    modules = [entry.fqn for entry in program.module_call_graph]  # the model's, unless a tracer calls them otherwise
    known = set(itertools.chain(*own))
    rank = _ranks([[path for path in modules if path in known], *own]) or _ranks(own) or _as_they_come(own)
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


def _as_they_come(orders: list[list[str]]) -> dict[str, int]:
    """The place of each module where one order follows the other."""
    return {path: place for place, path in enumerate(dict.fromkeys(itertools.chain(*orders)))}


def _ranks(orders: list[list[str]]) -> dict[str, int]:
    """The place of each module among its siblings, where each order has some of them; nothing where they differ."""
    first = _as_they_come(orders)
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
    if not nx.is_directed_acyclic_graph(following):  # a tied weight may come under its second name first
        return {}
    return {path: place for place, path in enumerate(nx.lexicographical_topological_sort(following, first.get))}
