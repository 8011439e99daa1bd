"""From what a user has (a module, an exported program, a graph) to an ``ExportedProgram``.

Every entry point of the main job takes all of them; a model that cannot be captured gives one sentence with torch's
reason and the user's own source line.
"""

from __future__ import annotations

import linecache
import logging
import os
import re
import traceback
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import UnsupportedOperatorException
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from fxpasses.errors import CaptureError, InputError
from fxpasses.files import path_of
from fxpasses.programs.argument_order import in_captured_order
from fxpasses.programs.calling_convention import give_plain_outputs
from fxpasses.programs.lost_backwards import telling_lost_backwards
from fxpasses.programs.replaced_buffers import writing_replaced
from fxpasses.programs.saving import from_file
from fxpasses.programs.stale_buffers import refuse_stale_buffers
from fxpasses.programs.unseen_state import unchanged
from fxpasses.values.vmap_levels import close_levels, open_levels

__all__ = ["capture", "check_containers", "load_program", "own_line"]

_TORCH_HOME = os.path.dirname(torch.__file__)
_STRANGE_RESULT = re.compile(r"Found <class '(.+?)'> in output, which is not a known type")
_OWN_HOME = os.path.dirname(os.path.dirname(__file__))


def load_program(path: str | os.PathLike[str]) -> ExportedProgram:
    """Read a saved ``.pt2`` file.

    Args:
        path: The file that ``torch.export.save`` wrote.

    Returns:
        The program.

    Raises:
        InputError: there is no such file, or it is no exported program.
    """
    file = path_of(path, "a saved program")
    if not file.exists():
        raise InputError(f"There is no file {str(path)!r}.")
    if file.is_dir():
        raise InputError(f"{str(path)!r} is a folder, not a saved program; name the .pt2 file in it.")
    if not file.is_file():
        raise InputError(f"{str(path)!r} is a device, not a saved program; name a .pt2 file.")
    logged = list[BaseException]()
    try:
        with warnings.catch_warnings(), _log_kept_in(logged, "torch.export", "torch.export.pt2_archive._package"):
            warnings.simplefilter("ignore")
            return from_file(str(file))
    except Exception as error:  # torch.export.load has no error type of its own: zip, JSON, schema and pickle errors
        reason = logged[-1] if logged else error
        if (other := _what_else_it_is(file)) is not None:
            raise InputError(
                f"{str(path)!r} is not a program that torch.export.save wrote: it is {other}. Save what "
                "torch.export.export(model, args) gives, or give the model itself, in a shell as file.py:function."
            ) from error
        said = f"{str(path)!r} {_what_it_is(file)} ({type(reason).__name__}: {_first_line(reason).rstrip('.')})."
        if "not registered" in str(reason):
            said += (
                " The class has to be registered with torch.utils._pytree before: import what does that, or give the "
                "model itself, in a shell as file.py:function."
            )
        raise InputError(said) from error


@contextmanager
def _log_kept_in(logged: list[BaseException], *names: str) -> Iterator[None]:
    """Torch writes tracebacks to its log; what it then raises says no more than to look there."""

    def keep(record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            logged.append(record.exc_info[1])
        return False

    logs = list(map(logging.getLogger, names))
    for log in logs:
        log.addFilter(keep)
    try:
        yield
    finally:
        for log in logs:
            log.removeFilter(keep)


def _what_else_it_is(file: Path) -> str | None:
    """What a file is that torch wrote for something else, or that is no archive, as programs are."""
    if not zipfile.is_zipfile(file):
        return "no archive" if file.stat().st_size else "empty"
    with zipfile.ZipFile(file) as archive:
        inside = {name.partition("/")[2] for name in archive.namelist()}  # below the folder that has the file's name
    if "constants.pkl" in inside:
        return "a TorchScript model"
    return "what torch.save wrote, such as weights" if "data.pkl" in inside else None


def _what_it_is(file: Path) -> str:
    """What to say of a file that torch does not load: it writes some programs that it cannot read."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            if any(name.endswith("models/model.json") for name in archive.namelist()):
                return "is a saved program that torch.export.load cannot read"
    return "is not a program that torch.export.save wrote"


def capture(
    model: Any,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    strict: bool = False,
) -> ExportedProgram:
    """Turn a model into an ``ExportedProgram``.

    Args:
        model: An ``nn.Module`` (a ``GraphModule`` too), an ``ExportedProgram``, or the path of a saved one.
        args: Example inputs; not needed for a program.
        kwargs: Example keyword inputs.
        dynamic_shapes: Which sizes may change, as ``torch.export.export`` takes them.
        strict: Capture by bytecode instead of by running.

    Returns:
        The program; a program that was handed in comes back as it is.

    Raises:
        InputError: ``model`` is none of these, or example inputs are missing.
        CaptureError: torch cannot export the model; its forward replaces a buffer by what a program cannot keep; or the
            program has a backward.
    """
    if isinstance(model, (str, os.PathLike)):
        model = load_program(model)
    if isinstance(model, ExportedProgram):
        _refuse_backward(model)
        return model
    if not isinstance(model, torch.nn.Module):
        raise InputError(
            f"A model is an nn.Module, an ExportedProgram or the path of a .pt2 file, not {type(model).__name__}."
        )
    if args is None and kwargs is None:
        raise InputError(
            f"{type(model).__name__} needs example inputs to be captured; pass args=(...) or kwargs={{...}}."
        )
    check_containers(args, kwargs)
    args, kwargs = in_captured_order(model, tuple(args or ()), dict(kwargs or {}))
    _refuse_symbols(model, args, kwargs)
    return _export(model, *_each_its_own(model, args, kwargs), dynamic_shapes, strict)


def check_containers(args: Any, kwargs: Any) -> None:
    """Refuse example inputs that are in no tuple or dict.

    Raises:
        InputError: they are something else, as devices that were given by position.
    """
    if args is not None and not isinstance(args, (tuple, list)):
        raise InputError(f"args is a tuple of example inputs, not {type(args).__name__}; of one input x, write (x,).")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InputError(
            f"kwargs is a dict of example inputs by name, not {type(kwargs).__name__}; options, as devices=, go by "
            "name."
        )


def _each_its_own(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Examples in which no tensor stands twice, and none is the model's state.

    Torch takes two inputs that are one tensor for one input ever after, and one that is a parameter for the parameter.
    """
    leaves, structure = pytree.tree_flatten((args, kwargs))
    seen = {id(state) for state in (*model.parameters(), *model.buffers())}
    shared = []
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and id(leaf) in seen:
            shared.append(index)
        seen.add(id(leaf))
    if not shared:
        return args, kwargs
    for index in shared:
        leaves[index] = leaves[index].detach().clone().requires_grad_(leaves[index].requires_grad)
    own: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(leaves, structure)
    return own


def _refuse_backward(program: ExportedProgram) -> None:
    """Gradients are no results of a program, so its module would compute them and give none."""
    if program.graph_signature.backward_signature is not None:
        raise CaptureError(
            "This program holds a backward as well, whose gradients would be lost; hand over the program of the "
            "forward, which autograd gives a backward. A graph of both is placed with place_by_device(graph, ...), "
            "split and PlaceOnDevices.",
            reason="the program has a backward",
        )


def _refuse_symbols(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Sizes that torch.compile keeps open come to its backend as inputs of their own, which no program takes."""
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise CaptureError(
                f"{type(model).__name__} takes the size {leaf} as an input, as graphs do that torch.compile makes for "
                "sizes that change; write torch.compile(..., dynamic=False), and each size gets a graph of its own.",
                reason=f"the size {leaf} is an input",
            )


def _export(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any, strict: bool
) -> ExportedProgram:
    levels = open_levels()
    try:
        with (
            unchanged(model),
            telling_lost_backwards(),
            warnings.catch_warnings(),
            writing_replaced(model, strict=strict) as replaced,
        ):
            warnings.simplefilter("ignore")
            program = torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=strict)
    except Exception as error:  # whatever the user's forward raises comes out of export
        close_levels(levels)
        line = own_line(error)
        raise CaptureError(
            f"torch.export cannot capture {type(model).__name__}: {_told(error)}"
            + (f"\n  at {line}\nMake that line exportable" if line else "\nChange the model or dynamic_shapes")
            + ", or hand over a program that is exported already.",
            reason=_first_line(error),
        ) from error
    _refuse_lost_inputs(model, program)
    refuse_stale_buffers(model, program, replaced)
    give_plain_outputs(program)
    return program


def _refuse_lost_inputs(model: torch.nn.Module, program: ExportedProgram) -> None:
    """Torch makes a constant without data of what ``torch.func`` hands to a function, in silence."""
    for value in program.constants.values():
        if isinstance(value, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value):
            if torch._C._functorch.is_batchedtensor(value):
                raise CaptureError(
                    f"torch.export takes a value inside of a torch.vmap in the forward of {type(model).__name__} for a "
                    "constant, which has no data. Write its operators over all rows at once.",
                    reason="torch.vmap takes a value that is not captured",
                )
            raise CaptureError(
                "torch.export cannot capture torch.func.grad, vjp or jacrev, and the forward of "
                f"{type(model).__name__} calls one: it forgets what the function is given. Write it with "
                "torch.autograd.grad inside of torch.enable_grad(), or with torch.func.jvp.",
                reason="a transform of torch.func takes a value that is not captured",
            )


def _told(error: BaseException) -> str:
    """What torch says in its first line; of sizes that cannot change as asked, also which, why, and what could.

    Of an operator that it cannot run without data, torch says the name only.
    """
    if isinstance(error, UnsupportedOperatorException):
        name = str(error.func).removesuffix(".default").replace(".", "::", 1)
        return f"{error.func} has no fake kernel; add one with torch.library.register_fake({name!r})"
    if strange := _STRANGE_RESULT.match(str(error)):
        return (
            f"it returns a {strange[1]}, which torch does not know how to take apart; leave it out (a cache of Hugging "
            "Face: use_cache=False), or say how with torch.export.register_dataclass or "
            "torch.utils._pytree.register_pytree_node"
        )
    paragraph = str(error).strip().partition("\n\n")[0]
    if not paragraph.startswith("Constraints violated"):
        return _first_line(error)
    first, *others = paragraph.splitlines()
    return "\n".join([first.partition(" For more information")[0], *others])


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def own_line(error: BaseException) -> str | None:
    """The innermost frame of a traceback that is the user's: neither torch's nor ours."""
    frames = list(traceback.walk_tb(error.__traceback__))
    for frame, number in reversed(frames):
        file = frame.f_code.co_filename
        inside = file.startswith((_TORCH_HOME, _OWN_HOME, "<"))
        if not inside and f"{os.sep}contextlib.py" not in file:
            code = linecache.getline(file, number).strip()
            return f"{file}:{number} in {frame.f_code.co_name}: {code}"
    return None
