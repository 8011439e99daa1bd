"""Spans and curves, and the forms that a timeline is written in."""

from __future__ import annotations

import heapq
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs

from fxpasses.errors import InputError
from fxpasses.files import path_of, write_text
from fxpasses.units import format_bytes, format_seconds
from fxpasses.wording import did_you_mean

__all__ = [
    "COLUMNS",
    "Flow",
    "MemoryCurve",
    "Span",
    "Timeline",
    "lanes_of",
]

MemoryCurve = tuple[tuple[float, int], ...]
"""Steps ``(second, bytes)`` in the order of time: from that second on, that many bytes."""

COLUMNS = ("track", "busy", "idle", "peak memory", "budget")
"""The columns of :meth:`Timeline.table`."""


def _seconds(_instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise InputError(f"The {attribute.name} of a span is a number of seconds from 0 on, not {value!r}.")


@attrs.frozen
class Span:
    """One piece of work.

    Args:
        track: Where it happens: a device, or a link.
        name: What it is.
        start: When it begins, in seconds.
        seconds: How long it takes.
        kind: ``compute``, ``copy``, ``load``, ``forward``, ``backward``, ``weight`` or a name of one's own: spans of
            one kind share a colour.
    """

    track: str
    name: str
    start: float = attrs.field(validator=_seconds)
    seconds: float = attrs.field(validator=_seconds)
    kind: str = "compute"

    @property
    def end(self) -> float:
        """When it is over."""
        return self.start + self.seconds


@attrs.frozen
class Flow:
    """What one piece of work hands to another: an arrow from the first to the second."""

    source: Span
    target: Span


def _curves(given: Mapping[str, Iterable[tuple[float, int]]]) -> dict[str, MemoryCurve]:
    return {track: tuple((float(second), int(size)) for second, size in steps) for track, steps in given.items()}


def _spans(given: Iterable[Span]) -> tuple[Span, ...]:
    return tuple(given)


def _flows(given: Iterable[Flow]) -> tuple[Flow, ...]:
    return tuple(given)


def _names(given: Iterable[str]) -> tuple[str, ...]:
    return tuple(given)


@attrs.frozen
class Timeline:
    """Spans of work on tracks, and what each track holds in memory while they run.

    Args:
        spans: The pieces of work; those of one track may overlap.
        memory: For a track, its memory as steps ``(second, bytes)``.
        budgets: For a track, how many bytes it may hold; None for no limit.
        tracks: All tracks from top to bottom; by default those of the spans, then those with memory, as they appear.
        flows: What is handed from span to span.

    Raises:
        InputError: a memory curve whose seconds go back.
    """

    spans: tuple[Span, ...] = attrs.field(converter=_spans)
    memory: Mapping[str, MemoryCurve] = attrs.field(factory=dict, converter=_curves)
    budgets: Mapping[str, int | None] = attrs.field(factory=dict)
    tracks: tuple[str, ...] = attrs.field(default=(), converter=_names)
    flows: tuple[Flow, ...] = attrs.field(default=(), converter=_flows)

    def __attrs_post_init__(self) -> None:
        for track, steps in self.memory.items():
            if any(later[0] < earlier[0] for earlier, later in itertools.pairwise(steps)):
                raise InputError(f"The memory of {track!r} goes back in time; give its steps in the order of seconds.")
        found = dict.fromkeys([*self.tracks, *(span.track for span in self.spans), *self.memory])
        object.__setattr__(self, "tracks", tuple(found))

    @cached_property
    def makespan(self) -> float:
        """Seconds from 0 to the end of the last span."""
        return max((span.end for span in self.spans), default=0.0)

    @cached_property
    def _by_track(self) -> dict[str, list[Span]]:
        """The spans of each track, by start."""
        found: dict[str, list[Span]] = {track: [] for track in self.tracks}
        for span in sorted(self.spans, key=lambda each: (each.start, each.end)):
            found[span.track].append(span)
        return found

    def on(self, track: str) -> list[Span]:
        """The spans of one track, by start.

        Raises:
            InputError: there is no such track.
        """
        self._check_known(track)
        return list(self._by_track[track])

    def busy(self, track: str) -> float:
        """Seconds in which a track does something; what overlaps counts once."""
        total, until = 0.0, 0.0
        for span in self.on(track):
            total += max(0.0, span.end - max(span.start, until))
            until = max(until, span.end)
        return total

    def idle(self, track: str) -> float:
        """Seconds until the end of the whole in which a track does nothing."""
        return max(0.0, self.makespan - self.busy(track))

    def peak(self, track: str) -> int:
        """The most bytes that a track holds at one time; 0 where its memory is not known.

        Raises:
            InputError: there is no such track.
        """
        self._check_known(track)
        return max((size for _second, size in self.memory.get(track, ())), default=0)

    def _check_known(self, track: str) -> None:
        if track not in self.tracks:
            there = ", ".join(self.tracks) or "none"
            raise InputError(
                f"The timeline has no track {track!r}; there are {there}{did_you_mean(track, self.tracks)}"
            )

    def table(self) -> list[tuple[str, ...]]:
        """One row of text a track, under :data:`COLUMNS`."""
        return [self._row(track) for track in self.tracks]

    def _row(self, track: str) -> tuple[str, ...]:
        share = 100 * self.idle(track) / self.makespan if self.makespan else 0.0
        known, budget = track in self.memory, self.budgets.get(track)
        return (
            track,
            format_seconds(self.busy(track)),
            f"{share:.0f}%",
            format_bytes(self.peak(track)) if known else "",
            ("no limit" if known else "") if budget is None else format_bytes(budget),
        )

    def chrome_trace(self) -> dict[str, Any]:
        """The timeline in the trace event format that Perfetto and ``chrome://tracing`` load.

        Each track is a process of its own, so that its memory counter stands beside its spans; spans that overlap are
        on threads of their own. An arrow is a pair of flow events, bound to the two spans. Times are in microseconds,
        as whole nanoseconds; spans which follow each other do not overlap by rounding.
        """
        events: list[dict[str, Any]] = []
        places: dict[Span, tuple[int, int]] = {}
        for number, track in enumerate(self.tracks, start=1):
            spans = lanes_of(self.on(track))
            for lane, span in spans:
                places.setdefault(span, (number, lane + 1))
            events += _named(number, track, 1 + max((lane for lane, _ in spans), default=0))
            events += _completes(number, spans)
            events += [_counter(number, second, size) for second, size in self.memory.get(track, ())]
        known = [flow for flow in self.flows if flow.source in places and flow.target in places]
        for number, flow in enumerate(known, start=1):
            events += _arrow(number, flow, places)
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def trace_text(self) -> str:
        """The trace as the text of a file. Names are not escaped: Perfetto shows escapes in names of tracks as such."""
        return json.dumps(self.chrome_trace(), ensure_ascii=False) + "\n"

    def svg(self, *, title: str = "", width: int = 1000) -> str:
        """The timeline as a picture: bars on tracks, memory curves with their budgets below.

        Args:
            title: What stands above it.
            width: Pixels.
        """
        from fxpasses.timeline.gantt import draw_timeline

        return draw_timeline(self, title=title, width=width)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a file that ends in ``.svg``, the trace to one that ends in ``.json``.

        Raises:
            InputError: it is no path, ends in something else, or cannot be written.
        """
        suffix = path_of(path, "a timeline").suffix.lower()
        if suffix not in (".json", ".svg"):
            raise InputError(
                f"A timeline is written to a .json file (a trace) or to a .svg file (a picture), not to {str(path)!r}."
            )
        write_text(path, self.svg() if suffix == ".svg" else self.trace_text())


def lanes_of(spans: Sequence[Span]) -> list[tuple[int, Span]]:
    """Put spans that overlap into lanes of their own: each takes the lowest one that is free.

    Args:
        spans: Ordered by start.

    Returns:
        The lane of each span, counted from 0, in the order given. Time O(n log n).
    """
    placed: list[tuple[int, Span]] = []
    running: list[tuple[float, int]] = []
    free: list[int] = []
    lanes = 0
    for span in spans:
        while running and running[0][0] <= span.start * (1 + 1e-12):
            heapq.heappush(free, heapq.heappop(running)[1])
        if not free:
            heapq.heappush(free, lanes)
            lanes += 1
        lane = heapq.heappop(free)
        heapq.heappush(running, (span.end, lane))
        placed.append((lane, span))
    return placed


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _named(number: int, track: str, lanes: int) -> Iterator[dict[str, Any]]:
    for tid, name, args in (
        (0, "process_name", {"name": track}),
        (0, "process_sort_index", {"sort_index": number}),
        *((lane, "thread_name", {"name": f"{track} #{lane}" if lanes > 1 else track}) for lane in range(1, lanes + 1)),
        *((lane, "thread_sort_index", {"sort_index": lane}) for lane in range(1, lanes + 1)),
    ):
        yield {"ph": "M", "name": name, "pid": number, "tid": tid, "args": args}


def _completes(number: int, spans: Sequence[tuple[int, Span]]) -> list[dict[str, Any]]:
    """The spans of a track in their order; each ends by when the next one on its lane begins."""
    events, begun = [], dict[int, int]()
    for lane, span in reversed(spans):
        start = _nanoseconds(span.start)
        end = max(start, min(_nanoseconds(span.end), begun.get(lane, _nanoseconds(span.end))))
        begun[lane] = start
        events.append(
            {
                "ph": "X",
                "name": span.name,
                "cat": span.kind,
                "pid": number,
                "tid": lane + 1,
                "ts": start / 1000,
                "dur": (end - start) / 1000,
            }
        )
    return events[::-1]


def _counter(number: int, second: float, size: int) -> dict[str, Any]:
    return {
        "ph": "C",
        "name": "memory",
        "pid": number,
        "tid": 0,
        "ts": _nanoseconds(second) / 1000,
        "args": {"bytes": size},
    }


def _arrow(number: int, flow: Flow, places: Mapping[Span, tuple[int, int]]) -> Iterator[dict[str, Any]]:
    """Both events stand where their span begins: there it is the one that encloses them."""
    for phase, span in (("s", flow.source), ("f", flow.target)):
        pid, tid = places[span]
        event = {
            "ph": phase,
            "name": "needs",
            "cat": "flow",
            "id": number,
            "pid": pid,
            "tid": tid,
            "ts": _nanoseconds(span.start) / 1000,
        }
        yield event if phase == "s" else {**event, "bp": "e"}
