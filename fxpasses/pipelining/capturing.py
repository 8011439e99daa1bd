"""Capture a model for its stages; also one of which the parameters are on ``meta``, where nothing can be run."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils import _pytree as pytree

from fxpasses.editing.attributes import state_of
from fxpasses.errors import StageError
from fxpasses.pipelining.sizes import size_of
from fxpasses.programs.capturing import capture
from fxpasses.programs.program_modules import module_of_program

__all__ = ["Captured", "capture_model", "parameters_on_meta"]


@attrs.frozen(eq=False)
class Captured:
    """A captured model.

    Args:
        program: What ``torch.export`` gave.
        source: Its graph module, whose parameters and buffers are the model's own.
    """

    program: ExportedProgram
    source: GraphModule


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Build models without memory for their parameters; buffers get their values.

    Unlike ``torch.device("meta")``, which leaves tables that no checkpoint has (rotary frequencies) without content.

    >>> with parameters_on_meta():
    ...     model = torch.nn.BatchNorm1d(4)
    >>> model.weight.device.type, model.running_var.device.type
    ('meta', 'cpu')
    """

    def to_meta(_module: Any, _name: str, parameter: Any) -> Any:
        if parameter is None or parameter.device.type == "meta":
            return None
        return type(parameter)(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)

    handle = register_module_parameter_registration_hook(to_meta)
    try:
        yield
    finally:
        handle.remove()


def capture_model(
    module: torch.nn.Module | ExportedProgram, args: Any, kwargs: Any, dynamic_shapes: Any = None
) -> Captured:
    """Capture a model with example inputs of one micro-batch.

    Args:
        module: The model, which stays as it is; or a program.
        args: Example inputs.
        kwargs: Example keyword inputs.
        dynamic_shapes: As ``torch.export.export`` takes them, or ``"batch"``.

    Raises:
        CaptureError: torch cannot export the model.
        StageError: ``"batch"`` without inputs of one batch, or the model fixes its size.
    """
    if dynamic_shapes is not None and isinstance(module, ExportedProgram):
        raise StageError("a program is captured already; give dynamic_shapes to torch.export.export()")
    by_batch = isinstance(dynamic_shapes, str)
    if by_batch:
        if dynamic_shapes != "batch":
            raise StageError(f'dynamic_shapes is what torch.export takes, or "batch", not {dynamic_shapes!r}')
        dynamic_shapes = _batch_shapes(module, tuple(args or ()), dict(kwargs or {}))
    if isinstance(module, torch.nn.Module) and _is_on_meta(module):
        captured = _capture_meta(module, args, kwargs, dynamic_shapes)
    else:
        program = capture(module, args, kwargs, dynamic_shapes=dynamic_shapes)
        captured = Captured(program, module_of_program(program))
    if by_batch:
        _refuse_fixed_batch(captured.source)
    return captured


# --- a batch of any size -------------------------------------------------------------------------------------------


def _batch_shapes(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.dim()]
    if not tensors:
        raise StageError('dynamic_shapes="batch" needs an example input with a batch dimension')
    size = tensors[0].shape[0]
    if size < 2:
        raise StageError(
            f'dynamic_shapes="batch" needs an example of at least 2 rows, not {size}: torch.export takes 1 for a size '
            "that never changes"
        )

    def sizes(leaf: Any) -> Any:
        return {0: Dim.AUTO} if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] == size else None

    bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    found: dict[str, Any] = pytree.tree_map(sizes, dict(bound))
    return found


def _refuse_fixed_batch(source: GraphModule) -> None:
    values = [node.meta.get("val") for node in source.graph.find_nodes(op="placeholder")]
    shapes = [value.shape for value in values if isinstance(value, torch.Tensor) and value.dim()]
    if all(isinstance(size_of(shape[0]), int) for shape in shapes):
        raise StageError(
            f"the model fixes its batch size at {shapes[0][0]}; look for a reshape or a constant of that size in it, "
            "or leave dynamic_shapes out"
        )


# --- parameters on meta --------------------------------------------------------------------------------------------


def _is_on_meta(module: torch.nn.Module) -> bool:
    return any(tensor.device.type == "meta" for tensor in (*module.parameters(), *module.buffers()))


def _capture_meta(module: torch.nn.Module, args: Any, kwargs: Any, dynamic_shapes: Any) -> Captured:
    """Capture a copy with tensors that pretend to lie where the inputs lie, and put the model's own in their place."""
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    device = next((leaf.device for leaf in leaves if leaf.device.type != "meta"), torch.device("cpu"))
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    tensors = _tensors_of(module)
    fakes = {key: _pretend(tensor, mode, device) for key, tensor in tensors.items()}
    twin = copy.deepcopy(module, dict(fakes))
    inputs = pytree.tree_map(
        lambda leaf: _pretend(leaf, mode, device) if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs)
    )
    program = capture(twin, *inputs, dynamic_shapes=dynamic_shapes)
    source = module_of_program(program)
    _put_back(source, {id(fake): tensors[key] for key, fake in fakes.items()}, state_of(module))
    return Captured(program, source)


def _tensors_of(module: torch.nn.Module) -> dict[int, torch.Tensor]:
    """All tensors of a model by identity: parameters, buffers, and plain attributes."""
    found: dict[int, torch.Tensor] = {}
    for part in module.modules():
        for entry in (*part._parameters.values(), *part._buffers.values(), *vars(part).values()):
            if isinstance(entry, torch.Tensor):
                found[id(entry)] = entry
    return found


def _pretend(tensor: torch.Tensor, mode: FakeTensorMode, device: torch.device) -> torch.Tensor:
    target = device if tensor.device.type == "meta" else tensor.device
    with mode:
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=target)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
    return fake


def _put_back(source: GraphModule, own: Mapping[int, torch.Tensor], state: Mapping[str, Any]) -> None:
    """Let a graph module hold the model's tensors instead of those that stood for them."""
    for path, part in source.named_modules():
        prefix = f"{path}." if path else ""
        for table in (part._parameters, part._buffers, vars(part)):
            for name, entry in list(table.items()):
                if not isinstance(entry, FakeTensor):
                    continue
                known = state.get(prefix + name)
                given = own.get(id(entry), known.value if known is not None else None)
                if given is None:
                    raise StageError(
                        f"the constant {prefix + name!r} has no value: it was made on meta while the model was "
                        "captured; build the model under parameters_on_meta() and keep constants as buffers"
                    )
                table[name] = given
