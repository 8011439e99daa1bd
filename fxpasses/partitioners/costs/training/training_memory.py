"""Predict how many bytes each device holds at most in a training step: forward, backward, optimizer.

The schedule is twice as long: the backward of a node runs at the mirrored position. What autograd saves and makes is
not guessed: the graph runs once, forward and backward, on tensors without data, and autograd says which storages it
keeps and when it frees what it makes. Saved values stay to the backward of the first node that saved them; a gradient
lives on the device of the node whose backward makes it, and as a copy on each other device that it is sent to.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import attrs
from torch.fx import GraphModule, Node

from fxpasses.devices import Device
from fxpasses.effects import EffectAnalysis
from fxpasses.errors import InputError
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.device_storages import Place
from fxpasses.partitioners.costs.given_parts import check_parts
from fxpasses.partitioners.costs.graph_figures import value_bytes
from fxpasses.partitioners.costs.memory import follow_placed
from fxpasses.partitioners.costs.memory_courses import DeviceMemory, Life, MemoryCourse
from fxpasses.partitioners.costs.memory_facts import MemoryFacts
from fxpasses.partitioners.costs.node_costs import STEP_WORKSPACE, StepWorkspace
from fxpasses.partitioners.costs.training.backward_needs import BackwardNeeds, Stay
from fxpasses.partitioners.costs.training.backward_orders import needs_in_order
from fxpasses.partitioners.costs.training.backward_traces import trace_backward
from fxpasses.partitioners.costs.training.crossing_gradients import CrossingGradients, Lying
from fxpasses.partitioners.costs.training.forward_traces import LOOPING
from fxpasses.partitioners.costs.training.training_course import Kind, StepLife, Training, TrainingCourse

__all__ = ["follow_training", "predict_training_memory"]


def predict_training_memory(
    graph_module: GraphModule,
    assignment: Assignment,
    device_of: Mapping[str, Device],
    training: Training,
    effects: EffectAnalysis | None = None,
    needs: BackwardNeeds | None = None,
) -> dict[str, DeviceMemory]:
    """Add up what is alive on each device through forward, backward and optimizer step.

    Args:
        graph_module: The unsplit forward graph with its parameters, its nodes with ``val``.
        assignment: Which node is in which part.
        device_of: The device of each part.
        training: What the optimizer keeps.
        effects: The effects of the graph, if they are known already.
        needs: What the backward of the graph in its own order keeps, if that is known already.

    Returns:
        For each device by name; ``activations`` are all values alive at the worst moment, saved ones and gradients of
        values included. Gradients of the outputs count; what a loss function outside of the graph holds does not.

    Raises:
        InputError: A part has no device, or one of the arguments is something else.
        PartitionError: The assignment is of another graph.
        MissingMetadataError: A node has no value.
        PlacementError: An operator cannot run without data.
    """
    check_parts(graph_module, assignment, device_of)
    if not isinstance(training, Training):
        raise InputError(f"What is kept in training is said by a fxpasses.Training, not by {training!r}.")
    needs = needs_in_order(graph_module, assignment, needs or trace_backward(graph_module))
    course = follow_training(MemoryFacts.of(graph_module, effects), assignment, device_of, training, needs)
    return {name: course.memory(name) for name in course.held}


def follow_training(
    facts: MemoryFacts,
    assignment: Assignment,
    device_of: Mapping[str, Device],
    training: Training,
    needs: BackwardNeeds,
) -> TrainingCourse:
    """Follow what comes and goes on each device in a training step; see :func:`predict_training_memory`."""
    forward = follow_placed(facts, assignment, device_of)
    home = {node: device_of[str(part)].name for node, part in assignment.partition_of.items()}
    gradients = CrossingGradients.of(assignment, home, needs.differentiable)
    known = frozenset(device.name for device in device_of.values() if device.has_known_kernels)
    step = _Step(forward, needs, home, gradients, facts.effects, known, facts.tangents)
    stepped = step.trained(at_home=True)
    return TrainingCourse(
        (*forward.schedule, *reversed(forward.schedule)),
        {name: held + training.kept_bytes(stepped[name].values()) for name, held in forward.held.items()},
        step.lives({name: training.step_bytes(sizes.values()) for name, sizes in stepped.items()}),
        forward.state,
        forward.storages,
        training=training,
        trained=step.trained(),
        stepped=stepped,
        saved=needs.saved,
        held_to_end=needs.held_to_end,
        home=home,
        unread=forward.unread,
    )


@attrs.frozen(eq=False, slots=False)
class _Step:
    """One training step: positions from 0 to 2n, the backward of node ``i`` at ``2n - 1 - i``."""

    course: MemoryCourse
    needs: BackwardNeeds
    home: Mapping[Node, str]
    gradients: CrossingGradients
    effects: EffectAnalysis
    known: frozenset[str]  # devices of which it is known what kernels need for themselves
    tangents: Mapping[Node, Mapping[int, tuple[int, ...]]]
    places: Mapping[Stay, Mapping[Node, Lying]] = attrs.field(init=False)

    @places.default
    def _find_places(self) -> Mapping[Stay, Mapping[Node, Lying]]:
        return {stay: self.gradients.places(stay, *self._span(stay)) for stay in self.needs.stays}

    @property
    def end(self) -> int:
        return self.gradients.end

    @property
    def position(self) -> Mapping[Node, int]:
        return self.gradients.position

    def backward(self, node: Node) -> int:
        return self.gradients.backward(node)

    def lives(self, step_bytes: Mapping[str, int]) -> dict[str, tuple[StepLife, ...]]:
        """Everything that comes and goes on each device, with what the optimizer makes there; all is looked at once."""
        found = dict[str, list[StepLife]]({name: [] for name in self.course.held})
        for device, life in itertools.chain(
            self._values(), self._workspaces(), self._stays(), self._second_gradients(), self._sums()
        ):
            found[device].append(life)
        for device, size in step_bytes.items():
            if size:
                found[device].append(self._life(self.end, self.end, size, self.course.schedule[0], "optimizer"))
        return {name: tuple(lives) for name, lives in found.items()}

    def _life(self, start: int, stop: int, size: int, value: Node, kind: Kind, copied: bool = False) -> StepLife:
        return StepLife(start, min(stop, self.end), size, copied, value, kind=kind)

    def _values(self) -> Iterator[tuple[str, StepLife]]:
        """What the forward makes or receives, kept as long as somebody on the device has saved it."""
        kept = self._kept_until()
        for device, lives in self.course.lives.items():
            until = kept[device]
            for life in lives:
                if life.inside and life.value.target is not LOOPING:  # a forward that keeps something is known better
                    continue
                saved = 0 if life.place is None else until.get(life.place, 0)
                kind: Kind = "copies" if life.copied else "saved" if saved else "activations"
                stop = max(self._forward_stop(life), saved)
                yield device, self._life(life.start, stop, life.size, life.value, kind, life.copied)

    def _kept_until(self) -> dict[str, dict[Place, int]]:
        """Until when somebody on each device keeps what is saved there."""
        found = dict[str, dict[Place, int]]({name: {} for name in self.course.held})

        def keep(device: str, places: Iterable[Place], stop: int) -> None:
            until = found[device]
            for place in places:
                until[place] = max(until.get(place, 0), stop)

        for node, owners in self.needs.saved.items():
            if device := self.home.get(node):
                keep(device, self._places(node, owners, device), self.backward(node))
                keep(device, self._places(node, self.needs.held_to_end.get(node, ()), device), self.end)
        for node, cut in self.needs.cut_off.items():
            if device := self.home.get(node):
                keep(device, self._places(node, cut.saved, device), self._cut_off_until[node])
        for node, owners in self.needs.saved_tangents.items():
            if device := self.home.get(node):
                tangents = (each for owner in owners for tangent in self.tangents[owner].values() for each in tangent)
                keep(device, tangents, self.backward(node))
        return found

    @cached_property
    def _cut_off_until(self) -> Mapping[Node, int]:
        """When there is nothing any more that holds the function of a node without a backward."""
        found: dict[Node, int] = {}
        for node in reversed(self.course.schedule):
            if (cut := self.needs.cut_off.get(node)) is not None:
                found[node] = max(max(self._used_until(each), found.get(each, 0)) for each in cut.holders)
        return found

    def _used_until(self, node: Node) -> int:
        """When nobody has a value any more: a part that is given it has it until it returns."""
        entered, position = self.gradients.entered, self.position
        until = [position[node]] if node in position else [0]
        for user in (user for user in node.users if user in position):
            inside = entered.get(node) == entered[user]
            until.append(position[user] if inside else self._left[entered[user]])
        return max(until)

    @cached_property
    def _left(self) -> Mapping[int, int]:
        """The last position of each part, by its first one."""
        return {self.gradients.entered[node]: self.position[node] for node in self.course.schedule}

    def _places(self, node: Node, owners: Iterable[Node], device: str) -> Iterator[Place]:
        """Where what a node saves lies on its device: in what it reads or makes there, or else where it was made."""
        storages = self.course.storages
        for storage in (storage for owner in owners for storage in storages.homes[owner]):
            near = [value for value in (node, *node.all_input_nodes) if storage in storages.homes[value]]
            yield from (storages.place(value, storage, device) for value in near)
            if not near:
                yield storage

    def _forward_stop(self, life: Life) -> int:
        """What the model returns is held by whoever asked for it."""
        forward = len(self.course.schedule)
        return self.end if life.stop >= forward else life.stop

    def _workspaces(self) -> Iterator[tuple[str, StepLife]]:
        """What operators need for themselves, each where it is; on some devices with what their kernels need.

        Loops have no backward, and need what they need where nothing is trained.
        """
        needs, measured = self.needs, self.measured
        inside = {False: needs.inside, True: needs.inside_on_cpu}
        beside = {False: needs.beside, True: needs.beside_on_cpu}
        freed = self._freed()
        for node, device in self.home.items():
            is_known, step = device in self.known, measured.get(node)
            at, back = self.position[node], self.backward(node)
            if step is not None and step.kept:
                yield device, self._life(at, back, step.kept, node, "saved")
            size = inside[is_known].get(node, 0) if step is None else step.inside
            if size and node.target is not LOOPING:
                yield device, self._life(at, at, size, node, "activations")
            if size := beside[is_known].get(node, 0) if step is None else self._beside_measured(node, step):
                size = max(size, -freed.get(node, 0))  # what is freed early elsewhere leaves no room here
                yield device, self._life(back, back, size, node, "activations")

    def _freed(self) -> Mapping[Node, int]:
        """Bytes that go with the backward of each node where it is."""
        found = {node: step.kept for node, step in self.measured.items()}
        for stay, places in self.places.items():
            if stay.last is not None and stay.last in places and not self._is_measured(stay):
                found[stay.last] = found.get(stay.last, 0) + stay.size
        return found

    @cached_property
    def measured(self) -> Mapping[Node, StepWorkspace]:
        """What was measured of the nodes that train, each where it is."""
        found = {node: STEP_WORKSPACE.get(node, {}).get(home) for node, home in self.home.items()}
        return {node: step for node, step in found.items() if step is not None and node in self.needs.differentiable}

    def _is_measured(self, stay: Stay) -> bool:
        """Whether something is part of what was measured of a node: what it keeps, and what comes and goes in it."""
        return stay.made_by in self.measured and (stay.begin == "forward" or stay.is_passing)

    def _beside_measured(self, node: Node, step: StepWorkspace) -> int:
        """What a backward needs, with what measuring a node alone does not tell.

        It does not tell where autograd adds up gradients, nor that what is written in place may be a view.
        """
        if self.effects.of(node).writes:
            told: int | None = self.needs.beside.get(node, 0)
        else:
            told = self.needs.beside_sums.get(node)
        return step.backward if told is None else max(step.backward, told + self._passing.get(node, 0))

    @cached_property
    def _passing(self) -> Mapping[Node, int]:
        """Bytes that come and go in the backward of each node, whether or not they do so at one time."""
        found: dict[Node, int] = {}
        for stay in self.needs.stays:
            if stay.is_passing:
                found[stay.made_by] = found.get(stay.made_by, 0) + stay.size
        return found

    def _stays(self) -> Iterator[tuple[str, StepLife]]:
        """What is kept besides, and what the backward makes: on the device where it is made, and where it is sent."""
        for stay, places in self.places.items():
            if self._is_measured(stay):
                continue
            for place in dict.fromkeys(places.values()):
                if place.device is not None and place.start <= place.stop:
                    life = self._life(place.start, place.stop, place.size, stay.made_by, _kind_of(stay))
                    if place is places[stay.made_by] and not self._is_of_values(stay):
                        life.gradient_of, life.is_sum = stay.gradient_of, stay.is_sum
                    yield place.device, life

    def _is_of_values(self, stay: Stay) -> bool:
        """Whether a gradient is one of values, too, other than views of the parameters whose gradient it is.

        What the caller gives stays with the caller.
        """
        if stay.begin == "given":
            return bool(stay.passed)
        own = {storage for node in stay.gradient_of for storage in self.effects.storages(node)}
        return any(not own.issuperset(self.effects.storages(value)) for value in stay.passed)

    def _span(self, stay: Stay) -> tuple[int, int]:
        """From when to when it is there: to the end what nobody frees."""
        starts = {"forward": self.position.get(stay.made_by, 0), "given": len(self.course.schedule)}
        start = starts.get(stay.begin, self.backward(stay.made_by))
        if stay.last is stay.made_by and stay.begin == "forward" and stay.last in self._cut_off_until:
            return start, self._cut_off_until[stay.last]
        return start, self.end if stay.last is None else self.backward(stay.last)

    def _second_gradients(self) -> Iterator[tuple[str, StepLife]]:
        """Of a parameter that several devices use: each has a gradient of its own.

        The first two on a device are mostly views of what their operators made, so their sum is beside both.
        """
        for node, made_by in self.needs.trained.items():
            users = self.gradients.users(node)
            for device, own in users.items():
                first, *added = sorted(map(self.backward, own))
                lives = [] if device == self.gradients.made_on(made_by) else [(first + 1, self.end)]
                if added and not self._first_added(users).issubset(own):
                    lives.append((added[0], added[0]))
                for start, stop in lives:
                    life = self._life(start, stop, value_bytes(node), node, "gradients")
                    life.gradient_of, life.is_sum = (node,), True
                    yield device, life

    def _first_added(self, users: Mapping[str, list[Node]]) -> set[Node]:
        """Those whose gradients of a parameter are the first that are added up, if the graph's own order says so, too.

        That sum is one of those that autograd was seen to make.
        """
        used = [user for each in users.values() for user in each]
        last = set(sorted(used, key=self.position.__getitem__)[-2:])
        return last if last == set(sorted(used)[-2:]) else set(used)

    def _sums(self) -> Iterator[tuple[str, StepLife]]:
        """Of a value that several devices use: each adds up the gradients of its own uses, and sends the sum home."""
        for value, home in self.home.items():
            users = self.gradients.users(value)
            for device in dict.fromkeys((*users, home)) if len(users) > 1 else ():
                own = [self.backward(user) for user in users.get(device, ())]
                come = [self.gradients.sent(value, name) for name in users if name != device == home]
                stop = self.backward(value) if device == home else self.gradients.sent(value, device)
                for start, until in _held_while_added(own, come, stop):
                    yield device, self._life(start, until, value_bytes(value), value, "activations")

    def trained(self, *, at_home: bool = False) -> dict[str, dict[tuple[int, ...], int]]:
        """The bytes of each parameter with a gradient that each device uses, or holds; tied ones once.

        The device that uses one first holds it, and the optimizer's state for it; the others have copies.
        """
        found = dict[str, dict[tuple[int, ...], int]]({name: {} for name in self.course.held})
        for node in self.needs.differentiable:
            if node.op != "get_attr":
                continue
            storages = self.effects.storages(node)
            for device in dict.fromkeys(self.home[user] for user in node.users if user in self.home):
                if not at_home or self._holder[storages] == device:
                    found[device][storages] = value_bytes(node)
        return found

    @cached_property
    def _holder(self) -> dict[tuple[int, ...], str]:
        """Which device holds each parameter: that of its first user."""
        first: dict[tuple[int, ...], int] = {}
        for node in self.needs.differentiable:
            places = [self.position[user] for user in node.users if user in self.position]
            if node.op == "get_attr" and places:
                storages = self.effects.storages(node)
                first[storages] = min(min(places), first.get(storages, self.end))
        return {storages: self.home[self.course.schedule[place]] for storages, place in first.items()}


def _held_while_added(own: Sequence[int], come: Sequence[int], stop: int) -> Iterator[tuple[int, int]]:
    """From when to when there is what gradients of a value are added up to, beside those that are made at ``own``.

    Where the first two are added there are both and their sum. What nobody else holds is added to in place: such a sum,
    and the copy that a first one from elsewhere is.
    """
    first, *added = sorted((*own, *come))
    comes_first = first in come and first not in own
    if (start := first if comes_first else first + 1) <= stop:
        yield start, stop
    if added and not comes_first:
        yield added[0], added[0]
    yield from ((at, at) for at in sorted(come)[comes_first:])


def _kind_of(stay: Stay) -> Kind:
    if stay.begin == "forward":
        return "saved"
    return "gradients" if stay.gradient_of and stay.last is None else "activations"
