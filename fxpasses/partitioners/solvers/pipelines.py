"""The best pipeline: cut linear orders, then all ideals if the budget reaches, and say how good the answer is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners.solvers.bounds import load_bound, weights_of
from fxpasses.partitioners.solvers.contiguous import DeviceClass, Pipeline, PipelineSearch
from fxpasses.partitioners.solvers.cutting import (
    CutFamily,
    all_ideals,
    linear_orders,
    prefix_limit,
    prefixes,
    prefixes_near,
)
from fxpasses.partitioners.solvers.problem import PlacementProblem
from fxpasses.partitioners.solvers.reducing import Units
from fxpasses.partitioners.solvers.tables import CostTables, Floats, evaluate

__all__ = ["device_classes", "solve_pipeline"]

IDEALS_A_SECOND = 20_000
STEPS_A_SECOND = 30e6
MAX_STATES = 4096
MAX_TABLE = 10_000_000
ORDERS = 6
LONG = 2000
"""Units from which on one linear order is cut, instead of ``ORDERS``."""
REFINING = 4


@attrs.frozen(eq=False)
class _Search:
    """A reduced problem with the classes of its devices, as the links are at their best."""

    problem: PlacementProblem
    tables: CostTables
    units: Units
    classes: tuple[DeviceClass, ...]

    @property
    def least(self) -> Floats:
        least: Floats = weights_of(self.units, self.problem.objective).min(axis=1)
        return least

    @property
    def states(self) -> int:
        return math.prod(len(group.devices) + 1 for group in self.classes)

    def over(self, inside: NDArray[np.bool_], classes: tuple[DeviceClass, ...] | None = None) -> PipelineSearch:
        classes = self.classes if classes is None else classes
        least = np.min([np.where(group.banned, np.inf, group.weight) for group in classes], axis=0)
        weight = np.where(np.isfinite(least), least, 0.0)
        return PipelineSearch(self.units, CutFamily.of(inside, weight), classes)

    def devices(self, pipeline: Pipeline) -> NDArray[np.int64]:
        """The position of each node's device."""
        home = np.zeros(self.units.size, dtype=np.int64)
        for device, units in pipeline.runs:
            home[list(units)] = device
        return home[self.units.unit_of]

    def value(self, pipeline: Pipeline) -> float:
        return evaluate(self.tables, self.devices(pipeline)).value(self.problem.objective)


def solve_pipeline(
    problem: PlacementProblem, tables: CostTables, units: Units
) -> tuple[NDArray[np.int64], tuple[int, ...], float]:
    """Place a reduced problem whose units each fit some device.

    Returns:
        The position of each node's device; the devices in execution order; a bound on every pipeline.

    Raises:
        InfeasibleError: proven that none exists; says by how many bytes and which node.
        PlacementError: none was found, and the budget was too small to prove that none exists.
    """
    search = _Search(problem, tables, units, device_classes(problem, tables, units))
    bound = load_bound(units, tables.memory, problem.objective)
    best = _first_answer(search, bound)
    if best is None or search.value(best) > bound:
        best, proven = _exact_answer(search, best, bound)
        bound = max(bound, proven)
    return search.devices(best), tuple(device for device, _units in best.runs), bound


def _first_answer(search: _Search, bound: float) -> Pipeline | None:
    """The best over prefixes of linear orders; the threshold that prunes grows until something is found.

    A long order is cut coarsely first, then ever finer around the cuts that were found.
    """
    long = search.units.size > LONG
    classes = _merged(search.classes)
    orders = linear_orders(search.units, 1 if long else ORDERS, search.problem.seed)
    best = next(_answers(search.over(prefixes(orders, search.least, len(search.tables.memory)), classes), bound), None)
    share = 1 / prefix_limit(search.units.size)
    while long and best is not None and share * search.units.size > 1:
        share /= REFINING
        stops = np.cumsum([len(units) for _device, units in best.runs])
        near = prefixes_near(orders[0], stops, search.least, share, REFINING)
        found, _finished = search.over(near, classes).run(best.value)
        best = found or best
    return best


def _answers(prepared: PipelineSearch, bound: float) -> Iterator[Pipeline]:
    for below in (1.1 * bound, 2 * bound, math.inf):
        pipeline, _finished = prepared.run(below)
        if pipeline is not None:
            yield pipeline


def _exact_answer(search: _Search, best: Pipeline | None, bound: float) -> tuple[Pipeline, float]:
    """The best over all ideals with the proven bound, or what there is when the budget does not reach."""
    budget = search.problem.time_budget
    states = search.states
    limit = int(min(IDEALS_A_SECOND * budget, MAX_TABLE / states))
    inside = all_ideals(search.units, limit) if budget and states <= MAX_STATES else None
    if inside is not None:
        prepared = search.over(inside)
        below = math.inf if best is None else search.value(best) * (1 - 1e-9)
        found, finished = prepared.run(below, STEPS_A_SECOND * budget)
        if finished and found is None and best is None:
            raise _infeasible(search, inside)
        if finished and found is None and best is not None:
            return best, search.value(best)
        if found is not None:
            better = found if best is None else min((found, best), key=search.value)
            return better, found.value
    if best is None:
        raise PlacementError(
            "No placement that keeps every budget was found, and the search did not get far enough to prove that none "
            f"exists; raise time_budget (it is {budget:g} s) or the memory of a device."
        )
    return best, 0.0


def device_classes(problem: PlacementProblem, tables: CostTables, units: Units) -> tuple[DeviceClass, ...]:
    """Group devices that no unit and no value can tell apart, links at their best."""
    weights = weights_of(units, problem.objective)
    count = len(tables.memory)
    groups: dict[tuple[object, ...], DeviceClass] = {}
    for device in range(count):
        others = [other for other in range(count) if other != device]
        leaving = _value_seconds(tables, units, [(device, other) for other in others])
        entering = _value_seconds(tables, units, [(other, device) for other in others])
        if problem.objective == "memory":
            leaving, entering = np.zeros_like(leaving), np.zeros_like(entering)
        banned = ~np.isfinite(weights[:, device])
        weight = np.where(banned, 0.0, weights[:, device])
        memory = float(tables.memory[device])
        key = (weight.tobytes(), banned.tobytes(), memory, leaving.tobytes(), entering.tobytes())
        known = groups.get(key)
        devices = (device,) if known is None else (*known.devices, device)
        groups[key] = DeviceClass(devices, weight, banned, memory, leaving, entering)
    return tuple(groups.values())


def _value_seconds(tables: CostTables, units: Units, links: list[tuple[int, int]]) -> Floats:
    """Seconds of each value of the reduced problem over the best of some links, ``(q,)``."""
    total = np.zeros(len(units.makers))
    alike = {(tables.latency[link], tables.per_byte[link]): link for link in links}
    if alike and len(units.makers):
        each = np.min([tables.sending(source, target) for source, target in alike.values()], axis=0)
        value = np.repeat(np.arange(len(units.makers)), [len(makers) for makers in units.makers])
        np.add.at(total, value, each[np.fromiter(itertools.chain.from_iterable(units.makers), dtype=np.int64)])
    return total


def _merged(classes: tuple[DeviceClass, ...]) -> tuple[DeviceClass, ...]:
    """At most ``MAX_STATES`` states: the two classes nearest in speed become one that is as bad as either."""
    found = sorted(classes, key=lambda group: (float(group.weight.sum()), group.devices))
    while math.prod(len(group.devices) + 1 for group in found) > MAX_STATES and len(found) > 1:
        speed = [float(group.weight.sum()) for group in found]
        near = min(range(len(found) - 1), key=lambda index: (speed[index + 1] - speed[index], index))
        first, second = found[near : near + 2]
        found[near : near + 2] = [
            DeviceClass(
                tuple(sorted(first.devices + second.devices)),
                np.maximum(first.weight, second.weight),
                first.banned | second.banned,
                min(first.memory, second.memory),
                np.maximum(first.leaving, second.leaving),
                np.maximum(first.entering, second.entering),
            )
        ]
    return tuple(found)


def _infeasible(search: _Search, inside: NDArray[np.bool_]) -> InfeasibleError:
    """Say by how many bytes the best pipeline misses, and at which node."""
    none = np.zeros(len(search.units.makers))
    classes = tuple(
        DeviceClass(
            group.devices, search.units.kept.astype(np.float64), group.banned, math.inf, none, none, credit=group.memory
        )
        for group in search.classes
    )
    pipeline, _finished = search.over(inside, classes).run(math.inf)
    if pipeline is None:
        return InfeasibleError(
            "No pipeline exists, however large the memories: what the devices can run, pins and forbidden devices "
            "would have values flow back to a device that has finished."
        )
    device_of = search.devices(pipeline)
    over = evaluate(search.tables, device_of).kept - search.tables.memory
    worst = int(np.argmax(over))
    own = np.flatnonzero(device_of == worst)
    first = own[int(np.argmax(np.cumsum(search.tables.kept[own]) > search.tables.memory[worst]))]
    missing = int(over[worst])
    return InfeasibleError(
        f"No pipeline keeps every budget: the one that comes nearest needs {missing} bytes more on "
        f"{search.problem.devices[worst].name!r}, where {search.tables.nodes[first]!r} is the first node that does not "
        "fit.",
        missing_bytes=missing,
    )
