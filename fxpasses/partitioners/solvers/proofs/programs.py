"""Integer programs for HiGHS (highspy): variables in blocks, rows as they come, answers with a proven bound.

A limit in seconds would give other answers on a machine that is busy, and one in branch-and-bound nodes says little, as
a node takes from a fifth of a millisecond to a fifth of a second. HiGHS calls back at fixed points of its search, and
writes down there how many iterations of the simplex method it took. Both are counted as seconds.
"""

from __future__ import annotations

import os
import re
from typing import Any

import attrs
import numpy as np
from numpy.typing import ArrayLike

from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["Answer", "Program", "Taken"]

ITERATION, CALL = 6e-5, 1e-4
"""Seconds of an iteration of the simplex method, and of a call of the search."""
ROOT, ENTRY = 1e-3, 8e-7
"""Seconds of a call before the first branch, with cuts between it and the last one; and for each non-zero entry. Of 42
programs of 200 to 20,000 entries half took 0.6 to 0.9 times what all of these give, nine tenths 0.5 to 1.25 times."""
LEAST = 20
"""Calls before the first branch that the seconds have to pay for; a program of less is not asked."""
ITERATIONS = re.compile(r"(\d+)(k?)\s+\d+\.\d+s\s*$", re.MULTILINE)
"""The last columns of what HiGHS writes down: iterations, in thousands where they are many, and seconds."""

OPTIONS: dict[str, Any] = {
    "output_flag": True,  # to callbacks
    "log_to_console": False,
    "log_file": os.devnull,  # without any, versions before 1.14 do not call back
    "mip_min_logging_interval": 0.0,  # at each point of the search, not by the clock
    "parallel": "off",
    "mip_rel_gap": 1e-9,
    "small_matrix_value": 1e-12,
    "mip_heuristic_effort": 0.0,  # good answers are known already, and most of what it takes are no iterations
    "mip_allow_restart": False,  # likewise
}
TOLERANCES = 1e-9, 1e-8, 1e-7
"""How far rows may be off: as little as HiGHS manages, which gives up where bytes stand beside many gigabytes. With its
own 1e-6 a kilobyte beside 8 GiB counts for nothing."""
TOLERATED = "mip_feasibility_tolerance", "primal_feasibility_tolerance", "dual_feasibility_tolerance"


WIDE = 1e-6
"""Where coefficients of one row are so far apart nothing is presolved: HiGHS 1.15 lost solutions then, and called
others optimal (of rows with 1e-7 beside 1, such as a tied scalar beside weights of 100 MB)."""


@attrs.frozen(eq=False)
class Answer:
    """What the program says.

    Args:
        x: The best values that were found, None if there are none.
        bound: No solution is below it; ``inf`` when there is none at all, ``-inf`` when nothing is known.
        seconds: What finding that took, counted in steps.
    """

    x: Floats | None
    bound: float
    seconds: float = 0.0


@attrs.define
class Taken:
    """What HiGHS did so far, as the seconds that it takes on a usual machine.

    Args:
        entries: How many of a program are not zero.
        calls: The seconds of its calls.
        iterations: How many iterations of the simplex method it took.
    """

    entries: int
    calls: float = 0.0
    iterations: int = 0

    @property
    def root(self) -> float:
        """The seconds of a call before the first branch."""
        return ROOT + ENTRY * self.entries

    @property
    def seconds(self) -> float:
        """All of them."""
        return self.calls + ITERATION * self.iterations

    def call(self, *, before_branching: bool) -> None:
        """Count a call of the search."""
        self.calls += self.root if before_branching else CALL

    def read(self, message: str) -> None:
        """Read the iterations from what HiGHS writes down."""
        for count, thousands in ITERATIONS.findall(message):
            self.iterations = max(self.iterations, int(count) * (1000 if thousands else 1))


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

    def minimize(self, costs: tuple[ArrayLike, Ints], *, seconds: float) -> Answer:
        """Solve within about so many seconds, counted in steps, so that the answer does not depend on the clock.

        Where they are too few to begin with nothing is asked, and nothing is known.
        """
        taken = Taken(entries=sum(map(len, self._value)))
        if seconds < LEAST * taken.root:
            return Answer(None, -np.inf)
        import highspy

        solver, kinds = highspy.Highs(), highspy.cb.HighsCallbackType  # type: ignore[no-untyped-call]  # has no types
        for option, value in OPTIONS.items():
            solver.setOptionValue(option, value)
        if self._is_whole and self._is_wide:
            solver.setOptionValue("presolve", "off")
        solver.passModel(self._model(costs))

        def count(kind: Any, message: str, seen: Any, reply: Any, _data: Any) -> None:
            if kind == kinds.kCallbackLogging:
                taken.read(message)
            else:
                taken.call(before_branching=seen.mip_node_count <= 1)
                reply.user_interrupt = taken.seconds >= seconds

        solver.setCallback(count, None)
        solver.startCallback(kinds.kCallbackLogging)
        solver.startCallback(kinds.kCallbackMipInterrupt)
        for tolerance in TOLERANCES:
            for option in TOLERATED:
                solver.setOptionValue(option, tolerance)
            solver.run()
            if (status := solver.getModelStatus()) != highspy.HighsModelStatus.kSolveError:
                break
            solver.clearSolver()
        info = solver.getInfo()
        if status == highspy.HighsModelStatus.kInfeasible:
            return Answer(None, np.inf, taken.seconds)
        if status not in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kInterrupt):
            return Answer(None, -np.inf, taken.seconds)  # numbers that HiGHS does not take
        is_found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        bound = info.mip_dual_bound if self._is_whole else info.objective_function_value
        return Answer(np.asarray(solver.getSolution().col_value) if is_found else None, float(bound), taken.seconds)

    @property
    def _is_whole(self) -> bool:
        """Whether any variable is a whole number."""
        return any(whole.any() for whole in self._whole)

    @property
    def _is_wide(self) -> bool:
        """Whether coefficients of some row are very far apart."""
        row, size = np.concatenate(self._row), np.abs(np.concatenate(self._value))
        largest, least = np.zeros(self._rows), np.full(self._rows, np.inf)
        np.maximum.at(largest, row, size)
        np.minimum.at(least, row, np.where(size > 0.0, size, np.inf))
        return bool((least < WIDE * largest).any())

    def _model(self, costs: tuple[ArrayLike, Ints]) -> Any:
        """The program as HiGHS takes it."""
        import highspy
        from scipy.sparse import csc_array

        weights = np.zeros(self.size)
        weights[costs[1].ravel()] = np.broadcast_to(np.asarray(costs[0], dtype=np.float64), costs[1].shape).ravel()
        place = (np.concatenate(self._row), np.concatenate(self._column))
        matrix = csc_array((np.concatenate(self._value), place), shape=(self._rows, self.size))
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = self.size, self._rows
        model.col_cost_, model.col_lower_, model.col_upper_ = weights, *map(np.concatenate, (self._low, self._high))
        model.row_lower_, model.row_upper_ = np.full(self._rows, -np.inf), np.concatenate(self._right)
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        model.a_matrix_.start_, model.a_matrix_.index_ = matrix.indptr, matrix.indices
        model.a_matrix_.value_ = matrix.data
        if self._is_whole:
            kinds = highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger
            model.integrality_ = [kinds[int(whole)] for whole in np.concatenate(self._whole)]
        return model
