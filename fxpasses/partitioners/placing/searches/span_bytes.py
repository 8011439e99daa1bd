"""Bytes that each run of consecutive operators needs on a device of its own, for all runs at once.

Constants and copies count while the run lasts, each once; what the run makes counts as long as it is alive. That is
what :func:`~fxpasses.partitioners.costs.memory.predict_memory` follows for one placement; here it is a table over all
pairs of places to cut one order of the operators at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.costs.graph_figures import GraphFigures, value_bytes
from fxpasses.partitioners.costs.kernels.kernel_results import result_bytes

__all__ = ["span_bytes"]

Ints = NDArray[np.int64]


def span_bytes(figures: GraphFigures, order: Ints, stops: Ints) -> Ints:
    """Bytes of the operators between each two places to cut an order.

    Args:
        figures: The measured graph.
        order: The positions of its compute nodes in a topological order, ``(n,)``.
        stops: After how many of them it may be cut, rising from 0 to n, ``(f,)``.

    Returns:
        ``(f, f)``, bytes from the first place to the second; 0 where that is not later. Time O((n + uses) × f).
    """
    place: Ints = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    block = np.searchsorted(stops, place, side="right") - 1
    table = np.zeros((len(stops) + 1, len(stops) + 1), dtype=np.int64)
    for blocks, made, size in _whole(figures, block):
        last = made
        for own in sorted(set(blocks)):
            _count(table, last, own, size)
            last = own
    table = table.cumsum(axis=0).cumsum(axis=1)[:-1, :-1]
    return np.triu(table, 1) + _most_alive(figures, place, stops)


def _count(table: Ints, before: int, own: int, size: int) -> None:
    """Count bytes for all runs that begin after one block and hold another one, as differences along both axes."""
    table[before + 1, own + 1] += size
    table[own + 1, own + 1] -= size


def _whole(figures: GraphFigures, block: Ints) -> Iterator[tuple[Iterable[int], int, int]]:
    """What is there as long as a run lasts: the blocks that need it, the block that makes it (-1: none), bytes."""
    users: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    for index, (constants, living) in enumerate(zip(figures.constants, figures.living, strict=True)):
        inputs = {storage: figures.sizes[storage] for storage in living if storage in figures.inputs}
        for storage, size in (*constants.items(), *inputs.items()):
            users.setdefault(storage, []).append(int(block[index]))
            sizes[storage] = size
    yield from ((blocks, -1, sizes[storage]) for storage, blocks in users.items())
    if not any(figures.living):  # all that counts is counted as constants
        return
    for index, node in enumerate(figures.nodes):
        own = [int(block[figures.position[user]]) for user in node.users if user in figures.position]
        away = [other for other in own if other > block[index]]
        if away and (size := value_bytes(node)) and not figures.is_constant(index):
            yield away, int(block[index]), size


def _most_alive(figures: GraphFigures, place: Ints, stops: Ints) -> Ints:
    """The most bytes alive that the run has made itself, for each pair of places to cut at."""
    lives = _lives(figures, place)
    first = np.array([start for start, _stop, _size in lives], dtype=np.int64)
    ranked = np.argsort(-first, kind="stable").tolist()
    curve = np.zeros(len(place) + 1, dtype=np.int64)
    most = np.zeros((len(stops), len(stops)), dtype=np.int64)
    following = 0
    for row in range(len(stops) - 2, -1, -1):
        begin = int(stops[row])
        while following < len(ranked) and lives[ranked[following]][0] >= begin:
            start, stop, size = lives[ranked[following]]
            curve[start : stop + 1] += size
            following += 1
        so_far = np.maximum.accumulate(curve[begin:-1])
        most[row, row + 1 :] = so_far[stops[row + 1 :] - begin - 1]
    return most


def _lives(figures: GraphFigures, place: Ints) -> list[tuple[int, int, int]]:
    """From where to where each storage that an operator makes is alive, and its bytes."""
    end, here = len(place), figures.sizes.keys() - figures.inputs
    found: dict[int, list[int]] = {}
    for index, node in enumerate(figures.nodes):
        own = result_bytes(node, figures.homes[node])
        users = [int(place[figures.position[user]]) if user in figures.position else end for user in node.users]
        for storage, size in own.items():
            if storage not in here:
                continue
            at = int(place[index])
            life = found.setdefault(storage, [at, at, 0])
            life[0], life[1] = min(life[0], at), max(life[1], at, *users)
            life[2] = max(life[2], size)
    inside = [(int(place[index]), size) for index, size in enumerate(figures.inside.tolist())]
    return [
        *((start, stop, size) for start, stop, size in found.values()),
        *((at, at, size) for at, size in inside if size),
    ]
