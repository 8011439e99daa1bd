"""Assignments that keep budgets, found by moves alone."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from fxpasses.partitioners.solvers.annealing.graphs import graph_of, state_of
from fxpasses.partitioners.solvers.free.packing_moves import packed_by_moves
from fxpasses.partitioners.solvers.free.packing_steps import pack
from fxpasses.partitioners.solvers.free.searching import FreeSearch
from fxpasses.partitioners.solvers.proofs.packing import Packing
from fxpasses.partitioners.solvers.reduced.loads import LoadModel


def packed(seed: int, room: float) -> tuple[LoadModel, np.ndarray]:
    """Units with bytes of their own, shared and while they run, and devices that hold a planted assignment."""
    draw = np.random.default_rng(seed)
    units, devices, blocks = int(draw.integers(8, 40)), int(draw.integers(2, 5)), int(draw.integers(1, 6))
    banned = draw.random((units, devices)) < 0.1
    home = draw.integers(devices, size=units)
    banned[np.arange(units), home] = False
    model = LoadModel(
        weight=np.where(banned, 0.0, 1.0),
        banned=banned,
        kept=draw.integers(0, 100, units).astype(np.float64) * draw.choice([1.0, 10.0], units),
        live=draw.integers(0, 50, units).astype(np.float64),
        shared=draw.integers(1, 300, blocks).astype(np.float64),
        holds=tuple(np.flatnonzero(draw.random(blocks) < 0.15) for _ in range(units)),
        memory=np.zeros(devices),
        source=np.zeros(0, dtype=np.int64),
        uses=np.zeros((0, 2), dtype=np.int64),
        send=np.zeros((0, devices, devices)),
    )
    return attrs.evolve(model, memory=np.ceil(room * model.needs(home[None])[0])), home


def test_moves_find_nearly_all_assignments_where_there_is_little_room() -> None:
    """As programs do, in milliseconds; what they find keeps every budget, whatever they start from."""
    found = 0
    for seed in range(60):
        model, _planted = packed(seed, 1.05)
        start = np.random.default_rng(seed).integers(model.devices, size=model.size)
        home = packed_by_moves(model, start, np.random.default_rng(seed))
        if home is not None:
            assert model.legal(home[None]).all()
            found += 1
    assert found >= 57


@pytest.mark.parametrize("seed", range(20))
def test_each_move_leaves_the_fewest_bytes_over(seed: int) -> None:
    """Of all moves from a device that is over, as the sums of whole assignments say."""
    model, _planted = packed(seed, 0.9)
    home = np.argmax(~model.banned, axis=1)
    over = np.maximum(model.needs(home[None])[0] - model.memory, 0.0)
    best = np.inf
    for unit, target in zip(*np.nonzero(~model.banned), strict=True):
        after = np.where(np.arange(model.size) == unit, target, home)
        needs = model.needs(after[None])[0]
        if over[home[unit]] and needs[home[unit]] < model.needs(home[None])[0, home[unit]]:
            best = min(best, float(np.maximum(needs - model.memory, 0.0).sum()))
    graph = graph_of(model)
    state = state_of(model, graph, home)

    pack(graph, state, np.full(1, 3), np.zeros(model.devices))

    assert np.maximum(model.needs(state.home[None])[0] - model.memory, 0.0).sum() == best
    assert np.count_nonzero(state.home != home) == 1


def test_an_assignment_that_fits_stays_as_it_is() -> None:
    model, planted = packed(3, 1.0)

    home = packed_by_moves(model, planted, np.random.default_rng(0))

    assert home is not None
    assert home.tolist() == planted.tolist()


def test_where_nothing_fits_nothing_is_found() -> None:
    model, planted = packed(3, 0.6)
    assert Packing.of(model, seconds=10.0).missing_bytes().bound > 0

    assert packed_by_moves(model, planted, np.random.default_rng(0)) is None


@pytest.mark.parametrize("seed", range(5))
def test_without_a_program_the_search_finds_what_fits(seed: int) -> None:
    """Questions whose answers need no proof ask none: they found nothing where budgets hold just so."""
    model, _planted = packed(seed, 1.05)

    answer = FreeSearch(model, 0.0, 0.0, seed, program_seconds=0.0).run([])

    assert answer.home is not None
    assert model.legal(answer.home[None]).all()
