"""Write how direct code reads the state of a module: one look-up a table and name, and what is expected of it."""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch.fx import GraphModule

from fxpasses.editing.attributes import find_attribute

__all__ = ["StateReads"]


@attrs.define(eq=False)
class StateReads:
    """The statements that read parameters, buffers, constants and submodules out of the modules that hold them."""

    root: GraphModule
    names: dict[str, Any]
    lines: list[str] = attrs.field(factory=list)
    tables: dict[str, str] = attrs.field(factory=lambda: {"": "self"})
    read: dict[str, str] = attrs.field(factory=dict)
    dtypes: list[str] = attrs.field(factory=list)

    def module(self, path: str) -> str:
        """The variable of a module."""
        steps = path.split(".") if path else []
        for index in range(len(steps)):
            here = ".".join(steps[: index + 1])
            if here not in self.tables:
                self.tables[here] = f"m{len(self.tables)}"
                above = self.tables[".".join(steps[:index])]
                self.lines.append(f"{self.tables[here]} = {above}._modules[{steps[index]!r}]")
        return self.tables[path]

    def attribute(self, path: str) -> str:
        """The variable of what a module holds under a name."""
        if path not in self.read:
            kind, (above, _, name) = find_attribute(self.root, path).kind, path.rpartition(".")
            holder = self.module(above)
            if kind == "module":
                self.read[path] = self.module(path)
                return self.read[path]
            table = {"parameter": "_parameters", "buffer": "_buffers"}.get(kind, "__dict__")
            self.read[path] = f"p{len(self.read)}"
            self.lines.append(f"{self.read[path]} = {holder}.{table}[{name!r}]")
            self._expect_dtype(path)
        return self.read[path]

    def _expect_dtype(self, path: str) -> None:
        value = find_attribute(self.root, path).value
        if isinstance(value, torch.Tensor):
            name = f"k_{value.dtype}".replace(".", "_")
            self.names[name] = value.dtype
            self.dtypes.append(f"{self.read[path]}.dtype is not {name}")

    def text(self) -> list[str]:
        """All of it; a module that is put together in another way is left to its own code."""
        lines = [" try:", *(f"  {line}" for line in self.lines), " except (KeyError, AttributeError):"]
        text = [*lines, "  return otherwise"] if self.lines else []
        if self.dtypes:
            text += [f" if {' or '.join(self.dtypes)}:", "  return otherwise"]
        return text
