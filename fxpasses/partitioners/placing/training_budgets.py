"""Say what a training step lacks: where one device or all cannot hold it, and where no placement was found."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator

from torch.fx import Node

from fxpasses.devices import Topology
from fxpasses.errors import InfeasibleError
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.partitioners.placing.device_reasons import ONE_OPERATOR, TOO_LARGE_TOGETHER
from fxpasses.partitioners.placing.device_runs import Runs
from fxpasses.partitioners.placing.training_figures import storages_of
from fxpasses.units import format_bytes

__all__ = ["lacking_in_training", "refuse_too_large_to_step"]


def refuse_too_large_to_step(figures: GraphFigures, topology: Topology, step: TrainingStep) -> None:
    """Refuse a model whose parameters are too many to be trained, whatever runs where.

    While the optimizer steps the devices hold all parameters and, for those that are trained, gradients, what the
    optimizer keeps, and what it makes meanwhile.

    Args:
        figures: The graph as it is measured for running it.
        topology: The devices.
        step: The training step.

    Raises:
        InfeasibleError: all devices together have less, or each has less than the parameters of one operator need.
    """
    have = sum(device.memory for device in topology.devices)
    needs = list(_needed_to_step(figures, step))
    totals = list(itertools.accumulate(needs))
    if not totals or totals[-1] <= have:
        _refuse_operators(figures, topology, step)
        return
    first = next(node for node, total in zip(figures.nodes, totals, strict=True) if total > have)
    budgets = ", ".join(f"{device.name} {format_bytes(device.memory)}" for device in topology.devices)
    raise InfeasibleError(
        f"A training step needs {format_bytes(totals[-1])} while the optimizer steps (parameters, gradients, "
        f"{step.training}), but all devices together have {format_bytes(have)} ({budgets}): "
        f"{format_bytes(totals[-1] - have)} are missing. {first.name} ({first.target}) is the first operator whose "
        "parameters do not fit.",
        node=first,
        missing_bytes=int(totals[-1] - have),
        reason=TOO_LARGE_TOGETHER,
    )


def _refuse_operators(figures: GraphFigures, topology: Topology, step: TrainingStep) -> None:
    """What only one operator uses is where it runs, with all that is there for it while the optimizer steps."""
    training, trained = step.training, storages_of(figures, step.needs.trained)
    largest = max(device.memory for device in topology.devices)
    users = Counter(storage for constants in figures.constants for storage in constants)
    for node, constants in zip(figures.nodes, figures.constants, strict=True):
        own = {storage: size for storage, size in constants.items() if users[storage] == 1}
        sizes = [size for storage, size in own.items() if storage in trained]
        need = sum(own.values()) + sum(sizes) + training.kept_bytes(sizes) + training.step_bytes(sizes)
        if need > largest:
            raise InfeasibleError(
                f"{node.name} ({node.target}) needs {format_bytes(need)} on one device while the optimizer steps "
                f"(parameters, gradients, {training}), but the largest device has {format_bytes(largest)}: "
                f"{format_bytes(need - largest)} are missing.",
                node=node,
                missing_bytes=int(need - largest),
                reason=ONE_OPERATOR,
            )


def _needed_to_step(figures: GraphFigures, step: TrainingStep) -> Iterator[int]:
    """For each node the bytes of the parameters that none before it uses, and of all that is there for them."""
    seen = set[int]()
    trained = storages_of(figures, step.needs.trained)
    for constants in figures.constants:
        fresh = {storage: size for storage, size in constants.items() if storage not in seen}
        seen.update(fresh)
        times = {storage: step.training.times_in_step if storage in trained else 1 for storage in fresh}
        yield sum(int(times[storage] * size) for storage, size in fresh.items())


def lacking_in_training(
    figures: GraphFigures, topology: Topology, runs: Runs, step: TrainingStep, which: str
) -> tuple[int, str, Node | None]:
    """What a placement lacks in a training step: bytes, a clause, and the operator at which it lacks most.

    ``which`` placement it is says the clause.
    """
    device_of = runs.devices(topology)
    course = step.course(figures.graph_module, runs.assignment, device_of, figures.memory)
    over = {name: course.memory(name).peak - topology[name].memory for name in course.held}
    worst = max(over, key=over.__getitem__)
    if over[worst] <= 0:
        return 0, "", None
    position = course.fullest(worst)
    node = course.node_at(position)
    if node is not None:
        at = f" of {node.name} ({node.target})"
    else:
        home = runs.assignment.partition_of
        node = _with_largest_parameters(figures, (each for each in home if device_of[str(home[each])].name == worst))
        at = f", and the largest parameters there are those of {node.name} ({node.target})"
    clause = f"; {which} lacks {format_bytes(over[worst])} on {worst}, {course.moment(position)}{at}"
    return int(over[worst]), clause, node


def _with_largest_parameters(figures: GraphFigures, nodes: Iterable[Node]) -> Node:
    return max(nodes, key=lambda node: sum(figures.constants[figures.position[node]].values()))
