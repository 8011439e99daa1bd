"""Search a placement of a graph whose budgets hold in the predicted memory, and know how good it is.

A problem for the solvers knows memory only roughly: what is alive depends on what runs where. So the first problem
counts only what must be on a device in any case: its bound holds for every placement, and if it has no answer there is
none. An answer is checked against :func:`~fxpasses.partitioners.memory.predict_memory`; where it passes a budget, a
stricter problem is solved, a few times.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import attrs

from fxpasses.devices import Device, Topology
from fxpasses.errors import PlacementError
from fxpasses.partitioners.colocation import Selector
from fxpasses.partitioners.device_runs import Runs, runs_of
from fxpasses.partitioners.graph_figures import GraphFigures, Support
from fxpasses.partitioners.graph_problems import homes_of, placement_problem
from fxpasses.partitioners.memory import DeviceMemory, predict_memory
from fxpasses.partitioners.solvers import PlacementProblem, PlacementSolution, solve_placement
from fxpasses.units import format_bytes

__all__ = ["Found", "Wish", "memory_of", "search"]

MAX_ROUNDS = 8


@attrs.frozen(eq=False)
class Wish:
    """What a caller asks for; the fields are those of :func:`~fxpasses.partitioners.by_device.place_by_device`."""

    topology: Topology
    objective: str
    supports: Support | None = None
    colocate: Sequence[Sequence[Selector]] = ()
    pinned: Mapping[Selector, str] = attrs.field(factory=dict)
    forbidden: Mapping[Selector, Collection[str]] = attrs.field(factory=dict)
    time_budget: float = 0.5
    seed: int = 0

    def problem(self, figures: GraphFigures, contiguity: str, *, relaxed: bool) -> PlacementProblem:
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
            seed=self.seed,
            figures=figures,
            relaxed=relaxed,
        )


@attrs.frozen(eq=False)
class Found:
    """An answer that keeps every budget.

    Args:
        solution: What the solver said.
        runs: The parts in execution order.
        contiguity: What a device may take.
        bound: No placement of this kind can be below it.
    """

    solution: PlacementSolution
    runs: Runs
    contiguity: str
    bound: float


def search(figures: GraphFigures, wish: Wish, contiguity: str) -> Found:
    """Solve, check, and solve more strictly until every budget holds.

    After the relaxed problem comes one that counts all that is alive anywhere, then relaxed ones whose budgets are cut
    by what the solver did not see on the devices that passed theirs.

    Raises:
        InfeasibleError: proven that no placement of this kind keeps the budgets.
        PlacementError: none was found that does.
    """
    relaxed = wish.problem(figures, contiguity, relaxed=True)
    solution = solve_placement(relaxed)
    bound = solution.bound
    runs, over = _checked(figures, wish.topology, solution)
    unseen: dict[str, int] = {}
    for attempt in range(MAX_ROUNDS):
        if not over:
            return Found(solution, runs, contiguity, min(bound, solution.objective_value))
        if attempt != 1:
            for name, size in over.items():
                spare = int(wish.topology[name].memory) - solution.kept_bytes[name]
                unseen[name] = max(unseen.get(name, 0) + 1, size + spare)
        try:
            solution = solve_placement(
                attrs.evolve(relaxed, devices=[_smaller(device, unseen) for device in relaxed.devices])
                if attempt
                else wish.problem(figures, contiguity, relaxed=False)
            )
        except PlacementError:
            if attempt:
                break
            continue  # it counts too much: that it has no answer proves nothing
        runs, over = _checked(figures, wish.topology, solution)
    raise _none_found(over)


def _smaller(device: Device, unseen: Mapping[str, int]) -> Device:
    if device.available_mem_bytes is None or device.name not in unseen:
        return device
    return attrs.evolve(device, available_mem_bytes=max(0, device.available_mem_bytes - unseen[device.name]))


def _checked(figures: GraphFigures, topology: Topology, solution: PlacementSolution) -> tuple[Runs, dict[str, int]]:
    """The parts of an answer, and by how many bytes which devices are over their budget as memory is predicted."""
    runs = runs_of(figures.graph_module, homes_of(solution), figures.dependencies)
    if all(device.available_mem_bytes is None for device in topology.devices):
        return runs, {}
    memory = memory_of(figures, topology, runs)
    over = {name: held.peak - topology[name].memory for name, held in memory.items()}
    return runs, {name: int(size) for name, size in over.items() if size > 0}


def memory_of(figures: GraphFigures, topology: Topology, runs: Runs) -> dict[str, DeviceMemory]:
    """What each device holds at most."""
    device_of = {part: topology[name] for part, name in runs.device_of.items()}
    return predict_memory(figures.graph_module, runs.assignment, device_of, figures.effects)


def _none_found(over: Mapping[str, int]) -> PlacementError:
    where = ", ".join(f"{format_bytes(size)} on {name}" for name, size in over.items())
    return PlacementError(
        f"No placement was found that keeps every budget{f'; the last one tried misses {where}' if where else ''}. "
        "It is not proven that none exists: give a device more memory, or raise time_budget.",
        reason="no placement was found",
    )
