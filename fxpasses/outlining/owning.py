"""Give a module its own bodies of control flow before they are edited: ``ep.module()`` shares them with its program."""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakKeyDictionary, ref

import torch
from torch.fx import GraphModule
from torch.fx._lazy_graph_module import _LazyGraphModule

from fxpasses.outlining.copying import copy_graph_module
from fxpasses.outlining.lazy_modules import LazyGraphModule
from fxpasses.values.fake_modes import copy_regions

__all__ = ["own_bodies"]

_HOLDERS: WeakKeyDictionary[GraphModule, ref[GraphModule]] = WeakKeyDictionary()  # a body knows no parent
_PLAIN = (GraphModule, _LazyGraphModule, LazyGraphModule)


def own_bodies(root: GraphModule) -> None:
    """Put a copy in the place of each body, here and further inside, that another module may hold as well.

    Parameters, buffers and metadata are shared, names stay, and a body that is used twice stays one body. What was
    copied is noted, and not copied again for the same holder. Linear in the nodes of what is copied.
    """
    owned: dict[GraphModule, GraphModule] = {}
    seen: set[torch.nn.Module] = set()
    waiting: list[torch.nn.Module] = [root]
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        if isinstance(module, GraphModule):
            _own(module, owned)
        waiting.extend(module.children())


def _own(holder: GraphModule, owned: dict[GraphModule, GraphModule]) -> None:
    for parent, name, body in _bodies(holder):
        if body not in owned:
            is_own = (known := _HOLDERS.get(body)) is not None and known() is holder
            own = body if is_own else _copy(body)
            _HOLDERS[own] = ref(holder)
            owned[body] = owned[own] = own
        if owned[body] is not body:
            parent._modules[name] = owned[body]


def _bodies(holder: GraphModule) -> Iterator[tuple[torch.nn.Module, str, GraphModule]]:
    """What the graph refers to that is a graph itself; modules that are called are no bodies."""
    for target in dict.fromkeys(str(node.target) for node in holder.graph.find_nodes(op="get_attr")):
        path, _, name = target.rpartition(".")
        parent: torch.nn.Module | None = holder
        for part in path.split(".") if path else ():
            parent = parent._modules.get(part) if parent is not None else None
        body = parent._modules.get(name) if parent is not None else None
        if parent is not None and isinstance(body, GraphModule) and _is_plain(body):
            yield parent, name, body


def _is_plain(body: GraphModule) -> bool:
    """Whether it is no class of somebody's own, which a copy would lose."""
    kind = next(each for each in type(body).__mro__ if each.__qualname__.rpartition(".")[2] != "GraphModuleImpl")
    return kind in _PLAIN


def _copy(body: GraphModule) -> GraphModule:
    copied, _nodes = copy_graph_module(body, inside=False)
    copied.meta.update(body.meta)
    for name, value in vars(body).items():
        vars(copied).setdefault(name, value)
    copy_regions(body.graph, copied.graph)
    return copied
