"""The ``fxpasses`` command."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from fxpasses.errors import FxPassesError

__all__ = ["main"]

WIDTH = 110
"""Columns of a table where there is no terminal to ask."""


class _Group(click.Group):
    """Errors of this package are one sentence and exit code 2, never a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FxPassesError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(2)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fxpasses")
def main() -> None:
    """Graph-transformation passes over torch.fx, from a model to GraphModules that run on their devices."""


@main.command()
@click.argument("model", required=False)
@click.option(
    "--device", "devices", multiple=True, metavar="NAME=TORCH_DEVICE[,memory=40MiB]", help="A device; repeat."
)
@click.option("--link", "links", multiple=True, metavar="A:B=16GiB/s,5us", help="A connection between two devices.")
@click.option(
    "--objective",
    type=click.Choice(["latency", "throughput", "memory"]),
    default="latency",
    show_default=True,
    help="What to make small: one sample's time, the busiest device, or the number of devices.",
)
@click.option("--pipeline", metavar="TEXT", help="The clean-up passes, such as 'remove-detach,eliminate-dead-code'.")
@click.option("--out", type=click.Path(path_type=Path), help="A folder for the plan, the program, the page.")
@click.option("--check", is_flag=True, help="Run it, and compare it with the model itself.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def lower(
    model: str | None,
    devices: tuple[str, ...],
    links: tuple[str, ...],
    objective: str,
    pipeline: str | None,
    out: Path | None,
    check: bool,
    as_json: bool,
) -> None:
    """Lower MODEL onto devices, and run it there.

    MODEL is a saved .pt2 file, or package.module:function or file.py:function that returns (model, args) or
    (model, args, kwargs). Without MODEL it is the demo's: a small Llama decoder with random weights.
    """
    from rich.console import Console

    from fxpasses.devices import Topology, parse_link
    from fxpasses.lowered_folder import check_writable, save
    from fxpasses.lowering import DEFAULT_PIPELINE
    from fxpasses.lowering import lower as lower_model
    from fxpasses.model_source import find_model
    from fxpasses.report.tables import print_summary

    console = Console(stderr=as_json)
    if not console.is_terminal:
        console.width = WIDTH
    topology = Topology.of(_devices(devices, model), [parse_link(text) for text in links])
    if out is not None:
        check_writable(out)
    with _progress(console) as progress:
        progress("read the model")
        source = find_model(model)
        lowered = lower_model(
            source.model,
            source.args,
            source.kwargs,
            devices=topology,
            objective=objective,  # type: ignore[arg-type]  # click has checked the choice
            pipeline=DEFAULT_PIPELINE if pipeline is None else pipeline,
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


def _devices(texts: tuple[str, ...], model: str | None) -> list[Any]:
    """The devices asked for; the demo alone has two of its own."""
    from fxpasses.devices import Device, parse_device
    from fxpasses.units import MiB

    if not texts and model is None:
        return [Device("left", 20 * MiB), Device("right", 20 * MiB)]
    return [parse_device(text) for text in texts]


@contextlib.contextmanager
def _progress(console: Any) -> Iterator[Callable[[str], None]]:
    """Name the step that is running: a spinner in a terminal, a plain line elsewhere."""
    if not console.is_terminal:
        yield lambda step: click.echo(f"... {step}", err=True)
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True
    ) as progress:
        task = progress.add_task("start", total=None)
        yield lambda step: progress.update(task, description=step)


if __name__ == "__main__":
    main()
