"""Write files that people asked for, and say in a sentence when that fails."""

from __future__ import annotations

import os
from pathlib import Path

from fxpasses.errors import FxPassesError, InputError

__all__ = ["write_text"]


def write_text(path: str | os.PathLike[str], text: str, *, error: type[FxPassesError] = InputError) -> None:
    """Write a text in UTF-8.

    Args:
        path: The file; its folder must be there.
        text: What it shall hold.
        error: What is raised.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as caught:
        raise error(f"{os.fspath(path)!r} cannot be written: {caught.strerror}.") from caught
