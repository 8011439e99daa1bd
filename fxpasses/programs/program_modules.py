"""A program as a module that holds its state, without the checks of its inputs."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from fxpasses.errors import CaptureError
from fxpasses.values import record_copies_back

__all__ = ["module_of_program"]


def module_of_program(program: ExportedProgram) -> GraphModule:
    """Make a module of a program, as ``program.module()`` does.

    Args:
        program: The program; its tensors are shared.

    Raises:
        CaptureError: a module, parameter or buffer of the model has the name of something that each graph module has,
            or one that torch cannot write into the code of a graph.
    """
    try:
        module: GraphModule = program.module(check_guards=False)
    except SyntaxError as error:
        if (name := _unwritable(program)) is None:
            raise
        raise CaptureError(
            f"The model has a module, parameter or buffer called {name!r}, which torch cannot write into the code of a "
            "graph; give it a name without quotes and line breaks.",
            reason=f"{name!r} breaks the code of a graph",
        ) from error
    except Exception as error:  # which one depends on what is called so
        if (name := _taken(program)) is None:
            raise
        raise CaptureError(
            f"The model has a module, parameter or buffer called {name!r}, and so is something that every GraphModule "
            "of torch.fx has; give it another name.",
            reason=f"{name!r} is an attribute of every GraphModule",
        ) from error
    record_copies_back(module)
    return module


def _taken(program: ExportedProgram) -> str | None:
    """The first name at the top of the model that is not free; None if all are."""
    known = {"meta", "shape_env", *dir(GraphModule)} - set(dir(torch.nn.Module))
    return next((name for name in (key.partition(".")[0] for key in _state(program)) if name in known), None)


def _unwritable(program: ExportedProgram) -> str | None:
    """The first name in a path of the model that ends the string it is written into; None if there is none."""
    names = (name for key in _state(program) for name in key.split("."))
    return next((name for name in names if any(sign in name for sign in '"\n\r')), None)


def _state(program: ExportedProgram) -> tuple[str, ...]:
    return (*program.state_dict, *program.constants)
