"""GraphModules that get their class and their code when they first run.

A torch ``GraphModule`` makes a class and compiles its code as soon as it exists, which is most of what splitting a
graph costs. A :class:`LazyGraphModule` shares one class until somebody calls it or asks for its ``code``.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Graph, GraphModule
from torch.fx._lazy_graph_module import _LazyGraphModule

if TYPE_CHECKING:
    from torch.fx.graph import PythonCode

__all__ = ["LazyGraphModule", "lazy_graph_module"]

_COMPILING = threading.RLock()  # two threads may run a module for the first time together
_OWN_CLASS = "GraphModuleImpl"  # the name by which GraphModule.__new__ knows a class that belongs to one instance


class _ForwardOnDemand:
    """Stands where ``forward`` will be; compiles the module that it is looked up on.

    A descriptor and not a method, because ``torch.compile`` and ``inspect.signature`` look at what ``forward`` is.
    """

    def __get__(self, module: LazyGraphModule | None, owner: type) -> Any:
        if module is None:
            return self
        module.real_recompile()
        return module.forward

    def __call__(self, module: LazyGraphModule, *args: Any, **kwargs: Any) -> Any:
        return module.forward(*args, **kwargs)


class LazyGraphModule(_LazyGraphModule):
    """A GraphModule whose ``recompile`` only notes that the code is out of date.

    The code is generated once, before it is first run or read, so it is never stale. As a subclass of torch's own lazy
    module it is known to tracing, ``torch.compile`` and pickling, which ask for the real code themselves.

    Unlike torch's, hooks run once on the first call, instances share a class until they are compiled, and compiling a
    module again does not compile unchanged modules inside it.
    """

    _class_name = ""  # without an annotation: TorchScript would read it
    _is_part = False

    forward: Any = _ForwardOnDemand()
    _lazy_forward: Any = forward

    def recompile(self) -> None:  # type: ignore[override]  # torch makes it a classmethod of one class an instance
        """Note that the graph has changed, here and in the modules inside; nothing is generated yet."""
        # No code is how a module says that it is out of date. What compiling sets is there from the start, so that a
        # snapshot of the module does not take compiling for a change.
        self.__dict__["_code"] = None
        self.__dict__.setdefault("_lineno_map", None)
        self.__dict__.setdefault("_prologue_start", 0)
        codegen = self._graph._codegen
        if (info := getattr(codegen, "pytree_info", None)) is not None:
            self.__dict__["_in_spec"], self.__dict__["_out_spec"] = info.in_spec, info.out_spec
        if _is_own(type(self)) and "forward" in vars(type(self)):
            del type(self).forward
        for child in self.children():
            if isinstance(child, GraphModule):
                child.recompile()

    def real_recompile(self) -> None:
        """Generate all code that is out of date now, here and in the modules inside."""
        waiting: list[torch.nn.Module] = [self]
        for module in waiting:
            if isinstance(module, LazyGraphModule):
                module._generate_code()
            waiting.extend(child for child in module.children() if isinstance(child, LazyGraphModule))

    def _generate_code(self) -> None:
        if self._needs_recompile():
            with _COMPILING:
                if self._needs_recompile():  # another thread may have been first
                    self._real_recompile()

    def _real_recompile(self) -> PythonCode:
        with _COMPILING:
            self.take_own_class()
            try:
                python_code = GraphModule.recompile(self)
            except BaseException:
                self.__dict__["_code"] = None
                raise
            for name, child in self._modules.items():
                if isinstance(child, LazyGraphModule) and child._is_part:
                    setattr(type(self), name, _access(name))
            if self._is_part and "__call__" in vars(type(self)):
                # The wrapper explains errors of generated code; the module around this one has it already.
                del type(self).__call__
        return python_code

    def take_own_class(self) -> None:
        """Get a class of its own without code: ``torch.compile`` notes the classes of what it meets, before it runs."""
        if not _is_own(type(self)):
            name = self._class_name or "GraphModule"
            self.__class__ = type(name, (type(self),), {"__qualname__": _OWN_CLASS, "__module__": __name__})

    def _needs_recompile(self) -> bool:  # type: ignore[override]
        # The code is there before the function that is made from it.
        return self.__dict__.get("_code") is None or "forward" not in vars(type(self))

    def _recompile_submodules(self) -> list[tuple[str, PythonCode]]:
        return []  # each child compiles itself when it first runs

    def _get_name(self) -> str:
        return self._class_name or type(self).__name__

    @property
    @torch.jit.unused
    def code(self) -> str:
        """The Python code of this graph, never stale."""
        self._generate_code()
        return str(self._code)

    def __str__(self) -> str:
        self._generate_code()
        return GraphModule.__str__(self)


def _access(name: str) -> property:
    """Read a part without the detour over ``nn.Module.__getattr__``, which costs more than calling it."""

    @torch.jit.unused
    def part(module: torch.nn.Module) -> Any:
        try:
            return module._modules[name]
        except KeyError:
            raise AttributeError(f"{type(module).__name__!r} object has no attribute {name!r}") from None

    return property(part)


def _is_own(cls: type) -> bool:
    return cls.__qualname__.rpartition(".")[2] == _OWN_CLASS


def lazy_graph_module(
    graph: Graph, *, class_name: str = "GraphModule", training: bool = True, is_part: bool = False
) -> LazyGraphModule:
    """Make a GraphModule around ``graph`` without attributes, in a few microseconds.

    Args:
        graph: The graph; the module becomes its owner.
        class_name: What ``repr`` calls it.
        training: Its mode.
        is_part: It is called from another graph module, whose error reports cover it.
    """
    module = object.__new__(LazyGraphModule)
    torch.nn.Module.__init__(module)
    tracer = graph._tracer_cls
    module.__dict__.update(
        training=training,
        meta={},
        shape_env=None,
        _graph=graph,
        _tracer_cls=tracer if tracer is not None and "<locals>" not in tracer.__qualname__ else None,
        _tracer_extras=graph._tracer_extras or {},
        _replace_hooks=[],
        _create_node_hooks=[],
        _erase_node_hooks=[],
        _deepcopy_hooks=[],
        _class_name=class_name,
        _is_part=is_part,
    )
    graph.owning_module = module
    module.recompile()
    return module
