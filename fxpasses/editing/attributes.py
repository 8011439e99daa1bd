"""Find and install the state of modules by qualified name: parameters, buffers, submodules, plain constants.

``torch.fx`` turns every tensor that it copies into a persistent buffer; here each keeps the kind it had.
"""

from __future__ import annotations

from typing import Any, Literal

import attrs
import torch

from fxpasses.errors import GraphError

__all__ = ["Attribute", "find_attribute", "install_attribute", "state_of"]

Kind = Literal["parameter", "buffer", "module", "constant"]


@attrs.frozen(eq=False)
class Attribute:
    """What a qualified name stands for.

    Args:
        value: The parameter, buffer, module or constant itself; never a copy.
        kind: How its module holds it.
        persistent: For buffers, whether ``state_dict`` lists it.
    """

    value: Any
    kind: Kind
    persistent: bool = True


def find_attribute(root: torch.nn.Module, name: str, *, user: str = "") -> Attribute:
    """Look an attribute up.

    Args:
        root: Where the name starts.
        name: A dotted name, such as ``"layers.0.weight"``.
        user: The node that asks, for the message.

    Raises:
        GraphError: There is no such attribute.
    """
    *path, field = name.split(".")
    module: Any = root
    for step in path:
        module = module._modules.get(step) if isinstance(module, torch.nn.Module) else getattr(module, step, None)
        if module is None:
            raise _missing(root, name, user)
    if not isinstance(module, torch.nn.Module):
        if not hasattr(module, field):
            raise _missing(root, name, user)
        return Attribute(getattr(module, field), "constant")
    if (parameter := module._parameters.get(field)) is not None:
        return Attribute(parameter, "parameter")
    if field in module._buffers:
        return Attribute(module._buffers[field], "buffer", field not in module._non_persistent_buffers_set)
    if (child := module._modules.get(field)) is not None:
        return Attribute(child, "module")
    if not hasattr(module, field):
        raise _missing(root, name, user)
    return Attribute(getattr(module, field), "constant")


def install_attribute(root: torch.nn.Module, name: str, attribute: Attribute) -> None:
    """Put an attribute under a qualified name, in empty modules made on the way.

    An attribute that is there already, as part of a module installed before, is left alone.

    Raises:
        GraphError: The name is taken by something else.
    """
    *path, field = name.split(".")
    module = root
    for step in path:
        child = module._modules.get(step)
        if child is None:
            child = torch.nn.Module()
            child.training = root.training
            module.add_module(step, child)
        module = child
    if hasattr(module, field):
        if getattr(module, field) is not attribute.value:
            raise GraphError(f"cannot put {name!r} into {type(root).__name__}: the name is taken by another value")
        return
    if attribute.kind == "parameter":
        module.register_parameter(field, attribute.value)
    elif attribute.kind == "buffer":
        module.register_buffer(field, attribute.value, persistent=attribute.persistent)
    elif attribute.kind == "module":
        module.add_module(field, attribute.value)
    else:
        setattr(module, field, attribute.value)


def state_of(root: torch.nn.Module) -> dict[str, Attribute]:
    """All parameters and buffers by name, tied ones under each of their names."""
    found: dict[str, Attribute] = {}
    for prefix, module in root.named_modules(remove_duplicate=False):
        start = f"{prefix}." if prefix else ""
        for field, parameter in module._parameters.items():
            if parameter is not None:
                found[start + field] = Attribute(parameter, "parameter")
        for field, buffer in module._buffers.items():
            if buffer is not None:
                persistent = field not in module._non_persistent_buffers_set
                found[start + field] = Attribute(buffer, "buffer", persistent)
    return found


def _missing(root: torch.nn.Module, name: str, user: str) -> GraphError:
    who = f"node {user!r} asks for" if user else "there is no"
    return GraphError(
        f"{who} attribute {name!r}, which {type(root).__name__} does not have; "
        "register it on the module, or let the node point to an attribute that exists"
    )
