"""See one part of a split as an ``ExportedProgram`` of its own: what compilers, savers and runtimes take."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch._export.verifier import load_verifier
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ConstantArgument,
    CustomObjArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.utils import _pytree as pytree

from fxpasses.editing.attributes import Attribute, find_attribute
from fxpasses.errors import SplitError
from fxpasses.guards import is_guard
from fxpasses.metadata import value_of
from fxpasses.outlining.graph_writing import GraphWriter

__all__ = ["part_program"]

_KINDS = {
    "parameter": (InputKind.PARAMETER, "p"),
    "buffer": (InputKind.BUFFER, "b"),
    "constant": (InputKind.CONSTANT_TENSOR, "c"),
}


def part_program(
    part: GraphModule, *, name: str = "part", example_inputs: Sequence[Any] | None = None
) -> ExportedProgram:
    """Make an ExportedProgram of a part: its state becomes inputs of the graph, listed in the signature.

    A part of ATen operators is taken as it is, with its in-place writes, symbols and control flow. A part that calls
    methods, modules or other functions (because its source was traced and not exported) is exported by torch.

    Args:
        part: The submodule. Not changed; its tensors are shared.
        name: What messages call it.
        example_inputs: What to export with; only needed if the part must be exported and its inputs have no recorded
            values.

    Raises:
        SplitError: The part must be exported, and has no recorded values or enters autocast.
    """
    calls = [node for node in part.graph.nodes if not is_guard(node)]
    if all(map(_is_exportable, calls)) and _has_values(calls):
        return _Lifting(part).program()
    return _exported(part, name, example_inputs)


def _is_exportable(node: Node) -> bool:
    if node.op != "call_function":
        return node.op in ("placeholder", "get_attr", "output")
    if isinstance(node.target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
        return True
    if node.target is operator.getitem:
        return True
    # Arithmetic on sizes is legal in exported programs, the same functions on tensors are not.
    return isinstance(value_of(node), (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


def _has_values(nodes: Sequence[Node]) -> bool:
    """Whether all values are recorded as exported programs do: under ``val``, and in one fake mode."""
    modes: dict[int, None] = {}
    for node in nodes:
        if node.op in ("placeholder", "call_function") and "val" not in node.meta:
            return False
        for leaf in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(leaf, torch.Tensor):
                modes[id(getattr(leaf, "fake_mode", None))] = None
    return len(modes) <= 1


def _exported(part: GraphModule, name: str, example_inputs: Sequence[Any] | None) -> ExportedProgram:
    placeholders = part.graph.find_nodes(op="placeholder")
    values = list(example_inputs) if example_inputs is not None else [value_of(node) for node in placeholders]
    missing = [node.name for node, value in zip(placeholders, values, strict=False) if value is None]
    if missing or len(values) != len(placeholders):
        raise SplitError(
            f"cannot export part {name!r}: its input {(missing or ['?'])[0]!r} has no recorded value; "
            "pass example_inputs=..., or split an exported program"
        )
    if any(getattr(node.target, "__name__", "") == "_enter_autocast" for node in part.graph.nodes):
        raise SplitError(
            f"cannot export part {name!r}: it enters autocast, and torch.export gives other precisions for that; "
            "export the model first and split the program, where autocast regions are bodies of operators"
        )
    dynamic = tuple(
        {place: torch.export.Dim.AUTO for place, size in enumerate(value.shape) if _is_symbolic(size)}
        if isinstance(value, torch.Tensor)
        else None
        for value in values
    )
    real = tuple(_concrete(value) for value in values)
    source = part if part.graph.output_node().args[0] != () else _giving_none(part)
    return torch.export.export(source, real, dynamic_shapes=_named(placeholders, dynamic))


def _giving_none(part: GraphModule) -> GraphModule:
    """The part with None for its outputs: torch cannot save programs that have none."""
    writer = GraphWriter()
    copies: dict[Node, Any] = {}
    for node in part.graph.nodes:
        if node.op == "output":
            writer.append("output", "output", (None,))
        else:
            copies[node] = writer.copy(node, copies)
    return GraphModule(part, writer.graph)


def _named(placeholders: Sequence[Node], dynamic: Sequence[Any]) -> dict[str, Any] | None:
    return {str(node.target): dims for node, dims in zip(placeholders, dynamic, strict=True)} if any(dynamic) else None


def _is_symbolic(size: Any) -> bool:
    return isinstance(size, torch.SymInt)


def _hint(size: Any) -> int:
    """The size that a symbolic one had in the example it was traced with."""
    return int(size.node.hint) if _is_symbolic(size) else int(size)


def _concrete(value: Any) -> Any:
    """A real example of a recorded value."""
    if isinstance(value, torch.SymInt):
        return _hint(value)
    if not isinstance(value, torch.Tensor):
        return value
    sizes = [_hint(size) for size in value.shape]
    made = torch.zeros(sizes, dtype=value.dtype, device="cpu" if value.device.type == "meta" else value.device)
    return made.requires_grad_(value.requires_grad)


@attrs.define(eq=False)
class _Lifting:
    """The program of a part while it is made."""

    part: GraphModule
    writer: GraphWriter = attrs.field(factory=GraphWriter)
    copies: dict[Node, Node] = attrs.field(factory=dict)
    lifted: dict[str, Node] = attrs.field(factory=dict)
    inputs: list[InputSpec] = attrs.field(factory=list)
    state: dict[str, Any] = attrs.field(factory=dict)
    constants: dict[str, Any] = attrs.field(factory=dict)

    def program(self) -> ExportedProgram:
        nodes = list(self.part.graph.nodes)
        reads = [node for node in nodes if node.op == "get_attr"]
        for kind in ("parameter", "buffer", "constant"):
            for node in reads:
                self._lift(node, kind)
        users = [node for node in nodes if node.op == "placeholder"]
        for node in users:
            copy = self.copies[node] = self.writer.copy(node, {})
            self.inputs.append(InputSpec(InputKind.USER_INPUT, _argument(copy), None))
        outputs = self._write_rest(nodes)
        graph = self.writer.graph
        root = GraphModule(self.part, graph)
        in_spec = pytree.tree_structure((tuple(range(len(users))), {}))
        given = self.part.graph.output_node().args[0]
        # One level is all that the contract of parts allows, but a part may have been edited.
        out_spec = pytree.tree_structure(pytree.tree_map(lambda _: 0, _plain(given)) if given != () else 0)
        signature = ModuleCallSignature(
            inputs=[spec.arg for spec in self.inputs if spec.kind is InputKind.USER_INPUT],
            outputs=[spec.arg for spec in outputs],
            in_spec=in_spec,
            out_spec=out_spec,
            forward_arg_names=[str(node.target) for node in users],
        )
        return ExportedProgram(
            root=root,
            graph=graph,
            graph_signature=ExportGraphSignature(self.inputs, outputs),
            state_dict=self.state,
            range_constraints=_ranges(self.part),
            module_call_graph=[ModuleCallEntry("", signature)],
            constants=self.constants,
            verifiers=[load_verifier("TRAINING")],  # in-place writes are legal in it
        )

    def _lift(self, node: Node, kind: str) -> None:
        """Make an input of what a ``get_attr`` node reads; bodies of control flow stay attributes."""
        name = str(node.target)
        attribute = find_attribute(self.part, name, user=node.name)
        if attribute.kind != kind or isinstance(attribute.value, GraphModule):
            return
        if name not in self.lifted:
            self.lifted[name] = self._placeholder(node, name, attribute)
        self.copies[node] = self.lifted[name]

    def _placeholder(self, node: Node, name: str, attribute: Attribute) -> Node:
        kind, letter = _KINDS[attribute.kind]
        persistent: bool | None = None
        if not isinstance(attribute.value, torch.Tensor):
            kind, letter = InputKind.CUSTOM_OBJ, "obj"
        wished = f"{letter}_{name.replace('.', '_')}"
        copy = self.writer.append("placeholder", wished, name=wished, meta=node.meta)
        copy.target = copy.name
        if kind is InputKind.BUFFER:
            persistent = attribute.persistent
        store = self.state if kind is InputKind.PARAMETER or persistent else self.constants
        store[name] = attribute.value
        self.inputs.append(InputSpec(kind, _argument(copy), name, persistent))
        return copy

    def _write_rest(self, nodes: Sequence[Node]) -> list[OutputSpec]:
        outputs: list[OutputSpec] = []
        for node in nodes:
            if node.op == "output":
                given = pytree.tree_leaves(_plain(node.args[0]))
                flat = tuple(self.copies[leaf] if isinstance(leaf, Node) else leaf for leaf in given)
                flat = flat or (None,)  # torch cannot save a program without outputs
                self.writer.append("output", "output", (flat,), meta=node.meta)
                outputs = [OutputSpec(OutputKind.USER_OUTPUT, _argument(leaf), None) for leaf in flat]
            elif node not in self.copies and not is_guard(node):
                self.copies[node] = self.writer.copy(node, self.copies)
        return outputs


def _plain(given: Any) -> Any:
    """The same nesting in plain lists and tuples, which torch.fx makes immutable ones of."""
    if isinstance(given, (tuple, list)):
        items = [_plain(item) for item in given]
        return items if isinstance(given, list) else tuple(items)
    return given


def _argument(given: Any) -> Any:
    """How a signature describes an input or output."""
    if not isinstance(given, Node):
        return ConstantArgument(name="", value=given)
    value = value_of(given)
    for kind, described in (
        (torch.SymInt, SymIntArgument),
        (torch.SymFloat, SymFloatArgument),
        (torch.SymBool, SymBoolArgument),
    ):
        if isinstance(value, kind):
            return described(name=given.name)
    if isinstance(value, torch.Tensor):
        return TensorArgument(name=given.name)
    if isinstance(value, (int, float, bool, str)) or value is None:
        return ConstantArgument(name=given.name, value=value)
    return CustomObjArgument(name=given.name, class_fqn=type(value).__qualname__, fake_val=value)


def _ranges(part: GraphModule) -> dict[Any, Any]:
    """The ranges of the symbols in the part."""
    found: dict[Any, Any] = {}
    for node in part.graph.nodes:
        value = value_of(node)
        if not isinstance(value, (torch.Tensor, torch.SymInt)):
            continue
        for symbol in sorted(free_symbols(value), key=str):
            sizes: list[Any] = list(value.shape) if isinstance(value, torch.Tensor) else [value]
            environment = next(size.node.shape_env for size in sizes if _is_symbolic(size))
            if symbol in environment.var_to_range:
                found[symbol] = environment.var_to_range[symbol]
    return found
