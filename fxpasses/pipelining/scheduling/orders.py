"""In which order a rank runs its stages on the micro-batches, for each schedule of ``torch.distributed.pipelining``.

Every function takes the rank, how many ranks and stages a rank there are, and the number of micro-batches, and gives
that rank's actions. They name no process group: an order is known before anything runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from fxpasses.pipelining.scheduling.actions import Action, Kind, numbered

__all__ = [
    "breadth_first_order",
    "dual_pipe_v_order",
    "gpipe_order",
    "interleaved_order",
    "one_forward_one_backward_order",
    "rounds_of",
    "zero_bubble_order",
    "zero_bubble_v_order",
]

F, B, I, W = Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT  # noqa: E741  # as in the papers


def _alternating(forwards: Sequence[Action], backwards: Sequence[Action], warmup: int) -> list[Action]:
    """Some forwards ahead, then a forward and a backward in turn, then the backwards that are left."""
    order = list(forwards[:warmup])
    for forward, backward in zip(forwards[warmup:], backwards, strict=False):
        order += [forward, backward]
    return order + list(backwards[len(forwards) - warmup :])


def gpipe_order(rank: int, ranks: int, per_rank: int, num_microbatches: int) -> list[Action]:
    """All forwards, then all backwards (Huang et al., "GPipe", NeurIPS 2019)."""
    return [Action(rank, kind, microbatch) for kind in (F, B) for microbatch in range(num_microbatches)]


def one_forward_one_backward_order(rank: int, ranks: int, per_rank: int, num_microbatches: int) -> list[Action]:
    """1F1B: no more micro-batches under way than stages follow (Narayanan et al., "PipeDream", SOSP 2019)."""
    forwards, backwards = ([Action(rank, kind, at) for at in range(num_microbatches)] for kind in (F, B))
    return _alternating(forwards, backwards, min(ranks - 1 - rank, num_microbatches))


def breadth_first_order(rank: int, ranks: int, per_rank: int, num_microbatches: int) -> list[Action]:
    """Every micro-batch through one stage, then the next (Lamy-Poirier, "Breadth-First Pipeline Parallelism", 2022)."""
    stages = range(rank, ranks * per_rank, ranks)
    microbatches = range(num_microbatches)
    forwards = [Action(stage, F, microbatch) for stage in stages for microbatch in microbatches]
    return forwards + [Action(stage, B, microbatch) for stage in reversed(stages) for microbatch in microbatches[::-1]]


def rounds_of(ranks: int, num_microbatches: int) -> int:
    """In how many rounds interleaved schedules take the micro-batches; these have to be a multiple of it."""
    return max(1, num_microbatches // ranks)


def _looped(rank: int, ranks: int, per_rank: int, num_microbatches: int, kind: Kind) -> list[Action]:
    """A round of micro-batches through the first of a rank's stages, then the second ...; backwards from the last."""
    width = num_microbatches // rounds_of(ranks, num_microbatches)
    steps = []
    for step in range(per_rank * num_microbatches):
        local = step // width % per_rank
        if kind is not F:
            local = per_rank - 1 - local
        steps.append(Action(local * ranks + rank, kind, step // (width * per_rank) * width + step % width))
    return steps


def interleaved_order(rank: int, ranks: int, per_rank: int, num_microbatches: int) -> list[Action]:
    """1F1B over several stages a rank (Narayanan et al., "Megatron-LM", SC 2021, section 2.2)."""
    width = num_microbatches // rounds_of(ranks, num_microbatches)
    warmup = min((per_rank - 1) * width + 2 * (ranks - 1 - rank), per_rank * num_microbatches)
    forwards, backwards = (_looped(rank, ranks, per_rank, num_microbatches, kind) for kind in (F, B))
    return _alternating(forwards, backwards, warmup)


def zero_bubble_order(rank: int, ranks: int, per_rank: int, num_microbatches: int) -> list[Action]:
    """ZB-H1: as interleaved, the weights' half of each backward later (Qi et al., "Zero Bubble", ICLR 2024).

    The half for the weights follows ``rank`` backwards behind the half for the inputs, where the neighbour waits.
    """
    width = num_microbatches // rounds_of(ranks, num_microbatches)
    warmup = min((per_rank - 1) * width + ranks - 1 - rank, per_rank * num_microbatches)
    forwards, backwards = (_looped(rank, ranks, per_rank, num_microbatches, kind) for kind in (F, I))
    order: list[Action] = []
    late: list[Action] = []
    for action in _alternating(forwards, backwards, warmup):
        order.append(action)
        if action.kind is I:
            late.append(Action(action.stage, W, action.microbatch))
            order += [late.pop(0)] if len(late) > rank else []
    return order + late


def zero_bubble_v_order(rank: int, ranks: int, per_rank: int, num_microbatches: int) -> list[Action]:
    """ZB-V: two stages a rank, the second on the way back (Qi et al., "Zero Bubble", ICLR 2024, section 6)."""
    down, up = rank, 2 * ranks - 1 - rank
    count = max(2 * ranks - 1, num_microbatches)  # the pattern needs so many; what is beyond is left out
    ahead = 2 * ranks - 1 - rank
    steps: list[tuple[Kind, int | None]] = [(F, down)] * (ahead - rank)
    steps += [(F, up), (F, down)] * rank
    steps += [(F, up), (I, up), (W, up)] * (ranks - rank)
    for turn in range(count - ranks):
        steps += [(F, down)] if turn < count - ahead else []
        steps += [(I, down), (W, down), (F, up), (I, up), (W, up)]
    steps += [(I, down), (I, up)] * rank
    steps += [(I, down), (W, down)] * (ranks - rank)
    steps += [(W, up)] * rank + [(W, down)] * rank
    return numbered(steps, num_microbatches)


def dual_pipe_v_order(rank: int, ranks: int, per_rank: int, num_microbatches: int) -> list[Action]:
    """DualPipeV: ZB-V whose forwards and backwards come in pairs (DeepSeek-AI, "DeepSeek-V3", 2024, section 3.2.1).

    torch's runtime runs the two of a pair one after the other.
    """
    down, up = rank, 2 * ranks - 1 - rank
    behind = ranks - 1 - rank
    steps: list[tuple[Kind, int | None]] = [(F, down)] * (2 * behind)
    steps += [(F, down), (F, up)] * (rank + 1)
    steps += [(I, up), (W, None), (F, up)] * behind
    steps += [(F, down), (B, up), (F, up), (B, down)] * (num_microbatches - ranks - behind)
    steps += [(B, up), (F, up), (B, down)] * behind
    half = 2 * ((rank + 1) // 2) + (rank + 1) % 2  # from here on, backwards come in halves
    last = [(up, down)[at % 2] for at in range(2 * (rank + 1))]
    steps += [(I if at >= half else B, stage) for at, stage in enumerate(last)]
    steps += [(W, None), (I, down)] * behind
    steps += [(W, None)] * (rank + 1)
    return numbered(steps, num_microbatches)
