"""Let one more device run from some ideals of a table to all that it can reach, compiled.

Importing numba takes a fifth of a second, so this module is imported where tables are large.
"""

from __future__ import annotations

from fxpasses.partitioners.solvers import compiling
from fxpasses.partitioners.solvers.compiling import cached, inlined
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["extend", "lower"]


@cached(compiling)
def extend(
    loads: Floats,
    first: int,
    table: tuple[Floats, Ints, Ints, Ints],
    moves: tuple[Ints, Ints, Ints, Ints],
    scratch: tuple[Ints, Ints, Floats],
    in_turn: bool,
    costs: tuple[float, float, float],
) -> float:
    """Lower the best values to those by way of some ideals; ``nan`` stays.

    Args:
        loads: What a device of some classes weighs from each of these ideals to those behind the first of them,
            ``inf`` where it cannot run that, ``(classes, rows, columns)``.
        first: The number of the first ideal.
        table: The best values of all states, one after the other; for each state where they begin, its first ideal,
            and the one behind its last, ``(states,)``.
        moves: For each state the one that leaves the next device out, or -1, ``(states,)``; where its moves begin,
            ``(states + 1,)``; for each move whose loads these are, and the state after it.
        scratch: Room for the columns in which each class and row has loads, ``(classes, rows, 2)``, for rows, and for
            their values, ``(rows,)``.
        in_turn: Whether loads add up, or the largest counts.
        costs: The steps that a move costs, and each pair of ideals that it looks at; how many were taken so far.

    Returns:
        The steps taken so far, with these.
    """
    (best, offset, start, stop), (skips, begins, kinds, targets) = table, moves
    (ends, rows, values), (call, cell, steps) = scratch, costs
    _find_ends(loads, ends)
    for state in range(len(start)):
        low, high = max(first, start[state]), min(first + loads.shape[1], stop[state])
        if low >= high or begins[state] == begins[state + 1]:
            continue
        if skips[state] >= 0:
            _leave_out(best, offset, start, stop, state, skips[state], low, high)
        count, own = 0, offset[state] - start[state]
        for ideal in range(low, high):
            if best[own + ideal] < float("inf"):
                rows[count], values[count] = ideal - first, best[own + ideal]
                count += 1
        if not count:
            continue
        for move in range(begins[state], begins[state + 1]):
            kind, there = kinds[move], targets[move]
            begin = max(first + 1 + rows[0], start[there])
            end = min(first + 1 + loads.shape[2], stop[there])
            if begin < end:
                into = offset[there] - start[there]
                reached = best[into + begin : into + end]
                lower(loads[kind], ends[kind], rows[:count], values[:count], begin - first - 1, reached, in_turn)
                steps += cell * count * (end - begin) + call
    return steps


@inlined
def _find_ends(loads: Floats, ends: Ints) -> None:
    """Between which columns each class and row has loads."""
    for kind in range(loads.shape[0]):
        for row in range(loads.shape[1]):
            own, first, last = loads[kind, row], 0, loads.shape[2]
            while first < last and not own[first] < float("inf"):
                first += 1
            while first < last and not own[last - 1] < float("inf"):
                last -= 1
            ends[kind, row, 0], ends[kind, row, 1] = first, last


@inlined
def _leave_out(best: Floats, offset: Ints, start: Ints, stop: Ints, state: int, skip: int, low: int, high: int) -> None:
    """What a state has run, the one that leaves its next device out has run, too."""
    own, other = offset[state] - start[state], offset[skip] - start[skip]
    for ideal in range(max(low, start[skip]), min(high, stop[skip])):
        if best[own + ideal] < best[other + ideal]:
            best[other + ideal] = best[own + ideal]


@inlined
def lower(load: Floats, ends: Ints, rows: Ints, value: Floats, first: int, best: Floats, in_turn: bool) -> None:
    """Lower best values to those by way of some rows.

    Four rows at a time, as reading and writing the best values takes longer than what is between.

    Args:
        load: The load of each pair, ``(ideals, ideals)``.
        ends: Between which columns each row has loads, ``(ideals, 2)``.
        rows: The first ideals, ``(n,)``; not empty.
        value: Their values, ``(n,)``.
        first: The column of the first of the best values.
        best: The best value of each ideal, ``(c,)``.
        in_turn: Whether loads add up, or the largest counts.
    """
    last = len(rows) - 1
    for row in range(0, len(rows), 4):
        a, b, c, d = row, min(row + 1, last), min(row + 2, last), min(row + 3, last)
        row_a, row_b, row_c, row_d = rows[a], rows[b], rows[c], rows[d]
        begin = max(min(min(ends[row_a, 0], ends[row_b, 0]), min(ends[row_c, 0], ends[row_d, 0])), first)
        end = min(max(max(ends[row_a, 1], ends[row_b, 1]), max(ends[row_c, 1], ends[row_d, 1])), first + len(best))
        if begin >= end:
            continue
        loads_a, loads_b = load[row_a, begin:end], load[row_b, begin:end]
        loads_c, loads_d = load[row_c, begin:end], load[row_d, begin:end]
        reached = best[begin - first : end - first]
        for ideal in range(end - begin):
            if in_turn:
                one, two = loads_a[ideal] + value[a], loads_b[ideal] + value[b]
                three, four = loads_c[ideal] + value[c], loads_d[ideal] + value[d]
            else:
                one, two = max(loads_a[ideal], value[a]), max(loads_b[ideal], value[b])
                three, four = max(loads_c[ideal], value[c]), max(loads_d[ideal], value[d])
            found = min(min(one, two), min(three, four))
            reached[ideal] = min(reached[ideal], found)
