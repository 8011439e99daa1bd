"""A lowered model as a folder: the program, the plan, the drawing, the page; and back in a new process.

The folder holds no code: the program is torch's own ``.pt2`` format and the plan is JSON, so loading needs neither the
model's source nor a pickle. Loading replays the plan.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fxpasses.errors import InputError
from fxpasses.files import path_of
from fxpasses.lowering.current_state import check_data, replaced_tensors
from fxpasses.lowering.end_to_end import lower_with_plan
from fxpasses.lowering.lowered_module import LoweredModule, device_of_submodules
from fxpasses.lowering.structures import save_flat, with_structure
from fxpasses.plan import Plan
from fxpasses.programs.capturing import load_program
from fxpasses.report.drawing import draw_parts, write_drawing
from fxpasses.report.page import render_page

__all__ = ["check_writable", "load", "save"]

FILES = PROGRAM, STRUCTURE, PLAN, PAGE, SUMMARY = (
    "program.pt2",
    "structure.json",
    "plan.json",
    "report.html",
    "report.json",
)
DRAWINGS = ("graph.dot", "graph.svg")


def check_writable(folder: str | os.PathLike[str]) -> None:
    """Fail early, before the long work, when a folder cannot be written.

    Raises:
        InputError: it cannot be made or written to.
    """
    path = path_of(folder, "a folder")
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise InputError(f"--out {str(folder)!r} cannot be written: {str(existing)!r} is not a folder.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"--out {str(folder)!r} cannot be written: no permission to write in {str(existing)!r}.")


def save(lowered: LoweredModule, folder: str | os.PathLike[str]) -> list[Path]:
    """Write a lowered model, with the state that it has now, to a folder; either all files or none.

    Args:
        lowered: What :func:`fxpasses.lower` gave.
        folder: Where to; made if it is not there. Files of an earlier save are replaced.

    Returns:
        The files: ``program.pt2``, ``structure.json``, ``plan.json``, ``report.html``, ``report.json``, ``graph.dot``,
        and ``graph.svg`` where Graphviz's ``dot`` is found.

    Raises:
        InputError: it is no lowered model, its parameters hold no data, or the folder cannot be written.
    """
    if not isinstance(lowered, LoweredModule):
        raise InputError(
            f"save() takes what fxpasses.lower() gave, not {type(lowered).__name__}; lower the model first."
        )
    check_writable(folder)
    target = Path(folder)
    made = not target.exists()
    try:
        target.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".saving-", dir=target))
    except OSError as error:
        raise InputError(f"--out {str(folder)!r} cannot be written: {error.strerror}.") from error
    try:
        written = _swapped(_write_all(lowered, staging), target)
    except BaseException as error:
        shutil.rmtree(target if made else staging, ignore_errors=True)
        if isinstance(error, OSError):
            raise InputError(f"--out {str(folder)!r} cannot be written: {error.strerror}.") from error
        raise
    shutil.rmtree(staging, ignore_errors=True)
    return written


def _swapped(files: Sequence[Path], target: Path) -> list[Path]:
    """Put files where those of an earlier save are; these are back where one cannot be put there."""
    before, written = Path(tempfile.mkdtemp(dir=files[0].parent)), []
    try:
        for name in (*FILES, *DRAWINGS):
            if (target / name).exists():
                os.replace(target / name, before / name)
        for file in files:
            written.append(target / file.name)
            os.replace(file, written[-1])
    except BaseException:
        for new in written:
            new.unlink(missing_ok=True)
        for old in before.iterdir():
            os.replace(old, target / old.name)
        raise
    return written


def _write_all(lowered: LoweredModule, staging: Path) -> list[Path]:
    device_of = device_of_submodules(lowered)
    check_data(lowered, lowered.program, lowered.qualified_names, device_of)
    current = replaced_tensors(lowered, lowered.program, lowered.qualified_names)
    structure = save_flat(lowered.program, staging / PROGRAM, current)
    (staging / STRUCTURE).write_text(json.dumps(structure, indent=2) + "\n", encoding="utf-8")
    lowered.plan.save(staging / PLAN)
    drawings = write_drawing(draw_parts(lowered, device_of), staging)
    picture = next((file.read_text(encoding="utf-8") for file in drawings if file.suffix == ".svg"), None)
    page = render_page(lowered.report, picture)
    (staging / PAGE).write_text(page, encoding="utf-8", errors="backslashreplace")
    (staging / SUMMARY).write_text(json.dumps(lowered.report.to_json(), indent=2) + "\n", encoding="utf-8")
    return [*(staging / name for name in FILES), *drawings]


def load(folder: str | os.PathLike[str]) -> LoweredModule:
    """Load a saved lowered model; the model's source is not needed.

    Args:
        folder: What :func:`save` wrote.

    Returns:
        The same lowered module, its parts on the devices of the plan.

    Raises:
        InputError: there is no such folder, or a file of it is missing or broken.
        PlanError: the plan does not fit the program.
    """
    path = path_of(folder, "a saved model")
    if not path.is_dir():
        raise InputError(f"There is no folder {str(folder)!r} that fxpasses lower --out wrote.")
    program = load_program(path / PROGRAM)
    try:
        structure = json.loads((path / STRUCTURE).read_text(encoding="utf-8"))
        program = with_structure(program, structure)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{str(path / STRUCTURE)!r} is missing or broken ({error}); save the model again.") from error
    return lower_with_plan(program, Plan.load(path / PLAN))
