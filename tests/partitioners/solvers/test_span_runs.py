"""Loads of pairs of ideals that compiled code finds are those of numpy, to the bit: either may be used."""

from __future__ import annotations

import sys

import attrs
import numpy as np
import pytest
from fuzz import examples
from random_placements import sending_problem
from test_arc_lists import charging, with_values_back

from fxpasses.partitioners.solvers.contiguous.ideals import span_runs  # noqa: F401  # numba is loaded from here on
from fxpasses.partitioners.solvers.contiguous.ideals.classes import device_classes
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import CutFamily, all_ideals, pack
from fxpasses.partitioners.solvers.contiguous.ideals.device_class import DeviceClass
from fxpasses.partitioners.solvers.contiguous.ideals.spans import Spans
from fxpasses.partitioners.solvers.reduced.reducing import Units, reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import Floats, tables_of


def ideals_of(seed: int, draw: np.random.Generator) -> tuple[Units, CutFamily, tuple[DeviceClass, ...]]:
    """All ideals of a random problem, or prefixes of one order, with values that go back for some."""
    problem = sending_problem(seed)
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    if seed % 3 == 0:
        units = with_values_back(units, draw)
    classes = tuple(charging(group, draw) for group in device_classes(tables, units))
    words = all_ideals(units, 100_000) if seed % 2 else pack(np.tri(units.size, dtype=bool))
    assert words is not None
    return units, CutFamily.of(words, 1e-6 * draw.random(units.size)), classes


def spans_of(seed: int, draw: np.random.Generator) -> Spans:
    return Spans.of(*ideals_of(seed, draw))


def loads(spans: Spans, below: float, seed: int) -> list[Floats]:
    """For blocks of pairs and for chosen ones."""
    chosen = np.sort(np.random.default_rng(seed).choice(spans.family.count, max(1, spans.family.count // 2), False))
    every, some = slice(0, spans.family.count), slice(1, spans.family.count - 1)
    blocks = [(every, every), (some, every), (chosen, every), (some, chosen)]
    return [load for rows, columns in blocks for load in spans.loads(rows, columns, below)]


def loads_of_both(spans: Spans, below: float, seed: int, monkeypatch: pytest.MonkeyPatch) -> list[Floats]:
    """The same, which compiled code and numpy agree on."""
    found = loads(spans, below, seed)
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "numba")
        expected = loads(spans, below, seed)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    return found


@pytest.mark.parametrize("begin", range(0, examples(60), 20))
def test_compiled_code_finds_the_same_loads(begin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    finite = 0
    for seed in range(begin, begin + 20):
        draw = np.random.default_rng(seed)
        spans = spans_of(seed, draw)
        below = float(draw.choice([0.3, 1.0, np.inf])) * max(float(weight[-1]) for weight in spans.weight)
        found = loads_of_both(spans, below, seed, monkeypatch)
        finite += sum(int(np.isfinite(load).sum()) for load in found)
    assert finite > 1000


@pytest.mark.parametrize("begin", range(0, examples(60), 20))
def test_compiled_code_finds_the_same_bytes(begin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With keys that units share, with what they need while they run, and with devices that cannot run some."""
    finite, keys, live, banned = 0, 0, 0, 0
    for seed in range(begin, begin + 20):
        draw = np.random.default_rng(seed)
        spans = spans_of(seed, draw)
        everything = spans.bytes.everything
        memory = [float(draw.choice([0.3, 0.6, 2.0, np.inf])) * everything for _ in spans.classes]
        classes = tuple(
            attrs.evolve(group, memory=most if everything else np.inf)
            for group, most in zip(spans.classes, memory, strict=True)
        )
        credit = tuple(float(draw.choice([0.0, 0.0, 0.2])) * everything for _ in classes)
        spans = attrs.evolve(spans, classes=classes, credit=credit)
        below = float(draw.choice([0.5, 1.0, np.inf])) * max(everything, 1.0)
        found = loads_of_both(spans, below, seed, monkeypatch)
        finite += sum(int((np.isfinite(load) & (load > 0)).sum()) for load in found)
        keys, live = keys + len(spans.bytes.key_bytes), live + (spans.bytes.by_live is not None)
        banned += sum(own is not None for own in spans.banned)
    assert finite > 1000
    assert min(keys, live, banned) > 0


@pytest.mark.parametrize("by_bytes", [False, True])
def test_loads_of_some_classes_are_those_of_each_alone(by_bytes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any order, named twice or not at all; what differs in memory only is weighed once."""
    finite = ruled_out = 0
    for seed in range(examples(30)):
        draw = np.random.default_rng(seed)
        units, family, classes = ideals_of(seed, draw)
        everything = Spans.of(units, family, classes).bytes.everything
        memory = [everything * share for share in draw.uniform(0.2, 1.2, 2 * len(classes))]
        classes = tuple(attrs.evolve(group, memory=most) for group, most in zip(2 * classes, memory, strict=True))
        credit = tuple(everything * draw.uniform(0, 0.3, len(classes))) if by_bytes else None
        spans = Spans.of(units, family, classes, credit)
        asked, every = draw.integers(0, len(classes), len(classes)), slice(0, family.count)
        compiled = spans.loads(every, every, np.inf, asked)
        with monkeypatch.context() as without:
            without.delitem(sys.modules, "numba")
            plain = spans.loads(every, every, np.inf, asked)
            alone = [
                Spans.of(units, family, (group,), None if credit is None else (own,)).loads(every, every, np.inf)[0]
                for group, own in zip(classes, credit or classes, strict=True)
            ]

        np.testing.assert_array_equal(compiled, plain)
        np.testing.assert_allclose(plain, np.stack(alone)[asked], rtol=1e-12, atol=1e-12)
        finite += int(np.isfinite(plain).sum())
        ruled_out += sum(not np.array_equal(np.isfinite(one), np.isfinite(alone[0])) for one in alone)
    assert min(finite, ruled_out) > 10
