"""How torch writes inputs in the conditions of a program: by parameter and key path, or flattened.

A key path is no Python: ``L['cache']['keys'][0]`` may be a leaf of a registered class that nobody can index. So each
leaf is found by its text, among those of all leaves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import attrs
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

__all__ = ["InputSource", "InputSources", "flat_conditions", "forward_names"]

_NUMBERED = re.compile(r"(\w+)_(\d+)")
"""What one of ``*args`` is called; torch writes ``L['args'][0]``."""
_FLAT = "flat_args"
"""All inputs, flattened, as torch writes them where it traces bytecode."""


@attrs.frozen
class InputSource:
    """A flattened input.

    Args:
        place: Its place among them.
        words: What a user calls it.
    """

    place: int
    words: str


def forward_names(program: ExportedProgram) -> tuple[str, ...]:
    """The parameters of its ``forward``, positional ones first; numbered where the program does not name them."""
    args_spec, kwargs_spec = program.call_spec.in_spec.children()
    positional, keywords = len(args_spec.children()), tuple(kwargs_spec.context or ())
    signature = program.module_call_graph[0].signature
    names = getattr(signature, "forward_arg_names", None)
    if names and len(names) >= positional + len(keywords):
        return (*tuple(names)[:positional], *keywords)
    return (*(f"arg{index}" for index in range(positional)), *keywords)


@attrs.frozen(eq=False)
class InputSources:
    """The flattened inputs of a program by what torch writes for them."""

    sources: Mapping[str, InputSource]
    _pattern: re.Pattern[str] = attrs.field(init=False)

    @_pattern.default
    def _any_of_them(self) -> re.Pattern[str]:
        longest = sorted(self.sources, key=len, reverse=True)
        return re.compile(f"(?:{'|'.join(map(re.escape, longest)) or '(?!)'})(?!\\w)")

    @classmethod
    def of(cls, program: ExportedProgram) -> InputSources:
        """Read them off the structure of the inputs.

        The leaves of a registered class that is no dataclass are known by the example inputs, without which torch
        checks nothing, either.
        """
        args_spec, kwargs_spec = program.call_spec.in_spec.children()
        specs, named = (*args_spec.children(), *kwargs_spec.children()), dict[str, InputSource]()
        flat = list[InputSource]()
        for name, spec, paths in zip(forward_names(program), specs, _paths(program, specs), strict=True):
            single = _NUMBERED.fullmatch(name)
            texts = [f"L['{name}']", *([f"L['{single[1]}'][{single[2]}]"] if single else [])]
            for place, path in enumerate(paths):
                if path is not None:
                    source = InputSource(len(flat) + place, name + path)
                    named.update((text + path, source) for text in texts)
            for place in range(spec.num_leaves):
                words = name if spec.num_leaves == 1 else f"(leaf {place} of {name})"
                flat.append(InputSource(len(flat), words))
        return cls({f"L['{_FLAT}'][{place}]": source for place, source in enumerate(flat)} | named)

    def rewritten(self, code: str, write: Callable[[InputSource], str]) -> str:
        """A condition with its inputs written otherwise."""
        return self._pattern.sub(lambda match: write(self.sources[match[0]]), code)


def flat_conditions(program: ExportedProgram) -> list[str]:
    """The conditions of a program, its inputs flattened: so they do not depend on their structure."""
    sources = InputSources.of(program)
    conditions: list[str] = getattr(program, "_guards_code", None) or []
    return [sources.rewritten(code, lambda source: f"L['{_FLAT}'][{source.place}]") for code in conditions]


def _paths(program: ExportedProgram, specs: Sequence[pytree.TreeSpec]) -> Sequence[Sequence[str | None]]:
    """What the leaves of each parameter are called; None where only an example could say so."""
    if program.example_inputs is None:
        return list(map(_keys_in, specs))
    args, kwargs = program.example_inputs
    names = program.call_spec.in_spec.children()[1].context
    return list(map(_keys, (*args, *(kwargs[name] for name in names))))


def _keys(value: Any) -> list[str]:
    return [pytree.keystr(path) for path, _leaf in pytree.tree_leaves_with_path(value)]


def _keys_in(spec: pytree.TreeSpec) -> list[str | None]:
    """The same of a structure alone."""
    if spec.is_leaf():
        return [""]
    children = spec.children()
    if is_dataclass(spec.type):
        own = [f".{name}" for name in spec.context[0]]
    elif spec.type in pytree.BUILTIN_TYPES:
        own = _keys(pytree.SUPPORTED_NODES[spec.type].unflatten_fn(range(len(children)), spec.context))
    else:
        return [None] * spec.num_leaves
    found = [(key, path) for key, child in zip(own, children, strict=True) for path in _keys_in(child)]
    return [None if path is None else key + path for key, path in found]
