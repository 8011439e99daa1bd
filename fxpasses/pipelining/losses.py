"""A model and its loss in one module, and which output of a model is the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
from torch.utils import _pytree as pytree

from fxpasses.errors import StageError

__all__ = ["LossOutput", "LossWrapper", "TrivialLossWrapper", "find_loss"]


class LossWrapper(torch.nn.Module):
    """A model and its loss function as one module; subclasses say in ``forward`` how the two are connected.

    Args:
        module: The model.
        loss_fn: The loss function, or a module that computes it.

    >>> class Regression(LossWrapper):
    ...     def forward(self, x, wanted):
    ...         return self.loss_fn(self.module(x), wanted)
    """

    def __init__(self, module: torch.nn.Module, loss_fn: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.module = module
        self.loss_fn = loss_fn

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Connect model and loss; for subclasses to write."""
        raise NotImplementedError(
            f"{type(self).__name__} has no forward of its own; write one that calls self.module and self.loss_fn "
            "and gives the loss"
        )


class TrivialLossWrapper(LossWrapper):
    """A model of one input, and a loss of its output and the targets."""

    loss_spec = True

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss of one micro-batch."""
        return self.loss_fn(self.module(x), targets)


@attrs.frozen
class LossOutput:
    """Which output of a model is its loss.

    Args:
        spec: True at the loss and False elsewhere, in the structure of the output; a plain True if it is the output.
        leaf: Its place among the flattened outputs.
    """

    spec: Any
    leaf: int

    def of(self, output: Any) -> torch.Tensor:
        """The loss in an output of the model."""
        loss = pytree.tree_leaves(output)[self.leaf]
        assert isinstance(loss, torch.Tensor)  # the captured output had one there
        return loss


def find_loss(module: object, out_spec: pytree.TreeSpec, spec: Any = None) -> LossOutput | None:
    """Find the loss among the outputs of a model.

    Args:
        module: The model; its attribute ``loss_spec`` counts when ``spec`` is None.
        out_spec: The structure of its output.
        spec: True, or a tuple, list or dict with True at the loss. None looks for ``loss_spec``, for the only output
            of a :class:`LossWrapper`, and for an entry ``"loss"``.

    Returns:
        The loss; None if nothing says that there is one.

    Raises:
        StageError: The spec does not fit the output, or names no loss or several.
    """
    output = pytree.tree_unflatten(list(range(out_spec.num_leaves)), out_spec)
    if spec is None:
        spec = getattr(module, "loss_spec", None)
    if spec is None and isinstance(module, LossWrapper) and out_spec.is_leaf():
        spec = True
    if spec is None:
        named = _fields(output)
        if not isinstance(named.get("loss"), int):
            return None
        spec = {name: name == "loss" for name in named}
    found = _marked(output, spec, "the output")
    if len(found) != 1:
        raise StageError(f"output_loss_value_spec must say True once, but says so {len(found)} times: {spec!r}")
    return LossOutput(spec, found[0])


def _marked(output: Any, spec: Any, where: str) -> list[int]:
    """The leaves of ``output``, which are numbers, at which ``spec`` is True."""
    if spec is False or spec is None:
        return []
    if spec is True:
        if not isinstance(output, int):
            raise StageError(f"output_loss_value_spec says True for {where}, which is no single value")
        return [output]
    if isinstance(spec, Mapping):
        fields = _fields(output)
        if unknown := [key for key in spec if key not in fields]:
            raise StageError(f"output_loss_value_spec names {unknown[0]!r}, which {where} does not have")
        return [leaf for key, inner in spec.items() for leaf in _marked(fields[key], inner, f"{where}[{key!r}]")]
    if not isinstance(spec, (tuple, list)):
        raise StageError(f"output_loss_value_spec holds {spec!r}; write True, False, tuples, lists and dicts")
    if not isinstance(output, (tuple, list)) or len(output) != len(spec):
        held = f"has {len(output)}" if isinstance(output, (tuple, list)) else "is no tuple or list"
        raise StageError(f"output_loss_value_spec has {len(spec)} entries for {where}, which {held}")
    pairs = enumerate(zip(output, spec, strict=True))
    return [leaf for at, (each, inner) in pairs for leaf in _marked(each, inner, f"{where}[{at}]")]


def _fields(output: Any) -> dict[Any, Any]:
    if isinstance(output, Mapping):
        return dict(output.items())
    return dict(vars(output)) if hasattr(output, "__dataclass_fields__") else {}
