"""The HTML page of a lowering: one file, nothing fetched, readable by whoever was not there."""

from __future__ import annotations

from importlib.resources import files

from fxpasses.partitioners.coverage import Coverage
from fxpasses.report.coverage_section import render_coverage
from fxpasses.report.summary import Summary
from fxpasses.report.tables import idle_share, kinds_shown, memory_split, not_counted
from fxpasses.units import format_bytes, format_seconds

__all__ = ["render_page"]


_WORDS = {
    "parameters": "parameters",
    "state": "state: buffers and constants",
    "gradients": "gradients of parameters",
    "optimizer": "what the optimizer keeps and makes",
    "saved": "saved for the backward",
    "activations": "activations",
    "received": "received: inputs and copies",
    "loaded": "loaded parameters",
}
"""The kinds of memory for those who see them for the first time."""


def _percent(part: float, whole: float) -> str:
    return f"{min(100.0, 100.0 * part / whole):.1f}" if whole else "0"


def render_page(summary: Summary, drawing: str | None = None, *, coverage: Coverage | None = None) -> str:
    """Write a summary as one self-contained HTML page.

    Args:
        summary: The lowering.
        drawing: An SVG picture of the placed graph, if there is one.
        coverage: What a backend covers, if that was measured.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files("fxpasses.report").joinpath("page.html.j2").read_text(encoding="utf-8"))
    return template.render(
        s=summary,
        drawing=_svg_body(drawing),
        coverage=render_coverage(coverage) if coverage is not None else None,
        bytes=format_bytes,
        seconds=format_seconds,
        percent=_percent,
        largest=max((device.peak_bytes for device in summary.devices), default=1),
        split=memory_split,
        idle=idle_share,
        kinds=kinds_shown(summary),
        words=_WORDS,
        not_counted=not_counted,
        busiest=max((device.estimated_ms for device in summary.devices), default=0.0),
        timeline=summary.timeline.svg() if summary.timeline is not None else None,
    )


def _svg_body(drawing: str | None) -> str | None:
    """The ``<svg>`` element alone, without the XML header that HTML does not take."""
    if drawing is None or "<svg" not in drawing:
        return None
    return drawing[drawing.index("<svg") :]
