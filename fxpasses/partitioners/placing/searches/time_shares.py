"""How the seconds of a search for a placement are shared: by its questions, by changes, and by beginning anew."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from fxpasses.partitioners.placing.requests import Request

__all__ = [
    "LITTLE_EFFORT",
    "SHORT",
    "begun_anew",
    "in_tight_memory",
    "seconds_of_leaps",
    "seconds_of_trial",
    "shares_of_questions",
    "trials_of",
]

LITTLE_EFFORT = 0.1
"""The share of their steps that integer programs get where nobody asks for a proof."""
SHORT = 1.0
"""Seconds of searches that take longer than they are told: each step gets what makes it worth it."""
QUESTIONS, MORE_QUESTIONS = (1 / 2, 1 / 6, 1 / 24), (1 / 4, 1 / 8, 1 / 8, 1 / 16, 1 / 16, 1 / 16)
"""What questions get of the seconds of the first, while answers pass budgets: in short searches and in others."""
WITH_CHANGES, WITH_QUESTIONS = 2.0, 3.4
"""The seconds of others, over those of the first question: with changes of its answer, and with all that follows."""
ATTEMPT, FAR = 5.0, 1_000_003
"""Seconds of a search that begins anew, and how far its seed is from that of the one before."""
ANEW, LEAPS = 1 / 2, 1 / 3
"""What searches that begin anew, and changes of the best placement in the end, get of the seconds in tight memory."""
SHORTER, SMALL = (0.5, 0.0), 200
"""Seconds of shorter searches that follow; and up to so many nodes the one that takes no time does."""
TRIAL, SECONDS_A_NODE = 2.5e-4, 1.2e-5
"""About what it takes to follow one placement, and what each node in it takes: what trials are counted in."""
STEP = 2.0
"""How many times as long that takes for a training step."""


def seconds_of_trial(request: Request, nodes: int) -> float:
    """About what it takes to follow one placement of a graph of so many nodes."""
    return (TRIAL + SECONDS_A_NODE * nodes) * (1.0 if request.training is None else STEP)


def trials_of(request: Request, least: float, nodes: int) -> int:
    """How many placements may be followed: in the seconds of the search, or in so many at least unless it is brief."""
    seconds = request.time_budget if request.is_brief else max(least, request.time_budget)
    return int(seconds / seconds_of_trial(request, nodes))


def shares_of_questions(first: float) -> tuple[float, ...]:
    """What each question gets of the seconds of the first, as long as the answers before it pass budgets."""
    return QUESTIONS if first < SHORT else MORE_QUESTIONS


def begun_anew(request: Request, has_room: bool, nodes: int) -> Iterator[Request]:
    """Searches for a free placement of a small latency, with the seconds of the first question of each.

    Where budgets are tight, what is found hangs on where a search begins, so there are as many as there is time for.
    The last ones take little time: solvers start each operator as soon as it can, and parts start as wholes, so with
    more time they may find what is slower then.
    """
    leaps = seconds_of_leaps(request, has_room)
    seconds = ANEW * request.time_budget if leaps else request.time_budget
    times = 1 if has_room else max(1, int(seconds / ATTEMPT))
    if request.time_budget > SHORT:
        seconds = max(SHORT, seconds / (times * (WITH_CHANGES if has_room else WITH_QUESTIONS)))
    yield attrs.evolve(request, time_budget=seconds)
    again = attrs.evolve(request, effort=LITTLE_EFFORT, explain="never")
    for number in range(1, times):
        yield attrs.evolve(again, time_budget=seconds, seed=request.seed + number * FAR)
    for shorter in SHORTER:
        if shorter < seconds and (shorter or nodes <= SMALL):
            yield attrs.evolve(again, time_budget=shorter)


def in_tight_memory(request: Request) -> Iterator[Request]:
    """A search for a free placement that shares its time with all that follows its first question, and a short one.

    What is found hangs on where a search begins, so the short one may find what is better. Where a peak is made small,
    the questions that follow find most, so each has its time.
    """
    shared = request.time_budget if request.objective == "memory" else request.time_budget / WITH_QUESTIONS
    yield attrs.evolve(request, time_budget=max(SHORT, shared))
    yield attrs.evolve(request, time_budget=SHORTER[0], effort=LITTLE_EFFORT, explain="never")


def seconds_of_leaps(request: Request, has_room: bool) -> float:
    """What is left, where budgets are tight and there is much time, for changes of the best placement in the end."""
    return 0.0 if has_room or request.time_budget <= SHORT else LEAPS * request.time_budget
