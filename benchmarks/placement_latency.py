"""Latency placement on graphs of 30 to 700 nodes where several devices can gain: experts, branches, grids, random DAGs.

``python -m benchmarks.placement_latency`` prints the makespan, the bound and the CPU seconds of each problem;
``--write FOLDER`` writes the problems as plain numbers for a search that shares no code with the solvers.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import attrs
import networkx as nx

from benchmarks.harness import Duel, case
from benchmarks.placement_problems import Builder, convolutional, inception, place, recurrent, training, transformer
from fxpasses.devices import Link
from fxpasses.partitioners import PlacementProblem, PlacementSolution, solve_placement
from fxpasses.partitioners.solvers.latency.scheduling import Scheduler
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of

__all__ = ["PROBLEMS", "experts", "layered"]

FAST, USUAL = (300e9, 2e-6), (12e9, 10e-6)
"""Bytes a second and seconds until the first byte: links between GPUs of one board, and over PCIe."""


def experts(layers: int, count: int, *, width: int = 1024, tokens: int = 2048) -> nx.DiGraph[Any]:
    """A mixture of experts: attention as three branches, then a router and experts that run side by side."""
    make, size, square = Builder(), 2 * tokens * width, 2 * tokens * width**2
    last = make.op("embed", output=size, parameters=2 * 32_000 * width)
    for layer in range(layers):
        norm = make.op(f"{layer}.norm", last, output=size)
        heads = []
        for part in ("query", "key", "value"):
            product = make.op(f"{layer}.{part}", norm, flops=square, parameters=2 * width**2, output=size)
            heads.append(make.op(f"{layer}.{part}.heads", product, output=size))
        mixed = make.op(f"{layer}.attention", *heads, flops=4 * tokens**2 * width, output=size)
        out = make.op(f"{layer}.out", mixed, flops=square, parameters=2 * width**2, output=size)
        last = make.op(f"{layer}.residual", out, last, output=size)
        norm = make.op(f"{layer}.norm2", last, output=size)
        router = make.op(f"{layer}.router", norm, flops=2 * tokens * width * count, output=2 * tokens * count)
        ends = []
        for expert in range(count):
            share = (1 + expert % 3) * size // (2 * count)  # tokens are spread unevenly
            taken = make.op(f"{layer}.{expert}.take", norm, router, output=share)
            cost = 4 * square * share // size
            wide = make.op(f"{layer}.{expert}.up", taken, flops=cost, parameters=8 * width**2, output=4 * share)
            bent = make.op(f"{layer}.{expert}.gelu", wide, output=4 * share)
            ends.append(make.op(f"{layer}.{expert}.down", bent, flops=cost, parameters=8 * width**2, output=share))
        joined = make.op(f"{layer}.join", *ends, router, output=size)
        last = make.op(f"{layer}.residual2", joined, last, output=size)
    make.op("head", last, flops=2 * tokens * width * 32_000, output=2 * tokens * 32_000)
    return make.graph


def layered(count: int, ratio: float, seed: int = 0, *, width: int = 10) -> nx.DiGraph[Any]:
    """A random DAG in layers of up to ``2 * width`` nodes; sending a value takes ``ratio`` of a node's seconds."""
    draw = random.Random(seed)
    graph: nx.DiGraph[Any] = nx.DiGraph()
    rows: list[list[int]] = [[]]
    for node in range(count):
        if len(rows[-1]) and draw.random() < 1 / width:
            rows.append([])
        graph.add_node(
            node,
            seconds=draw.uniform(0.1, 1.9),
            output_seconds=ratio * draw.uniform(0.1, 1.9),
            kept_bytes=draw.randrange(50, 150),
        )
        above = rows[-2] if len(rows) > 1 else []
        near = draw.sample(above, min(len(above), draw.randint(1, 3)))
        if near and draw.random() < 0.2:
            near.append(draw.randrange(rows[-2][0] + 1))
        graph.add_edges_from((need, node) for need in near)
        rows[-1].append(node)
    return graph


def _linked(graph: nx.DiGraph[Any], count: int, link: tuple[float, float] = USUAL, **options: Any) -> PlacementProblem:
    problem = place(graph, count, objective="latency", **{"contiguity": "free", **options})
    pairs = itertools.combinations([device.name for device in problem.devices], 2)
    return attrs.evolve(problem, links=[Link(a, b, *link) for a, b in pairs])


def _boards(problem: PlacementProblem) -> PlacementProblem:
    """The same with links between the two halves of the devices that are slower."""
    half = {device.name for device in problem.devices[: len(problem.devices) // 2]}
    links = [
        link if (link.first in half) == (link.second in half) else Link(link.first, link.second, 25e9, 5e-6)
        for link in problem.links
    ]
    return attrs.evolve(problem, links=links)


PROBLEMS: dict[str, Callable[[], PlacementProblem]] = {
    "experts, 2 layers": lambda: _linked(experts(2, 8), 4, FAST),
    "experts, 2 layers, slow links": lambda: _linked(experts(2, 4), 2, USUAL),
    "experts, 6 layers, tight": lambda: _linked(experts(6, 8), 8, FAST, memory=1.2),
    "experts, 12 layers, unequal": lambda: _linked(experts(12, 8), 4, FAST, equal=False),
    "experts, 4 layers, two boards": lambda: _boards(_linked(experts(4, 8), 4, FAST)),
    "transformer, 4 layers": lambda: _linked(transformer(4), 2, FAST),
    "transformer, 12 layers, tight": lambda: _linked(transformer(12), 4, FAST, memory=1.2),
    "transformer, 30 layers, tight, slow links": lambda: _linked(transformer(30), 8, USUAL, memory=1.2),
    "transformer, 14 layers, training, tight": lambda: _linked(training(transformer(14)), 4, FAST, memory=1.2),
    "inception, 3 blocks": lambda: _linked(inception(3), 4, FAST),
    "inception, 9 blocks": lambda: _linked(inception(9), 4, USUAL),
    "inception, 9 blocks, training, unequal": lambda: _linked(training(inception(9)), 4, FAST, equal=False),
    "residual net, unequal, tight": lambda: _linked(convolutional(), 4, FAST, equal=False, memory=1.3),
    "residual net, training": lambda: _linked(training(convolutional()), 4, FAST),
    "recurrent, 2 x 40": lambda: _linked(recurrent(2, 40), 4),
    "recurrent, 4 x 20": lambda: _linked(recurrent(4, 20), 4),
    "recurrent, 5 x 20": lambda: _linked(recurrent(5, 20), 8),
    "recurrent, 2 x 40, training": lambda: _linked(training(recurrent(2, 40)), 4),
    "layered, 30, ratio 1, tight": lambda: _linked(layered(30, 1.0, 1, width=4), 2, memory=1.1),
    "layered, 100, ratio 0.01": lambda: _linked(layered(100, 0.01, 2), 4),
    "layered, 100, ratio 1": lambda: _linked(layered(100, 1.0, 3), 4),
    "layered, 200, ratio 0.1, unequal": lambda: _linked(layered(200, 0.1, 4), 4, equal=False),
    "layered, 400, ratio 1": lambda: _linked(layered(400, 1.0, 5), 8),
    "layered, 700, ratio 0.1, tight": lambda: _linked(layered(700, 0.1, 6, width=14), 8, memory=1.1),
    "experts, 2 layers, pipeline": lambda: _linked(experts(2, 8), 4, FAST, contiguity="pipeline"),
    "recurrent, 4 x 20, pipeline": lambda: _linked(recurrent(4, 20), 4, contiguity="pipeline"),
    "layered, 200, ratio 0.1, pipeline": lambda: _linked(layered(200, 0.1, 4), 4, contiguity="pipeline", memory=1.2),
}


def _checked(problem: PlacementProblem) -> Callable[[PlacementSolution, object], None]:
    def check(ours: PlacementSolution, _reference: object) -> None:
        starts: dict[Hashable, float] = dict(ours.schedule)
        assert all(starts[before] <= starts[after] for before, after in problem.graph.edges)
        assert ours.bound <= ours.objective_value

    return check


@case("latency of a mixture of experts", sizes=(1, 4, 12), rounds=1)
def latency_experts(layers: int) -> Duel:
    """Graphs of 50 to 560 nodes on four devices."""
    problem = _linked(experts(layers, 8), 4, FAST, time_budget=2.0)
    return Duel(lambda: solve_placement(problem), None, _checked(problem))


@case("latency of a random graph", sizes=(30, 100, 400), rounds=1)
def latency_layered(count: int) -> Duel:
    """A tenth of a node's seconds for each value that is sent."""
    problem = _linked(layered(count, 0.1), 4, time_budget=2.0)
    return Duel(lambda: solve_placement(problem), None, _checked(problem))


def written(problem: PlacementProblem) -> str:
    """The problem as numbers: sizes, the unit of each node, seconds, sending times, edges, bytes, order of units."""
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    scheduler, model = Scheduler.of(tables), LoadModel.of(units, tables, "latency")
    count, kinds = scheduler.seconds.shape
    memory = [1e300 if size == float("inf") else size for size in model.memory.tolist()]
    edges = sorted({(a, b) for a, b in tables.edges.tolist() if a != b})
    lines: list[list[Any]] = [
        [count, kinds, model.size, len(edges), len(model.shared), int(problem.contiguity != "free"), len(units.before)],
        units.unit_of.tolist(),
        scheduler.seconds.ravel().tolist(),
        scheduler.send[:-1].ravel().tolist(),
        [end for edge in edges for end in edge],
        model.kept.tolist(),
        model.live.tolist(),
        model.shared.tolist(),
        memory,
        model.banned.astype(int).ravel().tolist(),
        units.before.ravel().tolist(),
        *([len(blocks), *blocks.tolist()] for blocks in model.holds),
    ]
    return "\n".join(" ".join(map(repr, line)) for line in lines) + "\n"


def main() -> None:
    """Print each problem solved by default and in 30 seconds, or write the problems."""
    if "--write" in sys.argv:
        folder = Path(sys.argv[sys.argv.index("--write") + 1])
        for name, make in PROBLEMS.items():
            (folder / f"{name.replace(', ', '_').replace(' ', '-')}.txt").write_text(written(make()))
        return
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    budgets = [float(budget) for budget in sys.argv[2:]] or [1.0, 30.0]
    for name, make in PROBLEMS.items():
        if wanted not in name:
            continue
        problem = make()
        line = f"{name:42} {len(problem.graph):4} nodes, {len(problem.devices)} devices"
        for budget in budgets:
            begin = time.process_time()
            solution = solve_placement(attrs.evolve(problem, time_budget=budget))
            seconds = time.process_time() - begin
            line += f" | {solution.objective_value:.6g}, bound {solution.bound:.6g} ({seconds:.1f} s)"
        print(line, flush=True)


if __name__ == "__main__":
    main()
