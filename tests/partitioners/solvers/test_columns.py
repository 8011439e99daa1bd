"""Which devices a table of costs does not tell apart."""

from __future__ import annotations

import numpy as np
import pytest

from fxpasses.partitioners.solvers.reduced.columns import equal_columns


@pytest.mark.parametrize("seed", range(30))
def test_columns_are_of_one_kind_if_they_are_equal(seed: int) -> None:
    """Also where the rows that columns are sorted by are equal, and where there are no rows."""
    draw = np.random.default_rng(seed)
    rows, count = int(draw.integers(0, 60)), int(draw.integers(1, 9))
    different = np.where(draw.random((rows, 3)) < 0.1, np.inf, draw.integers(0, 2, (rows, 3)).astype(np.float64))
    table = different[:, draw.integers(0, 3, count)]
    number: dict[bytes, int] = {}
    expected = [number.setdefault(column.tobytes(), len(number)) for column in table.T]

    first, kind = equal_columns(table)

    assert expected == kind.tolist()
    assert [expected.index(each) for each in range(len(number))] == first.tolist()
