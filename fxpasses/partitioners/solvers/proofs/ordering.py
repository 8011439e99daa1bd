"""The order of a pipeline's devices, as rows of an integer program."""

from __future__ import annotations

import itertools

import numpy as np

from fxpasses.partitioners.solvers.proofs.programs import Program
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["add_order"]


def add_order(program: Program, runs: Ints, flow: Ints) -> None:
    """Devices stand in an order, and no value flows against it.

    Args:
        program: Where the rows go, O(devices³ + devices² × pairs) of them.
        runs: The variables that say which device runs a unit, ``(m, k)``.
        flow: Pairs of units (before, after), ``(e, 2)``.
    """
    kinds = runs.shape[1]
    ahead = program.add((kinds, kinds), 0.0, 1.0, whole=True)
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
