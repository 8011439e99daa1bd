"""Search for a long time with compiled annealing: from nothing, from clusters of units, and around the best.

One annealing often ends near a good assignment that is not the best, whatever its heat; several of different kinds do
not end at the same, and what they have found is annealed again with little heat.
"""

from __future__ import annotations

import math

import numpy as np

from fxpasses.partitioners.solvers.free.annealing import Best
from fxpasses.partitioners.solvers.free.coarsening import chopped, clustered
from fxpasses.partitioners.solvers.free.moves import LARGEST, Graph, Plan, State, anneal
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["Moves", "search_moves"]

STEPS_PER_SECOND = 140e6
"""Elementary steps of :func:`~.moves.anneal` on one core of 2024 in a second."""
PENALTY = 3.0
"""What a device that needs twice its budget adds to the energy."""
FROM_NOTHING = (Plan(0.13, 0.02, 1e-4, 4, 0.3), Plan(0.13, 0.1, 5e-4, 5, 0.3), Plan(0.14, 0.05, 2.5e-4, 4, 1.0))
CLUSTERS, UNITS = Plan(0.045, 0.05, 5e-4, 4, 0.5), Plan(0.055, 0.004, 2e-5, 4, 0.5)
AROUND = (Plan(0.12, 0.004, 2e-5, 5, 1.0), Plan(0.1, 0.004, 2e-5, 4, 1.0), Plan(0.08, 0.0015, 2e-5, 4, 1.0))
"""The annealings; their steps are shares of all."""
COARSE = ((0.15, False), (0.3, True), (0.5, True))
"""Clusters, as a share of the units, and whether they are runs of units."""
LARGEST_CLUSTER = 0.3
"""The most that a cluster weighs, as a share of the average load."""


def search_moves(model: LoadModel, best: Best, bound: float, seconds: float, draw: np.random.Generator) -> None:
    """Improve ``best`` for about so many seconds, or until it is at the bound."""
    moves, steps = Moves(model), seconds * STEPS_PER_SECOND
    for plan in FROM_NOTHING:
        moves.improve(best, bound, moves.anywhere(draw), _spend(plan, steps), draw)
    for share, is_chopped in COARSE:
        if best.value > bound * (1 + 1e-9):
            home = _by_clusters(model, share, is_chopped, _spend(CLUSTERS, steps), draw)
            moves.improve(best, bound, home, _spend(UNITS, steps), draw)
    for plan in AROUND:
        home = best.home if math.isfinite(best.value) else moves.anywhere(draw)
        moves.improve(best, bound, home, _spend(plan, steps), draw)


def _spend(plan: Plan, steps: float) -> Plan:
    return plan._replace(steps=max(1.0, plan.steps * steps))


def _by_clusters(model: LoadModel, share: float, is_chopped: bool, plan: Plan, draw: np.random.Generator) -> Ints:
    """The units where annealing of clusters puts them; anywhere if no device can run some cluster."""
    count = max(2 * model.devices, int(share * model.size))
    largest = LARGEST_CLUSTER * float(model.weight.mean(axis=1).sum()) / model.devices
    nothing = np.zeros((1, model.size), dtype=np.int64)
    cluster = chopped(model, count, draw) if is_chopped else clustered(model, nothing, count, largest, draw)
    small = model.merged(cluster)
    if small.banned.all(axis=1).any():
        return Moves(model).anywhere(draw)
    moves = Moves(small)
    return moves.along(moves.anywhere(draw), plan, draw)[cluster]


class Moves:
    """Annealing of one model.

    Args:
        model: What units and values cost.
    """

    def __init__(self, model: LoadModel) -> None:
        self.model = model
        self.graph = _graph(model)
        least = np.where(model.banned, np.inf, model.weight).min(axis=1)
        self.scale = float(least.sum()) / model.devices or 1.0

    def anywhere(self, draw: np.random.Generator) -> Ints:
        """Each unit on any device that can run it."""
        chance = np.where(self.model.banned, np.inf, draw.random(self.model.banned.shape))
        home: Ints = np.argmin(chance, axis=1)
        return home

    def improve(self, best: Best, bound: float, home: Ints, plan: Plan, draw: np.random.Generator) -> None:
        """Anneal from an assignment, unless the best is at the bound."""
        if best.value > bound * (1 + 1e-9):
            found = self.along(home, plan, draw)[None]
            best.offer(self.model.figures(found), self.model.legal(found), found)

    def along(self, home: Ints, plan: Plan, draw: np.random.Generator) -> Ints:
        """The best assignment on the way from one that gives no device what it cannot run; else where it ends."""
        best, state = self.run(home, plan, draw)
        return state.home if best is None else best

    def run(self, home: Ints, plan: Plan, draw: np.random.Generator) -> tuple[Ints | None, State]:
        """The best assignment that keeps every budget, and where the annealing ends, with all sums."""
        state, best = self._state(home), home.astype(np.int64)
        random = draw.integers(1, 2**63, 2).astype(np.uint64)
        value = anneal(self.graph, state, best, plan, self.scale, PENALTY, random)
        return best if math.isfinite(value) else None, state

    def _state(self, home: Ints) -> State:
        """An assignment; its sums are made when it is annealed."""
        model = self.model
        return State(
            home.astype(np.int64),
            np.zeros(model.devices),
            np.zeros(model.devices),
            np.zeros((len(model.source), model.devices), dtype=np.int32),
            np.zeros((len(model.shared), model.devices), dtype=np.int32),
            np.zeros((model.devices, len(self.graph.sizes)), dtype=np.int32),
            np.zeros(model.devices, dtype=np.int64),
            np.zeros(LARGEST, dtype=np.int64),
            np.zeros(LARGEST, dtype=np.int64),
            np.zeros(model.size, dtype=np.int64),
        )

    def needs(self, state: State) -> Floats:
        """Bytes that each device needs."""
        needs: Floats = state.bytes + self.graph.sizes[state.top]
        return needs


def _graph(model: LoadModel) -> Graph:
    uses = model.uses[model.uses[:, 1] != model.source[model.uses[:, 0]]]
    uses = np.unique(uses, axis=0)
    values, users = np.ascontiguousarray(uses[:, 0]), np.ascontiguousarray(uses[:, 1])
    makers = model.source[values]
    made_start, made = _lists(model.source, np.arange(len(model.source)), model.size)
    used_start, used = _lists(users, values, model.size)
    near_start, near = _lists(np.concatenate([users, makers]), np.concatenate([makers, users]), model.size)
    holder = np.repeat(np.arange(model.size), [len(blocks) for blocks in model.holds])
    hold_start, hold = _lists(holder, np.concatenate([*model.holds, np.zeros(0, dtype=np.int64)]), model.size)
    sizes, rank = np.unique(np.concatenate([np.zeros(1), model.live]), return_inverse=True)
    return Graph(
        np.where(model.banned, np.inf, model.weight),
        _floats(model.kept),
        _floats(model.memory),
        made_start,
        made,
        used_start,
        used,
        near_start,
        near,
        hold_start,
        hold,
        _floats(model.shared),
        np.ascontiguousarray(model.source, dtype=np.int64),
        _floats(model.send),
        np.ascontiguousarray(rank[1:], dtype=np.int64),
        sizes,
    )


def _floats(values: Floats) -> Floats:
    return np.ascontiguousarray(values, dtype=np.float64)


def _lists(owner: Ints, item: Ints, count: int) -> tuple[Ints, Ints]:
    """The items of each owner, one after the other, and where each owner's start."""
    start = np.zeros(count + 1, dtype=np.int64)
    start[1:] = np.cumsum(np.bincount(owner, minlength=count))
    return start, np.ascontiguousarray(item[np.argsort(owner, kind="stable")], dtype=np.int64)
