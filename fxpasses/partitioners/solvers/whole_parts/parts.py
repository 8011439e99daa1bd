"""What compiled annealing of whole parts reads and writes: parameters that several use, units on devices, what crosses.

What units, values and bytes cost is the :class:`.Graph` of all annealings; :mod:`.sums` and the moves work on these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fxpasses.partitioners.solvers.annealing.graphs import Counts, Graph
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Floats, Ints

__all__ = ["Cooling", "Parameter", "Parts", "Shared", "parts_of", "shared_of"]

Parameter = tuple[Sequence[int], float]
"""The units that use it, and its bytes."""


class Shared(NamedTuple):
    """Parameters that several units use; those of parameter ``p`` stand from ``start[p]`` on."""

    start: Ints
    user: Ints
    send: Floats  # (p, k, k)


class Parts(NamedTuple):
    """An assignment and its sums."""

    home: Ints
    busy: Floats  # seconds of the units of each device
    members: Counts  # how many units that are
    flow: Counts  # (k, k), how many units wait for one on another device
    sent: Floats  # (k, k), seconds of the values
    users: Counts  # (q, k)
    bytes: Floats
    holders: Counts  # (s, k)
    ranks: Counts  # (k, sizes)
    top: Ints  # the highest rank on each device
    moved: Ints  # the units of a move
    target: Ints
    stamp: Ints  # the last move that each unit was in
    order: Ints  # the devices that are used, as their parts run
    waits: Ints  # for how many parts each still waits
    first: Ints  # the first unit of each
    begin: Floats
    loaded: Floats  # (k, k), seconds of the parameters


class Cooling(NamedTuple):
    """One annealing.

    Args:
        steps: Elementary steps.
        hot: The first temperature, as a share of what its start takes.
        cold: The last.
        most: What that is a share of where the parts of the start wait for each other.
    """

    steps: float
    hot: float
    cold: float
    most: float


def shared_of(parameters: Sequence[Parameter], tables: CostTables) -> Shared:
    """The parameters, as arrays."""
    users = [np.array(units, dtype=np.int64) for units, _size in parameters]
    send = np.zeros((len(users), len(tables.memory), len(tables.memory)))
    for index, (_units, size) in enumerate(parameters):
        send[index] = tables.latency + size * tables.per_byte
    return Shared(
        np.cumsum([0, *map(len, users)]).astype(np.int64), np.concatenate([np.zeros(0, dtype=np.int64), *users]), send
    )


def parts_of(graph: Graph, home: Ints) -> Parts:
    """An assignment; its sums are made when it is annealed."""
    size, devices = graph.weight.shape
    flow = np.zeros((devices, devices), dtype=np.int32)
    sent, loaded = np.zeros((2, devices, devices))
    busy, held, begin = np.zeros((3, devices))
    top, order, waits, first = np.zeros((4, devices), dtype=np.int64)
    moved, target, stamp = np.zeros((3, size), dtype=np.int64)
    return Parts(
        home.astype(np.int64),
        busy,
        np.zeros(devices, dtype=np.int32),
        flow,
        sent,
        np.zeros((len(graph.source), devices), dtype=np.int32),
        held,
        np.zeros((len(graph.shared), devices), dtype=np.int32),
        np.zeros((devices, len(graph.sizes)), dtype=np.int32),
        top,
        moved,
        target,
        stamp,
        order,
        waits,
        first,
        begin,
        loaded,
    )
