"""The section of the HTML page that tells what a backend covers, why not more, and what to support next."""

from __future__ import annotations

from importlib.resources import files

from fxpasses.partitioners.coverage import Coverage
from fxpasses.units import format_bytes

__all__ = ["render_coverage"]


def render_coverage(coverage: Coverage) -> str:
    """Write a coverage report as a piece of HTML, for :func:`fxpasses.report.page.render_page` or a page of one's own.

    Args:
        coverage: What :func:`fxpasses.partitioners.measure_coverage` found.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(
        files("fxpasses.report").joinpath("coverage.html.j2").read_text(encoding="utf-8")
    )
    return template.render(c=coverage.to_dict(), bytes=format_bytes)
