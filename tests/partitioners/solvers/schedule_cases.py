"""Schedules as the definitions say them: the best one by brute force, and what each has to keep."""

from __future__ import annotations

import itertools
import math

import pytest
from placement_cases import every_placement, is_allowed, is_legal, seconds_on, sending

from fxpasses.errors import InfeasibleError
from fxpasses.partitioners import solve_placement


def shortest(problem, placed, known=math.inf):
    """The least makespan of an assignment over all orders, tried one by one."""
    graph = problem.graph
    best = known

    def extend(ends, free):
        nonlocal best
        if max(free.values(), default=0.0) >= best or max(ends.values(), default=0.0) >= best:
            return
        ready = [node for node in graph if node not in ends and all(need in ends for need in graph.predecessors(node))]
        if not ready:
            best = max(ends.values())
        for node in ready:
            home = placed[node]
            needs = [(need, placed[need]) for need in graph.predecessors(node)]
            there = max(
                (ends[n] + (sending(problem, n, at, home) if at != home else 0.0) for n, at in needs), default=0.0
            )
            taken = seconds_on(problem, node, home)
            end = (max(there, free.get(home, 0.0)) if taken else there) + taken
            extend({**ends, node: end}, {**free, home: end} if taken else free)

    extend({}, {})
    return best


def optimum(problem):
    best = math.inf
    for placed in every_placement(problem):
        if is_legal(problem, placed) and is_allowed(problem, placed):
            best = shortest(problem, placed, best)
    return best


def answer_or_proof(problem, best):
    """The answer; None where brute force finds none, and that is proven."""
    if math.isfinite(best):
        return solve_placement(problem)
    with pytest.raises(InfeasibleError):
        solve_placement(problem)
    return None


def check_schedule(problem, solution):
    """Nodes start after what they need and its copies, one at a time on a device, and the last ends as promised."""
    start, placed = solution.schedule, solution.device_of
    end = {node: start[node] + seconds_on(problem, node, placed[node]) for node in placed}
    for need, node in problem.graph.edges:
        copy = sending(problem, need, placed[need], placed[node]) if placed[need] != placed[node] else 0.0
        assert start[node] >= end[need] + copy - 1e-9
    for device in problem.devices:
        spans = sorted((start[n], end[n]) for n in solution.nodes(device.name) if end[n] > start[n])
        assert all(b[0] >= a[1] - 1e-9 for a, b in itertools.pairwise(spans))
    assert pytest.approx(max(end.values())) == solution.objective_value
