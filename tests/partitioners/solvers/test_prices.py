"""Prices of seconds and bytes: what they prove where units are too many for the linear program."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from fxpasses.devices import Device
from fxpasses.partitioners import PlacementProblem
from fxpasses.partitioners.solvers.proofs import bounds
from fxpasses.partitioners.solvers.proofs.bounds import prices_of
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of


@pytest.mark.parametrize("devices", [7, 14, 20])
def test_units_that_the_same_devices_run_are_one_in_the_linear_program(
    devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain on devices of unequal memory, of which each cannot run some units: the bound of all units, or nearly."""
    draw = np.random.default_rng(devices)
    graph = nx.path_graph(600, create_using=nx.DiGraph)
    names = [f"d{index}" for index in range(devices)]
    kinds = draw.random((5, devices)) < 0.4
    kinds[:, :-6] = False  # they differ in the last devices only
    for node, facts in graph.nodes(data=True):
        seconds = draw.uniform(1, 2)
        banned = kinds[node * 5 // 600]
        facts["seconds"] = {name: seconds for name, none in zip(names, banned.tolist(), strict=True) if not none}
        facts["kept_bytes"] = int(draw.integers(1, 1000))
    kept = sum(size for _node, size in graph.nodes(data="kept_bytes"))
    memory = draw.uniform(1, 3, devices)
    sizes = (1.1 * kept * memory / memory.sum()).astype(int).tolist()
    problem = PlacementProblem(graph, [Device(name, size) for name, size in zip(names, sizes, strict=True)])
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    monkeypatch.setattr(bounds, "MAX_VARIABLES", units.size * devices - 1)
    joined = prices_of(units, tables.memory, "throughput").bound
    monkeypatch.setattr(bounds, "MAX_VARIABLES", units.size * devices)
    exact = prices_of(units, tables.memory, "throughput").bound
    monkeypatch.setattr(bounds, "_duals", lambda *_program: None)
    simple = prices_of(units, tables.memory, "throughput").bound

    assert units.size == 600
    assert simple < joined <= exact * (1 + 1e-9)
    assert joined > exact - 0.1 * (exact - simple)
