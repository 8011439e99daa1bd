"""Turn what a process sees when another one dies into a sentence that says where to look."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from fxpasses.errors import FxPassesError, StageError

__all__ = ["explain_failures"]

_PATIENCE = 1.0
"""Seconds to wait for a word of the others once something has gone wrong."""

_KEY = "fxpasses/stopped/"
_TRANSPORT = ("gloo/transport", "Connection closed by peer", "Connection reset by peer", "NCCL", "Broken pipe")


@contextlib.contextmanager
def explain_failures(stages_of: Mapping[int, Sequence[int]], group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Around a step of a pipeline: an exchange that breaks off becomes a StageError that names the ranks to look at.

    A process that stops for a reason of its own leaves a word for the others in the group's store, and raises what it
    would have raised. One that was killed leaves none, which the others tell as well. Nobody hangs: gloo gives up
    after the group's timeout, and at once where a connection closes.

    Args:
        stages_of: The stages of each rank of the group.
        group: The processes; all by default.

    Raises:
        StageError: Another process is gone, or did not answer within the group's timeout.
    """
    try:
        yield
    except BaseException as error:
        rank = dist.get_rank(group)
        if not _is_transport(error):
            _leave_word(group, rank, _cause(error), by_itself=True)
            raise
        _leave_word(group, rank, _what_broke(error), by_itself=False)
        raise StageError(_story(rank, stages_of, group, error), reason=_what_broke(error)) from error


def _is_transport(error: BaseException) -> bool:
    """Whether an error comes from the exchange between processes, and not from the model or the data."""
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, dist.DistError) or (
            type(chain) is RuntimeError and any(sign in str(chain) for sign in _TRANSPORT)
        ):
            return True
        chain = chain.__cause__
    return False


def _cause(error: BaseException) -> str:
    """What began it, in a line; torch's runtime wraps what a stage raises."""
    while error.__cause__ is not None and not isinstance(error, FxPassesError):
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _what_broke(error: BaseException) -> str:
    text = str(error)
    return "no answer within the group's timeout" if "Timed out" in text or "timeout" in text else "connection closed"


def _store_of(group: dist.ProcessGroup | None) -> Any:
    """Where the processes of a group met; torch has no public name for it."""
    known = dist.distributed_c10d
    if group is None:
        return known._get_default_store()
    return known._get_process_group_store(group)


def _leave_word(group: dist.ProcessGroup | None, rank: int, word: str, *, by_itself: bool) -> None:
    with contextlib.suppress(RuntimeError):  # the process that keeps the store may be the one that died
        _store_of(group).set(f"{_KEY}{rank}", f"{'own' if by_itself else 'other'}|{word}")


def _words(ranks: Sequence[int], group: dist.ProcessGroup | None) -> dict[int, str] | None:
    """What the ranks have left; None where the store is gone, too."""
    try:
        store = _store_of(group)
        found = {rank: key for rank in ranks if store.check([key := f"{_KEY}{rank}"])}
        return {rank: store.get(key).decode() for rank, key in found.items()}
    except RuntimeError:
        return None


def _story(
    rank: int, stages_of: Mapping[int, Sequence[int]], group: dist.ProcessGroup | None, error: BaseException
) -> str:
    others = [other for other in stages_of if other != rank]
    words, until = _words(others, group), time.monotonic() + _PATIENCE
    while words is not None and len(words) < len(others) and not _reasons(words) and time.monotonic() < until:
        time.sleep(0.05)
        words = _words(others, group)
    begin = f"{_called(rank, stages_of)} cannot go on: {_what_broke(error)}"
    if words is None:
        return f"{begin}, and the store where the processes met is gone, too; look at the log of the rank that keeps it"
    if reasons := _reasons(words):
        told = "; ".join(f"{_called(other, stages_of)} stopped with {reason}" for other, reason in reasons.items())
        return f"{begin}; {told}"
    silent = [other for other in others if other not in words]
    neighbours = [other for other in silent if _are_neighbours(stages_of[rank], stages_of[other])]
    look = " and ".join(_called(other, stages_of) for other in neighbours or silent or others)
    return f"{begin}; look at the log of {look}: killed, out of memory, stuck, or not started"


def _reasons(words: Mapping[int, str]) -> dict[int, str]:
    parted = {rank: word.partition("|") for rank, word in words.items()}
    return {rank: reason for rank, (kind, _, reason) in parted.items() if kind == "own"}


def _called(rank: int, stages_of: Mapping[int, Sequence[int]]) -> str:
    stages = stages_of[rank]
    return f"rank {rank} (stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))})"


def _are_neighbours(first: Sequence[int], second: Sequence[int]) -> bool:
    return any(abs(one - other) == 1 for one in first for other in second)
