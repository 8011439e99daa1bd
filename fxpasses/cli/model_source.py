"""Find the model that a command line names: a ``.pt2`` file, ``package.module:function`` or ``file.py:function``."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import attrs
import torch

from fxpasses.cli.demo_model import demo_llama
from fxpasses.errors import FxPassesError, InputError
from fxpasses.programs.capturing import load_program, own_line
from fxpasses.wording import a_or_an

__all__ = ["ModelSource", "find_model"]


@attrs.frozen
class ModelSource:
    """A model with its example inputs, and what to call it."""

    model: Any
    args: tuple[Any, ...] | None
    kwargs: Mapping[str, Any] | None
    name: str


def find_model(text: str | None) -> ModelSource:
    """Find the model that ``text`` names; None is the demo's.

    Raises:
        InputError: no such file, module or function, or a function that gives something else.
    """
    if text is None:
        return ModelSource(*demo_llama(), name="demo: Llama decoder, 8 layers")
    if not text:
        raise InputError("The model has no name; write a .pt2 file, package.module:function or file.py:function.")
    if ":" not in text:
        if text.endswith(".py"):
            raise InputError(
                f"{text!r} is Python source; name the function in it that returns (model, args), like {text}:build."
            )
        return ModelSource(load_program(text), None, None, Path(text).name)
    where, _, name = text.rpartition(":")
    function = getattr(_module(where, text), name, None)
    if function is None:
        raise InputError(f"{where} has no function {name!r}.")
    if not callable(function) or isinstance(function, torch.nn.Module):  # a model can be called, too
        raise InputError(f"{text} is {a_or_an(type(function).__name__)}, not a function that returns (model, args).")
    with _told_in_a_sentence(text):
        return _unpacked(function(), text)


@contextlib.contextmanager
def _told_in_a_sentence(what: str) -> Iterator[None]:
    """Whatever the user's own code raises becomes one sentence with its line; the cause is chained."""
    try:
        yield
    except FxPassesError:
        raise
    except Exception as error:  # the user's code may raise anything
        line = own_line(error)
        raise InputError(
            f"{what} raised {type(error).__name__}: {error}" + (f"\n  at {line}" if line else "")
        ) from error


def _module(where: str, text: str) -> Any:
    if where.endswith(".py"):
        path = Path(where)
        if not path.is_file():
            raise InputError(f"There is no file {where!r} (asked for {text!r}).")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise InputError(f"{where!r} cannot be read as Python source.")
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, module)
        if (folder := str(path.resolve().parent)) not in sys.path:
            sys.path.insert(0, folder)  # as for a script: the file may import what lies beside it
        with _told_in_a_sentence(where):
            spec.loader.exec_module(module)
        return module
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        if importlib.util.find_spec(where) is None:
            raise InputError(f"There is no module {where!r} (asked for {text!r}).")
    except ModuleNotFoundError as error:
        raise InputError(f"There is no module {where!r} (asked for {text!r}): {error}.") from error
    with _told_in_a_sentence(where):
        return importlib.import_module(where)


def _unpacked(value: Any, text: str) -> ModelSource:
    shape = isinstance(value, tuple) and len(value) in (2, 3) and isinstance(value[0], torch.nn.Module)
    args = value[1] if shape else None
    kwargs = value[2] if shape and len(value) == 3 else {}
    if not shape or not _are_args(args) or not isinstance(kwargs, Mapping):
        raise InputError(
            f"{text} returned {_returned(value, shape)}; it has to return (model, args) or (model, args, kwargs)"
            + (", where args is a tuple, like (x,)." if shape and not _are_args(args) else ".")
        )
    return ModelSource(value[0], tuple(args), dict(kwargs), text)


def _are_args(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _returned(value: Any, has_model: bool) -> str:
    if has_model:
        return f"({', '.join(['a model', *(type(each).__name__ for each in value[1:])])})"
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else a_or_an(type(value).__name__)
