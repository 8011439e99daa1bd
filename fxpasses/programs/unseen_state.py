"""Tensors that a model reaches through plain objects: torch.export really writes to them while it runs the model.

A cache object that a module holds, a list of tensors, a dataclass: export puts fake tensors in the place of parameters
and buffers, but not in there. What ``forward`` writes to such a tensor is therefore written for real, also where the
tensor is a buffer that is reached in a second way (transformers' static caches are), or a parameter. Capturing a model
must not change it, so these tensors are copied before and put back after.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from fxpasses.journal.shallow import tensor_state

__all__ = ["unchanged", "unseen_tensors"]

_REGISTERED = frozenset({"_parameters", "_buffers", "_modules"})
_FLAT_WEIGHTS = "_flat_weights"  # of LSTM, GRU, RNN: what is set as a parameter is set in there as well, fakes too
_OPAQUE = (str, bytes, int, float, type, types.ModuleType, types.FunctionType, types.MethodType)


def unseen_tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    """The tensors in plain attributes of a model's modules, in containers and objects of any nesting; each once.

    Closures and globals are not looked into. Linear in what the attributes hold.
    """
    modules = list(model.modules())
    seen = {id(module) for module in modules}
    waiting = [value for module in reversed(modules) for value in _plain_attributes(module)]
    found = []
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, _OPAQUE):
            continue
        seen.add(id(value))
        if isinstance(value, FakeTensor):
            continue
        if isinstance(value, torch.Tensor):
            found.append(value)
        else:
            waiting.extend(_held_by(value))
    return found


def _plain_attributes(module: torch.nn.Module) -> list[Any]:
    seen_by_export = _REGISTERED | {_FLAT_WEIGHTS} if isinstance(module, torch.nn.RNNBase) else _REGISTERED
    return [value for name, value in vars(module).items() if name not in seen_by_export]


def _held_by(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if type(value).__module__.startswith("torch.") and not isinstance(value, torch.nn.Module):
        return []  # graphs and programs: what they hold is not written by a forward
    slots = [name for kind in type(value).__mro__ for name in _names(getattr(kind, "__slots__", ()))]
    return [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


@contextmanager
def unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Put back what is written, meanwhile, to tensors that the model's modules hold in plain attributes.

    Where gradients would have flowed into them, they have no history after it, either.
    """
    kept = [
        (tensor, tensor_state(tensor), tensor.grad_fn is not None, tensor.detach().clone())
        for tensor in unseen_tensors(model)
    ]
    try:
        yield
    finally:
        for tensor, before, had_history, copy in kept:
            if tensor.is_inference() or tensor_state(tensor) != before:
                with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                    if tensor.grad_fn is not None and not (had_history or tensor._is_view()):
                        tensor.detach_()
                    tensor.copy_(copy)
