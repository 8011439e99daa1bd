"""Latency, and several runs a device, on the order of the graph: until the solvers do both."""

from __future__ import annotations

import numpy as np

from fxpasses.errors import InfeasibleError
from fxpasses.partitioners.colocation import uncuttable
from fxpasses.partitioners.device_runs import runs_of
from fxpasses.partitioners.device_search import Found, Wish
from fxpasses.partitioners.graph_figures import GraphFigures, value_bytes
from fxpasses.partitioners.linear_cuts import ChainProblem, solve_chain
from fxpasses.partitioners.solvers import PlacementSolution


def linear_search(figures: GraphFigures, wish: Wish) -> Found:
    devices = wish.topology.devices
    times = list(figures.seconds(devices, wish.supports))
    seconds = np.array([[row.get(device.name, np.inf) for row in times] for device in devices])
    allowed = np.isfinite(seconds)
    end = len(figures.nodes)
    change = np.zeros(end + 2, dtype=np.int64)
    for index, node in enumerate(figures.nodes):
        last = max((figures.position[user] for user in node.users if user in figures.position), default=-1)
        if last > index and (size := value_bytes(node)):
            change[index + 1] += size
            change[last + 1] -= size
    transfer = []
    for a in devices:
        links = [wish.topology.link(a.name, b.name) for b in devices]
        transfer.append(
            [(0.0, 0.0) if a.name == b.name else (link.latency, 1 / link.bandwidth) for b, link in zip(devices, links)]
        )
    solution = solve_chain(
        ChainProblem(
            np.where(allowed, seconds, 0.0),
            allowed,
            [figures.held(index) for index in range(end)],
            figures.live,
            np.cumsum(change)[:end],
            uncuttable(figures),
            [device.memory for device in devices],
            transfer,
            "latency",
        )
    )
    if solution is None:
        raise InfeasibleError("")
    home = {
        node: devices[run.device].name for run in solution.runs for node in figures.nodes[run.start : run.stop]
    }
    names = [device.name for device in devices]
    loads = dict(zip(names, solution.load, strict=True))
    answer = PlacementSolution(home, tuple(names), solution.seconds, 0.0, loads, loads, {})
    return Found(answer, runs_of(figures.graph_module, home, figures.dependencies), "pipeline", 0.0)
