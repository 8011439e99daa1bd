"""Ranges of a row that are raised and lowered: its largest number is known after each."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fxpasses.partitioners.costs.raised_ranges import RaisedRanges


@pytest.mark.parametrize("length", [1, 2, 3, 10, 37, 100])
def test_the_largest_number_is_that_of_a_plain_row(length: int) -> None:
    """Whatever ranges are raised and lowered, empty ones and the whole row included."""
    draw = random.Random(length)
    row = np.array([draw.randint(-5, 5) for _ in range(length)], dtype=np.int64)
    ranges = RaisedRanges(row.copy())
    found, expected = [ranges.largest], [int(row.max())]
    for _ in range(200):
        start, stop, amount = draw.randint(0, length), draw.randint(0, length), draw.randint(-9, 9)
        row[start:stop] += amount
        ranges.add(start, stop, amount)
        found.append(ranges.largest)
        expected.append(int(row.max()))

    assert expected == found


def test_what_was_given_stays() -> None:
    """The numbers are the caller's."""
    row = np.zeros(4, dtype=np.int64)
    RaisedRanges(row).add(0, 3, 7)

    assert [0, 0, 0, 0] == row.tolist()
