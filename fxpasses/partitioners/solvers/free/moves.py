"""Anneal one assignment of units to devices move by move, compiled by numba: millions of moves in a second.

A move takes one unit to another device, swaps two units, or takes a connected set of units along; loads, users of each
value and bytes are kept up to date by what changes. The energy is a p-norm of the loads (most moves do not change the
maximum) plus what passes the budgets. Work is counted in steps, so the answer depends on the seed only. Importing numba
takes a fifth of a second, so this module is imported where a search starts.
"""

from __future__ import annotations

import math

from fxpasses.partitioners.solvers import compiling, device_bytes
from fxpasses.partitioners.solvers.compiling import Random, below, cached, chance, inlined
from fxpasses.partitioners.solvers.device_bytes import drop, held_bytes, hold
from fxpasses.partitioners.solvers.free import graphs
from fxpasses.partitioners.solvers.free.graphs import LARGEST, Graph, Plan, State
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["anneal"]

PROPOSAL, ACCEPTED = 15, 115
"""Steps of drawing a move, and of keeping it: a processor guesses that it is not kept."""
BLOCK = 1024
"""Proposals between two temperatures."""
SUMS = 4096
"""Temperatures after which sums of floats, which round, are made anew."""
SINGLE, SWAP = 0.55, 0.75
"""Below these chances a move takes one unit, or swaps two; else it takes a connected set."""
BESIDE = 0.5
"""How often a unit goes to the device of a neighbour rather than to any."""


@inlined
def _receive(graph: Graph, state: State, value: int, made: int) -> None:
    """Add a value to the loads: what each device that uses it receives, and the slowest of these where it is made."""
    slowest = 0.0
    for device in range(len(state.load)):
        if device != made and state.users[value, device]:
            seconds = graph.send[value, made, device]
            state.load[device] += seconds
            slowest = max(slowest, seconds)
    state.load[made] += slowest


@inlined
def _hand_over(graph: Graph, state: State, value: int, home: int, target: int) -> None:
    """A user of a value goes to another device; the loads change only where it was the only user, or is the first."""
    made = state.home[graph.source[value]]
    leaves = state.users[value, home] == 1 and home != made
    joins = state.users[value, target] == 0 and target != made
    state.users[value, home] -= 1
    state.users[value, target] += 1
    if leaves or joins:
        before = after = 0.0
        for device in range(len(state.load)):
            if state.users[value, device] and device != made and not (joins and device == target):
                before = max(before, graph.send[value, made, device])
        after = before
        if leaves:
            before = max(before, graph.send[value, made, home])
            state.load[home] -= graph.send[value, made, home]
        if joins:
            after = max(after, graph.send[value, made, target])
            state.load[target] += graph.send[value, made, target]
        state.load[made] += after - before


@inlined
def _make_elsewhere(graph: Graph, state: State, value: int, home: int, target: int) -> None:
    """The unit that makes a value goes to another device."""
    before = after = 0.0
    for device in range(len(state.load)):
        if state.users[value, device]:
            if device != home:
                before = max(before, graph.send[value, home, device])
                state.load[device] -= graph.send[value, home, device]
            if device != target:
                after = max(after, graph.send[value, target, device])
                state.load[device] += graph.send[value, target, device]
    state.load[home] -= before
    state.load[target] += after


@inlined
def _move(graph: Graph, state: State, unit: int, target: int) -> None:
    """Take a unit to another device, in time O(its values × devices)."""
    home = state.home[unit]
    for place in range(graph.used_start[unit], graph.used_start[unit + 1]):
        _hand_over(graph, state, graph.used[place], home, target)
    for place in range(graph.made_start[unit], graph.made_start[unit + 1]):
        _make_elsewhere(graph, state, graph.made[place], home, target)
    state.home[unit] = target
    state.load[home] -= graph.weight[unit, home]
    state.load[target] += graph.weight[unit, target]
    if graph.counts_bytes:
        drop(graph, state, unit, home)
        hold(graph, state, unit, target)


@inlined
def _rebuild(graph: Graph, state: State) -> None:
    """All sums of the assignment, anew."""
    state.load[:] = 0.0
    state.bytes[:] = 0.0
    state.users[:] = 0
    state.holders[:] = 0
    state.ranks[:] = 0
    state.top[:] = 0
    for unit in range(len(state.home)):
        state.load[state.home[unit]] += graph.weight[unit, state.home[unit]]
        hold(graph, state, unit, state.home[unit])
        for place in range(graph.used_start[unit], graph.used_start[unit + 1]):
            state.users[graph.used[place], state.home[unit]] += 1
    for value in range(len(graph.source)):
        _receive(graph, state, value, state.home[graph.source[value]])


@inlined
def _squared(number: float, squarings: int) -> float:
    power = min(max(number, 0.0), 1e4)
    for _ in range(squarings):
        power *= power
    return power


@inlined
def _root(number: float, squarings: int) -> float:
    for _ in range(squarings):
        number = math.sqrt(number)
    return number


@inlined
def _power(graph: Graph, state: State, scale: float, squarings: int) -> float:
    """The sum of the loads' powers, each squared so many times."""
    if graph.by_bytes:
        for device in range(len(state.load)):
            state.load[device] = held_bytes(graph, state, device)
    share = 1.0 / scale
    for device in range(len(state.load)):
        state.power[device] = min(max(state.load[device] * share, 0.0), 1e4)
    for _ in range(squarings):
        for device in range(len(state.load)):
            state.power[device] *= state.power[device]
    total = 0.0
    for device in range(len(state.load)):
        total += state.power[device]
    return total


@inlined
def _over(graph: Graph, state: State) -> float:
    """By which shares of the budgets they are passed, all together."""
    over = 0.0
    for device in range(len(state.load)):
        need = held_bytes(graph, state, device)
        if need > graph.memory[device]:
            over += (need - graph.memory[device]) / max(graph.memory[device], 1.0)
    return over


@inlined
def _device(graph: Graph, state: State, random: Random, unit: int) -> int:
    """Where a unit might go: to a neighbour, or anywhere."""
    first, count = graph.near_start[unit], graph.near_start[unit + 1] - graph.near_start[unit]
    if count and chance(random) < BESIDE:
        return state.home[graph.near[first + below(random, count)]]
    return below(random, len(state.load))


@inlined
def _swap(graph: Graph, state: State, random: Random, unit: int) -> int:
    """Propose that two units change places."""
    other = below(random, len(state.home))
    here, there = state.home[unit], state.home[other]
    if here == there or math.isinf(graph.weight[unit, there]) or math.isinf(graph.weight[other, here]):
        return 0
    state.moved[0], state.target[0] = unit, there
    state.moved[1], state.target[1] = other, here
    return 2


@inlined
def _set(graph: Graph, state: State, random: Random, unit: int, target: int, most: int, stamp: int) -> int:
    """Propose that a unit and so many that hang on it and stand beside it go to a device."""
    here = state.home[unit]
    state.moved[0], state.target[0], state.stamp[unit] = unit, target, stamp
    count = 1
    for _ in range(4 * most if most > 1 else 0):
        last = state.moved[below(random, count)]
        first, near = graph.near_start[last], graph.near_start[last + 1] - graph.near_start[last]
        if near == 0:
            break
        other = graph.near[first + below(random, near)]
        if state.home[other] == here and state.stamp[other] != stamp and not math.isinf(graph.weight[other, target]):
            state.moved[count], state.target[count], state.stamp[other] = other, target, stamp
            count += 1
            if count == most:
                break
    return count


@inlined
def _propose(graph: Graph, state: State, random: Random, stamp: int) -> int:
    """Write down a move; how many units are in it, 0 where it is none."""
    unit, kind = below(random, len(state.home)), chance(random)
    if SINGLE <= kind < SWAP:
        return _swap(graph, state, random, unit)
    target = _device(graph, state, random, unit)
    if target == state.home[unit] or math.isinf(graph.weight[unit, target]):
        return 0
    most = 1 if kind < SINGLE else 2 + int(LARGEST * chance(random) ** 3)
    return _set(graph, state, random, unit, target, min(most, LARGEST), stamp)


@inlined
def _turn(graph: Graph, state: State, count: int) -> int:
    """Make the move, and write down the way back; its elementary steps."""
    for device in range(len(state.load)):
        state.load_before[device] = state.load[device]
    steps = graph.move_steps
    for index in range(count):
        unit, home = state.moved[index], state.home[state.moved[index]]
        _move(graph, state, unit, state.target[index])
        state.target[index] = home
        steps += graph.unit_steps[unit]
    return steps


@inlined
def _turn_back(graph: Graph, state: State, count: int) -> None:
    """Undo the move: loads are as they were, counts are counted back."""
    for device in range(len(state.load)):
        state.load[device] = state.load_before[device]
    for index in range(count):
        unit, home = state.moved[index], state.target[index]
        target = state.home[unit]
        state.home[unit] = home
        for place in range(graph.used_start[unit], graph.used_start[unit + 1]):
            state.users[graph.used[place], target] -= 1
            state.users[graph.used[place], home] += 1
        if graph.counts_bytes:
            drop(graph, state, unit, target)
            hold(graph, state, unit, home)


@inlined
def _keep(state: State, best: Ints, value: float) -> float:
    """Write down the assignment if its largest load is below a value; the smaller of the two."""
    largest = state.load[0]
    for device in range(1, len(state.load)):
        largest = max(largest, state.load[device])
    if largest >= value:
        return value
    for unit in range(len(best)):
        best[unit] = state.home[unit]
    return largest


@cached(compiling, device_bytes, graphs)
def anneal(graph: Graph, state: State, best: Ints, plan: Plan, scale: float, penalty: float, random: Random) -> float:
    """Anneal from the state; ``best`` becomes the best assignment that keeps every budget, its largest load returns."""
    value, stamp, steps, over, energy = math.inf, 0, 0.0, 0.0, math.inf
    temperature = plan.hot
    while True:
        if stamp % BLOCK == 0:
            done = steps / plan.steps
            if done >= 1.0:
                return value
            if stamp % (BLOCK * SUMS) == 0:
                _rebuild(graph, state)
            temperature = plan.hot * (plan.cold / plan.hot) ** done
            power = _power(graph, state, scale, plan.squarings)
            energy = _root(power, plan.squarings) + penalty * _over(graph, state)
        stamp += 1
        steps += PROPOSAL
        count = _propose(graph, state, random, stamp)
        if count == 0:
            continue
        steps += _turn(graph, state, count)
        if graph.counts_bytes:
            over = _over(graph, state)
        power = _power(graph, state, scale, plan.squarings)
        limit = energy - temperature * math.log(1.0 - chance(random)) - penalty * over  # of the norm (Metropolis)
        if limit < 0.0 or power > _squared(limit, plan.squarings):
            _turn_back(graph, state, count)
            continue
        steps += ACCEPTED
        energy = _root(power, plan.squarings) + penalty * over
        if over == 0.0:
            value = _keep(state, best, value)
