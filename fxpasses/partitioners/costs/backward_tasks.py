"""The second half of a training step as tasks: each part's backward, and gradients that go back where values came from.

It mirrors the forward: what came last goes first, and needs the backward of all that took what its forward made.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from torch.fx import Node

from fxpasses.devices import Topology
from fxpasses.partitioners.costs.graph_figures import value_bytes
from fxpasses.partitioners.costs.task_lists import Task, TaskList

__all__ = ["add_backward"]


def add_backward(
    todo: TaskList,
    partitions: Mapping[Hashable, Sequence[Node]],
    topology: Topology,
    seconds: Mapping[Node, float],
    share: Callable[[Node], float],
) -> None:
    """Append the backward of the forward of one sample.

    A gradient takes a link for its bytes: the latency counts once, with the value, as placing counts both as one
    transfer of twice the size. What has no gradient sends none.

    Args:
        todo: The forward, without loads.
        partitions: The nodes of each part.
        topology: Devices and links.
        seconds: What the forward of a node takes where it is.
        share: How often that its backward takes; 0 where it has none.
    """
    forward = list(todo.tasks)
    back: dict[int, int] = {}
    users: list[list[int]] = [[] for _ in forward]
    for index, task in enumerate(forward):
        for need in task.needs:
            users[need].append(index)
    results = [index for index, each in enumerate(users) if not each]  # a loss needs them all
    values = {at: (value, target) for (_, value, target), at in todo.copying.items()}
    busy = {str(part): sum(seconds[node] * share(node) for node in nodes) for part, nodes in partitions.items()}
    for index in reversed(range(len(forward))):
        task = forward[index]
        if task.kind == "copy" and not share(values[index][0]):
            continue
        needs = [back[user] for user in users[index] if user in back] or results
        own = [index] if task.kind == "compute" else []
        if task.kind == "compute":
            again = Task(task.name, "compute", task.track, task.uses, busy[task.part], (), 0, part=task.part)
        else:
            again = _gradient(task, *values[index], topology)
        again.is_backward, again.needs = True, tuple(dict.fromkeys((*needs, *own)))
        back[index] = todo.add(again)
        if task.kind == "compute":
            todo.backward[task.part] = back[index]


def _gradient(task: Task, value: Node, target: str, topology: Topology) -> Task:
    """The way back of a copy, over the link in the other direction."""
    source = task.track.partition(" → ")[0]
    size = value_bytes(value)
    taken = topology.seconds(target, source, 2 * size) - topology.seconds(target, source, size)
    link = f"{target} → {source}"
    uses = tuple(link if used == task.track else used for used in task.uses)
    return Task(task.name, "copy", link, uses, taken, (), 0)
