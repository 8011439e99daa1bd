"""Pipelines on devices: seconds to a certificate, how near the default mode comes, growth with the graph.

There is no peer that proves its answer; what is promised is checked after each first run. ``python -m
benchmarks.placement`` prints the CPU seconds of each problem.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import attrs
import networkx as nx
import numpy as np

from benchmarks.harness import Duel, case
from benchmarks.placement_problems import GRAPHS, WIDE, chain, place, transformer
from benchmarks.planted_problems import FAMILIES, planted
from fxpasses.errors import PlacementError
from fxpasses.partitioners import PlacementProblem, PlacementSolution, solve_placement

SETTINGS: dict[str, dict[str, Any]] = {
    "equal": {},
    "equal, tight memory": {"memory": 1.2},
    "unequal": {"equal": False},
    "unequal, tight memory": {"equal": False, "memory": 1.3},
}


def problems(devices: int, budget: float | None = None) -> list[PlacementProblem]:
    """Every graph of 30 to 700 nodes in every setting."""
    options = {} if budget is None else {"time_budget": budget}
    return [place(make(), devices, **setting, **options) for make in GRAPHS.values() for setting in SETTINGS.values()]


def _certified(make: Callable[[], nx.DiGraph[Any]]) -> Callable[[int], Duel]:
    def duel(devices: int) -> Duel:
        posed = [place(make(), devices, time_budget=5, **setting) for setting in SETTINGS.values()]

        def check(found: list[PlacementSolution], _peer: Any) -> None:
            assert all(solution.is_optimal for solution in found)

        return Duel(lambda: [solve_placement(problem) for problem in posed], None, check)

    return duel


for _name, _make in {**GRAPHS, **WIDE}.items():
    case(f"prove the best pipeline, 4 settings: {_name}", sizes=(4, 8), rounds=1)(_certified(_make))


@case("place by default: every graph and setting (size: devices)", sizes=(4, 8), rounds=1)
def place_by_default(devices: int) -> Duel:
    """Forty problems one after the other; each within 0.3 % of the proven best."""

    def check(found: list[PlacementSolution], _peer: Any) -> None:
        open_ones = [index for index, solution in enumerate(found) if not solution.is_optimal]
        best = problems(devices, 5)
        off = [found[index].objective_value / solve_placement(best[index]).objective_value - 1 for index in open_ones]
        print(
            f"    {devices} devices: {len(found) - len(off)} of {len(found)} answers are proven to be the best, the "
            f"others are at most {max(off, default=0.0):.3%} above the best that five seconds find"
        )
        assert max(off, default=0.0) <= 0.003

    posed = problems(devices)
    return Duel(lambda: [solve_placement(problem) for problem in posed], None, check)


@case("place hidden answers in tight memory on 12 different devices (size: nodes)", sizes=(30, 60), rounds=1)
def place_planted(nodes: int) -> Duel:
    """Each device has at most a tenth more than the run that was hidden for it needs; nearly all are found."""
    posed = [planted(seed, family, nodes, 12) for family in FAMILIES for seed in range(1)]

    def check(found: list[PlacementSolution | None], _peer: Any) -> None:
        solved = len(found) - found.count(None)
        print(f"    {nodes} nodes: {solved} of {len(found)} problems have an answer")
        assert solved >= len(found) - 1

    return Duel(lambda: [_or_none(problem) for problem in posed], None, check)


def _or_none(problem: PlacementProblem) -> PlacementSolution | None:
    try:
        return solve_placement(problem)
    except PlacementError:
        return None


@case("place a chain of blocks on 64 devices", sizes=(1_000, 10_000, 100_000), rounds=2)
def place_long_chain(size: int) -> Duel:
    """The busiest device has at most 0.5 % more than its share of the work where the nodes are fine enough: 100,000."""
    problem = place(chain(size), 64)

    def check(solution: PlacementSolution, _peer: Any) -> None:
        assert solution.gap < (0.005 if size == 100_000 else 0.2)

    return Duel(lambda: solve_placement(problem), None, check)


@case("place a chain of blocks on 64 devices, each with its own memory", sizes=(1_000, 10_000, 100_000), rounds=2)
def place_long_chain_unequally(size: int) -> Duel:
    """All have 1.15 times the memory together that is needed, the largest three times that of the smallest.

    Small devices are full, and what is left is shared evenly by the others: for 100,000 nodes within 0.5 %.
    """
    problem = place(chain(size), 64, memory=1.15)
    shares = np.linspace(0.5, 1.5, 64).tolist()
    sizes = [int(device.memory * share) for device, share in zip(problem.devices, shares, strict=True)]
    devices = [attrs.evolve(each, available_mem_bytes=size) for each, size in zip(problem.devices, sizes, strict=True)]
    work = sum(seconds for _node, seconds in problem.graph.nodes(data="seconds"))
    rate = work / sum(kept for _node, kept in problem.graph.nodes(data="kept_bytes"))
    full = rate * np.array(sizes)
    left = (work - np.append(0.0, np.cumsum(full)[:-1])) / np.arange(len(full), 0, -1)  # for each of those not yet full
    level = left[np.argmax(left <= full)]

    def check(solution: PlacementSolution, _peer: Any) -> None:
        print(f"    {size} nodes: {solution.objective_value / level - 1:.2%} above what bytes leave to each device")
        assert solution.objective_value < level * (1.005 if size == 100_000 else 1.2)

    return Duel(lambda: solve_placement(attrs.evolve(problem, devices=devices)), None, check)


@case("place the operators of a transformer on 16 devices", sizes=(1_000, 10_000, 100_000), rounds=2)
def place_long_transformer(size: int) -> Duel:
    """Operators that differ by three orders of magnitude."""
    problem = place(transformer(size // 23), 16)

    def check(solution: PlacementSolution, _peer: Any) -> None:
        assert solution.gap < (0.2 if size < 10_000 else 0.03)

    return Duel(lambda: solve_placement(problem), None, check)


def main() -> None:
    """Print CPU seconds of each problem: by default, how far that is from the proven best, until the proof."""
    for name, make in {**GRAPHS, **WIDE}.items():
        graph = make()
        for count in (4, 8):
            for setting, options in SETTINGS.items():
                quick, first = _timed(place(graph, count, **options))
                proof, best = _timed(place(graph, count, time_budget=5, **options))
                off = first.objective_value / best.objective_value - 1
                print(
                    f"{name:33} {len(graph):4} nodes, {count} devices, {setting:22}: {quick:5.2f} s, off {off:7.3%}; "
                    f"{proof:5.2f} s, gap {best.gap:.3%}",
                    flush=True,
                )


def _timed(problem: PlacementProblem) -> tuple[float, PlacementSolution]:
    begin = time.process_time()
    solution = solve_placement(problem)
    return time.process_time() - begin, solution


if __name__ == "__main__":
    main()
