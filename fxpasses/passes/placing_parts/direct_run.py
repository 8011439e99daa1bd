"""Run a placed module by its direct code when nobody looks, and by its graph's own code otherwise."""

from __future__ import annotations

import itertools
import linecache
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch.fx import GraphModule
from torch.nn.modules import module as modules

from fxpasses.passes.placing_parts.direct_code import (
    DirectCode,
    Unwritable,
    has_hooks,
    write_direct_code,
)

__all__ = ["OTHERWISE", "DirectRun", "nobody_looks"]

OTHERWISE = object()
"""What a direct run gives where the graph's own code has to run."""

_FILES = itertools.count()


def nobody_looks() -> bool:
    """Whether calls mean what they say: no mode, no capture, no autocast, no hook on every module.

    Whoever looks sees the operators of the graph, not the functions that do the same.
    """
    return not (
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._get_tracing_state()
        or torch._C._is_any_autocast_enabled()
        or modules._has_any_global_hook()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    )


@attrs.frozen(eq=False)
class _Part:
    """A module whose code was written out, and where it was found."""

    siblings: dict[str, Any]
    name: str
    module: GraphModule
    code: str

    def is_current(self) -> bool:
        """Whether it is still there, its graph is what it was, and nobody hangs on its calls."""
        module = self.module
        return (
            self.siblings.get(self.name) is module
            and module._code is self.code
            and module._compiled_call_impl is None
            and "forward" not in module.__dict__
            and not has_hooks(module)
        )


@attrs.frozen(eq=False)
class _Prepared:
    """The function for a module as it was when this was made; None where its own code must run."""

    owner: weakref.ref[GraphModule]
    code: str
    parts: Sequence[_Part]
    inputs: int
    function: Callable[..., Any] | None
    source: str

    def is_current(self, module: GraphModule) -> bool:
        """Whether it is about this module, and about its graphs as they are now."""
        if self.owner() is not module or module._code is not self.code:
            return False
        return all(part.is_current() for part in self.parts)


class DirectRun:
    """The direct code of one module, written before its first run and again when a graph was compiled anew.

    It is no state of the module: copies and pickles of the module write their own.
    """

    def __init__(self) -> None:
        self._prepared: _Prepared | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> DirectRun:
        return DirectRun()

    def __reduce__(self) -> Any:
        return (DirectRun, ())

    def __call__(self, module: GraphModule, leaves: Sequence[Any]) -> Any:
        """Run the module.

        Args:
            module: The top level of a placed graph.
            leaves: Its inputs, flat and in the order of its placeholders.

        Returns:
            What the module returns, or :data:`OTHERWISE`.
        """
        prepared = self._prepared
        if prepared is None or not prepared.is_current(module):
            prepared = self._prepared = _prepare(module)
        if prepared.function is None or len(leaves) != prepared.inputs:
            return OTHERWISE
        return prepared.function(module, leaves, OTHERWISE)

    def source(self, module: GraphModule) -> str | None:
        """The direct code as text; None where there is none."""
        if self._prepared is None or not self._prepared.is_current(module):
            self._prepared = _prepare(module)
        return self._prepared.source or None


def _prepare(module: GraphModule) -> _Prepared:
    owner = weakref.ref(module)
    try:
        written = write_direct_code(module)
    except Unwritable:
        return _Prepared(owner, module._code, (), 0, None, "")
    parts = _watched(module, written.written_out)
    inputs = len(module.graph.find_nodes(op="placeholder"))
    return _Prepared(owner, module._code, parts, inputs, _function(written, module), written.source)


def _watched(module: GraphModule, written_out: Any) -> tuple[_Part, ...]:
    parts: list[_Part] = []
    for path, part in written_out.items():
        above, _, name = path.rpartition(".")
        part.code  # noqa: B018 - a lazy module has no text before somebody asks
        parts.append(_Part(module.get_submodule(above)._modules, name, part, part._code))
    return tuple(parts)


def _function(written: DirectCode, owner: GraphModule) -> Callable[..., Any]:
    """Compile the text; tracebacks show its lines as long as the module is there."""
    file = f"<direct code {next(_FILES)}>"
    names = dict(written.names)
    exec(compile(written.source, file, "exec"), names)
    linecache.cache[file] = (len(written.source), None, written.source.splitlines(keepends=True), file)
    weakref.finalize(owner, linecache.cache.pop, file, None)
    function: Callable[..., Any] = names["run"]
    return function
