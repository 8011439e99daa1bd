"""Sizes, rates and times as people write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fxpasses.errors import InputError
from fxpasses.units import (
    GiB,
    MiB,
    format_bytes,
    format_percent,
    format_seconds,
    parse_bytes,
    parse_count,
    parse_rate,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_bytes, "40MiB", 40 * MiB),
        (parse_bytes, " 1.5 kB ", 1500),
        (parse_bytes, "12", 12),
        (parse_rate, "16GiB/s", 16 * GiB),
        (parse_rate, "100GB/s", 100e9),
        (parse_rate, "100GBps", 100e9),
        (parse_rate, "100Gb/s", 12.5e9),
        (parse_rate, "100Gbps", 12.5e9),
        (parse_rate, "100 Gbit/s", 12.5e9),
        (parse_rate, "2Gib/s", GiB / 4),
        (parse_rate, "10Mb/s", 1.25e6),
        (parse_bytes, "16gb", 16e9),
        (parse_bytes, "16Gb", 16e9),
        (parse_count, "2.5T", 2.5e12),
        (parse_count, "300GFLOP/s", 300e9),
        (parse_seconds, "5us", 5e-6),
        (parse_seconds, "5\u00b5s", 5e-6),
        (parse_seconds, "5\u03bcs", 5e-6),
        (parse_seconds, "2ms", 2e-3),
    ],
)
def test_what_people_write_is_read(parse: Callable[[str], Any], text: str, value: float) -> None:
    assert value == pytest.approx(parse(text))


@pytest.mark.parametrize(
    ("parse", "text", "sentence"),
    [
        (parse_bytes, "many", "'many' is not a size in bytes; write it like 40MiB or 2GB."),
        (
            parse_bytes,
            "4 parsecs",
            "'4 parsecs' is not a size in bytes: there is no unit 'parsecs'; write it like 40MiB or 2GB.",
        ),
        (parse_bytes, "-3MiB", "'-3MiB' is not a size in bytes; write it like 40MiB or 2GB."),
        (parse_rate, "16gb/s", "'16gb/s' may be bits or bytes per second; write Gbit/s or GB/s."),
        (parse_rate, "16 mib", "'16 mib' may be bits or bytes per second; write Mibit/s or MiB/s."),
        (parse_rate, "fast", "'fast' is not a rate in bytes per second; write it like 16GiB/s."),
        (parse_seconds, "soon", "'soon' is not a time; write it like 5us."),
        (parse_seconds, "5 weeks", "'5 weeks' is not a time: there is no unit 'weeks'; write it like 5us or 2ms."),
        (
            parse_bytes,
            "1e400",
            "'1e400' is not a size in bytes: it is too large for a number; write it like 40MiB or 2GB.",
        ),
        (
            parse_bytes,
            "1e300TB",
            "'1e300TB' is not a size in bytes: it is too large for a number; write it like 40MiB or 2GB.",
        ),
        (parse_rate, "1e400GB/s", "'1e400GB/s' is not a rate in bytes per second; write it like 16GiB/s."),
        (parse_seconds, "1e400s", "'1e400s' is not a time: it is too large for a number; write it like 5us or 2ms."),
        (parse_count, "1e300P", "'1e300P' is not a number: it is too large for a number; write it like 2.5T."),
        (parse_count, "3x", "'3x' is not a number: there is no prefix 'x'; write it like 2.5T."),
    ],
)
def test_what_makes_no_sense_is_refused_with_an_example(parse: Callable[[str], Any], text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text)

    assert sentence == str(caught.value)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1023 * 1024, "1023 KiB"), (3 * GiB, "3.00 GiB")],
)
def test_sizes_are_written_with_three_digits(size: int, text: str) -> None:
    assert text == format_bytes(size)


@pytest.mark.parametrize(("seconds", "text"), [(2.5, "2.50 s"), (0.0, "0 s"), (3e-6, "3.00 us"), (2e-9, "2.00 ns")])
def test_times_are_written_with_three_digits(seconds: float, text: str) -> None:
    assert text == format_seconds(seconds)


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0%"), (2e-5, "less than 0.01%"), (0.0996, "10%"), (0.444, "44%"), (1.0, "100%"), (56.0, "5,600%")],
)
def test_shares_are_written_without_exponents(share: float, text: str) -> None:
    assert text == format_percent(share)
