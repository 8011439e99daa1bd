"""The modules of a program at one moment: their parameters, buffers, submodules, plain attributes and code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.fx import GraphModule

from fxpasses.journal.changes import ChangeParts
from fxpasses.journal.shallow import (
    CONTAINERS,
    copied_meta,
    describe_tensor,
    equal_meta,
    put_back,
    restore_requires_grad,
    same_container,
    same_fields,
    tensor_state,
    what_happened,
)

__all__ = [
    "ModuleTree",
]

_GENERATED = frozenset({"_code", "_lineno_map", "_prologue_start", "_in_spec", "_out_spec", "_graph", "meta"})


def _tensors(fields: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for group in ("_parameters", "_buffers"):
        for name, tensor in fields.get(group, {}).items():
            if tensor is not None:
                yield name, tensor
    for name, entry in fields.items():
        if isinstance(entry, torch.Tensor):
            yield name, entry


def _compare_modules(before: _ModuleState, after: _ModuleState, parts: ChangeParts) -> None:
    prefix = f"{before.path}." if before.path else ""
    for group in (None, "_parameters", "_buffers", "_modules"):
        left = before.plain if group is None else before.containers.get(group, {})
        right = after.plain if group is None else after.containers.get(group, {})
        for key in dict.fromkeys([*left, *right]):
            if group is None and key in before.containers and key in after.containers:
                if key in ("_parameters", "_buffers", "_modules") or same_container(
                    before.containers[key], after.containers[key]
                ):
                    continue
                parts.attributes[prefix + key] = "changed"
            elif (verb := what_happened(left, right, key)) is not None:
                parts.attributes[prefix + key] = verb
    if before.graph is not after.graph:
        parts.attributes[prefix + "graph"] = "replaced"
    for name, tensor in before.tensors.items():
        if after.tensors.get(name) is tensor:
            describe_tensor(prefix + name, before.tensor_states[name], after.tensor_states[name], parts)


class _ModuleState:
    """One module: what hangs on it, in order."""

    def __init__(self, path: str, module: torch.nn.Module) -> None:
        self.path = path
        self.module = module
        self.fields = dict(module.__dict__)
        self.containers = {key: entry.copy() for key, entry in self.fields.items() if type(entry) in CONTAINERS}
        self.plain = {key: entry for key, entry in self.fields.items() if key not in _GENERATED}
        self.meta = copied_meta(self.fields["meta"]) if type(self.fields.get("meta")) is dict else None
        self.graph = self.fields.get("_graph")
        self.tensors = dict(_tensors(self.fields))
        self.tensor_states = {name: tensor_state(tensor) for name, tensor in self.tensors.items()}
        kind = type(module)
        self.forward = vars(kind).get("forward") if isinstance(module, GraphModule) else None

    def changed(self) -> bool:
        """Whether anything but metadata is different now."""
        now = self.module.__dict__
        if now.get("_graph") is not self.graph:
            return True
        if len(now) != len(self.fields) or not same_fields(
            {key: entry for key, entry in now.items() if key not in _GENERATED}, self.plain
        ):
            return True
        for key, saved in self.containers.items():
            if key not in _GENERATED and not same_container(now[key], saved):
                return True
        return any(tensor_state(tensor) != self.tensor_states.get(name) for name, tensor in _tensors(now))

    def metadata_changed(self) -> bool:
        """Whether metadata was written since."""
        if self.meta is None:
            return type(self.module.__dict__.get("meta")) is dict
        return not equal_meta([self.module.__dict__.get("meta") or {}], [self.meta])

    def restore(self) -> None:
        """Put everything back."""
        module = self.module
        own = module.__dict__
        if not same_fields(own, self.fields):
            own.clear()
            own.update(self.fields)
        for key, saved in self.containers.items():
            if key == "meta":
                continue
            live = own[key]
            if not same_container(live, saved):
                live.clear()
                live.extend(saved) if isinstance(live, list) else live.update(saved)
        restore_requires_grad(self.tensors, self.tensor_states)
        if self.meta is not None:
            put_back(own["meta"], self.meta)
        if self.forward is not None and vars(type(module)).get("forward") is not self.forward:
            type(module).forward = self.forward  # what recompile() had put there


class ModuleTree:
    """All modules under a root, each once."""

    def __init__(self, root: GraphModule) -> None:
        self.root = root
        self.states = [_ModuleState(path, module) for path, module in root.named_modules()]

    def paths(self) -> list[tuple[str, torch.nn.Module]]:
        """All modules with their paths."""
        return [(state.path, state.module) for state in self.states]

    def changed(self) -> bool:
        """Whether anything but metadata is different now."""
        return any(state.changed() for state in self.states)

    def metadata_changed(self) -> bool:
        """Whether metadata was written since."""
        return any(state.metadata_changed() for state in self.states)

    def restore(self) -> None:
        """Put everything back."""
        for state in self.states:
            state.restore()

    def describe(self, now: ModuleTree, parts: ChangeParts) -> None:
        """Note what is different in ``now``."""
        after = {id(state.module): state for state in now.states}
        for state in self.states:
            other = after.get(id(state.module))
            if other is not None:
                _compare_modules(state, other, parts)
