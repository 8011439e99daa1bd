"""Where a gradient lies when its way back leads over several devices: each that it is sent to has a dense copy of it.

In a graph on one device a gradient is handed on without a copy: the gradients of what was summed share one number, and
those of what was joined are slices of one storage. Between devices each of them is sent by itself, with all elements,
once the backward of the part that it comes from has run; until then it stays where it was made.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping

import attrs
from torch.fx import Node

from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.training.backward_needs import Stay

__all__ = ["CrossingGradients", "Lying"]


@attrs.define(eq=False)
class Lying:
    """A gradient, or one of its copies, on one device, from when to when; positions of the step, both included.

    Args:
        device: The device; None for the gradient of a result that no operator uses, an input or a parameter.
        start: The position at which it comes.
        stop: The last position at which it is there.
        size: Bytes.
    """

    device: str | None
    start: int
    stop: int
    size: int


@attrs.frozen(eq=False)
class CrossingGradients:
    """Where the backward of a placed graph has what it makes.

    Args:
        home: The device of each node.
        differentiable: The nodes whose value gets a gradient.
        position: When the forward of each node runs.
        entered: When the forward of the part of each node begins.
        end: The length of the step; the backward of the node at position ``i`` runs at ``end - 1 - i``.
    """

    home: Mapping[Node, str]
    differentiable: Mapping[Node, None]
    position: Mapping[Node, int]
    entered: Mapping[Node, int]
    end: int

    @classmethod
    def of(
        cls, assignment: Assignment, home: Mapping[Node, str], differentiable: Mapping[Node, None]
    ) -> CrossingGradients:
        """Read from a placed graph when its nodes and its parts run; O(nodes)."""
        position: dict[Node, int] = {}
        entered: dict[Node, int] = {}
        for part in assignment.order:
            first = len(position)
            for node in assignment.partitions[part]:
                position[node], entered[node] = len(position), first
        return cls(home, differentiable, position, entered, 2 * len(position))

    def backward(self, node: Node) -> int:
        """When the backward of a node runs; that of an input, which has none, last of all."""
        return self.end - 1 - self.position.get(node, 0)

    def made_on(self, node: Node) -> str | None:
        """The device of a node; of an input or a parameter that is a result, too, that of its first user."""
        if node in self.home:
            return self.home[node]
        first = min((user for user in node.users if user in self.home), key=self.position.__getitem__, default=None)
        return None if first is None else self.home[first]

    def users(self, value: Node) -> dict[str, list[Node]]:
        """The nodes whose backward gives a value its gradient, by device."""
        found: dict[str, list[Node]] = {}
        for user in value.users if value in self.differentiable else ():
            if user in self.home and user in self.differentiable:
                found.setdefault(self.home[user], []).append(user)
        return found

    def sent(self, value: Node, device: str) -> int:
        """When the gradient of a value leaves a device: the first part there that uses the value has run back."""
        return self.end - 1 - min(self.entered[user] for user in value.users if self.home.get(user) == device)

    def places(self, stay: Stay, start: int, stop: int) -> dict[Node, Lying]:
        """Where each node finds what was one storage on one device; several nodes on a device may share a place.

        Args:
            stay: What the backward makes.
            start: When it is made.
            stop: When it is freed where all is on one device.
        """
        first = Lying(self.made_on(stay.made_by), start, start, stay.size)
        places = {stay.made_by: first}
        for value in sorted(stay.passed, key=self.backward):
            self._pass(stay, value, places)
        for reader in stay.readers:
            for place in self._read(reader, places):
                place.stop = max(place.stop, self.backward(reader))
        if stay.last is None:
            first.stop = stop
        else:
            for place in self._read(stay.last, places):
                place.stop = max(place.stop, stop)
            self._wait(stay.last, stay, places)
        return places

    def _wait(self, last: Node, stay: Stay, places: Mapping[Node, Lying]) -> None:
        """What goes when a gradient from another device is added to a part of it: here that has to come first."""
        for reader in stay.readers:
            place = self._place(reader, places)
            if place is None or place.device == self.home.get(last):
                continue
            for value in reader.all_input_nodes:
                users = self.users(value)
                if place.device in users and len(users) > 1 and value in last.all_input_nodes:
                    place.stop = max(place.stop, self._added(value, users, place.device))

    def _added(self, value: Node, users: Mapping[str, list[Node]], device: str) -> int:
        """When the gradients of a value that several devices use have been added up on one of them."""
        if device != self.home.get(value):
            return self.sent(value, device)
        return max(self.sent(value, other) for other in users if other != device)

    def _pass(self, stay: Stay, value: Node, places: dict[Node, Lying]) -> None:
        """Follow a gradient to one value: it is there already, or comes as a copy from where it was used."""
        if value in places or value not in self.home:
            return
        device, users = self.home[value], self.users(value)
        sources = [places[user] for each in users.values() for user in each if user in places]
        if not sources and (written := self._place(value, places)):  # through a view, which is where the value is
            sources = [written]
        near = next((source for source in sources if source.device == device), None)
        if len(users) > 1:  # until now it was several, one of each device
            comes = self.backward(value) + 1
            near = Lying(device, comes, comes - 1, stay.passed[value])
            for source in sources:
                if source.device in users and len(users[source.device]) == 1:  # else it goes when it is added there
                    source.stop = max(source.stop, self._added(value, users, source.device))
        elif near is None:
            comes = self.sent(value, *users) if users else self.backward(value)
            near = Lying(device, comes, comes, stay.passed[value])
            for source in sources:
                source.stop = max(source.stop, comes)
        near.stop = max(near.stop, self.backward(value))
        places[value] = near

    def _read(self, node: Node, places: Mapping[Node, Lying]) -> list[Lying]:
        """All that a node reads of it: that of a tuple finds the gradients of its elements, each by itself."""
        elements = [user for user in node.users if user.target is operator.getitem]
        if found := [places[element] for element in elements if element in places]:
            return found
        place = self._place(node, places)
        return [] if place is None else [place]

    def _place(self, node: Node, places: Mapping[Node, Lying]) -> Lying | None:
        """Where a node that reads it finds it; None where only a sum of several devices' gradients would be."""
        if node in places:
            return places[node]
        device = self.home.get(node)
        return max(
            (place for place in places.values() if place.device == device), key=lambda each: each.stop, default=None
        )
