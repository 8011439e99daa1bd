"""One stage as a module: a part of a split, what it receives, and what it hands on, hop by hop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from fxpasses.editing.attributes import find_attribute
from fxpasses.errors import StageError
from fxpasses.pipelining.routes import Route
from fxpasses.pipelining.sizes import Symbols, sizes_at
from fxpasses.pipelining.travelling import arrive, depart
from fxpasses.programs.input_contract import InputContract

__all__ = ["StageModule"]


_TABLES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
"""Where a module keeps its state; a stage has those of its part, so that what changes one changes the other."""


class StageModule(torch.nn.Module):
    """A stage as schedules run it: the first takes the user's inputs, the last gives the user's outputs.

    In between it takes the tensors that the stage before sends and gives those that the next stage takes. Its
    parameters and buffers are those of the part, under the names that they have in the model.

    Args:
        part: The part of the split.
        route: What goes in and out.
        contract: The inputs that the model was captured with.
        out_spec: The structure of the model's output.
        aliases: Other names of tied parameters in the model, by the name in the part.
    """

    def __init__(
        self,
        part: GraphModule,
        route: Route,
        contract: InputContract,
        out_spec: pytree.TreeSpec,
        aliases: Mapping[str, Sequence[str]],
    ) -> None:
        super().__init__()
        for held in (*_TABLES, "training"):
            object.__setattr__(self, held, getattr(part, held))
        self.part: GraphModule
        self.route: Route
        self.contract: InputContract
        self.out_spec: pytree.TreeSpec
        self.aliases: dict[str, tuple[str, ...]]
        others = {name: tuple(others) for name, others in aliases.items()}
        own = {"part": part, "route": route, "contract": contract, "out_spec": out_spec, "aliases": others}
        self.__dict__.update(own)  # the model may have children of these names, which assigning would replace
        self.register_state_dict_post_hook(_add_aliases)  # type: ignore[no-untyped-call]  # torch's
        self.register_load_state_dict_pre_hook(_drop_aliases)  # type: ignore[no-untyped-call]  # torch's

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Give the part of a copy, or of what was pickled, the tables of the stage again: torch makes it new ones."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch's
        for held in _TABLES:
            object.__setattr__(self.part, held, getattr(self, held))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the stage; see the class for what it takes and gives."""
        values = self._enter(args, kwargs)
        values.update((slot, find_attribute(self.part, name).value) for slot, name in self.route.held)
        result = self.part(*(values[slot] for slot in self.route.called_with))
        values.update(zip(self.route.made, result if self.route.makes_tuple else (result,), strict=True))
        if self.route.leaving is not None:
            leaves = [leaf.constant if leaf.slot is None else values[leaf.slot] for leaf in self.route.leaving]
            return pytree.tree_unflatten(leaves, self.out_spec)
        return depart(self.route.sent, [values[traveller.slot] for traveller in self.route.sent])

    def _enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Any]:
        if self.route.is_first:
            ordered, _ = self.contract.bind(args, kwargs)
            flat = [leaf for value in ordered for leaf in pytree.tree_leaves(value)]
            return dict(zip(self.route.entering, flat, strict=True))
        slots = [traveller.slot for traveller in self.route.received]
        if len(args) != len(slots):
            names = ", ".join(traveller.name for traveller in self.route.received)
            raise StageError(
                f"the stage takes {len(slots)} tensors from the one before ({names}), but {len(args)} came"
            )
        arrived, sizes = arrive(self.route.received, args)
        values = dict(zip(slots, arrived, strict=True))
        for worked, number in zip(self.route.worked_out, self._worked_out(sizes), strict=True):
            values[worked.slot] = number
        return values

    def _worked_out(self, sizes: Symbols) -> tuple[int, ...]:
        return sizes_at([worked.size for worked in self.route.worked_out], sizes)


def _add_aliases(module: Any, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    for name, others in module.aliases.items():
        if prefix + name in state:
            state.update((prefix + other, state[prefix + name]) for other in others)


def _drop_aliases(module: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, others in module.aliases.items():
        found = [state.pop(prefix + other) for other in others if prefix + other in state]
        if found:
            state.setdefault(prefix + name, found[0])
