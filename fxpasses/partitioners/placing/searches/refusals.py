"""What is said where no placement keeps every budget: by how many bytes, on which device, and at which operator."""

from __future__ import annotations

import numpy as np
from torch.fx import Node

from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.budget_checks import course_of
from fxpasses.partitioners.placing.device_reasons import NONE_FOUND
from fxpasses.partitioners.placing.device_runs import Runs, runs_of
from fxpasses.partitioners.placing.requests import Contiguity, Request
from fxpasses.partitioners.placing.searches.least_memory import least_missing
from fxpasses.partitioners.placing.searches.nearest import Nearest
from fxpasses.partitioners.placing.searches.own_order import OwnOrder
from fxpasses.partitioners.placing.training_budgets import lacking_in_training
from fxpasses.units import format_bytes

__all__ = ["none_found", "refuse_if_proven", "refused", "told_more"]

NEAREST, EVEN = "the nearest one that was looked at", "the most even cut of the graph's own order"
"""Which placement it is that lacks some bytes."""


def refuse_if_proven(figures: GraphFigures, request: Request, contiguity: Contiguity) -> None:
    """Raise where no pipeline has room for the bytes that are needed in any case."""
    if contiguity != "pipeline" or request.training is not None:
        return
    least = least_missing(figures, request.problem(figures, contiguity, figures.needs))
    if least:
        raise refused(figures, request, contiguity, least)


def refused(figures: GraphFigures, request: Request, contiguity: Contiguity, least: int) -> InfeasibleError:
    """That each placement is proven to lack some bytes, with what the nearest one lacks."""
    missing, where, node = _nearest(figures, request, contiguity)
    return InfeasibleError(
        f"Each placement lacks {format_bytes(least)} or more on some device{where}.",
        node=node,
        missing_bytes=max(least, missing),
    )


def told_more(
    figures: GraphFigures, request: Request, contiguity: Contiguity, error: InfeasibleError
) -> InfeasibleError:
    """The same proof; it counts only what operators need in any case, so a real placement lacks more."""
    if error.missing_bytes is None:
        return error
    missing, where, node = _nearest(figures, request, contiguity)
    if missing <= error.missing_bytes:
        return error
    message = f"{str(error).removesuffix('.')}, counting only what each operator needs in any case{where}."
    return InfeasibleError(message, node=node, missing_bytes=missing)


def none_found(figures: GraphFigures, request: Request, contiguity: Contiguity, nearest: Nearest) -> PlacementError:
    """That nothing was found, with what the nearest placement lacks; nothing is proven."""
    missing, where, node = _nearest(figures, request, contiguity)
    if nearest.runs is not None and nearest.lacking < missing:
        where, node = _lacking(figures, request, nearest.runs)
    return PlacementError(
        f"No placement was found that keeps every budget{where}. It is not proven that none exists: give a device more "
        "memory, or raise time_budget.",
        node=node,
        reason=NONE_FOUND,
    )


def _lacking(figures: GraphFigures, request: Request, runs: Runs) -> tuple[str, Node | None]:
    """What a placement lacks on the device that lacks most, as a clause; the first operator there that does not fit."""
    if request.training is not None:
        return lacking_in_training(figures, request.topology, runs, request.training, NEAREST)[1:]
    course = course_of(figures, request.topology, runs, None)
    over = {name: course.memory(name).peak - request.topology[name].memory for name in course.held}
    worst = max(over, key=over.__getitem__)
    curve = course.curve(worst)
    crowded = np.flatnonzero(curve > curve.max() - over[worst])  # the rest of the peak is there all the time
    first = course.schedule[min(int(crowded[0]), len(course.schedule) - 1)]
    return _clause(NEAREST, int(over[worst]), worst, first), first


def _clause(which: str, lacking: int, device: str, first: Node) -> str:
    there = f"{first.name} ({first.target}) is the first operator that does not fit"
    return f"; {which} lacks {format_bytes(lacking)} on {device}, where {there}"


def _nearest(figures: GraphFigures, request: Request, contiguity: Contiguity) -> tuple[int, str, Node | None]:
    """What the nearest cut of the graph's own order lacks: bytes, a clause, the first operator that does not fit."""
    order = next(OwnOrder.several(figures, request.problem(figures, contiguity, figures.needs)))
    if request.training is not None:
        cut = order.roomiest()
        runs = None if cut is None else runs_of(figures.graph_module, cut.home, figures.dependencies)
        if runs is None:
            return 0, "", None
        return lacking_in_training(figures, request.topology, runs, request.training, EVEN)
    cut = order.nearest()
    if cut is None or cut.first_over is None or cut.value < 1:
        return 0, "", None
    clause = _clause("the nearest one along the graph's own order", int(cut.value), cut.over_on, cut.first_over)
    return int(cut.value), clause, cut.first_over
