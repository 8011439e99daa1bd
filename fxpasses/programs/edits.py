"""Add, remove, rename and convert what an ExportedProgram takes, holds and gives."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
)
from torch.fx import GraphModule, Node

from fxpasses.editing import insert_before
from fxpasses.errors import GraphError
from fxpasses.metadata import current_pass
from fxpasses.programs.calling_convention import (
    drop_user_input,
    drop_user_output,
    insert_user_input,
    insert_user_output,
    rename_user_input,
    rename_user_output,
    replace_example,
)
from fxpasses.programs.signatures import (
    LIFTED,
    MUTATIONS,
    USER_OUTPUTS,
    argument_of,
    check_member,
    check_target,
    find_input,
    find_output,
    forget_in_calls,
    forget_tensor,
    insert_placeholder,
    outputs_of,
    place_of,
    placeholder_name,
    placeholders_of,
    recompile_if_possible,
    rename_node,
    set_outputs,
    store,
    stored_tensor,
    sync_ranges,
    sync_signature,
    user_output_position,
    user_position,
    written_by,
)
from fxpasses.values import (
    fake_of,
    obtain_fake_mode,
    refresh_values,
    set_value,
)

__all__ = [
    "add_buffer",
    "add_constant",
    "add_input",
    "add_mutation",
    "add_output",
    "add_parameter",
    "convert_input",
    "remove_input",
    "remove_output",
    "rename_input",
    "rename_output",
    "replace_output",
    "retype_input",
    "retype_output",
    "with_graph_module",
]

# --- inputs ----------------------------------------------------------------------------------------------------------


def add_parameter(program: ExportedProgram, name: str, parameter: torch.nn.Parameter) -> Node:
    """Add a parameter under the qualified ``name``; gives its placeholder.

    The same parameter under a second name stays one tensor (tied weights).

    Raises:
        GraphError: The name is taken, or it is a plain tensor.
    """
    if not isinstance(parameter, torch.nn.Parameter):
        raise GraphError(
            f"{name!r} is a plain tensor, not a parameter; wrap it (torch.nn.Parameter(tensor, requires_grad=False)), "
            "or use add_buffer or add_constant"
        )
    return _add_lifted(program, InputKind.PARAMETER, name, parameter)


def add_buffer(program: ExportedProgram, name: str, tensor: torch.Tensor, *, persistent: bool = True) -> Node:
    """Add a buffer under the qualified ``name``; gives its placeholder. See :func:`add_mutation` for its new value."""
    return _add_lifted(program, InputKind.BUFFER, name, tensor, persistent=persistent)


def add_constant(program: ExportedProgram, name: str, tensor: torch.Tensor) -> Node:
    """Add a constant tensor under the qualified ``name``; gives its placeholder."""
    return _add_lifted(program, InputKind.CONSTANT_TENSOR, name, tensor)


def add_input(program: ExportedProgram, name: str, example: Any, *, keyword: bool = False) -> Node:
    """Let the caller pass one more value, as the last positional argument or as a keyword argument.

    Args:
        program: Changed in place.
        name: The name of the argument and of its placeholder.
        example: A tensor (its shape becomes static), a fake tensor of the program's own mode (its symbols stay
            symbols), or a constant.
        keyword: Pass it by keyword.

    Returns:
        The placeholder.
    """
    _check_name(program, name)
    mode = obtain_fake_mode(program)
    is_fake = isinstance(example, torch._subclasses.FakeTensor)
    index = insert_user_input(program, name, None if is_fake else example, keyword=keyword)
    specs = program.graph_signature.input_specs
    place = next((at for at, spec in enumerate(specs) if spec.kind is InputKind.USER_INPUT), len(specs)) + index
    node = insert_placeholder(program, place, name)
    set_value(node, fake_of(example, mode, node) if isinstance(example, torch.Tensor) else example)
    specs.insert(place, InputSpec(InputKind.USER_INPUT, argument_of(node), None))
    _finish(program)
    return node


def remove_input(program: ExportedProgram, which: Node | str) -> None:
    """Remove a parameter, buffer, constant, or argument that nobody uses any more.

    Args:
        program: Changed in place. The tensor leaves ``state_dict`` unless another input has the same qualified name.
        which: The placeholder, its name, or the qualified name of a parameter, buffer or constant.

    Raises:
        GraphError: A node still uses it, an output still writes it, or the caller passes it inside of a structure with
            fixed fields.
    """
    node, index = find_input(program, which)
    specs = program.graph_signature.input_specs
    spec = specs[index]
    if node.users:
        users = ", ".join(repr(user.name) for user in list(node.users)[:5])
        raise GraphError(
            f"cannot remove the input {node.name!r}: {users} still use it; replace it there first",
            node=node,
            pass_name=current_pass(),
        )
    written = written_by(program, spec)
    if written is not None:
        raise GraphError(
            f"cannot remove the input {node.name!r}: the output {written.arg.name!r} is its new value; remove that "
            "output first",
            node=node,
            pass_name=current_pass(),
        )
    if spec.kind is InputKind.USER_INPUT:
        drop_user_input(program, user_position(specs, index))
    del specs[index]
    forget_tensor(program, spec)
    forget_in_calls(program, node.name)
    program.graph.erase_node(node)
    _finish(program)


def rename_input(program: ExportedProgram, which: Node | str, name: str) -> Node:
    """Rename a parameter, buffer or constant (its qualified name), or an argument; the placeholder follows.

    An argument inside of a structure keeps its place there: only its placeholder is renamed. Checks between the shapes
    of arguments follow the new name; ``run_decompositions()`` derives them anew from torch's shape environment, which
    knows the name from the export only, so rename after decomposing.
    """
    node, index = find_input(program, which)
    spec = program.graph_signature.input_specs[index]
    if spec.kind is InputKind.USER_INPUT:
        _check_name(program, name, but=node)
        rename_user_input(program, user_position(program.graph_signature.input_specs, index), name)
        rename_node(program, node, name)
        _finish(program)
        return node
    if name == spec.target:
        return node
    check_target(program, name)
    old = str(spec.target)
    for table in (program.state_dict, program.constants):
        if old in table:
            entries = [(name if key == old else key, entry) for key, entry in table.items()]
            table.clear()
            table.update(entries)
    for output in program.graph_signature.output_specs:
        if output.target == old and output.kind is not OutputKind.USER_INPUT_MUTATION:
            output.target = name
    spec.target = name
    rename_node(program, node, placeholder_name(spec.kind, name))
    _finish(program)
    return node


def retype_input(program: ExportedProgram, which: Node | str, value: torch.Tensor | torch.dtype) -> Node:
    """Give an input another dtype, shape or device; whatever is computed from it is refreshed.

    Args:
        program: Changed in place.
        which: The placeholder, its name, or a qualified name.
        value: The tensor that is stored from now on (for an argument: an example of it), or just a dtype. Tied
            parameters change together, and stay tied.

    Returns:
        The placeholder.
    """
    node, index = find_input(program, which)
    spec = program.graph_signature.input_specs[index]
    mode = obtain_fake_mode(program)
    if spec.kind is InputKind.USER_INPUT:
        _retype_argument(program, node, index, value)
        changed = [node]
    else:
        old = stored_tensor(program, spec)
        if not isinstance(old, torch.Tensor):
            raise GraphError(f"{node.name!r} is not a tensor and has no dtype or shape", node=node)
        new = _converted(old, value) if isinstance(value, torch.dtype) else value
        if isinstance(old, torch.nn.Parameter) and not isinstance(new, torch.nn.Parameter):
            new = torch.nn.Parameter(new, requires_grad=old.requires_grad and new.dtype.is_floating_point)
        changed = []
        for other, holder in zip(program.graph_signature.input_specs, placeholders_of(program), strict=True):
            if other.kind in LIFTED and stored_tensor(program, other) is old:
                set_value(holder, fake_of(new, mode, holder))
                changed.append(holder)
        for table in (program.state_dict, program.constants):
            table.update({key: new for key, entry in table.items() if entry is old})
    refresh_values(changed)
    _finish(program)
    return node


def convert_input(program: ExportedProgram, which: Node | str, kind: InputKind, *, persistent: bool = True) -> Node:
    """Turn a parameter into a constant or a buffer, or the other way round; the tensor stays where it is in memory.

    Args:
        program: Changed in place.
        which: The placeholder, its name, or a qualified name.
        kind: ``InputKind.PARAMETER``, ``BUFFER`` or ``CONSTANT_TENSOR``.
        persistent: For a buffer, whether ``state_dict`` holds it.

    Returns:
        The placeholder, moved to where its kind belongs.
    """
    node, index = find_input(program, which)
    specs = program.graph_signature.input_specs
    spec = specs[index]
    tensor = stored_tensor(program, spec) if spec.kind in LIFTED else None
    tensors = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    if not isinstance(tensor, torch.Tensor) or kind not in tensors:
        raise GraphError(f"cannot turn {node.name!r} from a {spec.kind.name} into a {kind.name}", node=node)
    if (written := written_by(program, spec)) is not None and kind is not spec.kind:
        raise GraphError(
            f"cannot turn {node.name!r} into a {kind.name}: the output {written.arg.name!r} is its new value",
            node=node,
        )
    if kind is InputKind.PARAMETER and not isinstance(tensor, torch.nn.Parameter):
        tensor = torch.nn.Parameter(tensor, requires_grad=False)
    tensor = _fitting(tensor, kind)
    del specs[index]
    forget_tensor(program, spec)
    place = place_of(program, kind)
    following = [other for other in placeholders_of(program) if other is not node]
    if place < len(following):
        following[place].prepend(node)
    elif following:
        following[-1].append(node)
    specs.insert(place, InputSpec(kind, spec.arg, spec.target, persistent if kind is InputKind.BUFFER else None))
    store(program, specs[place], tensor)
    set_value(node, fake_of(tensor, obtain_fake_mode(program), node))
    _finish(program)
    return node


# --- outputs ---------------------------------------------------------------------------------------------------------


def add_output(program: ExportedProgram, node: Node, *, name: str | None = None) -> None:
    """Let the program return the value of ``node`` as well, as its last output.

    Args:
        program: Changed in place. A program that returned one tensor returns a pair from now on.
        node: A node of its graph.
        name: The key, for programs that return a dict; the name of the node if None.

    Raises:
        GraphError: The node is not in the graph, or the program returns a structure with fixed fields.
    """
    check_member(program, node)
    insert_user_output(program, name or node.name)
    set_outputs(
        program,
        [*outputs_of(program), node],
        [*program.graph_signature.output_specs, OutputSpec(OutputKind.USER_OUTPUT, argument_of(node), None)],
    )
    _finish(program)


def add_mutation(program: ExportedProgram, which: Node | str, value: Node) -> None:
    """Say that running the program writes ``value`` into a buffer, parameter or argument, such as a key-value cache.

    Args:
        program: Changed in place.
        which: The placeholder that is written, its name, or the qualified name of the buffer.
        value: The node that computes the new content.

    Raises:
        GraphError: It is a constant, or has a new value already.
    """
    node, index = find_input(program, which)
    check_member(program, value)
    spec = program.graph_signature.input_specs[index]
    kinds = {
        InputKind.BUFFER: OutputKind.BUFFER_MUTATION,
        InputKind.PARAMETER: OutputKind.PARAMETER_MUTATION,
        InputKind.USER_INPUT: OutputKind.USER_INPUT_MUTATION,
    }
    if spec.kind not in kinds:
        raise GraphError(
            f"{node.name!r} is a {spec.kind.name}, which cannot be written; make it a buffer first", node=node
        )
    if (written := written_by(program, spec)) is not None:
        raise GraphError(f"{node.name!r} already gets its new value from {written.arg.name!r}", node=node)
    specs = program.graph_signature.output_specs
    if any(other.kind in MUTATIONS and other.arg.name == value.name for other in specs):
        value = _copied_before_output(program, value)  # the signature finds mutations by the name of their node
    target = node.name if spec.kind is InputKind.USER_INPUT else spec.target
    place = sum(other.kind in (*MUTATIONS, OutputKind.TOKEN) for other in specs)
    outputs = outputs_of(program)
    new_spec = OutputSpec(kinds[spec.kind], argument_of(value), target)
    set_outputs(program, [*outputs[:place], value, *outputs[place:]], [*specs[:place], new_spec, *specs[place:]])
    _finish(program)


def remove_output(program: ExportedProgram, which: Node | str | int) -> None:
    """Stop returning a value, or stop writing a new value into a buffer or argument.

    Args:
        program: Changed in place; nodes that nobody uses any more stay in the graph.
        which: The node, its name, or its position among all outputs.
    """
    index = find_output(program, which)
    specs = program.graph_signature.output_specs
    if specs[index].kind in USER_OUTPUTS:
        drop_user_output(program, user_output_position(specs, index))
    outputs = outputs_of(program)
    set_outputs(program, outputs[:index] + outputs[index + 1 :], specs[:index] + specs[index + 1 :])
    _finish(program)


def replace_output(program: ExportedProgram, which: Node | str | int, by: Node) -> None:
    """Return (or write) the value of ``by`` in the place of another output."""
    index = find_output(program, which)
    check_member(program, by)
    outputs = outputs_of(program)
    outputs[index] = by
    set_outputs(program, outputs, list(program.graph_signature.output_specs))
    _finish(program)


def rename_output(program: ExportedProgram, which: Node | str | int, name: str) -> Node:
    """Rename the node of an output; in a program that returns a dict, its key as well."""
    index = find_output(program, which)
    specs = program.graph_signature.output_specs
    node = outputs_of(program)[index]
    if not isinstance(node, Node) or node.op == "placeholder":
        raise GraphError(f"output {index} is {node}, which has no node of its own to rename")
    _check_name(program, name, but=node)
    if specs[index].kind in USER_OUTPUTS:
        rename_user_output(program, user_output_position(specs, index), name)
    rename_node(program, node, name)
    _finish(program)
    return node


def retype_output(program: ExportedProgram, which: Node | str | int, dtype: torch.dtype) -> Node:
    """Return an output in another dtype: it is converted right before it leaves the program."""
    index = find_output(program, which)
    node = outputs_of(program)[index]
    if not isinstance(node, Node) or not isinstance(node.meta.get("val"), torch.Tensor):
        raise GraphError(f"output {index} is {node}, which is not a tensor and has no dtype")
    if node.meta["val"].dtype == dtype:
        return node
    new = insert_before(program.graph.output_node(), torch.ops.aten._to_copy.default, (node,), {"dtype": dtype})
    replace_output(program, index, new)
    return new


# --- how it is done ------------------------------------------------------------------------------------------


def _converted(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.detach().to(dtype)


def _fitting(tensor: torch.Tensor, kind: InputKind) -> torch.Tensor:
    """Only parameters are stored as parameters; the same memory is used for other kinds."""
    return tensor.detach() if isinstance(tensor, torch.nn.Parameter) and kind is not InputKind.PARAMETER else tensor


def _retype_argument(program: ExportedProgram, node: Node, index: int, value: torch.Tensor | torch.dtype) -> None:
    old = node.meta.get("val")
    if not isinstance(old, torch.Tensor):
        raise GraphError(f"the input {node.name!r} is not a tensor and has no dtype or shape", node=node)
    mode = obtain_fake_mode(program)
    if isinstance(value, torch.dtype):
        with mode:
            set_value(node, old.to(value))
        replace_example(program, user_position(program.graph_signature.input_specs, index), value)
        return
    set_value(node, fake_of(value, mode, node))
    replace_example(program, user_position(program.graph_signature.input_specs, index), value)


def _copied_before_output(program: ExportedProgram, value: Node) -> Node:
    return insert_before(program.graph.output_node(), torch.ops.aten.clone.default, (value,))


def _finish(program: ExportedProgram) -> None:
    sync_signature(program)
    sync_ranges(program)
    recompile_if_possible(program.graph_module)


def _add_lifted(
    program: ExportedProgram, kind: InputKind, name: str, tensor: torch.Tensor, *, persistent: bool = True
) -> Node:
    check_target(program, name)
    tensor = _fitting(tensor, kind)
    place = place_of(program, kind)
    node = insert_placeholder(program, place, placeholder_name(kind, name))
    set_value(node, fake_of(tensor, obtain_fake_mode(program), node))
    spec = InputSpec(kind, argument_of(node), name, persistent if kind is InputKind.BUFFER else None)
    program.graph_signature.input_specs.insert(place, spec)
    store(program, spec, tensor)
    _finish(program)
    return node


def _check_name(program: ExportedProgram, name: str, *, but: Node | None = None) -> None:
    if not name.isidentifier():
        raise GraphError(f"{name!r} is not a name that Python code could use; take letters, digits and underscores")
    if any(node.name == name and node is not but for node in program.graph.nodes):
        raise GraphError(f"the name {name!r} is taken by another node of the program")


def with_graph_module(program: ExportedProgram, graph_module: GraphModule) -> ExportedProgram:
    """Bring a program back in step with a graph module that passes have edited.

    Args:
        program: The program it was made from; changed in place if ``graph_module`` is its own.
        graph_module: The edited graph.

    Returns:
        ``program`` itself, or a new program around ``graph_module`` that shares all tensors with it.

    Raises:
        GraphError: The edits cannot be a program of the same calling convention; says what to use instead.
    """
    from fxpasses.programs.resyncing import resync

    return resync(program, graph_module)
