"""What an ExportedProgram says beside its graph, at one moment: signature, tables of tensors, calling convention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import is_
from typing import Any

import torch
from torch.export import ExportedProgram

from fxpasses.journal.changes import ChangeParts
from fxpasses.journal.shallow import (
    CONTAINERS,
    MISSING,
    describe_tensor,
    restore_requires_grad,
    same_container,
    same_fields,
    tensor_state,
    what_happened,
)

__all__ = [
    "ProgramState",
]


def _tensors(fields: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {
        f"{key.removeprefix('_')}[{name!r}]": tensor
        for key in ("_state_dict", "_constants")
        for name, tensor in fields.get(key, {}).items()
        if isinstance(tensor, torch.Tensor)
    }


def _records(program: ExportedProgram) -> Iterator[Any]:
    """The small mutable objects that make up the signature and the module call graph."""
    signature = program.graph_signature
    yield signature
    for spec in (*signature.input_specs, *signature.output_specs):
        yield spec
        yield spec.arg
    for entry in program.module_call_graph:
        yield entry
        if entry.signature is not None:
            yield entry.signature


def _record_fields(record: Any) -> dict[str, Any]:
    return {key: list(entry) if type(entry) is list else entry for key, entry in record.__dict__.items()}


def _fingerprint(program: ExportedProgram) -> tuple[Any, ...]:
    """What signature and module call graph say, as plain data; equal for records that were replaced by equal ones."""
    signature = program.graph_signature
    specs = tuple(
        (spec.kind, spec.target, getattr(spec, "persistent", None), type(spec.arg), *spec.arg.__dict__.values())
        for spec in (*signature.input_specs, *signature.output_specs)
    )
    calls = tuple((entry.fqn, None if entry.signature is None else _call(entry.signature)) for entry in _calls(program))
    return len(signature.input_specs), specs, calls


def _calls(program: ExportedProgram) -> list[Any]:
    return list(program.module_call_graph)


def _call(signature: Any) -> tuple[Any, ...]:
    arguments = [
        tuple((type(each), *each.__dict__.values()) for each in part) for part in (signature.inputs, signature.outputs)
    ]
    names = signature.forward_arg_names
    return *arguments, signature.in_spec, signature.out_spec, None if names is None else tuple(names)


class ProgramState:
    """What an ExportedProgram knows beside its graph module."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.fields = dict(program.__dict__)
        self.containers = {key: entry.copy() for key, entry in self.fields.items() if type(entry) in CONTAINERS}
        self.tensors = _tensors(self.fields)
        self.tensor_states = {name: tensor_state(tensor) for name, tensor in self.tensors.items()}
        self.records = list(_records(program))
        self.record_fields = [_record_fields(record) for record in self.records]
        self.fingerprint = _fingerprint(program)

    def changed(self) -> bool:
        """Whether anything but metadata is different now."""
        now = self.program.__dict__
        if not same_fields(now, self.fields):
            return True
        if {name: tensor_state(tensor) for name, tensor in _tensors(now).items()} != self.tensor_states:
            return True
        tables = {key: saved for key, saved in self.containers.items() if key != "_module_call_graph"}
        if any(not same_container(now[key], saved) for key, saved in tables.items()):
            return True
        return _fingerprint(self.program) != self.fingerprint

    def restore(self) -> None:
        """Put everything back."""
        own = self.program.__dict__
        own.clear()
        own.update(self.fields)
        for key, saved in self.containers.items():
            if not same_container(own[key], saved):
                own[key].clear()
                own[key].extend(saved) if isinstance(saved, list) else own[key].update(saved)
        restore_requires_grad(self.tensors, self.tensor_states)
        for record, saved in zip(self.records, self.record_fields, strict=True):
            for name, entry in saved.items():
                if type(entry) is list:
                    live = record.__dict__[name]
                    if type(live) is not list:
                        object.__setattr__(record, name, list(entry))
                    elif len(live) != len(entry) or not all(map(is_, live, entry)):
                        live[:] = entry
                elif record.__dict__.get(name, MISSING) is not entry:
                    object.__setattr__(record, name, entry)

    def describe(self, now: ProgramState, parts: ChangeParts) -> None:
        """Note what is different in ``now``."""
        for key in ("_state_dict", "_constants", "_range_constraints"):
            left, right = self.containers.get(key, {}), now.containers.get(key, {})
            for name in dict.fromkeys([*left, *right]):
                if (verb := what_happened(left, right, name)) is not None:
                    parts.attributes[f"{key.removeprefix('_')}[{str(name)!r}]"] = verb
        if self.fingerprint != now.fingerprint:
            parts.attributes["graph_signature"] = "changed"
        for key in dict.fromkeys([*self.fields, *now.fields]):
            known = key in self.containers and key in now.containers
            if (
                not known
                and key != "_graph_signature"
                and (verb := what_happened(self.fields, now.fields, key)) is not None
            ):
                parts.attributes[key.removeprefix("_")] = verb
        for name, tensor in self.tensors.items():
            if now.tensors.get(name) is tensor:
                describe_tensor(name, self.tensor_states[name], now.tensor_states[name], parts)
