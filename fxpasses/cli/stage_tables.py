"""Stages and schedules in the terminal: tables, and sentences where the terminal is too narrow for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fxpasses.units import format_bytes, format_seconds
from fxpasses.wording import listed

if TYPE_CHECKING:
    from rich.console import Console

    from fxpasses.pipelining import Pipe, Recommendation, SchedulePreview
    from fxpasses.pipelining.traffic import Hop

__all__ = ["print_stages"]

MOST_VALUES = 6
NARROW = 100
"""Columns below which a row is a line of text."""


def print_stages(pipe: Pipe, preview: SchedulePreview, recommendation: Recommendation | None, console: Console) -> None:
    """Print the cut, the balance, what travels, the preview, and how the schedules compare."""
    _print_rows(console, "Stages", ("stage", "rank", "forward", "parameters", "modules"), _stage_rows(pipe, preview))
    for sentence in _balance(pipe, preview):
        console.print(sentence, highlight=False)
    if pipe.traffic.hops:
        rows = [_hop_row(hop) for hop in pipe.traffic.hops]
        _print_rows(console, "What travels with each micro-batch", ("from", "to", "bytes", "values"), rows)
    for stage, names in enumerate(pipe.traffic.recomputed):
        if names:
            console.print(f"Stage {stage} computes again: {listed(names, MOST_VALUES)}", highlight=False)
    if recommendation is not None:
        columns = ("schedule", "stages", "a step", "waiting", "peak", "why")
        _print_rows(console, "Schedules", columns, recommendation.table())
    from fxpasses.pipelining.previewing import COLUMNS

    _print_rows(console, preview.title, COLUMNS, preview.table())
    for sentence in _remarks(preview, "" if recommendation else ", or another schedule (--schedule recommend),"):
        console.print(sentence, highlight=False)


def _stage_rows(pipe: Pipe, preview: SchedulePreview) -> list[tuple[str, ...]]:
    from fxpasses.pipelining.contents import stage_contents

    home = {stage: rank.rank for rank in preview.ranks for stage in rank.stages}
    return [
        (
            str(stage),
            str(home[stage]),
            format_seconds(cost.forward),
            format_bytes(cost.parameters),
            str(contents),
        )
        for stage, (cost, contents) in enumerate(zip(preview.costs, stage_contents(pipe), strict=True))
    ]


def _balance(pipe: Pipe, preview: SchedulePreview) -> list[str]:
    """How even the stages are, and how much more even a cut could be."""
    seconds = [cost.forward for cost in preview.costs]
    mean = sum(seconds) / len(seconds)
    slowest = seconds.index(max(seconds))
    found = [f"The slowest stage, {slowest}, takes {seconds[slowest] / mean if mean else 1:.2f} times the mean."]
    if pipe.balance is not None:
        gap = (
            "and this one has just that"
            if pipe.balance.gap < 5e-4
            else f"and this one's is {pipe.balance.gap:.1%} above"
        )
        found.append(
            f"By the cost model no cut has a slowest stage below {format_seconds(pipe.balance.bound)}, "
            f"transfers included, {gap}."
        )
    return found


def _hop_row(hop: Hop) -> tuple[str, ...]:
    values = [f"{name} {format_bytes(size)}" for name, size in sorted(hop.values, key=lambda value: -value[1])]
    return (str(hop.sender), str(hop.sender + 1), format_bytes(hop.bytes), listed(values, MOST_VALUES))


def _remarks(preview: SchedulePreview, another: str) -> list[str]:
    found = [f"{preview.schedule.torch_name}: {preview.schedule.idea} ({preview.schedule.source})."]
    if preview.missing:
        worst = max(preview.ranks, key=lambda rank: rank.missing)
        found.append(
            f"It does not fit: {worst.track} needs {format_bytes(worst.peak)}, {format_bytes(worst.missing)} more than "
            f"it has. More stages or smaller micro-batches{another} may help."
        )
    return found


def _print_rows(console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table, or lines of text in a narrow terminal."""
    if console.width < NARROW:
        console.print(f"\n[bold]{title}[/bold]", highlight=False)
        for row in rows:
            named = [f"{column} {cell}" for column, cell in zip(columns, row, strict=True) if cell]
            console.print("; ".join(named), highlight=False, markup=False)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", title_style="bold", expand=False)
    for at, column in enumerate(columns):
        table.add_column(column, justify="right" if 0 < at < len(columns) - 1 else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
