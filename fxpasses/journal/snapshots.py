"""Note a program, ask later what changed, put it back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule

from fxpasses.collecting import collection_paused
from fxpasses.journal.changes import ChangeParts, Changes
from fxpasses.journal.graph_state import GraphState, compare_graphs
from fxpasses.journal.module_state import ModuleTree
from fxpasses.journal.program_state import ProgramState

__all__ = [
    "Snapshot",
]


def _graphs_of(modules: Iterable[tuple[str, torch.nn.Module]]) -> Iterator[tuple[str, Graph]]:
    seen: set[int] = set()
    for path, module in modules:
        if isinstance(module, GraphModule) and id(module.graph) not in seen:
            seen.add(id(module.graph))
            yield path, module.graph


class Snapshot:
    """The state of a program at one moment; made by :meth:`take`.

    >>> from torch.fx import symbolic_trace
    >>> graph_module = symbolic_trace(torch.nn.ReLU())
    >>> before = Snapshot.take(graph_module)
    >>> before.changed()
    False
    >>> relu = list(graph_module.graph.nodes)[1]
    >>> relu.replace_all_uses_with(relu.args[0])
    [output]
    >>> before.changed()
    True
    >>> before.restore()
    >>> before.changed()
    False
    """

    def __init__(self, root: GraphModule | ExportedProgram) -> None:
        self._root = root
        graph_module = root.graph_module if isinstance(root, ExportedProgram) else root
        self._modules = ModuleTree(graph_module)
        self._graphs = [GraphState(path, graph) for path, graph in _graphs_of(self._modules.paths())]
        self._program = ProgramState(root) if isinstance(root, ExportedProgram) else None

    @classmethod
    def take(cls, root: GraphModule | ExportedProgram) -> Snapshot:
        """Remember ``root`` as it is now: nested graphs, submodules and, for a program, its signature included.

        Costs one to four microseconds a node, depending on its metadata; no tensor is copied.
        """
        with collection_paused():
            return cls(root)

    @property
    def root(self) -> GraphModule | ExportedProgram:
        """The program that was looked at."""
        return self._root

    def changed(self) -> bool:
        """Whether nodes, their order, names, arguments, output, attributes, submodules or signature are different.

        Exact: an edit that was undone again does not count, and neither does metadata.
        """
        if self._program is not None and self._program.changed():
            return True
        return self._modules.changed() or any(state.changed() for state in self._graphs)

    def changed_paths(self) -> list[str]:
        """The paths of the graph modules whose own graph changed; new ones are not among them."""
        return [state.path for state in self._graphs if state.changed()]

    def metadata_changed(self) -> bool:
        """Whether some ``node.meta``, ``graph_module.meta`` or the like was written since."""
        return self._modules.metadata_changed() or any(state.metadata_changed() for state in self._graphs)

    def renewed(self) -> Snapshot:
        """A snapshot of now: this one if nothing was touched, a new one otherwise."""
        return Snapshot.take(self._root) if self.changed() or self.metadata_changed() else self

    def changes(self, now: Snapshot | None = None) -> Changes:
        """What is different now; linear in the nodes, for records.

        Args:
            now: A snapshot of now, if the caller has one already.
        """
        now = Snapshot.take(self._root) if now is None else now
        before_states = {state.path: state for state in self._graphs}
        after_states = {state.path: state for state in now._graphs}
        parts = ChangeParts()
        for path in dict.fromkeys([*before_states, *after_states]):
            compare_graphs(path, before_states.get(path), after_states.get(path), parts)
        self._modules.describe(now._modules, parts)
        if self._program is not None and now._program is not None:
            self._program.describe(now._program, parts)
        return parts.frozen()

    def restore(self) -> None:
        """Put everything back: the same nodes in the same order, their metadata, names, attributes, code.

        Only what was written into a tensor in place stays; :meth:`changes` names those tensors.
        """
        if self._program is not None:
            self._program.restore()
        self._modules.restore()
        for state in self._graphs:
            state.restore()
