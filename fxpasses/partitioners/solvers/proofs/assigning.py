"""Free placement as an integer program: the best assignment of small problems, proven, or that there is none.

``runs[u, d]`` says that a device runs a unit, ``enters[v, d]`` and ``leaves[v, d]`` that a value comes or goes there.
Where links differ, ``sent[v, a, b]`` says over which one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs
import numpy as np
from numpy.typing import ArrayLike

from fxpasses.partitioners.solvers.proofs.programs import Program
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = [
    "FAR",
    "ROUNDING",
    "WIDER",
    "Extra",
    "Proof",
    "add_assignments",
    "add_budgets",
    "least_load",
    "program_size",
    "some_assignment",
    "unit_bytes",
]

ROUNDING = 1e-6
"""HiGHS keeps rows up to about 1e-9; a value within this share of a bound counts as proven."""

WIDER = 1e-8
"""The share of a budget by which rows of bytes are wider: where a budget is filled exactly, HiGHS 1.15 lost the answer
when it presolved. Sets of units that fit only so are forbidden one by one, where they are found."""

TIMES, FEW = 100, 10
"""How often a program is asked at most after sets that do not fit, in the seconds that are left; and one that only asks
whether anything fits."""

FAR = 1e3
"""Times that what a program is asked to be below may be more than what it finds; beyond, its digits say nothing."""

Extra = Callable[[Program, Ints], None] | None
"""Adds rows to a program on the variables that say which device runs a unit."""


@attrs.frozen(eq=False)
class Proof:
    """The best assignment that the program found (None: none) and what no assignment can be below."""

    home: Ints | None
    bound: float


def program_size(model: LoadModel) -> int:
    """About how many variables the program has."""
    per_value = 2 * model.devices if model.links_alike else model.devices**2
    return int(model.size * model.devices + len(model.source) * per_value)


def least_load(model: LoadModel, *, below: float, seconds: float, extra: Extra = None) -> Proof:
    """The smallest largest load that is at most ``below``; a bound of ``inf`` says that none is.

    If it is ``FAR`` below, ask again with what was found.
    """
    model = model.under(below * (1 + ROUNDING))
    program, runs = add_assignments(model, extra=extra)
    longest = float(model.weight.max(initial=0.0))
    scale = below if FAR * longest < below < math.inf else longest or 1.0
    top = program.add(1, 0.0, below / scale * (1 + ROUNDING) if math.isfinite(below) else np.inf)
    add_budgets(program, model, runs)
    each = np.broadcast_to(top, model.devices)
    terms: list[tuple[ArrayLike, Ints]] = [
        (model.weight.T / scale, runs.T),
        (-1.0, each),
        *_transfers(program, model, runs, scale),
    ]
    program.at_most(np.zeros(model.devices), *terms)
    proof = _within_budgets(program, model, runs, (1.0, top), seconds)
    return Proof(proof.home, proof.bound * scale)


def some_assignment(model: LoadModel, *, seconds: float, extra: Extra = None) -> Proof:
    """One that keeps every budget, to the byte; a bound of ``inf`` says that there is none."""
    program, runs = add_assignments(model, extra=extra)
    add_budgets(program, model, runs)
    return _within_budgets(program, model, runs, (0.0, runs[:1]), seconds, FEW)


def _within_budgets(
    program: Program,
    model: LoadModel,
    runs: Ints,
    costs: tuple[ArrayLike, Ints],
    seconds: float,
    times: int = TIMES,
) -> Proof:
    """The best assignment that keeps budgets to the byte: sets of units that only fit wider ones are forbidden."""
    best, bound = None, -math.inf
    for _ in range(times):
        answer = program.minimize(costs, seconds=seconds)
        best = None if answer.x is None else np.argmax(answer.x[runs], axis=1)
        bound = max(bound, answer.bound)  # in the end nothing may be known
        too_large = [] if best is None else _just_too_large(model, best)
        for units in too_large:
            small = np.flatnonzero(model.needed(units) > model.memory)
            program.at_most(len(units) - 1.0, (1.0, runs[units[:, None], small].T))
        seconds -= answer.seconds
        if not too_large:
            break
    return Proof(best, bound)


def _just_too_large(model: LoadModel, home: Ints) -> list[Ints]:
    """Units that an assignment gives a device that has too little memory for them, and room for any less of them."""
    found = []
    for device in np.flatnonzero(model.needs(home[None])[0] > model.memory).tolist():
        units = np.flatnonzero(home == device)
        for unit in units[np.argsort(model.kept[units], kind="stable")].tolist():
            fewer = units[units != unit]
            if model.needed(fewer) > model.memory[device]:
                units = fewer
        found.append(units)
    return found


def add_assignments(
    model: LoadModel, *, whole: bool = True, extra: Extra = None, counts: Ints | None = None
) -> tuple[Program, Ints]:
    """A program in which each unit is on one device, and its variables, ``(m, k)``; ``extra`` adds rows on them.

    With ``counts`` there are so many of each unit, and a variable says how many of them a device runs.
    """
    program = Program()
    many = np.ones(model.size) if counts is None else counts.astype(np.float64)
    runs = program.add((model.size, model.devices), 0.0, np.where(model.banned, 0.0, many[:, None]), whole=whole)
    program.equal(many, (1.0, runs))
    if extra is not None:
        extra(program, runs)
    return program, runs


def unit_bytes(model: LoadModel) -> float:
    """The largest number of bytes that a unit adds, which programs count as one."""
    largest = [model.kept.max(initial=0.0), model.shared.max(initial=0.0), model.live.max(initial=0.0), 1.0]
    return float(max(largest))


def _common_bytes(model: LoadModel) -> float:
    """The largest number of bytes of which all that units add are multiples: pages, or elements of a type."""
    added = np.concatenate([model.kept, model.shared, model.live]).astype(np.int64)
    return float(max(1, np.gcd.reduce(added, initial=0)))


def add_budgets(
    program: Program,
    model: LoadModel,
    runs: Ints,
    *,
    more: tuple[float, Ints] | None = None,
    top: tuple[float, Ints] | None = None,
    counts: Ints | None = None,
) -> None:
    """No device needs more bytes than it has, or than it has and ``more``, or than ``top``.

    With ``counts`` there are so many of each unit, and a device holds what one of them needs if it runs any.
    """
    unit = unit_bytes(model)
    limited = np.arange(model.devices) if top else np.flatnonzero(np.isfinite(model.memory))
    if not limited.size:
        return
    terms: list[tuple[ArrayLike, Ints]] = [(model.kept / unit, runs.T[limited])]
    many = np.ones(model.size) if counts is None else counts.astype(np.float64)
    several = bool((many > 1).any())
    if len(model.shared):
        held = program.add((len(limited), len(model.shared)), 0.0, 1.0, whole=several)
        block = np.concatenate(model.holds)
        holder = np.repeat(np.arange(model.size), [len(blocks) for blocks in model.holds])
        for row, device in enumerate(limited.tolist()):
            program.at_most(np.zeros(len(block)), (1.0, runs[holder, device]), (-many[holder], held[row, block]))
        terms.append((model.shared / unit, held))
    if model.live.any():
        terms.append((1.0, _peaks(program, model, runs[:, limited], many, unit)))
    extras = [extra for extra in (more, top) if extra is not None]
    terms += [(factor, np.broadcast_to(variable, len(limited))) for factor, variable in extras]
    common = 1.0 if more else _common_bytes(model)
    room: Floats = np.floor(model.memory[limited] / common) * common  # no sum is between these
    right = np.zeros(len(limited)) if top else room / unit * (1 + WIDER)
    program.at_most(right, *terms)


def _peaks(program: Program, model: LoadModel, runs: Ints, many: Floats, unit: float) -> Ints:
    """What is alive at most on each of some devices: no less than any unit that they run needs."""
    most = program.add(runs.shape[1], 0.0, np.inf)
    own = np.flatnonzero(model.live)
    needs = model.live[own] / unit
    single = many[own] == 1
    for row, column in enumerate(runs.T):
        runs_any = column[own].copy()
        if not single.all():
            runs_any[~single] = program.add(int((~single).sum()), 0.0, 1.0, whole=True)
            several = own[~single]
            program.at_most(np.zeros(len(several)), (1.0, column[several]), (-many[several], runs_any[~single]))
        program.at_most(np.zeros(len(own)), (needs, runs_any), (-1.0, np.full(len(own), most[row])))
    return most


def _transfers(program: Program, model: LoadModel, runs: Ints, scale: float) -> list[tuple[ArrayLike, Ints]]:
    """What values add to the load of each device."""
    if not len(model.source):
        return []
    return (_alike if model.links_alike else _over_links)(program, model, runs, scale)


def _alike(program: Program, model: LoadModel, runs: Ints, scale: float) -> list[tuple[ArrayLike, Ints]]:
    """A value enters where a user is and its maker is not, and leaves its maker where a user is not."""
    values, kinds = len(model.source), model.devices
    enters, leaves = program.add((values, kinds), 0.0, 1.0), program.add((values, kinds), 0.0, 1.0)
    value, user = model.uses[:, 0], model.uses[:, 1]
    maker = model.source[value]
    for device in range(kinds):
        here, there = runs[user, device], runs[maker, device]
        program.at_most(np.zeros(len(value)), (1.0, here), (-1.0, there), (-1.0, enters[value, device]))
        program.at_most(np.zeros(len(value)), (1.0, there), (-1.0, here), (-1.0, leaves[value, device]))
    seconds = model.send[:, 0, 1] / scale if kinds > 1 else np.zeros(values)
    return [(np.broadcast_to(seconds, (kinds, values)), each.T) for each in (enters, leaves)]


def _over_links(program: Program, model: LoadModel, runs: Ints, scale: float) -> list[tuple[ArrayLike, Ints]]:
    """A value is sent over a link where its maker is at one end and a user at the other."""
    values, kinds = len(model.source), model.devices
    sent = program.add((values, kinds, kinds), 0.0, 1.0)
    longest = program.add((values, kinds), 0.0, np.inf)
    value, user = model.uses[:, 0], model.uses[:, 1]
    for device in range(kinds):  # whoever is here and lacks it gets it from somewhere else
        others = np.flatnonzero(np.arange(kinds) != device)
        got = sent[value][:, others, device]
        here, there = runs[user, device], runs[model.source[value], device]
        program.at_most(np.zeros(len(value)), (1.0, here), (-1.0, there), (-1.0, got))
        for other in others.tolist():
            leaving = sent[:, device, other]
            program.at_most(np.zeros(values), (1.0, leaving), (-1.0, runs[model.source, device]))
            program.at_most(
                np.zeros(values), (model.send[:, device, other] / scale, leaving), (-1.0, longest[:, device])
            )
    entering = (model.send / scale).transpose(2, 0, 1).reshape(kinds, -1)
    return [
        (entering, sent.transpose(2, 0, 1).reshape(kinds, -1)),
        (np.ones((kinds, values)), longest.T),
    ]
