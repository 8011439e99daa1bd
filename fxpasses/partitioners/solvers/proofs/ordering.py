"""The order of a pipeline's devices, as rows of an integer program."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import numpy as np

from fxpasses.partitioners.solvers.proofs.programs import Program
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["add_order"]


def add_order(program: Program, runs: Ints, flow: Ints, alike: Collection[Sequence[int]] = ()) -> None:
    """Devices stand in an order, and no value flows against it.

    Args:
        program: Where the rows go, O(devices³ + devices² × pairs) of them; O(devices × pairs) where all are alike.
        runs: The variables that say which device runs a unit, ``(m, k)``.
        flow: Pairs of units (before, after), ``(e, 2)``.
        alike: Groups of devices that can take each other's place; those of a group stand as they are numbered.
    """
    kinds = runs.shape[1]
    if any(len(group) == kinds for group in alike):
        _add_given_order(program, runs, flow)
        return
    may_be = np.ones((kinds, kinds))
    for group in alike:
        for first, second in itertools.combinations(sorted(group), 2):
            may_be[second, first] = 0.0
    ahead = program.add((kinds, kinds), 0.0, may_be, whole=True)
    for first, second in itertools.permutations(range(kinds), 2):
        here, there = runs[flow[:, 0], first], runs[flow[:, 1], second]
        if len(flow):
            program.at_most(1.0, (1.0, here), (1.0, there), (-1.0, np.full(len(flow), ahead[first, second])))
        program.at_most(1.0, (1.0, ahead[first, second, None]), (1.0, ahead[second, first, None]))
        for third in range(kinds):
            if third not in (first, second):
                program.at_most(
                    1.0,
                    (1.0, ahead[first, second, None]),
                    (1.0, ahead[second, third, None]),
                    (-1.0, ahead[first, third, None]),
                )


def _add_given_order(program: Program, runs: Ints, flow: Ints) -> None:
    """Who needs a unit is on none of the first devices unless the unit is on one of them."""
    before, after = flow[:, 0], flow[:, 1]
    for count in range(1, runs.shape[1]):
        program.at_most(np.zeros(len(flow)), (1.0, runs[after, :count]), (-1.0, runs[before, :count]))
