"""What a pass is called, what its options are, and one digest that two equal pipelines share.

>>> import operator
>>> pass_name(operator.add)
'add'
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch

__all__ = ["Digest", "digest_of", "options_of", "pass_name", "same_name", "spelled"]


class Digest(str):
    """A hex digest; calling it gives itself, because Inductor asks its custom passes for ``uuid()``."""

    __slots__ = ()

    def __call__(self) -> str:
        """The digest itself."""
        return str(self)


def pass_name(pass_: Any) -> str:
    """The name a user would give the pass: of a function its name, of an object its class or its own ``pass_name``."""
    own = getattr(pass_, "pass_name", None)
    if isinstance(own, str) and own:
        return own
    if isinstance(pass_, functools.partial):
        return pass_name(pass_.func)
    if inspect.isroutine(pass_) or isinstance(pass_, type):
        return str(getattr(pass_, "__name__", type(pass_).__name__))
    return type(pass_).__name__


def same_name(asked: str, name: str) -> bool:
    """Whether a user who writes ``asked`` means ``name``: ``remove-detach`` and ``RemoveDetach`` are the same."""
    return asked == name or _plain(asked) == _plain(name)


def options_of(pass_: Any) -> dict[str, Any]:
    """The options of a pass by name: the fields of an attrs class, or what a plain ``__init__`` kept under its name."""
    if isinstance(pass_, functools.partial):
        return {**{str(i): value for i, value in enumerate(pass_.args)}, **pass_.keywords}
    if isinstance(pass_, type) or inspect.isroutine(pass_):
        return {}
    if attrs.has(type(pass_)):
        return {
            field.alias or field.name: getattr(pass_, field.name) for field in attrs.fields(type(pass_)) if field.init
        }
    return {name: vars(pass_)[name] for name in _init_parameters(type(pass_)) if name in getattr(pass_, "__dict__", {})}


def spelled(pass_: Any) -> str:
    """The call that makes the pass, as ``Name(option=value)``; a function is spelled by its name."""
    if inspect.isroutine(pass_) or isinstance(pass_, type):
        return pass_name(pass_)
    options = ", ".join(f"{name}={value!r}" for name, value in options_of(pass_).items())
    return f"{type(pass_).__name__}({options})"


def digest_of(value: Any) -> Digest:
    """A digest that depends on what ``value`` is made of, never on ids, hash seeds or the process.

    Passes are told apart by class and options, functions by module, name and code, tensors by their bytes.
    """
    return Digest(hashlib.sha256(_canonical(value, depth=0).encode()).hexdigest())


def _canonical(value: Any, depth: int) -> str:
    if depth > 32:
        return f"<deep {type(value).__qualname__}>"
    deeper = depth + 1
    if isinstance(value, Mapping):
        entries = [f"{_canonical(key, deeper)}:{_canonical(entry, deeper)}" for key, entry in value.items()]
        return "{" + ",".join(sorted(entries)) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ",".join(sorted(_canonical(entry, deeper) for entry in value)) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_canonical(entry, deeper) for entry in value) + "]"
    if isinstance(value, torch.Tensor):
        return _tensor_digest(value)
    if isinstance(value, (str, int, float, complex, bool, bytes, type(None), torch.dtype, torch.device)):
        return f"{type(value).__name__}:{value!r}"
    return _canonical_object(value, deeper)


def _canonical_object(value: Any, depth: int) -> str:
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, functools.partial):
        return f"partial({_canonical(value.func, depth)},{_canonical(options_of(value), depth)})"
    if inspect.isfunction(value):
        return f"{value.__module__}.{value.__qualname__}#{_code_digest(value)}"
    if inspect.ismethod(value):
        return f"{_canonical(value.__self__, depth)}.{value.__name__}"
    if inspect.isbuiltin(value) or isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return f"{type(value).__name__}:{value}" if hasattr(value, "namespace") else f"builtin:{value.__qualname__}"
    children = getattr(value, "passes", None)
    state: Any = options_of(value)
    if isinstance(children, list):  # a group: what it holds and how it runs
        state = {**state, "passes": children}
    if not state and not attrs.has(type(value)):
        state = {name: entry for name, entry in getattr(value, "__dict__", {}).items() if not name.startswith("_")}
    return f"{type(value).__module__}.{type(value).__qualname__}({_canonical(state, depth)})"


def _tensor_digest(tensor: torch.Tensor) -> str:
    about = f"tensor:{tensor.dtype}:{tuple(tensor.shape)}"
    if tensor.device.type == "meta" or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return about
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return f"{about}:{hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()}"


def _code_digest(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    constants = [entry for entry in code.co_consts if isinstance(entry, (str, int, float, bytes, bool, type(None)))]
    return hashlib.sha256(code.co_code + repr((code.co_names, constants)).encode()).hexdigest()[:16]


def _init_parameters(kind: type) -> list[str]:
    try:
        parameters = inspect.signature(kind.__init__).parameters.values()  # type: ignore[misc]
    except (TypeError, ValueError):  # a constructor in C
        return []
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [parameter.name for parameter in parameters if parameter.kind in plain and parameter.name != "self"]


def _plain(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()
