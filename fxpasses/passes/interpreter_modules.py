"""The modules of an unflattened program: a graph each, run as generated code, under the names of the original.

No state is kept between or during calls: a module that is called several times with different graphs is told which
one by its caller, so calls may nest and run in several threads.
"""

from __future__ import annotations

import abc
import copy
import inspect
import itertools
import linecache
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from fxpasses.errors import SplitError, user_line
from fxpasses.passes.call_frames import TAKEN
from fxpasses.programs.program_modules import unwritable_name

__all__ = ["FlatArgsAdapter", "InterpreterModule", "InterpreterModuleDispatcher", "ModuleContainer", "explain_error"]

CALL_INDEX = "call_index"
"""The keyword by which a caller says which of a module's graphs it means; absent for the first."""

_GENERATING = threading.Lock()
_FILES = itertools.count()
_GENERATED: WeakValueDictionary[str, Graph] = WeakValueDictionary()  # by file name, for explain_error
_OWN_CLASSES: WeakSet[type] = WeakSet()  # of modules that have a generated forward; see bind_forward
_ASSIGNED = re.compile(r"\s*(\w+)(?:\s*:[^=]*)? = ")


class FlatArgsAdapter(abc.ABC):
    """Turns the inputs of a call into the flat list that an unflattened program expects.

    Give one to :func:`~fxpasses.passes.unflatten` when callers pass another structure than the captured one.
    """

    @abc.abstractmethod
    def adapt(
        self,
        target_spec: pytree.TreeSpec,
        input_spec: pytree.TreeSpec,
        input_args: list[Any],
        metadata: dict[str, Any] | None = None,
        obj: Any | None = None,
    ) -> list[Any]:
        """Reorder, drop or add leaves.

        Args:
            target_spec: The structure of ``(args, kwargs)`` that the program was captured with.
            input_spec: The structure of this call.
            input_args: The leaves of this call.
            metadata: ``graph_module.meta`` of the program, and the module that is called as ``unflattened_module``.
            obj: The positional arguments of this call, as they came.

        Returns:
            The leaves for ``target_spec``.
        """

    def get_flat_arg_paths(self) -> list[str]:
        """Names of the leaves, for adapters that go by name; empty by default."""
        return []


class ModuleContainer(torch.nn.Module):
    """A module of the original that holds others but computes nothing here, such as a ``ModuleList``.

    Attributes:
        kept_because: Why another module cannot take the place of this one, though its call signature was preserved.
    """

    kept_because: str | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; a module that another could not be called in the place of is kept."""
        old = self.__dict__.get("_modules", {}).get(name)
        reason = getattr(old, "kept_because", None)
        if reason and isinstance(value, torch.nn.Module) and not isinstance(value, ModuleContainer):
            raise SplitError(
                f"No other module can take the place of {name!r}: {reason}, so the new one would not be called as the "
                "original was. Export a model that holds it."
            )
        super().__setattr__(name, value)

    def __getitem__(self, key: int | slice | str) -> Any:
        children = list(self._modules.values())
        if isinstance(key, slice):
            return children[key]
        if isinstance(key, str):
            return self._modules[key]
        return self._modules[str(key)] if str(key) in self._modules else children[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())


class InterpreterModule(ModuleContainer):
    """A module that runs a graph; ``get_attr`` and ``call_module`` in it refer to the module itself.

    Attributes:
        graphs: What the module computes: one graph for each different way in which it is called.
        extras: How many values at most its callers in the program add to the arguments of the original.
    """

    extras: int = 0

    def __init__(self, graph: Graph, ty: str | None = None) -> None:
        super().__init__()
        self.graphs: list[Graph] = [graph]
        self._ty = ty
        self._functions: list[Callable[..., Any] | None] = [None]

    @property
    def graph(self) -> Graph:
        """The graph of the first call."""
        return self.graphs[0]

    @property
    def graph_module(self) -> GraphModule:
        """The first graph as a GraphModule that shares this module's state."""
        return GraphModule(self, self.graph, self.type_name() or "InterpreterModule")

    @property
    def arg_names(self) -> list[str]:
        """The names of the inputs."""
        return [node.name for node in self.graph.find_nodes(op="placeholder")]

    def type_name(self) -> str | None:
        """The class of the original module."""
        return self._ty

    def __len__(self) -> int:
        return len(self._modules)

    def __bool__(self) -> bool:
        return True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph that the caller means."""
        index = kwargs.pop(CALL_INDEX, 0) if kwargs else 0
        self._generate_missing()
        return self._functions[index](self, *args, **kwargs)  # type: ignore[misc]  # all of them are there now

    def finalize(self) -> None:
        """Generate the code of all graphs again, after they were edited, here and in the modules inside."""
        for module in self.modules():
            if isinstance(module, InterpreterModule):
                module._functions = [None] * len(module.graphs)
        if type(self) in _OWN_CLASSES:
            bind_forward(self)

    def add_graph(self, graph: Graph) -> int:
        """Add a way of calling; gives the index that the caller passes."""
        self.graphs.append(graph)
        self._functions.append(None)
        return len(self.graphs) - 1

    # dynamo runs it while it traces, and reads the functions afterwards
    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch's
    def _generate_missing(self) -> None:
        if None in self._functions:
            for index in range(len(self.graphs)):
                self._generate(index)

    def _generate(self, index: int) -> Callable[..., Any]:
        with _GENERATING:
            if self._functions[index] is None:
                self._functions[index] = generate_forward(self.graphs[index])
            function = self._functions[index]
        assert function is not None
        return function

    def print_readable(self, print_output: bool = True, **options: Any) -> str:
        """The code of all graphs."""
        parts = []
        for graph in self.graphs:
            name = self.type_name() or "InterpreterModule"
            parts.append(GraphModule(self, graph, name).print_readable(print_output=False, **options))
        text = "\n".join(parts)
        if print_output:
            print(text)
        return text

    def __deepcopy__(self, memo: dict[int, Any]) -> InterpreterModule:
        """Copy graphs and state; code is generated again when the copy runs."""
        new = self.__class__.__new__(self.__class__)
        memo[id(self)] = new
        for name, value in self.__dict__.items():
            if name != "_functions":
                new.__dict__[name] = copy.deepcopy(value, memo)
        new._functions = [None] * len(self.graphs)
        if type(self) in _OWN_CLASSES:
            bind_forward(new)
        return new


class InterpreterModuleDispatcher(InterpreterModule):
    """A module that is called in several ways, with a graph for each; the caller passes ``call_index``."""

    def call_modules(self) -> list[InterpreterModule]:
        """Each way of calling as a module of its own that shares this one's parameters and submodules."""
        return [self._view(graph) for graph in self.graphs]

    def _view(self, graph: Graph) -> InterpreterModule:
        view = InterpreterModule(graph, self._ty)
        for table in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            view.__dict__[table] = self.__dict__[table]
        known = vars(view)
        view.__dict__.update({name: value for name, value in vars(self).items() if name not in known})
        return view


def generate_forward(graph: Graph) -> Callable[..., Any]:
    """Generate the code of a graph as a function that takes the module first; its source shows in tracebacks."""
    with _inputs_renamed(graph) as names:
        code = graph.python_code("self")
    try:
        compiled = compile(code.src, name := f"<unflattened {next(_FILES)}>", "exec", dont_inherit=True)
    except SyntaxError as error:
        targets = [str(node.target) for node in graph.nodes if node.op in ("get_attr", "call_module")]
        if (unwritable := unwritable_name(targets)) is None:
            raise
        raise SplitError(
            f"The model has a module, parameter or buffer called {unwritable!r}, which torch cannot write into the "
            "code of a graph; give it a name without quotes and line breaks that is no keyword of Python."
        ) from error
    linecache.cache[name] = (len(code.src), None, code.src.splitlines(True), name)
    _GENERATED[name] = graph
    weakref.finalize(graph, linecache.cache.pop, name, None)
    namespace = dict(code.globals)
    exec(compiled, namespace)
    function: Callable[..., Any] = namespace["forward"]
    return _with_inputs(function, names) if names else function


@contextmanager
def _inputs_renamed(graph: Graph) -> Iterator[dict[str, str]]:
    """Inside, no input is called what generated code calls something else; the names they had, by those they have."""
    info: Any = getattr(graph._codegen, "pytree_info", None)
    inputs = graph.find_nodes(op="placeholder")
    given = [str(node.target) for node in inputs] if info is None else info.orig_args[info.orig_args[:1] == ["self"] :]
    names = {f"{name}_input": name for name in given if name in TAKEN}
    if not names:
        yield names
        return
    new = {name: renamed for renamed, name in names.items()}
    targets = [node.target for node in inputs]
    try:
        if info is not None:
            first = ["self"][: len(info.orig_args) - len(given)]
            graph._codegen.pytree_info = info._replace(orig_args=[*first, *(new.get(name, name) for name in given)])  # type: ignore[attr-defined]
        for node in inputs:
            node.target = new.get(str(node.target), node.target)
        yield names
    finally:
        if info is not None:
            graph._codegen.pytree_info = info  # type: ignore[attr-defined]
        for node, target in zip(inputs, targets, strict=True):
            node.target = target


def _with_inputs(function: Callable[..., Any], names: Mapping[str, str]) -> Callable[..., Any]:
    """The same function whose inputs have other names."""
    own = {name: parameter for parameter, name in names.items()}
    signature = inspect.signature(function)
    shown = [each.replace(name=names.get(each.name, each.name)) for each in signature.parameters.values()]

    def forward(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{own.get(name, name): value for name, value in kwargs.items()})

    forward.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return forward


def bind_forward(module: InterpreterModule) -> None:
    """Make the generated function the module's own ``forward``, so that its signature is what callers see.

    It belongs to a class of the module's own and not to the instance, because a strict export names what it meets by
    the way that leads there: ``L['self'].forward.__self__.head`` is the path of no module.
    """
    kind: type[InterpreterModule] = type(module)
    kind = kind.__bases__[0] if kind in _OWN_CLASSES else kind
    named = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    module.__class__ = type(kind.__name__, (kind,), {**named, "forward": module._generate(0)})
    _OWN_CLASSES.add(type(module))


def explain_error(error: BaseException) -> str | None:
    """Find the user's source line of the operator that raised, from the generated code in a traceback."""
    found: Node | None = None
    step = error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if file in _GENERATED and (assigned := _ASSIGNED.match(linecache.getline(file, step.tb_lineno))):
            found = next((node for node in _GENERATED[file].nodes if node.name == assigned.group(1)), found)
        step = step.tb_next
    return None if found is None else user_line(found)
