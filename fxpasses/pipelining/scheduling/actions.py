"""What a rank of a pipeline does, one step after the other: forwards and backwards of stages on micro-batches."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import attrs

from fxpasses.errors import StageError

__all__ = ["Action", "Kind", "Orders", "check_orders", "needs_of", "numbered"]


class Kind(enum.Enum):
    """What an action computes; the letters are those of torch's schedules."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"

    @property
    def sends_gradients(self) -> bool:
        """Whether the stage before waits for it."""
        return self in (Kind.BACKWARD, Kind.BACKWARD_INPUT)

    @property
    def frees(self) -> bool:
        """Whether what the forward kept is no longer needed after it."""
        return self in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT)


@attrs.frozen(order=False)
class Action:
    """One stage on one micro-batch.

    Args:
        stage: Which stage.
        kind: A forward, a whole backward, or one of its halves: for the stage's inputs, or for its weights.
        microbatch: Which micro-batch.
    """

    stage: int
    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.value}{self.microbatch}"


Orders = Sequence[Sequence[Action]]
"""For each rank, its actions from first to last."""


def needs_of(action: Action, num_stages: int) -> tuple[tuple[Action, ...], ...]:
    """What has to be done before an action: of each group one, since a backward is whole or in halves.

    Args:
        action: Any action.
        num_stages: How many stages the pipeline has.
    """
    stage, kind, microbatch = action.stage, action.kind, action.microbatch
    if kind is Kind.FORWARD:
        return ((Action(stage - 1, kind, microbatch),),) if stage else ()
    if kind is Kind.BACKWARD_WEIGHT:
        return ((Action(stage, Kind.BACKWARD_INPUT, microbatch),),)
    own = (Action(stage, Kind.FORWARD, microbatch),)
    if stage == num_stages - 1:
        return (own,)
    return (own, tuple(Action(stage + 1, later, microbatch) for later in (Kind.BACKWARD, Kind.BACKWARD_INPUT)))


def check_orders(orders: Orders, num_stages: int, num_microbatches: int) -> None:
    """Refuse orders that do not run each stage once forward and once backward on each micro-batch, on one rank.

    Whether ranks would wait for each other for ever is seen by
    :func:`~fxpasses.pipelining.scheduling.simulating.simulate`.

    Raises:
        StageError: An action that is missing, there twice, too early, or on a second rank.
    """
    home: dict[int, int] = {}
    for rank, actions in enumerate(orders):
        done: dict[Action, None] = {}
        for action in actions:
            if home.setdefault(action.stage, rank) != rank:
                raise StageError(f"stage {action.stage} runs on rank {home[action.stage]} and on rank {rank}")
            if action in done:
                raise StageError(f"rank {rank} runs {action} twice")
            _refuse_early(action, done, num_stages, rank)
            done[action] = None
    found = {action: None for actions in orders for action in actions}
    for stage in range(num_stages):
        for microbatch in range(num_microbatches):
            _refuse_missing(stage, microbatch, found)
    if len(found) > sum(1 for action in found if action.stage < num_stages and action.microbatch < num_microbatches):
        raise StageError(f"the orders go beyond {num_stages} stages or {num_microbatches} micro-batches")


def _refuse_early(action: Action, done: dict[Action, None], num_stages: int, rank: int) -> None:
    for group in needs_of(action, num_stages):
        own = [needed for needed in group if needed.stage == action.stage]
        if own and not any(needed in done for needed in own):
            raise StageError(f"rank {rank} runs {action} before {own[0]}")


def _refuse_missing(stage: int, microbatch: int, found: dict[Action, None]) -> None:
    forward, whole, inputs, weights = (Action(stage, kind, microbatch) in found for kind in Kind)
    if not forward or whole + inputs != 1 or inputs != weights:
        raise StageError(
            f"stage {stage} has to run micro-batch {microbatch} once forward and once backward, whole or as inputs "
            "and weights; the orders do not"
        )


def numbered(steps: Iterable[tuple[Kind, int | None]], num_microbatches: int) -> list[Action]:
    """Give each step its micro-batch: the first forward of a stage is that of micro-batch 0, and so on.

    Args:
        steps: Kinds and stages in the order of one rank. Halves and whole backwards of a stage count together; a
            weight step without a stage finishes the oldest backward that waits for its weights, if there is one.
        num_microbatches: Micro-batches from this number on are left out.
    """
    counts: dict[tuple[bool, int], int] = {}
    waiting: list[tuple[int, int]] = []
    actions = []
    for kind, stage in steps:
        if kind is Kind.BACKWARD_WEIGHT or stage is None:
            found = next((entry for entry in waiting if stage in (None, entry[0])), None)
            if found is None:
                continue
            waiting.remove(found)
            actions.append(Action(found[0], kind, found[1]))
            continue
        key = (kind is Kind.FORWARD, stage)
        microbatch = counts.get(key, 0)
        counts[key] = microbatch + 1
        actions.append(Action(stage, kind, microbatch))
        if kind is Kind.BACKWARD_INPUT:
            waiting.append((stage, microbatch))
    return [action for action in actions if action.microbatch < num_microbatches]
