"""List schedules of many nodes, compiled: each node in turn where it ends first, and when nodes run in an order.

These are named tuples of arrays because numba knows them; :mod:`.many_nodes` works with them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers import compiling
from fxpasses.partitioners.solvers.compiling import cached, inlined
from fxpasses.partitioners.solvers.flat_lists import flat_floats, flat_lists
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Floats, Ints

__all__ = ["Costs", "Run", "Spaces", "costs_of", "put_first", "ranks", "run_in_order", "run_of", "spaces_of"]


class Costs(NamedTuple):
    """What nodes cost, and lists of what node ``x`` needs and of what needs it, from ``start[x]`` on."""

    seconds: Floats  # (n, k), 0 where a device cannot run a node
    fixed: Floats
    output: Floats
    latency: Floats  # (k, k)
    per_byte: Floats
    maker_start: Ints
    maker: Ints
    user_start: Ints
    user: Ints


class Spaces(NamedTuple):
    """What units need, and where they may be."""

    unit_of: Ints  # of each node
    banned: NDArray[np.bool_]  # (m, k)
    kept: Floats
    live: Floats
    hold_start: Ints  # the shared blocks that unit ``u`` needs, from ``start[u]`` on
    hold: Ints
    shared: Floats
    memory: Floats


class Run(NamedTuple):
    """A schedule that is being made."""

    home: Ints  # of each unit, -1: not known yet
    device_of: Ints  # of each node
    start: Floats
    end: Floats
    need: Floats  # bytes of each device but for what is live
    live: Floats
    holds: NDArray[np.bool_]  # (s, k): the blocks of each device
    free: Floats  # from when on each device is
    there: Floats  # when all that a node needs is on each device


def costs_of(tables: CostTables) -> Costs:
    """Take the costs of nodes that make no cycle. Time O(nodes · devices + edges)."""
    before, after = tables.edges[tables.edges[:, 0] != tables.edges[:, 1]].T
    count = len(tables.fixed)
    return Costs(
        flat_floats(np.where(np.isfinite(tables.seconds), tables.seconds, 0.0)),
        flat_floats(tables.fixed),
        flat_floats(tables.output),
        flat_floats(tables.latency),
        flat_floats(tables.per_byte),
        *flat_lists(after, before, count),
        *flat_lists(before, after, count),
    )


def spaces_of(model: LoadModel, unit_of: Ints) -> Spaces:
    """Take what units need."""
    return Spaces(
        np.ascontiguousarray(unit_of, dtype=np.int64),
        np.ascontiguousarray(model.banned),
        flat_floats(model.kept),
        flat_floats(model.live),
        *flat_lists(*model.held, model.size),
        flat_floats(model.shared),
        flat_floats(model.memory),
    )


def run_of(costs: Costs, spaces: Spaces, home: Ints) -> Run:
    """Nothing has run yet; units are where they are to be, or -1."""
    count, kinds = costs.seconds.shape
    return Run(
        home,
        device_of=home[spaces.unit_of],
        start=np.zeros(count),
        end=np.zeros(count),
        need=np.zeros(kinds),
        live=np.zeros(kinds),
        holds=np.zeros((len(spaces.shared), kinds), dtype=np.bool_),
        free=np.zeros(kinds),
        there=np.zeros(kinds),
    )


@inlined
def _sent(costs: Costs, node: int, source: int, target: int) -> float:
    """Seconds that a value takes between two devices."""
    seconds, size = 0.0, costs.output[node]
    if source != target:
        seconds += costs.fixed[node]
        if size > 0.0:
            seconds += costs.latency[source, target] + size * costs.per_byte[source, target]
    return seconds


@inlined
def _come(costs: Costs, state: Run, node: int) -> None:
    """Write down when all that a node needs is on each device."""
    state.there[:] = 0.0
    for place in range(costs.maker_start[node], costs.maker_start[node + 1]):
        maker = costs.maker[place]
        source, size, made = state.device_of[maker], costs.output[maker], state.end[maker]
        own, there = max(state.there[source], made), made + costs.fixed[maker]
        if size == 0.0:
            for device in range(len(state.there)):
                state.there[device] = max(state.there[device], there)
        else:
            for device in range(len(state.there)):
                far = there + (costs.latency[source, device] + size * costs.per_byte[source, device])
                state.there[device] = max(state.there[device], far)
        state.there[source] = own


@inlined
def _bytes(spaces: Spaces, state: Run, unit: int, device: int) -> float:
    """What a device needs when a unit is there, too."""
    need: float = state.need[device] + spaces.kept[unit] + max(state.live[device], spaces.live[unit])
    for place in range(spaces.hold_start[unit], spaces.hold_start[unit + 1]):
        if not state.holds[spaces.hold[place], device]:
            need += spaces.shared[spaces.hold[place]]
    return need


@inlined
def _put(spaces: Spaces, state: Run, unit: int, device: int) -> None:
    """A unit is on a device from now on."""
    state.home[unit] = device
    state.need[device] += spaces.kept[unit]
    state.live[device] = max(state.live[device], spaces.live[unit])
    for place in range(spaces.hold_start[unit], spaces.hold_start[unit + 1]):
        block = spaces.hold[place]
        if not state.holds[block, device]:
            state.holds[block, device] = True
            state.need[device] += spaces.shared[block]


@inlined
def _first(costs: Costs, spaces: Spaces, state: Run, node: int, beside: Floats, much: float, share: float) -> int:
    """The device where a node ends first; what is full, or fuller than its share, only where all are."""
    unit, found, least = spaces.unit_of[node], -1, np.inf
    for device in range(len(beside)):
        cost = max(state.there[device], state.free[device]) + costs.seconds[node, device] + beside[device]
        need, memory = _bytes(spaces, state, unit, device), spaces.memory[device]
        if need > memory:
            cost += much * much
        elif need > share * memory:
            cost += much
        if (found < 0 or cost < least) and not spaces.banned[unit, device]:
            found, least = device, cost
    return found


@inlined
def _begin(costs: Costs, state: Run, node: int, device: int, ready: float) -> None:
    """A node runs once its inputs are there and its device is free; what takes no time holds up no device."""
    taken = costs.seconds[node, device]
    if taken > 0.0:
        ready = max(ready, state.free[device])
        state.free[device] = ready + taken
    state.start[node], state.end[node] = ready, ready + taken


@cached(compiling)
def put_first(costs: Costs, spaces: Spaces, state: Run, order: Ints, beside: Floats, much: float, spare: float) -> None:
    """Put each unit where its first node ends first and fits (HEFT, without insertion).

    Time O((nodes + edges) · devices).

    Args:
        costs: The nodes.
        spaces: The units.
        state: What is made.
        order: All nodes, each after what it needs.
        beside: What it counts to be on each device at all, ``(k,)``.
        much: What it counts that a device has more than its share: more than any schedule takes. That it is full counts
            the square.
        spare: How much fuller a device may get than the share of all bytes that has been put somewhere.
    """
    total, done = spaces.kept.sum(), 0.0
    for place in range(len(order)):
        node = order[place]
        unit = spaces.unit_of[node]
        _come(costs, state, node)
        if state.home[unit] < 0:
            done += spaces.kept[unit]
            share = spare + done / total if total > 0.0 else np.inf
            _put(spaces, state, unit, _first(costs, spaces, state, node, beside, much, share))
        state.device_of[node] = state.home[unit]
        _begin(costs, state, node, state.home[unit], state.there[state.home[unit]])


@cached(compiling)
def run_in_order(costs: Costs, state: Run, order: Ints) -> None:
    """Run nodes where they are, in an order. Time O(nodes + edges)."""
    for place in range(len(order)):
        node, ready = order[place], 0.0
        device = state.device_of[node]
        for index in range(costs.maker_start[node], costs.maker_start[node + 1]):
            maker = costs.maker[index]
            ready = max(ready, state.end[maker] + _sent(costs, maker, state.device_of[maker], device))
        _begin(costs, state, node, device, ready)


@cached(compiling)
def ranks(costs: Costs, own: Floats, topological: Ints, rank: Floats) -> None:
    """Write down the longest way from each node to the end of all, by what each node counts."""
    for place in range(len(topological) - 1, -1, -1):
        node, longest = topological[place], 0.0
        for index in range(costs.user_start[node], costs.user_start[node + 1]):
            longest = max(longest, rank[costs.user[index]])
        rank[node] = own[node] + longest
