"""What compiles one part of a lowered model.

A backend is a function from a part (a ``GraphModule`` on its device) to a module that is called in its place. ``eager``
runs the part as it is; ``inductor`` compiles it with ``torch.compile``; ``onnxruntime`` and ``openvino`` hand it to
those runtimes, for inference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch.fx import GraphModule

from fxpasses.errors import InputError
from fxpasses.outlining.lazy_modules import LazyGraphModule

__all__ = ["Backend", "backend_names", "check_backend", "compile_part"]

Backend: TypeAlias = Callable[[GraphModule], torch.nn.Module]


def _eager(part: GraphModule) -> torch.nn.Module:
    return part


def _inductor(part: GraphModule) -> torch.nn.Module:
    if isinstance(part, LazyGraphModule):
        part.real_recompile()  # torch.compile looks at the code that is there
    part.compile(backend="inductor", fullgraph=True)
    return part


def _onnxruntime(part: GraphModule) -> torch.nn.Module:
    from fxpasses.backends.runtimes import compile_with_onnxruntime

    return compile_with_onnxruntime(part)


def _openvino(part: GraphModule) -> torch.nn.Module:
    from fxpasses.backends.runtimes import compile_with_openvino

    return compile_with_openvino(part)


_BACKENDS: dict[str, Backend] = {
    "eager": _eager,
    "inductor": _inductor,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}


def backend_names() -> list[str]:
    """The names that ``Device(backend=...)`` takes."""
    return list(_BACKENDS)


def check_backend(backend: str) -> None:
    """Refuse a name that is no backend.

    Raises:
        InputError: there is none of that name.
    """
    if not isinstance(backend, str) or backend not in _BACKENDS:
        raise InputError(f"There is no backend {backend!r}; there are {', '.join(_BACKENDS)}.")


def compile_part(owner: GraphModule, name: str, backend: str) -> None:
    """Replace one part of a placed module by what a backend makes of it.

    Args:
        owner: The placed module.
        name: The submodule that holds the part.
        backend: A name of :func:`backend_names`.

    Raises:
        InputError: there is no backend of that name, or it cannot run the part.
    """
    check_backend(backend)
    part = owner.get_submodule(name)
    if isinstance(part, GraphModule):
        owner.set_submodule(name, _BACKENDS[backend](part))
