"""Pairs of ideals as a list: what is known of the first ideals, of the others, and of all pairs."""

from __future__ import annotations

import numpy as np
import pytest

from fxpasses.partitioners.solvers.contiguous.ideals.pairs import Pairs


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (1, 1), (4, 7), (30, 20)])
def test_a_list_of_pairs_reads_what_tables_of_all_pairs_hold(shape: tuple[int, int]) -> None:
    """Also where some ideals, or all, are in no pair."""
    draw = np.random.default_rng(shape[0])
    table = draw.random(shape) < 0.4
    values, of_first, of_last = draw.random(shape), draw.random(shape[0]), draw.random(shape[1])
    first, last = np.nonzero(table)

    pairs = Pairs.where(table)

    np.testing.assert_array_equal(last, pairs.last)
    np.testing.assert_array_equal(values[first, last], pairs.of(values))
    np.testing.assert_array_equal(of_first[first], pairs.by_first(of_first))
    np.testing.assert_array_equal(of_last[last], of_last[pairs.last])
