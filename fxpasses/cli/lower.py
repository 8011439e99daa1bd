"""``fxpasses lower``: a model onto devices, run there, and written to a folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from fxpasses.cli.options import show_progress
from fxpasses.cli.requests import Request, takes_request

__all__ = ["lower_command"]


@click.command("lower")
@takes_request
@click.option("--out", type=click.Path(path_type=Path), help="A folder for the plan, the program, the page.")
@click.option("--check", is_flag=True, help="Run it, and compare it with the model itself.")
def lower_command(request: Request, *, out: Path | None, check: bool) -> None:
    """Lower MODEL onto devices, and run it there."""
    topology = request.topology(needed=request.plan_file is None)

    from fxpasses.cli.model_source import find_model  # takes seconds, so a wrong word is told before
    from fxpasses.lowering import lower
    from fxpasses.lowering.lowered_folder import check_writable, save
    from fxpasses.report.tables import print_summary

    console = request.console()
    plan = request.plan()
    if out is not None:
        check_writable(out)
    with show_progress(console) as progress:
        progress("read the model")
        source = find_model(request.model)
        lowered = lower(devices=topology, plan=plan, check=check, progress=progress, **request.arguments(source))
        files = []
        if out is not None:
            progress("write")
            files = save(lowered, out)
    if request.as_json:
        click.echo(json.dumps({**lowered.report.to_json(), "files": [str(file) for file in files]}, indent=2))
    else:
        console.print(f"[bold]{lowered.report.model}[/bold]", highlight=False)
        print_summary(lowered.report, console)
        for file in files:
            console.print(f"wrote {file}", highlight=False, soft_wrap=True)
    if lowered.report.check is not None and not lowered.report.check.ok:
        sys.exit(1)
