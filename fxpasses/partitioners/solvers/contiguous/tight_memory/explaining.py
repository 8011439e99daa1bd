"""Why no pipeline exists: by how many bytes the best one misses, and at which node."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import numpy as np

from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import all_ideals, prefixes
from fxpasses.partitioners.solvers.contiguous.ideals.device_class import DeviceClass
from fxpasses.partitioners.solvers.contiguous.ideals.states import States
from fxpasses.partitioners.solvers.contiguous.searching import STEPS_A_SECOND
from fxpasses.partitioners.solvers.contiguous.tables.dynamic_program import Measure, PipelineSearch
from fxpasses.partitioners.solvers.contiguous.tables.filled_tables import Pipeline
from fxpasses.partitioners.solvers.problem import PlacementProblem
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Ints, evaluate
from fxpasses.wording import counted, listed

MAX_IDEALS = 200_000
_MORE = "with explain='always' it is told what the nearest one lacks"

__all__ = ["lacking", "lacks", "never", "no_pipeline", "none_fits", "not_found"]


def no_pipeline(
    problem: PlacementProblem, tables: CostTables, units: Units, classes: tuple[DeviceClass, ...]
) -> InfeasibleError:
    """Say by how many bytes the best pipeline over all ideals misses, and at which node; it is known that none fits.

    Where it takes too long to look at all, of those along one order.
    """
    credit = tuple(group.memory for group in classes)
    roomy = tuple(attrs.evolve(group, memory=math.inf) for group in classes)
    pipeline, below, steps, finished = None, math.inf, STEPS_A_SECOND * max(1.0, problem.time_budget), False
    for family in (prefixes([range(units.size)]), all_ideals(units, MAX_IDEALS)):
        if family is None:
            finished = False
            break
        measure = Measure(units.kept.astype(np.float64), np.array(credit) + below)
        search = PipelineSearch(units, roomy, States.of(classes), measure, credit)
        found = search.run(family, below, math.inf if pipeline is None else steps)
        pipeline, finished = found.pipeline or pipeline, found.finished
        below = math.inf if pipeline is None else pipeline.value
    if pipeline is None:
        return never()
    nearest = _devices(units, pipeline)
    return _missing(problem, tables, nearest) if finished else _proven(problem, tables, nearest, 1)


def _devices(units: Units, pipeline: Pipeline) -> Ints:
    home = np.zeros(units.size, dtype=np.int64)
    for device, members in pipeline.runs:
        home[list(members)] = device
    return home[units.unit_of]


def _missing(problem: PlacementProblem, tables: CostTables, device_of: Ints) -> InfeasibleError:
    missing, where = lacking(problem, tables, device_of)
    return InfeasibleError(
        f"No pipeline keeps every budget: the one that comes nearest {where}.",
        missing_bytes=missing,
    )


def lacks(problem: PlacementProblem, tables: CostTables, device_of: Ints, least: int | None) -> PlacementError:
    """Say what the nearest pipeline that was found lacks.

    Args:
        problem: What was asked.
        tables: Its costs.
        device_of: The nearest pipeline.
        least: Bytes that are proven to be missing on some device of every pipeline; None if nothing is proven.
    """
    if least is None:
        _missing_bytes, where = lacking(problem, tables, device_of)
        return PlacementError(
            f"No placement that keeps every budget was found: the nearest one {where}. It is not proven that none "
            f"exists; raise time_budget (it is {problem.time_budget:g} s) or the memory of a device."
        )
    return _proven(problem, tables, device_of, least)


def _proven(problem: PlacementProblem, tables: CostTables, device_of: Ints, least: int) -> InfeasibleError:
    """Say what the nearest pipeline that was found lacks, and what each does."""
    missing, where = lacking(problem, tables, device_of)
    if missing <= least:
        return _missing(problem, tables, device_of)
    return InfeasibleError(
        f"No pipeline keeps every budget, which is proven: each lacks {counted(least, 'byte')} or more on some device, "
        f"and the nearest one that was found {where}.",
        missing_bytes=missing,
    )


def none_fits(*, proven: bool) -> PlacementError:
    """Say only that memory is too small, where nobody asked how much."""
    if proven:
        return InfeasibleError(f"No pipeline keeps every budget, which is proven; {_MORE}.")
    return PlacementError(f"No placement that keeps every budget was found; {_MORE}.")


def never() -> InfeasibleError:
    """Say that no memory would help."""
    return InfeasibleError(
        "No pipeline exists, however large the memories: what the devices can run, pins and forbidden devices "
        "would have values flow back to a device that has finished. Let go of a pin or of a forbidden device, or "
        "ask for a free placement."
    )


def not_found(budget: float) -> PlacementError:
    """Say that nothing was found, with any memory."""
    return PlacementError(
        "No placement was found, however large the memories, and it is not proven that none exists: what the devices "
        "can run, pins and forbidden devices may have values flow back to a device that has finished; raise "
        f"time_budget (it is {budget:g} s)."
    )


def lacking(problem: PlacementProblem, tables: CostTables, device_of: Ints) -> tuple[int, str]:
    """How many bytes the device lacks that lacks most, and a clause about it and the others that lack some."""
    over = evaluate(tables, device_of).kept - tables.memory
    worst = int(np.argmax(over))
    own = np.flatnonzero(device_of == worst).tolist()
    first = first_over(tables, own, float(tables.memory[worst]))
    others = [device for device in np.flatnonzero(over > 0).tolist() if device != worst]
    also = ""
    if others:
        names = listed(repr(problem.devices[device].name) for device in others)
        also = f"; also {int(over[others].sum())} bytes more on {names}"
    return int(over[worst]), (
        f"needs {int(over[worst])} bytes more on {problem.devices[worst].name!r}, where {tables.nodes[first]!r} is "
        f"the first node that does not fit{also}"
    )


def first_over(tables: CostTables, own: Sequence[int], memory: float) -> int:
    """The first of some nodes with which they need more bytes together than there are."""
    named: dict[int, list[int]] = {}
    for key, node in tables.shares.tolist():
        named.setdefault(node, []).append(key)
    seen: set[int] = set()
    size, live = 0, 0
    for node in own:
        fresh = [key for key in named.get(node, ()) if key not in seen]
        seen.update(fresh)
        size += int(tables.kept[node]) + int(tables.shared[fresh].sum())
        live = max(live, int(tables.live[node]))
        if size + live > memory:
            return node
    return own[-1]
