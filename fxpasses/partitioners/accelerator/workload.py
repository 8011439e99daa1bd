"""A graph as the partitioner sees it: atoms with bytes, what they read of each other, and groups of atoms.

Atoms are what no mode takes apart, see :mod:`~fxpasses.partitioners.accelerator.atoms`.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable, Mapping, Sequence

from torch.fx import GraphModule, Node

from fxpasses.dependencies import Dependencies
from fxpasses.guards import is_guard

from .atoms import find_atoms
from .kinds import constant_views
from .sizes import SizeBytes, measure
from .structures import NodeLatency, Partition

__all__ = ["Filling", "Group", "Workload"]

Task = tuple[Node, list[Node], float]
"""A node, those it reads that run somewhere, and its seconds."""


class Workload:
    """The atoms of a graph.

    Attributes:
        graph_module: The graph.
        dependencies: Its data and order edges.
        sizes: The bytes of each node.
        items_of: What each node keeps in memory though it does not make it, with its bytes: tied tensors have one key.
        atoms: The nodes of each atom; atoms stand in an order in which they can run, the graph's own where that is one.
        atom_of: The atom of each node that is in one.
        pulled: For each atom the inputs, attributes and views of attributes that it uses.
        items: For each atom the state that it holds, with its bytes; tied tensors have one key.
        own: Bytes of the results of each atom.
        reads: For each atom, by atom it reads from, the bytes: once for each node that reads a value.
        values: For each atom, the values it reads of others, with the atom that makes each.
        before: For each atom, those it waits for; order made by effects counts.
        behind: For each atom, those that wait for it.
    """

    def __init__(self, graph_module: GraphModule) -> None:
        self.graph_module = graph_module
        self.dependencies = Dependencies.of(graph_module)
        nodes = self.dependencies.nodes
        self.sizes: dict[Node, SizeBytes] = {}
        self.items_of: dict[Node, dict[Hashable, int]] = {}
        for node in nodes:
            self.sizes[node], self.items_of[node] = measure(graph_module, node)
        self.views = constant_views(graph_module)
        self._take(find_atoms(self.dependencies, [node for node in nodes if self._computes(node)]))

    def _take(self, atoms: list[tuple[Node, ...]]) -> None:
        """Measure atoms, and find out what they read of each other."""
        self.atoms = atoms
        self.atom_of = {node: number for number, members in enumerate(self.atoms) for node in members}
        self.own = [sum(self._result_bytes(node) for node in members) for members in self.atoms]
        self.pulled = [self._pulled(members) for members in self.atoms]
        self.items = [self._items(number) for number in range(len(self.atoms))]
        self.reads: list[dict[int, int]] = []
        self.values: list[dict[Node, int]] = []
        for number, members in enumerate(self.atoms):
            self._read(number, members)
        self.before = self._atoms_before()
        self.behind: list[list[int]] = [[] for _ in self.atoms]
        for number, others in enumerate(self.before):
            for other in others:
                self.behind[other].append(number)

    def coarsened(self, groups: Iterable[Group]) -> Workload:
        """The same graph with groups as atoms."""
        coarse = copy.copy(self)
        coarse._take([tuple(sorted(group.nodes())) for group in groups])
        return coarse

    def refined(self, group: Group) -> Group:
        """A group of a coarsened workload as a group of this one."""
        mine = self.group({self.atom_of[node] for node in group.nodes()})
        mine.device_ids = list(group.device_ids)
        return mine

    def _computes(self, node: Node) -> bool:
        return node.op not in ("placeholder", "get_attr", "output") and not is_guard(node) and node not in self.views

    def _result_bytes(self, node: Node) -> int:
        return self.sizes[node].total_size - sum(self.items_of[node].values())

    def _items(self, atom: int) -> dict[Hashable, int]:
        items: dict[Hashable, int] = {}
        for node in (*self.pulled[atom], *self.atoms[atom]):
            items.update(self.items_of[node])
        return items

    def _pulled(self, members: Iterable[Node]) -> dict[Node, None]:
        found: dict[Node, None] = {}
        waiting = list(members)
        for user in waiting:  # grows while it is walked
            fresh = [
                used
                for used in user.all_input_nodes
                if used not in found and (used.op in ("placeholder", "get_attr") or used in self.views)
            ]
            found.update(dict.fromkeys(fresh))
            waiting += fresh
        return found

    def _read(self, number: int, members: Iterable[Node]) -> None:
        reads: dict[int, int] = {}
        values: dict[Node, int] = {}
        for node in members:
            for used in node.all_input_nodes:
                home = self.atom_of.get(used, number)
                if home != number:
                    reads[home] = reads.get(home, 0) + self.sizes[used].output_size
                    values[used] = home
        self.reads.append(reads)
        self.values.append(values)

    def _atoms_before(self) -> list[list[int]]:
        before: list[dict[int, None]] = [{} for _ in self.atoms]
        nodes = self.dependencies.nodes
        atoms = [self.atom_of.get(node, -1) for node in nodes]
        for source, target in zip(self.dependencies.sources.tolist(), self.dependencies.targets.tolist(), strict=True):
            if atoms[source] != atoms[target] and min(atoms[source], atoms[target]) >= 0:
                before[atoms[target]][atoms[source]] = None
        return [list(found) for found in before]

    def tasks(self, latencies: Mapping[Node, NodeLatency]) -> list[list[Task]]:
        """What each atom runs, in order: views of attributes that it uses, and its nodes."""
        return [
            [self._task(node, latencies) for node in sorted([*(self.views & pulled.keys()), *members])]
            for pulled, members in zip(self.pulled, self.atoms, strict=True)
        ]

    def _task(self, node: Node, latencies: Mapping[Node, NodeLatency]) -> Task:
        inputs = [used for used in node.all_input_nodes if used in self.atom_of or used in self.views]
        return node, inputs, max(latencies.get(node, (0.0,)))

    def total_bytes(self) -> int:
        """Bytes of all results and all state, tied tensors once."""
        return self._bytes_of(self.dependencies.nodes)

    def needed_bytes(self) -> int:
        """The same without inputs that nobody reads, which are in no partition."""
        return self._bytes_of(node for node in self.dependencies.nodes if node.users or node.op != "placeholder")

    def _bytes_of(self, nodes: Iterable[Node]) -> int:
        items: dict[Hashable, int] = {}
        for node in nodes:
            items.update(self.items_of[node])
        return sum(items.values()) + sum(self.own)

    def group(self, atoms: Iterable[int]) -> Group:
        """A group of atoms, measured. O(nodes and edges of the group)."""
        return Group(self, sorted(atoms))

    def order(self, groups: Sequence[Group]) -> list[int] | None:
        """Positions of groups so that each stands behind what it waits for; None if some wait for each other."""
        home = self.homes(groups)
        before = [dict.fromkeys(home[other] for other in group.before) for group in groups]
        behind: list[list[int]] = [[] for _ in groups]
        for number, others in enumerate(before):
            for other in others:
                behind[other].append(number)
        waiting = [len(others) for others in before]
        order = [number for number, count in enumerate(waiting) if not count]
        for number in order:  # grows while it is walked
            for other in behind[number]:
                waiting[other] -= 1
                if not waiting[other]:
                    order.append(other)
        return order if len(order) == len(groups) else None

    def levels(self, groups: Sequence[Group]) -> list[int]:
        """How many groups are before each on the longest way to it, by data; 0 for all if some wait for each other."""
        home = self.homes(groups)
        level = [0] * len(groups)
        for number in self.order(groups) or ():
            sources = groups[number].values.values()
            level[number] = max((level[home[atom]] + 1 for atom in sources), default=0)
        return level

    def homes(self, groups: Sequence[Group]) -> list[int]:
        """The position of the group of each atom."""
        home = [-1] * len(self.atoms)
        for number, group in enumerate(groups):
            for atom in group.atoms:
                home[atom] = number
        return home


class Group:
    """Atoms that run together.

    Attributes:
        atoms: Their numbers, ascending.
        pulled: The inputs, attributes and views of attributes that they use.
        items: The state that they hold, each tensor once, with its bytes.
        reads: By atom outside, the bytes that they read of it: once for each node that reads a value.
        values: The values they read from outside, with the atom that makes each.
        before: The atoms outside that they wait for.
        used: Bytes of their results, their state, and what they read from outside.
        device_ids: The logical devices, where they are chosen already.
    """

    def __init__(self, workload: Workload, atoms: Sequence[int]) -> None:
        self.workload = workload
        self.atoms = tuple(atoms)
        members = set(self.atoms)
        self.pulled: dict[Node, None] = {}
        self.items: dict[Hashable, int] = {}
        self.reads: dict[int, int] = {}
        self.values: dict[Node, int] = {}
        self.before: dict[int, None] = {}
        for atom in self.atoms:
            self.pulled.update(workload.pulled[atom])
            self.items.update(workload.items[atom])
            if members.issuperset(workload.before[atom]):
                continue  # what it reads it waits for
            for other in workload.before[atom]:
                if other not in members:
                    self.before[other] = None
            for home, size in workload.reads[atom].items():
                if home not in members:
                    self.reads[home] = self.reads.get(home, 0) + size
            for value, home in workload.values[atom].items():
                if home not in members:
                    self.values[value] = home
        own = sum(workload.own[atom] for atom in self.atoms)
        self.used = own + sum(self.items.values()) + sum(self.reads.values())
        self.device_ids: list[int] = []
        self._seconds: float | None = None

    def nodes(self) -> list[Node]:
        """The nodes of its atoms."""
        return [node for atom in self.atoms for node in self.workload.atoms[atom]]

    def seconds(self, tasks: Sequence[Sequence[Task]]) -> float:
        """Seconds of its critical path, from the tasks of each atom; computed once."""
        if self._seconds is None:
            done: dict[Node, float] = {}
            for atom in self.atoms:
                for node, inputs, own in tasks[atom]:
                    start = 0.0
                    for used in inputs:
                        if used in done and done[used] > start:
                            start = done[used]
                    done[node] = start + own
            self._seconds = max(done.values(), default=0.0)
        return self._seconds

    def partition(self, number: int) -> Partition:
        """The group as torch's users know it."""
        made = Partition(number)
        made.nodes = {*self.nodes(), *self.pulled}
        made.used_mem_bytes = self.used
        made.logical_device_ids = list(self.device_ids)
        return made


class Filling:
    """A group that grows: what it needs is known after each atom."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.atoms: set[int] = set()
        self.items: set[Hashable] = set()
        self.used = 0

    def extra(self, atom: int) -> int:
        """Bytes that one more atom needs."""
        fresh = sum(size for key, size in self.workload.items[atom].items() if key not in self.items)
        outside = sum(size for home, size in self.workload.reads[atom].items() if home not in self.atoms)
        return fresh + outside + self.workload.own[atom]

    def add(self, atom: int) -> None:
        """Take an atom in."""
        self.used += self.extra(atom)
        self.items.update(self.workload.items[atom])
        self.atoms.add(atom)
