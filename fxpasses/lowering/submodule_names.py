"""What the submodules of parts are called in a lowered model, whose other names are the model's own."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from torch.export import ExportedProgram

from fxpasses.guards import GUARDS
from fxpasses.lowering.taken_names import is_taken_by_lowered_models
from fxpasses.outlining.part_names import identifier, is_taken

__all__ = ["submodule_names"]


def submodule_names(parts: Iterable[Hashable], program: ExportedProgram) -> dict[Hashable, str]:
    """The name of each part, or ``on_`` and its name where something else has that already.

    Python may use it (``class``), a lowered model (``report``), what checks inputs, or the model at its top
    (``encoder``): the names of a state dict lead to the model's tensors, and would end in the part.
    """
    used = {GUARDS} | {name.partition(".")[0] for name in (*program.state_dict, *program.constants)}
    names: dict[Hashable, str] = {}
    for part in parts:
        name = str(part)
        while is_taken(name) or is_taken_by_lowered_models(name) or identifier(name) in used:
            name = f"on_{name}"
        names[part] = identifier(name)
        used.add(names[part])
    return names
