"""Placements of a smaller peak: budgets below that of the best one, as long as something keeps them.

The solvers count what operators need in any case, so where all devices have room they see little of what makes a peak
small. Where budgets are passed they learn what was alive beside each operator.
"""

from __future__ import annotations

import attrs

from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.found_placements import Found
from fxpasses.partitioners.placing.requests import Contiguity, Request
from fxpasses.partitioners.placing.searches.asked_again import solved_again, with_what_is_alive
from fxpasses.partitioners.placing.searches.checked_answers import Checked, Solver
from fxpasses.partitioners.placing.searches.quick_checks import check_until_over

__all__ = ["with_smaller_peaks"]

LESS = (0.9, 0.95)
"""How many times the peak of the best placement budgets are, until nothing keeps them."""


def with_smaller_peaks(
    figures: GraphFigures, checked: Checked, contiguity: Contiguity, solve: Solver, best: Found
) -> list[Checked]:
    """What keeps budgets below the peak of the best placement, each better than the one before."""
    request, found, runs, peak = checked.request, list[Checked](), best.runs, best.value
    for less in LESS:
        while True:
            narrow = _with_budgets(request, int(less * peak))
            over = attrs.evolve(checked, request=narrow, runs=runs, seen=check_until_over(figures, narrow, runs))
            answer = solved_again(figures, over, with_what_is_alive(figures, contiguity, solve))
            if answer is None:
                break
            found.append(attrs.evolve(answer, request=request))
            runs, peak = answer.runs, answer.seen.fullest
    return found


def _with_budgets(request: Request, most: int) -> Request:
    """The same on devices that have so many bytes at most."""
    topology = request.topology
    devices = [attrs.evolve(device, available_mem_bytes=int(min(device.memory, most))) for device in topology.devices]
    return attrs.evolve(request, topology=attrs.evolve(topology, devices=devices))
