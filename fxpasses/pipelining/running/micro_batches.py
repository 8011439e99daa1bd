"""The sizes that each micro-batch of a step has in one stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import sympy
import torch
from torch.utils import _pytree as pytree

from fxpasses.errors import InputError, StageError
from fxpasses.pipelining.sizes import Size, Symbols, bind_sizes, known_symbols, size_of, sizes_at
from fxpasses.pipelining.travelling import Traveller
from fxpasses.programs.input_contract import InputContract

__all__ = ["StageSizes"]


@attrs.frozen(eq=False)
class StageSizes:
    """What goes in and out of one stage, at any sizes.

    Args:
        user_inputs: The recorded inputs of the model; for the first stage.
        received: What comes from the stage before; for the others.
        user_outputs: The recorded outputs of the model; for the last stage.
        sent: What goes to the next stage; for the others.
        captured: The sizes that symbols had in the example.
        contract: What the model takes.
    """

    user_inputs: tuple[torch.Tensor, ...]
    received: tuple[Traveller, ...]
    user_outputs: tuple[torch.Tensor, ...]
    sent: tuple[Traveller, ...]
    captured: Symbols
    contract: InputContract

    @property
    def is_fixed(self) -> bool:
        """Whether all micro-batches have the sizes of the example."""
        return not self.captured

    def inputs(self, symbols: Symbols | None = None) -> tuple[torch.Tensor, ...]:
        """What goes in, without data; at the sizes of the example, or at others."""
        symbols = self.captured if symbols is None else symbols
        users = tuple(_empty(value, symbols) for value in self.user_inputs)
        return (*users, *(traveller.example(symbols) for traveller in self.received))

    def outputs(self, symbols: Symbols | None = None) -> tuple[torch.Tensor, ...]:
        """What comes out, likewise."""
        symbols = self.captured if symbols is None else symbols
        users = tuple(_empty(value, symbols) for value in self.user_outputs)
        return (*users, *(traveller.example(symbols) for traveller in self.sent))

    def of_batch(self, size: int, count: int) -> list[dict[sympy.Symbol, int]]:
        """The sizes of each micro-batch of a batch, cut as schedules cut it: the first ones get what is left over.

        Raises:
            StageError: The model was captured for one batch size, or there are fewer rows than micro-batches.
        """
        rows = [count_of.numel() for count_of in torch.empty(size, device="meta").tensor_split(count)]
        batch = dict.fromkeys(symbol for shape in self._input_shapes() for symbol in known_symbols(shape[:1]))
        if not batch:
            raise StageError(
                "the model was captured for one batch size; call pipeline() with dynamic_shapes, for example "
                'dynamic_shapes="batch"'
            )
        if size < count:
            raise StageError(f"a batch of {size} rows cannot be cut into {count} micro-batches")
        return [{**self.captured, **dict.fromkeys(batch, each)} for each in rows]

    def _input_shapes(self) -> list[tuple[Size, ...]]:
        return [leaf.shape for leaves in self.contract.leaves for leaf in leaves if leaf.shape]

    def of_inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any], number: int) -> dict[sympy.Symbol, int]:
        """The sizes that the inputs of one micro-batch tell.

        Raises:
            StageError: They are not what the model was captured for.
        """
        try:
            ordered, _ = self.contract.bind(args, kwargs)
        except InputError as error:
            raise StageError(
                f"micro-batch {number} does not fit: {error} All micro-batches of a step need the captured sizes: give "
                "batches that the number of micro-batches divides, or call pipeline() with dynamic_shapes"
            ) from error
        found: dict[sympy.Symbol, int] = {}
        leaves = [leaf for part in self.contract.leaves for leaf in part]
        given = [leaf for value in ordered for leaf in pytree.tree_leaves(value)]
        for leaf, value in zip(leaves, given, strict=True):
            if leaf.shape is not None:
                bind_sizes(found, leaf.shape, value)
        return found

    def refuse_other(self, args: Sequence[Any], kwargs: Mapping[str, Any], number: int, expected: Symbols) -> None:
        """Refuse a micro-batch of other sizes than the other ranks expect.

        Raises:
            StageError: It has; the message names the input and both shapes.
        """
        found = self.of_inputs(args, kwargs, number)
        wrong = [symbol for symbol, size in found.items() if expected.get(symbol, size) != size]
        if not wrong:
            return
        leaf = next(
            leaf
            for part in self.contract.leaves
            for leaf in part
            if leaf.shape and wrong[0] in known_symbols(leaf.shape)
        )
        shape = leaf.shape or ()
        raise StageError(
            f"micro-batch {number}: {leaf.path[0].lower()}{leaf.path[1:]} has the shape "
            f"{sizes_at(shape, found)}, but the other ranks expect {sizes_at(shape, expected)}; call "
            "expect_batch() with the size of the whole batch on the stages of every rank before this step"
        )


def _empty(value: torch.Tensor, symbols: Symbols) -> torch.Tensor:
    sizes = sizes_at([size_of(size) for size in value.shape], symbols)
    if -1 in sizes:
        sizes = tuple(max(size, 1) for size in sizes)  # known when it is there: torch's runtime does not ask
    return torch.empty(sizes, dtype=value.dtype, device="meta")
