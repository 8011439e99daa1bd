"""Read and write pipelines as text: ``remove-detach,fold-constants{max-bytes=1MiB},repeat(cse){max-steps=4}``.

.. code-block:: text

    pipeline := pass ("," pass)*
    pass     := name [ "(" [pipeline] ")" ] [ "{" [option ("," option)*] "}" ]
    option   := name "=" value
    value    := word | "quoted" | 'quoted' | "[" [value ("," value)*] "]"

This file knows the grammar and how values of each type are written. What the names mean is the registry's business
(:mod:`fxpasses.registry`). Reading takes one pass over the text, O(characters).
"""

from __future__ import annotations

import enum
import pathlib
import re
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias, Union

import attrs
import torch

from fxpasses.errors import InputError, PipelineError, PipelineSyntaxError, also_as
from fxpasses.units import GiB, KiB, MiB, parse_bytes, parse_count

__all__ = [
    "Group",
    "OptionText",
    "PassText",
    "Word",
    "kebab_case",
    "option_name",
    "parse_pipeline_text",
    "read_value",
    "syntax_error",
    "write_value",
]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
_WORD = re.compile(r"[^\s,{}()\[\]='\"]+")
_SPACE = re.compile(r"\s*")
_PLAIN_WORD = re.compile(r"[A-Za-z_./:+][^\s,{}()\[\]='\"\\]*\Z")
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}


@attrs.frozen
class Word:
    """One value, as it was written."""

    text: str
    column: int
    quoted: bool = False


@attrs.frozen
class Group:
    """Several values in brackets."""

    items: tuple[ValueText, ...]
    column: int


ValueText: TypeAlias = Word | Group


@attrs.frozen
class OptionText:
    """``name=value``."""

    name: str
    value: ValueText
    column: int


@attrs.frozen
class PassText:
    """One pass: its name, the pipeline in its parentheses (None without any), its options."""

    name: str
    column: int
    inner: tuple[PassText, ...] | None = None
    options: tuple[OptionText, ...] = ()


def syntax_error(text: str, column: int, reason: str) -> PipelineSyntaxError:
    """An error that shows the line and points at the character."""
    start = text.rfind("\n", 0, column) + 1
    end = text.find("\n", column)
    line = text[start : end if end >= 0 else len(text)]
    pad = "".join("\t" if character == "\t" else " " for character in line[: column - start])
    message = f"{reason}\n  {line}\n  {pad}^"
    return PipelineSyntaxError(message, text=text, column=column, reason=reason)


def kebab_case(name: str) -> str:
    """How a class or function is called in text.

    >>> kebab_case("FuseConvBN"), kebab_case("CSEPass"), kebab_case("fold_constants")
    ('fuse-conv-bn', 'cse', 'fold-constants')
    """
    if name.endswith("Pass") and name != "Pass":
        name = name.removesuffix("Pass")
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name)
    return spaced.replace("_", "-").strip("-").lower()


def option_name(name: str) -> str:
    """How a field is called in text: ``max_bytes`` is ``max-bytes``."""
    return name.strip("_").replace("_", "-")


# --- the grammar ----------------------------------------------------------------------------------------------------


def parse_pipeline_text(text: str) -> tuple[PassText, ...]:
    """Take a pipeline apart, without looking any name up.

    Raises:
        PipelineSyntaxError: It does not follow the grammar; the message points at the character.
        PipelineError: It is no text (also a TypeError).
    """
    if not isinstance(text, str):
        raise also_as(PipelineError, TypeError())(
            f"the text of a pipeline is a str, not {type(text).__name__}; passes themselves go into a PassManager"
        )
    reader = _Reader(text)
    if reader.at_end():
        return ()
    passes = reader.pipeline()
    if not reader.at_end():
        raise syntax_error(text, reader.position, f"unexpected {reader.found()}; expected ',' or the end")
    return passes


class _Reader:
    """A position in a text; each method reads one rule of the grammar. Nesting is kept on a stack, not in calls."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def skip(self) -> None:
        matched = _SPACE.match(self.text, self.position)
        self.position = matched.end() if matched else self.position

    def at_end(self) -> bool:
        self.skip()
        return self.position >= len(self.text)

    def found(self) -> str:
        return "the end of the text" if self.at_end() else repr(self.text[self.position])

    def take(self, character: str) -> bool:
        self.skip()
        if self.text.startswith(character, self.position):
            self.position += 1
            return True
        return False

    def expect(self, character: str, opened_at: int | None = None) -> None:
        if not self.take(character):
            where = "" if opened_at is None else f" to close the {self.text[opened_at]!r} at column {opened_at + 1}"
            raise syntax_error(self.text, self.position, f"expected {character!r}{where}, found {self.found()}")

    def name(self, what: str) -> tuple[str, int]:
        self.skip()
        column = self.position
        matched = _NAME.match(self.text, column)
        if matched is None:
            raise syntax_error(self.text, column, f"expected {what}, found {self.found()}")
        self.position = matched.end()
        return matched.group(), column

    def pipeline(self) -> tuple[PassText, ...]:
        levels: list[list[PassText]] = [[]]
        opened: list[tuple[str, int, int]] = []  # name, its column, column of its parenthesis
        while True:
            name, column = self.name("the name of a pass")
            self.skip()
            if self.take("("):
                opened.append((name, column, self.position - 1))
                if not self.take(")"):
                    levels.append([])
                    continue
                levels[-1].append(PassText(name, column, (), self.options()))
                opened.pop()
            else:
                levels[-1].append(PassText(name, column, None, self.options()))
            while not self.take(","):
                if not opened:
                    return tuple(levels[0])
                name, column, parenthesis = opened.pop()
                self.expect(")", parenthesis)
                inner = tuple(levels.pop())
                levels[-1].append(PassText(name, column, inner, self.options()))

    def options(self) -> tuple[OptionText, ...]:
        self.skip()
        opened_at = self.position
        if not self.take("{") or self.take("}"):
            return ()
        found: list[OptionText] = []
        while True:
            name, column = self.name("the name of an option")
            if any(option.name == name for option in found):
                raise syntax_error(self.text, column, f"option {name!r} is given twice")
            self.expect("=")
            found.append(OptionText(name, self.value(), column))
            if not self.take(","):
                self.expect("}", opened_at)
                return tuple(found)

    def value(self) -> ValueText:
        self.skip()
        column = self.position
        if not self.take("["):
            return self.word()
        items: list[ValueText] = []
        while not self.take("]"):
            if items and not self.take(","):
                self.expect("]", column)
            if self.text.startswith("[", self.position):
                raise syntax_error(self.text, self.position, "lists in lists cannot be written as text")
            items.append(self.word())
        return Group(tuple(items), column)

    def word(self) -> Word:
        self.skip()
        column = self.position
        if self.text[column : column + 1] in ("'", '"') and column < len(self.text):
            return Word(self.quoted(self.text[column]), column, quoted=True)
        matched = _WORD.match(self.text, column)
        if matched is None:
            raise syntax_error(self.text, column, f"expected a value, found {self.found()}")
        self.position = matched.end()
        return Word(matched.group(), column)

    def quoted(self, mark: str) -> str:
        start = self.position
        self.position += 1
        parts: list[str] = []
        while self.position < len(self.text):
            character = self.text[self.position]
            self.position += 1
            if character == mark:
                return "".join(parts)
            if character == "\\" and self.position < len(self.text):
                parts.append(_ESCAPES.get(self.text[self.position], self.text[self.position]))
                self.position += 1
            else:
                parts.append(character)
        raise syntax_error(self.text, start, f"this {mark} is never closed")


# --- values, by type ------------------------------------------------------------------------------------------------


class _Unfit(Exception):  # noqa: N818 - never leaves this file
    """A value that is not of the type; says what would be."""


def read_value(value: ValueText, kind: Any) -> Any:
    """Turn what was written into a value of the type ``kind``.

    Raises:
        InputError: It is no such value; the message says what would be.
    """
    try:
        return _read(value, kind)
    except _Unfit as unfit:
        raise InputError(f"{_shown(value)} is not {unfit}") from None


def _shown(value: ValueText) -> str:
    if isinstance(value, Group):
        return f"[{', '.join(_shown(item) for item in value.items)}]"
    return repr(value.text)


def _read(value: ValueText, kind: Any) -> Any:
    origin = typing.get_origin(kind)
    if origin in (Union, types.UnionType):
        return _read_union(value, typing.get_args(kind))
    if origin is Literal:
        return _read_choice(value, {str(choice): choice for choice in typing.get_args(kind)})
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _read_choice(value, {option_name(member.name).lower(): member for member in kind})
    if (element := _element_type(kind)) is not None:
        return _read_sequence(value, kind, element)
    if isinstance(value, Group):
        raise _Unfit(f"one value of type {_type_name(kind)}")
    reader = _READERS.get(kind)
    if reader is None:
        raise _Unfit(f"something that text can say: build a pass with {_type_name(kind)} options in Python")
    return reader(value)


def _read_union(value: ValueText, kinds: Sequence[Any]) -> Any:
    if type(None) in kinds and isinstance(value, Word) and not value.quoted and value.text.lower() == "none":
        return None
    unfit: list[str] = []
    quoted = isinstance(value, Word) and value.quoted
    for kind in sorted(kinds, key=lambda kind: (kind is str) is not quoted):  # text is meant where there are quotes
        if kind is type(None):
            continue
        try:
            return _read(value, kind)
        except _Unfit as error:
            unfit.append(str(error))
    raise _Unfit(" or ".join([*unfit, "none"] if type(None) in kinds else unfit))


def _read_choice(value: ValueText, choices: dict[str, Any]) -> Any:
    if isinstance(value, Word):
        for name, choice in choices.items():
            if value.text.lower().replace("_", "-") == name.lower().replace("_", "-"):
                return choice
    raise _Unfit(f"one of {', '.join(choices)}")


def _element_type(kind: Any) -> Any:
    """The types of the elements of a sequence type, as a tuple with ``...`` at the end if there may be any number."""
    origin = typing.get_origin(kind) or kind
    if origin not in (tuple, list, Sequence, Iterable, frozenset):
        return None
    arguments = typing.get_args(kind) or (Any,)
    return arguments if origin is tuple and arguments[-1] is not Any else (*arguments, ...)


def _read_sequence(value: ValueText, kind: Any, element: tuple[Any, ...]) -> Any:
    items = value.items if isinstance(value, Group) else (value,)
    many = element[-1] is ...
    if not many and len(items) != len(element):
        raise _Unfit(f"{len(element)} values in brackets")
    kinds = [element[0]] * len(items) if many else list(element)
    made = [_read(item, each) for item, each in zip(items, kinds, strict=True)]
    origin = typing.get_origin(kind) or kind
    return origin(made) if origin in (list, frozenset) else tuple(made)


def _read_bool(word: Word) -> bool:
    if word.text.lower() not in ("true", "false"):
        raise _Unfit("true or false")
    return word.text.lower() == "true"


def _read_int(word: Word) -> int:
    text = word.text.replace("_", "")
    try:
        return int(text, 0)
    except ValueError:
        pass
    try:
        if text[-1:].isalpha():
            return parse_bytes(text)
    except InputError:
        pass
    raise _Unfit("a whole number, such as 4, or a size, such as 1MiB")


def _read_float(word: Word) -> float:
    try:
        return float(word.text)
    except ValueError:
        pass
    try:
        return parse_count(word.text)
    except InputError:
        raise _Unfit("a number, such as 0.5 or 1e-3") from None


def _read_dtype(word: Word) -> torch.dtype:
    found = getattr(torch, word.text.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise _Unfit("a dtype, such as float32")
    return found


def _read_device(word: Word) -> torch.device:
    try:
        return torch.device(word.text)
    except RuntimeError:
        raise _Unfit("a device, such as cpu or cuda:0") from None


def _read_any(word: Word) -> Any:
    """Guess the type, as a reader of the text would."""
    if word.quoted:
        return word.text
    if word.text.lower() == "none":
        return None
    for reader in (_read_bool, _read_int, _read_float):
        try:
            return reader(word)
        except _Unfit:
            continue
    return word.text


_READERS: dict[Any, Callable[[Word], Any]] = {
    bool: _read_bool,
    int: _read_int,
    float: _read_float,
    str: lambda word: word.text,
    pathlib.Path: lambda word: pathlib.Path(word.text),
    torch.dtype: _read_dtype,
    torch.device: _read_device,
    Any: _read_any,
}


def _type_name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)


def write_value(value: Any, *, is_size: bool = False) -> str:
    """Write a value so that :func:`read_value` gives an equal one.

    Args:
        value: The value.
        is_size: It counts bytes, so ``1048576`` is written ``1MiB``.

    Raises:
        PipelineError: Text has no way to say it.
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, enum.Enum):
        return option_name(value.name).lower()
    if isinstance(value, int):
        return _write_size(value) if is_size else str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str | pathlib.Path):
        return _write_text(str(value))
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, frozenset):
        return f"[{','.join(sorted(write_value(item) for item in value))}]"
    if isinstance(value, list | tuple) and not any(isinstance(item, list | tuple | frozenset) for item in value):
        return f"[{','.join(write_value(item) for item in value)}]"
    raise PipelineError(f"{value!r} ({type(value).__name__}) cannot be written as pipeline text")


def _write_size(value: int) -> str:
    for unit, size in (("GiB", GiB), ("MiB", MiB), ("KiB", KiB)):
        if value and value % size == 0:
            return f"{value // size}{unit}"
    return str(value)


def _write_text(text: str) -> str:
    if _PLAIN_WORD.match(text) and text.lower() not in ("true", "false", "none", "nan", "inf", "infinity"):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
