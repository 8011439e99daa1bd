"""Cut a chain of operators into runs and give each run a device: dynamic programs over the cuts, in numpy.

No torch here: the chain is arrays. Two programs, both over a thinned list of candidate cuts:

* *one run a device*: for each order of the devices, ``best[d][j]`` over where device ``d`` stops; the span of ``d`` is
  limited by its memory (Narayanan et al., "PipeDream", SOSP 2019, section 3.1, without replication);
* *any number of runs*: ``best[j][d]`` over the device of the last segment, where each device's memory has a price that
  a subgradient method finds (Fisher, "The Lagrangian relaxation method", Management Science 27(1), 1981).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

__all__ = ["ChainProblem", "ChainSolution", "Run", "solve_chain"]

Floats = NDArray[np.float64]

MAX_CANDIDATES = 1200
MAX_DEVICE_ORDERS = 120
PRICE_ROUNDS = 60
DEVICE_PRICE = 1e6
"""Seconds that using one more device counts as when the objective is ``memory``: more than any run takes."""


@attrs.frozen
class Run:
    """The nodes ``start`` to ``stop`` (exclusive) on one device, by its position in the problem."""

    device: int
    start: int
    stop: int


@attrs.frozen(eq=False)
class ChainProblem:
    """A chain of ``n`` operators and ``k`` devices.

    Args:
        seconds: Seconds of each operator on each device, ``(k, n)``.
        allowed: Whether a device can run an operator, ``(k, n)``.
        constants: For each operator, the bytes of each constant it uses, by the constant's id.
        live: Bytes of activations alive while each operator runs, ``(n,)``.
        crossing: Bytes that a cut right before each operator sends, ``(n,)``.
        glued: Whether a cut right before an operator is forbidden, ``(n,)``.
        memory: The budget of each device in bytes; ``inf`` for none.
        transfer: Latency in seconds and seconds per byte between each pair of devices.
        objective: ``latency``, ``throughput`` or ``memory``.
    """

    seconds: Floats
    allowed: NDArray[np.bool_]
    constants: Sequence[Mapping[int, int]]
    live: NDArray[np.int64]
    crossing: NDArray[np.int64]
    glued: NDArray[np.bool_]
    memory: Sequence[float]
    transfer: Sequence[Sequence[tuple[float, float]]]
    objective: str

    @property
    def size(self) -> int:
        """The number of operators."""
        return len(self.live)


@attrs.frozen
class ChainSolution:
    """Runs in execution order, with the predicted seconds of one sample and the busy seconds of each device."""

    runs: tuple[Run, ...]
    seconds: float
    load: tuple[float, ...]


def candidate_cuts(problem: ChainProblem) -> NDArray[np.int64]:
    """Positions where a cut is worth a thought: legal, spread over the work, cheapest in their neighbourhood."""
    legal = np.flatnonzero(~problem.glued[1:]) + 1 if problem.size > 1 else np.zeros(0, dtype=np.int64)
    if legal.size > MAX_CANDIDATES:
        weight = problem.seconds.min(axis=0) + 1e-12
        held = np.fromiter((sum(uses.values()) for uses in problem.constants), dtype=np.float64, count=problem.size)
        progress = np.cumsum(weight / weight.sum() + (held + 1) / (held + 1).sum())
        bucket = np.floor(progress[legal] / progress[-1] * MAX_CANDIDATES).astype(np.int64)
        order = np.lexsort((legal, problem.crossing[legal], bucket))
        first = np.unique(bucket[order], return_index=True)[1]
        legal = np.sort(legal[order[first]])
    return np.concatenate([[0], legal, [problem.size]]).astype(np.int64)


@attrs.frozen(eq=False)
class _Segments:
    """The chain between candidate cuts: ``m`` segments, prefix sums, and the memory of every span of segments."""

    problem: ChainProblem
    cuts: NDArray[np.int64]
    seconds: Floats  # (k, m + 1) prefix sums
    banned: NDArray[np.int64]  # (k, m + 1) prefix counts of operators a device cannot run
    crossing: NDArray[np.int64]  # (m + 1,) bytes sent by each cut; 0 at both ends

    @classmethod
    def of(cls, problem: ChainProblem) -> _Segments:
        cuts = candidate_cuts(problem)

        def prefix(values: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.float64]:
            padded = np.concatenate([np.zeros((values.shape[0], 1)), np.cumsum(values, axis=1)], axis=1)
            return padded[:, cuts]

        crossing = np.concatenate([problem.crossing, [0]])[cuts]
        crossing[0] = 0
        return cls(
            problem,
            cuts,
            prefix(np.where(problem.allowed, problem.seconds, 0.0)),
            prefix((~problem.allowed).astype(np.int64)).astype(np.int64),
            crossing,
        )

    @property
    def count(self) -> int:
        return len(self.cuts) - 1

    def span_bytes(self) -> Iterator[Floats]:
        """For each first segment the bytes of the spans that start there: constants once, plus the live peak."""
        uses: list[list[tuple[int, int]]] = []  # per segment: (constant, bytes), each constant once
        for start, stop in itertools.pairwise(self.cuts.tolist()):
            merged: dict[int, int] = {}
            for constants in self.problem.constants[start:stop]:
                merged.update(constants)
            uses.append(list(merged.items()))
        peak = np.array([self.problem.live[a:b].max() for a, b in itertools.pairwise(self.cuts.tolist())], dtype=float)
        added = np.zeros(self.count)
        for segment, held in enumerate(uses):
            added[segment] = sum(size for _constant, size in held)
        next_use = _following_uses(uses)
        seen: set[int] = set()
        for held in uses:  # uses of a constant after its first in this span cost nothing
            for constant, size in held:
                if constant not in seen:
                    seen.add(constant)
                    for later in next_use[constant][1:]:
                        added[later] -= size
        for first in range(self.count):
            yield np.cumsum(added[first:]) + np.maximum.accumulate(peak[first:])
            for constant, size in uses[first]:
                next_use[constant].pop(0)
                if next_use[constant]:
                    added[next_use[constant][0]] += size


def _following_uses(uses: Sequence[Sequence[tuple[int, int]]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for segment, held in enumerate(uses):
        for constant, _size in held:
            found.setdefault(constant, []).append(segment)
    return found


def solve_chain(problem: ChainProblem) -> ChainSolution | None:
    """Find runs that keep every budget and make the objective small.

    Args:
        problem: The chain and the devices.

    Returns:
        The best found, or None if no cut keeps every budget. One run a device is solved exactly over the candidate
        cuts and device orders tried; several runs a device are a heuristic.
    """
    if problem.size == 0:
        return ChainSolution((), 0.0, tuple(0.0 for _ in problem.memory))
    segments = _Segments.of(problem)
    spans = list(segments.span_bytes())
    found = _one_run_each(segments, spans)
    if found is None or not problem.allowed.all():
        other = _any_runs(segments, spans)
        found = _better(problem, found, other)
    return found


def _better(problem: ChainProblem, one: ChainSolution | None, other: ChainSolution | None) -> ChainSolution | None:
    if one is None or other is None:
        return one or other
    return min(one, other, key=lambda solution: _value(problem, solution))


def _value(problem: ChainProblem, solution: ChainSolution) -> tuple[float, float]:
    if problem.objective == "throughput":
        return max(solution.load), solution.seconds
    if problem.objective == "memory":
        return float(len({run.device for run in solution.runs})), solution.seconds
    return solution.seconds, max(solution.load)


def _orders(problem: ChainProblem) -> Iterator[tuple[int, ...]]:
    """Orders in which the devices may follow each other: all of a few, else the given one, by memory, by speed."""
    devices = range(len(problem.memory))
    every = itertools.permutations(devices)
    total = problem.seconds.sum(axis=1)
    rules = (
        tuple(devices),
        tuple(sorted(devices, key=lambda device: (-problem.memory[device], device))),
        tuple(sorted(devices, key=lambda device: (total[device], device))),
    )
    yield from dict.fromkeys((*rules, *(itertools.islice(every, MAX_DEVICE_ORDERS) if len(devices) <= 5 else ())))


def _one_run_each(segments: _Segments, spans: Sequence[Floats]) -> ChainSolution | None:
    problem = segments.problem
    reach = [_reach(segments, spans, device) for device in range(len(problem.memory))]
    best: ChainSolution | None = None
    for order in _orders(problem):
        stops = _dynamic_program(segments, reach, order)
        if stops is not None:
            best = _better(problem, best, _evaluate(segments, _runs(segments, order, stops)))
    return best


def _reach(segments: _Segments, spans: Sequence[Floats], device: int) -> NDArray[np.int64]:
    """For each first cut the last cut that one run of ``device`` can end at, by memory and capability."""
    count = segments.count
    reach = np.arange(count + 1)
    banned = segments.banned[device]
    for first in range(count):
        fits = int(np.searchsorted(spans[first], segments.problem.memory[device], side="right"))
        able = int(np.searchsorted(banned, banned[first], side="right")) - 1
        reach[first] = max(first, min(first + fits, able))
    return reach


def _dynamic_program(segments: _Segments, reach: Sequence[NDArray[np.int64]], order: Sequence[int]) -> list[int] | None:
    """Where each device of ``order`` stops, or None. Time O(k m²) in numpy rows, memory O(k m)."""
    count = segments.count
    best = np.full(count + 1, np.inf)
    best[0] = 0.0
    origins: list[NDArray[np.int64]] = []
    for rank, device in enumerate(order):
        after = best.copy()  # an empty run: the device is left out
        origin = np.arange(count + 1)
        for first in np.flatnonzero(np.isfinite(best)).tolist():
            stop = int(reach[device][first])
            if stop == first:
                continue
            value = _extended(segments, best[first], device, order, rank, first, stop)
            target = after[first + 1 : stop + 1]
            better = value < target - 1e-15
            target[better] = value[better]
            origin[first + 1 : stop + 1][better] = first
        best = after
        origins.append(origin)
    if not np.isfinite(best[count]):
        return None
    stops, at = [0] * len(order), count
    for rank in range(len(order) - 1, -1, -1):
        stops[rank] = at
        at = int(origins[rank][at])
    return stops


def _extended(
    segments: _Segments, so_far: float, device: int, order: Sequence[int], rank: int, first: int, stop: int
) -> Floats:
    """The objective after ``device`` ran the segments from ``first`` to each cut up to ``stop``."""
    problem = segments.problem
    busy: Floats = segments.seconds[device][first + 1 : stop + 1] - segments.seconds[device][first]
    received = _sending(problem, order[rank - 1], device, segments.crossing[first]) if first and rank else 0.0
    if problem.objective == "throughput":
        neighbour = order[min(rank + 1, len(order) - 1)]
        latency, per_byte = problem.transfer[device][neighbour]
        sent = np.where(segments.crossing[first + 1 : stop + 1] > 0, latency, 0.0)
        sent = sent + segments.crossing[first + 1 : stop + 1] * per_byte
        busiest: Floats = np.maximum(so_far, busy + received + sent)
        return busiest
    step: Floats = so_far + busy + received
    return step + DEVICE_PRICE if problem.objective == "memory" else step


def _sending(problem: ChainProblem, source: int, target: int, size: float) -> float:
    latency, per_byte = problem.transfer[source][target]
    return latency + size * per_byte if size else 0.0


def _runs(segments: _Segments, order: Sequence[int], stops: Sequence[int]) -> tuple[Run, ...]:
    runs, at = [], 0
    for device, stop in zip(order, stops, strict=True):
        if stop > at:
            runs.append(Run(device, int(segments.cuts[at]), int(segments.cuts[stop])))
            at = stop
    return tuple(runs)


def _evaluate(segments: _Segments, runs: Sequence[Run]) -> ChainSolution:
    """Predict seconds and loads of runs: transfers happen where the device changes."""
    problem = segments.problem
    load = [0.0] * len(problem.memory)
    total = 0.0
    for index, run in enumerate(runs):
        busy = float(problem.seconds[run.device, run.start : run.stop].sum())
        if index and runs[index - 1].device != run.device:
            sent = _sending(problem, runs[index - 1].device, run.device, float(problem.crossing[run.start]))
            load[runs[index - 1].device] += sent
            busy += sent
        load[run.device] += busy
        total += busy
    return ChainSolution(tuple(runs), total, tuple(load))


def _any_runs(segments: _Segments, spans: Sequence[Floats]) -> ChainSolution | None:
    """Any number of runs a device; memory has a price that rises where a budget is passed."""
    problem = segments.problem
    held = np.array([row[0] for row in spans])
    memory = np.array(problem.memory)
    price = np.zeros(len(memory))
    scale = float(segments.seconds[:, -1].max() + 1e-9) / max(float(held.sum()), 1.0)
    best: ChainSolution | None = None
    for round_ in range(PRICE_ROUNDS):
        devices = _cheapest_devices(segments, held, price)
        if devices is None:
            return best
        used = np.array([_bytes_on(segments, devices, device) for device in range(len(memory))])
        if (used <= memory).all():
            best = _better(problem, best, _evaluate(segments, _joined(segments, devices)))
            price *= 0.7
        else:
            over = np.where(np.isfinite(memory), (used - memory) / np.maximum(memory, 1.0), -1.0)
            price = np.maximum(0.0, price + scale * np.clip(over, -0.1, 1.0) * (2.0 / (1 + round_ / 8)))
    return best


def _cheapest_devices(segments: _Segments, held: Floats, price: Floats) -> list[int] | None:
    """The device of each segment: a shortest path over (segment, device). Time O(m k²)."""
    problem = segments.problem
    count, kinds = segments.count, len(problem.memory)
    latency = np.array([[pair[0] for pair in row] for row in problem.transfer])
    per_byte = np.array([[pair[1] for pair in row] for row in problem.transfer])
    step = np.diff(segments.seconds, axis=1) + price[:, None] * held[None, :]
    step = np.where(np.diff(segments.banned, axis=1) > 0, np.inf, step)
    best = step[:, 0].copy()
    origin = np.zeros((count, kinds), dtype=np.int64)
    for segment in range(1, count):
        size = float(segments.crossing[segment])
        moved = best[:, None] + (latency + per_byte * size if size else 0.0)
        origin[segment] = moved.argmin(axis=0)
        best = moved.min(axis=0) + step[:, segment]
    if not np.isfinite(best.min()):
        return None
    devices = [int(best.argmin())]
    for segment in range(count - 1, 0, -1):
        devices.append(int(origin[segment][devices[-1]]))
    return devices[::-1]


def _bytes_on(segments: _Segments, devices: Sequence[int], device: int) -> float:
    constants: dict[int, int] = {}
    peak = 0.0
    for segment, owner in enumerate(devices):
        if owner == device:
            start, stop = segments.cuts[segment], segments.cuts[segment + 1]
            for uses in segments.problem.constants[start:stop]:
                constants.update(uses)
            peak = max(peak, float(segments.problem.live[start:stop].max()))
    return sum(constants.values()) + peak


def _joined(segments: _Segments, devices: Sequence[int]) -> tuple[Run, ...]:
    runs: list[Run] = []
    for segment, device in enumerate(devices):
        start, stop = int(segments.cuts[segment]), int(segments.cuts[segment + 1])
        if runs and runs[-1].device == device:
            runs[-1] = Run(device, runs[-1].start, stop)
        else:
            runs.append(Run(device, start, stop))
    return tuple(runs)
