"""How a program is called: the trees of its inputs and outputs, edited one leaf at a time.

An ExportedProgram keeps its calling convention as two pytree specs in the first entry of ``module_call_graph``,
beside the names of the arguments, the example inputs and the guards; here these are changed together.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils import _pytree as pytree

from fxpasses.errors import GraphError

__all__ = [
    "drop_user_input",
    "drop_user_output",
    "give_plain_outputs",
    "insert_user_input",
    "insert_user_output",
    "keep_conditions",
    "rename_user_input",
    "rename_user_output",
    "replace_example",
    "root_signature",
]

_LEAF = pytree.tree_structure(0)
_SEQUENCES = (tuple, list)
_MAPPINGS = (dict, OrderedDict)
_THAWED = {immutable_list: list, immutable_dict: dict}
"""What a graph of torch.fx keeps in the place of lists and dicts, and what its code gives."""


def root_signature(program: ExportedProgram) -> Any:
    """The entry of ``module_call_graph`` that holds the trees of the whole program.

    Raises:
        GraphError: The program has none.
    """
    entries = program.module_call_graph
    if not entries or entries[0].fqn != "" or entries[0].signature is None:
        raise GraphError("the program does not record how it is called (its module_call_graph has no root entry)")
    return entries[0].signature


def keep_conditions(source: ExportedProgram, target: ExportedProgram) -> None:
    """Give a copy of a program the conditions on sizes: torch reads them off symbols, which a loaded program lacks."""
    if hasattr(source, "_guards_code"):
        target._guards_code = list(source._guards_code)


def drop_user_input(program: ExportedProgram, index: int) -> None:
    """Forget the user input at flat position ``index``: the caller does not pass it any more.

    Raises:
        GraphError: It sits in a structure with fixed fields, such as a dataclass.
    """
    signature = root_signature(program)
    path = _leaf_path(signature.in_spec, index)
    spec = _without(signature.in_spec, path)
    _edit_examples(program, spec, lambda leaves: leaves[:index] + leaves[index + 1 :])
    if len(path) == 2:
        name = _edit_argument_names(signature, path, None)
        if name is not None and hasattr(program, "_guards_code"):
            program._guards_code = [guard for guard in program._guards_code if f"L['{name}']" not in guard]
    signature.in_spec = spec
    _edit_guards(program, index, dropped=True)


def insert_user_input(program: ExportedProgram, name: str, example: Any, *, keyword: bool) -> int:
    """Let the caller pass one more value: the last positional argument, or a keyword argument.

    Returns:
        The flat position of the new leaf.
    """
    signature = root_signature(program)
    positional, keywords = signature.in_spec.children()
    if keyword and name in (keywords.context or ()):
        raise GraphError(f"the program already takes a keyword argument {name!r}")
    index: int = signature.in_spec.num_leaves if keyword else positional.num_leaves
    if keyword:
        keywords = _spec(keywords.type, [*keywords.context, name], [*keywords.children(), _LEAF])
    else:
        positional = _spec(positional.type, positional.context, [*positional.children(), _LEAF])
    spec = _spec(signature.in_spec.type, signature.in_spec.context, [positional, keywords])
    _edit_examples(program, spec, lambda leaves: [*leaves[:index], example, *leaves[index:]], known=example is not None)
    if signature.forward_arg_names is not None:
        place = len(signature.forward_arg_names) if keyword else len(positional.children()) - 1
        signature.forward_arg_names.insert(place, name)
    signature.in_spec = spec
    _edit_guards(program, index, dropped=False)
    return index


def rename_user_input(program: ExportedProgram, index: int, name: str) -> None:
    """Give the argument at flat position ``index`` another name, if it is an argument of its own.

    Entries of a structure that is passed (``d["a"]``) keep their keys.
    """
    signature = root_signature(program)
    path = _leaf_path(signature.in_spec, index)
    if len(path) != 2:
        return
    old = _edit_argument_names(signature, path, name)
    keywords = signature.in_spec.children()[1]
    if path[0] == 1:
        keys = list(keywords.context)
        old, keys[path[1]] = keys[path[1]], name
        spec = _replaced(signature.in_spec, (1,), _spec(keywords.type, keys, keywords.children()))
        _edit_examples(program, spec, list)
        signature.in_spec = spec
    if old is not None and hasattr(program, "_guards_code"):
        program._guards_code = [guard.replace(f"L['{old}']", f"L['{name}']") for guard in program._guards_code]


def replace_example(program: ExportedProgram, index: int, value: Any) -> None:
    """Keep the example of the argument at flat position ``index`` in step with its new type (a tensor, or a dtype)."""
    spec = root_signature(program).in_spec

    def edit(leaves: list[Any]) -> list[Any]:
        old = leaves[index]
        new = old.to(value) if isinstance(value, torch.dtype) and isinstance(old, torch.Tensor) else value
        return [*leaves[:index], new, *leaves[index + 1 :]]

    _edit_examples(program, spec, edit, known=not isinstance(value, torch._subclasses.FakeTensor))


def insert_user_output(program: ExportedProgram, name: str) -> int:
    """Let the program return one more value at the end.

    A single value becomes a tuple of two, a tuple or list grows by one, a dict gets the key ``name``.

    Returns:
        The flat position of the new leaf.
    """
    signature = root_signature(program)
    spec = signature.out_spec
    if spec.is_leaf():
        signature.out_spec = _spec(tuple, None, [spec, _LEAF])
    elif spec.type in _SEQUENCES:
        signature.out_spec = _spec(spec.type, spec.context, [*spec.children(), _LEAF])
    elif spec.type in _MAPPINGS:
        if name in spec.context:
            raise GraphError(f"the program already returns an entry {name!r}")
        signature.out_spec = _spec(spec.type, [*spec.context, name], [*spec.children(), _LEAF])
    else:
        raise GraphError(f"cannot add an output: the program returns a {spec.type.__name__}, whose fields are fixed")
    return int(spec.num_leaves)


def drop_user_output(program: ExportedProgram, index: int) -> None:
    """Forget the output at flat position ``index``."""
    signature = root_signature(program)
    if signature.out_spec.is_leaf():
        raise GraphError("cannot remove the only output: the program would compute nothing; replace it instead")
    signature.out_spec = _without(signature.out_spec, _leaf_path(signature.out_spec, index))


def rename_user_output(program: ExportedProgram, index: int, name: str) -> None:
    """Give the output another key, if the program returns it in a dict; nothing otherwise."""
    signature = root_signature(program)
    path = _leaf_path(signature.out_spec, index)
    parent = _at(signature.out_spec, path[:-1])
    if not path or parent.type not in _MAPPINGS:
        return
    keys = list(parent.context)
    if name in keys and keys[path[-1]] != name:
        raise GraphError(f"the program already returns an entry {name!r}")
    keys[path[-1]] = name
    signature.out_spec = _replaced(signature.out_spec, path[:-1], _spec(parent.type, keys, parent.children()))


def give_plain_outputs(program: ExportedProgram) -> None:
    """Let the program return lists and dicts where it was captured from a graph, which keeps them frozen."""
    signature = root_signature(program)
    signature.out_spec = _thawed(signature.out_spec)


# --- trees -----------------------------------------------------------------------------------------------------------


def _spec(kind: Any, context: Any, children: Sequence[Any]) -> Any:
    return pytree.TreeSpec(kind, context, list(children))


def _leaf_path(spec: Any, index: int) -> tuple[int, ...]:
    """The child positions that lead to the leaf at flat position ``index``."""
    if not 0 <= index < spec.num_leaves:
        raise GraphError(f"there is no leaf {index} among {spec.num_leaves}")
    path: list[int] = []
    while not spec.is_leaf():
        for position, child in enumerate(spec.children()):
            if index < child.num_leaves:
                path.append(position)
                spec = child
                break
            index -= child.num_leaves
    return tuple(path)


def _at(spec: Any, path: Sequence[int]) -> Any:
    for position in path:
        spec = spec.children()[position]
    return spec


def _replaced(spec: Any, path: Sequence[int], by: Any) -> Any:
    for depth in range(len(path) - 1, -1, -1):
        parent = _at(spec, path[:depth])
        children = list(parent.children())
        children[path[depth]] = by
        by = _spec(parent.type, parent.context, children)
    return by


def _thawed(spec: Any) -> Any:
    if spec.is_leaf():
        return spec
    return _spec(_THAWED.get(spec.type, spec.type), spec.context, [_thawed(child) for child in spec.children()])


def _without(spec: Any, path: Sequence[int]) -> Any:
    parent = _at(spec, path[:-1])
    position = path[-1]
    children = [child for place, child in enumerate(parent.children()) if place != position]
    if parent.type in _SEQUENCES:
        context = parent.context
    elif parent.type in _MAPPINGS:
        context = [key for place, key in enumerate(parent.context) if place != position]
    else:
        raise GraphError(
            f"cannot remove one field of a {parent.type.__name__}: its fields are fixed; leave the value unused, or "
            "export the model with another structure"
        )
    return _replaced(spec, path[:-1], _spec(parent.type, context, children))


# --- what goes with the trees ------------------------------------------------------------------------------------


def _edit_argument_names(signature: Any, path: Sequence[int], name: str | None) -> str | None:
    """Rename (or, with None, remove) the top-level argument at ``path``; gives its old name."""
    names = signature.forward_arg_names
    if names is None:
        return None
    positionals = len(signature.in_spec.children()[0].children())
    place = path[1] + (positionals if path[0] == 1 else 0)
    if place >= len(names):
        return None
    old: str = names[place]
    if name is None:
        del names[place]
    else:
        names[place] = name
    return old


def _edit_examples(program: ExportedProgram, spec: Any, edit: Any, *, known: bool = True) -> None:
    if program._example_inputs is None:
        return
    if not known:
        program._example_inputs = None
        return
    args, kwargs = program._example_inputs
    keywords = root_signature(program).in_spec.children()[1]
    ordered = {key: kwargs[key] for key in keywords.context if key in kwargs}
    leaves = pytree.tree_leaves((args, ordered))
    program._example_inputs = pytree.tree_unflatten(edit(leaves), spec)


def _edit_guards(program: ExportedProgram, index: int, *, dropped: bool) -> None:
    """Guards speak of ``L['flat_args'][3]``: those of a dropped input go, those behind it are numbered again."""
    if not getattr(program, "_guards_code", None):
        return
    pattern = re.compile(r"L\['flat_args'\]\[(\d+)\]")
    kept: list[str] = []
    for guard in program._guards_code:
        if dropped and any(int(found) == index for found in pattern.findall(guard)):
            continue

        def moved(match: re.Match[str]) -> str:
            place = int(match.group(1))
            shift = (-1 if place > index else 0) if dropped else (1 if place >= index else 0)
            return f"L['flat_args'][{place + shift}]"

        kept.append(pattern.sub(moved, guard))
    program._guards_code = kept
