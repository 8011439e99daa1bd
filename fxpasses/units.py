"""Sizes, rates and times as people write them: ``40MiB``, ``16GiB/s``, ``5us``."""

from __future__ import annotations

import math
import numbers
import re
from typing import Any

from fxpasses.errors import InputError

__all__ = [
    "GB",
    "KB",
    "MB",
    "TB",
    "GiB",
    "KiB",
    "MiB",
    "TiB",
    "format_bytes",
    "format_percent",
    "format_seconds",
    "parse_bytes",
    "parse_count",
    "parse_rate",
    "parse_seconds",
    "plain_number",
]

KiB, MiB, GiB, TiB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12

_BYTES = {"": 1, "b": 1, "kib": KiB, "mib": MiB, "gib": GiB, "tib": TiB, "kb": KB, "mb": MB, "gb": GB, "tb": TB}
_PER_SECOND = {"": 1.0, "s": 1.0, "ms": 1e3, "us": 1e6, "\u00b5s": 1e6, "\u03bcs": 1e6, "ns": 1e9}
"""The sign for micro is one of its own, or the Greek letter."""
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z\u00b5\u03bc]*)\s*$")
_BITS = re.compile(r"(?:b|[Bb]its?)$")
_UNCLEAR = re.compile(r"[0-9]\s*([mgt])(i?)b(?:/s)?$")
"""Small letters throughout, which some write for bits, and some for bytes."""


def _split(text: str, what: str, example: str) -> tuple[float, str]:
    found = _NUMBER.match(text)
    if found is None:
        raise InputError(f"{text!r} is not {what}; write it like {example}.")
    return float(found.group(1)), found.group(2).lower()


def _scaled(number: float, factor: float, text: str, what: str, example: str) -> float:
    """A number in its unit, which may be too large to be one."""
    if math.isinf(scaled := number * factor):
        raise InputError(f"{text!r} is not {what}: it is too large for a number; write it like {example}.")
    return scaled


def parse_bytes(text: str | int) -> int:
    """Read a number of bytes; binary (``KiB``) and decimal (``KB``) units, in capital or small letters.

    >>> parse_bytes("40MiB"), parse_bytes("1.5kB"), parse_bytes(7)
    (41943040, 1500, 7)

    Raises:
        InputError: the text is not a size.
    """
    if isinstance(text, int):
        return text
    number, unit = _split(text, "a size in bytes", "40MiB or 2GB")
    if unit not in _BYTES:
        raise InputError(f"{text!r} is not a size in bytes: there is no unit {unit!r}; write it like 40MiB or 2GB.")
    return round(_scaled(number, _BYTES[unit], text, "a size in bytes", "40MiB or 2GB"))


def parse_rate(text: str | float) -> float:
    """Read bytes per second: ``16GiB/s``; a small ``b`` counts bits, as links are sold, and ``gb/s`` is refused.

    >>> parse_rate("12.5GB/s"), parse_rate("100Gb/s"), parse_rate("100Gbps"), parse_rate("100Gbit/s")
    (12500000000.0, 12500000000.0, 12500000000.0, 12500000000.0)

    Raises:
        InputError: the text is not a rate, or may be one of bits or of bytes.
    """
    if isinstance(text, (int, float)):
        return float(text)
    if unclear := _UNCLEAR.search(text.strip()):
        prefix = unclear[1].upper() + unclear[2]
        raise InputError(f"{text!r} may be bits or bytes per second; write {prefix}bit/s or {prefix}B/s.")
    body, in_bits = _BITS.subn("B", text.strip().removesuffix("/s").removesuffix("ps"))
    try:
        return parse_bytes(body) / (8 if in_bits else 1)
    except InputError:
        raise InputError(f"{text!r} is not a rate in bytes per second; write it like 16GiB/s.") from None


def parse_count(text: str | float, what: str = "a number") -> float:
    """Read a number with a decimal prefix: ``2.5T`` is 2.5e12; a trailing ``FLOP/s`` or ``FLOPS`` is allowed.

    Raises:
        InputError: the text is not a number.
    """
    if isinstance(text, (int, float)):
        return float(text)
    body = re.sub(r"(?i)flop(?:s|/s)?$", "", text.strip())
    number, unit = _split(body, what, "2.5T")
    if unit not in _COUNTS:
        raise InputError(f"{text!r} is not {what}: there is no prefix {unit!r}; write it like 2.5T.")
    return _scaled(number, _COUNTS[unit], text, what, "2.5T")


def parse_seconds(text: str | float) -> float:
    """Read a time: ``5us``.

    Raises:
        InputError: the text is not a time.
    """
    if isinstance(text, (int, float)):
        return float(text)
    number, unit = _split(text, "a time", "5us")
    if unit not in _PER_SECOND:
        raise InputError(f"{text!r} is not a time: there is no unit {unit!r}; write it like 5us or 2ms.")
    return _scaled(number, 1.0, text, "a time", "5us or 2ms") / _PER_SECOND[unit]  # division keeps 5us at 5e-06


def format_bytes(size: float) -> str:
    """Write a size with three digits that matter.

    >>> format_bytes(0), format_bytes(1536), format_bytes(40 * MiB), format_bytes(math.inf)
    ('0 B', '1.50 KiB', '40.0 MiB', 'no limit')
    """
    if math.isinf(size):
        return "no limit"
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} B" if unit == "B" else f"{_three_digits(value)} {unit}"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def format_seconds(seconds: float) -> str:
    """Write a time with three digits that matter.

    >>> format_seconds(0.0), format_seconds(1.5e-3), format_seconds(12.0)
    ('0 s', '1.50 ms', '12.0 s')
    """
    if seconds == 0:
        return "0 s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= scale:
            value = seconds / scale
            return f"{_three_digits(value)} {unit}"
    return f"{_three_digits(seconds / 1e-9)} ns"


def format_percent(share: float) -> str:
    """Write a share of zero or more in percent, with two digits that matter.

    >>> format_percent(0.0034), format_percent(0.05), format_percent(0.44), format_percent(12.0)
    ('0.34%', '5%', '44%', '1,200%')
    """
    percent = 100 * share
    if 0 < percent < 0.01:
        return "less than 0.01%"
    return f"{percent:,.0f}%" if percent >= 10 else f"{percent:.2g}%"


def plain_number(value: Any) -> Any:
    """A number of numpy's, or of another library, as Python's; anything else as it is.

    >>> import numpy as np
    >>> plain_number(np.int64(3)), plain_number(np.float32(0.5)), plain_number("x")
    (3, 0.5, 'x')
    """
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value
