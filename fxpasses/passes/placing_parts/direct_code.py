"""Write a placed graph as one Python function that does the same work with less around it.

The function stands for the generated code of the top level and of all its parts:

- the parts are written one after the other, so that no module is called and a value is freed after its last use
  wherever that is;
- operators are called by torch's own Python functions where these do the same (:mod:`~.bindings`);
- parameters are read from the tables of their modules, one look-up each;
- assertions that the recorded values prove are checked once per parameter instead of once per value;
- a copy between two devices that are one torch device is no copy;
- inputs are checked by whoever calls it, and not once more.

It is for calls in which nobody looks: under a mode, autocast or a hook the graph's own code runs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import attrs
import torch
from torch._ops import HigherOrderOperator
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import CodeGen, _PyTreeCodeGen
from torch.utils import _pytree as pytree

from fxpasses.devices import same_torch_device
from fxpasses.guards import is_guard
from fxpasses.metadata import value_of
from fxpasses.outlining.regions import BODY_AT
from fxpasses.passes.assertions import is_proven_assertion
from fxpasses.passes.placing_parts.bindings import binding_of
from fxpasses.passes.placing_parts.copies import COPY, COPY_OF
from fxpasses.passes.placing_parts.copy_engine import await_copy, release_copy
from fxpasses.passes.placing_parts.state_reads import StateReads

__all__ = ["DirectCode", "Unwritable", "write_direct_code"]

_LAST = 2**63 - 1  # what exported slices write for an open end
_PLAIN = (bool, int, str, type(None), type(Ellipsis))

Written = Any
"""What stands for a value in the text: an expression, or a tuple of these for the results of a part."""


class Unwritable(Exception):  # noqa: N818 - nobody sees it: the graph's own code runs instead
    """A graph has something that only its own code does."""


@attrs.frozen(eq=False)
class DirectCode:
    """The function as text.

    Args:
        source: The definition of ``run(self, leaves, otherwise)``; it returns ``otherwise`` where a parameter is not
            what it was when this was written.
        names: What the text refers to.
        written_out: Each module whose code the text stands for, by the path from the top.
    """

    source: str
    names: Mapping[str, Any]
    written_out: Mapping[str, GraphModule]


def _can_be_written_out(module: torch.nn.Module) -> bool:
    """Whether calling a module does nothing but run its graph."""
    return (
        isinstance(module, GraphModule)
        and "forward" not in vars(module)
        and getattr(module, "_compiled_call_impl", None) is None
        and getattr(module.graph._codegen, "_body_transformer", None) is None
        and not has_hooks(module)
    )


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether somebody wants to be told when a module is called."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def write_direct_code(graph_module: GraphModule) -> DirectCode:
    """Write a placed module out. Linear in nodes and edges.

    Args:
        graph_module: The top level; the parts it calls stand in its submodules.

    Raises:
        Unwritable: it has something that only its own code does.
    """
    writer = _Writer(graph_module)
    inputs = [f"x{index}" for index, _ in enumerate(graph_module.graph.find_nodes(op="placeholder"))]
    result = writer.write_graph("", graph_module.graph, inputs)
    writer.say(f"return {_unflattened(graph_module.graph, result, writer)}", uses=_names_in(result))
    text = ["def run(self, leaves, otherwise):"]
    if inputs:
        text.append(f" {', '.join(inputs)}, = leaves")
    text += writer.state.text()
    text += writer.body()
    return DirectCode("\n".join(text) + "\n", writer.names, writer.written_out)


@attrs.define
class _Line:
    """A statement: what it makes, what it uses, and which copy between devices it gives the memory of back."""

    depth: int
    text: str
    made: str | None
    uses: tuple[str, ...]
    releases: str | None = None


@attrs.define(eq=False)
class _Writer:
    """Writes graphs into one function."""

    root: GraphModule
    names: dict[str, Any] = attrs.field(factory=dict)
    written_out: dict[str, GraphModule] = attrs.field(factory=dict)
    lines: list[_Line] = attrs.field(factory=list)
    state: StateReads = attrs.field(init=False)
    depth: int = 1
    _awaited: dict[str, str] = attrs.field(factory=dict)  # the variable of each copy, by that of its ticket
    _known: dict[int, str] = attrs.field(factory=dict)
    _variables: int = 0

    def __attrs_post_init__(self) -> None:
        self.state = StateReads(self.root, self.names)

    def say(self, text: str, *, made: str | None = None, uses: Sequence[str] = ()) -> None:
        """Add a statement."""
        self.lines.append(_Line(self.depth, text, made, tuple(uses)))

    def constant(self, value: Any, name: str = "c") -> str:
        """A name for an object that the text cannot spell."""
        if id(value) not in self._known:
            letters = "".join(letter if letter.isalnum() else "_" for letter in name)
            self._known[id(value)] = f"k_{letters}_{len(self._known)}"
            self.names[self._known[id(value)]] = value
        return self._known[id(value)]

    def write_graph(self, path: str, graph: Graph, inputs: Sequence[Written]) -> Written:
        """Write one graph; give what it returns."""
        values: dict[Node, Written] = {}
        given = iter(inputs)
        for node in graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given, None)
                if values[node] is None:
                    raise Unwritable(f"{node} has no value")
            elif node.op == "output":
                return self._structure(node.args[0], values)
            else:
                values[node] = self._written(path, node, values)
        raise Unwritable("a graph without a result")

    def _structure(self, results: Any, values: Mapping[Node, Written]) -> Written:
        if isinstance(results, (tuple, list)):
            return tuple(self._expression(result, values) for result in results)
        return values[results] if isinstance(results, Node) else self._expression(results, values)

    def _written(self, path: str, node: Node, values: Mapping[Node, Written]) -> Written:
        if node.op == "get_attr":
            return self.state.attribute(_joined(path, str(node.target)))
        if not path and is_guard(node):
            return "None"
        if node.op == "call_module":
            return self._module(_joined(path, str(node.target)), node, node.args, values)
        if node.op == "call_method":
            receiver, *rest = node.args
            function = f"{self._expression(receiver, values)}.{node.target}"
            return self._call(node, function, self._arguments(rest, node.kwargs, values))
        return self._function(path, node, values)

    def _function(self, path: str, node: Node, values: Mapping[Node, Written]) -> Written:
        first = node.args[0] if node.args else None
        if node.target is operator.getitem and isinstance(first, Node) and isinstance(values[first], tuple):
            return values[first][node.args[1]]
        if _is_no_copy(node) or is_proven_assertion(node):
            return values[first]  # type: ignore[index]  # both take a tensor first
        if isinstance(node.target, HigherOrderOperator) and node.target.__name__ in BODY_AT:
            return self._in_region(path, node, values)
        if (index := _slice_of(node)) is not None:
            return self._call(node, "", f"{values[first]}[{self.constant(index, 'slice')}]")  # type: ignore[index]
        target = binding_of(node)
        function = self.constant(target, getattr(target, "__name__", str(target)))
        return self._call(node, function, self._arguments(node.args, node.kwargs, values))

    def _module(self, path: str, node: Node, arguments: Sequence[Any], values: Mapping[Node, Written]) -> Written:
        module = self.root.get_submodule(path)
        if _can_be_written_out(module) and not node.kwargs:
            assert isinstance(module, GraphModule)
            if type(module.graph._codegen) is CodeGen:
                self.written_out[path] = module
                return self.write_graph(
                    path, module.graph, [self._structure_of(argument, values) for argument in arguments]
                )
        return self._call(node, self.state.module(path), self._arguments(arguments, node.kwargs, values))

    def _structure_of(self, argument: Any, values: Mapping[Node, Written]) -> Written:
        return values[argument] if isinstance(argument, Node) else self._expression(argument, values)

    def _in_region(self, above: str, node: Node, values: Mapping[Node, Written]) -> Written:
        """A region of autocast or of a gradient mode, in which its body is written out."""
        name = node.target.__name__  # type: ignore[union-attr]  # an operator
        at = BODY_AT[name]
        settings, body, arguments = node.args[:at], node.args[at], node.args[at + 1 :]
        if node.kwargs or any(isinstance(each, Node) for each in settings) or not _is_attribute(body):
            raise Unwritable(f"{node} is called in its own way")
        path = _joined(above, str(body.target))
        if name == "wrap_with_autocast":
            return self._in_autocast(settings, path, node, arguments, values)
        return self._in_gradient_mode(settings[0], path, node, arguments, values)

    def _in_autocast(
        self, settings: Sequence[Any], path: str, node: Node, arguments: Sequence[Any], values: Mapping[Node, Written]
    ) -> Written:
        given = ", ".join([self._expression(each, values) for each in settings])
        self.say(f"with {self.constant(torch.autocast, 'autocast')}({given}):")
        self.depth += 1
        self.say("pass")
        result = self._module(path, node, arguments, values)
        self.depth -= 1
        return result

    def _in_gradient_mode(
        self, is_enabled: Any, path: str, node: Node, arguments: Sequence[Any], values: Mapping[Node, Written]
    ) -> Written:
        """The mode is put back whatever happens."""
        before = self._variable("grad")
        set_to = self.constant(torch._C._set_grad_enabled, "set_grad")
        self.say(f"{before} = {self.constant(torch.is_grad_enabled, 'grad')}()")
        self.say(f"{set_to}({bool(is_enabled)})")
        self.say("try:")
        self.depth += 1
        self.say("pass")
        result = self._module(path, node, arguments, values)
        self.depth -= 1
        self.say("finally:")
        self.depth += 1
        self.say(f"{set_to}({before})")
        self.depth -= 1
        return result

    def _variable(self, name: str) -> str:
        self._variables += 1
        return f"{name}_{self._variables}"

    def _call(self, node: Node, function: str, arguments: str) -> str:
        call = f"{function}({arguments})" if function else arguments
        variable = self._variable(f"v_{node.name}")
        self.say(f"{variable} = {call}", made=variable, uses=_names_in(call))
        if node.target is await_copy:
            self._awaited[_names_in(arguments)[-1]] = variable
        elif node.target is release_copy:
            self.lines[-1].releases = self._awaited.get(_names_in(arguments)[-1])
        return variable

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any], values: Mapping[Node, Written]) -> str:
        positional = [self._expression(argument, values) for argument in args]
        return ", ".join([*positional, *(f"{key}={self._expression(each, values)}" for key, each in kwargs.items())])

    def _expression(self, argument: Any, values: Mapping[Node, Written]) -> str:
        """An argument as text."""
        if isinstance(argument, Node):
            found = values[argument]
            return found if isinstance(found, str) else f"({', '.join(found)},)"
        if isinstance(argument, _PLAIN) or (isinstance(argument, float) and math.isfinite(argument)):
            return repr(argument)
        if type(argument) in (tuple, torch.Size) or isinstance(argument, (list, tuple)):
            inside = ", ".join([self._expression(each, values) for each in argument])
            return f"[{inside}]" if isinstance(argument, list) else f"({inside}{',' if inside else ''})"
        if isinstance(argument, dict):
            return "{" + ", ".join(f"{key!r}: {self._expression(each, values)}" for key, each in argument.items()) + "}"
        if isinstance(argument, slice):
            ends = (argument.start, argument.stop, argument.step)
            return f"slice({', '.join([self._expression(each, values) for each in ends])})"
        return self.constant(argument)

    def body(self) -> list[str]:
        """The statements; each value is let go right after its last use."""
        kept: set[str] = set()
        text: list[str] = []
        for line in reversed(_released_early(self.lines)):
            last = [name for name in dict.fromkeys(line.uses) if name not in kept]
            kept.update(last)
            if line.made is not None and line.made not in kept:
                last.append(line.made)
            freed = "" if line.text.startswith("return") or not last else f"; {' = '.join(last)} = None"
            text.append(" " * line.depth + line.text + freed)
        return text[::-1]


def _released_early(lines: Sequence[_Line]) -> list[_Line]:
    """Statements in which each copy is released right after its last use, which may be far inside of a part."""
    last_use = {name: index for index, line in enumerate(lines) for name in line.uses}
    moved: dict[int, list[_Line]] = {}
    stay: list[tuple[int, _Line]] = []
    for index, line in enumerate(lines):
        at = last_use.get(line.releases, index) if line.releases is not None else index
        if at < index:
            moved.setdefault(at, []).append(attrs.evolve(line, depth=lines[at].depth))
        else:
            stay.append((index, line))
    return [each for index, line in stay for each in (line, *moved.get(index, ()))]


def _is_attribute(body: Any) -> TypeGuard[Node]:
    return isinstance(body, Node) and body.op == "get_attr"


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _names_in(written: Written) -> list[str]:
    """The variables of values in an expression, or in several."""
    text = written if isinstance(written, str) else " ".join(written)
    words = "".join(letter if letter.isalnum() or letter == "_" else " " for letter in text).split()
    return [word for word in words if word.startswith("v_") or (word[0] == "x" and word[1:].isdigit())]


def _is_no_copy(node: Node) -> bool:
    """A copy that placing inserted between two names of one torch device.

    Nobody can tell: what is written to belongs to one device up to the last write, and is only read afterwards.
    """
    if node.target is not COPY or not COPY_OF.has(node) or set(node.kwargs) != {"device"}:
        return False
    source, target = value_of(node.all_input_nodes[0]), node.kwargs["device"]
    return isinstance(source, torch.Tensor) and same_torch_device(source.device, target)  # type: ignore[arg-type]


def _slice_of(node: Node) -> tuple[slice, ...] | None:
    """The index that an ``aten.slice`` with known ends is written as; None for any other node."""
    if node.target is not torch.ops.aten.slice.Tensor or node.kwargs or not isinstance(node.args[0], Node):
        return None
    value = value_of(node.args[0])
    named: list[Any] = [*node.args[1:], *(0, None, None, 1)[len(node.args) - 1 :]]
    if not isinstance(value, torch.Tensor) or any(type(each) not in (int, type(None)) for each in named):
        return None
    dim, start, end, step = named
    stop = None if end == _LAST else end
    if start in (None, 0) and stop is None:
        return None  # an index would make no slice of it
    return (*[slice(None)] * (dim % value.dim()), slice(start, stop, step))


def _unflattened(graph: Graph, result: Written, writer: _Writer) -> str:
    """The results in the structure that the caller knows."""
    codegen = graph._codegen
    if type(codegen) is CodeGen:
        return result if isinstance(result, str) else f"({', '.join(result)},)"
    if type(codegen) is not _PyTreeCodeGen:
        raise Unwritable("code is generated in another way")
    spec = codegen.pytree_info.out_spec
    leaves = [result] if isinstance(result, str) else list(result)
    if spec is None:
        return result if isinstance(result, str) else f"({', '.join(result)},)"
    return _structured(spec, iter(leaves), writer)


def _structured(spec: pytree.TreeSpec, leaves: Any, writer: _Writer) -> str:
    if spec.is_leaf():
        return str(next(leaves))
    inside = [_structured(child, leaves, writer) for child in spec.children()]
    if spec.type is list:
        return f"[{', '.join(inside)}]"
    if spec.type is tuple:
        return f"({', '.join(inside)}{',' if inside else ''})"
    if (kind := pytree.SUPPORTED_NODES.get(spec.type)) is None:
        raise Unwritable(f"{spec.type} is no known structure")
    unflatten = writer.constant(kind.unflatten_fn, "unflatten")
    return f"{unflatten}([{', '.join(inside)}], {writer.constant(spec.context, 'context')})"
