"""``python -m benchmarks``: import every module of this folder, run its cases, print one table."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

import benchmarks
from benchmarks.harness import CASES, Row, run_cases, save_rows
from fxpasses.units import format_seconds

_NOT_CASES = {"__main__", "harness"}


@click.command()
@click.argument("pattern", default="")
@click.option("--quick", is_flag=True, help="The smallest size of each case, once.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the rows here.")
@click.option("--list", "only_list", is_flag=True, help="Name the cases.")
def main(pattern: str, quick: bool, json_file: Path | None, only_list: bool) -> None:
    """Run the cases whose name or module contains PATTERN."""
    for found in sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__)):
        if found not in _NOT_CASES:
            importlib.import_module(f"benchmarks.{found}")
    chosen = [case for case in CASES if pattern in case.name or pattern in case.make.__module__]
    console = Console(width=None if Console().is_terminal else 140)
    if only_list:
        for case in chosen:
            console.print(f"{case.make.__module__.rpartition('.')[2]}: {case.name} {list(case.sizes)}", highlight=False)
        return
    rows = run_cases(chosen, quick=quick, report=lambda row: click.echo(_line(row), err=True))
    table = Table("case", "size", "ours", "peer", "ratio", "promised", "peak", "growth", title="fxpasses and its peers")
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)
    if json_file is not None:
        save_rows(rows, json_file)


def _cells(row: Row) -> list[str]:
    mark = {True: " kept", False: " MISSED", None: ""}[row.kept]
    return [
        row.case,
        f"{row.size:,}",
        format_seconds(row.ours_seconds),
        "-" if row.peer_seconds is None else format_seconds(row.peer_seconds),
        "-" if row.ratio is None else f"{row.ratio:.3g}x",
        "-" if row.promise is None else f"{row.promise:g}x{mark}",
        f"{row.peak_mib:.1f} MiB",
        "-" if row.exponent is None else f"n^{row.exponent:.2f}",
    ]


def _line(row: Row) -> str:
    return "  ".join(_cells(row))


if __name__ == "__main__":
    main()
