"""The second half of a training step as tasks: each part's backward, and gradients that go back where values came from.

It mirrors the forward: what came last goes first, and needs the backward of all that took what its forward made.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from torch.fx import Node

from fxpasses.devices import MAIN_MEMORY, Topology
from fxpasses.partitioners.costs.graph_figures import value_bytes
from fxpasses.partitioners.costs.single_loads import ParameterLoad
from fxpasses.partitioners.costs.task_lists import Task, TaskList
from fxpasses.timeline.tracks import ends_of_link, link_track

__all__ = ["add_backward"]


def add_backward(
    todo: TaskList,
    partitions: Mapping[Hashable, Sequence[Node]],
    topology: Topology,
    seconds: Mapping[Node, float],
    share: Callable[[Node], float],
    loads: Iterable[ParameterLoad] = (),
) -> None:
    """Append the backward of the forward of one sample.

    A gradient takes a link for its bytes: the latency counts once, with the value, as placing counts both as one
    transfer of twice the size. What has no gradient sends none. A backward waits for what it loads again; the gradients
    of what was loaded go back after it.

    Args:
        todo: The forward.
        partitions: The nodes of each part.
        topology: Devices and links.
        seconds: What the forward of a node takes where it is.
        share: How often that its backward takes; 0 where it has none.
        loads: The loads of the forward.
    """
    forward = list(todo.tasks)
    wanted: dict[str, list[ParameterLoad]] = {}
    for load in loads:
        wanted.setdefault(load.part, []).append(load)
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
        if task.kind == "load" or (task.kind == "copy" and not share(values[index][0])):
            continue
        needs = [back[user] for user in users[index] if user in back] or results
        own = [index] if task.kind == "compute" else []
        if task.kind == "compute":
            own += [todo.add(each) for each in _loads_again(task, wanted.get(task.part, ()), needs)]
            again = Task(task.name, "compute", task.track, task.uses, busy[task.part], (), 0, part=task.part)
        else:
            again = _gradient(task, *values[index], topology)
        again.is_backward, again.needs = True, tuple(dict.fromkeys((*needs, *own)))
        back[index] = todo.add(again)
        if task.kind == "compute":
            todo.backward[task.part] = back[index]
            for sent in _gradients_of_loads(task, wanted.get(task.part, ()), back[index]):
                todo.add(sent)


def _loads_again(part: Task, loads: Iterable[ParameterLoad], needs: Sequence[int]) -> Iterator[Task]:
    """What the backward of a part waits for: nothing is loaded ahead there, and the device does nothing meanwhile."""
    link = link_track(MAIN_MEMORY, part.track)
    for load in loads:
        if load.again:
            taken, needed = load.again * load.seconds, tuple(needs)
            yield Task(str(load.value.target), "load", link, (link, part.track), taken, needed, 0, is_backward=True)


def _gradients_of_loads(part: Task, loads: Iterable[ParameterLoad], after: int) -> Iterator[Task]:
    """What goes back to main memory once the backward of a part has run; the device waits for it, too."""
    link = link_track(part.track, MAIN_MEMORY)
    for load in loads:
        if load.is_trained:
            name, uses = str(load.value.target), (link, part.track)
            yield Task(name, "copy", link, uses, load.seconds, (after,), 0, is_backward=True)


def _gradient(task: Task, value: Node, target: str, topology: Topology) -> Task:
    """The way back of a copy, over the link in the other direction."""
    ends = ends_of_link(task.track)
    assert ends is not None  # it is a copy
    source, size = ends[0], value_bytes(value)
    taken = size / topology.link(target, source).bandwidth
    link = link_track(target, source)
    uses = tuple(link if used == task.track else used for used in task.uses)
    return Task(task.name, "copy", link, uses, taken, (), 0)
