"""Parameters that several stages hold: their gradients are added up, so that all copies learn the same.

A tied embedding lies in the first stage and in the last one. In processes of their own these are two copies, each with
the gradient of its own use; the model's gradient is their sum. Only the ranks that hold a copy take part in the sum.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import torch
import torch.distributed as dist

from fxpasses.errors import StageError
from fxpasses.pipelining.running.exchanging import Holders

if TYPE_CHECKING:
    from torch.distributed.pipelining import PipelineStage

__all__ = ["Tie", "TiedParameters", "ties_of"]


@attrs.frozen
class Tie:
    """One parameter of the model that several stages hold.

    Args:
        name: The model's name of it.
        names: The name in each stage that holds it, by the stage's number.
    """

    name: str
    names: Mapping[int, str]


def ties_of(copied: Sequence[Mapping[str, str]], parts: Sequence[str]) -> list[Tie]:
    """The ties of a pipe: what its stages have in common, by the names of their modules, in the order of the stages."""
    return [
        Tie(next(iter(names.values())), {parts.index(part): name for part, name in names.items()}) for names in copied
    ]


@attrs.define(eq=False)
class _Copies:
    """This rank's copies of one tied parameter."""

    name: str
    parameters: list[torch.nn.Parameter]
    owner: int  # the global rank whose value counts
    summed: weakref.ref[torch.Tensor] | None = None
    version: int = -1

    def is_summed(self) -> bool:
        """Whether the gradient is still the sum of the last time."""
        gradient = self.parameters[0].grad
        return (
            gradient is not None
            and self.summed is not None
            and self.summed() is gradient
            and (gradient._version == self.version)
        )

    def gradient(self) -> torch.Tensor | None:
        """The sum of the gradients of the copies on this rank."""
        found = [copy.grad for copy in self.parameters if copy.grad is not None]
        dense = [gradient.to_dense() if gradient.is_sparse else gradient for gradient in found]
        return sum(dense[1:], dense[0].clone()) if dense else None

    def take(self, total: torch.Tensor) -> None:
        """Give every copy the sum."""
        for copy in self.parameters:
            copy.grad = total if copy is self.parameters[0] else total.clone()
        self.summed, self.version = weakref.ref(total), total._version


class TiedParameters:
    """The tied parameters of this rank's stages, and the ranks that keep them in step.

    Made by :meth:`fxpasses.pipelining.Pipe.tie_parameters` on every rank, after the schedule.
    """

    def __init__(self, groups: Iterable[tuple[Holders | None, list[_Copies]]]) -> None:
        self._groups = list(groups)

    @classmethod
    def of(
        cls, ties: Sequence[Tie], stages: Sequence[PipelineStage], group: dist.ProcessGroup | None
    ) -> TiedParameters:
        """Find the ranks that share each; every rank that holds one finds the same ranks in the same order."""
        mine = {stage.stage_index: stage for stage in stages}
        by_ranks: dict[tuple[int, ...], list[_Copies]] = {}
        for tie in ties:
            if holders := [mine[index] for index in tie.names if index in mine]:
                where = holders[0].stage_index_to_group_rank
                ranks = dict.fromkeys(dist.get_global_rank(_group(group), where[index]) for index in tie.names)
                copies = [stage.submod.get_parameter(tie.names[stage.stage_index]) for stage in holders]
                unique = list({id(copy): copy for copy in copies}.values())
                by_ranks.setdefault(tuple(sorted(ranks)), []).append(_Copies(tie.name, unique, next(iter(ranks))))
        return cls((Holders(ranks, group) if len(ranks) > 1 else None, copies) for ranks, copies in by_ranks.items())

    @property
    def names(self) -> list[str]:
        """The model's names of the tied parameters that this rank holds."""
        return [copies.name for _, held in self._groups for copies in held]

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """All copies that this rank holds."""
        return [copy for _, held in self._groups for copies in held for copy in copies.parameters]

    def synchronize_gradients(self) -> None:
        """Add up the gradients of all copies; to be called on every rank after each step of the schedule.

        Raises:
            StageError: They are added up already: a second sum would count them twice.
        """
        for group, held in self._groups:
            gradients = [copies.gradient() for copies in held]
            twice, present = _counts(group, held, gradients)
            for copies, times in zip(held, twice, strict=True):
                if times:
                    raise StageError(
                        f"the gradients of {copies.name!r} are added up already and would count twice; call "
                        "synchronize_gradients() once after each step, and zero_grad() before the next"
                    )
            for copies, gradient, count in zip(held, gradients, present, strict=True):
                if count:  # what has no gradient on any rank has none in the model
                    total = (torch.zeros_like(copies.parameters[0]) if gradient is None else gradient).contiguous()
                    if group is not None:
                        group.all_reduce(total)
                    copies.take(total.detach())

    def synchronize_values(self) -> None:
        """Give every copy the value that the first stage has: after random initialisation, for example."""
        for group, held in self._groups:
            for copies in held:
                first = copies.parameters[0].detach()
                if group is not None:
                    group.broadcast(first, copies.owner)
                for copy in copies.parameters[1:]:
                    copy.detach().copy_(first)


def _group(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    return group if group is not None else dist.distributed_c10d._get_default_group()


def _counts(
    group: Holders | None, held: Sequence[_Copies], gradients: Sequence[torch.Tensor | None]
) -> tuple[list[int], list[int]]:
    """On how many ranks each gradient is a sum already, and on how many there is one; the same answer on all ranks."""
    counts = torch.tensor(
        [[int(copies.is_summed()) for copies in held], [int(each is not None) for each in gradients]],
        device=held[0].parameters[0].device,
    )
    if group is not None:
        group.all_reduce(counts)
    twice, present = counts.tolist()
    return twice, present
