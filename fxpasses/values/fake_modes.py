"""Which FakeTensorMode a program lives in: one for all its values, found, remembered, repaired, or refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._higher_order_ops.wrap import wrap_with_autocast
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_symbols

from fxpasses.errors import FakeValueError
from fxpasses.metadata import current_pass, value_of
from fxpasses.values.recorded_values import has_value, value_leaves

__all__ = [
    "ambient_modes_off",
    "copy_regions",
    "enclosing_autocasts",
    "fake_mode_of",
    "fake_of",
    "is_foreign",
    "nested_graph_modules",
    "obtain_fake_mode",
    "refake",
    "unify_fake_modes",
]

_MODE_KEY = "fxpasses.fake_mode"


_REGIONS: WeakKeyDictionary[Graph, tuple[tuple[Any, ...], ...]] = WeakKeyDictionary()  # a body knows no parent


def nested_graph_modules(graph_module: GraphModule) -> Iterator[GraphModule]:
    """The module itself, then every graph module inside it, each once, in the order of ``named_modules``.

    Bodies of ``cond``, ``map``, ``scan`` and ``while_loop`` are submodules, and so are partitions.
    """
    seen: set[int] = set()
    for module in graph_module.modules():
        if isinstance(module, GraphModule) and id(module.graph) not in seen:
            seen.add(id(module.graph))
            _note_regions(module)
            yield module


def enclosing_autocasts(graph: Graph) -> tuple[tuple[Any, ...], ...]:
    """The autocast regions that the whole graph runs in, as far as somebody has walked there from its root."""
    return _REGIONS.get(graph, ())


def copy_regions(source: Graph, target: Graph) -> None:
    """Note for a copy of a graph in which autocast regions it runs."""
    if source in _REGIONS:
        _REGIONS[target] = _REGIONS[source]


def _note_regions(graph_module: GraphModule) -> None:
    """A graph does not know who calls it; the walk from the root does, and notes which bodies run under autocast."""
    here = enclosing_autocasts(graph_module.graph)
    bodies = {node: body for node in graph_module.graph.find_nodes(op="get_attr") if (body := _body(node)) is not None}
    for node, body in bodies.items():
        for user in node.users:
            inside = (*here, tuple(user.args[:4])) if user.target is wrap_with_autocast else here
            if inside:
                _REGIONS[body.graph] = inside


def _body(node: Node) -> GraphModule | None:
    found = getattr(node.graph.owning_module, str(node.target), None)
    return found if isinstance(found, GraphModule) else None


class _RememberedMode:
    """Holds a mode in ``graph_module.meta``; copies of the module share it, and it is left out of pickles."""

    def __init__(self, mode: FakeTensorMode | None = None) -> None:
        self.mode = mode

    def __deepcopy__(self, memo: dict[int, Any]) -> _RememberedMode:
        return self

    def __reduce__(self) -> tuple[type[_RememberedMode], tuple[()]]:
        return _RememberedMode, ()


def fake_mode_of(root: GraphModule | Graph | ExportedProgram) -> FakeTensorMode | None:
    """The mode that the fake values of a program belong to; None when it has none.

    Placeholders are asked first, then the other nodes, then the graphs nested inside, and at last the mode that
    :func:`obtain_fake_mode` has remembered.
    """
    graph, graph_module = _graph_and_module(root)
    other: FakeTensorMode | None = None
    for node in graph.nodes:
        if other is not None and node.op not in ("placeholder", "get_attr"):
            return other
        if (mode := _mode_of_value(value_of(node))) is not None:
            if node.op == "placeholder":
                return mode
            other = other or mode
    if other is not None:
        return other
    if graph_module is None:
        return None
    for nested in nested_graph_modules(graph_module):
        if nested.graph is graph:
            continue
        for node in nested.graph.nodes:
            if (mode := _mode_of_value(value_of(node))) is not None:
                return mode
    return _remembered_mode(graph_module)


def obtain_fake_mode(root: GraphModule | Graph | ExportedProgram) -> FakeTensorMode:
    """The mode of a program; a graph that has none gets one, which is remembered with its module."""
    mode = fake_mode_of(root)
    if mode is not None:
        return mode
    _, graph_module = _graph_and_module(root)
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    if graph_module is not None and isinstance(getattr(graph_module, "meta", None), dict):
        graph_module.meta[_MODE_KEY] = _RememberedMode(mode)
    return mode


def unify_fake_modes(root: GraphModule | Graph | ExportedProgram) -> FakeTensorMode | None:
    """Bring all fake values of a program, nested graphs included, into one mode.

    Values with fixed shapes are made again in the mode that the placeholders use. Symbols cannot move between shape
    environments, so if some value has symbols, its mode is the one that stays.

    Returns:
        The one mode, None when the program has no fake values.

    Raises:
        FakeValueError: Values with symbols belong to two different shape environments.
    """
    graph, graph_module = _graph_and_module(root)
    graphs = [graph] if graph_module is None else [nested.graph for nested in nested_graph_modules(graph_module)]
    nodes = [node for each in graphs for node in each.nodes if has_value(node)]
    owner: Node | None = None
    mode: FakeTensorMode | None = None
    for node in nodes:
        for leaf in value_leaves(value_of(node)):
            if not isinstance(leaf, FakeTensor):
                continue
            if not _symbols(leaf):
                mode = mode or leaf.fake_mode
            elif owner is None:
                owner, mode = node, leaf.fake_mode
            elif mode is None or leaf.fake_mode.shape_env is not mode.shape_env:
                raise FakeValueError(
                    f"the symbolic shapes of {owner.name!r} and {node.name!r} belong to two shape environments, which "
                    "cannot be merged; export both parts of the graph in one go, or make the shapes of one of them "
                    "static",
                    node=node,
                    pass_name=current_pass(),
                )
    if mode is None:
        return fake_mode_of(root)
    for node in nodes:
        for key in ("val", "example_value"):
            if key in node.meta and is_foreign(node.meta[key], mode):
                node.meta[key] = refake(node.meta[key], mode, node)
    return mode


def fake_of(tensor: torch.Tensor, mode: FakeTensorMode, node: Node) -> torch.Tensor:
    """The fake of a real tensor (or of another mode's fake) in ``mode``, static in shape; no data is copied.

    Args:
        tensor: Any tensor; parameters give fake parameters.
        mode: The mode of the program.
        node: The node it is for, for messages.
    """
    if isinstance(tensor, FakeTensor):
        found: torch.Tensor = refake(tensor, mode, node)
        return found
    with ambient_modes_off():
        return mode.from_tensor(tensor, static_shapes=True)


def _graph_and_module(root: GraphModule | Graph | ExportedProgram) -> tuple[Graph, GraphModule | None]:
    if isinstance(root, Graph):
        return root, root.owning_module
    if isinstance(root, ExportedProgram):
        return root.graph_module.graph, root.graph_module
    return root.graph, root


def _remembered_mode(graph_module: GraphModule) -> FakeTensorMode | None:
    holder = getattr(graph_module, "meta", {}).get(_MODE_KEY)
    return holder.mode if isinstance(holder, _RememberedMode) else None


def _mode_of_value(value: Any) -> FakeTensorMode | None:
    if value is None:
        return None
    for leaf in value_leaves(value):
        if isinstance(leaf, FakeTensor):
            return leaf.fake_mode
    return None


def _symbols(tensor: torch.Tensor) -> bool:
    return any(isinstance(size, torch.SymInt) for size in tensor.shape) and bool(free_symbols(tensor))


def is_foreign(value: Any, mode: FakeTensorMode) -> bool:
    """Whether a fake tensor in ``value`` belongs to another mode."""
    return any(isinstance(leaf, FakeTensor) and leaf.fake_mode is not mode for leaf in value_leaves(value))


def refake(value: Any, mode: FakeTensorMode, node: Node) -> Any:
    """``value`` with its fakes made again in ``mode``; refused for symbols of another shape environment."""
    if isinstance(value, (list, tuple)):
        parts = [refake(part, mode, node) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, Mapping):
        return {key: refake(part, mode, node) for key, part in value.items()}
    if not isinstance(value, FakeTensor) or value.fake_mode is mode:
        return value
    if _symbols(value) and value.fake_mode.shape_env is not mode.shape_env:
        raise FakeValueError(
            f"the symbolic shape of {node.name!r} belongs to another shape environment than the rest of the graph; "
            "export both parts in one go, or make its shape static",
            node=node,
            pass_name=current_pass(),
        )
    with mode, torch.no_grad():
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=value.requires_grad)
    return made.requires_grad_(value.requires_grad)


@contextlib.contextmanager
def ambient_modes_off() -> Iterator[None]:
    """Out of the modes that the caller may be in, such as one that traces."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        yield
