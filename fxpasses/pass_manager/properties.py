"""What is true of a graph between passes: properties that passes need, provide and destroy.

A pass declares ``needs``, ``provides`` and ``destroys``; :class:`~fxpasses.PassManager` refuses a pipeline in which a
pass needs what an earlier one destroyed or nobody provides, before anything runs. A property with a check is not
believed but established: on the input when the first pass needs it, and on the result of a pass that provides it.

>>> FUNCTIONAL
Property('functional')
>>> decomposed_to(["aten.add.Tensor"]) == decomposed_to({"aten.add.Tensor"})
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs
from torch.fx import GraphModule

__all__ = [
    "FUNCTIONAL",
    "NORMALIZED_ARGS",
    "ON_DEVICES",
    "SHAPES_KNOWN",
    "Property",
    "decomposed_to",
]


@attrs.frozen
class Property:
    """Something that holds for a graph, or does not.

    Args:
        name: What it is called in messages and compared by.
        options: What else tells it apart from others of that name, such as a set of ops.
        check: Raises when the property does not hold; None if no look at the graph could tell.
    """

    name: str
    options: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    check: Callable[[GraphModule], Any] | None = attrs.field(default=None, eq=False, repr=False, kw_only=True)

    def __repr__(self) -> str:
        return f"Property({self.name!r})"

    def __str__(self) -> str:
        return self.name


def decomposed_to(ops: Iterable[Any]) -> Property:
    """The property that a graph calls nothing but ``ops`` (ops or their names, as ``only_ops`` takes them)."""
    names = tuple(sorted({str(op) for op in ops}))
    wanted = list(ops)

    def check(graph_module: GraphModule) -> None:
        from fxpasses.checks import only_ops

        only_ops(wanted)(graph_module)

    shown = ", ".join(names[:3]) + (f", ... {len(names)} ops" if len(names) > 3 else "")
    return Property(f"decomposed_to({shown})", options=names, check=check)


def _functional(graph_module: GraphModule) -> None:
    from fxpasses.checks import is_functional

    is_functional(graph_module)


def _shapes_known(graph_module: GraphModule) -> None:
    from fxpasses.checks import metadata_is_complete

    metadata_is_complete(graph_module)


FUNCTIONAL = Property("functional", check=_functional)
"""No node writes to a value that another node reads."""

SHAPES_KNOWN = Property("shapes_known", check=_shapes_known)
"""Every node that computes a value has it recorded in ``node.meta["val"]``."""

NORMALIZED_ARGS = Property("normalized_args")
"""Every call gives its arguments as its schema does: by position, defaults filled in."""

ON_DEVICES = Property("on_devices")
"""Every node has a device, and copies stand where values cross from one to another."""
