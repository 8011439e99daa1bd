"""The graph that a plan is about: of a program, of a lowered module, or a graph itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.fx import GraphModule

from fxpasses.errors import InputError
from fxpasses.outlining.opening import open_regions
from fxpasses.partitioners.placing.worthwhile_cuts import is_worth_cutting
from fxpasses.programs.program_modules import module_of_program

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = ["graph_of"]


def graph_of(model: GraphModule | ExportedProgram) -> GraphModule:
    """The graph that plans are about: a program as a module that holds its state, its regions opened.

    Of a lowered module it is that of its program.

    Raises:
        InputError: it is neither.
    """
    program = vars(model).get("program", model) if isinstance(model, GraphModule) else model
    if not isinstance(program, GraphModule) and not callable(getattr(program, "module", None)):
        raise InputError(
            f"A plan is about a GraphModule or an ExportedProgram, not {type(model).__name__}; export the model first, "
            "or take the program of what place() gives."
        )
    if isinstance(program, GraphModule):
        return program
    graph_module = module_of_program(program)
    open_regions(graph_module, is_worth_cutting)
    return graph_module
