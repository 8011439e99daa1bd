"""Turns of phrase that messages and reports share."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["a_or_an", "counted", "did_you_mean", "listed"]


def a_or_an(word: str) -> str:
    """A word behind its article.

    >>> a_or_an("int"), a_or_an("Tensor"), a_or_an("_Model")
    ('an int', 'a Tensor', 'a _Model')
    """
    return f"{'an' if word.lower().startswith(tuple('aeiou')) else 'a'} {word}"


def counted(count: int, what: str) -> str:
    """So many of something, in the singular or in the plural.

    >>> counted(1, "part"), counted(0, "part")
    ('1 part', '0 parts')
    """
    return f"{count} {what}" + ("" if count == 1 else "s")


def listed(names: Iterable[str], most: int = 3) -> str:
    """The first few of some names, and how many more there are.

    >>> listed(["a", "b", "c"]), listed("abcde", 2)
    ('a, b, c', 'a, b and 3 more')
    """
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name, with the one that is nearest, if any is near.

    >>> did_you_mean("lefd", ["left", "right"]), did_you_mean("x", ["left"])
    ("; did you mean 'left'?", '.')
    """
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else "."
