"""Run ours and the peer interleaved in one process on identical inputs, check both results, print ratios.

A case is a function that makes, for one size, two thunks and a check::

    @case("partition a random DAG", sizes=(1_000, 3_000), promise=1000)
    def partition_random_dag(size: int) -> Duel:
        graph = random_dag(size)
        return Duel(ours=lambda: propose(graph), peer=lambda: torch_propose(graph), check=same_cover)

Times are medians of interleaved rounds, so that a slow moment of the machine hits both sides. Peak memory is what
Python and numpy allocate during one extra run of ours. The growth exponent is the slope of log(time) over log(size):
1 is linear.
"""

from __future__ import annotations

import gc
import json
import math
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs

__all__ = ["CASES", "Case", "Duel", "Row", "case", "run_cases"]


@attrs.frozen
class Duel:
    """One size of a case.

    Args:
        ours: What this package does; called again for each round.
        peer: What the peer does with the same input; None where there is no peer.
        check: Asserts on ``(our result, the peer's result or None)`` that both are right; required.
        prepare: Called before each single run, untimed; its result is passed to ``ours`` and ``peer`` if given.
        peer_rounds: Rounds of the peer, where it is slow; 0 means as many as ours.
    """

    ours: Callable[..., Any]
    peer: Callable[..., Any] | None
    check: Callable[[Any, Any], None]
    prepare: Callable[[], Any] | None = None
    peer_rounds: int = 0


@attrs.frozen
class Case:
    """A named family of duels, with the ratio that is promised at the largest size that has a peer."""

    name: str
    make: Callable[[int], Duel]
    sizes: tuple[int, ...]
    promise: float | None
    rounds: int


@attrs.frozen
class Row:
    """What was measured for one size."""

    case: str
    size: int
    ours_seconds: float
    peer_seconds: float | None
    ratio: float | None
    promise: float | None
    peak_mib: float
    exponent: float | None

    @property
    def kept(self) -> bool | None:
        """Whether the promise holds; None where nothing is promised or there is no peer."""
        return None if self.promise is None or self.ratio is None else self.ratio >= self.promise


CASES: list[Case] = []


def case(
    name: str, *, sizes: Sequence[int], promise: float | None = None, rounds: int = 5
) -> Callable[[Callable[[int], Duel]], Callable[[int], Duel]]:
    """Register a case; ``promise`` is the least ratio peer/ours."""

    def register(make: Callable[[int], Duel]) -> Callable[[int], Duel]:
        CASES.append(Case(name, make, tuple(sizes), promise, rounds))
        return make

    return register


def _timed(run: Callable[..., Any], prepare: Callable[[], Any] | None) -> tuple[float, Any]:
    given = () if prepare is None else (prepare(),)
    gc.collect()
    begin = time.perf_counter()
    result = run(*given)
    return time.perf_counter() - begin, result


def _measure(duel: Duel, rounds: int) -> tuple[float, float | None, float]:
    ours: list[float] = []
    peer: list[float] = []
    peer_rounds = duel.peer_rounds or rounds
    for index in range(rounds):
        seconds, mine = _timed(duel.ours, duel.prepare)
        ours.append(seconds)
        theirs = None
        if duel.peer is not None and index < peer_rounds:
            seconds, theirs = _timed(duel.peer, duel.prepare)
            peer.append(seconds)
        if index == 0:
            duel.check(mine, theirs)
        del mine, theirs
    tracemalloc.start()
    _timed(duel.ours, duel.prepare)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return statistics.median(ours), statistics.median(peer) if peer else None, peak


def run_cases(cases: Iterable[Case], *, quick: bool = False, report: Callable[[Row], None] | None = None) -> list[Row]:
    """Run cases and give a row per size.

    Args:
        cases: What to run.
        quick: Only the smallest size of each, one round.
        report: Called with each row as soon as its case is done.
    """
    rows: list[Row] = []
    for each in cases:
        first: tuple[int, float] | None = None
        measured: list[Row] = []
        for size in each.sizes[:1] if quick else each.sizes:
            ours, peer, peak = _measure(each.make(size), 1 if quick else each.rounds)
            exponent = None
            if first is not None and size != first[0]:
                exponent = math.log(ours / first[1]) / math.log(size / first[0])
            first = first or (size, ours)
            ratio = None if peer is None else peer / ours
            measured.append(Row(each.name, size, ours, peer, ratio, None, peak, exponent))
        rows += _with_promise(measured, each.promise)
        for row in rows[len(rows) - len(measured) :]:
            if report is not None:
                report(row)
    return rows


def _with_promise(rows: Sequence[Row], promise: float | None) -> list[Row]:
    """A ratio is promised for the largest size that the peer was measured at."""
    largest = max((row.size for row in rows if row.ratio is not None), default=None)
    return [attrs.evolve(row, promise=promise) if row.size == largest else row for row in rows]


def save_rows(rows: Sequence[Row], path: Path) -> None:
    """Write the rows as JSON, with what they were measured with."""
    import platform

    import torch

    facts = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
    path.write_text(json.dumps({"with": facts, "rows": [attrs.asdict(row) for row in rows]}, indent=2) + "\n")
