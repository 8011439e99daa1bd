"""The units of a pipeline that can go to another place alone, kept up to date by each move; compiled.

Most units have what they need on their own device, and what needs them, too: a move that is drawn among all units is
mostly none.
"""

from __future__ import annotations

from fxpasses.partitioners.solvers.annealing.graphs import Graph, State
from fxpasses.partitioners.solvers.compiling import inlined

__all__ = ["loosen", "settle", "window"]


@inlined
def window(graph: Graph, state: State, unit: int) -> tuple[int, int]:
    """The last place that a unit needs something from, and the first that needs it."""
    first, last = 0, len(state.load) - 1
    for index in range(graph.before_start[unit], graph.before_start[unit + 1]):
        first = max(first, state.place[state.home[graph.before[index]]])
    for index in range(graph.after_start[unit], graph.after_start[unit + 1]):
        last = min(last, state.place[state.home[graph.after[index]]])
    return first, last


@inlined
def loosen(graph: Graph, state: State) -> None:
    """Find the units that can go to another place alone."""
    state.loose[len(state.home)] = 0
    state.loose_at[:] = -1
    for unit in range(len(state.home)):
        _look(graph, state, unit)


@inlined
def settle(graph: Graph, state: State, count: int) -> None:
    """Do the same for the units of a move, and for their neighbours."""
    for index in range(count):
        unit = state.moved[index]
        _look(graph, state, unit)
        for entry in range(graph.before_start[unit], graph.before_start[unit + 1]):
            _look(graph, state, graph.before[entry])
        for entry in range(graph.after_start[unit], graph.after_start[unit + 1]):
            _look(graph, state, graph.after[entry])


@inlined
def _look(graph: Graph, state: State, unit: int) -> None:
    """Put a unit into the list of those that can go to another place alone, or take it out."""
    first, last = window(graph, state, unit)
    at, count = state.loose_at[unit], state.loose[len(state.home)]
    if first < last and at < 0:
        state.loose[count], state.loose_at[unit] = unit, count
        state.loose[len(state.home)] = count + 1
    elif first >= last and at >= 0:
        other = state.loose[count - 1]
        state.loose[at], state.loose_at[other] = other, at
        state.loose_at[unit] = -1
        state.loose[len(state.home)] = count - 1
