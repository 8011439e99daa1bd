"""What is said where no placement keeps every budget: by how many bytes, on which device, and at which operator."""

from __future__ import annotations

from torch.fx import Node

from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.device_reasons import NONE_FOUND
from fxpasses.partitioners.placing.device_runs import runs_of
from fxpasses.partitioners.placing.requests import Contiguity, Request
from fxpasses.partitioners.placing.searches.least_memory import least_missing
from fxpasses.partitioners.placing.searches.own_order import OwnOrder
from fxpasses.partitioners.placing.training_budgets import lacking_in_training
from fxpasses.units import format_bytes

__all__ = ["none_found", "refuse_if_proven", "refused", "told_more"]


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


def none_found(figures: GraphFigures, request: Request, contiguity: Contiguity) -> PlacementError:
    """That nothing was found, with what the nearest placement lacks; nothing is proven."""
    _missing, where, node = _nearest(figures, request, contiguity)
    return PlacementError(
        f"No placement was found that keeps every budget{where}. It is not proven that none exists: give a device more "
        "memory, or raise time_budget.",
        node=node,
        reason=NONE_FOUND,
    )


def _nearest(figures: GraphFigures, request: Request, contiguity: Contiguity) -> tuple[int, str, Node | None]:
    """What the nearest cut of the graph's own order lacks: bytes, a clause, the first operator that does not fit."""
    order = next(OwnOrder.several(figures, request.problem(figures, contiguity, figures.needs)))
    if request.training is not None:
        cut = order.roomiest()
        runs = None if cut is None else runs_of(figures.graph_module, cut.home, figures.dependencies)
        return (0, "", None) if runs is None else lacking_in_training(figures, request.topology, runs, request.training)
    cut = order.nearest()
    if cut is None or cut.first_over is None or cut.value < 1:
        return 0, "", None
    clause = (
        f"; the nearest one along the graph's own order lacks {format_bytes(int(cut.value))} on {cut.over_on}, where "
        f"{cut.first_over.name} ({cut.first_over.target}) is the first operator that does not fit"
    )
    return int(cut.value), clause, cut.first_over
