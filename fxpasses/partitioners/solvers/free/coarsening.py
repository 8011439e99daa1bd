"""Join units that belong together into clusters, so that a search can move them at once.

Heavy edges are matched at random, round by round (as in multilevel partitioning: Karypis & Kumar, "Multilevel k-way
partitioning scheme for irregular graphs", Journal of Parallel and Distributed Computing 48(1), 1998); or units stay
together on which two good assignments agree (Sanders & Schulz, "Distributed evolutionary graph partitioning", ALENEX
2012).
"""

from __future__ import annotations

import bisect

import numpy as np

from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["agreed", "chopped", "clustered"]


def clustered(model: LoadModel, count: int, largest: float, draw: np.random.Generator) -> Ints:
    """Number the clusters of the units, ``(m,)``.

    Args:
        model: The units and the values between them.
        count: Stop at so few clusters.
        largest: The most seconds that a cluster may have, on average over the devices.
        draw: For the order in which units look for a partner.
    """
    weight = model.weight.mean(axis=1)
    ends, heavy = _edges(model)
    cluster = np.arange(model.size)
    while True:
        joined = _matched(cluster, ends, heavy, weight, count, largest, draw)
        before, after = int(cluster.max(initial=-1)), int(joined.max(initial=-1))
        cluster = joined
        if after + 1 <= count or after >= 0.97 * before:
            return cluster


def chopped(model: LoadModel, count: int, draw: np.random.Generator) -> Ints:
    """Number the runs of units, ``(m,)``, when their sequence is cut at about so many places where few seconds cross.

    Units are numbered along the graph, so a run is what a pipeline would keep together; the places are shaken, and not
    too near each other. Time O(uses + units log units).
    """
    values = len(model.source)
    low, high = model.source.copy(), model.source.copy()
    np.minimum.at(low, model.uses[:, 0], model.uses[:, 1])
    np.maximum.at(high, model.uses[:, 0], model.uses[:, 1])
    seconds = model.send.mean(axis=(1, 2)) if values else np.zeros(0)
    steps = np.zeros(model.size + 1)
    np.add.at(steps, low + 1, seconds)
    np.add.at(steps, high + 1, -seconds)
    crossing = np.cumsum(steps)[1:-1]  # between each unit and the next
    before = np.cumsum(model.weight.mean(axis=1))
    apart = float(before[-1]) / (3 * count)
    shaken = (crossing + 1e-3 * float(crossing.max(initial=0.0))) * draw.uniform(0.6, 1.6, len(crossing))
    stops: list[float] = [0.0, float(before[-1])]
    cuts: list[int] = []
    for place in np.argsort(shaken, kind="stable").tolist():
        if len(cuts) >= count - 1:
            break
        near = bisect.bisect(stops, before[place])
        if before[place] - stops[near - 1] >= apart and stops[min(near, len(stops) - 1)] - before[place] >= apart:
            stops.insert(near, float(before[place]))
            cuts.append(place + 1)
    return np.searchsorted(np.sort(np.array(cuts, dtype=np.int64)), np.arange(model.size), side="right")


def agreed(model: LoadModel, first: Ints, second: Ints) -> Ints:
    """Number the clusters of units that edges connect and that two assignments both keep together, ``(m,)``.

    The names of the devices do not matter: two assignments that differ only in these agree on everything.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ends, _heavy = _edges(model)
    pair = first * model.devices + second
    one, other = ends[pair[ends[:, 0]] == pair[ends[:, 1]]].T
    together = coo_array((np.ones(len(one), dtype=np.int8), (one, other)), shape=(model.size, model.size))
    clusters: Ints = connected_components(together, directed=False)[1].astype(np.int64)
    return clusters


def _edges(model: LoadModel) -> tuple[Ints, Floats]:
    """Pairs of units that one value connects, with its seconds."""
    maker, user = model.source[model.uses[:, 0]], model.uses[:, 1]
    return np.stack([maker, user], axis=1), model.send.mean(axis=(1, 2))[model.uses[:, 0]]


def _matched(
    cluster: Ints, ends: Ints, heavy: Floats, weight: Floats, goal: int, largest: float, draw: np.random.Generator
) -> Ints:
    """One round: each cluster joins at most one other, the heaviest edges (shaken) first."""
    count = int(cluster.max(initial=-1)) + 1
    load = np.bincount(cluster, weight, count)
    first, second = cluster[ends[:, 0]], cluster[ends[:, 1]]
    apart = first != second
    least = 1e-300 * (heavy.max(initial=0.0) or 1.0)  # the quotient is finite
    rating = heavy[apart] / (load[first[apart]] + load[second[apart]] + least) * draw.uniform(0.2, 1.0, apart.sum())
    partner = np.arange(count)
    left = count
    for a, b in np.stack([first[apart], second[apart]], axis=1)[np.argsort(-rating, kind="stable")].tolist():
        if left <= goal:
            break
        if load[a] + load[b] <= largest:
            partner[max(a, b)] = min(a, b)
            load[a] = load[b] = np.inf  # both are taken
            left -= 1
    renumbered: Ints = np.unique(partner[cluster], return_inverse=True)[1].astype(np.int64)
    return renumbered
