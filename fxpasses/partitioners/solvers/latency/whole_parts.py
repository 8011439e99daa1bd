"""Anneal pipelines for one sample whose parts run as wholes: each begins once all that it takes is there.

A device has one part, and what that makes leaves when it ends. So a sample takes as long as the longest path through
the parts, where what goes over one link adds up. Parameters that several parts use are sent from the beginning, by the
first part that uses them. Moves are of a unit, of a unit with all that follows it in its part or leads to it (another
cut), and of two devices that change places.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator, Sequence

import numpy as np

from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import CostTables

__all__ = ["anneal_parts"]

STEPS_A_SECOND = 150_000
"""How many units are moved in a second, or proposed to be."""
MOST_STEPS = 8_000
"""Steps for each unit; more find nothing else in small graphs."""
PROPOSAL = 3
"""What a proposal takes besides."""
ROUNDS = ((0.5, 0.02), (0.5, 0.02), (0.03, 0.0005))
"""The first temperature and the last of each round, as shares of what its start takes; large graphs get one round."""
SINGLE, CUT = 0.5, 0.95
"""Below these chances a move takes one unit, or cuts a part elsewhere; else two devices change places."""

Parameter = tuple[Sequence[int], float]
"""The units that use it, and its bytes."""


def anneal_parts(
    units: Units,
    tables: CostTables,
    starts: Sequence[Sequence[int]],
    *,
    parameters: Sequence[Parameter] = (),
    time_budget: float,
    seed: int = 0,
) -> list[int]:
    """The best pipeline seen from some starts, and whatever is as good as these.

    Args:
        units: The problem, reduced for pipelines.
        tables: The costs.
        starts: The device of each unit; at least one start.
        parameters: What is there from the beginning, and used by several units.
        time_budget: About how many seconds for all starts.
        seed: For what is drawn.
    """
    draw, model = random.Random(seed), LoadModel.of(units, tables)
    steps, most = STEPS_A_SECOND * time_budget, MOST_STEPS * units.size
    rounds = ROUNDS if steps >= most else ROUNDS[-1:]  # what is hot needs time to cool
    share = min(steps, most) / (len(starts) * len(rounds))
    found = [list(start) for start in starts]
    for hot, cold in rounds:
        last = found[-len(starts) :]
        found += [_annealed(_Parts(units, tables, home, parameters), model, draw, share, hot, cold) for home in last]
    return min(found, key=lambda home: _value(_Parts(units, tables, home, parameters), model))


def _annealed(parts: _Parts, model: LoadModel, draw: random.Random, steps: float, hot: float, cold: float) -> list[int]:
    """The best on the way; the start, if nothing better comes."""
    value = best = _value(parts, model)
    found, taken = list(parts.home), 0.0
    scale = value if math.isfinite(value) else float(model.weight.max(axis=1).sum())
    while taken < steps:
        temperature = scale * hot * (cold / hot) ** (taken / steps)
        moves = _proposed(parts, draw)
        back = [(unit, parts.home[unit]) for unit, _target in moves]
        taken += PROPOSAL + 2 * len(moves)
        if not moves or any(math.isinf(parts.seconds[unit][target]) for unit, target in moves):
            continue
        for unit, target in moves:
            parts.move(unit, target)
        other = parts.value()
        if other > value - temperature * math.log(1.0 - draw.random()) or not _fits(parts, model):
            for unit, here in back:
                parts.move(unit, here)
            continue
        value = other
        if value < best * (1 - 1e-9):
            best, found = value, list(parts.home)
    return found


def _value(parts: _Parts, model: LoadModel) -> float:
    return parts.value() if _fits(parts, model) else math.inf


def _fits(parts: _Parts, model: LoadModel) -> bool:
    return bool(model.legal(np.array([parts.home]))[0])


def _proposed(parts: _Parts, draw: random.Random) -> list[tuple[int, int]]:
    """Some units, and where each may go; nothing where it would stay."""
    unit, kind, devices = draw.randrange(len(parts.home)), draw.random(), len(parts.busy)
    if kind >= CUT:
        here, there = parts.home[unit], draw.randrange(devices)
        swap = {here: there, there: here}
        return [(each, swap[home]) for each, home in enumerate(parts.home) if home in swap] if here != there else []
    beside = parts.neighbours[unit]
    target = parts.home[draw.choice(beside)] if beside and draw.random() < 0.5 else draw.randrange(devices)
    if target == parts.home[unit]:
        return []
    if kind < SINGLE:
        return [(unit, target)]
    units = parts.units
    return [(each, target) for each in parts.same(unit, draw.choice((units.successors, units.predecessors)))]


class _Parts:
    """Units on devices, and what crosses between these, kept up to date move by move."""

    def __init__(self, units: Units, tables: CostTables, home: Sequence[int], parameters: Sequence[Parameter]) -> None:
        devices = len(tables.memory)
        self.units, self.home = units, list(home)
        self.seconds: list[list[float]] = units.seconds.tolist()
        self.latency, self.per_byte = tables.latency.tolist(), tables.per_byte.tolist()
        self.parameters = parameters
        self.sizes = [_size(tables, list(makers)) for makers in units.makers]
        self.source: list[int] = units.source.tolist()
        self.neighbours = [[*one, *other] for one, other in zip(units.predecessors, units.successors, strict=True)]
        self.values = [tuple(dict.fromkeys((*one, *other))) for one, other in zip(units.used, units.made, strict=True)]
        self.users: list[dict[int, int]] = [{} for _ in self.source]
        self.busy = [0.0] * devices
        self.count = [0] * devices
        self.arcs: list[dict[int, int]] = [{} for _ in range(devices)]
        self.sent = [[0.0] * devices for _ in range(devices)]
        for unit, device in enumerate(self.home):
            self.busy[device] += self.seconds[unit][device]
            self.count[device] += 1
            for after in units.successors[unit]:
                self._arc(device, self.home[after], 1)
            for value in units.used[unit]:
                self.users[value][device] = self.users[value].get(device, 0) + 1
        for value in range(len(self.source)):
            self._send(value, 1.0)

    def move(self, unit: int, target: int) -> None:
        """Put a unit on another device. Time for its neighbours, its values, and the devices that these go to."""
        here, units = self.home[unit], self.units
        for value in self.values[unit]:
            self._send(value, -1.0)
        for value in units.used[unit]:
            users = self.users[value]
            users[target] = users.get(target, 0) + 1
            users[here] -= 1
            if not users[here]:
                del users[here]
        for before in units.predecessors[unit]:
            self._arc(self.home[before], here, -1)
            self._arc(self.home[before], target, 1)
        for after in units.successors[unit]:
            self._arc(here, self.home[after], -1)
            self._arc(target, self.home[after], 1)
        self.home[unit] = target
        self.count[here] -= 1
        self.count[target] += 1
        self.busy[target] += self.seconds[unit][target]
        self.busy[here] = self.busy[here] - self.seconds[unit][here] if self.count[here] else 0.0
        for value in self.values[unit]:
            self._send(value, 1.0)

    def same(self, unit: int, further: Sequence[Sequence[int]]) -> Iterator[int]:
        """A unit, and what is reached from it in its part."""
        waiting, seen, home = [unit], {unit}, self.home[unit]
        while waiting:
            unit = waiting.pop()
            yield unit
            for other in further[unit]:
                if other not in seen and self.home[other] == home:
                    seen.add(other)
                    waiting.append(other)

    def value(self) -> float:
        """Seconds until the last part ends; infinite where parts wait for each other."""
        order = self._order()
        if len(order) < len(self.busy):
            return math.inf
        sent = self._parameters_sent(order) if self.parameters else {}
        begin, longest = [0.0] * len(self.busy), 0.0
        for (_source, target), seconds in sent.items():
            begin[target] = max(begin[target], seconds)
        for device in order:
            end = begin[device] + self.busy[device]
            longest = max(longest, end)
            for target in self.arcs[device]:
                arrival = max(end, sent.get((device, target), 0.0)) + self.sent[device][target]
                begin[target] = max(begin[target], arrival)
        return longest

    def _order(self) -> list[int]:
        """The devices as their parts run: of those that could be next the one that holds the first unit."""
        first = list(range(len(self.busy)))
        if self.parameters:  # only they see what is the first of two that do not wait for each other
            for unit in range(len(self.home) - 1, -1, -1):
                first[self.home[unit]] = unit
        missing = [0] * len(self.busy)
        for arcs in self.arcs:
            for target in arcs:
                missing[target] += 1
        ready = [(first[device], device) for device, count in enumerate(missing) if not count]
        heapq.heapify(ready)
        order = []
        while ready:
            device = heapq.heappop(ready)[1]
            order.append(device)
            for target in self.arcs[device]:
                missing[target] -= 1
                if not missing[target]:
                    heapq.heappush(ready, (first[target], target))
        return order

    def _parameters_sent(self, order: Sequence[int]) -> dict[tuple[int, int], float]:
        """Seconds that each link is busy with parameters from the beginning on."""
        sent: dict[tuple[int, int], float] = {}
        turn = {device: index for index, device in enumerate(order)}
        for users, size in self.parameters:
            source, *targets = sorted({self.home[unit] for unit in users}, key=turn.__getitem__)
            for target in targets:
                seconds = self.latency[source][target] + size * self.per_byte[source][target]
                sent[source, target] = sent.get((source, target), 0.0) + seconds
        return sent

    def _arc(self, source: int, target: int, change: int) -> None:
        if source == target:
            return
        arcs = self.arcs[source]
        arcs[target] = arcs.get(target, 0) + change
        if not arcs[target]:
            del arcs[target]

    def _send(self, value: int, sign: float) -> None:
        """Count a value on the links that it takes, or no longer."""
        source, (fixed, tensors, size) = self.home[self.source[value]], self.sizes[value]
        for target in self.users[value]:
            if target != source:
                latency, per_byte = self.latency[source][target], self.per_byte[source][target]
                self.sent[source][target] += sign * (fixed + tensors * latency + size * per_byte)


def _size(tables: CostTables, nodes: list[int]) -> tuple[float, int, float]:
    """Fixed seconds of some outputs, how many take a link, their bytes."""
    output = tables.output[nodes]
    return float(tables.fixed[nodes].sum()), int((output > 0).sum()), float(output.sum())
