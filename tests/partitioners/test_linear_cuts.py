"""Cutting a chain into runs: against brute force over all cuts and device orders."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fxpasses.partitioners.linear_cuts import ChainProblem, Run, solve_chain


def problem(
    seconds: list[list[float]],
    *,
    constants: list[dict[int, int]] | None = None,
    live: list[int] | None = None,
    crossing: list[int] | None = None,
    glued: list[bool] | None = None,
    memory: list[float] | None = None,
    objective: str = "latency",
    allowed: Any = None,
) -> ChainProblem:
    count, kinds = len(seconds[0]), len(seconds)
    transfer = [[(0.0, 0.0) if a == b else (0.5, 0.25) for b in range(kinds)] for a in range(kinds)]
    return ChainProblem(
        seconds=np.array(seconds, dtype=float),
        allowed=np.ones((kinds, count), dtype=bool) if allowed is None else np.array(allowed),
        constants=constants or [{index: 10} for index in range(count)],
        live=np.array(live or [0] * count),
        crossing=np.array(crossing or [1] * count),
        glued=np.array(glued or [False] * count),
        memory=memory or [float("inf")] * kinds,
        transfer=transfer,
        objective=objective,
    )


def every_solution(chain: ChainProblem) -> Iterator[list[Run]]:
    """All ways to give each device at most one run, budgets and glue kept."""
    count, kinds = chain.size, len(chain.memory)
    for used in range(1, min(kinds, count) + 1):
        for order in itertools.permutations(range(kinds), used):
            for cuts in itertools.combinations(range(1, count), used - 1):
                edges = [0, *cuts, count]
                runs = [Run(device, a, b) for device, (a, b) in zip(order, itertools.pairwise(edges), strict=True)]
                if not any(chain.glued[cut] for cut in cuts) and all(fits(chain, run) for run in runs):
                    yield runs


def fits(chain: ChainProblem, run: Run) -> bool:
    held: dict[int, int] = {}
    for uses in chain.constants[run.start : run.stop]:
        held.update(uses)
    need = sum(held.values()) + int(chain.live[run.start : run.stop].max())
    return need <= chain.memory[run.device] and bool(chain.allowed[run.device, run.start : run.stop].all())


def latency(chain: ChainProblem, runs: list[Run]) -> float:
    total = sum(float(chain.seconds[run.device, run.start : run.stop].sum()) for run in runs)
    for before, after in itertools.pairwise(runs):
        delay, per_byte = chain.transfer[before.device][after.device]
        total += delay + per_byte * float(chain.crossing[after.start])
    return total


@st.composite
def chains(draw: st.DrawFn) -> ChainProblem:
    count, kinds = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    small = st.integers(1, 9)
    names = st.integers(0, 4)
    return problem(
        [[draw(small) for _ in range(count)] for _ in range(kinds)],
        constants=[{name: 5 + name for name in draw(st.lists(names, max_size=2))} for _ in range(count)],
        live=[draw(small) for _ in range(count)],
        crossing=[draw(small) for _ in range(count)],
        glued=[False, *(draw(st.integers(0, 3)) == 0 for _ in range(count - 1))],
        memory=[draw(st.integers(5, 40)) for _ in range(kinds)],
    )


@settings(max_examples=200, deadline=None)
@given(chains())
def test_the_latency_of_one_run_a_device_is_the_smallest_there_is(chain: ChainProblem) -> None:
    best = min((latency(chain, runs) for runs in every_solution(chain)), default=None)

    solution = solve_chain(chain)

    if best is not None:
        assert solution is not None
        assert solution.seconds <= best + 1e-9
    if solution is not None:
        assert all(not chain.glued[run.start] for run in solution.runs)
        assert [0, *(run.stop for run in solution.runs)] == [*(run.start for run in solution.runs), chain.size]


def test_a_constant_used_twice_in_a_run_is_held_once() -> None:
    chain = problem([[1, 1]], constants=[{7: 10}, {7: 10}], memory=[10])

    assert (Run(0, 0, 2),) == solve_chain(chain).runs


def test_no_cut_that_keeps_every_budget_gives_none() -> None:
    assert solve_chain(problem([[1, 1], [1, 1]], memory=[9, 9])) is None


def test_what_only_another_device_can_run_goes_there_and_back() -> None:
    chain = problem([[1, 1, 1], [5, 5, 5]], allowed=[[True, False, True], [True, True, True]])

    assert [0, 1, 0] == [run.device for run in solve_chain(chain).runs]


def test_throughput_balances_the_busiest_device() -> None:
    chain = problem([[2, 2, 2, 2], [2, 2, 2, 2]], crossing=[0, 0, 0, 0], objective="throughput")

    solution = solve_chain(chain)

    assert [(0, 2), (2, 4)] == [(run.start, run.stop) for run in solution.runs]
    assert pytest.approx(4.0) == max(solution.load)


def test_memory_uses_as_few_devices_as_hold_the_model() -> None:
    chain = problem([[9, 9, 9], [1, 1, 1], [1, 1, 1]], memory=[30, 20, 20], objective="memory")

    assert 1 == len(solve_chain(chain).runs)


def test_an_empty_chain_needs_nothing() -> None:
    chain = ChainProblem(
        np.zeros((1, 0)),
        np.ones((1, 0), bool),
        [],
        np.zeros(0),
        np.zeros(0),
        np.zeros(0, bool),
        [1.0],
        [[(0, 0)]],
        "latency",
    )

    assert () == solve_chain(chain).runs
