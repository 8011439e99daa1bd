"""List scheduling of tasks on tracks: devices and links that do one thing at a time."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import attrs

from fxpasses.partitioners.costs.task_lists import Task

__all__ = ["run_as_soon_as_possible"]


def run_as_soon_as_possible(tasks: Sequence[Task]) -> None:
    """Start each task when its needs are done and its tracks are free; the first in order goes first.

    List scheduling (Graham, "Bounds on multiprocessing timing anomalies", 1969), where a task that waits for a track
    keeps the others that it needs, once all that its part takes has been made: so a pipeline mostly settles at the load
    of its busiest device.

    Tasks that use the same tracks wait in one line: where its first cannot start none can. Time O(tasks · (lines + log
    tasks)), with a line for each device and each link.
    """
    consumer, unmade, wanted_by = _consumers(tasks)
    missing = [len(task.needs) for task in tasks]
    users: list[list[int]] = [[] for _ in tasks]
    takers: dict[int, list[int]] = {}
    for index, task in enumerate(tasks):
        takers.setdefault(consumer[index], []).append(index)
        for need in task.needs:
            users[need].append(index)
    lines = _Lines.of(tasks)
    for index, count in enumerate(missing):
        if count == 0:
            lines.join(index, keeps=not unmade.get(consumer[index]))
    running: list[tuple[float, int]] = []
    done_by: int | None = None
    now = 0.0
    while True:
        for index in lines.started(now, done_by):
            heapq.heappush(running, (tasks[index].end, index))
        if not running:
            return
        while running:
            now, done_by = heapq.heappop(running)
            for part in wanted_by.get(done_by, ()):
                unmade[part] -= 1
                if not unmade[part]:
                    for index in takers[part]:
                        lines.keep(index)
            for user in users[done_by]:
                missing[user] -= 1
                if missing[user] == 0:
                    lines.join(user, keeps=not unmade.get(consumer[user]))
            if not running or running[0][0] > now:
                break


@attrs.frozen(eq=False)
class _Lines:
    """The tasks that could start if their tracks were free, in a line for each set of tracks.

    Args:
        tasks: All tasks.
        line_of: The line of each task.
        ready: For each line a heap of the tasks in it.
        keeping: For each line a heap of those that keep their tracks while they wait, and of some that have started.
        waits: Whether each task is in its line.
        holder: Which task had a track last.
    """

    tasks: Sequence[Task]
    line_of: Sequence[int]
    ready: list[list[int]]
    keeping: list[list[int]]
    waits: list[bool]
    holder: dict[str, int] = attrs.field(factory=dict)

    @classmethod
    def of(cls, tasks: Sequence[Task]) -> _Lines:
        number: dict[tuple[str, ...], int] = {}
        line_of = [number.setdefault(task.uses, len(number)) for task in tasks]
        return cls(tasks, line_of, [[] for _ in number], [[] for _ in number], [False] * len(tasks))

    def join(self, index: int, *, keeps: bool) -> None:
        """Put a task in its line."""
        self.waits[index] = True
        heapq.heappush(self.ready[self.line_of[index]], index)
        if keeps:
            self.keep(index)

    def keep(self, index: int) -> None:
        """Let a task keep its tracks from now on, if it waits."""
        if self.waits[index]:
            heapq.heappush(self.keeping[self.line_of[index]], index)

    def started(self, now: float, done_by: int | None) -> list[int]:
        """Start what can start, the first in order first; no later one gets a track that an earlier one keeps."""
        kept: set[str] = set()
        found: list[int] = []
        heads = [(line[0], True) for line in self.ready if line]
        heapq.heapify(heads)
        while heads:
            index, is_first = heapq.heappop(heads)
            task, line = self.tasks[index], self.line_of[index]
            if is_first and all(track not in kept and self._is_free(track, now) for track in task.uses):
                task.start = now
                task.after, task.why = _waited_for(self.tasks, index, self.holder, done_by)
                self.holder.update(dict.fromkeys(task.uses, index))
                self.waits[index] = False
                heapq.heappop(self.ready[line])
                found.append(index)
                if self.ready[line]:
                    heapq.heappush(heads, (self.ready[line][0], True))
                continue
            keeper = self._keeper(line)
            if keeper == index:
                kept.update(task.uses)
            elif keeper is not None and is_first:
                heapq.heappush(heads, (keeper, False))
        return found

    def _is_free(self, track: str, now: float) -> bool:
        return track not in self.holder or self.tasks[self.holder[track]].end <= now

    def _keeper(self, line: int) -> int | None:
        """The first task of a line that keeps its tracks."""
        keeping = self.keeping[line]
        while keeping and not self.waits[keeping[0]]:
            heapq.heappop(keeping)
        return keeping[0] if keeping else None


def _consumers(tasks: Sequence[Task]) -> tuple[list[int], dict[int, int], dict[int, list[int]]]:
    """For each task the part that it is for, for each part how many others make what it takes, and who these are for.

    A copy or a load that several parts of a device use is for the first of them.
    """
    consumer = list(range(len(tasks)))
    unmade: dict[int, int] = {}
    wanted_by: dict[int, list[int]] = {}
    for index, task in enumerate(tasks):
        if task.kind != "compute":
            continue
        makers: dict[int, None] = {}
        for need in task.needs:
            if tasks[need].kind == "compute":
                makers[need] = None
                continue
            if tasks[need].kind == "copy":
                makers.update(dict.fromkeys(tasks[need].needs))
            if consumer[need] == need:
                consumer[need] = index
        unmade[index] = len(makers)
        for maker in makers:
            wanted_by.setdefault(maker, []).append(index)
    return consumer, unmade, wanted_by


def _waited_for(
    tasks: Sequence[Task], index: int, holder: Mapping[str, int], done_by: int | None
) -> tuple[int | None, str]:
    """Which task ended when this one began: one whose value it needs, or else one that kept its track busy."""
    task = tasks[index]
    for need in task.needs:
        if tasks[need].end == task.start:
            return need, f"needs {tasks[need].name}"
    for track in task.uses:
        if track in holder and tasks[holder[track]].end == task.start:
            return holder[track], f"{track} was busy with {tasks[holder[track]].name}"
    return (done_by if task.start > 0 else None), ""
