"""The tables of a lowering in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from fxpasses.report.summary import Summary
from fxpasses.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["print_summary", "summary_tables"]

MOST_COPIES = 20


def summary_tables(summary: Summary) -> Iterator[Table]:
    """Build the tables: steps, passes, devices, copies."""
    yield _table(
        "Steps",
        ("step", "seconds"),
        ((step.name, format_seconds(step.seconds)) for step in summary.steps),
        right=("seconds",),
    )
    yield _table(
        "Passes",
        ("pass", "seconds", "nodes before", "after", "what changed"),
        (
            (row.name, format_seconds(row.seconds), str(row.nodes_before), str(row.nodes_after), row.changed)
            for row in summary.passes
        ),
        right=("seconds", "nodes before", "after"),
    )
    yield _table(
        "Devices",
        ("device", "on", "nodes", "parameters", "activations", "peak", "budget", "estimated"),
        (
            (
                row.name,
                row.torch_device,
                str(row.nodes),
                format_bytes(row.parameter_bytes),
                format_bytes(row.activation_bytes),
                format_bytes(row.peak_bytes),
                "no limit" if row.budget_bytes is None else format_bytes(row.budget_bytes),
                format_seconds(row.estimated_ms / 1e3),
            )
            for row in summary.devices
        ),
        right=("nodes", "parameters", "activations", "peak", "budget", "estimated"),
    )
    if summary.copies:
        yield _copies_table(summary)


def _copies_table(summary: Summary) -> Table:
    largest = sorted(summary.copies, key=lambda row: -row.size)[:MOST_COPIES]
    shown = [row for row in summary.copies if row in largest]
    total = sum(row.size for row in summary.copies)
    more = f", the {len(shown)} largest of {len(summary.copies)}" if len(shown) < len(summary.copies) else ""
    return _table(
        f"Copies: {format_bytes(total)} in one run{more}",
        ("value", "from", "to", "shape", "bytes", "estimated"),
        (
            (
                row.value,
                row.source,
                row.target,
                row.shape,
                format_bytes(row.size),
                format_seconds(row.estimated_ms / 1e3),
            )
            for row in shown
        ),
        right=("bytes", "estimated"),
    )


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def print_summary(summary: Summary, console: Console) -> None:
    """Print all tables, and the verdict of the comparison if there was one."""
    for table in summary_tables(summary):
        console.print(table)
    console.print(f"One run is predicted to take {format_seconds(summary.estimated_ms / 1e3)}.", highlight=False)
    if summary.check is not None:
        console.print(f"The lowered model is {summary.check.sentence()}.", highlight=False)
