"""Put off ``GraphModule.recompile()`` until somebody looks: a pipeline compiles once and never shows stale code.

Generating code costs about twenty times what checking the graph costs. While a module is held by
:func:`deferred_recompile`, its ``recompile()`` only notes that the code is out of date. Whoever then asks for
``module.code``, ``module.forward``, calls the module, prints or pickles it gets the real thing, compiled at that
moment: stand-ins that compile on first access are put on the module's own class (every ``GraphModule`` has one).
Leaving the block compiles what is out of date, once, and takes everything back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch.fx import GraphModule

__all__ = ["RecompileQueue", "deferred_recompile"]

_STAND_INS = ("forward", "_code", "_lineno_map", "_prologue_start", "__reduce__", "__reduce_package__")


class RecompileQueue:
    """The modules whose compilation is put off, and which of them are out of date."""

    def __init__(self) -> None:
        self._held: dict[int, GraphModule] = {}
        self._dirty: dict[int, GraphModule] = {}

    def hold(self, module: GraphModule) -> None:
        """Make ``module.recompile()`` cheap until :meth:`release`; a second call for the same module does nothing."""
        owner = type(module)
        if id(module) in self._held or not _is_own_class(owner) or "recompile" in vars(owner):
            return
        self._held[id(module)] = module

        def recompile(itself: GraphModule) -> _DeferredCode:
            self.mark(itself)
            return _DeferredCode(lambda: self.compile(itself))

        owner.recompile = recompile  # type: ignore[assignment, method-assign]

    def mark(self, module: GraphModule) -> None:
        """Say that the graph of ``module`` changed."""
        if id(module) not in self._held:
            self.hold(module)
        if id(module) not in self._held:  # somebody else holds it, or it has a class of its own
            module.recompile()
        elif id(module) not in self._dirty:
            self._dirty[id(module)] = module
            self._make_stale(module)

    def compile(self, module: GraphModule) -> Any:
        """Compile ``module`` now, without its nested modules."""
        self._dirty.pop(id(module), None)
        owner = type(module)
        for name in (*_STAND_INS, "_recompile_submodules"):
            if isinstance(vars(owner).get(name), _StandIn):
                delattr(owner, name)
        setattr(owner, "_recompile_submodules", _nothing_to_recompile)  # noqa: B010 - mypy knows the method it hides
        inherited: Any = super(owner, module)
        try:
            return inherited.recompile()
        finally:
            del owner._recompile_submodules

    def release(self) -> None:
        """Compile what is out of date, and give every module its own ``recompile`` back."""
        try:
            for module in list(self._dirty.values()):
                self.compile(module)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Take everything back without compiling; what was compiled last stays to be put back by a snapshot."""
        for module in self._held.values():
            owner = type(module)
            for name in (*_STAND_INS, "recompile"):
                if isinstance(vars(owner).get(name), _StandIn) or (name == "recompile" and name in vars(owner)):
                    delattr(owner, name)
        self._held.clear()
        self._dirty.clear()

    def mark_all(self) -> None:
        """Say that every held module changed, after a snapshot has put graphs and class attributes back."""
        for module in self._held.values():
            self._dirty[id(module)] = module
            self._make_stale(module)

    def _make_stale(self, module: GraphModule) -> None:
        for name in _STAND_INS:
            setattr(type(module), name, _StandIn(name, self.compile))


class _StandIn:
    """An attribute of a class that compiles the module on first access, and then gives what is there."""

    def __init__(self, name: str, compile_module: Callable[[GraphModule], Any]) -> None:
        self.name = name
        self.compile_module = compile_module

    def __get__(self, module: GraphModule | None, owner: type) -> Any:
        if module is None:
            return getattr(super(owner, owner), self.name)
        self.compile_module(module)
        return getattr(module, self.name)

    def __set__(self, module: GraphModule, value: Any) -> None:
        module.__dict__[self.name] = value  # having a setter is what puts this before the instance's own stale entry


class _DeferredCode:
    """What ``recompile()`` returns while it is put off: the python code, made when one of its parts is read."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = self._make()
        self.__dict__.update(vars(made))
        return getattr(made, name)


@contextlib.contextmanager
def deferred_recompile() -> Iterator[RecompileQueue]:
    """A queue whose modules compile at most once, when the block is left (or when somebody looks at their code).

    A block that raises compiles nothing: whoever catches the error puts a snapshot back.
    """
    queue = RecompileQueue()
    try:
        yield queue
        queue.release()
    finally:
        queue.abandon()


def _is_own_class(owner: type) -> bool:
    """Whether the class was made by torch for this one module (a lazily compiled module has its own ways)."""
    return owner.__qualname__.endswith("GraphModuleImpl") and not hasattr(owner, "_lazy_forward")


def _nothing_to_recompile(_module: GraphModule) -> list[Any]:
    return []
