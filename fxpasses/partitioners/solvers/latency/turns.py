"""What no pipeline is quicker than if each device runs its nodes as one part, which starts once its inputs are there.

Two such parts are busy at the same time only if no path connects them. Nodes that are before or after every other one
stand in a row, so the parts that hold one of them take turns, and any other part lies between two neighbours in that
row. Seconds of all nodes and copies add up then, but for what parts between the same two neighbours do side by side:
with two devices and a connected graph, nothing. The least sum is a program over which device runs what.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.latency.heads import ancestors
from fxpasses.partitioners.solvers.proofs.assigning import ROUNDING, add_assignments, add_budgets
from fxpasses.partitioners.solvers.proofs.programs import Program
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Floats, Ints

__all__ = ["bound_of_turns"]

MAX_UNITS = 4_000
"""Units up to which there is a bound."""
WHOLE = 1_500
"""Units up to which the program of two devices has no fractions."""
SECONDS = 1.0
"""How long the program may take, about."""


def bound_of_turns(tables: CostTables, units: Units) -> float:
    """No pipeline of whole parts is quicker for one sample; 0 for training graphs and more than 4,000 units.

    Copies count between two devices only: of more, some may be on their way while others work.

    Args:
        tables: The costs.
        units: The problem, reduced for pipelines.
    """
    if units.size > MAX_UNITS or (tables.forward >= 0).any():
        return 0.0
    model = LoadModel.of(units, tables)
    orders = [(0, 1), (1, 0)] if model.devices == 2 else [None]
    least = min(_least_seconds(model, order, units.before) for order in orders)
    return max(0.0, least * (1 - ROUNDING) - _overlap(units, model.devices))


def _least_seconds(model: LoadModel, order: tuple[int, int] | None, before: Ints) -> float:
    """The least sum of seconds under the budgets; for two devices in an order also of what is sent."""
    program, runs = add_assignments(model, whole=order is not None and model.size <= WHOLE)
    add_budgets(program, model, runs)
    scale = float(model.weight.max(initial=0.0)) or 1.0
    costs, variables = model.weight.ravel() / scale, runs.ravel()
    if order is not None:
        program.at_most(
            np.zeros(len(before)), (1.0, runs[before[:, 1], order[0]]), (-1.0, runs[before[:, 0], order[0]])
        )
        costs = np.append(costs, model.send[:, order[0], order[1]] / scale)
        variables = np.append(variables, _crossing(program, model, runs[:, order[0]]))
    return program.minimize((costs, variables), seconds=SECONDS).bound * scale


def _crossing(program: Program, model: LoadModel, runs: Ints) -> Ints:
    """Whether each value is made on the first device and used on the second."""
    crosses = program.add(len(model.source), 0.0, 1.0)
    value, user = model.uses.T
    program.at_most(np.zeros(len(value)), (1.0, runs[model.source[value]]), (-1.0, runs[user]), (-1.0, crosses[value]))
    return crosses


def _overlap(units: Units, devices: int) -> float:
    """The most seconds that parts can spend beside another part that is busy longer."""
    seconds = np.where(np.isfinite(units.seconds), units.seconds, 0.0).max(axis=1)
    if devices <= 2:  # side by side only if nothing connects them
        return float(seconds.sum() - _pieces(units, seconds).max()) * (devices - 1)
    above = ancestors(list(range(units.size)), [list(needs) for needs in units.predecessors])
    path = _longest_path(units, seconds)
    apart = np.logical_not(above | above.T)[:, path]
    apart[path] = False
    width = apart.sum(axis=1)  # a mask that is made early stands beside most of a path, a branch beside little
    widths = sorted({0, len(path), *(2**power for power in range(len(path).bit_length()))})
    rows = [np.logical_not(apart[width <= most].any(axis=0)) for most in widths]
    return min(_overlap_along(path[row], above[:, path[row]], apart[:, row], seconds, devices) for row in rows)


def _pieces(units: Units, seconds: Floats) -> Floats:
    """Seconds of the pieces of the graph that nothing connects."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ends = (units.before[:, 0], units.before[:, 1])
    graph = coo_array((np.ones(len(units.before), dtype=np.int8), ends), shape=(units.size, units.size))
    found: Floats = np.bincount(connected_components(graph, directed=False)[1], seconds).astype(np.float64)
    return found


def _longest_path(units: Units, seconds: Floats) -> Ints:
    """The units on the path of the most seconds, first to last."""
    end, source = seconds.tolist(), [-1] * units.size
    for unit, needs in enumerate(units.predecessors):
        if needs:
            source[unit] = max(needs, key=end.__getitem__)
            end[unit] += end[source[unit]]
    path = [int(np.argmax(end))]
    while source[path[-1]] >= 0:
        path.append(source[path[-1]])
    return np.array(path[::-1], dtype=np.int64)


def _overlap_along(
    row: Ints, behind: NDArray[np.bool_], apart: NDArray[np.bool_], seconds: Floats, devices: int
) -> float:
    """The same if some units take turns; what no path connects with one of them counts in full.

    Args:
        row: The units, in their order.
        behind: Whether each unit is behind each of them.
        apart: Whether no path connects them.
        seconds: The most seconds of each unit.
        devices: How many there are.
    """
    if not len(row):
        return float(seconds.sum()) * (1 - 1 / devices)
    inside = np.logical_not(apart.any(axis=1))
    rest = float(seconds[np.logical_not(inside)].sum())
    inside[row] = False
    place = behind[inside].sum(axis=1)
    between = np.bincount(place, seconds[inside], minlength=len(row) + 1)
    inner = np.sort(between[1:-1])[::-1][:devices].tolist()
    saved = np.zeros(devices)  # by how many devices hold none of the row, or are one more that holds some
    for most, more in ((float(between[0]), 0), (float(between[-1]), 0), *((each, 1) for each in inner)):
        for count in range(devices - 1, 1, -1):
            for parts in range(2, count - more + 1):
                saved[count] = max(saved[count], saved[count - more - parts] + most * (1 - 1 / parts))
    return rest + float(saved.max())
