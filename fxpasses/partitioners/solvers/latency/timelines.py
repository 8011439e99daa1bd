"""What compiled annealing of a schedule reads and writes: a graph as flat arrays, and a schedule.

These are named tuples of arrays because numba knows them; :mod:`.trials` works on them. Nodes are numbered in a
topological order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.flat_lists import flat_lists
from fxpasses.partitioners.solvers.latency.scheduling import Scheduler
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = [
    "ENDED",
    "LAST",
    "LATE",
    "MAKESPAN",
    "QUEUED",
    "SHIFTED",
    "STAMP",
    "WORK",
    "Cooling",
    "Network",
    "Timeline",
    "network_of",
    "timeline_of",
]

SHIFTED, ENDED, QUEUED, LATE, WORK, STAMP = range(6)
"""Where sizes stand: of the lists of these names, of the nodes that were looked at, of the changes."""
MAKESPAN, LAST = range(2)
"""Where figures stand: when all ends, the last key that a change touches."""

Flags = NDArray[np.bool_]


class Network(NamedTuple):
    """What does not change: costs, and lists of what node or unit ``x`` has, from ``start[x]`` on."""

    seconds: Floats  # (n, k)
    send: Floats  # (t, k, k): nodes that send alike share a table
    table: Ints  # of each node
    maker_start: Ints
    maker: Ints
    user_start: Ints
    user: Ints
    least: Floats  # seconds from the end of a node to the end of all, at least
    sinks: Ints  # nodes that nothing needs
    idle: Ints  # those that may take no time, and are in no device's run then
    unit_of: Ints
    member_start: Ints
    member: Ints


class Timeline(NamedTuple):
    """A schedule with changes that can be taken back.

    ``key`` is the order of the nodes: each has a larger one than what it needs, and a device runs its nodes by rising
    key. ``end`` is when a node ends, ``tail`` how long it takes from then to the end of all. A node that takes no time
    is in no device's run.
    """

    home: Ints
    key: Floats
    end: Floats
    tail: Floats
    before: Ints  # on the same device, -1: none
    after: Ints
    run: Ints  # (k, n): nodes of each device by key
    filled: Ints  # how many these are
    # what is being changed
    shifted: Ints  # nodes, where they were, and their old keys
    shifted_home: Ints
    shifted_key: Floats
    ended: Ints  # nodes, and their old ends
    ended_at: Floats
    is_queued: Flags  # whether the end, or the tail, of a node is to be looked at
    is_late: Flags
    queue: Ints
    late: Ints
    heap: Ints
    heap_key: Floats
    found: Ints  # nodes of a change
    stamp: Ints  # the last change that each node was in
    path: Ints  # nodes that delay the end
    free: Floats  # from when on each device is
    sizes: Ints
    figures: Floats


class Cooling(NamedTuple):
    """One annealing.

    Args:
        work: How many nodes are looked at, about.
        hot: The first temperature, in seconds.
        cold: The last.
        goal: A makespan at which it stops.
    """

    work: float
    hot: float
    cold: float
    goal: float


def network_of(scheduler: Scheduler, unit_of: Ints) -> Network:
    """Take the arrays of a scheduler, and the unit of each node. Time O(nodes × devices² + edges)."""
    nodes, count = scheduler.topological, len(scheduler.seconds)
    place = np.empty(count + 1, dtype=np.int64)
    place[nodes], place[count] = np.arange(count), count
    number: dict[bytes, int] = {}
    table = np.array([number.setdefault(scheduler.send[node].tobytes(), len(number)) for node in nodes.tolist()])
    first = np.unique(table, return_index=True)[1]
    users = place[scheduler.after[nodes]]
    fastest, is_sink = scheduler.seconds[nodes].min(axis=1), (users == count).all(axis=1)
    owner, column = np.nonzero(users < count)
    user = users[owner, column]
    return Network(
        np.ascontiguousarray(scheduler.seconds[nodes]),
        scheduler.send[nodes[first]],
        table.astype(np.int64),
        *flat_lists(user, owner, count),
        *flat_lists(owner, user, count),
        _least(fastest, owner, user),
        np.flatnonzero(is_sink),
        np.flatnonzero(is_sink & (fastest == 0.0)),
        np.ascontiguousarray(unit_of[nodes]),
        *flat_lists(unit_of[nodes], np.arange(count), int(unit_of.max(initial=-1)) + 1),
    )


def timeline_of(network: Network, home: Ints) -> Timeline:
    """An assignment of units; its schedule is made when it is annealed."""
    count, kinds = network.seconds.shape
    return Timeline(
        home=home[network.unit_of].astype(np.int64),
        key=np.zeros(count),
        end=np.zeros(count),
        tail=np.zeros(count),
        before=_zeros(count),
        after=_zeros(count),
        run=_zeros(kinds, count),
        filled=_zeros(kinds),
        shifted=_zeros(count),
        shifted_home=_zeros(count),
        shifted_key=np.zeros(count),
        ended=_zeros(count),
        ended_at=np.zeros(count),
        is_queued=np.zeros(count, dtype=np.bool_),
        is_late=np.zeros(count, dtype=np.bool_),
        queue=_zeros(count),
        late=_zeros(count),
        heap=_zeros(count),
        heap_key=np.zeros(count),
        found=_zeros(count),
        stamp=_zeros(count),
        path=_zeros(count),
        free=np.zeros(kinds),
        sizes=_zeros(STAMP + 1),
        figures=np.zeros(2),
    )


def _zeros(*shape: int) -> Ints:
    return np.zeros(shape, dtype=np.int64)


def _least(fastest: Floats, owner: Ints, user: Ints) -> Floats:
    """The longest way from the end of each node to the end of all when nothing is sent."""
    least = [0.0] * len(fastest)
    seconds = fastest.tolist()
    for one, other in zip(owner[::-1].tolist(), user[::-1].tolist(), strict=True):  # by falling owners
        least[one] = max(least[one], seconds[other] + least[other])
    return np.array(least)
