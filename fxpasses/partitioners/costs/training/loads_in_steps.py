"""What a training step makes of loaded parameters: backwards load them again, gradients go to where they come from.

Autograd keeps no loaded parameter. A backward that reads one loads it, and has it while it runs. Its gradient is made
where it is read, and goes home with the backward of its load: autograd goes back the way that the forward came, which
loaded it before the part that runs before its own. The optimizer finds both in main memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

import attrs
from torch.fx import Node

from fxpasses.effects import EffectAnalysis
from fxpasses.partitioners.costs.training.forward_traces import traces_its_body
from fxpasses.partitioners.costs.training.training_course import StepLife, TrainingCourse

__all__ = ["StepLoads"]


@attrs.frozen(eq=False)
class StepLoads:
    """A training step, of which some parameters are loaded.

    Args:
        course: The step with all parameters where they are used.
        gradients: On each device, for each storage of a parameter, from when to when parts of its gradient are there.
        spared: On each device, by position, what a backward makes only when something else is gone.
        reads: On each device, for each parameter or buffer by its storages, the positions at which a backward reads it
            because its forward has saved it.
        keeps: Likewise where it was given to a function that keeps it as it is: when that runs, and until when it does.
    """

    course: TrainingCourse
    gradients: Mapping[str, Mapping[int, Sequence[StepLife]]]
    spared: Mapping[str, Mapping[int, int]]
    reads: Mapping[str, Mapping[tuple[int, ...], Sequence[int]]]
    keeps: Mapping[str, Mapping[tuple[int, ...], Sequence[tuple[int, int]]]]

    @classmethod
    def of(cls, course: TrainingCourse, effects: EffectAnalysis) -> StepLoads:
        """Find what there is of parameters among all that comes and goes."""
        steps = {name: [life for life in lives if isinstance(life, StepLife)] for name, lives in course.lives.items()}
        gradients: dict[str, dict[int, list[StepLife]]] = {name: {} for name in steps}
        for name, life in ((name, life) for name, own in steps.items() for life in own):
            for storage in dict.fromkeys(key for of in life.gradient_of for key in effects.storages(of)):
                gradients[name].setdefault(storage, []).append(life)
        spared = {name: {life.start: -life.size for life in own if life.size < 0} for name, own in steps.items()}
        reads: dict[str, dict[tuple[int, ...], list[int]]] = {name: {} for name in steps}
        keeps: dict[str, dict[tuple[int, ...], list[tuple[int, int]]]] = {name: {} for name in steps}
        end = len(course.schedule)
        for position, node in enumerate(course.forward):
            home, backward = course.home[node], end - 1 - position
            state, held = (
                dict.fromkeys(effects.storages(owner) for owner in owners.get(node, ()) if owner.op == "get_attr")
                for owners in (course.saved, course.held_to_end)
            )
            for storages in state:
                is_kept = storages not in held and traces_its_body(node)  # a scan keeps its operands without asking
                if not is_kept:
                    reads[home].setdefault(storages, []).append(backward)
                if is_kept or storages in held:
                    keeps[home].setdefault(storages, []).append((position, backward if is_kept else end))
        return cls(course, gradients, spared, reads, keeps)

    def times_again(self, device: str, storages: tuple[int, ...], first: int, last: int) -> int:
        """How often backwards of a stretch of the forward load a parameter."""
        return sum(first <= self._mirrored(at) <= last for at in self._reads(device, storages))

    def kept_until(self, device: str, storages: tuple[int, ...], first: int, last: int) -> int:
        """Until when there is what a stretch of the forward loads: longer where a function keeps it."""
        kept = self.keeps[device].get(storages, ())
        return max((until for at, until in kept if first <= at <= last), default=last)

    def is_trained(self, device: str, storages: tuple[int, ...]) -> bool:
        """Whether a parameter has a gradient there."""
        return storages in self.course.trained[device]

    def lives(
        self, device: str, value: Node, storages: tuple[int, ...], loads: Sequence[tuple[int, int, int]], size: int
    ) -> Iterator[StepLife]:
        """What comes of a parameter in the backward, beside what the step has where it stays.

        Args:
            device: Where it is loaded.
            value: A node that reads it.
            storages: Where it lies.
            loads: For each load when it begins, and the stretch of the forward that it is for.
            size: Its bytes.
        """
        for at in self._reads(device, storages):
            yield StepLife(at, at, size, False, value, kind="loaded")
        gradients = [life for key in storages for life in self.gradients[device].get(key, ())]
        if len(loads) == 1:
            goes = self._mirrored(loads[0][0])
            yield from (_until(life, goes) for life in gradients if life.stop == len(self.course.schedule) > goes)
            return
        for life in (each for each in gradients if each.is_sum):
            yield _until(life, life.start - 1)
            if less := self.spared[device].get(life.start):  # beside the sum, which is not made here
                yield StepLife(life.start, life.start, min(less, life.size), False, value)
        for begins, first, last in loads:
            goes = self._mirrored(begins)
            own = [life for life in gradients if not life.is_sum and first <= self._mirrored(life.start) <= last]
            own.sort(key=lambda life: life.start)
            for life, after in itertools.zip_longest(own, [life.start for life in own[1:]]):
                yield _until(life, goes if after is None else after)
                if after is not None:  # both, and their sum
                    yield StepLife(after, after, life.size, False, value, kind="gradients")

    def without(
        self, loaded: Mapping[str, Collection[tuple[int, ...]]], homes: Mapping[tuple[int, ...], str]
    ) -> TrainingCourse:
        """The step without gradients that stay, and without an optimizer, for what is loaded on each device.

        What the optimizer makes more or less while it steps is among what comes and goes; of gradients :meth:`lives`
        tells.

        Args:
            loaded: What is loaded on each device, by its storages.
            homes: Where that lives which another device has all the time; there the optimizer steps.
        """
        course, training = self.course, self.course.training
        trained = {
            name: {key: size for key, size in sizes.items() if key not in loaded[name]}
            for name, sizes in course.trained.items()
        }
        home = {key: name for name, sizes in course.stepped.items() for key in sizes} | dict(homes)
        stepped = {name: {key: sizes[key] for key in sizes if home.get(key) == name} for name, sizes in trained.items()}
        held, lives = dict(course.held), dict(course.lives)
        for name, before in course.stepped.items():
            now = stepped[name].values()
            held[name] -= training.kept_bytes(before.values()) - training.kept_bytes(now)
            if less := training.step_bytes(before.values()) - training.step_bytes(now):
                end = len(course.schedule)
                life = StepLife(end, end, -less, False, course.schedule[0], kind="optimizer")
                lives[name] = (*lives[name], life)
        return attrs.evolve(course, held=held, lives=lives, trained=trained, stepped=stepped)

    def _reads(self, device: str, storages: tuple[int, ...]) -> Sequence[int]:
        return self.reads[device].get(storages, ())

    def _mirrored(self, position: int) -> int:
        return len(self.course.schedule) - 1 - position


def _until(life: StepLife, stop: int) -> StepLife:
    """What is to be added to something that goes sooner or later."""
    if stop < life.stop:
        return attrs.evolve(life, start=max(stop + 1, life.start), size=-life.size)
    return attrs.evolve(life, start=life.stop + 1, stop=stop)
