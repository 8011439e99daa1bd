"""The report in the terminal: tables, and sentences where the terminal is too narrow for them."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from fxpasses.units import format_bytes, format_seconds
from fxpasses.wording import counted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fxpasses.report.summary import DeviceRow, PathRow, Summary

__all__ = [
    "fullest_moment",
    "idle_share",
    "kinds_shown",
    "memory_split",
    "not_counted",
    "print_placement",
    "print_summary",
    "summary_tables",
    "summary_text",
]

MOST_COPIES = 20
MOST_STEPS = 12
MOST_ADVICE = 3
NARROW, WIDE = 100, 120
"""Columns below which devices, copies and steps are lines of text, and of a report as text; devices also where their
table needs more.
"""
ANY_WIDTH = 10_000


def summary_text(summary: Summary) -> str:
    """What :func:`print_summary` prints on a terminal of 120 columns, without colours."""
    from rich.console import Console

    page = io.StringIO()
    print_summary(summary, Console(file=page, width=WIDE, no_color=True, force_terminal=False))
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())


def print_summary(summary: Summary, console: Console) -> None:
    """Print all tables, and the verdict of the comparison if there was one."""
    for table in summary_tables(summary):
        console.print(table)
    print_placement(summary, console)
    if summary.check is not None:
        console.print(f"The lowered model is {summary.check.sentence()}.", highlight=False)


def summary_tables(summary: Summary) -> Iterator[Table]:
    """Build the tables of what led to the placement: steps, passes."""
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


def print_placement(summary: Summary, console: Console) -> None:
    """Print what each device holds and does, what crosses, what takes the time, and what would help."""
    narrow = console.width < NARROW
    tables = list(_devices_tables(summary))
    unlimited = console.options.update_width(ANY_WIDTH)
    if narrow or any(console.measure(table, options=unlimited).maximum > console.width for table in tables):
        title = "Devices" if summary.training is None else f"Devices in a training step, {summary.training}"
        _print_lines(console, title, (line for row in summary.devices for line in _device_lines(row)))
    else:
        for table in tables:
            console.print(table)
        for row in (row for row in summary.devices if row.peak_when):
            kept = f"; it keeps up to {format_bytes(row.most_saved_bytes)} for the backward"
            console.print(f"{row.name} is fullest {fullest_moment(row)}{kept}.", highlight=False, markup=False)
    if summary.copies:
        if narrow:
            title, rows = _copies(summary)
            lines = (f"{row[4]} {row[0]} ({row[3]}): {row[1]} → {row[2]}, {row[5]}; {row[6]}" for row in rows)
            _print_lines(console, title, lines)
        else:
            console.print(_copies_table(summary))
    for replica in summary.replicas:
        console.print(replica.sentence(), highlight=False, markup=False)
    if summary.path:
        _print_path(summary, console, narrow=narrow)
    for sentence in _sentences(summary):
        console.print(sentence, highlight=False, markup=False)


def _print_lines(console: Console, title: str, lines: Iterable[str]) -> None:
    console.print(f"\n[bold]{title}[/bold]", highlight=False)
    for line in lines:
        for piece in _wrapped(line, console.width):
            console.print(piece, highlight=False, markup=False, soft_wrap=True)


def _wrapped(line: str, width: int) -> list[str]:
    """A line in pieces, all but the first further in; a number stays with its unit."""
    kept = re.sub(r"(?<=\d) (?=[A-Za-z])", "\N{NO-BREAK SPACE}", line)
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    pieces = textwrap.wrap(kept, width, subsequent_indent=indent, break_on_hyphens=False)
    return [piece.replace("\N{NO-BREAK SPACE}", " ") for piece in pieces]


def _device_lines(row: DeviceRow) -> Iterator[str]:
    budget = "no limit" if row.budget_bytes is None else format_bytes(row.budget_bytes)
    load = f"{_seconds(row.estimated_ms)}, idle {idle_share(row)}" if row.nodes else "not used"
    yield f"{row.name} ({row.torch_device}): {counted(row.nodes, 'operator')}, {load}"
    when = f" {fullest_moment(row)}" if row.peak_when else ""
    yield f"  holds {format_bytes(row.peak_bytes)} of {budget}{when}: " + ", ".join(
        f"{name} {format_bytes(size)}" for name, size in memory_split(row) if size
    )
    if row.most_saved_bytes:
        yield f"  keeps up to {format_bytes(row.most_saved_bytes)} for the backward"


def memory_split(row: DeviceRow) -> list[tuple[str, int]]:
    """What is held at the fullest moment, by kind."""
    whole = row.parameter_bytes + row.activation_bytes + row.gradient_bytes + row.optimizer_bytes
    return [
        ("parameters", row.parameter_bytes - row.state_bytes),
        ("state", row.state_bytes),
        ("gradients", row.gradient_bytes),
        ("optimizer", row.optimizer_bytes),
        ("saved", row.saved_bytes),
        ("activations", row.own_bytes),
        ("received", row.peak_copy_bytes),
        ("loaded", max(0, row.peak_bytes - whole)),
    ]


def kinds_shown(summary: Summary) -> list[str]:
    """The kinds of memory that a report tells of: what only training or offloading needs where there is such."""
    only = dict.fromkeys(("gradients", "optimizer", "saved"), summary.training is not None)
    only["loaded"] = any(row.loaded_bytes for row in summary.devices)
    kinds = [name for name, _ in memory_split(summary.devices[0])] if summary.devices else []
    return [kind for kind in kinds if only.get(kind, True)]


def fullest_moment(row: DeviceRow) -> str:
    """When most is held in a training step, in words."""
    return f"{row.peak_when} of {row.peak_op}" if row.peak_op else row.peak_when


def _devices_tables(summary: Summary) -> Iterator[Table]:
    """One table; in training the memory has one of its own."""
    shown = kinds_shown(summary)
    memory = ("device", *shown, "peak", "budget")
    work = ("device", "on", "ops", "load", "idle")
    if summary.training is None:
        columns = ("device", "on", "ops", *memory[1:], "load", "idle")
        cells = [{**_work_cells(row), **_memory_cells(row)} for row in summary.devices]
        yield _table("Devices", columns, _picked(cells, columns), right=columns[2:])
        return
    yield _table("Devices", work, _picked(map(_work_cells, summary.devices), work), right=work[2:])
    rows = _picked(map(_memory_cells, summary.devices), memory)
    yield _table(f"Memory of a training step, {summary.training}", memory, rows, right=memory[1:])


def _picked(cells: Iterable[Mapping[str, str]], columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return (tuple(map(row.__getitem__, columns)) for row in cells)


def _work_cells(row: DeviceRow) -> dict[str, str]:
    load, idle = _seconds(row.estimated_ms), idle_share(row)
    return {"device": row.name, "on": row.torch_device, "ops": str(row.nodes), "load": load, "idle": idle}


def _memory_cells(row: DeviceRow) -> dict[str, str]:
    budget = "no limit" if row.budget_bytes is None else format_bytes(row.budget_bytes)
    split = {kind: format_bytes(size) for kind, size in memory_split(row)}
    return {"device": row.name, **split, "peak": format_bytes(row.peak_bytes), "budget": budget}


def idle_share(row: DeviceRow) -> str:
    """The share of the time in which a device does nothing, as text."""
    whole = row.estimated_ms + row.idle_ms
    return f"{100 * row.idle_ms / whole:.0f}%" if whole else ""


def _seconds(milliseconds: float) -> str:
    return format_seconds(milliseconds / 1e3)


def _copies(summary: Summary) -> tuple[str, list[tuple[str, ...]]]:
    largest = sorted(range(len(summary.copies)), key=lambda index: -summary.copies[index].size)[:MOST_COPIES]
    total = sum(row.size for row in summary.copies)
    more = f", the {len(largest)} largest of {len(summary.copies)}" if len(largest) < len(summary.copies) else ""
    rows: list[tuple[str, ...]] = [
        (row.value, row.source, row.target, row.shape, format_bytes(row.size), _seconds(row.estimated_ms), row.why)
        for row in (summary.copies[index] for index in sorted(largest))
    ]
    back = ", and gradients back" if summary.training is not None else ""
    return f"Copies: {format_bytes(total)} in one run{back}{more}", rows


def _copies_table(summary: Summary) -> Table:
    title, rows = _copies(summary)
    columns = ("value", "from", "to", "shape", "bytes", "estimated", "why")
    return _table(title, columns, rows, right=("bytes", "estimated"))


def _print_path(summary: Summary, console: Console, *, narrow: bool) -> None:
    path = summary.path_steps()
    total = sum(row.estimated_ms for row in path)
    steps = sorted(range(len(path)), key=lambda index: -path[index].estimated_ms)[:MOST_STEPS]
    more = f", the {len(steps)} longest of {len(path)} steps" if len(steps) < len(path) else ""
    title = f"Critical path: {_seconds(total)}{more}"
    rows = [_path_row(path[index], total) for index in sorted(steps)]
    if narrow:
        _print_lines(console, title, (f"{row[3]} ({row[4]}) {_step_name(row)} on {row[2]}; {row[5]}" for row in rows))
        return
    columns = ("what", "name", "where", "seconds", "share", "most of it")
    console.print(_table(title, columns, rows, right=("seconds", "share")))


def _step_name(row: Sequence[str]) -> str:
    return row[1] if row[1].endswith((" copies", " loads", " gradients")) else f"{row[0]} {row[1]}"


def _path_row(row: PathRow, total: float) -> tuple[str, ...]:
    share = f"{100 * row.estimated_ms / total:.0f}%" if total else ""
    heaviest = ", ".join(f"{key} {_seconds(taken)}" for key, taken in row.heaviest if taken)
    return row.kind, row.name, row.where, _seconds(row.estimated_ms), share, heaviest or row.waited_for


def not_counted(summary: Summary) -> str:
    """What the predicted time leaves out, as the end of a sentence."""
    return "" if summary.training is None else ", forward and backward, without what the optimizer computes"


def _a_second(rate: float) -> str:
    return f"{rate:,.0f} a second" if rate >= 1000 else f"{rate:.3g} a second"


def _sentences(summary: Summary) -> Iterator[str]:
    overlapped = sum(row.estimated_ms for row in summary.path)
    is_quicker = bool(summary.path) and overlapped < 0.999 * summary.estimated_ms
    beside = f", {_seconds(overlapped)} where devices work at the same time" if is_quicker else ""
    yield f"One {summary.run} is predicted to take {_seconds(summary.estimated_ms)}{beside}{not_counted(summary)}."
    busiest = max((row.estimated_ms for row in summary.devices), default=0.0)
    if summary.objective == "throughput" and summary.training is not None:
        yield f"The busiest device works {_seconds(busiest)} in a step; budgets hold for one step at a time."
    elif summary.objective == "throughput" and busiest:
        yield f"Samples that follow each other come out every {_seconds(busiest)} at best, {_a_second(1e3 / busiest)}."
    yield from summary.crowded()
    for row in summary.devices:
        if row.traffic_bytes:
            size, took = format_bytes(row.traffic_bytes), f"({_seconds(row.loading_ms)} of its load)"
            if summary.training is None:
                yield f"{row.name} loads {size} of parameters in one run {took}."
            else:
                yield f"{row.name} loads parameters, and sends their gradients back: {size} in one step {took}."
    yield summary.optimality()
    if summary.advice is None:
        return
    if not summary.advice:
        yield "No single larger memory, faster device or faster link would help."
        return
    yield "What would help most:"
    for advice in summary.advice[:MOST_ADVICE]:
        yield f"  {advice.sentence()}"


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        whole = column in right  # numbers are never cut
        width = len(column)  # nor is what they are called
        table.add_column(column, justify="right" if whole else "left", overflow="fold", no_wrap=whole, min_width=width)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
