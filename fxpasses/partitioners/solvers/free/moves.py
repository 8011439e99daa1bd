"""Anneal one assignment of units to devices move by move, compiled by numba: millions of moves in a second.

A move takes one unit to another device, swaps two units, or takes a connected set of units along; loads, users of each
value and bytes are kept up to date by what changes. The energy is a p-norm of the loads plus what passes the budgets.
Work is counted in steps and the generator is its own (xoroshiro128+: Blackman & Vigna, "Scrambled linear pseudorandom
number generators", ACM TOMS 47, 2021), so the answer depends on the seed only. Numba takes half a second to import and
some to compile once, so this module is imported only where a search is long.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["LARGEST", "Graph", "Plan", "State", "anneal", "cached"]

PROPOSAL = 20
"""Steps that a proposal costs besides what its values cost."""
BLOCK = 1024
"""Proposals between two temperatures."""
SUMS = 4096
"""Temperatures after which sums of floats, which round, are made anew."""
SINGLE, SWAP = 0.55, 0.75
"""Below these chances a move takes one unit, or swaps two; else it takes a connected set."""
BESIDE = 0.5
"""How often a unit goes to the device of a neighbour rather than to any."""
LARGEST = 32
"""Units of a connected set, at most."""
SETTLED = 40.0
"""How many temperatures worse is never taken."""

P = ParamSpec("P")
T = TypeVar("T")
Counts = NDArray[np.int32]
_inline = njit(forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)  # type: ignore[call-overload]  # not in its types


class Graph(NamedTuple):
    """What does not change: costs, and lists of values, neighbours and blocks of unit ``u`` from ``start[u]`` on."""

    weight: Floats  # (m, k), inf where banned
    kept: Floats
    memory: Floats
    made_start: Ints
    made: Ints
    used_start: Ints
    used: Ints
    near_start: Ints
    near: Ints
    hold_start: Ints
    hold: Ints
    shared: Floats
    source: Ints
    send: Floats  # (q, k, k)
    rank: Ints  # of each unit's live bytes among the sizes
    sizes: Floats


class State(NamedTuple):
    """An assignment and its sums."""

    home: Ints
    load: Floats
    bytes: Floats
    users: Counts  # (q, k)
    holders: Counts  # (s, k)
    ranks: Counts  # (k, sizes)
    top: Ints  # the highest rank on each device
    moved: Ints  # the units of a move
    target: Ints
    stamp: Ints  # the last move that each unit was in


class Plan(NamedTuple):
    """One annealing.

    Args:
        steps: Elementary steps.
        hot: The first temperature, as a share of the average load.
        cold: The last.
        squarings: The norm is of order ``2 ** squarings``.
        soft: What passing a budget costs at first, as a share of what it costs in the end.
    """

    steps: float
    hot: float
    cold: float
    squarings: int
    soft: float


@_inline
def _next(random: NDArray[np.uint64]) -> np.uint64:
    a, b = random[0], random[1]
    result = a + b
    b ^= a
    random[0] = ((a << np.uint64(24)) | (a >> np.uint64(40))) ^ b ^ (b << np.uint64(16))
    random[1] = (b << np.uint64(37)) | (b >> np.uint64(27))
    return result


@_inline
def _chance(random: NDArray[np.uint64]) -> float:
    return float(_next(random) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@_inline
def _below(random: NDArray[np.uint64], count: int) -> np.int64:
    return np.int64(((_next(random) >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))


@_inline
def _charge(graph: Graph, state: State, value: int, sign: float) -> None:
    """Add a value to the loads: what each device that uses it receives, and the slowest of these where it is made."""
    made = state.home[graph.source[value]]
    slowest = 0.0
    for device in range(len(state.load)):
        if device != made and state.users[value, device]:
            seconds = graph.send[value, made, device]
            state.load[device] += sign * seconds
            slowest = max(slowest, seconds)
    state.load[made] += sign * slowest


@_inline
def _add(graph: Graph, state: State, unit: int, device: int) -> None:
    """Put a unit's own seconds and bytes on a device."""
    state.load[device] += graph.weight[unit, device]
    state.bytes[device] += graph.kept[unit]
    for place in range(graph.hold_start[unit], graph.hold_start[unit + 1]):
        block = graph.hold[place]
        if state.holders[block, device] == 0:
            state.bytes[device] += graph.shared[block]
        state.holders[block, device] += 1
    state.ranks[device, graph.rank[unit]] += 1
    state.top[device] = max(state.top[device], graph.rank[unit])


@_inline
def _remove(graph: Graph, state: State, unit: int, device: int) -> None:
    """Take a unit's own seconds and bytes from a device."""
    state.load[device] -= graph.weight[unit, device]
    state.bytes[device] -= graph.kept[unit]
    for place in range(graph.hold_start[unit], graph.hold_start[unit + 1]):
        block = graph.hold[place]
        state.holders[block, device] -= 1
        if state.holders[block, device] == 0:
            state.bytes[device] -= graph.shared[block]
    state.ranks[device, graph.rank[unit]] -= 1
    top = state.top[device]
    while top > 0 and state.ranks[device, top] == 0:
        top -= 1
    state.top[device] = top


@_inline
def _charge_around(graph: Graph, state: State, unit: int, sign: float) -> None:
    for place in range(graph.made_start[unit], graph.made_start[unit + 1]):
        _charge(graph, state, graph.made[place], sign)
    for place in range(graph.used_start[unit], graph.used_start[unit + 1]):
        _charge(graph, state, graph.used[place], sign)


@_inline
def _move(graph: Graph, state: State, unit: int, target: int) -> None:
    """Take a unit to another device, in time O(its values × devices)."""
    home = state.home[unit]
    _charge_around(graph, state, unit, -1.0)
    for place in range(graph.used_start[unit], graph.used_start[unit + 1]):
        state.users[graph.used[place], home] -= 1
        state.users[graph.used[place], target] += 1
    state.home[unit] = target
    _charge_around(graph, state, unit, 1.0)
    _remove(graph, state, unit, home)
    _add(graph, state, unit, target)


@_inline
def _rebuild(graph: Graph, state: State) -> None:
    """All sums of the assignment, anew."""
    state.load[:] = 0.0
    state.bytes[:] = 0.0
    state.users[:] = 0
    state.holders[:] = 0
    state.ranks[:] = 0
    state.top[:] = 0
    for unit in range(len(state.home)):
        _add(graph, state, unit, state.home[unit])
        for place in range(graph.used_start[unit], graph.used_start[unit + 1]):
            state.users[graph.used[place], state.home[unit]] += 1
    for value in range(len(graph.source)):
        _charge(graph, state, value, 1.0)


@_inline
def _norm(state: State, scale: float, squarings: int) -> float:
    total = 0.0
    for device in range(len(state.load)):
        power = min(max(state.load[device], 0.0) / scale, 1e4)
        for _ in range(squarings):
            power *= power
        total += power
    for _ in range(squarings):
        total = math.sqrt(total)
    return total


@_inline
def _over(graph: Graph, state: State) -> float:
    """By which shares of the budgets they are passed, all together."""
    over = 0.0
    for device in range(len(state.load)):
        need = state.bytes[device] + graph.sizes[state.top[device]]
        if need > graph.memory[device]:
            over += (need - graph.memory[device]) / max(graph.memory[device], 1.0)
    return over


@_inline
def _device(graph: Graph, state: State, random: NDArray[np.uint64], unit: int) -> int:
    """Where a unit might go: to a neighbour, or anywhere."""
    first, count = graph.near_start[unit], graph.near_start[unit + 1] - graph.near_start[unit]
    if count and _chance(random) < BESIDE:
        return state.home[graph.near[first + _below(random, count)]]
    return _below(random, len(state.load))


@_inline
def _swap(graph: Graph, state: State, random: NDArray[np.uint64], unit: int) -> int:
    """Propose that two units change places."""
    other = _below(random, len(state.home))
    here, there = state.home[unit], state.home[other]
    if here == there or math.isinf(graph.weight[unit, there]) or math.isinf(graph.weight[other, here]):
        return 0
    state.moved[0], state.target[0] = unit, there
    state.moved[1], state.target[1] = other, here
    return 2


@_inline
def _set(graph: Graph, state: State, random: NDArray[np.uint64], unit: int, target: int, most: int, stamp: int) -> int:
    """Propose that a unit and so many that hang on it and stand beside it go to a device."""
    here = state.home[unit]
    state.moved[0], state.target[0], state.stamp[unit] = unit, target, stamp
    count = 1
    for _ in range(4 * most if most > 1 else 0):
        last = state.moved[_below(random, count)]
        first, near = graph.near_start[last], graph.near_start[last + 1] - graph.near_start[last]
        if near == 0:
            break
        other = graph.near[first + _below(random, near)]
        if state.home[other] == here and state.stamp[other] != stamp and not math.isinf(graph.weight[other, target]):
            state.moved[count], state.target[count], state.stamp[other] = other, target, stamp
            count += 1
            if count == most:
                break
    return count


@_inline
def _propose(graph: Graph, state: State, random: NDArray[np.uint64], stamp: int) -> int:
    """Write down a move; how many units are in it, 0 where it is none."""
    unit, kind = _below(random, len(state.home)), _chance(random)
    if SINGLE <= kind < SWAP:
        return _swap(graph, state, random, unit)
    target = _device(graph, state, random, unit)
    if target == state.home[unit] or math.isinf(graph.weight[unit, target]):
        return 0
    most = 1 if kind < SINGLE else 2 + int(LARGEST * _chance(random) ** 3)
    return _set(graph, state, random, unit, target, min(most, LARGEST), stamp)


@_inline
def _turn(graph: Graph, state: State, count: int) -> int:
    """Make the move, and write down the way back; its elementary steps."""
    steps = 0
    for index in range(count):
        unit, home = state.moved[index], state.home[state.moved[index]]
        _move(graph, state, unit, state.target[index])
        state.target[index] = home
        values = graph.made_start[unit + 1] - graph.made_start[unit] + graph.used_start[unit + 1]
        steps += (values - graph.used_start[unit] + 1) * (len(state.load) + 4)
    return steps


def cached(function: Callable[P, T]) -> Callable[P, T]:
    """Compile a function, and keep the result on disk for other processes, if there is anywhere to write."""
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba found no folder
        return njit(nogil=True)(function)


@cached
def anneal(
    graph: Graph, state: State, best: Ints, plan: Plan, scale: float, penalty: float, random: NDArray[np.uint64]
) -> float:
    """Anneal from the state; ``best`` becomes the best assignment that keeps every budget, its largest load returns."""
    value, stamp, steps, energy = math.inf, 0, 0.0, math.inf
    temperature, weight = plan.hot, penalty
    while True:
        if stamp % BLOCK == 0:
            done = steps / plan.steps
            if done >= 1.0:
                return value
            if stamp % (BLOCK * SUMS) == 0:
                _rebuild(graph, state)
            temperature = plan.hot * (plan.cold / plan.hot) ** done
            weight = penalty * min(1.0, plan.soft * (1.5 / plan.soft) ** done)
            energy = _norm(state, scale, plan.squarings) + weight * _over(graph, state)
        stamp += 1
        steps += PROPOSAL
        count = _propose(graph, state, random, stamp)
        if count == 0:
            continue
        steps += _turn(graph, state, count)
        over = _over(graph, state)
        after = _norm(state, scale, plan.squarings) + weight * over
        worse = (after - energy) / temperature
        if worse > 0.0 and (worse > SETTLED or _chance(random) >= math.exp(-worse)):
            for index in range(count // 2):  # backwards
                other = count - 1 - index
                state.moved[index], state.moved[other] = state.moved[other], state.moved[index]
                state.target[index], state.target[other] = state.target[other], state.target[index]
            steps += _turn(graph, state, count)
            continue
        energy = after
        if over == 0.0 and state.load.max() < value:
            value = state.load.max()
            best[:] = state.home
