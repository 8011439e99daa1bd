"""What no schedule is shorter than, and of few nodes the shortest one: bounds, then the integer program."""

from __future__ import annotations

from typing import TypeGuard

import attrs
import numpy as np

from fxpasses.partitioners.solvers.latency.heads import Heads
from fxpasses.partitioners.solvers.latency.levels import LatencyAnswer, Level
from fxpasses.partitioners.solvers.latency.proving import LatencyProgram
from fxpasses.partitioners.solvers.problem import PlacementProblem
from fxpasses.partitioners.solvers.proofs.assigning import ROUNDING, Extra
from fxpasses.partitioners.solvers.proofs.bounds import load_bound, prices_of
from fxpasses.partitioners.solvers.reduced.fitting import kept_off
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import CostTables

__all__ = ["bounded", "is_small", "proven", "work_of"]

SMALL = 400
"""Variables up to which the integer program is asked."""
RELAXED, RELAXED_A_SECOND = 20_000, 16_000
"""Variables up to which the linear relaxation is asked for a bound, at most and for each second of the budget."""


def work_of(units: Units, tables: CostTables) -> LoadModel:
    """What units weigh; the values between them are left to the schedule."""
    allowed = np.isfinite(units.seconds)
    weight = np.where(allowed, units.seconds, 0.0)
    return attrs.evolve(LoadModel.of(units, tables, "memory"), weight=weight, by_bytes=False)


def bounded(problem: PlacementProblem, level: Level, units: Units) -> tuple[LatencyProgram | None, float]:
    """The integer program of all nodes, placed freely, and what is known without solving it.

    Of many nodes there is no program where nobody asks for a proof.
    """
    model, memory = level.model, level.tables.memory
    fitted = kept_off(units, memory)
    if fitted is not None and not np.array_equal(fitted.seconds, units.seconds):
        units, model = fitted, work_of(fitted, level.tables)
    prices = prices_of(units, memory, "throughput")
    if problem.has_little_effort and model.size * model.devices > SMALL:
        return None, load_bound(units, memory, "throughput", prices)
    heads = Heads.of(level.scheduler, model.banned[level.unit_of], prices.load)
    bound = max(load_bound(units, memory, "throughput", prices), heads.bound)
    program = LatencyProgram(model, level.scheduler, level.unit_of, heads)
    if model.size * model.devices <= min(RELAXED, RELAXED_A_SECOND * problem.time_budget):
        bound = max(bound, program.relaxed() * (1 - ROUNDING))
    return program, bound


def is_small(program: LatencyProgram | None) -> TypeGuard[LatencyProgram]:
    """Whether the integer program is asked."""
    return program is not None and program.model.size * program.model.devices <= SMALL and program.size <= SMALL


def proven(
    problem: PlacementProblem,
    level: Level,
    program: LatencyProgram | None,
    answer: LatencyAnswer,
    bound: float,
    extra: Extra,
) -> tuple[LatencyAnswer, float]:
    """What the integer program adds where it is small: a better answer, a better bound; ``extra`` adds rows to it."""
    if not is_small(program) or answer.value <= bound * (1 + 1e-9):
        return answer, min(bound, answer.value)
    home, start, least = program.solve(answer.value, seconds=problem.program_seconds, extra=extra)
    if home is not None and start is not None:
        answer = min(answer, level.started(home, start), key=lambda each: each.value)
    if least >= answer.value * (1 - ROUNDING):
        return answer, answer.value
    return answer, min(max(bound, least * (1 - ROUNDING)), answer.value)
