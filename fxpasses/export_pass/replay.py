"""How an ExportPass walks a graph: in place, asking its hooks node by node, computing only what really changed.

A hook that answers "the same call as before" costs a comparison: the node stays, with its identity and its value. Any
other answer makes new nodes next to the visited one and moves its users over. A user whose inputs have new values is
noted as stale and computed again when the walk gets to it; if its value comes out the same, the wave ends there.

Every node is visited once and every stale node computed once, so a walk costs O(nodes + edges) plus the propagation of
the changed frontier. Giving a node another input costs time in proportion to all of its inputs; a node with many is
therefore given all its new ones at once, when the walk gets to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, GraphModule, Node, Proxy, map_arg
from torch.fx.proxy import GraphAppendingTracer

from fxpasses.export_pass.hooks import Visit, ask_hook, hook_of
from fxpasses.export_pass.proxy_values import ExportPassBaseError, NodeMetadata, ProxyValue
from fxpasses.metadata import TRACE_KEYS, VALUE_KEYS, drop_stale_entries, registered_keys, source_of, value_of
from fxpasses.values import describe_like, give_value, has_value, obtain_fake_mode, refresh_value, same_value, set_value

if TYPE_CHECKING:
    from fxpasses.export_pass.base import ExportPass

__all__ = ["Baseline", "ReplayTracer", "Run", "Walk", "run_of"]

_UNSET: Any = object()
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_MANY_INPUTS = 64
"""From how many inputs on a node waits for the walk to get its new inputs."""


class Baseline:
    """What a graph looked like before somebody edited it by hand: which nodes have to be computed again?"""

    def __init__(self, graph_module: GraphModule) -> None:
        self._seen = {
            node: (node.target, node.args, node.kwargs, node.meta.get("val"))
            for module in graph_module.modules()
            if isinstance(module, GraphModule)
            for node in module.graph.nodes
        }

    def stale(self, graph: Graph) -> list[Node]:
        """The nodes that are new, or whose target, arguments or input values are not what they were."""
        found: dict[Node, None] = {}
        for node in graph.nodes:
            before = self._seen.get(node)
            if before is None or before[0] is not node.target or not _is_untouched(before, node):
                found[node] = None
            if before is not None and before[3] is not node.meta.get("val"):
                found.update(dict.fromkeys(node.users))
            if node.op == "get_attr" and not _describes(node.meta.get("val"), _attribute(node)):
                found[node] = None
        return list(found)


def _is_untouched(before: tuple[Any, ...], node: Node) -> bool:
    return before[1] is node.args and (before[2] is node.kwargs or before[2] == node.kwargs)


def _describes(value: Any, attribute: Any) -> bool:
    if not isinstance(value, torch.Tensor) or not isinstance(attribute, torch.Tensor):
        return True
    return value.dtype == attribute.dtype and value.shape == attribute.shape


_RUN: ContextVar[Run | None] = ContextVar("fxpasses_export_pass_run", default=None)


def run_of(owner: ExportPass) -> Run:
    """The run that ``owner`` is in.

    Raises:
        ExportPassBaseError: It is not running.
    """
    run = _RUN.get()
    while run is not None and run.owner is not owner:
        run = run.outer
    if run is None:
        raise ExportPassBaseError(
            f"{type(owner).__name__}: hooks can be called only while the pass runs; run it on a graph module first",
            pass_name=type(owner).__name__,
        )
    return run


@attrs.frozen
class _Replaced:
    """A node that a user with many inputs still holds: what stands for it, what takes its name, if it stays."""

    node: Node
    by: Any
    heir: Node | None
    is_kept: bool


class Run:
    """One pass at work on one graph module and the graphs inside it."""

    def __init__(self, owner: ExportPass, graph_module: GraphModule, *, all_stale: bool, baseline: Baseline | None):
        self.owner = owner
        self.root = graph_module
        self.outer = _RUN.get()
        self.all_stale = all_stale
        self.baseline = baseline
        self.results: dict[int, bool] = {}
        self.walks: list[Walk] = []
        self._mode: FakeTensorMode | None = None

    @property
    def mode(self) -> FakeTensorMode:
        """The one mode of the program."""
        if self._mode is None:
            self._mode = obtain_fake_mode(self.root)
        return self._mode

    @property
    def walk(self) -> Walk:
        """The graph being visited, innermost."""
        if not self.walks:
            raise ExportPassBaseError(f"{type(self.owner).__name__}: no graph is being visited yet")
        return self.walks[-1]

    @contextmanager
    def active(self) -> Iterator[None]:
        """While inside, the hooks of the owner belong to this run."""
        token = _RUN.set(self)
        try:
            yield
        finally:
            _RUN.reset(token)

    def visit(self, graph_module: GraphModule, inputs: Sequence[Any], hooks: frozenset[str]) -> bool:
        """Walk one graph, once; True if it or a graph inside it was edited."""
        known = self.results.get(id(graph_module))
        if known is not None:
            return known
        walk = Walk(self, graph_module)
        outer = self.walks[-1] if self.walks else None
        self.walks.append(walk)
        try:
            walk.take_inputs(inputs, outer)
            walk.visit_all(hooks)
        finally:
            self.walks.pop()
        if outer is not None:
            outer.body_done(walk)
        self.results[id(graph_module)] = walk.edited
        if walk.graph_edited:
            graph_module.recompile()
        return walk.edited


class Walk:
    """One graph being visited: what each node's value is, what was made, what became stale, what died."""

    def __init__(self, run: Run, graph_module: GraphModule) -> None:
        self.run = run
        self.graph_module = graph_module
        self.graph = graph_module.graph
        self.graph_edited = False
        self.body_edited = False
        self.result_changed = False
        self._visit: Visit | None = None
        self._proxies: dict[Node, Any] = {}
        self._stale: set[Node] = set()
        self._forced: set[Node] = set()
        self._changed: set[Node] = set()
        self._dead: list[Node] = []
        self._unused: set[Node] = set()
        self._has_many_inputs: dict[Node, bool] = {}
        self._waiting: dict[Node, list[_Replaced]] = {}  # by user: the inputs that it still holds
        self._constants: dict[int, tuple[Any, Node]] = {}
        self._numbers: dict[str, int] = {}  # by stem: the first that may be free

    @property
    def edited(self) -> bool:
        """This graph or one inside it is no longer what it was."""
        return self.graph_edited or self.body_edited

    @property
    def node(self) -> Node:
        """The node whose hook is running."""
        return self._current().node

    # --- the walk -----------------------------------------------------------------------------------------------

    def take_inputs(self, inputs: Sequence[Any], outer: Walk | None) -> None:
        """Give the placeholders the values they are called with, where these are not what was recorded."""
        placeholders = self.graph.find_nodes(op="placeholder")
        if len(inputs) != len(placeholders):
            raise ExportPassBaseError(
                f"a graph with {len(placeholders)} inputs was given {len(inputs)} values: "
                f"{', '.join(node.name for node in placeholders) or 'it takes none'}"
            )
        for node, value in zip(placeholders, inputs, strict=True):
            if isinstance(value, ProxyValue):
                if has_value(node) and not (outer is not None and value.node in outer._changed):
                    continue  # bodies have symbols of their own: only a real change counts
                value = value.data
            self._set_input(node, value)

    def _set_input(self, node: Node, value: Any) -> None:
        if value is None or value is value_of(node):
            return
        if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
            value = self.run.mode.from_tensor(value, static_shapes=True)
        if has_value(node) and same_value(value_of(node), value):
            return
        set_value(node, value)
        self._value_changed(node)

    def visit_all(self, hooks: frozenset[str]) -> None:
        """Ask the hooks about every node that they want to see, and compute what became stale."""
        run = self.run
        if run.all_stale:
            self._stale.update(run.baseline.stale(self.graph) if run.baseline else self.graph.nodes)
        stale, forced = self._stale, self._forced
        for node in list(self.graph.nodes):
            if node._erased:
                continue
            if node in self._waiting:
                self._give_new_inputs(node)
            hook = hook_of(node) if hooks or forced else ""
            if hook in hooks or node in forced:
                self._ask(node, hook)
            elif node in stale or "val" not in node.meta:
                self._bring_up_to_date(node)
        self._remove_dead_code()

    def _ask(self, node: Node, hook: str) -> None:
        args = map_arg(node.args, self.proxy)
        kwargs = map_arg(node.kwargs, self.proxy) if node.kwargs else {}
        if not node.users:
            self._unused.add(node)
        visit = Visit(node, args, kwargs, NodeMetadata(node.meta))
        self._visit = visit
        try:
            result = ask_hook(self.run.owner, hook, visit)
        except Exception as error:
            _note_node(error, node)
            raise
        finally:
            self._visit = None
        self._settle(visit, result)

    def body_done(self, body: Walk) -> None:
        """A graph inside the visited node has been walked."""
        self.body_edited |= body.edited
        if body.result_changed:
            self._stale.add(self._current().node)

    # --- values -------------------------------------------------------------------------------------------------

    def proxy(self, node: Node) -> Any:
        """What the hooks see in place of ``node``: a ProxyValue; a graph module for a ``get_attr`` of one."""
        found = self._proxies.get(node, _UNSET)
        if found is _UNSET:
            found = self._proxies[node] = self._new_proxy(node)
        return found

    def _new_proxy(self, node: Node) -> Any:
        if node.op != "get_attr":
            return ProxyValue(value_of(node), node)
        found = _attribute(node)
        return found if isinstance(found, torch.nn.Module) else ProxyValue(found, node)

    def is_changed(self, value: Any) -> bool:
        """Is a value not what it was before the pass?"""
        return isinstance(value, ProxyValue) and value.node in self._changed

    def _value_changed(self, node: Node) -> None:
        self._changed.add(node)
        self._stale.update(node.users)
        if isinstance(proxy := self._proxies.get(node), ProxyValue) and node.op != "get_attr":
            proxy.data = value_of(node)

    def _bring_up_to_date(self, node: Node) -> None:
        if node.op in ("placeholder", "call_module", "call_method") and node not in self._stale:
            return
        if node in self._stale:
            self._stale.discard(node)
        elif not isinstance(node.target, OpOverload) or has_value(node) or not _inputs_known(node):
            return  # a graph without values stays one
        if node.op == "output":
            self.result_changed = True
            if not has_value(node):
                return
        if node.op == "placeholder" or not (has_value(node) or _inputs_known(node)):
            return
        if refresh_value(node, self.run.mode):
            self._value_changed(node)

    # --- what the hooks make ------------------------------------------------------------------------------------

    def emit(
        self, op: str, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], meta: NodeMetadata
    ) -> ProxyValue:
        """What ``super().call_operator`` and its like do: keep the visited node if this is it, or make one."""
        visit = self._current()
        node = visit.node
        if op == "output":
            return self._emit_output(visit, args, meta)
        if op == node.op and (target is node.target or target == node.target):
            if op in ("placeholder", "get_attr"):  # asked twice, it is still the same input
                return self._keep(visit, meta)
            if not visit.reused and _same(args, visit.args) and _same(kwargs, visit.kwargs):
                return self._keep(visit, meta)
        return self._create(visit, op, target, args, kwargs, meta)

    def _keep(self, visit: Visit, meta: NodeMetadata) -> ProxyValue:
        node = visit.node
        if not visit.reused:
            visit.reused, visit.last = True, None
        if meta is not visit.meta or meta._own is not None:
            _take_entries(node, meta)
        if node in self._stale or "val" not in node.meta:
            self._bring_up_to_date(node)
        kept: ProxyValue = self.proxy(node)
        return kept

    def _emit_output(self, visit: Visit, args: tuple[Any, ...], meta: NodeMetadata) -> ProxyValue:
        node = visit.node
        if node.op != "output":
            raise ExportPassBaseError(f"output() was called while {node.name!r} was being visited", node=node)
        self._keep(visit, meta)
        if not _same(args, visit.args):
            node.args = tuple(self.to_graph(arg) for arg in args)
            self.graph_edited = True
            self.result_changed = True
        return ProxyValue(args[0], node)

    def emit_placeholder(self, name: str, value: Any, meta: NodeMetadata) -> ProxyValue:
        """Keep the visited placeholder, with this value; or make another one before it."""
        visit = self._current()
        if visit.node.op != "placeholder":
            raise ExportPassBaseError(
                f"placeholder({name!r}) was called while {visit.node.name!r} was being visited; add inputs in the "
                f"placeholder hook, or with fxpasses.programs",
                node=visit.node,
            )
        kept = self.emit("placeholder", name, (), {}, meta)
        if value is not kept.data:
            self._set_input(kept.node, value)
        return kept

    def _create(
        self, visit: Visit, op: str, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], meta: NodeMetadata
    ) -> ProxyValue:
        new_args = tuple(self.to_graph(arg) for arg in args)
        new_kwargs = {name: self.to_graph(arg) for name, arg in kwargs.items()}
        node = self.place(op, target, new_args, new_kwargs, _name_for(self.graph, target))
        self._describe(node, visit.node, meta)
        return ProxyValue(value_of(node), node)

    def place(self, op: str, target: Any, args: Any, kwargs: Any, name: str | None = None) -> Node:
        """Make a node beside the visited one: before it, or after it once it has been kept."""
        visit = self._current()
        with self._insertion_point(visit, op):
            node = self.graph.create_node(op, target, args, kwargs, name)
        visit.made[node] = None
        if visit.reused or visit.node.op == "placeholder":
            visit.last = node if op != "placeholder" else visit.last
        self.graph_edited = True
        return node

    def _insertion_point(self, visit: Visit, op: str) -> Any:
        node = visit.node
        if op == "placeholder" and node.op == "placeholder":
            return self.graph.inserting_after(node) if visit.reused else self.graph.inserting_before(node)
        if visit.last is not None:
            return self.graph.inserting_after(visit.last)
        if node.op == "placeholder":
            return self.graph.inserting_after(self.graph.find_nodes(op="placeholder")[-1])
        if visit.reused and node.op != "output":
            return self.graph.inserting_after(node)
        return self.graph.inserting_before(node)

    def _describe(self, node: Node, origin: Node, meta: NodeMetadata) -> None:
        """Give a new node its metadata: the entries handed on, where it comes from, and its own value."""
        node.meta.update(meta._entries())
        for key in (*VALUE_KEYS, "from_node"):
            node.meta.pop(key, None)
        drop_stale_entries(node)
        for key in TRACE_KEYS:
            if node.meta.get(key) is None and origin.meta.get(key) is not None:
                node.meta[key] = origin.meta[key]
        if origin.op != "output":
            node.meta["from_node"] = [source_of(origin)]
        self._give_value(node, origin)

    def _give_value(self, node: Node, origin: Node) -> None:
        for each in node.all_input_nodes:
            if each.op == "get_attr" and not has_value(each) and isinstance(_attribute(each), torch.Tensor):
                give_value(each, self.run.mode)
        if _inputs_known(node):
            give_value(node, self.run.mode, bindings_of=origin)
            describe_like(node, (origin, *node.all_input_nodes))

    def to_graph(self, value: Any) -> Any:
        """What stands in a node's arguments for what a hook handed on."""
        if isinstance(value, ProxyValue | Proxy):
            return value.node
        if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
            parts = [self.to_graph(part) for part in value]
            if hasattr(value, "_fields"):
                return type(value)(*parts)
            return tuple(parts) if isinstance(value, tuple) else parts
        if isinstance(value, dict):
            return {key: self.to_graph(part) for key, part in value.items()}
        if isinstance(value, slice):
            return slice(self.to_graph(value.start), self.to_graph(value.stop), self.to_graph(value.step))
        if isinstance(value, torch.Tensor):
            return self._constant(value)
        if isinstance(value, torch.nn.Module):
            return self._module(value)
        if isinstance(value, _SYMBOLIC):
            return self._number(value)
        return value

    def _number(self, value: Any) -> Any:
        if (constant := value.node.constant) is not None:
            return constant
        raise ExportPassBaseError(
            f"the symbolic value {value} is no node of the graph; hand on the ProxyValue that it came from instead of "
            f"its .data, or read it with call_operator(torch.ops.aten.sym_size.int, ...)",
            node=self._current().node,
        )

    def _constant(self, tensor: torch.Tensor) -> Node:
        if isinstance(tensor, FakeTensor):
            constant = getattr(tensor, "constant", None)
            if constant is None:
                raise ExportPassBaseError(
                    f"a fake tensor of shape {tuple(tensor.shape)} cannot become part of the graph; hand on the "
                    f"ProxyValue that it came from instead of its .data",
                    node=self._current().node,
                )
            tensor = constant
        return self._attribute_node(tensor, "_tensor_constant")

    def _module(self, module: torch.nn.Module) -> Node:
        for each in self.graph.find_nodes(op="get_attr"):
            if _attribute(each) is module and self._stands_before(each):
                found: Node = each
                return found
        stem = "lowered_module" if hasattr(module, "backend_id") else "submodule"
        return self._attribute_node(module, f"{stem}_")

    def _stands_before(self, node: Node) -> bool:
        return node < self._current().node

    def _attribute_node(self, value: Any, stem: str) -> Node:
        known = self._constants.get(id(value))
        if known is not None and not known[1]._erased and self._stands_before(known[1]):
            return known[1]
        target = self._store(value, stem)
        visit = self._current()
        node = self.place("get_attr", target, (), {})
        origin = visit.node
        node.meta.update({key: origin.meta[key] for key in TRACE_KEYS if key in origin.meta})
        if isinstance(value, torch.Tensor):
            node.meta["from_node"] = [source_of(origin)]
            give_value(node, self.run.mode)
            describe_like(node, (origin, *origin.all_input_nodes))
            self.run.owner.on_attr(ProxyValue(value, node))
        self._constants[id(value)] = (value, node)
        return node

    def _store(self, value: Any, stem: str) -> str:
        """Hang a value on the graph module under a free name."""
        number = self._numbers.get(stem, 0)
        while hasattr(self.graph_module, f"{stem}{number}"):
            number += 1
        self._numbers[stem] = number + 1
        name = f"{stem}{number}"
        if isinstance(value, torch.nn.Module):
            self.graph_module.add_submodule(name, value)
        elif isinstance(value, torch.nn.Parameter):
            self.graph_module.register_parameter(name, value)
        else:
            self.graph_module.register_buffer(name, value, persistent=False)
        return name

    # --- what a hook answered -----------------------------------------------------------------------------------

    def _settle(self, visit: Visit, result: Any) -> None:
        node = visit.node
        self._dead.extend(visit.made)
        if node.op == "output":
            return
        own = self._proxies.get(node)
        if result is own and own is not None and (visit.reused or isinstance(own, torch.nn.Module)):
            return
        if isinstance(result, ProxyValue) and result.node is node:
            return
        if result is None and not visit.reused and node.users:
            raise ExportPassBaseError(
                f"the hook for node {node.name!r} returned None, but {len(node.users)} node(s) use it; return what "
                f"super() gave, or the value that takes its place",
                node=node,
                pass_name=type(self.run.owner).__name__,
            )
        heir = None
        if isinstance(result, ProxyValue) and result.node in visit.made and _alike(result.node, node):
            heir = result.node
        if result is not None:
            self._replace(visit, result, heir)
        if visit.reused:
            self._dead.append(node)
        else:
            self._drop_unused(node, heir)

    def _replace(self, visit: Visit, result: Any, heir: Node | None) -> None:
        """Let the users of the visited node use ``result`` instead, now or when the walk gets to them."""
        node = visit.node
        self._visit = visit  # constants in the result become nodes beside the visited one
        try:
            by = self.to_graph(result)
        finally:
            self._visit = None
        changed = not (isinstance(by, Node) and self._is_as_before(node, by))
        for user in list(node.users):
            if user in visit.made:
                continue
            if self._takes_many(user):
                self._waiting.setdefault(user, []).append(_Replaced(node, by, heir, visit.reused))
            else:
                _substitute(user, {node: by})
            self.graph_edited = True
            if changed:
                self._stale.add(user)
            if not isinstance(by, Node) and hook_of(user) == "call_getitem":
                self._forced.add(user)
        if changed and isinstance(by, Node):
            self._changed.add(by)
        if isinstance(result, ProxyValue):
            self._proxies.setdefault(result.node, result)

    def _is_as_before(self, node: Node, by: Node) -> bool:
        if not has_value(node) or not has_value(by):
            return not has_value(node) and not has_value(by)
        return same_value(value_of(node), value_of(by))

    def _takes_many(self, user: Node) -> bool:
        found = self._has_many_inputs.get(user)
        if found is None:
            found = self._has_many_inputs[user] = len(user.all_input_nodes) >= _MANY_INPUTS
        return found

    def _give_new_inputs(self, user: Node) -> None:
        """Give a node what stands for its inputs now, all at once, and drop what nobody else holds."""
        replaced = self._waiting.pop(user)
        _substitute(user, {each.node: each.by for each in replaced})
        for each in replaced:
            if not each.is_kept:
                self._drop_unused(each.node, each.heir)

    def _drop_unused(self, node: Node, heir: Node | None) -> None:
        """Erase a replaced node that nobody holds; the same call in another form takes its name."""
        if node.users:
            return
        self._dead.extend(node.all_input_nodes)
        self.graph.erase_node(node)
        self.graph_edited = True
        if heir is not None:
            heir.name = node.name  # less changes in text and signature

    def _remove_dead_code(self) -> None:
        """Erase what the rewrite left without users; code that was dead before stays."""
        from fxpasses.effects.analysis import is_impure  # effects looks at whole graphs; no need to load it for a no-op

        waiting = list(self._dead)
        while waiting:
            node = waiting.pop()
            if node._erased or node.users or node in self._unused or node.op in ("placeholder", "output"):
                continue
            if is_impure(node):
                continue
            waiting.extend(node.all_input_nodes)
            self.graph.erase_node(node)
            self.graph_edited = True

    def _current(self) -> Visit:
        if self._visit is None:
            raise ExportPassBaseError(f"{type(self.run.owner).__name__}: no node is being visited")
        return self._visit


class ReplayTracer(GraphAppendingTracer):
    """The tracer that subclasses reach for as ``self.tracer``: it makes nodes beside the visited one."""

    def __init__(self, walk: Walk) -> None:
        super().__init__(walk.graph)
        self.walk = walk
        self.root = walk.graph_module

    @property
    def fake_tensor_mode(self) -> FakeTensorMode:
        """The mode of the program."""
        return self.walk.run.mode

    def create_arg(self, a: Any) -> Any:
        """What stands in a node's arguments for ``a``."""
        return self.walk.to_graph(a)

    def create_node(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any = None,
    ) -> Node:
        """Make a node beside the visited one."""
        return self.walk.place(kind, target, args, kwargs, name)

    def set_metadata(self, node: Node, value: Any) -> None:
        """Record the value of a node that was made by hand."""
        set_value(node, value)


# --- questions ------------------------------------------------------------------------------------------------------


def _same(left: Any, right: Any) -> bool:
    """Do two arguments mean the same? Lists and tuples of the same things do."""
    if left is right:
        return True
    if isinstance(left, ProxyValue) or isinstance(right, ProxyValue):
        return isinstance(left, ProxyValue) and isinstance(right, ProxyValue) and left.node is right.node
    if isinstance(left, list | tuple):
        if not isinstance(right, list | tuple) or len(left) != len(right):
            return False
        return all(map(_same, left, right))
    if isinstance(left, Mapping):
        return (
            isinstance(right, Mapping) and left.keys() == right.keys() and all(_same(left[k], right[k]) for k in left)
        )
    if type(left) is not type(right) or isinstance(left, torch.Tensor | torch.nn.Module | Node | Proxy | slice):
        return type(left) is slice and type(right) is slice and _same(_parts(left), _parts(right))
    if isinstance(left, _SYMBOLIC):
        return same_value(left, right)
    return bool(left == right)


def _substitute(user: Node, by: Mapping[Node, Any]) -> None:
    user.args = map_arg(user.args, lambda each: by.get(each, each))
    if user.kwargs:
        user.kwargs = map_arg(user.kwargs, lambda each: by.get(each, each))


def _parts(found: slice) -> tuple[Any, Any, Any]:
    return found.start, found.stop, found.step


def _inputs_known(node: Node) -> bool:
    return all(
        has_value(each) or (each.op == "get_attr" and isinstance(_attribute(each), torch.nn.Module))
        for each in node.all_input_nodes
    )


def _attribute(node: Node) -> Any:
    found: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        found = getattr(found, part, None)
    return found


def _name_for(graph: Graph, target: Any) -> str | None:
    """``add``, as export names it, instead of ``add_tensor``."""
    packet = getattr(target, "overloadpacket", None) or getattr(getattr(target, "_op", None), "overloadpacket", None)
    return None if packet is None else str(packet.__name__)


def _alike(new: Node, old: Node) -> bool:
    packet = getattr(new.target, "overloadpacket", new.target)
    return new.op == old.op and packet is getattr(old.target, "overloadpacket", old.target)


def _take_entries(node: Node, meta: NodeMetadata) -> None:
    """Bring the user's own entries of a kept node in line with the metadata that was handed on."""
    entries = meta._entries()
    kept = {*VALUE_KEYS, *TRACE_KEYS, "from_node", *(key.name for key in registered_keys() if key.depends_on_value)}
    for key in [key for key in node.meta if key not in entries and key not in kept]:
        del node.meta[key]
    for key, entry in entries.items():
        if key not in VALUE_KEYS and key != "from_node":
            node.meta[key] = entry


def _note_node(error: Exception, node: Node) -> None:
    """Tell whoever reports the error which node was being visited, if nobody has yet."""
    if getattr(error, "node", None) is None:
        try:
            error.node = node  # type: ignore[attr-defined]  # read by whoever wraps the error
        except AttributeError:  # exceptions with slots cannot carry it
            return
