"""A program as a module that holds its state, and which names of a model keep torch from making one."""

from __future__ import annotations

import keyword
from collections.abc import Iterable

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from fxpasses.errors import CaptureError
from fxpasses.values import record_copies_back

__all__ = ["module_of_program", "unwritable_name"]


def module_of_program(program: ExportedProgram, *, check_guards: bool = False) -> GraphModule:
    """Make a module of a program, as ``program.module()`` does.

    Args:
        program: The program; its tensors are shared.
        check_guards: Whether the module checks its inputs.

    Raises:
        CaptureError: a module, parameter or buffer of the model has the name of something that each graph module has,
            or one that torch cannot write into the code of a graph.
    """
    try:
        module: GraphModule = program.module(check_guards=check_guards)
    except SyntaxError as error:
        if (name := unwritable_name(_state(program))) is None:
            raise
        raise CaptureError(
            f"The model has a module, parameter or buffer called {name!r}, which torch cannot write into the code of a "
            "graph; give it a name without quotes and line breaks that is no keyword of Python.",
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


def unwritable_name(paths: Iterable[str]) -> str | None:
    """The first name in paths of a model that breaks the code of a graph; None if there is none.

    Torch writes ``self.layers.in`` for what is called ``in``, and other names into quotes.
    """
    names = (name for path in paths for name in path.split("."))
    return next((name for name in names if keyword.iskeyword(name) or any(sign in name for sign in '"\n\r')), None)


def _state(program: ExportedProgram) -> tuple[str, ...]:
    return (*program.state_dict, *program.constants)
