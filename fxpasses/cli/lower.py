"""``fxpasses lower``: a model onto devices, run there, and written to a folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from fxpasses.cli.options import (
    devices_option,
    links_option,
    make_console,
    no_color_option,
    objective_option,
    pipeline_option,
    replicate_option,
    show_progress,
    topology_of,
)

__all__ = ["lower_command"]


@click.command("lower")
@click.argument("model", required=False)
@devices_option
@links_option
@objective_option
@click.option("--plan", "plan_file", type=click.Path(path_type=Path, dir_okay=False), help="Follow this plan.")
@pipeline_option
@replicate_option
@click.option("--offload", type=click.Choice(["cpu"]), help="Where parameters may stay if the devices are too small.")
@click.option("--out", type=click.Path(path_type=Path), help="A folder for the plan, the program, the page.")
@click.option("--check", is_flag=True, help="Run it, and compare it with the model itself.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@no_color_option
def lower_command(
    model: str | None,
    devices: tuple[str, ...],
    links: tuple[str, ...],
    objective: str,
    plan_file: Path | None,
    pipeline: str | None,
    replicate: str,
    offload: str | None,
    out: Path | None,
    check: bool,
    as_json: bool,
    no_color: bool,
) -> None:
    """Lower MODEL onto devices, and run it there.

    MODEL is a saved .pt2 file, or package.module:function or file.py:function that returns (model, args) or
    (model, args, kwargs). Without MODEL it is the demo's: a small Llama decoder with random weights.
    """
    from fxpasses.cli.model_source import find_model
    from fxpasses.lowering import lower
    from fxpasses.lowering.lowered_folder import check_writable, save
    from fxpasses.plan import Plan
    from fxpasses.report.tables import print_summary

    console = make_console(as_json=as_json, no_color=no_color)
    plan = Plan.load(plan_file) if plan_file is not None else None
    topology = topology_of(devices, links, model) if plan is None or devices else None
    if out is not None:
        check_writable(out)
    with show_progress(console) as progress:
        progress("read the model")
        source = find_model(model)
        lowered = lower(
            source.model,
            source.args,
            source.kwargs,
            devices=topology,
            objective=objective,  # type: ignore[arg-type]  # click has checked the choice
            plan=plan,
            replicate=replicate,  # type: ignore[arg-type]  # so has this one
            pipeline=pipeline,
            offload=offload,
            check=check,
            name=source.name,
            progress=progress,
        )
        files = []
        if out is not None:
            progress("write")
            files = save(lowered, out)
    if as_json:
        click.echo(json.dumps({**lowered.report.to_json(), "files": [str(file) for file in files]}, indent=2))
    else:
        console.print(f"[bold]{lowered.report.model}[/bold]", highlight=False)
        print_summary(lowered.report, console)
        for file in files:
            console.print(f"wrote {file}", highlight=False, soft_wrap=True)
    if lowered.report.check is not None and not lowered.report.check.ok:
        sys.exit(1)
