"""Bring a program back in step with a graph that passes have edited without looking at its signature.

Passes rename nodes, erase weights that nobody uses, hang new constants on the graph module and exchange outputs. What
can be told from the graph is brought in step: names, lifted tensors that are gone or new, outputs by position. What
would change how the program is called is refused with a sentence that names the edit to use instead.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import CodeGen
from torch.utils import _pytree as pytree

from fxpasses.editing.submodules import get_attribute, remove_attribute
from fxpasses.errors import GraphError
from fxpasses.guards import GUARDS
from fxpasses.metadata import current_pass
from fxpasses.outlining.body_constants import hand_in_constants
from fxpasses.programs.signatures import (
    LIFTED,
    MUTATIONS,
    RANK,
    insert_placeholder,
    place_of,
    placeholder_name,
    placeholders_of,
    recompile_if_possible,
    store,
    stored_tensor,
    sync_ranges,
    sync_signature,
)
from fxpasses.values import fake_of, obtain_fake_mode, set_value

__all__ = ["resync"]


def resync(program: ExportedProgram, graph_module: GraphModule) -> ExportedProgram:
    """See :func:`fxpasses.programs.with_graph_module`."""
    if graph_module is not program.graph_module:
        program = _program_around(program, graph_module)
    graph = graph_module.graph
    _drop_guards(graph_module)
    _flatten_calling(graph)
    _flatten_outputs(graph)
    matched = _match_inputs(program)
    _check_outputs(program, matched)
    _drop_missing_inputs(program, matched)
    _order_placeholders(program, matched)
    for body in hand_in_constants(graph_module):
        recompile_if_possible(body)
    _lift_attributes(program)
    _rename_calls(program)
    sync_signature(program)
    sync_ranges(program)
    recompile_if_possible(graph_module)
    return program


def _program_around(program: ExportedProgram, graph_module: GraphModule) -> ExportedProgram:
    """A program with tables of its own around another graph module; tensors are shared."""
    new = ExportedProgram.__new__(ExportedProgram)
    new.__dict__.update(program.__dict__)
    signature = program.graph_signature
    new.__dict__["_graph_module"] = graph_module
    new.__dict__["_graph_signature"] = ExportGraphSignature(
        [InputSpec(each.kind, copy.copy(each.arg), each.target, each.persistent) for each in signature.input_specs],
        [OutputSpec(each.kind, copy.copy(each.arg), each.target) for each in signature.output_specs],
    )
    for key in ("_state_dict", "_constants", "_range_constraints"):
        new.__dict__[key] = dict(program.__dict__[key])
    new.__dict__["_module_call_graph"] = [_copied_entry(entry) for entry in program.module_call_graph]
    return new


def _copied_entry(entry: Any) -> Any:
    made = copy.copy(entry)
    if entry.signature is not None:
        made.signature = copy.copy(entry.signature)
        made.signature.inputs = [copy.copy(each) for each in entry.signature.inputs]
        made.signature.outputs = [copy.copy(each) for each in entry.signature.outputs]
        if entry.signature.forward_arg_names is not None:
            made.signature.forward_arg_names = list(entry.signature.forward_arg_names)
    return made


# --- the graph ------------------------------------------------------------------------------------------------------


def _drop_guards(graph_module: GraphModule) -> None:
    """``program.module()`` calls a generated check of its inputs; a program makes that anew from what it knows."""
    for node in graph_module.graph.find_nodes(op="call_module", target=GUARDS):
        if not node.users:
            graph_module.graph.erase_node(node)
            graph_module.delete_submodule(GUARDS)


def _flatten_calling(graph: Graph) -> None:
    """A program's graph takes and gives flat lists; the trees are in its module call graph."""
    if type(graph._codegen) is not CodeGen:
        graph.set_codegen(CodeGen())


def _flatten_outputs(graph: Graph) -> None:
    outputs = graph.find_nodes(op="output")
    if len(outputs) != 1:
        raise GraphError(f"the graph has {len(outputs)} output nodes; a program needs exactly one")
    output = outputs[0]
    flat = tuple(pytree.tree_leaves(output.args[0]))
    if not isinstance(output.args[0], tuple) or tuple(output.args[0]) != flat:
        output.args = (flat,)


# --- inputs ---------------------------------------------------------------------------------------------------------


def _match_inputs(program: ExportedProgram) -> dict[int, Node]:
    """Which placeholder each input spec means: by name, by former name, or by position if none was added or erased."""
    specs = program.graph_signature.input_specs
    nodes = placeholders_of(program)
    matched: dict[int, Node] = {}
    for names in ([node.name for node in nodes], [str(node.target) for node in nodes]):
        known = set(matched.values())
        free = {name: node for name, node in zip(names, nodes, strict=True) if node not in known}
        for index, spec in enumerate(specs):
            if index not in matched and spec.arg.name in free:
                matched[index] = free.pop(spec.arg.name)
        if len(matched) == len(nodes):
            return matched
    rest = [node for node in nodes if node not in set(matched.values())]
    open_specs = [index for index in range(len(specs)) if index not in matched]
    if len(rest) == len(open_specs) and all(map(_may_stand_for, rest, [specs[index] for index in open_specs])):
        return matched | dict(zip(open_specs, rest, strict=True))
    unknown = ", ".join(repr(node.name) for node in rest)
    raise GraphError(
        f"the signature knows nothing of the placeholder {unknown}; add inputs with fxpasses.programs.add_input, "
        "add_buffer, add_parameter or add_constant",
        node=rest[0],
        pass_name=current_pass(),
    )


def _may_stand_for(node: Node, spec: InputSpec) -> bool:
    is_tensor = isinstance(node.meta.get("val"), torch.Tensor)
    return is_tensor == isinstance(spec.arg, TensorArgument) or "val" not in node.meta


def _check_outputs(program: ExportedProgram, matched: dict[int, Node]) -> None:
    specs = program.graph_signature.output_specs
    outputs: Any = program.graph.output_node().args[0]
    if len(outputs) != len(specs):
        raise GraphError(
            f"the graph returns {len(outputs)} values, the signature tells of {len(specs)}; add and remove outputs "
            "with fxpasses.programs.add_output, add_mutation and remove_output",
            pass_name=current_pass(),
        )
    for spec, value in zip(specs, outputs, strict=True):
        if spec.kind in MUTATIONS and not isinstance(value, Node):
            raise GraphError(
                f"the new value of {spec.target!r} is the constant {value!r}; remove that output with "
                "fxpasses.programs.remove_output",
                pass_name=current_pass(),
            )
    input_specs = program.graph_signature.input_specs
    for index, spec in enumerate(input_specs):
        if index in matched:
            continue
        if spec.kind not in LIFTED:
            raise GraphError(
                f"the argument {spec.arg.name!r} has no placeholder any more, which would change how the program is "
                "called; keep the placeholder, or remove the argument with fxpasses.programs.remove_input",
                pass_name=current_pass(),
            )
        if any(each.kind in MUTATIONS and each.target == spec.target for each in specs):
            raise GraphError(
                f"{spec.target!r} has no placeholder any more, but an output is its new value; keep the placeholder, "
                "or remove that output with fxpasses.programs.remove_output first",
                pass_name=current_pass(),
            )


def _drop_missing_inputs(program: ExportedProgram, matched: dict[int, Node]) -> None:
    specs = program.graph_signature.input_specs
    kept = {spec.target for index, spec in enumerate(specs) if index in matched}
    for index, spec in enumerate(specs):
        if index not in matched and spec.target not in kept:
            program.state_dict.pop(str(spec.target), None)
            program.constants.pop(str(spec.target), None)


def _order_placeholders(program: ExportedProgram, matched: dict[int, Node]) -> None:
    """Placeholders in the order of the specs: lifted ones, then the arguments as callers pass them."""
    graph = program.graph
    specs = program.graph_signature.input_specs
    order = sorted(matched, key=lambda index: (specs[index].kind is InputKind.USER_INPUT, index))
    nodes = [matched[index] for index in order]
    renamed = {specs[index].arg.name: matched[index].name for index in order}
    for spec in program.graph_signature.output_specs:
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            spec.target = renamed.get(str(spec.target), spec.target)
    specs[:] = [specs[index] for index in order]
    head = list(itertools.islice(graph.nodes, len(nodes)))
    if head != nodes:
        first = next(iter(graph.nodes))
        for node in nodes:
            if node is first:
                first = first.next
            else:
                first.prepend(node)
    for node in nodes:
        if node.target != node.name:
            node.target = node.name


# --- constants that passes hung on the graph module -----------------------------------------------------------------


def _lift_attributes(program: ExportedProgram) -> None:
    """Tensors that the graph reads from its module become inputs of the program."""
    found: dict[str, list[Node]] = {}
    for node in program.graph.find_nodes(op="get_attr"):
        entry = get_attribute(program.graph_module, str(node.target))
        if isinstance(entry, torch.Tensor):
            found.setdefault(str(node.target), []).append(node)
        elif not isinstance(entry, (torch.nn.Module, pytree.TreeSpec)):
            raise GraphError(
                f"{node.name!r} reads {node.target!r}, a {type(entry).__name__}, from the graph module; a program can "
                "only hold tensors and submodules there",
                node=node,
                pass_name=current_pass(),
            )
    if not found:
        return
    placeholders = _known_inputs(program, found)
    _add_inputs(program, [target for target in found if target not in placeholders], placeholders)
    for target, nodes in found.items():
        for node in nodes:
            node.replace_all_uses_with(placeholders[target])
            program.graph.erase_node(node)
    for target in found:
        remove_attribute(program.graph_module, target)


def _known_inputs(program: ExportedProgram, targets: Iterable[str]) -> dict[str, Node]:
    """The placeholders of attributes that are inputs already, under the same name."""
    held = {target: get_attribute(program.graph_module, target) for target in targets}
    specs = zip(program.graph_signature.input_specs, placeholders_of(program), strict=True)
    return {
        str(spec.target): node
        for spec, node in specs
        if spec.kind in LIFTED and spec.target in held and stored_tensor(program, spec) is held[str(spec.target)]
    }


def _add_inputs(program: ExportedProgram, targets: Iterable[str], placeholders: dict[str, Node]) -> None:
    """Make inputs of attributes, all of one kind at a time, and note them; linear in all inputs."""
    by_kind: dict[InputKind, list[tuple[str, bool | None]]] = {}
    for target in targets:
        kind, persistent = _kind_of_attribute(program.graph_module, target)
        by_kind.setdefault(kind, []).append((target, persistent))
    names = _FreeNames([*program.state_dict, *program.constants])
    mode = obtain_fake_mode(program)
    for kind in sorted(by_kind, key=RANK.__getitem__):
        place = place_of(program, kind)
        specs: list[InputSpec] = []
        last: Node | None = None
        for target, persistent in by_kind[kind]:
            tensor = get_attribute(program.graph_module, target)
            name = names.take(target)
            last = insert_placeholder(program, place, placeholder_name(kind, name), after=last)
            set_value(last, fake_of(tensor, mode, last))
            specs.append(InputSpec(kind, TensorArgument(name=last.name), name, persistent))
            store(program, specs[-1], tensor)
            placeholders[target] = last
        program.graph_signature.input_specs[place:place] = specs


def _kind_of_attribute(graph_module: GraphModule, target: str) -> tuple[InputKind, bool | None]:
    *parents, field = target.split(".")
    owner = get_attribute(graph_module, ".".join(parents)) if parents else graph_module
    if field in owner._parameters:
        return InputKind.PARAMETER, None
    if field in owner._buffers and field not in owner._non_persistent_buffers_set:
        return InputKind.BUFFER, True
    return InputKind.CONSTANT_TENSOR, None


class _FreeNames:
    """Qualified names that are still free: none is another one, or the module that another one is in."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken: set[str] = set()
        self._modules: set[str] = set()
        for name in taken:
            self._add(name)

    def take(self, wished: str) -> str:
        """The wished name, or one like it that is free; it is taken from now on."""
        name, number = wished, 0
        while self._is_taken(name):
            name, number = f"{wished}_{number}", number + 1
        self._add(name)
        return name

    def _add(self, name: str) -> None:
        self._taken.add(name)
        self._modules.update(_modules_around(name))

    def _is_taken(self, name: str) -> bool:
        return name in self._taken or name in self._modules or not self._taken.isdisjoint(_modules_around(name))


def _modules_around(name: str) -> list[str]:
    """``["a", "a.b"]`` of ``a.b.c``."""
    steps = name.split(".")
    return [".".join(steps[:depth]) for depth in range(1, len(steps))]


# --- preserved calls of submodules ------------------------------------------------------------------------------------


def _rename_calls(program: ExportedProgram) -> None:
    """Follow the nodes that preserved module calls speak of through ``from_node``; forget calls that are gone."""
    entries = [entry for entry in program.module_call_graph[1:] if entry.signature is not None]
    if not entries:
        return
    names = {node.name for node in program.graph.nodes}
    wanted = {each.name for entry in entries for each in _arguments(entry)} - names
    heirs = _heirs(program.graph.nodes, wanted)
    for entry in entries:
        arguments = _arguments(entry)
        if any(each.name and each.name not in names and each.name not in heirs for each in arguments):
            entry.signature = None
            continue
        for each in arguments:
            each.name = heirs.get(each.name, each.name)


def _arguments(entry: Any) -> list[Any]:
    return [*entry.signature.inputs, *entry.signature.outputs]


def _heirs(nodes: Iterable[Node], wanted: set[str]) -> dict[str, str]:
    """The last node that was made in the place of each wanted one."""
    heirs: dict[str, str] = {}
    for node in nodes:
        sources: Sequence[Any] = node.meta.get("from_node") or ()
        for source in sources:
            if source.name in wanted:
                heirs[source.name] = node.name
    return heirs
