"""Integer programs for HiGHS (through scipy): variables in blocks, rows as they come, answers with a proven bound."""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import ArrayLike

from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["Answer", "Program", "nodes_within"]

ROOT = 100
"""Branch-and-bound nodes that take as long as what comes before the first one: presolve, cuts, heuristics."""


def nodes_within(effort: float, nodes: float) -> int | None:
    """The branch-and-bound nodes that an effort pays for, of those that a program gets for all of it.

    Returns:
        None where it does not even pay for the root: the program is not asked.
    """
    if effort >= 1:
        return int(nodes)
    paid = int(effort * nodes - (1 - effort) * ROOT)
    return paid if paid > 0 else None


@attrs.frozen(eq=False)
class Answer:
    """What the program says.

    Args:
        x: The best values that were found, None if there are none.
        bound: No solution is below it; ``inf`` when there is none at all, ``-inf`` when nothing is known.
    """

    x: Floats | None
    bound: float


class Program:
    """A mixed integer program that grows block by block: ``minimize costs · x`` under rows ``a · x <= b``."""

    def __init__(self) -> None:
        self.size = 0
        self._low: list[Floats] = []
        self._high: list[Floats] = []
        self._whole: list[Floats] = []
        self._row: list[Ints] = []
        self._column: list[Ints] = []
        self._value: list[Floats] = []
        self._right: list[Floats] = []
        self._rows = 0

    def add(self, shape: int | tuple[int, ...], low: ArrayLike, high: ArrayLike, *, whole: bool = False) -> Ints:
        """Add a block of variables between bounds, and give their numbers in its shape."""
        numbers = self.size + np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
        self.size += numbers.size
        for store, value in ((self._low, low), (self._high, high), (self._whole, float(whole))):
            store.append(np.broadcast_to(np.asarray(value, dtype=np.float64), numbers.shape).ravel())
        return numbers

    def at_most(self, right: ArrayLike, *terms: tuple[ArrayLike, Ints]) -> None:
        """Add rows: the sum of coefficient times variable, over terms and their last axes, is at most ``right``.

        A term is (coefficients, variables); the first axis of the variables counts the rows.
        """
        if not (count := len(terms[0][1])):
            return
        for coefficients, variables in terms:
            values = np.broadcast_to(np.asarray(coefficients, dtype=np.float64), variables.shape)
            flat = variables.reshape(count, -1)
            rows = np.broadcast_to(self._rows + np.arange(count)[:, None], flat.shape)
            self._row.append(rows.ravel())
            self._column.append(flat.ravel())
            self._value.append(values.ravel())
        self._right.append(np.broadcast_to(np.asarray(right, dtype=np.float64), count))
        self._rows += count

    def equal(self, right: ArrayLike, *terms: tuple[ArrayLike, Ints]) -> None:
        """Add rows whose sums are ``right``."""
        self.at_most(right, *terms)
        self.at_most(-np.asarray(right, dtype=np.float64), *((-np.asarray(c, dtype=np.float64), v) for c, v in terms))

    def minimize(self, costs: tuple[ArrayLike, Ints], *, nodes: int | None) -> Answer:
        """Solve with a limit on the branch-and-bound nodes, so that the answer does not depend on the clock.

        Without any (None) nothing is asked, and nothing is known.
        """
        if nodes is None:
            return Answer(None, -np.inf)
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        weights = np.zeros(self.size)
        weights[costs[1].ravel()] = np.broadcast_to(np.asarray(costs[0], dtype=np.float64), costs[1].shape).ravel()
        place = (np.concatenate(self._row), np.concatenate(self._column))
        matrix = csr_array((np.concatenate(self._value), place), shape=(self._rows, self.size))
        answer = milp(
            weights,
            integrality=np.concatenate(self._whole),
            bounds=Bounds(np.concatenate(self._low), np.concatenate(self._high)),
            constraints=LinearConstraint(matrix, -np.inf, np.concatenate(self._right)),
            options={"node_limit": nodes, "mip_rel_gap": 1e-9},
        )
        if answer.status == 2:
            return Answer(None, np.inf)
        known = getattr(answer, "mip_dual_bound", None)
        if known is None and answer.status == 0:  # nothing had to be whole
            known = answer.fun
        return Answer(answer.x, -np.inf if known is None else float(known))
