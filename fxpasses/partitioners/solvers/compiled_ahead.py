"""Compile what the searches run ahead of the first placement: after an installation, in the image of a CI.

Small problems are solved that reach all of it; numba keeps what it compiled on disk (:mod:`.compiling`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import networkx as nx

from fxpasses.devices import Device, Link
from fxpasses.errors import InputError
from fxpasses.partitioners.solvers.problem import PlacementProblem
from fxpasses.partitioners.solvers.solving import solve_placement, solve_whole_parts

__all__ = ["HALVES"]

SPEEDS = (1.0, 0.95, 0.85, 0.8, 0.7, 0.6, 0.55, 0.5)
RATE = 100.0
"""Bytes that a link carries in a second."""
SECONDS = 0.2
"""For each search; all that is compiled is reached in less."""
TIGHT = 1.01
"""How many times the bytes of a graph the devices of a tight problem have together."""


def _compile_pipelines() -> str:
    """What searches for pipelines, and for free placements under other objectives than latency."""
    from fxpasses.partitioners.solvers.annealing.cooling import anneal  # numba is heavy

    _refuse_nowhere(anneal)
    solve_placement(_grid(6, 16, 8))
    solve_placement(_grid(4, 8, 3, is_tight=True))
    solve_placement(_grid(3, 4, 3, is_tight=True, contiguity="free"))
    return _folder(anneal)


def _compile_latencies() -> str:
    """What searches under latency."""
    from fxpasses.partitioners.solvers.latency.trials import anneal  # numba is heavy

    _refuse_nowhere(anneal)
    solve_placement(_grid(5, 5, 3, objective="latency", contiguity="free"))
    solve_placement(_grid(50, 90, 3, objective="latency", contiguity="free"))
    problem = _grid(4, 4, 2, objective="latency")
    solve_whole_parts(problem, [solve_placement(problem).device_of])
    return _folder(anneal)


HALVES: Mapping[str, Callable[[], str]] = {"pipelines": _compile_pipelines, "latencies": _compile_latencies}
"""All of it in two halves that take about as long, for two processes: half a minute, and some seconds when it is there.

Each returns the folder that holds what was compiled: that of the sources, that of ``NUMBA_CACHE_DIR``, or one of the
user. It raises an InputError where none of them can be written to.
"""


def _grid(rows: int, columns: int, devices: int, *, is_tight: bool = False, **wishes: Any) -> PlacementProblem:
    """A net of cells like an unrolled recurrent one, which few of the searches prove at once."""
    names = [f"device{index}" for index in range(devices)]
    graph: nx.DiGraph[tuple[int, int]] = nx.DiGraph()
    for row in range(rows):
        for column in range(columns):
            seconds = 1 + (row * 7 + column * 3) % 5 / 7
            by_device = {name: seconds / speed for name, speed in zip(names, SPEEDS, strict=False)}
            kept = 1 + (37 * (1 + (row * 5 + column * 3) % 7) ** 2 + row * column * 11) % 997
            graph.add_node((row, column), seconds=by_device, kept_bytes=kept, output_bytes=1)
            before = [(row - 1, column), (row, column - 1)]
            graph.add_edges_from((other, (row, column)) for other in before if other in graph)
    total = sum(facts["kept_bytes"] for _cell, facts in graph.nodes(data=True))
    memory = int(total / devices * TIGHT) if is_tight else None
    links = [Link(name, other, RATE) for name in names for other in names if name < other]
    return PlacementProblem(graph, [Device(name, memory) for name in names], links, time_budget=SECONDS, **wishes)


def _refuse_nowhere(compiled: Any) -> None:
    if compiled.stats.cache_path is None:
        raise InputError(
            "What the searches compile can be kept nowhere: neither beside the sources of fxpasses nor in a folder of "
            "the user can be written; set NUMBA_CACHE_DIR to a folder, here and where models are placed."
        )


def _folder(compiled: Any) -> str:
    return str(compiled.stats.cache_path)
