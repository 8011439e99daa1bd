"""The schedules of ``torch.distributed.pipelining``: what each is called, where it comes from, what it asks for."""

from __future__ import annotations

import difflib
from collections.abc import Callable

import attrs

from fxpasses.errors import StageError
from fxpasses.pipelining.scheduling import orders
from fxpasses.pipelining.scheduling.actions import Action

__all__ = ["SCHEDULES", "Schedule", "find_schedule"]

Order = Callable[[int, int, int, int], list[Action]]


@attrs.frozen
class Schedule:
    """A rule for who runs what when.

    Args:
        name: What it is called here, and by torch's ``get_schedule_class``.
        torch_name: The class in ``torch.distributed.pipelining``.
        source: The paper.
        idea: What it does, in one clause.
        order: Gives the actions of ``(rank, ranks, stages a rank, micro-batches)``.
        per_rank: How many stages each rank runs; None for any number.
        is_v: Whether the second stage of a rank lies on the way back, so that the last stage is on rank 0.
        splits_backward: Whether backwards come in halves, for inputs and for weights.
        in_rounds: Whether the micro-batches have to be a multiple of the rounds.
        least: How many micro-batches each stage needs at least, all stages together; 0 for any number.
    """

    name: str
    torch_name: str
    source: str
    idea: str
    order: Order = attrs.field(eq=False, repr=False)
    per_rank: int | None = None
    is_v: bool = False
    splits_backward: bool = False
    in_rounds: bool = False
    least: int = 0

    def rank_of(self, stage: int, ranks: int) -> int:
        """The rank that runs a stage."""
        turn, place = divmod(stage, ranks)
        return ranks - 1 - place if self.is_v and turn % 2 else place

    def stages_of(self, rank: int, ranks: int, num_stages: int) -> list[int]:
        """The stages that a rank runs.

        Raises:
            StageError: There is no such rank, or it would have nothing to do.
        """
        if not 0 <= rank < ranks:
            raise StageError(f"there is no rank {rank!r}; the ranks are 0 to {ranks - 1}")
        if not (found := [stage for stage in range(num_stages) if self.rank_of(stage, ranks) == rank]):
            raise StageError(
                f"rank {rank} has no stage: there are {num_stages} stages for {ranks} ranks; start {num_stages} "
                f"processes, or cut the model into {ranks} stages"
            )
        return found

    def refusal(self, ranks: int, num_stages: int, num_microbatches: int) -> str | None:
        """Why torch's runtime would refuse these numbers; None when it takes them."""
        if num_stages < ranks:
            return f"{num_stages} stages leave {ranks - num_stages} of {ranks} ranks without one"
        if num_stages % ranks:
            return f"{num_stages} stages are no multiple of {ranks} ranks"
        per_rank = num_stages // ranks
        if self.per_rank not in (None, per_rank):
            return f"it runs {self.per_rank} a rank, and {num_stages} stages on {ranks} ranks are {per_rank} a rank"
        if num_microbatches < self.least * num_stages:
            return (
                f"it needs at least {self.least * num_stages} micro-batches, as many as stages, not {num_microbatches}"
            )
        if self.in_rounds and num_microbatches % (rounds := orders.rounds_of(ranks, num_microbatches)):
            return f"{num_microbatches} micro-batches are no multiple of the {rounds} rounds that {ranks} ranks make"
        return None

    def orders(self, ranks: int, num_stages: int, num_microbatches: int) -> list[list[Action]]:
        """The actions of every rank.

        Raises:
            StageError: torch's runtime would refuse these numbers.
        """
        for what, number in (("ranks", ranks), ("stages", num_stages), ("micro-batches", num_microbatches)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise StageError(f"the number of {what} is a whole number from 1 on, not {number!r}")
        if reason := self.refusal(ranks, num_stages, num_microbatches):
            raise StageError(f"{self.torch_name} cannot run this: {reason}", reason=reason)
        return [self.order(rank, ranks, num_stages // ranks, num_microbatches) for rank in range(ranks)]


_QI = "Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024"

SCHEDULES: tuple[Schedule, ...] = (
    Schedule(
        "gpipe",
        "ScheduleGPipe",
        "Huang et al., GPipe, NeurIPS 2019",
        "all forwards, then all backwards",
        orders.gpipe_order,
        per_rank=1,
    ),
    Schedule(
        "1f1b",
        "Schedule1F1B",
        "Narayanan et al., PipeDream, SOSP 2019",
        "a forward and a backward in turn, so that few micro-batches are held",
        orders.one_forward_one_backward_order,
        per_rank=1,
        least=1,
    ),
    Schedule(
        "interleaved1f1b",
        "ScheduleInterleaved1F1B",
        "Narayanan et al., Efficient Large-Scale Language Model Training (Megatron-LM), SC 2021",
        "1F1B over several stages a rank, for shorter bubbles and more transfers",
        orders.interleaved_order,
        in_rounds=True,
    ),
    Schedule(
        "loopedbfs",
        "ScheduleLoopedBFS",
        "Lamy-Poirier, Breadth-First Pipeline Parallelism, 2022",
        "all micro-batches through one stage of a rank after the other",
        orders.breadth_first_order,
    ),
    Schedule(
        "interleavedzerobubble",
        "ScheduleInterleavedZeroBubble",
        _QI,
        "1F1B whose backward for the weights fills the bubbles",
        orders.zero_bubble_order,
        splits_backward=True,
        in_rounds=True,
    ),
    Schedule(
        "zbvzerobubble",
        "ScheduleZBVZeroBubble",
        _QI,
        "down the ranks and back up, with the weights' backward in the bubbles",
        orders.zero_bubble_v_order,
        per_rank=2,
        is_v=True,
        splits_backward=True,
    ),
    Schedule(
        "dualpipev",
        "ScheduleDualPipeV",
        "DeepSeek-AI, DeepSeek-V3 Technical Report, 2024",
        "down the ranks and back up, a forward beside each backward",
        orders.dual_pipe_v_order,
        per_rank=2,
        is_v=True,
        splits_backward=True,
        least=1,
    ),
)
"""Every schedule of torch's runtime."""

_SHORT = {"interleaved": "interleaved1f1b", "zerobubble": "interleavedzerobubble", "zbv": "zbvzerobubble"}


def find_schedule(name: str | Schedule) -> Schedule:
    """Find a schedule by its name or torch's; capitals, hyphens, spaces and ``Schedule`` in front do not count.

    >>> find_schedule("1F1B").torch_name, find_schedule("zero-bubble").name
    ('Schedule1F1B', 'interleavedzerobubble')

    Raises:
        StageError: No schedule has this name.
    """
    if isinstance(name, Schedule):
        return name
    known = {schedule.name: schedule for schedule in SCHEDULES}
    plain = "".join(letter for letter in str(name).lower() if letter.isalnum()).removeprefix("schedule")
    if found := known.get(_SHORT.get(plain, plain)):
        return found
    nearest = difflib.get_close_matches(plain, [*known, *_SHORT], n=2)
    hint = f"; the nearest are {', '.join(nearest)}" if nearest else ""
    raise StageError(f"there is no schedule {name!r}{hint}; there are {', '.join(known)}")
