"""Lines of tasks start the same tasks at the same times as looking at every task whenever one ends."""

from __future__ import annotations

import random

import pytest
from fuzz import examples

from fxpasses.partitioners.costs.list_scheduling import run_as_soon_as_possible
from fxpasses.partitioners.costs.task_lists import Task


def random_tasks(draw: random.Random) -> list[Task]:
    """Samples that go through parts on some devices; some wait for a parameter, some take no time."""
    devices, parts, beside = draw.randrange(1, 5), draw.randrange(1, 9), draw.random() < 0.5
    home = [draw.randrange(devices) for _ in range(parts)]
    inputs = [sorted(draw.sample(range(part), min(part, draw.randrange(3)))) for part in range(parts)]
    tasks: list[Task] = []

    def add(name: str, kind: str, uses: tuple[str, ...], needs: tuple[int, ...], sample: int) -> int:
        tasks.append(Task(name, kind, uses[0], uses, draw.choice([0.0, 0.5, 1.0, 1.0, 2.0]), needs, sample))
        return len(tasks) - 1

    for sample in range(draw.randrange(1, 7)):
        made: list[int] = []
        for part, device in enumerate(home):
            needs = []
            for maker in inputs[part]:
                ends = (f"device {home[maker]}", f"device {device}")
                uses = (f"link {home[maker]} {device}",) if beside else (f"link {home[maker]} {device}", *ends)
                is_near = home[maker] == device
                needs.append(made[maker] if is_near else add(f"v{maker}", "copy", uses, (made[maker],), sample))
            if draw.random() < 0.2:
                needs.append(add("weight", "load", ("memory",), (), sample))
            made.append(add(f"part {part}", "compute", (f"device {device}",), tuple(needs), sample))
    return tasks


def scheduled_slowly(tasks: list[Task]) -> list[float]:
    """When each starts, by the rule itself: look at all tasks in order whenever one has ended."""
    start: dict[int, float] = {}
    end: dict[int, float] = {}
    takes = {
        index: {maker for need in task.needs for maker in ((need,) if _computes(tasks[need]) else _made(tasks, need))}
        for index, task in enumerate(tasks)
        if _computes(task)
    }
    consumer = {index: index for index in range(len(tasks))}
    for index in takes:
        for need in tasks[index].needs:
            if not _computes(tasks[need]) and consumer[need] == need:
                consumer[need] = index
    now = 0.0
    while len(start) < len(tasks):
        done = {index for index, time in end.items() if time <= now}
        kept: set[str] = set()
        for index, task in enumerate(tasks):
            if index in start or not done.issuperset(task.needs):
                continue
            busy = {track for other, time in end.items() if time > now for track in tasks[other].uses}
            if busy.isdisjoint(task.uses) and kept.isdisjoint(task.uses):
                start[index], end[index] = now, now + task.seconds
            elif done.issuperset(takes.get(consumer[index], ())):
                kept.update(task.uses)
        later = [time for time in end.values() if time > now]
        if any(time <= now and index not in done for index, time in end.items()):
            continue  # what took no time has ended by now
        now = min(later, default=now)
    return [start[index] for index in range(len(tasks))]


def _computes(task: Task) -> bool:
    return task.kind == "compute"


def _made(tasks: list[Task], need: int) -> tuple[int, ...]:
    return tasks[need].needs if tasks[need].kind == "copy" else ()


@pytest.mark.parametrize("seed", range(examples(200)))
def test_every_task_starts_when_the_rule_says(seed: int) -> None:
    tasks = random_tasks(random.Random(seed))
    expected = scheduled_slowly(tasks)

    run_as_soon_as_possible(tasks)

    assert expected == [task.start for task in tasks]


def test_what_a_task_waited_for_ended_when_it_began() -> None:
    for seed in range(50):
        tasks = random_tasks(random.Random(seed))

        run_as_soon_as_possible(tasks)

        for task in tasks:
            assert task.start == (0.0 if task.after is None else tasks[task.after].end)
