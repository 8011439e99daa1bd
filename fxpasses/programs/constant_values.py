"""The tensors that a graph always sees the same: what is behind ``get_attr`` nodes and the lifted inputs of a program.

A parameter, buffer or constant counts as constant if nothing in the graph writes its memory. In a graph module it is an
attribute; in an ExportedProgram it is a placeholder, and its tensor is in ``state_dict`` or ``constants``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Literal

import attrs
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputSpec
from torch.fx import GraphModule, Node

from fxpasses.editing import add_constant, create_node
from fxpasses.editing.attributes import Attribute, install_attribute
from fxpasses.editing.submodules import get_attribute
from fxpasses.effects import EffectAnalysis, analyze_effects
from fxpasses.effects.storages import resolve
from fxpasses.programs.current_program import program_of
from fxpasses.programs.signatures import LIFTED, stored_tensor

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
            spec = self._specs.get(node.name)
            return str(spec.target) if spec is not None and spec.target else node.name
        return str(node.target)

    def _stored(self, node: Node) -> object:
        if node.op == "get_attr":
            return resolve(self.graph_module, str(node.target))
        if node.op == "placeholder" and self.program is not None:
            spec = self._specs.get(node.name)
            return None if spec is None or spec.kind not in LIFTED else stored_tensor(self.program, spec)
        return None

    def add(self, name: str, tensor: torch.Tensor, *, before: Node, replaces: Iterable[Node]) -> Node:
        """Add a constant; gives the node that reads it.

        In a program it becomes an input when the pass is done: all that a pass adds and drops is brought in step with
        the signature at once (:func:`fxpasses.programs.with_graph_module`).

        Args:
            name: The wished qualified name; made unique.
            tensor: A parameter becomes a parameter, any other tensor a constant.
            before: The node that needs it first.
            replaces: The nodes whose origin it inherits.
        """
        if self.program is None:
            target = add_constant(self.graph_module, name, tensor)
        else:
            target = self._free_name(name)
            kind: Literal["parameter", "buffer"] = "parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"
            install_attribute(self.graph_module, target, Attribute(tensor, kind, persistent=False))
        with self.graph_module.graph.inserting_before(before):
            return create_node(self.graph_module.graph, "get_attr", target, replaces=tuple(replaces))

    def drop_unused(self, nodes: Iterable[Node]) -> None:
        """Forget constants that lost their last user: the inputs of a program, the ``get_attr`` nodes of a module.

        Attributes of a module stay; :class:`~fxpasses.passes.EliminateDeadCode` removes them.
        """
        for node in dict.fromkeys(nodes):
            is_input = node.op == "placeholder" and self.program is not None and self._stored(node) is not None
            if not node.users and (node.op == "get_attr" or is_input):
                node.graph.erase_node(node)

    def _free_name(self, name: str) -> str:
        head = name.split(".")[0]
        if hasattr(self.graph_module, head) and head not in self.graph_module._modules:
            name = name.replace(".", "_")  # a model may have a module called "graph" or "code"
        free, number = name, 0
        while free in self._taken or get_attribute(self.graph_module, free, None) is not None:
            free, number = f"{name}_{number}", number + 1
        return free

    @cached_property
    def _taken(self) -> frozenset[str]:
        """The qualified names of a program."""
        assert self.program is not None  # only programs have any
        targets = (str(spec.target) for spec in self._specs.values() if spec.target is not None)
        return frozenset((*targets, *self.program.state_dict, *self.program.constants))

    @cached_property
    def _specs(self) -> dict[str, InputSpec]:
        """What the signature says of each placeholder, by its name."""
        specs = [] if self.program is None else self.program.graph_signature.input_specs
        return {spec.arg.name: spec for spec in specs}
