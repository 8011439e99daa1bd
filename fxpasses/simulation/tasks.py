"""The tasks of a simulation, from :mod:`fxpasses.partitioners.task_lists`, where placing counts with them too."""

from fxpasses.partitioners.task_lists import Overlap, Task, TaskList, run_as_soon_as_possible, run_one_by_one, tasks_of

__all__ = ["Overlap", "Task", "TaskList", "run_as_soon_as_possible", "run_one_by_one", "tasks_of"]
