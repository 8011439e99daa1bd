"""One rank's part of a pipeline: its stages on torch's schedule, with the same call on every rank."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import torch

from fxpasses.errors import StageError, also_as
from fxpasses.pipelining.running.merging import merge_outputs
from fxpasses.pipelining.scheduling.schedules import Schedule, find_schedule

if torch.distributed.is_available():
    # Imported while a process group exists, its functions keep the group as their default, and with it gloo's threads,
    # which may abort a process that ends. Transformers imports it; here it is imported before there is a group.
    import torch.distributed.nn.functional

if TYPE_CHECKING:
    import torch.distributed as dist

    from fxpasses.pipelining.pipe import Pipe
    from fxpasses.pipelining.running.runtime import RunningStage
    from fxpasses.pipelining.running.tied import TiedParameters
    from fxpasses.pipelining.stages import StageModule

__all__ = ["RankSchedule", "build_schedule"]

_CHUNK_SPECS = ("args_chunk_spec", "kwargs_chunk_spec")
_OWN_OPTIONS = ("stage", "stages", "n_microbatches", "loss_fn", "scale_grads")
"""What :func:`build_schedule` gives to torch's schedules itself."""


@attrs.frozen(eq=False)
class RankSchedule:
    """What one rank runs; :func:`build_schedule` makes it.

    Args:
        schedule: Which one.
        runner: torch's own schedule, which does the work.
        pipe: The pipe that the stages are from.
        stages: This rank's stages, as torch's.
        rank: Which rank this is.
        ranks: How many there are.
        group: The processes; None for all.
        ties: The parameters that several ranks hold, whose gradients :meth:`step` adds up.
        scale: What gradients are divided by after a step. torch's runtime does that stage by stage, and so twice for
            a parameter that two stages of one rank share.
    """

    schedule: Schedule
    runner: Any
    pipe: Pipe
    stages: tuple[RunningStage, ...]
    rank: int
    ranks: int
    group: dist.ProcessGroup | None
    ties: TiedParameters
    scale: int

    @property
    def modules(self) -> tuple[StageModule, ...]:
        """This rank's stages as modules."""
        return tuple(self.pipe.get_stage_module(stage.stage_index) for stage in self.stages)

    @property
    def has_first(self) -> bool:
        """Whether the model's inputs go in on this rank."""
        return any(stage.is_first for stage in self.stages)

    @property
    def has_last(self) -> bool:
        """Whether the model's output and the losses come out on this rank."""
        return any(stage.is_last for stage in self.stages)

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """The parameters of this rank's stages, each once: what its optimizer takes."""
        seen = dict.fromkeys(itertools.chain.from_iterable(module.parameters() for module in self.modules))
        return iter(seen)

    def state_dict(self) -> dict[str, Any]:
        """Parameters and buffers of this rank's stages, under the model's names."""
        return {name: value for module in self.modules for name, value in module.state_dict().items()}

    def step(self, *args: Any, target: Any = None, losses: list[Any] | None = None, **kwargs: Any) -> Any:
        """Run all micro-batches forward and backward; the same call on every rank.

        Gradients are added to those that are there; those of tied parameters are the sums over all ranks that hold one.

        Args:
            *args: The model's inputs of a whole batch; only the rank with the first stage looks at them.
            target: What the loss compares with; only the rank with the last stage looks at it.
            losses: Filled with the loss of each micro-batch on the rank with the last stage.
            **kwargs: The model's keyword inputs of a whole batch, and ``return_outputs`` and ``loss_kwargs``.

        Returns:
            The model's output on the rank with the last stage, None elsewhere.

        Raises:
            StageError: Another process is gone, or did not answer within the group's timeout.
        """
        with self._accumulating():
            return self._run(self.runner.step, args, kwargs, target, losses, afterwards=self._finish_gradients)

    @contextlib.contextmanager
    def _accumulating(self) -> Iterator[None]:
        """Keep what earlier steps left in the gradients out of what the step inside divides and adds up."""
        tied = self.ties.parameters
        before = [parameter.grad for parameter in tied]
        others = [parameter.grad for parameter in self.parameters() if all(parameter is not copy for copy in tied)]
        with torch.no_grad():
            for gradient in others:
                if gradient is not None and self.scale != 1:
                    gradient.mul_(self.scale)
        for parameter in tied:
            parameter.grad = None
        try:
            yield
        finally:
            for parameter, gradient in zip(tied, before, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def _finish_gradients(self) -> None:
        """Average over the micro-batches, each parameter once, and add up the tied ones."""
        if not self.runner._has_backward:  # torch has no public name for whether there is a loss
            return
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(self.scale)
        self.ties.synchronize_gradients()

    def expect_batch(self, size: int) -> None:
        """Say how many rows the next steps have, for a model captured with a dynamic batch; the same on every rank.

        Raises:
            StageError: The model was captured for one batch size, or there are fewer rows than micro-batches.
        """
        for stage in self.stages:
            stage.expect_batch(size)

    def eval(self, *args: Any, target: Any = None, losses: list[Any] | None = None, **kwargs: Any) -> Any:
        """Run all micro-batches forward only; otherwise as :meth:`step`. Losses are computed if there is a target.

        Raises:
            StageError: Another process is gone, or did not answer within the group's timeout.
        """
        loss_fn = self.runner._loss_fn
        if target is None:  # torch's runtime would call it all the same
            self.runner._loss_fn, losses = None, None
        try:
            with torch.no_grad():
                return self._run(self.runner.eval, args, kwargs, target, losses)
        finally:
            self.runner._loss_fn = loss_fn

    def _run(
        self,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        target: Any,
        losses: Any,
        afterwards: Callable[[], None] | None = None,
    ) -> Any:
        from fxpasses.pipelining.failures import explain_failures  # torch.distributed is heavy

        options = {name: kwargs.pop(name) for name in ("return_outputs", "loss_kwargs") if name in kwargs}
        if not self.has_first:
            args, kwargs = (), {}
        if not self.has_last:
            target, losses = None, None
        stages_of = {
            rank: self.schedule.stages_of(rank, self.ranks, self.pipe.num_stages) for rank in range(self.ranks)
        }
        with explain_failures(stages_of, self.group):
            result = run(*args, target=target, losses=losses, **options, **kwargs)
            if afterwards is not None:
                afterwards()
        return result


def _refuse_unknown(options: Mapping[str, Any], kind: type) -> None:
    taken = [name for name in inspect.signature(kind).parameters if name not in _OWN_OPTIONS]
    if unknown := [name for name in options if name not in taken]:
        known = ", ".join(dict.fromkeys((*taken, *_CHUNK_SPECS)))
        raise also_as(StageError, TypeError())(f"{kind.__name__} takes no {unknown[0]!r}; its options are {known}")


def build_schedule(
    pipe: Pipe,
    schedule: str | Schedule = "1f1b",
    *,
    num_microbatches: int,
    loss_fn: Callable[..., Any] | None = None,
    device: torch.device | str = "cpu",
    group: dist.ProcessGroup | None = None,
    scale_grads: bool = True,
    **options: Any,
) -> RankSchedule:
    """Build this rank's stages, one or several, and torch's schedule on them.

    Args:
        pipe: The pipe, the same on every rank.
        schedule: Its name, here or in torch.
        num_microbatches: How many micro-batches a step has.
        loss_fn: Called with the model's output and the target of one micro-batch.
        device: Where this rank's stages run.
        group: The processes of the pipeline; all by default.
        scale_grads: Whether gradients are averaged over the micro-batches, for losses that are means.
        **options: What else torch's schedule takes; ``args_chunk_spec`` and ``kwargs_chunk_spec``, which say how inputs
            are cut, go to every schedule.

    Returns:
        What this rank runs.

    Raises:
        StageError: No process group, a rank without a stage, numbers that torch's runtime would refuse, or an option
            that its schedule does not take (also a TypeError).
    """
    import torch.distributed as dist
    import torch.distributed.pipelining as torch_pipelining
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle

    if not dist.is_initialized():
        raise StageError(
            "there is no process group; start the script with torchrun and call torch.distributed.init_process_group()"
        )
    found = find_schedule(schedule)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    own = found.stages_of(rank, ranks, pipe.num_stages)
    found.orders(ranks, pipe.num_stages, num_microbatches)  # refuses what torch would refuse, with the reason
    stages = tuple(pipe.build_stage(index, device, group) for index in own)
    kind = getattr(torch_pipelining, found.torch_name)
    given = stages[0] if issubclass(kind, PipelineScheduleSingle) else list(stages)
    specs = {name: options.pop(name) for name in _CHUNK_SPECS if name in options}
    _refuse_unknown(options, kind)
    runner = kind(given, num_microbatches, loss_fn=loss_fn, scale_grads=False, **options)
    for name, spec in specs.items():  # set, since not every schedule hands them on to the base class that has them
        setattr(runner, f"_{name}", spec)
    if options.get("output_merge_spec") is None:
        runner._merge_outputs = merge_outputs  # torch's takes nothing but tensors with a batch
    ties = pipe.tie_parameters(stages, group)  # after the runner, which says where each stage is
    scale = num_microbatches if scale_grads else 1
    return RankSchedule(found, runner, pipe, stages, rank, ranks, group, ties, scale)
