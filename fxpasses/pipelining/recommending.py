"""Which schedule to take: all of them previewed, the quickest that fits first, and a reason for each of the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from fxpasses.devices import Device, Link, Topology
from fxpasses.errors import StageError
from fxpasses.pipelining.previewing import Optimizer, SchedulePreview, preview
from fxpasses.pipelining.scheduling.schedules import SCHEDULES, Schedule
from fxpasses.pipelining.stage_costs import StageCost, StageFigures, stage_figures
from fxpasses.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from fxpasses.pipelining.pipe import Pipe

__all__ = ["Candidate", "Recommendation", "recommend_schedule"]


@attrs.frozen
class Candidate:
    """A schedule and what speaks for or against it.

    Args:
        schedule: Which one.
        num_stages: How many stages the cut has that it was tried on.
        preview: What it would do; None where torch's runtime would refuse it.
        reason: Why it stands where it stands, in a sentence.
    """

    schedule: Schedule
    num_stages: int
    preview: SchedulePreview | None
    reason: str

    @property
    def is_legal(self) -> bool:
        """Whether torch's runtime takes these numbers."""
        return self.preview is not None

    @property
    def fits(self) -> bool:
        """Whether it can run within the memory of every rank."""
        return self.preview is not None and self.preview.missing == 0


@attrs.frozen
class Recommendation:
    """All schedules, the best first."""

    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate | None:
        """The quickest that fits; None where none does."""
        first = self.candidates[0]
        return first if first.fits else None

    def table(self) -> list[tuple[str, ...]]:
        """One row of text a schedule: its torch name, stages, seconds a step, waiting, peak memory, reason."""
        return [_row(candidate) for candidate in self.candidates]

    def to_json(self) -> list[dict[str, Any]]:
        """The figures, for a program to read."""
        return [
            {
                "schedule": candidate.schedule.name,
                "stages": candidate.num_stages,
                "legal": candidate.is_legal,
                "fits": candidate.fits,
                "reason": candidate.reason,
                "source": candidate.schedule.source,
                "preview": None if candidate.preview is None else candidate.preview.to_json(),
            }
            for candidate in self.candidates
        ]

    def __str__(self) -> str:
        return "\n".join(f"{candidate.schedule.torch_name}: {candidate.reason}" for candidate in self.candidates)


def recommend_schedule(
    stages: Pipe | Sequence[StageCost] | Sequence[Pipe],
    *,
    num_microbatches: int,
    ranks: int | None = None,
    devices: Topology | Iterable[Device] | None = None,
    links: Iterable[Link] = (),
    memory: int | str | None = None,
    backward: float = 2.0,
    optimizer: Optimizer | float = "adam",
    return_outputs: bool = True,
) -> Recommendation:
    """Preview every schedule of torch's runtime and order them.

    First those that fit, by seconds a step, then by memory; then those that do not fit, by the bytes that they lack;
    then those that torch's runtime would refuse. Seconds are compared to four digits.

    Args:
        stages: A pipe, the cost of each stage, or several cuts of one model (schedules differ in how many stages a
            rank they take); a schedule is listed once, with the cut that suits it best.
        num_microbatches: How many micro-batches a step has.
        ranks: How many processes; as many as devices, or as the (smallest) cut has stages, by default.
        devices: What each rank runs on, in the order of ranks.
        links: The connections between them.
        memory: The budget of every rank that has none of its own, in bytes or as ``"40GiB"``.
        backward: How many times a forward's seconds a backward takes, where the cost model says.
        optimizer: Which one, or how many bytes of state it holds for each byte of gradients.
        return_outputs: Whether the last stage collects the model's output, as ``schedule.step`` does by default.

    Raises:
        InputError: Devices, links or sizes that make no sense.
    """
    cuts = _cuts_of(stages)
    topology = None if devices is None else Topology.of(devices, links)
    if topology is not None:
        ranks = ranks or len(topology.devices)
    ranks = ranks or min(map(len, cuts))
    options: dict[str, Any] = {
        "num_microbatches": num_microbatches,
        "ranks": ranks,
        "devices": topology,
        "memory": memory,
        "backward": backward,
        "optimizer": optimizer,
        "return_outputs": return_outputs,
    }
    found = [_best_of([_tried(schedule, cut, options) for cut in cuts]) for schedule in SCHEDULES]
    found.sort(key=_rank)
    return Recommendation(tuple(_with_reason(candidate, found[0]) for candidate in found))


def _cuts_of(stages: Any) -> list[Sequence[StageCost | StageFigures]]:
    if not isinstance(stages, Sequence):
        return [stage_figures(stages)]
    if not stages:
        raise StageError("recommend_schedule() takes a pipe, several, or a StageCost for each stage; it got none")
    if isinstance(stages[0], (StageCost, StageFigures)):
        return [stages]
    return [cut if isinstance(cut, Sequence) else stage_figures(cut) for cut in stages]


def _tried(schedule: Schedule, cut: Sequence[StageCost | StageFigures], options: dict[str, Any]) -> Candidate:
    refusal = schedule.refusal(options["ranks"], len(cut), options["num_microbatches"])
    if refusal is not None:
        return Candidate(schedule, len(cut), None, f"torch's runtime refuses it: {refusal}")
    return Candidate(schedule, len(cut), preview(cut, schedule, **options), "")  # type: ignore[arg-type]  # as preview()


def _rank(candidate: Candidate) -> tuple[float, ...]:
    """Smaller is better."""
    seen = candidate.preview
    if seen is None:
        return (2.0, 0.0, 0.0)
    return (float(seen.missing > 0), float(seen.missing), float(f"{seen.seconds:.3e}"), float(seen.peak))


def _best_of(candidates: Sequence[Candidate]) -> Candidate:
    return min(candidates, key=_rank)


def _with_reason(candidate: Candidate, best: Candidate) -> Candidate:
    seen = candidate.preview
    if seen is None:
        return candidate
    figures = f"{format_seconds(seen.seconds)} a step, {seen.bubble:.0%} waiting, {format_bytes(seen.peak)} at most"
    if seen.missing:
        worst = max(seen.ranks, key=lambda rank: rank.missing)
        reason = (
            f"does not fit: {worst.track} needs {format_bytes(worst.peak)}, {format_bytes(worst.missing)} more than "
            "it has"
        )
    elif candidate is best:
        reason = f"the quickest that fits: {figures}"
    else:
        assert best.preview is not None
        reason = f"{_compared(seen, best.preview)}: {figures}"
    return attrs.evolve(candidate, reason=reason)


def _compared(seen: SchedulePreview, best: SchedulePreview) -> str:
    slower = seen.seconds / best.seconds - 1 if best.seconds else 0.0
    if slower >= 0.001:
        smaller = best.peak - seen.peak
        return f"{slower:.1%} slower" + (f", with {format_bytes(smaller)} less" if smaller > 0 else "")
    return f"as quick, with {format_bytes(seen.peak - best.peak)} more" if seen.peak > best.peak else "as quick"


def _row(candidate: Candidate) -> tuple[str, ...]:
    seen = candidate.preview
    figures = ("", "", "")
    if seen is not None:
        figures = (format_seconds(seen.seconds), f"{seen.bubble:.0%}", format_bytes(seen.peak))
    return (candidate.schedule.torch_name, str(candidate.num_stages), *figures, candidate.reason)
