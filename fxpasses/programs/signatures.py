"""The signature of an ExportedProgram: what each placeholder and each output stands for, and how it is kept in step.

:mod:`fxpasses.programs` edits programs with these; the questions among them are for everybody.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    CustomObjArgument,
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

from fxpasses.errors import GraphError
from fxpasses.metadata import current_pass
from fxpasses.values import has_value, shape_env_of, value_of_arguments

__all__ = [
    "LIFTED",
    "MUTATIONS",
    "RANK",
    "USER_OUTPUTS",
    "argument_of",
    "check_member",
    "check_target",
    "constant_of",
    "find_input",
    "find_output",
    "forget_in_calls",
    "forget_tensor",
    "insert_placeholder",
    "is_buffer",
    "is_lifted_constant",
    "is_parameter",
    "is_user_input",
    "kind_of",
    "outputs_of",
    "place_of",
    "placeholder_name",
    "placeholders_of",
    "recompile_if_possible",
    "rename_node",
    "set_outputs",
    "spec_of",
    "store",
    "stored_tensor",
    "sync_ranges",
    "sync_signature",
    "tensor_of",
    "user_output_position",
    "user_position",
    "written_by",
]

RANK = {
    InputKind.TOKEN: 0,
    InputKind.PARAMETER: 1,
    InputKind.BUFFER: 2,
    InputKind.CONSTANT_TENSOR: 3,
    InputKind.CUSTOM_OBJ: 3,
    InputKind.USER_INPUT: 4,
}
_PREFIX = {
    InputKind.PARAMETER: "p_",
    InputKind.BUFFER: "b_",
    InputKind.CONSTANT_TENSOR: "c_",
    InputKind.CUSTOM_OBJ: "obj_",
}
LIFTED = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR, InputKind.CUSTOM_OBJ)
MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION)
USER_OUTPUTS = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)


# --- questions -------------------------------------------------------------------------------------------------------


def spec_of(program: ExportedProgram, node: Node | str) -> InputSpec | None:
    """What the signature says about a placeholder (or its name); None for anything that is no placeholder."""
    name = node if isinstance(node, str) else node.name
    return next((spec for spec in program.graph_signature.input_specs if spec.arg.name == name), None)


def is_parameter(program: ExportedProgram, node: Node) -> bool:
    """Whether ``node`` is the placeholder of a parameter."""
    return kind_of(program, node) is InputKind.PARAMETER


def is_buffer(program: ExportedProgram, node: Node) -> bool:
    """Whether ``node`` is the placeholder of a buffer, persistent or not."""
    return kind_of(program, node) is InputKind.BUFFER


def is_lifted_constant(program: ExportedProgram, node: Node) -> bool:
    """Whether ``node`` is the placeholder of a constant tensor that was lifted out of the code."""
    return kind_of(program, node) is InputKind.CONSTANT_TENSOR


def is_user_input(program: ExportedProgram, node: Node) -> bool:
    """Whether the caller passes the value of ``node``."""
    return kind_of(program, node) is InputKind.USER_INPUT


def tensor_of(program: ExportedProgram, node: Node) -> torch.Tensor | None:
    """The real tensor behind a parameter, buffer, constant or ``get_attr`` node; None for everything else."""
    found = constant_of(program, node)
    return found if isinstance(found, torch.Tensor) else None


def constant_of(program: ExportedProgram, node: Node) -> Any:
    """What a lifted placeholder or a ``get_attr`` node stands for, custom objects included; None otherwise."""
    if node.op == "get_attr":
        found: Any = program.graph_module
        for part in str(node.target).split("."):
            found = getattr(found, part, None)
        return found
    spec = spec_of(program, node) if node.op == "placeholder" else None
    return None if spec is None or spec.kind not in LIFTED else stored_tensor(program, spec)


def kind_of(program: ExportedProgram, node: Node) -> InputKind | None:
    """The kind of a placeholder; None for other nodes."""
    spec = spec_of(program, node) if node.op == "placeholder" else None
    return None if spec is None else spec.kind


def stored_tensor(program: ExportedProgram, spec: InputSpec) -> Any:
    """What ``state_dict`` or ``constants`` holds for a lifted input."""
    name = str(spec.target)
    return program.state_dict[name] if name in program.state_dict else program.constants.get(name)


# --- how it is done --------------------------------------------------------------------------------------------------


def placeholders_of(program: ExportedProgram) -> list[Node]:
    """All placeholders, in order."""
    return [node for node in program.graph.nodes if node.op == "placeholder"]


def outputs_of(program: ExportedProgram) -> list[Any]:
    """What the output node returns, flat: nodes and constants."""
    found: Any = program.graph.output_node().args[0]
    return list(found)


def set_outputs(program: ExportedProgram, outputs: Sequence[Any], specs: Sequence[OutputSpec]) -> None:
    """Return other nodes; ``specs`` say what each of them is."""
    output = program.graph.output_node()
    output.args = (tuple(outputs),)
    if "val" in output.meta:
        output.meta["val"] = value_of_arguments(tuple(outputs))
    program.graph_signature.output_specs[:] = specs


def find_input(program: ExportedProgram, which: Node | str) -> tuple[Node, int]:
    """A placeholder and its position, by node, name or qualified name.

    Raises:
        GraphError: There is none; lists what there is.
    """
    placeholders = placeholders_of(program)
    specs = program.graph_signature.input_specs
    for index, (node, spec) in enumerate(zip(placeholders, specs, strict=True)):
        if node is which or (isinstance(which, str) and which in (node.name, spec.target)):
            return node, index
    name = which if isinstance(which, str) else which.name
    known = ", ".join(node.name for node in placeholders[:20])
    raise GraphError(f"the program has no input {name!r}; it has {known}", pass_name=current_pass())


def find_output(program: ExportedProgram, which: Node | str | int) -> int:
    """The position of an output among all of them, by node, name or position.

    Raises:
        GraphError: There is none, or there are several.
    """
    outputs = outputs_of(program)
    if isinstance(which, int):
        if 0 <= which < len(outputs):
            return which
        raise GraphError(f"the program has {len(outputs)} outputs, and no output {which}", pass_name=current_pass())
    name = which if isinstance(which, str) else which.name
    found = [index for index, node in enumerate(outputs) if isinstance(node, Node) and node.name == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise GraphError(f"{name!r} is output {' and output '.join(map(str, found))}; say which, by its position")
    known = ", ".join(str(node) for node in outputs[:20])
    raise GraphError(f"the program has no output {name!r}; it has {known}", pass_name=current_pass())


def user_position(specs: Sequence[InputSpec], index: int) -> int:
    """The position among the arguments that callers pass."""
    return sum(spec.kind is InputKind.USER_INPUT for spec in specs[:index])


def user_output_position(specs: Sequence[OutputSpec], index: int) -> int:
    """The position among the values that callers get."""
    return sum(spec.kind in USER_OUTPUTS for spec in specs[:index])


def written_by(program: ExportedProgram, spec: InputSpec) -> OutputSpec | None:
    """The output that is the new value of an input, if there is one."""
    target = spec.arg.name if spec.kind is InputKind.USER_INPUT else spec.target
    user = spec.kind is InputKind.USER_INPUT
    for output in program.graph_signature.output_specs:
        same_kind = user == (output.kind is OutputKind.USER_INPUT_MUTATION)
        if same_kind and output.kind in MUTATIONS and output.target == target:
            found: OutputSpec = output
            return found
    return None


def check_member(program: ExportedProgram, node: Node) -> None:
    """Refuse a node of another graph, or one that was erased."""
    if node.graph is not program.graph or node._erased:
        raise GraphError(f"{node.name!r} is not a node of the program's graph", node=node, pass_name=current_pass())


def check_target(program: ExportedProgram, name: str) -> None:
    """Refuse a qualified name that is taken, or that no module could use."""
    taken = {str(spec.target) for spec in program.graph_signature.input_specs if spec.target is not None}
    taken |= set(program.state_dict) | set(program.constants)
    for other in sorted(taken):
        if name == other or name.startswith(f"{other}.") or other.startswith(f"{name}."):
            raise GraphError(f"the name {name!r} is taken by {other!r}; choose another one", pass_name=current_pass())
    if not all(part.isidentifier() or part.isdigit() for part in name.split(".")):
        raise GraphError(f"{name!r} is not a qualified name, such as 'layer.weight'")
    if hasattr(program.graph_module, name.split(".")[0]) and name.split(".")[0] not in {t.split(".")[0] for t in taken}:
        raise GraphError(f"the name {name!r} is taken by an attribute of the graph module; choose another one")


def placeholder_name(kind: InputKind, target: str) -> str:
    """The name that ``torch.export`` gives to the placeholder of a lifted tensor."""
    return _PREFIX[kind] + target.replace(".", "_")


def place_of(program: ExportedProgram, kind: InputKind) -> int:
    """Where a new input of this kind belongs: behind its like, before the arguments."""
    specs = program.graph_signature.input_specs
    return next((at for at, spec in enumerate(specs) if RANK[spec.kind] > RANK[kind]), len(specs))


def insert_placeholder(program: ExportedProgram, place: int, name: str, *, after: Node | None = None) -> Node:
    """Make a placeholder at a position among the others, or right behind one; its spec is the caller's to insert."""
    graph = program.graph
    if after is not None:
        with graph.inserting_after(after):
            following: Node = graph.placeholder(name)
        following.target = following.name
        return following
    placeholders = placeholders_of(program)
    before = placeholders[place] if place < len(placeholders) else None
    if before is None:
        before = placeholders[-1].next if placeholders else next(iter(graph.nodes))
    with graph.inserting_before(before):
        node: Node = graph.placeholder(name)
    node.target = node.name
    return node


def store(program: ExportedProgram, spec: InputSpec, tensor: Any) -> None:
    """Put a tensor where the signature says that it is."""
    in_state = spec.kind is InputKind.PARAMETER or (spec.kind is InputKind.BUFFER and spec.persistent)
    (program.state_dict if in_state else program.constants)[str(spec.target)] = tensor


def forget_tensor(program: ExportedProgram, spec: InputSpec) -> None:
    """Drop what only ``spec`` referred to."""
    if spec.kind not in LIFTED or any(other.target == spec.target for other in program.graph_signature.input_specs):
        return
    program.state_dict.pop(str(spec.target), None)
    program.constants.pop(str(spec.target), None)


def rename_node(program: ExportedProgram, node: Node, name: str) -> None:
    """Rename a node wherever the program speaks of it."""
    old = node.name
    if old == name:
        return
    node._rename(name)
    if node.op == "placeholder":
        node.target = node.name
        for output in program.graph_signature.output_specs:
            if output.kind is OutputKind.USER_INPUT_MUTATION and output.target == old:
                output.target = node.name
    for entry in program.module_call_graph:
        if entry.signature is not None:
            for argument in (*entry.signature.inputs, *entry.signature.outputs):
                if argument.name == old:
                    argument.name = node.name


def forget_in_calls(program: ExportedProgram, name: str) -> None:
    """A preserved call of a submodule that took or gave a node which is gone is not preserved any more."""
    for entry in program.module_call_graph[1:]:
        signature = entry.signature
        if signature is not None and any(each.name == name for each in (*signature.inputs, *signature.outputs)):
            entry.signature = None


def argument_of(value: Any) -> Any:
    """What a signature says about a node or a constant."""
    if not isinstance(value, Node):
        return ConstantArgument(name="", value=value)
    found = value.meta.get("val")
    kinds = (
        (torch.SymInt, SymIntArgument),
        (torch.SymFloat, SymFloatArgument),
        (torch.SymBool, SymBoolArgument),
    )
    for kind, argument in kinds:
        if isinstance(found, kind):
            return argument(name=value.name)
    if isinstance(found, CustomObjArgument):
        return CustomObjArgument(name=value.name, class_fqn=found.class_fqn, fake_val=found.fake_val)
    if has_value(value) and (found is None or isinstance(found, (bool, int, float, str))):
        return ConstantArgument(name=value.name, value=found)
    return TensorArgument(name=value.name)


def recompile_if_possible(graph_module: GraphModule) -> None:
    """Compile the graph's code; a graph with custom objects among its arguments has none, and runs all the same."""
    with contextlib.suppress(SyntaxError):
        graph_module.recompile()


def sync_signature(program: ExportedProgram) -> None:
    """Write the names of placeholders and outputs into the specs, position by position."""
    for spec, node in zip(program.graph_signature.input_specs, placeholders_of(program), strict=True):
        spec.arg.name = node.name
    for output, node in zip(program.graph_signature.output_specs, outputs_of(program), strict=True):
        if output.kind is OutputKind.TOKEN:
            output.arg.name = node.name
        else:
            argument = argument_of(node)
            if type(argument) is not type(output.arg) or argument != output.arg:
                output.arg = argument


def sync_ranges(program: ExportedProgram) -> None:
    """Let the range constraints speak of the symbols that the inputs and the nodes with fresh symbols have."""
    symbols: dict[Any, None] = {}
    shape_env = None
    for node in program.graph.nodes:
        if node.op == "placeholder" and has_value(node):
            found = node.meta.get("val")
            if isinstance(found, (torch.Tensor, torch.SymInt)):
                shape_env = shape_env or shape_env_of(found)
                symbols.update(dict.fromkeys(sorted(free_symbols(found), key=str)))
        elif bindings := node.meta.get("unbacked_bindings"):
            symbols.update(dict.fromkeys(bindings))
    ranges = program.range_constraints
    for symbol in list(ranges):
        if symbol not in symbols and str(symbol).startswith("s"):
            del ranges[symbol]
    for symbol in symbols:
        if symbol not in ranges and shape_env is not None and symbol in shape_env.var_to_range:
            ranges[symbol] = shape_env.var_to_range[symbol]
