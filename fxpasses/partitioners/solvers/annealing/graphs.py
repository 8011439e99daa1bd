"""What compiled annealing reads and writes: costs as flat arrays, an assignment with its sums, how to cool.

These are named tuples of arrays because numba knows them; :mod:`.sums` and the moves work on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.flat_lists import flat_floats, flat_lists
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["LARGEST", "Cooling", "Graph", "Orders", "State", "graph_of", "state_of"]

LARGEST = 32
"""Units of one move, at most."""
PER_UNIT, PER_VALUE = 20, 10
"""Steps of moving a unit, and of each value that it uses or makes, besides the devices."""
PER_MOVE, PER_LOAD, PER_BYTES = 40, 2, 5
"""Steps of a move, besides its units; of the load of a device, and of its bytes."""

Counts = NDArray[np.int32]


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
    unit_steps: Ints  # of moving each unit
    move_steps: int  # of a move besides
    all_steps: int  # of making all sums anew
    before_start: Ints
    before: Ints  # what each unit needs, in a pipeline
    after_start: Ints
    after: Ints  # what needs it
    in_order: bool  # whether it is one
    kind: Ints  # of each device; two of one kind can take each other's place
    counts_bytes: bool  # whether they matter at all
    by_bytes: bool  # whether a device's load is its bytes


class State(NamedTuple):
    """An assignment and its sums."""

    home: Ints
    load: Floats
    load_before: Floats  # the move that is tried
    power: Floats  # of each load
    bytes: Floats
    users: Counts  # (q, k)
    holders: Counts  # (s, k)
    ranks: Counts  # (k, sizes)
    top: Ints  # the highest rank on each device
    moved: Ints  # the units of a move
    target: Ints
    stamp: Ints  # the last move that each unit was in
    place: Ints  # of each device in a pipeline
    at: Ints  # the device at each place
    home_before: Ints  # two devices change places
    loose: Ints  # the units that can go to another place alone, and how many these are at the end
    loose_at: Ints  # where each unit stands among them, -1 where it does not


class Cooling(NamedTuple):
    """One annealing.

    Args:
        steps: Elementary steps.
        hot: The first temperature, as a share of the average load.
        cold: The last.
        squarings: The norm is of order ``2 ** squarings``.
        exchanges: How often two devices of a pipeline change places.
    """

    steps: float
    hot: float
    cold: float
    squarings: int
    exchanges: float = 0.003


class Orders(NamedTuple):
    """A search of the orders of a pipeline's devices.

    Args:
        steps: Elementary steps.
        drawn: Orders that are drawn at random at first.
        worse: How much worse than the one before an order may be that is kept, in the mean, as a share of its load.
        quick: How units are annealed in an order at first.
        long: How they are annealed then, if that was promising.
        ahead: The seconds of the units before each, on each device, ``(k, m + 1)``.
        at: The device at each place of the order that is kept, ``(k,)``.
        home: The best assignment in the order that is tried, ``(m,)``.
        found: The devices of the best orders, ``(b, k)``.
        homes: The best assignment in each of them, ``(b, m)``.
        values: Their largest loads, ``(b,)``; ``inf`` while there is none.
    """

    steps: float
    drawn: int
    worse: float
    quick: Cooling
    long: Cooling
    ahead: Floats
    at: Ints
    home: Ints
    found: Ints
    homes: Ints
    values: Floats


def graph_of(model: LoadModel, flow: Ints | None = None) -> Graph:
    """The costs of a model, as arrays.

    Args:
        model: What units and values cost.
        flow: For pipelines, pairs of units (before, after), ``(e, 2)``.
    """
    uses = model.uses[model.uses[:, 1] != model.source[model.uses[:, 0]]]
    uses = np.unique(uses, axis=0)
    values, users = np.ascontiguousarray(uses[:, 0]), np.ascontiguousarray(uses[:, 1])
    makers = model.source[values]
    made_start, made = flat_lists(model.source, np.arange(len(model.source)), model.size)
    used_start, used = flat_lists(users, values, model.size)
    near_start, near = flat_lists(np.concatenate([users, makers]), np.concatenate([makers, users]), model.size)
    hold_start, hold = flat_lists(*model.held, model.size)
    sizes, rank = np.unique(np.concatenate([np.zeros(1), model.live]), return_inverse=True)
    counts_bytes = model.by_bytes or bool(np.isfinite(model.memory).any())
    pairs = np.zeros((0, 2), dtype=np.int64) if flow is None else flow
    before_start, before = flat_lists(pairs[:, 1], pairs[:, 0], model.size)
    after_start, after = flat_lists(pairs[:, 0], pairs[:, 1], model.size)
    unit_steps = PER_UNIT + (np.diff(made_start) + np.diff(used_start)) * (PER_VALUE + model.devices)
    return Graph(
        flat_floats(np.where(model.banned, np.inf, model.weight)),
        flat_floats(model.kept),
        flat_floats(model.memory),
        made_start,
        made,
        used_start,
        used,
        near_start,
        near,
        hold_start,
        hold,
        flat_floats(model.shared),
        np.ascontiguousarray(model.source, dtype=np.int64),
        flat_floats(model.send),
        np.ascontiguousarray(rank[1:], dtype=np.int64),
        sizes,
        unit_steps,
        PER_MOVE + model.devices * (PER_LOAD + PER_BYTES * counts_bytes),
        int(unit_steps.sum()),
        before_start,
        before,
        after_start,
        after,
        flow is not None,
        _kinds(model),
        counts_bytes,
        model.by_bytes,
    )


def _kinds(model: LoadModel) -> Ints:
    """A number for each device, the same for those that nothing tells apart."""
    if not model.links_alike:
        return np.arange(model.devices)
    weight = np.where(model.banned, np.inf, model.weight)
    kind: Ints = np.unique(np.vstack([weight, model.memory]), axis=1, return_inverse=True)[1].reshape(-1)
    return kind


def state_of(model: LoadModel, graph: Graph, home: Ints, order: Sequence[int] | None = None) -> State:
    """An assignment; its sums are made when it is annealed. ``order`` is that of all devices in a pipeline."""
    at = np.arange(model.devices) if order is None else np.array(order, dtype=np.int64)
    load, load_before, power, kept = np.zeros((4, model.devices))
    return State(
        home.astype(np.int64),
        load,
        load_before,
        power,
        kept,
        np.zeros((len(model.source), model.devices), dtype=np.int32),
        np.zeros((len(model.shared), model.devices), dtype=np.int32),
        np.zeros((model.devices, len(graph.sizes)), dtype=np.int32),
        np.zeros(model.devices, dtype=np.int64),
        np.zeros(LARGEST, dtype=np.int64),
        np.zeros(LARGEST, dtype=np.int64),
        np.zeros(model.size, dtype=np.int64),
        np.argsort(at),
        at,
        home.astype(np.int64),
        np.zeros(model.size + 1, dtype=np.int64),
        np.full(model.size, -1),
    )
