"""A lowered model captured again, alone or in another model: its tensors have the names of the model behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fxpasses.guards import GUARDS
from fxpasses.lowering.current_state import tensors_of
from fxpasses.lowering.lowered_module import LoweredModule
from fxpasses.programs.signatures import placeholder_name, placeholders_of, recompile_if_possible, sync_signature

__all__ = ["with_own_names"]


def with_own_names(program: ExportedProgram, model: Any) -> ExportedProgram:
    """The program, changed in place where the model is or holds lowered models; torch calls tensors after the parts.

    Linear in names and nodes.
    """
    modules = model.named_modules(remove_duplicate=False) if isinstance(model, torch.nn.Module) else ()
    lowered = [(f"{path}." if path else "", each) for path, each in modules if isinstance(each, LoweredModule)]
    if not lowered:
        return program
    names = {prefix + here: prefix + own for prefix, each in lowered for here, own in _own_names(each).items()}
    paths = {prefix + part: prefix for prefix, each in lowered for part in each.submodule_of.values()}
    _merge_tied(program, names)
    _rename(program, names)
    for prefix, each in lowered:
        _put_in_order(program.state_dict, [prefix + name for name in each.program.state_dict])
    _rename_modules(program, paths)
    sync_signature(program)
    recompile_if_possible(program.graph_module)
    return program


def _own_names(lowered: LoweredModule) -> dict[str, str]:
    """The model's name of each tensor by its name here; what somebody put in its place in one part keeps the latter."""
    claimed: dict[str, torch.Tensor] = {}
    names = {}
    for here, tensor in tensors_of(lowered).items():
        own = lowered.qualified_names.get(here, here)
        names[here] = own if claimed.setdefault(own, tensor) is tensor else here
    return names


def _merge_tied(program: ExportedProgram, names: Mapping[str, str]) -> None:
    """One input for all parts that hold a tensor."""
    first: dict[str, Node] = {}
    kept = []
    for spec, node in zip(program.graph_signature.input_specs, placeholders_of(program), strict=True):
        own = None if spec.target is None else names.get(spec.target, spec.target)
        if own is None or first.setdefault(own, node) is node:
            kept.append(spec)
        else:
            node.replace_all_uses_with(first[own])
            program.graph.erase_node(node)
    program.graph_signature.input_specs[:] = kept


def _rename(program: ExportedProgram, names: Mapping[str, str]) -> None:
    """Tensors, in the signature and in the tables."""
    signature = program.graph_signature
    for spec, node in zip(signature.input_specs, placeholders_of(program), strict=True):
        if spec.target is not None and names.get(spec.target, spec.target) != spec.target:
            spec.target = names[spec.target]
            node._rename(placeholder_name(spec.kind, spec.target))
            node.target = node.name
    for output in signature.output_specs:
        if output.target is not None:
            output.target = names.get(output.target, output.target)
    for table in (program.state_dict, program.constants):
        renamed = {names.get(name, name): value for name, value in table.items()}
        table.clear()
        table.update(renamed)


def _put_in_order(table: dict[str, Any], names: Iterable[str]) -> None:
    """Entries in the order of the model they came with, in the places that they have among others; changed in place."""
    known = {name: None for name in names if name in table}
    own = iter(known)
    order = [next(own) if name in known else name for name in table]
    ordered = {name: table[name] for name in order}
    table.clear()
    table.update(ordered)


def _rename_modules(program: ExportedProgram, paths: Mapping[str, str]) -> None:
    """The list of modules: those in parts where the model has them, parts and the check of inputs not at all."""
    kept: dict[str, Any] = {}
    for entry in program.module_call_graph:
        steps = entry.fqn.split(".")
        above = [".".join(steps[:end]) for end in range(1, len(steps) + 1)]
        part = next((path for path in above if path in paths), None)
        if entry.fqn in paths or entry.fqn.rpartition(".")[2] == GUARDS:
            continue
        if part is not None:
            entry.fqn = paths[part] + entry.fqn[len(part) + 1 :]
        kept.setdefault(entry.fqn, entry)
    program.module_call_graph[:] = kept.values()
