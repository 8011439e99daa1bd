"""Buffers that forward replaces (``self.mean = 0.9 * self.mean + ...``) instead of writing to them.

A program has no place for a new tensor under an old name, and torch.export drops it: silently where the buffer is a
submodule's, or with ``strict=True``. While a model is captured, a hook at the end of its forward writes the new value
into the old buffer, so that the program does so, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn.modules import module as torch_modules
from torch.utils import _pytree as pytree

__all__ = ["ReplacedBuffers", "share_memory", "writing_replaced"]

_SHAPE, _TYPE, _NOTHING, _CONSTANT = "a tensor of another shape", "a tensor of another type", "None", "another tensor"


@attrs.define(eq=False)
class ReplacedBuffers:
    """Which buffers forward replaced while a model was captured, and what became of them.

    Args:
        places: All buffers: the module, the name there, and the name in the model.
        written: Those whose new value is written into the old buffer when forward ends; positions in ``places``.
        lost: Those that cannot take their new value, with the reason.
        constants: New values that are no results of forward.
    """

    places: list[tuple[torch.nn.Module, str, str]]
    written: list[int] = attrs.field(factory=list)
    lost: dict[int, str] = attrs.field(factory=dict)
    constants: dict[int, torch.Tensor] = attrs.field(factory=dict)

    @classmethod
    def none_of(cls, model: torch.nn.Module) -> ReplacedBuffers:
        """All buffers of a model, none of them replaced as yet."""
        modules = [(path, each) for path, each in model.named_modules() if _is_plain(each)]
        return cls([(each, name, f"{path}.{name}".lstrip(".")) for path, each in modules for name in each._buffers])

    def buffer(self, place: int) -> torch.Tensor | None:
        """What the model holds at a place."""
        module, field, _name = self.places[place]
        return module._buffers.get(field)


@contextmanager
def writing_replaced(model: torch.nn.Module, *, strict: bool) -> Iterator[ReplacedBuffers]:
    """Capture a model inside; what forward puts in the place of buffers is written into them when it ends.

    Args:
        model: The model; its buffers and hooks are as before afterwards. Graphs replace no buffer.
        strict: Whether it is captured by bytecode.
    """
    replaced, handles = ReplacedBuffers.none_of(model), []
    kept = [_Held(each) for each in model.modules() if _is_plain(each)]
    if replaced.places and not isinstance(model, GraphModule):
        begin, end = _hooks_by_bytecode(replaced) if strict else _hooks(replaced)
        handles = [model.register_forward_pre_hook(begin, prepend=True), model.register_forward_hook(end)]
    try:
        yield replaced
    finally:
        for handle in handles:
            handle.remove()
        for held in kept:
            held.put_back()


def _is_plain(module: torch.nn.Module) -> bool:
    """Not scripted: those keep their buffers elsewhere, and torch refuses them."""
    return not isinstance(module, torch.jit.ScriptModule)


class _Held:
    """The buffers and attributes of a module, to which forward may add fake ones while it is captured."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module, self.attributes = module, set(vars(module))
        self.buffers, self.hidden = dict(module._buffers), set(module._non_persistent_buffers_set)

    def put_back(self) -> None:
        """Take away what is new."""
        self.module._buffers.clear()
        self.module._buffers.update(self.buffers)
        self.module._non_persistent_buffers_set = self.hidden
        for name in vars(self.module).keys() - self.attributes:
            if isinstance(vars(self.module)[name], FakeTensor):
                del vars(self.module)[name]


def share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are, or view, the same memory."""
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


Hooks = tuple[Callable[..., None], Callable[..., Any]]


def _hooks(replaced: ReplacedBuffers) -> Hooks:
    """What runs before and after forward on fake tensors, which is recorded."""
    before: list[torch.Tensor | None] = []

    def begin(_model: Any, _args: Any) -> None:
        _switch_off_torchs_own()
        before[:] = [module._buffers.get(field) for module, field, _name in replaced.places]

    def end(_model: Any, _args: Any, result: Any) -> Any:
        changed: list[tuple[torch.Tensor, torch.Tensor]] = []
        for place, (module, field, _name) in enumerate(replaced.places):
            old, new = before[place], module._buffers.get(field)
            if old is new or old is None:
                continue
            if new is not None and not isinstance(new, FakeTensor):
                replaced.lost[place], replaced.constants[place] = _CONSTANT, new
                continue
            if reason := _obstacle(old, new):
                replaced.lost[place] = reason
                continue
            assert new is not None  # None is an obstacle
            module._buffers[field] = old
            if not _is_itself(old, new):
                changed.append((old, new.detach()))
                replaced.written.append(place)
        if not changed:
            return result
        written = [old for old, _new in changed]
        result = pytree.tree_map_only(torch.Tensor, lambda leaf: _apart(leaf, written), result)
        values = [_apart(new, written) for _old, new in changed]
        for old, value in zip(written, values, strict=True):
            old.copy_(value)
        return result

    return begin, end


def _apart(tensor: torch.Tensor, written: list[torch.Tensor]) -> torch.Tensor:
    """A tensor that keeps its value when others are written."""
    return tensor.clone() if any(share_memory(tensor, each) for each in written) else tensor


def _is_itself(old: torch.Tensor, new: torch.Tensor) -> bool:
    """Whether a tensor is a plain alias of a buffer, such as ``detach()`` gives."""
    same = (old.dtype, old.stride(), old.storage_offset()) == (new.dtype, new.stride(), new.storage_offset())
    return same and share_memory(old, new)


def _hooks_by_bytecode(replaced: ReplacedBuffers) -> Hooks:
    """The same for dynamo, which follows neither storages nor changes outside: it is told what happens by constants."""
    places = [(module, field) for module, field, _name in replaced.places]
    before: list[list[torch.Tensor | None]] = [[]]

    @torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]  # torch does not say
    def note(place: int, reason: str) -> bool:
        if reason:
            replaced.lost[place] = reason
        else:
            replaced.written.append(place)
        return True

    def begin(_model: Any, _args: Any) -> None:
        before[0] = [module._buffers.get(field) for module, field in places]

    def end(_model: Any, _args: Any, _result: Any) -> None:
        changed = []
        for place in range(len(places)):
            module, field = places[place]
            old, new = before[0][place], module._buffers.get(field)
            if old is new or old is None:
                continue
            reason = _obstacle(old, new)
            note(place, reason)
            if new is not None and not reason:
                module._buffers[field] = old
                changed.append((old, new.detach().clone()))
        for old, value in changed:
            old.copy_(value)

    return begin, end


def _obstacle(old: torch.Tensor, new: torch.Tensor | None) -> str:
    """Why a tensor cannot be written into another; empty if it can."""
    if new is None:
        return _NOTHING
    if new.dim() != old.dim():
        return _SHAPE
    for size, wished in zip(new.shape, old.shape):  # noqa: B905 (dynamo: of one length, as tested above)
        if not statically_known_true(size == wished):
            return _SHAPE
    return _TYPE if _kind(new.dtype) > _kind(old.dtype) else ""


def _kind(dtype: torch.dtype) -> int:
    """Integers hold no fractions, real numbers no complex ones; not ``torch.can_cast``, which would be recorded."""
    return 2 if dtype.is_complex else 1 if dtype.is_floating_point else 0


def _switch_off_torchs_own() -> None:
    """Torch does the same at the top of a model, and takes a wrong buffer where one is None, or fails."""
    hooks = torch_modules._global_buffer_registration_hooks
    own = [key for key, hook in hooks.items() if getattr(hook, "__name__", "") == "_map_assigned_buffer_to_proxy"]
    for key in own:
        del hooks[key]
