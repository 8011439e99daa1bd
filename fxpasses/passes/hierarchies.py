"""Write the graphs of a module hierarchy from a flat program: which node is of which call, what crosses, what is state.

Runs of nodes of one call become the graph of its module; what goes in and out of each are the values that cross.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallSignature
from torch.export.graph_signature import ConstantArgument, OutputKind, OutputSpec
from torch.fx import Graph, Node
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from fxpasses.errors import SplitError
from fxpasses.metadata import module_stack
from fxpasses.partitioners.support import plain_path
from fxpasses.passes.call_frames import Frame, ProgramState, around
from fxpasses.passes.interpreter_modules import (
    CALL_INDEX,
    InterpreterModule,
    InterpreterModuleDispatcher,
    ModuleContainer,
    bind_forward,
)
from fxpasses.passes.preserved_calls import (
    EXTRA,
    as_argument,
    call_as_exported,
    is_number,
    must_be,
    must_be_same,
    put_together,
    taken_apart,
    written_in_place,
)
from fxpasses.programs.input_contract import InputContract

if TYPE_CHECKING:
    from fxpasses.passes.unflattening import UnflattenedModule

__all__ = ["Unflattener"]

_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION, OutputKind.PARAMETER_MUTATION)
_WITHOUT_STACK = ("sym_size", "sym_constrain", "_assert", "assert_", "getitem", "sym_", "mul", "add", "sub", "floordiv")


class Unflattener:
    """One run of :func:`unflatten`."""

    def __init__(self, program: ExportedProgram, clone: bool) -> None:
        self.program = program
        self.state = ProgramState.of(program, clone)
        self.order = list(program.graph.nodes)
        self.position = {node: index for index, node in enumerate(self.order)}
        self.by_name = {node.name: node for node in self.position}
        self.signatures = {entry.fqn: entry.signature for entry in program.module_call_graph if entry.signature}
        self.children = _numbered_children(entry.fqn for entry in program.module_call_graph)
        self.frames = [Frame("", None, 0, None)]
        self.home: dict[Node, Frame] = {}
        self.first: dict[Frame, Node] = {}
        self.same: dict[Node, Node] = {}
        self.written: set[str] = set()
        self.calls: dict[str, int] = {}
        self.closed: set[str] = set()
        self.refused: dict[str, str] = {}
        self.modules: dict[str, torch.nn.Module] = {}
        self.named: dict[str, None] = {}
        self.shapes: dict[str, dict[Hashable, int]] = {}

    @property
    def root(self) -> Frame:
        """The call of the model itself."""
        return self.frames[0]

    def build(self, root: UnflattenedModule) -> None:
        """Make a new module the root of the tree."""
        InterpreterModule.__init__(root, self.root.graph)
        self.modules[""] = root
        self._find_frames()
        self._find_names()
        self._free_preserved()
        self._find_crossings()
        self._write_graphs()
        self._install_state(root)
        self._refuse_swaps(root)
        bind_forward(root)

    # Which node belongs to which call -------------------------------------------------------------------------------

    def _find_frames(self) -> None:
        opened: list[tuple[str, Frame]] = [("", self.root)]
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self.home[node] = self.root
            elif node.op in ("get_attr", "output"):
                continue
            else:
                opened = self._entered(node, opened)
                self.home[node] = opened[-1][1]
                opened[-1][1].nodes.append(node)

    def _find_names(self) -> None:
        """The paths of all that the model computes with or holds, and of what is around it."""
        for path in (*(frame.path for frame in self.frames), *self.state.values):
            while path and path not in self.named:
                self.named[path] = None
                path = path.rpartition(".")[0]

    def _entered(self, node: Node, opened: list[tuple[str, Frame]]) -> list[tuple[str, Frame]]:
        """The open calls after a node has entered its own: a common beginning stays open, the rest is new."""
        stack = module_stack(node)
        if not stack:
            if _may_lack_stack(node):
                return opened
            if "nn_module_stack" in node.meta:  # torch says that it is of no module: what it adds behind the model
                return opened if any(map(module_stack, node.users)) else opened[:1]
            raise SplitError(
                f"{node.name} ({node.target}) has no nn_module_stack, so it is not known which module it belongs to; "
                "let the pass that made it copy the metadata of what it replaced (fxpasses.create_node does).",
                node=node,
            )
        wanted = [(key, *_path_and_type(entry)) for key, entry in stack.items()]
        wanted = [(key, path, kind) for key, path, kind in wanted if path]
        shared = 1
        while shared <= len(wanted) and shared < len(opened) and opened[shared][0] == wanted[shared - 1][0]:
            shared += 1
        opened = opened[:shared]
        for key, path, kind in wanted[shared - 1 :]:
            frame = Frame(self._real_path(path), opened[-1][1], len(opened), kind)
            number = str(key).partition("@")[2]
            frame.call = f"{frame.path}@{number}" if number else frame.path
            frame.signature = self.signatures.get(frame.call)
            self.frames.append(frame)
            self.first[frame] = node
            self.calls[frame.call] = self.calls.get(frame.call, 0) + 1
            opened.append((key, frame))
        return opened

    def _real_path(self, path: str) -> str:
        """``layers.slice(1, None, None).0`` is ``layers.1``: a slice of a list holds the list's own modules."""
        if ".slice(" not in path:
            return path
        holder, _, rest = path.partition(".slice(")
        bounds, _, tail = rest.partition(")")
        chosen = self.children.get(self._real_path(holder), [])[slice(*map(_bound, bounds.split(",")))]
        index, _, deeper = tail.lstrip(".").partition(".")
        if not index.isdigit() or int(index) >= len(chosen):
            return path.replace(".slice(", "_slice(")
        return self._real_path(f"{holder}.{chosen[int(index)]}" + (f".{deeper}" if deeper else ""))

    # What crosses ----------------------------------------------------------------------------------------------------

    def _find_crossings(self) -> None:
        for node in self.program.graph.nodes:
            if node.op == "output":
                for used in self._results():
                    self._cross(used, self.root)
            elif node in self.home and node.op != "placeholder":
                for used in node.all_input_nodes:
                    self._cross(used, self.home[node])
        for frame in self.frames:
            for held, value in frame.writes:
                self._cross(held, frame)
                self._cross(value, frame)
        self._follow_signatures()

    def _cross(self, value: Node, user: Frame) -> None:
        """Record a use: the value goes out of its own calls and into the user's, up to the call that holds both."""
        value = self._known_as(value)
        if value.op == "get_attr":
            return
        source = self._owner(value, user) if value in self.state.name_of else self.home[value]
        inner = user
        while inner.depth > source.depth:
            inner = self._import(value, inner)
        while source is not inner:
            if source.depth >= inner.depth:
                source.exports[value] = None
                assert source.parent is not None
                source = source.parent
            else:
                inner = self._import(value, inner)
            while inner.depth > source.depth:
                inner = self._import(value, inner)

    @staticmethod
    def _import(value: Node, frame: Frame) -> Frame:
        frame.imports[value] = None
        assert frame.parent is not None
        return frame.parent

    def _owner(self, value: Node, user: Frame) -> Frame:
        """The innermost call around ``user`` whose module holds a tensor under one of its names."""
        frame = user
        while frame.parent is not None and self._local_name(value, frame) is None:
            frame = frame.parent
        return frame

    def _local_name(self, value: Node, frame: Frame) -> str | None:
        for name in self.state.aliases[self.state.name_of[value]]:
            if not frame.path or name.startswith(f"{frame.path}."):
                return name[len(frame.path) + 1 :] if frame.path else name
        return None

    def _results(self) -> list[Node]:
        """The values of the flat outputs, mutations included that no preserved call makes itself."""
        values = self.program.graph.output_node().args[0]
        specs = self.program.graph_signature.output_specs
        kept = [value for spec, value in zip(specs, values, strict=True) if spec.target not in self.written]
        return [value for value in kept if isinstance(value, Node)]

    # Calls whose signature was preserved ---------------------------------------------------------------------------

    def _free_preserved(self) -> None:
        """Before it is known what crosses: let as little as possible leave a preserved call but what it returns."""
        preserved = [frame for frame in self.frames if frame.signature is not None]
        contents: dict[Frame, list[Node]] = {frame: [] for frame in preserved}
        for node, home in self.home.items():
            for frame in around(home):
                if frame in contents and node.op != "placeholder":
                    contents[frame].append(node)
        before: dict[Node, Frame] = {}
        for frame in reversed(preserved):  # from the inside
            returned = {getattr(argument, "name", None) for argument in frame.signature.outputs}  # type: ignore[union-attr]
            for node in contents[frame]:
                if node.name not in returned and self._is_used_outside(node, frame):
                    self._free(node, frame, before)
        self._stand_before(before)
        for spec, value in self._mutations():
            self._write_inside(spec, value)

    def _free(self, node: Node, frame: Frame, before: dict[Node, Frame]) -> None:
        """A tensor written in place is known as what it was before; numbers are computed before the call."""
        if (written := written_in_place(node)) is not None:
            while self._is_inside(written, frame) and (deeper := written_in_place(written)) is not None:
                written = deeper
            self.same[node] = written
        elif is_number(node) and not any(self._is_inside(used, frame) for used in node.all_input_nodes):
            assert frame.parent is not None
            before[node], self.home[node] = frame, frame.parent

    def _stand_before(self, before: Mapping[Node, Frame]) -> None:
        if not before:
            return
        moved: dict[Node, list[Node]] = {}
        for node in self.order:
            if node in before:
                moved.setdefault(self.first[before[node]], []).append(node)
        order: list[Node] = []
        for node in self.order:
            order += moved.get(node, ())
            if node not in before:
                order.append(node)
        self.order, self.position = order, {node: index for index, node in enumerate(order)}

    def _mutations(self) -> Iterator[tuple[OutputSpec, Node]]:
        values = self.program.graph.output_node().args[0]
        for spec, value in zip(self.program.graph_signature.output_specs, values, strict=True):
            if spec.kind == OutputKind.BUFFER_MUTATION and isinstance(value, Node):
                yield spec, value

    def _write_inside(self, spec: OutputSpec, value: Node) -> None:
        """A buffer that only a preserved call touches is written there, not by who calls it."""
        target = spec.target or ""
        held = next((node for node, name in self.state.name_of.items() if name == target), None)
        for frame in around(self.home[value]):
            if frame.signature is None or not target.startswith(f"{frame.path}."):
                continue
            uses = {**(held.users if held is not None else {}), **value.users}
            if held is not None and all(user.op == "output" or self._is_inside(user, frame) for user in uses):
                frame.writes.append((held, value))
                self.written.add(target)
            return

    def _is_used_outside(self, node: Node, frame: Frame) -> bool:
        return any(not self._is_inside(user, frame) for user in node.users)

    def _known_as(self, value: Node) -> Node:
        while value in self.same:
            value = self.same[value]
        return value

    def _named(self, argument: Any) -> Node | None:
        """The node that an argument of a signature stands for; None for constants and what is computed no more."""
        node = self.by_name.get(getattr(argument, "name", ""))
        return None if node is None else self._known_as(node)

    def _follow_signatures(self) -> None:
        """A preserved call takes and gives exactly what the original did, or says why it cannot."""
        preserved = [(frame, frame.signature) for frame in self.frames if frame.signature is not None]
        for frame, signature in preserved:
            assert frame.parent is not None
            for argument in signature.inputs:
                value = self._named(argument)
                frame.taken.append(value if value is not None and self._is_there_for(value, frame) else None)
            for argument in signature.outputs:
                value = self._named(argument)
                there = value is not None and (self._is_inside(value, frame) or self._is_there_for(value, frame))
                frame.given.append(value if there else None)  # what nothing uses may be gone, and its name another's
            for value in filter(None, frame.taken):
                self._cross(value, frame.parent)
            for value in filter(None, frame.given):
                self._cross(value, frame.parent if self._is_inside(value, frame) else frame)
        for frame, signature in preserved:
            if (reason := self._why_not(frame, signature)) is not None:
                self.refused.setdefault(frame.path, reason)
                frame.signature = None
            frame.extras = [value for value in self._arguments(frame) if value not in frame.taken]

    def _is_there_for(self, value: Node, frame: Frame) -> bool:
        """Whether a value that is not made in a call is there before it."""
        return not self._is_inside(value, frame) and self.position[value] <= self.position[self.first[frame]]

    def _why_not(self, frame: Frame, signature: ModuleCallSignature) -> str | None:
        if self.calls[frame.call] > 1:
            return "operators of other modules stand between those of one call"
        for argument, value in zip(signature.inputs, frame.taken, strict=True):
            if value is None and not isinstance(argument, ConstantArgument):
                return f"its input {argument.name} is not computed before it any more"
        for value in frame.exports:
            if value not in frame.given:
                return (
                    f"{value.name} leaves the call without being returned, as what run_decompositions makes of a write "
                    "to an input or a buffer does"
                )
        return None

    def _is_inside(self, value: Node, frame: Frame) -> bool:
        home = self.home.get(value)
        return home is not None and any(step is frame for step in around(home))

    def _refuse_swaps(self, root: UnflattenedModule) -> None:
        """Modules whose call was preserved, but is not known well enough for another module, say so when replaced."""
        for call, signature in self.signatures.items():
            path = call.partition("@")[0]
            if path and call not in self.closed and not self._is_dead(signature):
                self.refused.setdefault(path, "a call of it leaves no operator in the program")
        for frame in self.frames:
            if frame.path in self.signatures and frame.parent is not None and frame.call not in self.signatures:
                self.refused.setdefault(frame.path, f"of {frame.call!r} no signature was preserved")
        for path, reason in self.refused.items():
            root.get_submodule(path).kept_because = reason  # type: ignore[assignment]  # a string, no module

    def _is_dead(self, signature: ModuleCallSignature) -> bool:
        """Whether nothing that a call returned is used."""
        outputs = signature.outputs
        return bool(outputs) and all(
            self._named(each) is None and not isinstance(each, ConstantArgument) for each in outputs
        )

    # Writing the graphs ----------------------------------------------------------------------------------------------

    def _write_graphs(self) -> None:
        opened: list[Frame] = []
        self._open(self.root)
        opened.append(self.root)
        for node in self.order:
            if node.op in ("placeholder", "get_attr", "output"):
                continue
            self.reached = node
            frame = self.home[node]
            while not self._contains(opened[-1], frame):
                self._close(opened.pop())
            path: list[Frame] = []
            step: Frame | None = frame
            while step is not opened[-1]:
                assert step is not None
                path.append(step)
                step = step.parent
            for inner in reversed(path):
                self._open(inner)
                opened.append(inner)
            self._copy(node, frame)
        self.reached = self.program.graph.output_node()
        while len(opened) > 1:
            self._close(opened.pop())
        self._close_root()

    @staticmethod
    def _contains(outer: Frame, inner: Frame) -> bool:
        step: Frame | None = inner
        while step is not None and step.depth > outer.depth:
            step = step.parent
        return step is outer

    def _open(self, frame: Frame) -> None:
        if frame.parent is None:
            inputs = [
                node for node in self.program.graph.find_nodes(op="placeholder") if node not in self.state.name_of
            ]
        elif frame.signature is not None:
            self._open_preserved(frame, frame.signature)
            return
        else:
            inputs = sorted(frame.imports, key=self.position.__getitem__)
        for value in inputs:
            frame.known[value] = self._placeholder(frame.graph, value)

    @staticmethod
    def _placeholder(graph: Graph, value: Node) -> Node:
        node = graph.placeholder(value.name)
        node.meta.update({key: entry for key, entry in value.meta.items() if key in ("val", "tensor_meta")})
        return node

    def _open_preserved(self, frame: Frame, signature: ModuleCallSignature) -> None:
        """Take the arguments as the original did, and take them apart."""
        args_spec, kwargs_spec = signature.in_spec.children()
        names = list(signature.forward_arg_names or ())[: args_spec.num_children]
        names += [f"arg_{index}" for index in range(len(names), args_spec.num_children)]
        keywords = list(kwargs_spec.context or ())
        flat: list[Any] = []
        for name, spec in zip((*names, *keywords), (*args_spec.children(), *kwargs_spec.children()), strict=True):
            flat += taken_apart(frame.graph, frame.graph.placeholder(name), spec)
        for value, node in zip(frame.taken, flat, strict=True):
            if value is not None:
                frame.known[value] = node
        for index, value in enumerate(frame.extras):
            frame.known[value] = frame.graph.placeholder(f"{EXTRA}{index}")

    def _copy(self, node: Node, frame: Frame) -> None:
        copied = frame.graph.node_copy(node, lambda used: self._value_in(frame, used))
        if node.op == "call_module":
            name = self._fresh_name(frame, str(node.target).rpartition(".")[2])
            self._module(frame).add_module(name, self.program.graph_module.get_submodule(str(node.target)))
            copied.target = name
        frame.known[node] = copied

    def _value_in(self, frame: Frame, value: Node) -> Any:
        """The node that stands for a flat value in the graph of a call; attributes are fetched where they are used."""
        value = self._known_as(value)
        if value in frame.known:
            return frame.known[value]
        if value.op == "get_attr":
            fetched = self._body(frame, value)
        elif value in self.state.name_of:
            name = self._local_name(value, frame)
            if name is None:
                raise SplitError(f"{value.name} is not reachable from the module {frame.path!r}.", node=value)
            fetched = frame.graph.get_attr(name)
        else:
            raise SplitError(f"{value.name} is used in the module {frame.path!r} before it is computed.", node=value)
        fetched.meta.update({key: entry for key, entry in value.meta.items() if key in ("val", "tensor_meta")})
        frame.known[value] = fetched
        return fetched

    def _body(self, frame: Frame, value: Node) -> Node:
        """The graph of a higher-order operator moves to the module whose call uses it."""
        found: Any = self.program.graph_module
        for part in str(value.target).split("."):
            found = getattr(found, part)
        holder = self._module(frame)
        name = self._fresh_name(frame, str(value.target).rpartition(".")[2], found)
        if getattr(holder, name, None) is not found:
            setattr(holder, name, found)
        return frame.graph.get_attr(name)

    def _close(self, frame: Frame) -> None:
        parent = frame.parent
        assert parent is not None
        self.closed.add(frame.call)
        for held, value in frame.writes:
            new = self._value_in(frame, value)
            frame.graph.call_function(torch.ops.aten.copy_.default, (self._value_in(frame, held), new))
        if frame.signature is not None:
            self._close_preserved(frame, frame.signature)
            return
        exports = sorted(frame.exports, key=self.position.__getitem__)
        results = [self._value_in(frame, value) for value in exports]
        frame.graph.output(results[0] if len(results) == 1 else tuple(results))
        call = self._call(frame, tuple(self._value_in(parent, value) for value in self._arguments(frame)), {})
        if len(exports) == 1:
            parent.known[exports[0]] = call
            call.meta.update(_crossing_meta(exports[0]))
        for index, value in enumerate(exports if len(exports) > 1 else []):
            picked = parent.graph.call_function(operator.getitem, (call, index))
            picked.meta.update(_crossing_meta(value))
            parent.known[value] = picked
        if len(exports) != 1:
            call.meta["val"] = tuple(value.meta.get("val") for value in exports)

    def _arguments(self, frame: Frame) -> list[Node]:
        return sorted(frame.imports, key=self.position.__getitem__)

    def _close_preserved(self, frame: Frame, signature: ModuleCallSignature) -> None:
        parent = frame.parent
        assert parent is not None
        results = [self._leaf_in(frame, *each) for each in zip(signature.outputs, frame.given, strict=True)]
        frame.graph.output(as_argument(frame.graph, put_together(results, signature.out_spec)))
        leaves = [self._leaf_in(parent, *each) for each in zip(signature.inputs, frame.taken, strict=True)]
        args, kwargs = as_argument(parent.graph, put_together(leaves, signature.in_spec))
        call = self._call(frame, args, kwargs)
        examples = [_example(*each) for each in zip(signature.outputs, frame.given, strict=True)]
        call.meta["val"] = put_together(examples, signature.out_spec)
        known: set[Node] = set()
        picked = taken_apart(parent.graph, call, signature.out_spec)
        for argument, value, node in zip(signature.outputs, frame.given, picked, strict=True):
            if isinstance(argument, ConstantArgument):
                parent.graph.call_function(must_be, (node, argument.value, frame.path))
            elif value is not None:
                self._take_result(frame, value, node, known)

    def _leaf_in(self, frame: Frame, argument: Any, value: Node | None) -> Any:
        return getattr(argument, "value", None) if value is None else self._value_in(frame, value)

    def _take_result(self, frame: Frame, value: Node, node: Node, known: set[Node]) -> None:
        """What the caller knows as an output; outputs that the program cannot tell apart have to be the same."""
        parent = frame.parent
        assert parent is not None
        if self._is_inside(value, frame) and value not in known:
            known.add(value)
        elif self._is_used_later(value):
            node = parent.graph.call_function(must_be_same, (node, self._value_in(parent, value), frame.path))
        else:
            return
        node.meta.update(_crossing_meta(value))
        parent.known[value] = node

    def _is_used_later(self, value: Node) -> bool:
        """Whether what is written from here on uses a value, or what was written to it in place."""
        known = [value, *(each for each in self.same if self._known_as(each) is value)]
        at = self.position[self.reached]
        return any(self.position[user] >= at for each in known for user in each.users)

    def _call(self, frame: Frame, args: Any, kwargs: dict[str, Any]) -> Node:
        parent = frame.parent
        assert parent is not None
        index = self._install(frame)
        target = frame.path[len(parent.path) + 1 :] if parent.path else frame.path
        if parent.path and not frame.path.startswith(f"{parent.path}."):
            target = self._borrowed(parent, frame)
        unsaid = {CALL_INDEX: index} if index else {}
        if frame.signature is None:
            return parent.graph.call_module(target, tuple(args), {**kwargs, **unsaid})
        unsaid |= {f"{EXTRA}{number}": self._value_in(parent, value) for number, value in enumerate(frame.extras)}
        if not unsaid:
            return parent.graph.call_module(target, tuple(args), kwargs)
        module = parent.graph.get_attr(target)
        return parent.graph.call_function(call_as_exported, (module, unsaid, tuple(args), kwargs))

    def _borrowed(self, parent: Frame, frame: Frame) -> str:
        """A module that lives elsewhere in the hierarchy: referred to, not registered, so no name is added."""
        holder, borrowed = self._module(parent), self._module(frame)
        name = self._fresh_name(parent, frame.path.replace(".", "_"), borrowed)
        holder.__dict__[name] = borrowed
        return name

    def _fresh_name(self, frame: Frame, wished: str, value: Any = None) -> str:
        """A name for what the module of a call gets; the wished one if it is free there or holds this very value."""
        holder, prefix = self._module(frame), f"{frame.path}." if frame.path else ""
        name, number = wished, 0
        while f"{prefix}{name}" in self.named or (
            hasattr(holder, name) and (value is None or getattr(holder, name) is not value)
        ):
            number += 1
            name = f"{wished}_{number}"
        return name

    def _install(self, frame: Frame) -> int:
        """Give the module of a call its graph; a graph that it has already is used again. Gives the call index."""
        module = self._module(frame)
        if frame.signature is not None and len(frame.extras) > module.extras:
            module.extras = len(frame.extras)
        if module.graph is frame.graph:
            return 0
        if frame.path not in self.shapes:  # a second call: only now does it matter what the first one looks like
            self.shapes[frame.path] = {_fingerprint(module.graph): 0}
        known, shape = self.shapes[frame.path], _fingerprint(frame.graph)
        if shape not in known:
            module.__class__ = InterpreterModuleDispatcher
            known[shape] = module.add_graph(frame.graph)
        return known[shape]

    def _module(self, frame: Frame) -> InterpreterModule:
        """The module at the path of a call; made when first asked for, with the graph of its first call."""
        found = self.modules.get(frame.path)
        if found is None:
            found = self.modules[frame.path] = InterpreterModule(frame.graph, frame.kind)
        assert isinstance(found, InterpreterModule)
        return found

    def _close_root(self) -> None:
        root = self.root
        self._module(root)
        flat = list(self.program.graph.output_node().args[0])
        targets = {name: node for node, name in self.state.name_of.items()}
        inputs = {node.name: node for node in self.program.graph.find_nodes(op="placeholder")}
        results: list[Any] = []
        for spec, value in zip(self.program.graph_signature.output_specs, flat, strict=True):
            if spec.target in self.written:
                continue
            new = map_arg(value, lambda used: self._value_in(root, used))
            if spec.kind in _MUTATIONS:
                holder = targets.get(spec.target or "") or inputs[spec.target or ""]
                root.graph.call_function(torch.ops.aten.copy_.default, (self._value_in(root, holder), new))
            elif spec.kind == OutputKind.USER_OUTPUT:
                results.append(spec.arg.value if isinstance(spec.arg, ConstantArgument) else new)
        output = root.graph.output(results)
        output.meta.update(self.program.graph.output_node().meta)
        spec = self.program.call_spec
        names = list(InputContract.of(self.program).names)
        root.graph._codegen = _PyTreeCodeGen(_PyTreeInfo(names, spec.in_spec, spec.out_spec))
        root_module = self._module(root)
        root_module._in_spec, root_module._out_spec = spec.in_spec, spec.out_spec

    # The tree and its state ------------------------------------------------------------------------------------------

    def _install_state(self, root: UnflattenedModule) -> None:
        placed: dict[str, torch.nn.Module] = {"": root}
        paths = [entry.fqn.partition("@")[0] for entry in self.program.module_call_graph]  # the order of the original
        for path in (*paths, *self.modules, *(name.rpartition(".")[0] for name in self.state.values)):
            self._place(path, placed)
        for name, value in self.state.values.items():
            holder = placed[name.rpartition(".")[0]]
            leaf = name.rpartition(".")[2]
            _refuse_own(holder, leaf, name)
            if isinstance(value, torch.nn.Parameter):
                holder.register_parameter(leaf, value)
            elif isinstance(value, torch.Tensor) and name in self.state.buffers:
                holder.register_buffer(leaf, value, persistent=name not in self.state.temporary)
            else:
                setattr(holder, leaf, value)

    def _place(self, path: str, placed: dict[str, torch.nn.Module]) -> None:
        """Hang a module and all that hold it into the tree; what computes nothing is a plain container.

        Where the model was made of a graph, the bodies of its control flow are modules, too; they are there already.
        """
        waiting = []
        while path not in placed:
            waiting.append(path)
            path = path.rpartition(".")[0]
        for each in reversed(waiting):
            holder, _, leaf = each.rpartition(".")
            there = placed[holder]._modules.get(leaf)
            if each not in self.named and (there is not None or not isinstance(placed[holder], ModuleContainer)):
                placed[each] = there or placed[holder]
                continue
            placed[each] = self.modules.get(each) or ModuleContainer()
            _refuse_own(placed[holder], leaf, each)
            placed[holder].add_module(leaf, placed[each])


def _refuse_own(holder: torch.nn.Module, leaf: str, path: str) -> None:
    """A name that the new modules need for themselves, such as ``graph``, cannot be one of the model's."""
    if leaf in holder._modules or leaf in holder._parameters or leaf in holder._buffers:
        return
    if leaf in vars(holder) or hasattr(type(holder), leaf) or leaf in type(holder).__annotations__:
        raise SplitError(
            f"{path!r} of the model cannot be called {leaf!r} here, because a {type(holder).__name__} has an attribute "
            "of that name; rename it before the model is exported."
        )


def _numbered_children(paths: Iterator[str] | Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in paths:
        holder, _, leaf = path.rpartition(".")
        if leaf.isdigit():
            found.setdefault(holder, []).append(leaf)
    return {holder: sorted(leaves, key=int) for holder, leaves in found.items()}


def _bound(text: str) -> int | None:
    return None if text.strip() == "None" else int(text)


def _path_and_type(entry: Any) -> tuple[str, str | None]:
    path, kind = entry if isinstance(entry, tuple) else (str(entry), None)
    path = plain_path(str(path)).removeprefix("L__self__").lstrip(".")
    return path, kind if kind is None or isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"


def _may_lack_stack(node: Node) -> bool:
    """Checks and arithmetic on sizes stand between modules; torch writes them without a stack."""
    if isinstance(node.meta.get("val"), torch.Tensor):
        return False
    name = str(getattr(node.target, "__name__", node.target))
    return any(known in name for known in _WITHOUT_STACK) or node.meta.get("val") is None


def _example(argument: Any, value: Node | None) -> Any:
    return getattr(argument, "value", None) if value is None else value.meta.get("val")


def _crossing_meta(value: Node) -> dict[str, Any]:
    return {
        key: entry for key, entry in value.meta.items() if key in ("val", "tensor_meta", "stack_trace", "from_node")
    }


def _fingerprint(graph: Graph) -> Hashable:
    """Two graphs with the same calls on the same things in the same order are one; names of nodes do not count."""
    number = {node: index for index, node in enumerate(graph.nodes)}

    def spelled(node: Node) -> str:
        leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
        return f"{[f'%{number[leaf]}' if isinstance(leaf, Node) else repr(leaf) for leaf in leaves]} {spec}"

    return tuple(
        (node.op,) if node.op == "placeholder" else (node.op, _target_key(node.target), spelled(node))
        for node in graph.nodes
    )


def _target_key(target: Any) -> Hashable:
    return target if isinstance(target, str) else id(target)
