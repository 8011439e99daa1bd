"""Which ExportedProgram the running pass works on: a pass gets a graph, and may need the tensors behind its inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from torch.export import ExportedProgram
from torch.fx import GraphModule

__all__ = ["program_of", "working_on"]

_PROGRAM: ContextVar[ExportedProgram | None] = ContextVar("fxpasses_current_program", default=None)


@contextlib.contextmanager
def working_on(program: ExportedProgram | None) -> Iterator[None]:
    """Inside, :func:`program_of` finds ``program``."""
    token = _PROGRAM.set(program)
    try:
        yield
    finally:
        _PROGRAM.reset(token)


def program_of(graph_module: GraphModule) -> ExportedProgram | None:
    """The program whose graph this is; None for a graph module that belongs to no program, or is nested in one."""
    program = _PROGRAM.get()
    return program if program is not None and program.graph_module is graph_module else None
