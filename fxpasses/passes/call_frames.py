"""The calls of modules that a flat program consists of, and the tensors that it holds by their names."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import attrs
import torch
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallSignature
from torch.export.graph_signature import InputKind
from torch.fx import Graph, Node

from fxpasses.errors import SplitError

__all__ = ["TAKEN", "Frame", "ProgramState", "around"]

_STATE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR, InputKind.CUSTOM_OBJ)


TAKEN = ("self", "torch")
"""What the code of a graph calls the module and the package, so that no value may be called that."""


def _graph_without(names: Iterable[str]) -> Graph:
    """An empty graph whose nodes have other names."""
    graph = Graph()
    graph._graph_namespace._used_names.update(names)
    return graph


@attrs.define(eq=False)
class Frame:
    """One call of one module: which nodes, what comes in, what goes out."""

    path: str
    parent: Frame | None
    depth: int
    kind: str | None
    call: str = ""  # the path, with @1 behind it for the second call
    nodes: list[Node] = attrs.field(factory=list)
    imports: dict[Node, None] = attrs.field(factory=dict)
    exports: dict[Node, None] = attrs.field(factory=dict)
    signature: ModuleCallSignature | None = None
    taken: list[Node | None] = attrs.field(factory=list)  # a preserved call's inputs; None for constants
    given: list[Node | None] = attrs.field(factory=list)  # and its outputs; None for constants and what is gone
    extras: list[Node] = attrs.field(factory=list)  # what a preserved call uses but does not take
    writes: list[tuple[Node, Node]] = attrs.field(factory=list)  # a buffer of it, and what it holds after the call
    graph: Graph = attrs.field(factory=lambda: _graph_without(TAKEN))
    known: dict[Node, Any] = attrs.field(factory=dict)


def around(frame: Frame) -> Iterator[Frame]:
    """A call and those around it, from the inside."""
    step: Frame | None = frame
    while step is not None:
        yield step
        step = step.parent


@attrs.define(eq=False)
class ProgramState:
    """The tensors and objects of a program, by every name that each has."""

    values: dict[str, Any]
    temporary: frozenset[str]
    buffers: frozenset[str]
    name_of: dict[Node, str]
    aliases: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, program: ExportedProgram, clone: bool) -> ProgramState:
        """Those that a program takes, or copies of them.

        Raises:
            SplitError: One of them is not there.
        """
        values: dict[str, Any] = {**program.state_dict, **program.constants}
        nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
        name_of: dict[Node, str] = {}
        temporary, buffers = [], []
        for spec in program.graph_signature.input_specs:
            if spec.kind not in _STATE or spec.target is None:
                continue
            if spec.target not in values:
                raise SplitError(
                    f"The program has no tensor {spec.target!r}, which its graph takes as {spec.arg.name}; put it into "
                    "state_dict (parameters, persistent buffers) or constants."
                )
            name_of[nodes[spec.arg.name]] = spec.target
            if spec.kind == InputKind.BUFFER:
                buffers.append(spec.target)
                if spec.persistent is False:
                    temporary.append(spec.target)
        for name, value in program.state_dict.items():
            if not isinstance(value, torch.nn.Parameter):
                buffers.append(name)
        names: dict[Hashable, list[str]] = {}
        for name, value in values.items():
            names.setdefault(_identity(value), []).append(name)
        groups = {name: tuple(names[_identity(value)]) for name, value in values.items()}
        if clone:
            copies: dict[int, Any] = {}
            values = copy.deepcopy(values, copies)
        return cls(values, frozenset(temporary), frozenset(buffers), name_of, groups)


def _identity(value: Any) -> Hashable:
    """Tied tensors are one object, or look at one storage in one way."""
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and value.device.type != "meta":
        return (value.data_ptr(), tuple(value.shape), value.stride(), value.dtype) if value.numel() else id(value)
    return id(value)
