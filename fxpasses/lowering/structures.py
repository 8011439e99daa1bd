"""Input and output structures as JSON, so that a saved program loads where the model's own classes are not installed.

Lists, tuples and dicts are written as they are. A class (a dataclass, a named tuple, a transformers output) is written
by its import path and its fields; where it cannot be imported, a :class:`Record` with the same fields stands in.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import operator
import warnings
from collections import namedtuple
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument
from torch.fx import Node
from torch.utils import _pytree as pytree

from fxpasses.editing import erase_nodes
from fxpasses.effects.aliasing import storage_key
from fxpasses.errors import InputError
from fxpasses.lowering.own_buffers import in_storage
from fxpasses.programs.calling_convention import keep_conditions
from fxpasses.programs.input_sources import flat_conditions
from fxpasses.programs.saving import to_file

__all__ = ["Record", "is_plain", "save_flat", "structure_from_json", "structure_to_json", "with_structure"]

_PLAIN = {tuple: "tuple", list: "list", dict: "dict"}
_TUPLE = "tuple of"

_TURNED: Mapping[str, tuple[Callable[[torch.Tensor], bool], Callable[[torch.Tensor], torch.Tensor]]] = {
    "conjugate": (torch.Tensor.is_conj, torch.conj),
    "negated": (torch.Tensor.is_neg, torch._neg_view),
}
"""What a tensor may say of the numbers in its memory, and what says so; torch's format forgets both."""


class Record(dict[str, Any]):
    """Stands in for an output class that is not installed: fields by name, by key, or by position."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"This output has no field {name!r}; it has {', '.join(self)}.") from None

    def __getitem__(self, key: Any) -> Any:
        return list(self.values())[key] if isinstance(key, (int, slice)) else super().__getitem__(key)


def _register_record() -> None:
    if Record not in pytree.SUPPORTED_NODES:
        pytree.register_pytree_node(
            Record,
            lambda record: (list(record.values()), list(record)),
            lambda values, names: Record(zip(names, values, strict=True)),
            serialized_type_name="fxpasses.structures.Record",
        )


def is_plain(spec: pytree.TreeSpec) -> bool:
    """Whether a structure holds nothing but lists, tuples and dicts."""
    waiting = [spec]
    while waiting:
        current = waiting.pop()
        if not current.is_leaf():
            if current.type not in _PLAIN:
                return False
            waiting.extend(current.children())
    return True


def structure_to_json(spec: pytree.TreeSpec) -> dict[str, Any]:
    """Write a structure as plain data.

    Raises:
        InputError: a class keeps more than plain data about its structure.
    """
    if spec.is_leaf():
        return {"kind": "leaf"}
    items = [structure_to_json(child) for child in spec.children()]
    if spec.type in _PLAIN:
        keys = {"keys": _plain_context(spec)} if spec.type is dict else {}
        return {"kind": _PLAIN[spec.type], **keys, "items": items}
    if spec.type is namedtuple:  # what pytree calls all of them
        kind = spec.context
        return {"kind": "namedtuple", "class": _path(kind), "fields": list(kind._fields), "items": items}
    return {
        "kind": "class",
        "class": _path(spec.type),
        "fields": _field_names(spec),
        "context": _plain_context(spec),
        "items": items,
    }


def _path(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _plain_context(spec: pytree.TreeSpec) -> Any:
    try:
        return json.loads(json.dumps(_tuples_told(spec.context)))
    except TypeError:
        raise InputError(
            f"The structure of {spec.type.__name__} cannot be saved: its pytree context ({spec.context!r}) is not "
            "plain data; return a dict, a tuple or a dataclass instead."
        ) from None


def _tuples_told(context: Any) -> Any:
    """A context in which tuples, which JSON makes lists of, are known again: a dict may have them as keys."""
    if isinstance(context, tuple):
        return {_TUPLE: [_tuples_told(each) for each in context]}
    return [_tuples_told(each) for each in context] if isinstance(context, list) else context


def _context(plain: Any) -> Any:
    """A context as it was."""
    if isinstance(plain, dict) and plain.keys() == {_TUPLE}:
        return tuple(_context(each) for each in plain[_TUPLE])
    return [_context(each) for each in plain] if isinstance(plain, list) else plain


def _field_names(spec: pytree.TreeSpec) -> list[str]:
    """Names for the children: the context of dataclasses and transformers outputs lists them."""
    context, count = spec.context, len(spec.children())
    candidates = [context, context[0] if isinstance(context, (list, tuple)) and context else None]
    for names in candidates:
        if isinstance(names, (list, tuple)) and len(names) == count and all(isinstance(n, str) for n in names):
            return list(names)
    return [f"field{index}" for index in range(count)]


def structure_from_json(data: Mapping[str, Any]) -> pytree.TreeSpec:
    """Read a structure back; classes that cannot be imported become :class:`Record`."""
    kind = data["kind"]
    if kind == "leaf":
        return pytree.treespec_leaf()
    items = [structure_from_json(item) for item in data["items"]]
    if kind == "dict":
        return pytree.TreeSpec(dict, _context(data["keys"]), items)
    if kind in ("tuple", "list"):
        return pytree.TreeSpec(tuple if kind == "tuple" else list, None, items)
    found = _import(data["class"])
    if kind == "namedtuple" and found is not None:
        return pytree.tree_structure(found(*range(len(items)))) if all(map(_leaf, items)) else _named(found, items)
    if found is not None and found in pytree.SUPPORTED_NODES:
        return pytree.TreeSpec(found, _context(data["context"]), items)
    _register_record()
    return pytree.TreeSpec(Record, data["fields"], items)


def _leaf(spec: pytree.TreeSpec) -> bool:
    return bool(spec.is_leaf())


def _named(found: Any, items: list[pytree.TreeSpec]) -> pytree.TreeSpec:
    shallow = pytree.tree_structure(found(*range(len(items))))
    return pytree.TreeSpec(shallow.type, shallow.context, items)


def _import(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found


def save_flat(
    program: ExportedProgram, file: Path | BytesIO, replaced: Mapping[int, torch.Tensor] | None = None
) -> dict[str, Any]:
    """Save a program with flat tuples where its structure has classes.

    torch's format forgets which names are one tensor and which tensors are conjugates of what is in memory, writes
    constants apart from the state whose memory they show, and gives each element of a tuple a node, whether something
    uses it or not; what is needed to undo that is part of the answer.

    Args:
        program: The program.
        file: Where to.
        replaced: Tensors to write in the place of the program's own, by the ``id`` of those.

    Returns:
        What :func:`with_structure` needs, as plain data: the structures, the order of the state, names of tied tensors,
        of constants in the memory of the state, of conjugates, and of unused elements.

    Raises:
        InputError: the model gives back a text: torch writes it, and cannot read it again.
    """
    _refuse_texts(program)
    spec = program.call_spec
    structure = {"inputs": structure_to_json(spec.in_spec), "outputs": structure_to_json(spec.out_spec)}
    inputs = spec.in_spec if is_plain(spec.in_spec) else _flat_inputs(spec.in_spec)
    outputs = spec.out_spec if is_plain(spec.out_spec) else _flat(spec.out_spec)
    plain = _structured(program, inputs, outputs, replaced=replaced)
    if inputs is not spec.in_spec:
        plain._example_inputs, plain._guards_code = None, flat_conditions(program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        to_file(plain, file if isinstance(file, BytesIO) else str(file))
    unused = [node.name for node in _unused_elements(program)]
    names = {"state": list(program.state_dict), "tied": _tied(program), "shared": _shared(program)}
    written = _tensors(plain)
    turned = {kind: [name for name, each in written.items() if says(each)] for kind, (says, _) in _TURNED.items()}
    return structure | names | turned | {"unused": unused}


def _refuse_texts(program: ExportedProgram) -> None:
    for spec in program.graph_signature.output_specs:
        if isinstance(spec.arg, ConstantArgument) and isinstance(spec.arg.value, str):
            raise InputError(
                f"The model gives back the text {spec.arg.value!r}, which torch's file format cannot hold; to save or "
                "pickle it, leave the text out of the results."
            )


def _tied(program: ExportedProgram) -> list[list[str]]:
    """The names of each tensor that has several."""
    names: dict[int, list[str]] = {}
    for name, value in _tensors(program).items():
        names.setdefault(id(value), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def _shared(program: ExportedProgram) -> list[tuple[str, str]]:
    """Each constant that shows memory of the state, as a buffer that checkpoints leave out may, and what is there."""
    in_state: dict[object, str] = {}
    for name, value in program.state_dict.items():
        in_state.setdefault(storage_key(value), name)
    keys = {name: storage_key(each) for name, each in _tensors(program).items() if name not in program.state_dict}
    return [(name, in_state[key]) for name, key in keys.items() if key in in_state]


def _tensors(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """State and constants by their names."""
    held = {**program.state_dict, **program.constants}
    return {name: each for name, each in held.items() if isinstance(each, torch.Tensor)}


def _unused_elements(program: ExportedProgram) -> list[Node]:
    """Elements of tuples, and elements of those, that lead nowhere."""
    unused: dict[Node, None] = {}
    for node in reversed(program.graph.find_nodes(op="call_function", target=operator.getitem)):
        if node.users.keys() <= unused.keys():
            unused[node] = None
    return list(unused)


def with_structure(program: ExportedProgram, structure: Mapping[str, Any]) -> ExportedProgram:
    """A program that was saved flat, as it was before.

    Args:
        program: What was loaded; its tied tensors become one again, and it loses the elements that torch added.
        structure: What :func:`save_flat` gave.

    Raises:
        InputError: the program has no call signature.
        KeyError: something is missing in the structure.
    """
    for name, other in structure.get("shared", ()):  # folders of older versions do not say
        program.constants[name] = in_storage(program.constants[name], program.state_dict[other].untyped_storage())
    for kind, (_, turn) in _TURNED.items():
        for name in structure.get(kind, ()):
            _put(program, name, _turned(_tensors(program)[name], turn))
    for first, *others in structure.get("tied", ()):
        for name in others:
            _put(program, name, _tensors(program)[first])
    loaded = dict(program.state_dict)
    program.state_dict.clear()
    program.state_dict.update({name: loaded[name] for name in structure.get("state", loaded)})
    unused = structure.get("unused", ())
    erase_nodes([node for node in _unused_elements(program) if node.name not in unused])
    return _structured(program, *(structure_from_json(structure[key]) for key in ("inputs", "outputs")))


def _put(program: ExportedProgram, name: str, tensor: torch.Tensor) -> None:
    """Put a tensor in the place of one of the state, or of a constant."""
    (program.state_dict if name in program.state_dict else program.constants)[name] = tensor


def _turned(tensor: torch.Tensor, turn: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A view of a tensor, which is a parameter where that is one."""
    view = turn(tensor.detach())
    return torch.nn.Parameter(view, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else view


def _flat(spec: pytree.TreeSpec) -> pytree.TreeSpec:
    return pytree.tree_structure(tuple(range(spec.num_leaves)))


def _flat_inputs(spec: pytree.TreeSpec) -> pytree.TreeSpec:
    return pytree.tree_structure((tuple(range(spec.num_leaves)), {}))


def _structured(
    program: ExportedProgram,
    inputs: pytree.TreeSpec,
    outputs: pytree.TreeSpec,
    *,
    replaced: Mapping[int, torch.Tensor] | None = None,
) -> ExportedProgram:
    """The same program, sharing graph and state, under other input and output structures; with some other tensors."""
    state_dict, constants = program.state_dict, program.constants
    if replaced:
        state_dict = {name: replaced.get(id(each), each) for name, each in state_dict.items()}
        constants = {name: replaced.get(id(each), each) for name, each in constants.items()}
    first, *others = program.module_call_graph
    if first.signature is None:
        raise InputError("The program has no call signature; export the model again.")
    signature = dataclasses.replace(first.signature, in_spec=inputs, out_spec=outputs)
    structured = ExportedProgram(
        root=program.graph_module,
        graph=program.graph_module.graph,
        graph_signature=program.graph_signature,
        state_dict=state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=[dataclasses.replace(first, signature=signature), *others],
        example_inputs=program.example_inputs,
        constants=constants,
        verifiers=program.verifiers,
    )
    keep_conditions(program, structured)
    return structured
