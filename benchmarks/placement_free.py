"""Free placement and latency beside plain simulated annealing, one move at a time, that starts from nothing.

The annealing shares no code with the solvers: it counts transfers its own way, and knows no pipelines, clusters or
norms. ``REFERENCE_MOVES`` in the environment makes it as long as wanted (an hour is about 300 million moves here);
``python -m benchmarks.placement_free`` prints how far the solvers are from it.
"""

from __future__ import annotations

import math
import os
import random
import sys
import time
from collections.abc import Hashable
from typing import Any

import attrs

from benchmarks.harness import Duel, case
from benchmarks.placement_problems import convolutional, inception, place, recurrent, transformer
from fxpasses.devices import Topology
from fxpasses.partitioners import PlacementProblem, PlacementSolution, solve_placement

MOVES = int(os.environ.get("REFERENCE_MOVES", "300000"))
NORM = 12


class Annealing:
    """Loads and bytes of one assignment, kept up to date move by move."""

    def __init__(self, problem: PlacementProblem, seed: int) -> None:
        graph, self.draw = problem.graph, random.Random(seed)
        self.names = [device.name for device in problem.devices]
        index = {node: place for place, node in enumerate(graph)}
        kinds = range(len(self.names))
        facts = [graph.nodes[node] for node in graph]
        self.seconds = [[_seconds(fact, name) for name in self.names] for fact in facts]
        self.kept = [fact.get("kept_bytes", 0) + sum(fact.get("shared_bytes", {}).values()) for fact in facts]
        self.memory = [device.memory - max(fact.get("live_bytes", 0) for fact in facts) for device in problem.devices]
        self.users = [[index[user] for user in graph.successors(node)] for node in graph]
        self.makers = [[index[maker] for maker in graph.predecessors(node)] for node in graph]
        topology = Topology.of(problem.devices, problem.links)
        links = {(a, b): topology.link(self.names[a], self.names[b]) for a in kinds for b in kinds if a != b}
        self.send = [
            [[links[a, b].seconds(fact["output_bytes"]) if a != b else 0.0 for b in kinds] for a in kinds]
            for fact in facts
        ]
        self.home = [self.draw.choice(list(kinds)) for _ in facts]
        self.count = [[0] * len(self.names) for _ in facts]
        for node, users in enumerate(self.users):
            for user in users:
                self.count[node][self.home[user]] += 1
        self.load, self.bytes = [0.0] * len(self.names), [0.0] * len(self.names)
        for node, home in enumerate(self.home):
            self.load[home] += self.seconds[node][home]
            self.bytes[home] += self.kept[node]
            self._charge(node, 1)

    def _charge(self, node: int, sign: int) -> None:
        home, slowest = self.home[node], 0.0
        for device, users in enumerate(self.count[node]):
            if users and device != home:
                taken = self.send[node][home][device]
                self.load[device] += sign * taken
                slowest = max(slowest, taken)
        self.load[home] += sign * slowest

    def move(self, node: int, target: int) -> None:
        """Put a node elsewhere."""
        home = self.home[node]
        for touched in (node, *self.makers[node]):
            self._charge(touched, -1)
        for maker in self.makers[node]:
            self.count[maker][home] -= 1
            self.count[maker][target] += 1
        self.home[node] = target
        for touched in (node, *self.makers[node]):
            self._charge(touched, 1)
        self.load[home] -= self.seconds[node][home]
        self.load[target] += self.seconds[node][target]
        self.bytes[home] -= self.kept[node]
        self.bytes[target] += self.kept[node]

    def energy(self, scale: float) -> float:
        """A norm of the loads, and what passes the budgets."""
        over = sum(max(0.0, need / has - 1) for need, has in zip(self.bytes, self.memory, strict=True))
        return float(sum((load / scale) ** NORM for load in self.load)) ** (1 / NORM) + over

    def run(self, moves: int, *, hot: float = 0.1, cold: float = 0.0005) -> float:
        """The smallest largest load that was seen."""
        scale = sum(map(min, self.seconds)) / len(self.names)
        now, best = self.energy(scale), math.inf
        for step in range(moves):
            temperature = hot * (cold / hot) ** (step / moves)
            node, target = self.draw.randrange(len(self.home)), self.draw.randrange(len(self.names))
            home = self.home[node]
            if target == home or math.isinf(self.seconds[node][target]):
                continue
            self.move(node, target)
            energy = self.energy(scale)
            if energy <= now or self.draw.random() < math.exp((now - energy) / temperature):
                now = energy
                if max(self.load) < best and all(n <= m for n, m in zip(self.bytes, self.memory, strict=True)):
                    best = max(self.load)
            else:
                self.move(node, home)
        return best


def _seconds(facts: dict[str, Any], name: str) -> float:
    seconds = facts["seconds"]
    return float(seconds[name] if isinstance(seconds, dict) else seconds)


PROBLEMS = {
    "transformer, operators": lambda: place(transformer(4), 4, contiguity="free"),
    "transformer, unequal, tight": lambda: place(transformer(8), 6, equal=False, memory=1.3, contiguity="free"),
    "residual net": lambda: place(convolutional(), 4, contiguity="free"),
    "recurrent": lambda: place(recurrent(4, 20), 4, contiguity="free"),
    "inception": lambda: place(inception(4), 6, contiguity="free"),
}


def _within(share: float) -> Any:
    def check(ours: PlacementSolution, reference: float | None) -> None:
        assert reference is None or ours.objective_value <= reference * (1 + share), (ours.objective_value, reference)

    return check


@case("free placement of a transformer, beside annealing", sizes=(1, 4), promise=1, rounds=1)
def free_transformer(layers: int) -> Duel:
    problem = place(transformer(layers), 4, contiguity="free", time_budget=1.0)
    return Duel(lambda: solve_placement(problem), lambda: Annealing(problem, 0).run(MOVES), _within(0.01))


@case("free placement of a recurrent net, beside annealing", sizes=(6, 20), promise=1, rounds=1)
def free_recurrent(steps: int) -> Duel:
    problem = place(recurrent(4, steps), 4, contiguity="free", time_budget=1.0)
    return Duel(lambda: solve_placement(problem), lambda: Annealing(problem, 0).run(MOVES), _within(0.01))


@case("latency of a recurrent net", sizes=(6, 20, 60), rounds=1)
def latency_recurrent(steps: int) -> Duel:
    problem = place(recurrent(4, steps), 4, objective="latency", contiguity="free", time_budget=2.0)

    def check(ours: PlacementSolution, _reference: object) -> None:
        starts: dict[Hashable, float] = dict(ours.schedule)
        assert all(starts[before] <= starts[after] for before, after in problem.graph.edges)
        assert ours.bound <= ours.objective_value

    return Duel(lambda: solve_placement(problem), None, check)


def main() -> None:
    """Print solvers and reference for each problem, or for those whose names hold the argument."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for name, make in PROBLEMS.items():
        if wanted not in name:
            continue
        problem = make()
        line = f"{name:30s} {len(problem.graph):4d} nodes"
        for budget in (2.0, 20.0):
            begin = time.process_time()
            solution = solve_placement(attrs.evolve(problem, time_budget=budget))
            line += f" | {budget:g} s: {solution.objective_value:.6g} ({time.process_time() - begin:.1f} s)"
        begin = time.process_time()
        reference = min(Annealing(problem, seed).run(MOVES // 2) for seed in range(2))
        print(f"{line} | annealing: {reference:.6g} ({time.process_time() - begin:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
