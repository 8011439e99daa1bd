"""Save a program to a ``.pt2`` file and load it again with the typed entries of its nodes.

``torch.export.save`` writes the metadata that torch knows, and one free field of the graph, ``meta["custom"]``. All
entries under a :class:`~fxpasses.metadata.MetaKey` travel in that field, as JSON, and come back to their nodes on load.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch
from torch._export.serde.serialize import SerializeError
from torch.export import ExportedProgram
from torch.fx import GraphModule

from fxpasses.errors import GraphError, InputError
from fxpasses.metadata import registered_keys

__all__ = ["from_file", "load", "save", "to_file"]

_FIELD = "fxpasses.metadata"
_FORMAT = 1


def save(program: ExportedProgram, path: Any, **options: Any) -> None:
    """Write a program, with all typed metadata entries, to a file that ``torch.export.load`` reads as well.

    Args:
        program: The program; it is left as it was.
        path: A path or a file opened for writing bytes.
        **options: Passed on to :func:`torch.export.save`.

    Raises:
        GraphError: An entry cannot be written as JSON, and its key has no ``to_json``.
        InputError: Torch's file format cannot hold an operator or a tensor of the program.
    """
    entries = _entries_of(program)
    meta = program.graph_module.meta
    before = meta.get("custom")
    if entries:
        meta["custom"] = {**(before or {}), _FIELD: {"format": _FORMAT, "entries": entries}}
    try:
        to_file(program, path, **options)
    finally:
        if before is not None:
            meta["custom"] = before
        else:
            meta.pop("custom", None)


def to_file(program: ExportedProgram, path: Any, **options: Any) -> None:
    """Let torch write a program.

    Raises:
        InputError: Its file format cannot hold an operator, as one that is given a quantised type, or a sparse tensor.
    """
    for name, held in {**program.state_dict, **program.constants}.items():
        if isinstance(held, torch.Tensor) and held.layout != torch.strided:
            raise InputError(
                f"Torch's file format cannot hold {name!r}, whose layout is {held.layout}; to save or pickle it, keep "
                "the tensor dense (and call to_sparse() in the model), or make it an input."
            )
    try:
        torch.export.save(program, path, **options)
    except SerializeError as error:
        said = str(error).splitlines()[0]
        raise InputError(
            f"Torch's file format cannot hold this program: {said.removesuffix('.')}; to save or pickle it, leave that "
            "operator out."
        ) from error


def from_file(path: Any, **options: Any) -> ExportedProgram:
    """Let torch read a program.

    A buffer that shows the memory of a parameter, or has none beside a parameter that has none, comes back from torch
    as a view that autograd knows: what is learned through it would change the parameter. Here it is a tensor of its own
    again, in the same memory.
    """
    program = torch.export.load(path, **options)
    for held in (program.state_dict, program.constants):
        for name, value in held.items():
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                held[name] = value.detach()
    return program


def load(path: Any, **options: Any) -> ExportedProgram:
    """Read a program; its nodes get back the entries that :func:`save` wrote.

    Entries of keys that this process does not know come back as they are in the file.

    Args:
        path: A path or a file opened for reading bytes.
        **options: Passed on to :func:`torch.export.load`.

    Raises:
        InputError: The entries were written by a newer version of this package.
    """
    program = from_file(path, **options)
    meta = program.graph_module.meta
    stored = (meta.get("custom") or {}).pop(_FIELD, None)
    if not meta.get("custom", True):
        del meta["custom"]
    if stored is None:
        return program
    if stored["format"] != _FORMAT:
        raise InputError(f"the metadata in the file has format {stored['format']}, this version reads {_FORMAT}")
    keys = {key.name: key for key in registered_keys()}
    for where, graph_module in _graphs(program):
        for node in graph_module.graph.nodes:
            for name, entry in stored["entries"].get(where, {}).get(node.name, {}).items():
                key = keys.get(name)
                node.meta[name] = key.from_json(entry) if key is not None and key.from_json is not None else entry
    return program


def _graphs(program: ExportedProgram) -> Iterator[tuple[str, GraphModule]]:
    for path, module in program.graph_module.named_modules():
        if isinstance(module, GraphModule):
            yield path, module


def _entries_of(program: ExportedProgram) -> dict[str, dict[str, dict[str, Any]]]:
    keys = registered_keys()
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for where, graph_module in _graphs(program):
        for node in graph_module.graph.nodes:
            for key in keys:
                if key.name in node.meta:
                    entry = node.meta[key.name]
                    entry = entry if key.to_json is None else key.to_json(entry)
                    _check_json(entry, key.name, node)
                    found.setdefault(where, {}).setdefault(node.name, {})[key.name] = entry
    return found


def _check_json(entry: Any, name: str, node: Any) -> None:
    try:
        json.dumps(entry)
    except (TypeError, ValueError) as error:
        raise GraphError(
            f"the entry {name!r} of {node.name!r} cannot be written as JSON ({error}); give its MetaKey a to_json and "
            "a from_json",
            node=node,
        ) from error
