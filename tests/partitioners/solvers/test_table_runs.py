"""Best values that compiled code lowers are those of numpy, to the bit: either may be used."""

from __future__ import annotations

import numpy as np
import pytest

from fxpasses.partitioners.solvers.contiguous.tables import dynamic_program
from fxpasses.partitioners.solvers.contiguous.tables.table_runs import lower


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 40])
def test_compiled_code_lowers_the_same_values(count: int, in_turn: bool) -> None:
    """Some rows of a table, next to each other or not; what memory rules out stays so."""
    draw = np.random.default_rng(count)
    for share in (1.0, 0.5):
        load = np.where(draw.random((80, 50)) < 0.3, np.inf, draw.random((80, 50)))
        rows = np.sort(draw.choice(int(count / share), count, replace=False))
        value, best = draw.random(count), np.where(draw.random(30) < 0.5, np.inf, draw.random(30))
        best[::7] = np.nan
        expected = best.copy()
        dynamic_program._lower(load, rows, value, 12, expected, in_turn)

        found = best.copy()
        lower(load, rows, value, 12, found, in_turn)

        np.testing.assert_array_equal(found, expected)
        assert np.isnan(found[::7]).all()
        assert (found < best).any()
