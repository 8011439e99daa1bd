"""What becomes of the peak of a device as one offloaded part after the other keeps its parameters there.

To follow all that is on the device for each of them would take as long as the graph for each part. A part that keeps
its parameters only changes what was loaded for it: in a few ranges of the schedule, and where the optimizer steps.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs

from fxpasses.partitioners.costs.parameter_loads import Constant, ParameterUses
from fxpasses.partitioners.costs.raised_ranges import RaisedRanges
from fxpasses.partitioners.costs.training.training_course import ParameterSizes, TrainingCourse

__all__ = ["KeptParts"]


class KeptParts:
    """The offloaded parts of a device, of which some keep their parameters after all.

    Args:
        uses: What the parts of the placement use.
        device: The device.
        offloaded: The parts that load their parameters, those of other devices included.
    """

    def __init__(self, uses: ParameterUses, device: str, offloaded: Collection[str]) -> None:
        self._uses, self._device = uses, device
        course, lives = uses.but_for_loads(offloaded)
        come = attrs.evolve(course, lives={device: (*course.lives[device], *lives[device])})
        self._curve, self._end = RaisedRanges(come.curve(device)), len(course.schedule)
        self._held = course.held[device]
        self._stepped = ParameterSizes()
        if isinstance(course, TrainingCourse):
            self._stepped = self._stepped.with_these(course.stepped[device].values())
        self._loaded: set[Constant] = set()
        self._elsewhere: dict[Constant, set[str]] = {}
        for constant, name in uses.loaded(offloaded):
            if name == device:
                self._loaded.add(constant)
            else:
                self._elsewhere.setdefault(constant, set()).add(name)

    @property
    def peak(self) -> int:
        """The most bytes on the device at one time."""
        return self._held + max(0, self._curve.largest)

    def keep(self, part: str, budget: float) -> bool:
        """Let a part keep its parameters, unless the peak passes the budget then; O(sqrt(nodes)) for each load."""
        kept = [constant for constant in self._uses.loadable(part) if constant in self._loaded]
        before = self._stepped
        self._add(kept, 1, self._stepped.with_these(self._steps(kept)))
        if self.peak > budget:
            self._add(kept, -1, before)
            return False
        self._loaded.difference_update(kept)
        return True

    def _add(self, kept: Sequence[Constant], sign: int, stepped: ParameterSizes) -> None:
        """Hold what was loaded, or load again what was held; and let the optimizer step for these parameters."""
        for constant in kept:
            self._held += sign * constant.held
            for life in self._uses.lives_of(constant, self._device):
                self._curve.add(life.start, min(life.stop, self._end) + 1, -sign * life.size)
        if isinstance(course := self._uses.course, TrainingCourse):
            training, before = course.training, self._stepped
            self._held += training.kept_for(stepped) - training.kept_for(before)
            made = training.made_for(stepped) - training.made_for(before)
            self._curve.add(self._end, self._end + 1, made)
        self._stepped = stepped

    def _steps(self, kept: Sequence[Constant]) -> list[int]:
        """The bytes of those parameters for which the optimizer steps on the device if they are kept there."""
        course = self._uses.course
        if not isinstance(course, TrainingCourse):
            return []
        trained = course.trained[self._device]
        return [trained[each.storages] for each in kept if each.storages in trained and self._is_home(each, course)]

    def _is_home(self, constant: Constant, course: TrainingCourse) -> bool:
        """Whether something lives on the device once it is kept there."""
        if loading := self._elsewhere.get(constant):
            return self._uses.home_beside(constant, loading) == self._device
        return constant.storages in course.stepped[self._device]
