"""The tensors that a graph always sees the same: what is behind ``get_attr`` nodes and the lifted inputs of a program.

A parameter, buffer or constant counts as constant if nothing in the graph writes its memory. In a graph module it is an
attribute; in an ExportedProgram it is a placeholder, and its tensor is in ``state_dict`` or ``constants``.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from fxpasses.editing import add_constant, create_node
from fxpasses.effects import EffectAnalysis, analyze_effects
from fxpasses.effects.storages import resolve
from fxpasses.programs import edits, signatures
from fxpasses.programs.current_program import program_of

__all__ = ["Constants"]

_HARMLESS = (torch.ops.aten.detach_.default,)


@attrs.frozen
class Constants:
    """The constants of one graph, and how new ones are added to it.

    Args:
        graph_module: The graph.
        program: The program that it is the graph of, if it is one's.
        effects: What its nodes do.
        written: The memory that they change; what lives there is no constant.
    """

    graph_module: GraphModule
    program: ExportedProgram | None
    effects: EffectAnalysis
    written: frozenset[int]

    @classmethod
    def of(cls, graph_module: GraphModule) -> Constants:
        """The constants of a graph that a pass is working on."""
        program = program_of(graph_module)
        effects = analyze_effects(graph_module, program=program)
        written = (
            storage
            for node in graph_module.graph.nodes
            if node.target not in _HARMLESS
            for storage in effects.of(node).writes
        )
        return cls(graph_module, program, effects, frozenset(written))

    def tensor(self, node: Node) -> torch.Tensor | None:
        """The real tensor behind a node; None if it has none, if it is fake, or if the graph writes it."""
        found = self._stored(node)
        if not isinstance(found, torch.Tensor) or isinstance(found, FakeTensor) or found.device.type == "meta":
            return None
        return None if self.is_written(node) else found

    def is_written(self, node: Node) -> bool:
        """Does a node change the memory of this value? ``detach_``, which export adds to each constant, does not."""
        return not self.written.isdisjoint(self.effects.storages(node))

    def name(self, node: Node) -> str:
        """The qualified name of the tensor behind a node."""
        if self.program is not None and node.op == "placeholder":
            spec = signatures.spec_of(self.program, node)
            return str(spec.target) if spec is not None and spec.target else node.name
        return str(node.target)

    def _stored(self, node: Node) -> object:
        if node.op == "get_attr":
            return resolve(self.graph_module, str(node.target))
        if node.op == "placeholder" and self.program is not None:
            return signatures.tensor_of(self.program, node)
        return None

    def add(self, name: str, tensor: torch.Tensor, *, before: Node, replaces: Iterable[Node]) -> Node:
        """Add a constant; gives the node that stands for it.

        Args:
            name: The wished qualified name; made unique.
            tensor: A parameter becomes a parameter, any other tensor a constant.
            before: The node that needs it first.
            replaces: The nodes whose origin it inherits.
        """
        if self.program is None:
            target = add_constant(self.graph_module, name, tensor)
            with self.graph_module.graph.inserting_before(before):
                return create_node(self.graph_module.graph, "get_attr", target, replaces=tuple(replaces))
        free = _free_name(self.program, name)
        if isinstance(tensor, torch.nn.Parameter):
            return edits.add_parameter(self.program, free, tensor)
        return edits.add_constant(self.program, free, tensor)

    def drop_unused(self, nodes: Iterable[Node]) -> None:
        """Forget constants that lost their last user: the inputs of a program, the ``get_attr`` nodes of a module.

        Attributes of a module stay; :class:`~fxpasses.passes.EliminateDeadCode` removes them.
        """
        for node in dict.fromkeys(nodes):
            if node.users:
                continue
            if node.op == "get_attr":
                node.graph.erase_node(node)
            elif node.op == "placeholder" and self.program is not None and self._stored(node) is not None:
                edits.remove_input(self.program, node)


def _free_name(program: ExportedProgram, name: str) -> str:
    taken = {spec.target for spec in program.graph_signature.input_specs}
    taken.update(program.state_dict)
    taken.update(program.constants)
    free, number = name, 0
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    return free
