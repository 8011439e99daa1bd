"""A program as a module that holds its state, without the checks of its inputs."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from fxpasses.errors import CaptureError

__all__ = ["module_of_program"]


def module_of_program(program: ExportedProgram) -> GraphModule:
    """Make a module of a program, as ``program.module()`` does.

    Args:
        program: The program; its tensors are shared.

    Raises:
        CaptureError: a module, parameter or buffer of the model has the name of something that each graph module has.
    """
    try:
        module: GraphModule = program.module(check_guards=False)
    except Exception as error:  # which one depends on what is called so
        if (name := _taken(program)) is None:
            raise
        raise CaptureError(
            f"The model has a module, parameter or buffer called {name!r}, and so is something that every GraphModule "
            "of torch.fx has; give it another name.",
            reason=f"{name!r} is an attribute of every GraphModule",
        ) from error
    return module


def _taken(program: ExportedProgram) -> str | None:
    """The first name at the top of the model that is not free; None if all are."""
    known = {"meta", "shape_env", *dir(GraphModule)} - set(dir(torch.nn.Module))
    state = (*program.state_dict, *program.constants)
    return next((name for name in (key.partition(".")[0] for key in state) if name in known), None)
