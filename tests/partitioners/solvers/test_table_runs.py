"""Best values that compiled code finds are those of numpy, to the bit: either may be used."""

from __future__ import annotations

import numpy as np
import pytest
from random_placements import sending_problem

from fxpasses.partitioners.solvers.contiguous.ideals.classes import device_classes
from fxpasses.partitioners.solvers.contiguous.ideals.states import States
from fxpasses.partitioners.solvers.contiguous.tables.dynamic_program import Measure, PipelineSearch
from fxpasses.partitioners.solvers.contiguous.tables.filled_tables import Table
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of

IDEALS, ROWS, COLUMNS = 90, 30, 70


def search(seed: int, *, along: bool, in_turn: bool) -> PipelineSearch:
    """Over the devices of a random problem, in any order or in one of them."""
    problem = sending_problem(seed)
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    classes = device_classes(tables, units)
    states = States.along(classes, range(len(problem.devices))) if along else States.of(classes)
    room = np.full(len(classes), np.inf)
    return PipelineSearch(units, classes, states, Measure(units.seconds.min(axis=1), room), in_turn=in_turn)


def random_table(states: States, draw: np.random.Generator) -> Table:
    """Windows of all kinds, some of them empty; few ideals have values, and memory rules some out."""
    start = draw.integers(0, IDEALS, len(states.moves))
    table = Table.of(start, np.minimum(IDEALS, start + draw.integers(-5, 60, len(states.moves))))
    table.values[:] = np.where(draw.random(len(table.values)) < 0.6, np.inf, 9 * draw.random(len(table.values)))
    table.values[::7] = np.nan
    return table


def random_loads(kinds: int, draw: np.random.Generator) -> np.ndarray:
    """Many of them ``inf``, above all far away from the diagonal."""
    loads = np.where(draw.random((kinds, ROWS, COLUMNS)) < 0.3, np.inf, draw.random((kinds, ROWS, COLUMNS)))
    for kind in range(kinds):
        far = np.subtract.outer(np.arange(ROWS), np.arange(COLUMNS)) + draw.integers(5, 60)
        loads[kind][(far < 0) | (far > draw.integers(20, 90))] = np.inf
    return loads


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("along", [False, True])
def test_compiled_code_finds_the_same_values(along: bool, in_turn: bool) -> None:
    """In the same steps; what memory rules out stays so, and devices may be left out of an order."""
    lowered = skipped = 0
    for seed in range(40):
        draw = np.random.default_rng(seed)
        program = search(seed, along=along, in_turn=in_turn)
        loads, first = random_loads(len(program.classes), draw), int(draw.integers(0, IDEALS - ROWS))
        before, place = random_table(program.states, draw), draw.permutation(len(program.classes))
        expected, found = (Table(before.start, before.stop, before.offset, before.values.copy(), 0.1) for _ in "ab")

        program._in_numpy(expected, loads, place, first)
        program._compiled(found, loads, place, first)

        np.testing.assert_array_equal(found.values, expected.values)
        assert found.steps == expected.steps
        assert (np.isnan(found.values) == np.isnan(before.values)).all()
        lowered += int((found.values < before.values).sum())
        skipped += max(program.states.skips) > 0
    assert lowered > 200
    assert skipped == (40 if along else 0)
