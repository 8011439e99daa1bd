"""Draw a timeline: a bar for each span, memory curves with their budgets, and an axis of time.

The colours are those of Okabe and Ito (https://jfly.uni-koeln.de/color/), which colour-blind readers tell apart; copies
and loads are hatched as well.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

import attrs

from fxpasses.timeline.spans import MemoryCurve, Span, Timeline, lanes_of
from fxpasses.timeline.tracks import ends_of_link, link_track
from fxpasses.units import format_bytes, format_seconds

__all__ = ["draw_timeline"]

COLOURS = {
    "compute": "#0072b2",
    "forward": "#56b4e9",
    "backward": "#e69f00",
    "weight": "#009e73",
    "copy": "#cc79a7",
    "load": "#d55e00",
    "idle": "#c9ced6",
}
OTHERS = ("#f0e442", "#999999")
HATCHED = ("copy", "load")
DARK_TEXT = ("#e69f00", "#f0e442", "#56b4e9", "#cc79a7", "#c9ced6", "#999999")

MARGIN, LANE, CURVE, GAP, AXIS = 16, 24, 40, 14, 30
LETTER = 6.4
"""Pixels of a letter of the labels, on the average."""

NO_XML = re.compile(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML may have, not even escaped."""


@attrs.frozen
class _Bar:
    x: float
    y: float
    width: float
    height: float
    colour: str
    hatched: bool
    label: str
    ink: str
    tip: str


@attrs.frozen
class _Curve:
    points: str
    top: float
    bottom: float
    budget_y: float | None
    caption: str
    over: bool


@attrs.frozen
class _Row:
    track: str
    note: str
    y: float
    height: float
    bars: tuple[_Bar, ...]
    curve: _Curve | None


def draw_timeline(timeline: Timeline, *, title: str = "", width: int = 1000) -> str:
    """Write a timeline as SVG without scripts; a tooltip on each bar has its exact times.

    Bars that would be narrower than half a pixel are drawn as one with their neighbours of the same kind.

    Args:
        timeline: What to draw.
        title: What stands above it.
        width: Pixels.
    """
    from jinja2 import Environment, StrictUndefined

    longest = max((len(text) for track in timeline.tracks for text in (track, _caption(timeline, track))), default=0)
    left = MARGIN + min(240.0, max(90.0, 14 + LETTER * longest))
    scale = (width - left - MARGIN) / (timeline.makespan or 1.0)
    colours = _colours(timeline)
    top: float = MARGIN + (26 if title else 0) + 24
    rows: list[_Row] = []
    for track in timeline.tracks:
        rows.append(_row(timeline, track, top, left, scale, colours))
        top += rows[-1].height + GAP
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(
        files("fxpasses.timeline").joinpath("timeline.svg.j2").read_text(encoding="utf-8")
    )
    picture = template.render(
        title=title,
        width=width,
        height=round(top + AXIS),
        left=left,
        right=width - MARGIN,
        rows=rows,
        legend=_legend(colours),
        ticks=[(left + second * scale, format_seconds(second)) for second in _ticks(timeline.makespan)],
        axis_top=MARGIN + (26 if title else 0) + 20,
        axis_y=top,
        legend_y=MARGIN + (26 if title else 0),
    )
    return NO_XML.sub("\N{REPLACEMENT CHARACTER}", picture)


def _colours(timeline: Timeline) -> dict[str, str]:
    kinds = list(dict.fromkeys(span.kind for span in timeline.spans))
    strange = [kind for kind in kinds if kind not in COLOURS]
    fresh = {kind: OTHERS[index % len(OTHERS)] for index, kind in enumerate(strange)}
    return {kind: COLOURS.get(kind) or fresh[kind] for kind in kinds}


def _legend(colours: dict[str, str]) -> list[dict[str, Any]]:
    entries, x = [], 0.0
    for kind, colour in colours.items():
        entries.append({"x": x, "colour": colour, "hatched": kind in HATCHED, "text": kind})
        x += 34 + LETTER * len(kind)
    return entries


def _row(timeline: Timeline, track: str, top: float, left: float, scale: float, colours: dict[str, str]) -> _Row:
    placed = lanes_of(timeline.on(track))
    lanes = 1 + max((lane for lane, _span in placed), default=0)
    bars = _bars(placed, top, left, scale, colours)
    height = float(lanes * LANE)
    curve = None
    if steps := timeline.memory.get(track):
        curve = _curve(timeline, track, steps, top + height + 2, left, scale)
        height += CURVE + 2
    share = 100 * timeline.idle(track) / timeline.makespan if timeline.makespan else 0.0
    return _Row(_track_label(track), f"{share:.0f}% idle", top, height, tuple(bars), curve)


def _bars(
    placed: Sequence[tuple[int, Span]], top: float, left: float, scale: float, colours: dict[str, str]
) -> list[_Bar]:
    bars = []
    for lane, members in _joined(placed, scale):
        first, last = members[0], max(members, key=lambda span: span.end)
        width = max(0.6, (last.end - first.start) * scale - (1.0 if len(members) == 1 else 0.0))
        name = first.name if len(members) == 1 else f"{len(members)} x {first.kind}"
        colour = colours[first.kind]
        bars.append(
            _Bar(
                left + first.start * scale,
                top + lane * LANE,
                width,
                LANE - 3,
                colour,
                first.kind in HATCHED,
                _fitting(name, width),
                "#1d2530" if colour in DARK_TEXT else "#ffffff",
                f"{name}: {first.kind}, {format_seconds(sum(span.seconds for span in members))} "
                f"from {format_seconds(first.start)} to {format_seconds(last.end)}",
            )
        )
    return bars


def _joined(placed: Iterable[tuple[int, Span]], scale: float) -> list[tuple[int, list[Span]]]:
    """Neighbours in a lane that are too narrow to see, of one kind and without a gap to see, become one bar."""
    groups: list[tuple[int, list[Span]]] = []
    open_group: dict[int, int] = {}
    for lane, span in placed:
        index = open_group.get(lane)
        if index is not None:
            members = groups[index][1]
            near = (span.start - members[-1].end) * scale < 0.5
            narrow = min(span.seconds, members[-1].seconds) * scale < 0.5
            if near and narrow and span.kind == members[-1].kind and span.seconds * scale < 2:
                members.append(span)
                continue
        open_group[lane] = len(groups)
        groups.append((lane, [span]))
    return groups


def _fitting(name: str, width: float) -> str:
    room = int((width - 8) / LETTER)
    return name if len(name) <= room else (_shortened(name, room) if room >= 5 else "")


def _shortened(text: str, room: int) -> str:
    """What fits, the middle left out: names that begin alike often end in a number."""
    kept = room - 1
    return text if len(text) <= room else f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"


def _track_label(track: str, room: int = 30) -> str:
    """A device, or the two ends of a link, of which neither hides the other."""
    ends = ends_of_link(track)
    if ends is None:
        return _shortened(track, room)
    source, target = ends
    left = room - len(link_track("", ""))
    of_target = min(len(target), max(left // 2, left - len(source)))
    return link_track(_shortened(source, left - of_target), _shortened(target, of_target))


def _curve(timeline: Timeline, track: str, steps: MemoryCurve, top: float, left: float, scale: float) -> _Curve:
    budget, peak = timeline.budgets.get(track), timeline.peak(track)
    bottom = top + CURVE - 4
    most = max(peak, budget or 0, 1)
    height = CURVE - 10

    def level(size: float) -> float:
        return bottom - height * size / most

    end = left + max(timeline.makespan, steps[-1][0]) * scale
    points = [f"{left + steps[0][0] * scale:.1f},{bottom:.1f}"]
    for index, (second, size) in enumerate(steps):
        following = left + steps[index + 1][0] * scale if index + 1 < len(steps) else end
        points += [f"{left + second * scale:.1f},{level(size):.1f}", f"{following:.1f},{level(size):.1f}"]
    points.append(f"{end:.1f},{bottom:.1f}")
    over = budget is not None and peak > budget
    return _Curve(
        " ".join(point for point, _same in itertools.groupby(points)),
        top,
        bottom,
        None if budget is None else round(level(budget), 1),
        _caption(timeline, track),
        over,
    )


def _caption(timeline: Timeline, track: str) -> str:
    if track not in timeline.memory:
        return ""
    budget, peak = timeline.budgets.get(track), timeline.peak(track)
    if budget is None:
        return f"peak {format_bytes(peak)}"
    return f"peak {format_bytes(peak)} of {format_bytes(budget)}" + (" (over)" if peak > budget else "")


def _ticks(makespan: float) -> list[float]:
    """About eight round numbers from 0 to the end."""
    if makespan <= 0:
        return [0.0]
    power = 10 ** math.floor(math.log10(makespan / 8))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if makespan / (power * factor) <= 10)
    return [step * index for index in range(int(makespan / step + 1e-9) + 1)]
