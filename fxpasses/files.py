"""Write files that people asked for, and say in a sentence when that fails."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fxpasses.errors import FxPassesError, InputError

__all__ = ["path_of", "write_text"]


def path_of(given: Any, what: str, *, error: type[FxPassesError] = InputError) -> Path:
    """What somebody gave as a path.

    Args:
        given: The path.
        what: What it leads to, for the message.
        error: What is raised.

    Raises:
        InputError: it is no path.
    """
    if not isinstance(given, (str, os.PathLike)):
        raise error(f"The path of {what} is a text or a pathlib.Path, not {given!r}.")
    if "\0" in str(given):
        raise error(f"The path of {what} has a null character in it, which no path may have: {str(given)!r}.")
    return Path(given)


def write_text(path: str | os.PathLike[str], text: str, *, error: type[FxPassesError] = InputError) -> None:
    """Write a text in UTF-8; halves of characters, of names that the system could not decode, as escapes.

    Args:
        path: The file; its folder must be there.
        text: What it shall hold.
        error: What is raised.

    Raises:
        InputError: it is no path, or the file cannot be written.
    """
    file = path_of(path, "a file", error=error)
    try:
        file.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as caught:
        raise error(f"{os.fspath(path)!r} cannot be written: {caught.strerror}.") from caught
