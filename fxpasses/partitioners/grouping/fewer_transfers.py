"""Give nodes that several backends can run to those for which the fewest bytes cross between backends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import attrs
from torch.fx import Node

from fxpasses.dependencies import Dependencies
from fxpasses.partitioners.grouping.keep_together import element_homes
from fxpasses.partitioners.grouping.small_parts import value_bytes
from fxpasses.partitioners.support import CALLS, Verdicts

__all__ = ["reduce_transfers"]

SWEEPS = 8
"""How often each node takes its turn, forth and back, at most."""


def reduce_transfers(dependencies: Dependencies, owners: list[str | None], verdicts: Mapping[str, Verdicts]) -> None:
    """Change owners, in place, while that makes fewer bytes cross.

    Iterated conditional modes (J. Besag, "On the statistical analysis of dirty pictures", 1986): each node in turn
    takes the backend for which the fewest bytes cross at it, its neighbours being where they are; a local optimum. A
    turn costs what the node has inputs, for each backend.
    """
    followers = element_homes(dependencies)
    choices: dict[int, list[str]] = {}
    for number, node in enumerate(dependencies.nodes):
        able = [name for name, verdict in verdicts.items() if node in verdict.supported]
        if len(able) > 1 and number not in followers:
            choices[number] = able
    members: dict[int, list[int]] = {number: [number] for number in choices}
    for follower, producer in followers.items():
        members.get(producer, []).append(follower)
    units = [(_Unit.of(dependencies, members[number]), able) for number, able in choices.items()]
    readers = _Readers.of(dependencies, owners)
    for _ in range(SWEEPS):
        changed = False
        for sequence in (units, units[::-1]):
            for unit, able in sequence:
                crossing = {name: readers.bytes_at(unit, name) for name in dict.fromkeys([*able, readers.owner(unit)])}
                best = min(able, key=crossing.__getitem__)
                if crossing[best] < crossing[readers.owner(unit)]:
                    readers.give(unit, best)
                    changed = True
        if not changed:
            break


@attrs.frozen(eq=False)
class _Unit:
    """A node with what follows it, and what it has to do with others.

    Args:
        members: The nodes, by position.
        taken: For each member the values that it takes from outside, by position.
        inside: How many members take each value.
    """

    members: Sequence[int]
    taken: Sequence[list[int]]
    inside: Counter[int]

    @classmethod
    def of(cls, dependencies: Dependencies, members: Sequence[int]) -> _Unit:
        """Look up what the members take."""
        own = set(members)
        inputs = [
            [dependencies.position[used] for used in dependencies.nodes[each].all_input_nodes] for each in members
        ]
        taken = [[used for used in each if used not in own and dependencies.nodes[used].op in CALLS] for each in inputs]
        return cls(members, taken, Counter(used for each in inputs for used in each))


@attrs.frozen(eq=False)
class _Readers:
    """The owners of all nodes, and for each value how many calls of each owner take it."""

    owners: list[str | None]
    counts: list[Counter[str | None]]
    weights: list[int]

    @classmethod
    def of(cls, dependencies: Dependencies, owners: list[str | None]) -> _Readers:
        """Count them; a value of unknown size counts as one byte."""

        def owners_of_users(node: Node) -> Counter[str | None]:
            return Counter(owners[dependencies.position[user]] for user in node.users if user.op in CALLS)

        nodes = dependencies.nodes
        return cls(owners, [owners_of_users(node) for node in nodes], [max(value_bytes(node), 1) for node in nodes])

    def owner(self, unit: _Unit) -> str | None:
        """Who has a unit."""
        return self.owners[unit.members[0]]

    def bytes_at(self, unit: _Unit, name: str | None) -> int:
        """The bytes that cross at a unit if its owner were ``name``."""
        own, total = self.owner(unit), 0
        for member, taken in zip(unit.members, unit.taken, strict=True):
            for used in taken:
                if self.owners[used] != name:
                    others = self.counts[used][name] - (unit.inside[used] if name == own else 0)
                    total += 0 if others else self.weights[used]
            count = self.counts[member]
            targets = {each for each in count if count[each] > (unit.inside[member] if each == own else 0)}
            total += self.weights[member] * len(targets - {name})
        return total

    def give(self, unit: _Unit, name: str) -> None:
        """Let another backend have a unit."""
        before = self.owner(unit)
        for value, times in unit.inside.items():
            self.counts[value][before] -= times
            self.counts[value][name] += times
        for member in unit.members:
            self.owners[member] = name
