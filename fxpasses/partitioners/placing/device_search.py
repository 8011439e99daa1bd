"""Search a placement of a graph whose budgets hold in the predicted memory, and know how good it is.

A problem for the solvers knows memory only roughly: what is alive depends on what runs where. So the first problem
counts only what must be on a device in any case: its bound holds for every placement, and if it has no answer there is
none. An answer is checked against :func:`~fxpasses.partitioners.costs.memory.predict_memory`; where it passes a
budget, the next problem counts what was seen to be alive beside each operator. Along the graph's own order bytes are
known for all runs, and the best cut of it is an answer, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import attrs
import numpy as np
from numpy.typing import NDArray
from torch.fx import Node

from fxpasses.devices import Device, Topology
from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners.costs.graph_figures import GraphFigures, Support
from fxpasses.partitioners.costs.shared_state import sent_state
from fxpasses.partitioners.costs.training_steps import TrainingStep
from fxpasses.partitioners.placing.budget_checks import check_budgets
from fxpasses.partitioners.placing.device_reasons import NONE_FOUND
from fxpasses.partitioners.placing.device_runs import Runs, runs_by_schedule, runs_in_turns, runs_of
from fxpasses.partitioners.placing.graph_problems import homes_of, placement_problem
from fxpasses.partitioners.placing.least_memory import least_missing
from fxpasses.partitioners.placing.objective_values import Objective, objective_value
from fxpasses.partitioners.placing.own_order import OwnOrder
from fxpasses.partitioners.placing.selectors import Selector
from fxpasses.partitioners.placing.state_nodes import StateNode
from fxpasses.partitioners.placing.training_budgets import lacking_in_training
from fxpasses.partitioners.solvers import PlacementProblem, PlacementSolution, solve_placement
from fxpasses.units import format_bytes

__all__ = ["Contiguity", "Found", "Wish", "search"]

MAX_ROUNDS = 8
ROUNDS_MORE = 3
"""How often another problem is put when the best cut of the graph's own order is known, or that there is none."""

LITTLE_EFFORT = 0.1
"""The share of their steps that integer programs get where nobody asks for a proof."""

MARGINS = 2000
"""How often smaller budgets are tried, times the operators."""

QUICKER = 0.99
"""More parts have to take less than this share of the time of fewer: each is called on its own."""

Contiguity = Literal["pipeline", "convex", "free"]
Solver = Callable[[PlacementProblem], PlacementSolution]


def _lists(_wish: Any, _field: Any, forbidden: Mapping[Selector, Collection[str]]) -> None:
    for selector, names in forbidden.items():
        if isinstance(names, str):
            raise PlacementError(f"`forbidden` gives {selector!r} the text {names!r}; write a list: [{names!r}].")
        if not isinstance(names, Iterable):
            raise PlacementError(f"`forbidden` gives {selector!r} {names!r}; write a list of device names.")


def _seconds(_wish: Any, _field: Any, budget: float) -> None:
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not 0 <= budget < np.inf:
        raise PlacementError(f"The time budget is a number of seconds, not {budget!r}.")


def _whole(_wish: Any, _field: Any, seed: int) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise PlacementError(f"The seed is a whole number from 0 on, not {seed!r}.")


@attrs.frozen(eq=False)
class Wish:
    """What a caller asks for; the fields are those of :func:`~fxpasses.partitioners.by_device.place_by_device`."""

    topology: Topology
    objective: Objective
    supports: Support | None = None
    colocate: Sequence[Sequence[Selector]] = ()
    pinned: Mapping[Selector, str] = attrs.field(factory=dict)
    forbidden: Mapping[Selector, Collection[str]] = attrs.field(factory=dict, validator=_lists)
    time_budget: float = attrs.field(default=0.5, validator=_seconds)
    seed: int = attrs.field(default=0, validator=_whole)
    training: TrainingStep | None = None
    effort: float | None = None
    state_with_first_user: bool = False
    explain: str = "proven"

    def problem(self, figures: GraphFigures, contiguity: Contiguity, live: NDArray[np.int64]) -> PlacementProblem:
        """The problem that is put to the solvers."""
        return placement_problem(
            figures.graph_module,
            self.topology,
            objective=self.objective,
            contiguity=contiguity,
            supports=self.supports,
            colocate=self.colocate,
            pinned=self.pinned,
            forbidden=self.forbidden,
            time_budget=self.time_budget,
            effort=self.effort,
            seed=self.seed,
            figures=figures,
            live=live,
            state_with_first_user=self.state_with_first_user,
            explain=self.explain,
        )


@attrs.frozen(eq=False)
class Found:
    """An answer that keeps every budget.

    Args:
        runs: The parts in execution order.
        contiguity: What a device may take.
        value: What the objective makes small, as the parts run.
        bound: No placement of this kind can be below it.
    """

    runs: Runs
    contiguity: Contiguity
    value: float
    bound: float


def search(
    figures: GraphFigures,
    wish: Wish,
    contiguity: Contiguity,
    solve: Solver = solve_placement,
    *,
    by_another: bool = True,
) -> Found:
    """Solve, check, and solve with what the check saw, until every budget holds.

    Args:
        figures: The measured graph.
        wish: What the caller asks for.
        contiguity: What a device may take.
        solve: Answers problems.
        by_another: Whether what was made for the sake of the budgets, or for another objective, will do where nothing
            else is found.

    Raises:
        InfeasibleError: proven that no placement of this kind keeps the budgets.
        PlacementError: none was found that does.
    """
    live, asked = figures.needs, wish
    first = wish.problem(figures, contiguity, live)
    try:
        solution = _first(first, solve)
    except InfeasibleError as error:
        raise _told_more(figures, wish, contiguity, error) from None
    bound = 0.0 if solution is None else solution.bound
    along = None
    for round_ in range(ROUNDS_MORE + 1):
        seen = None
        if solution is not None:
            runs = runs_of(figures.graph_module, homes_of(solution), figures.dependencies, solution.schedule)
            seen = check_budgets(figures, wish.topology, runs, wish.training)
            if not seen.over:
                found = _found(figures, wish, contiguity, runs, bound)
                if wish.objective == "latency" and contiguity == "free":
                    found = _side_by_side(figures, wish, solution, found)
                if wish.objective == "memory":  # the solvers do not see what is alive
                    along = along or _along_own_order(figures, wish, contiguity, bound)
                if not wish.state_with_first_user and _sends_otherwise(figures, wish, solution, found):
                    found = _with_first_users(figures, wish, found, solve)
                return found if along is None else min(found, along, key=lambda each: each.value)
        if not round_:
            along = _along_own_order(figures, wish, contiguity, bound)
            if along is None:
                _refuse_if_proven(figures, wish, contiguity)
        if seen is None or round_ == ROUNDS_MORE:
            break
        wish = attrs.evolve(
            wish,
            time_budget=wish.time_budget / (2 + round_),
            effort=first.program_effort * LITTLE_EFFORT,
            explain="never",
        )
        live = np.maximum(seen.alive, (live + figures.needs) // 2)
        try:
            solution = solve(wish.problem(figures, contiguity, live))
        except PlacementError:  # that proves nothing: what is alive beside an operator may be less elsewhere
            live, solution = (live + figures.needs) // 2, None
            with contextlib.suppress(PlacementError):
                solution = solve(wish.problem(figures, contiguity, live))
    if along is None and by_another:
        along = _with_room_to_spare(figures, asked, contiguity, bound) if contiguity == "free" else None
        along = along or _by_another(figures, asked, contiguity, bound)
    if along is None:
        raise _none_found(figures, wish, contiguity)
    return along


def _with_room_to_spare(figures: GraphFigures, wish: Wish, contiguity: Contiguity, bound: float) -> Found | None:
    """An assignment of few bytes, where nothing else was found: budgets shrink by what was seen to be over.

    Where they have become too small for the solver, they grow again by half of it.
    """
    wish = attrs.evolve(wish, time_budget=wish.time_budget / 4, explain="never")
    problem = attrs.evolve(wish, objective="memory").problem(figures, contiguity, figures.needs)
    margin: dict[str, int] = {}
    for round_ in range(min(2 * MAX_ROUNDS, max(1, MARGINS // len(figures.nodes)))):
        smaller = [_with_less(device, margin.get(device.name, 0)) for device in problem.devices]
        try:
            solution = solve_placement(attrs.evolve(problem, devices=smaller, seed=wish.seed + round_))
        except PlacementError:
            if not any(margin.values()):
                return None
            margin = {name: size // 2 for name, size in margin.items()}
            continue
        runs = runs_of(figures.graph_module, homes_of(solution), figures.dependencies, solution.schedule)
        seen = check_budgets(figures, wish.topology, runs, wish.training)
        if not seen.over:
            return _found(figures, wish, contiguity, runs, bound)
        for name, size in seen.over.items():
            margin[name] = margin.get(name, 0) + size
    return None


def _with_less(device: Device, size: int) -> Device:
    """A device with a budget smaller by some bytes."""
    if device.available_mem_bytes is None:
        return device
    return attrs.evolve(device, available_mem_bytes=max(0, device.available_mem_bytes - size))


def _by_another(figures: GraphFigures, wish: Wish, contiguity: Contiguity, bound: float) -> Found | None:
    """What another objective finds, where nothing else was found: the budgets are the same.

    That is what balances loads; or a schedule, whose operators run in another order than the graph's. For pipelines
    both look at the same cuts.
    """
    others: list[Objective] = ["throughput", "latency"] if contiguity == "free" else ["throughput"]
    for objective in others:
        if objective == wish.objective:
            continue
        other = attrs.evolve(wish, objective=objective, effort=LITTLE_EFFORT)
        try:
            runs = search(figures, other, contiguity, by_another=False).runs
        except PlacementError:
            continue
        return _found(figures, wish, contiguity, runs, bound)
    return None


def _first(problem: PlacementProblem, solve: Solver) -> PlacementSolution | None:
    """The answer to the problem that counts only what must be on a device in any case, if one is found."""
    try:
        return solve(problem)
    except InfeasibleError:
        raise
    except PlacementError:
        return None


def _found(figures: GraphFigures, wish: Wish, contiguity: Contiguity, runs: Runs, bound: float) -> Found:
    value = objective_value(figures, wish.topology, wish.objective, runs, wish.training)
    return Found(runs, contiguity, value, min(bound, value))


def _sends_otherwise(figures: GraphFigures, wish: Wish, solution: PlacementSolution, found: Found) -> bool:
    """Whether a parameter crosses from elsewhere than the solver thought, which thought that better."""
    if wish.objective == "throughput" and found.value <= solution.objective_value * (1 + 1e-9):
        return False
    device_of = {part: wish.topology[name] for part, name in found.runs.device_of.items()}
    thought = {key.state: name for key, name in solution.device_of.items() if isinstance(key, StateNode)}
    sent = sent_state(figures.shared_state, found.runs.assignment, device_of)
    return any(thought.get(state.names[0]) != state.source for state in sent)


def _with_first_users(figures: GraphFigures, wish: Wish, found: Found, solve: Solver) -> Found:
    """The same search with each shared parameter beside its first user, if that finds better; the bound stays."""
    try:
        held = attrs.evolve(wish, state_with_first_user=True)
        other = search(figures, held, found.contiguity, solve, by_another=False)
    except PlacementError:
        return found
    return min(found, attrs.evolve(other, bound=min(found.bound, other.value)), key=lambda each: each.value)


def _side_by_side(figures: GraphFigures, wish: Wish, solution: PlacementSolution, found: Found) -> Found:
    """The same devices in more parts, cut where one has to wait, if that is quicker: a part needs all its inputs."""
    best, limit = found, QUICKER * found.value
    for cut in (runs_in_turns, runs_by_schedule):
        runs = cut(figures.graph_module, homes_of(solution), figures.dependencies, solution.schedule)
        if len(runs.device_of) <= len(best.runs.device_of):
            continue
        other = _found(figures, wish, found.contiguity, runs, found.bound)
        if other.value < limit and not check_budgets(figures, wish.topology, runs, wish.training).over:
            best, limit = other, QUICKER * other.value
    return best


def _along_own_order(figures: GraphFigures, wish: Wish, contiguity: Contiguity, bound: float) -> Found | None:
    """The best cut of the graph's own order, or of another one, that keeps the budgets as memory is predicted."""
    problem = wish.problem(figures, contiguity, figures.needs)
    for order in OwnOrder.several(figures, problem):
        margin: dict[str, int] = {}
        for _round in range(MAX_ROUNDS):
            cut = order.best(margin)
            if cut is None:
                break
            runs = runs_of(figures.graph_module, cut.home, figures.dependencies)
            seen = check_budgets(figures, wish.topology, runs, wish.training)
            if not seen.over:
                return _found(figures, wish, contiguity, runs, bound)
            for name, size in seen.over.items():
                margin[name] = margin.get(name, 0) + size
    return None


def _refuse_if_proven(figures: GraphFigures, wish: Wish, contiguity: Contiguity) -> None:
    if contiguity != "pipeline" or wish.training is not None:
        return
    least = least_missing(figures, wish.problem(figures, contiguity, figures.needs))
    if least:
        missing, where, node = _nearest(figures, wish, contiguity)
        raise InfeasibleError(
            f"Each placement lacks {format_bytes(least)} or more on some device{where}.",
            node=node,
            missing_bytes=max(least, missing),
        )


def _told_more(figures: GraphFigures, wish: Wish, contiguity: Contiguity, error: InfeasibleError) -> InfeasibleError:
    """The same proof; it counts only what operators need in any case, so a real placement lacks more."""
    if error.missing_bytes is None:
        return error
    missing, where, node = _nearest(figures, wish, contiguity)
    if missing <= error.missing_bytes:
        return error
    message = f"{str(error).removesuffix('.')}, counting only what each operator needs in any case{where}."
    return InfeasibleError(message, node=node, missing_bytes=missing)


def _none_found(figures: GraphFigures, wish: Wish, contiguity: Contiguity) -> PlacementError:
    _missing, where, node = _nearest(figures, wish, contiguity)
    return PlacementError(
        f"No placement was found that keeps every budget{where}. It is not proven that none exists: give a device more "
        "memory, or raise time_budget.",
        node=node,
        reason=NONE_FOUND,
    )


def _nearest(figures: GraphFigures, wish: Wish, contiguity: Contiguity) -> tuple[int, str, Node | None]:
    """What the nearest cut of the graph's own order lacks: bytes, a clause, the first operator that does not fit."""
    order = next(OwnOrder.several(figures, wish.problem(figures, contiguity, figures.needs)))
    if wish.training is not None:
        cut = order.roomiest()
        runs = None if cut is None else runs_of(figures.graph_module, cut.home, figures.dependencies)
        return (0, "", None) if runs is None else lacking_in_training(figures, wish.topology, runs, wish.training)
    cut = order.nearest()
    if cut is None or cut.first_over is None or cut.value < 1:
        return 0, "", None
    clause = (
        f"; the nearest one along the graph's own order lacks {format_bytes(int(cut.value))} on {cut.over_on}, where "
        f"{cut.first_over.name} ({cut.first_over.target}) is the first operator that does not fit"
    )
    return int(cut.value), clause, cut.first_over
