"""Read JSON that somebody may have written by hand: a slip is said with its line, and a name that stands twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fxpasses.errors import FxPassesError, InputError

__all__ = ["read_json"]


def read_json(path: Path, what: str, *, error: type[FxPassesError] = InputError) -> Any:
    """Read a file.

    Args:
        path: Where it is.
        what: How messages call such a file.
        error: What is raised.

    Raises:
        InputError: there is no such file, it is not JSON, or an object in it has two entries of one name.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors write the mark
    except OSError as caught:
        raise error(f"There is no {what} {str(path)!r}.") from caught
    except UnicodeDecodeError as caught:
        raise error(f"{str(path)!r} is not JSON: {caught}.") from caught
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as caught:
        raise error(f"{str(path)!r} is not JSON: {_slip(text, caught)}.") from caught
    except (ValueError, RecursionError) as caught:  # thousands of digits, or of brackets
        raise error(f"{str(path)!r} cannot be read: a number in it is too long, or it is nested too deep.") from caught
    except _TwiceError as caught:
        raise error(f"{str(path)!r} has two entries {caught.args[0]!r} in one object; take one out.") from None


class _TwiceError(Exception):
    """A name stands twice in an object; Python would take the last one."""


def _object(entries: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(entries)
    if len(found) < len(entries):
        counts = Counter(name for name, _value in entries)
        raise _TwiceError(next(name for name in counts if counts[name] > 1))
    return found


def _slip(text: str, error: json.JSONDecodeError) -> str:
    """What is wrong where, in words for the slips that hands make."""
    if not text.strip():
        return "the file is empty"
    before, at = text[: error.pos].rstrip(), text[error.pos : error.pos + 1]
    where = f"line {error.lineno}, column {error.colno}"
    if before.endswith(",") and at in ("}", "]"):
        return f"a comma stands before the {at!r} in {where}; take it out"
    if error.msg == "Extra data":
        return f"something stands behind its end, in {where}"
    return f"{error.msg}: {where}"
