"""What some of a set of weights have together: never less than the truth, and hardly more."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from fuzz import examples

from fxpasses.partitioners.solvers.contiguous.refined.subset_sums import BINS, SubsetSums


@pytest.mark.parametrize("seed", range(examples(60)))
def test_no_sum_is_lost(seed: int) -> None:
    """Of up to ten weights, some alike, some 0, some above the limit: with just room for it, every sum is found.

    No sum is found that none is near, which is within a bin for each weight and one more.
    """
    draw = np.random.default_rng(seed)
    few = draw.choice([0.0, 1.0, 1.0, 0.3, draw.random(), 100.0], 10)
    weights = few[: draw.integers(1, 11)] * draw.choice([1e-9, 1.0, 1e9])
    limit = float(draw.uniform(0.5, 8.0) * (weights.max() or 1.0))
    every = [sum(some) for count in range(len(weights) + 1) for some in itertools.combinations(weights.tolist(), count)]
    true = np.unique([each for each in every if each < limit])

    sums = SubsetSums.of(weights, limit)

    assert len(sums.most) == BINS
    below = true[true < limit * (1 - 1e-9)]
    found = sums.most[(below * sums.scale * (1 + 1e-9)).astype(int)]
    assert (found >= below * (1 - 1e-9)).all()
    far = np.abs(np.unique(sums.most)[:, None] - true).min(axis=1)
    assert (far <= (len(weights) + 1) / sums.scale * (1 + 1e-9)).all()


def test_units_that_are_alike_are_run_whole() -> None:
    """With room for 12.9 of twenty units it is twelve."""
    sums = SubsetSums.of(np.ones(20), 16.0)

    assert sums.most[int(12.9 * sums.scale)] == pytest.approx(12, abs=0.05)
    assert sums.most[int(13.0 * sums.scale)] == pytest.approx(13, abs=0.05)


@pytest.mark.parametrize("limit", [0.0, float("inf")])
def test_nothing_is_known_without_a_limit(limit: float) -> None:
    """Whatever there is room for may be a sum."""
    assert not len(SubsetSums.of(np.ones(3), limit).most)
