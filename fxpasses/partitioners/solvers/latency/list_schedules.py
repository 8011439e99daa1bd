"""Assignments that simple rules give: each node where it ends first, paths, everything on one device."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from fxpasses.partitioners.solvers.latency.levels import Level
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["by_paths", "in_chunks", "on_one_device", "rules"]

TURNED, WORK = 24, 30_000
"""Orders of devices in which a linear order is cut, beside the usual ones, and the units that all of it may place."""


def rules(level: Level) -> list[Ints]:
    """Some assignments of units, budgets kept where the rule can. Time O(nodes · devices · inputs) for each."""
    fastest = np.argsort(level.model.weight.sum(axis=0), kind="stable").tolist()
    counts = sorted({min(2**power, len(fastest)) for power in range(1, 8)})
    alone = on_one_device(level.model, range(len(fastest)))
    return [*(earliest(level, fastest[:count]) for count in counts), by_paths(level), *alone]


def earliest(level: Level, devices: Sequence[int]) -> Ints:
    """Each node, by falling rank, where it ends first and fits among some devices (HEFT, without insertion)."""
    scheduler, model, count = level.scheduler, level.model, len(level.unit_of)
    much = 1e9 * (1.0 + float(scheduler.seconds.max(axis=1).sum() + scheduler.send.max(axis=(1, 2)).sum()))
    beside = np.where(np.isin(np.arange(model.devices), devices), 0.0, much)
    home, device_of = np.full(model.size, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    need, free, end = np.zeros(model.devices), np.zeros(model.devices), np.zeros(count)
    order = _mean_order(level)
    for node, unit in zip(order.tolist(), level.unit_of[order].tolist(), strict=True):
        needs = scheduler.before[node][scheduler.before[node] < count]
        there = (end[needs, None] + scheduler.send[needs, device_of[needs]]).max(axis=0, initial=0.0)
        done = np.maximum(there, free) + scheduler.seconds[node]
        if home[unit] < 0:
            full = need + model.kept[unit] + model.live[unit] > model.memory
            cost = np.where(model.banned[unit], np.inf, done + np.where(full, much, 0.0) + beside)
            home[unit] = int(np.argmin(cost))
            need[home[unit]] += model.kept[unit]
        device_of[node] = target = home[unit]
        end[node] = done[target]
        if scheduler.seconds[node, target] > 0:
            free[target] = max(free[target], end[node])
    return home


def by_paths(level: Level) -> Ints:
    """The graph as paths, each on one device, the longest first where the least is on it then.

    Branches, or the layers of an unrolled recurrent net, become one path each (linear clustering: Kim & Browne,
    "A general approach to mapping of parallel computation upon multiprocessor architectures", ICPP 1988).
    """
    scheduler, model, unit_of = level.scheduler, level.model, level.unit_of
    path_of = np.full(model.size, -1, dtype=np.int64)
    for path, first in enumerate(scheduler.topological.tolist()):
        node: int | None = first
        while node is not None and path_of[unit_of[node]] < 0:
            path_of[unit_of[node]] = path
            users = (user for user in scheduler.after[node].tolist() if user < len(unit_of))
            node = next((user for user in users if path_of[unit_of[user]] < 0), None)
    cluster: Ints = np.unique(path_of, return_inverse=True)[1].astype(np.int64)
    return _longest_first(model.merged(cluster))[cluster]


def on_one_device(model: LoadModel, devices: Iterable[int]) -> list[Ints]:
    """Everything on each of some devices, and what it cannot run on others, the fastest first."""
    found = []
    for device in devices:
        home = np.where(model.banned[:, device], np.argmin(model.weight + 1e12 * model.banned, axis=1), device)
        found.append(home.astype(np.int64))
    return found


def in_chunks(level: Level, orders: Sequence[Sequence[int]]) -> list[Ints]:
    """Linear orders of the units in equal parts on two, three, ... devices, the fastest first, then in other orders."""
    model = level.model
    fastest = np.argsort(model.weight.sum(axis=0), kind="stable").tolist()
    rows = [fastest[:count] for count in range(2, len(fastest) + 1)]
    others = itertools.chain.from_iterable(
        itertools.permutations(fastest, count) for count in range(2, len(fastest) + 1)
    )
    rows += itertools.islice(others, min(TURNED, WORK // (model.size * len(orders))))
    return [_cut(model, order, devices) for order in orders for devices in dict.fromkeys(map(tuple, rows))]


def _cut(model: LoadModel, order: Sequence[int], devices: Sequence[int]) -> Ints:
    """Each device takes its share of the seconds, or until it is full; the last takes the rest."""
    home = np.full(model.size, devices[-1], dtype=np.int64)
    share = model.weight.sum(axis=0) / len(devices)
    place, load, need, live = 0, 0.0, 0.0, 0.0
    for unit in order:
        device = devices[place]
        live = max(live, float(model.live[unit]))
        full = need + model.kept[unit] + live > model.memory[device] or load >= share[device]
        if full and place + 1 < len(devices):
            place, load, need, live = place + 1, 0.0, 0.0, float(model.live[unit])
        home[unit] = device = devices[place]
        load += model.weight[unit, device]
        need += model.kept[unit]
    return home


def _longest_first(model: LoadModel) -> Ints:
    load, need = np.zeros(model.devices), np.zeros(model.devices)
    home = np.zeros(model.size, dtype=np.int64)
    for unit in np.argsort(-model.weight.max(axis=1), kind="stable").tolist():
        after = load + model.weight[unit]
        after[need + model.kept[unit] + model.live[unit] > model.memory] += 1e9 * (1 + float(load.sum()))
        after[model.banned[unit]] = np.inf
        home[unit] = target = int(np.argmin(after))
        load[target] += model.weight[unit, target]
        need[target] += model.kept[unit]
    return home


def _mean_order(level: Level) -> Ints:
    """Falling rank with mean seconds and mean transfers."""
    scheduler = level.scheduler
    count, kinds = scheduler.seconds.shape
    seconds = scheduler.seconds.mean(axis=1)
    send = scheduler.send.sum(axis=(1, 2)) / max(1, kinds * (kinds - 1))
    rank = np.zeros(count + 1)
    for node in scheduler.topological[::-1].tolist():
        rank[node] = seconds[node] + send[node] + rank[scheduler.after[node]].max(initial=0.0)
    place = np.empty(count, dtype=np.int64)
    place[scheduler.topological] = np.arange(count)
    return np.lexsort((place, -rank[:-1]))
