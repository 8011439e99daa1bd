"""Convex sets of the smallest load, of the fewest bytes, or on the fewest devices.

The best pipeline is where the search starts; moves make it better. An integer program proves small problems.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import numpy as np

from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners.solvers.contiguous.fewest import solve_fewest
from fxpasses.partitioners.solvers.contiguous.solving import fewest_by_memory, solve_pipeline
from fxpasses.partitioners.solvers.convex.sets import ROWS, ConvexSets
from fxpasses.partitioners.solvers.free.solving import refuse
from fxpasses.partitioners.solvers.problem import PlacementProblem
from fxpasses.partitioners.solvers.proofs.assigning import FAR, ROUNDING, Proof, least_load, program_size
from fxpasses.partitioners.solvers.proofs.bounds import load_bound
from fxpasses.partitioners.solvers.proofs.packing import Packing
from fxpasses.partitioners.solvers.proofs.programs import Program
from fxpasses.partitioners.solvers.reduced.fitting import kept_off
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.reaching import Reach
from fxpasses.partitioners.solvers.reduced.reducing import Units, reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Floats, Ints

__all__ = ["among_pipelines", "solve_convex"]

SMALL = 1500
"""Variables up to which the integer program is asked."""
RELAXED_A_SECOND = 1.4e6
"""Variables times rows of a program that is relaxed in a second; it takes longer with the power of 1.5."""
MOVES_A_SECOND, LEAST_SECONDS = 5_000, 0.5
"""Moves that are looked at in a second; and for how many seconds whatever the budget, unless only an answer is wanted.
"""
SIZE = 400
"""Units for which that holds; of more, each move takes longer by the square: it asks many units, by masks of all."""
BATCH = 64
MANY = 4_000
"""Nodes from which on the best pipeline is the answer."""


def solve_convex(
    problem: PlacementProblem, tables: CostTables, units: Units, seconds: float = math.inf
) -> tuple[Ints, tuple[int, ...], float]:
    """Place a reduced problem whose units each fit some device.

    Args:
        problem: What to place, where.
        tables: What nodes cost.
        units: The problem, reduced.
        seconds: What the first pipeline of a small load may take, counted in steps; that of the fewest devices takes
            what it takes.

    Returns:
        The position of each node's device; the devices that are used, in the order of their first nodes; a bound.

    Raises:
        InfeasibleError: proven that none exists.
        PlacementError: none was found, and none was proven not to exist.
    """
    if len(units.unit_of) > MANY:
        similar = attrs.evolve(problem, contiguity="pipeline")
        with among_pipelines(tables):
            device_of, order, _bound_of_pipelines = solve_pipeline(similar, tables, reduce_problem(similar, tables))
        return device_of, order, _bound(problem, tables, units)
    model = LoadModel.of(units, tables, problem.objective)
    sets = ConvexSets(model, Reach.of(units.unit_of, tables))
    search = _Search(sets, problem.objective, problem.program_seconds)
    bound = _bound(problem, tables, units)
    home = _pipeline(problem, tables, units, seconds)
    if home is not None:
        least = 0.0 if problem.wants_answer_only else LEAST_SECONDS
        home = search.descended(home, int(MOVES_A_SECOND * (least + problem.time_budget)))
    is_small = program_size(model) <= SMALL and sets.row_count <= ROWS
    is_asked = is_small and (home is None or _is_affordable(model, sets, problem.program_seconds))
    if is_asked and (home is None or search.value(home) > bound * (1 + 1e-9)):
        proof = search.proven(math.inf if home is None else search.value(home))
        found = [each for each in (home, proof.home) if each is not None and sets.is_legal(each)]
        home = min(found, key=search.rank, default=None)
        bound = max(bound, proof.bound * (1 - ROUNDING))
        if home is not None and search.value(home) <= bound * (1 + 3 * ROUNDING):
            bound = search.value(home)
    if is_asked and home is not None and problem.objective == "devices":
        home = search.balanced(home)
    if home is None:
        raise refuse(problem, tables, units, model, sets.rows if is_small else None)
    device_of = home[units.unit_of]
    return device_of, tuple(dict.fromkeys(device_of.tolist())), bound


@contextmanager
def among_pipelines(tables: CostTables) -> Iterator[None]:
    """Look for convex sets among pipelines only: that there is no pipeline proves nothing then."""
    try:
        yield
    except InfeasibleError as error:
        raise PlacementError(
            f"No pipeline keeps what was asked, and convex sets of {len(tables.nodes)} nodes are looked for among "
            f'pipelines only: {error} contiguity="free" may have an answer.'
        ) from error


def _is_affordable(model: LoadModel, sets: ConvexSets, seconds: float) -> bool:
    """Whether the seconds pay for what HiGHS does before it calls back: much, with rows that keep sets convex."""
    return program_size(model) * sets.row_count <= RELAXED_A_SECOND * float(seconds ** (2 / 3))


def _bound(problem: PlacementProblem, tables: CostTables, units: Units) -> float:
    if problem.objective == "devices":
        return float(fewest_by_memory(units, tables.memory))
    return load_bound(kept_off(units, tables.memory) or units, tables.memory, problem.objective)


def _pipeline(problem: PlacementProblem, tables: CostTables, units: Units, seconds: float) -> Ints | None:
    """The best pipeline, if there is one."""
    similar = attrs.evolve(problem, contiguity="pipeline", explain="never")
    solve = solve_fewest if problem.objective == "devices" else functools.partial(solve_pipeline, seconds=seconds)
    try:
        device_of, _order, _bound = solve(similar, tables, reduce_problem(similar, tables))
    except PlacementError:
        return None  # a convex placement may exist all the same
    return units.homes(device_of)


def _is_smaller(rank: tuple[float, ...], best: tuple[float, ...]) -> bool:
    """Whether the first figures that differ by more than rounding say so."""
    return next((a < b for a, b in zip(rank, best, strict=True) if not math.isclose(a, b, rel_tol=1e-12)), False)


@attrs.frozen(eq=False)
class _Search:
    """Moves that keep the sets convex, each better than the one before."""

    sets: ConvexSets
    objective: str
    program_seconds: float

    @property
    def model(self) -> LoadModel:
        return self.sets.model

    def value(self, home: Ints) -> float:
        return self.rank(home)[0]

    def rank(self, home: Ints) -> tuple[float, ...]:
        """The objective, then the loads from the largest down."""
        loads = self.ranks(home[None])[0]
        return (float(len(np.unique(home))), *loads) if self.objective == "devices" else tuple(loads)

    def ranks(self, homes: Ints) -> Floats:
        """The figures of each assignment from the largest down."""
        falling: Floats = -np.sort(-self.model.figures(homes), axis=1)
        return falling

    def descended(self, home: Ints, moves: int) -> Ints:
        """Take the best of all moves until none is better, or so many were looked at."""
        left, each = float(moves), max(1.0, len(home) / SIZE) ** 2
        while left > 0:
            moved = list(self._moves(home, 1 + int(left / each / 2)))  # each unit with all before it, or behind it
            left -= each * (len(moved) + 1)
            best = self.rank(home)
            better = None
            for start in range(0, len(moved), BATCH):
                batch = np.stack(moved[start : start + BATCH])
                batch = batch[self.model.legal(batch)]
                for moved_home, falling in zip(batch, self.ranks(batch).tolist() if len(batch) else [], strict=True):
                    used = (float(len(np.unique(moved_home))),) if self.objective == "devices" else ()
                    rank = (*used, *falling)
                    if _is_smaller(rank, best):
                        best, better = rank, moved_home
            if better is None:
                return home
            home = better
        return home

    def _moves(self, home: Ints, most: int) -> Iterator[Ints]:
        """From the busiest device to any other; from any other to any, where a value of the busiest is concerned."""
        busiest = int(np.argmax(self.model.figures(home[None])[0]))
        return self.sets.moves(home, self._near(busiest, home, most))

    def _near(self, busiest: int, home: Ints, most: int) -> list[int]:
        """The units of the busiest device, and those that exchange values with it; of many, those at borders."""
        maker, user = self.model.source[self.model.uses[:, 0]], self.model.uses[:, 1]
        own = home == busiest
        near = own.copy()
        near[maker[own[user]]] = True
        near[user[own[maker]]] = True
        found = np.flatnonzero(near)
        if len(found) > most:
            crosses = home[maker] != home[user]
            is_border = np.zeros(len(home), dtype=bool)
            is_border[maker[crosses]] = is_border[user[crosses]] = True
            found = found[np.argsort(~is_border[found], kind="stable")[:most]]
        chosen: list[int] = found.tolist()
        return chosen

    def balanced(self, home: Ints) -> Ints:
        """On no more devices the smallest largest load, as far as the integer program finds it."""
        while True:
            used, below = self.rank(home)[:2]
            extra = functools.partial(self._rows_on_few, most=int(used))
            proof = least_load(self.model, below=below, seconds=self.program_seconds, extra=extra)
            if proof.home is None or not self.sets.is_legal(proof.home):
                return home
            home = min(home, proof.home, key=self.rank)
            if below <= FAR * self.rank(home)[1]:
                return home

    def _rows_on_few(self, program: Program, runs: Ints, *, most: int) -> None:
        """The sets are convex, and so many devices at most run anything."""
        self.sets.rows(program, runs)
        units, devices = runs.shape
        if most == devices:
            return
        used = program.add(devices, 0.0, 1.0, whole=True)
        for device in range(devices):
            program.at_most(np.zeros(units), (1.0, runs[:, device]), (-1.0, np.full(units, used[device])))
        program.at_most(np.array([float(most)]), (1.0, used[None]))

    def proven(self, below: float) -> Proof:
        """What the integer program says; rows keep the sets convex."""
        seconds = self.program_seconds
        if self.objective == "throughput":
            return least_load(self.model, below=below, seconds=seconds, extra=self.sets.rows)
        packing = Packing.of(self.model, seconds=seconds, extra=self.sets.rows)
        return packing.fewest_devices() if self.objective == "devices" else packing.least_bytes(below=below)
