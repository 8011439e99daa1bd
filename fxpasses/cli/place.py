"""``fxpasses place``: which operator runs where, as a plan; check a plan in CI, compare plans, simulate them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from fxpasses.cli.options import first_given, refuse_one_file_for_two, show_progress
from fxpasses.cli.requests import FILE, SEARCH, Request, takes_request
from fxpasses.errors import InputError, PlanError
from fxpasses.files import write_text
from fxpasses.wording import counted

if TYPE_CHECKING:
    from rich.console import Console

    from fxpasses.lowering.planned_models import Planned
    from fxpasses.plan import Plan, Violation

__all__ = ["place_command"]


@attrs.frozen
class _Files:
    """Where to write what."""

    out: Path | None
    trace: Path | None
    svg: Path | None
    page: Path | None
    device_map_out: Path | None

    def refuse_unwritable(self) -> None:
        """Say before any work that a file has no folder, or is asked for twice."""
        files = attrs.asdict(self, recurse=False)
        for path in files.values():
            if path is not None and not path.parent.is_dir():
                raise InputError(f"{str(path)!r} cannot be written: there is no folder {str(path.parent)!r}.")
        refuse_one_file_for_two({_flag(name): path for name, path in files.items()})


@click.command("place")
@takes_request
@click.option(
    "--contiguity",
    type=click.Choice(["pipeline", "convex", "free"]),
    help="What a device may take: one turn of a pipeline, a convex part, or anything.",
)
@click.option(
    "--pin",
    "pins",
    multiple=True,
    metavar="MODULE=DEVICE",
    help="Where a module has to run, or an operator by its key in a plan; repeat.",
)
@click.option("--device-map", type=FILE, help="Follow a device map (JSON) instead of searching.")
@click.option("--time-budget", type=float, default=0.5, show_default=True, help="Seconds for the search, about.")
@click.option("--seed", type=int, default=0, show_default=True, help="For what the search draws.")
@click.option("--samples", type=int, default=1, show_default=True, help="How many samples --trace and --svg show.")
@click.option("--out", type=FILE, help="Write the plan to this file.")
@click.option("--device-map-out", type=FILE, help="Write the plan as a device map.")
@click.option("--trace", type=FILE, help="Write a timeline that Perfetto and chrome://tracing load.")
@click.option("--svg", type=FILE, help="Write the timeline as a picture.")
@click.option("--page", type=FILE, help="Write the report as an HTML page.")
@click.option("--diff", "diff_file", type=FILE, help="Say what differs from this plan.")
@click.option("--check", "check_file", type=FILE, help="Only check this plan: exit code 1 if it no longer fits.")
@click.option("--on-this-machine", is_flag=True, help="With --check: the plan's torch devices must be here.")
@click.option("--no-advice", is_flag=True, help="Do not try what would help most.")
def place_command(request: Request, *, check_file: Path | None, on_this_machine: bool, **options: Any) -> None:
    """Plan on which device each operator of MODEL runs; no device needs to be there."""
    if check_file is not None:
        _refuse_beside_check()
        _check(request, check_file, here=on_this_machine)
    else:
        _refuse_unheard(options, here=on_this_machine)
        _place(request, options)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _refuse_beside_check() -> None:
    """A check neither searches nor follows nor writes nor advises."""
    files = ("out", "trace", "svg", "page", "diff_file", "plan_file", "device_map", "device_map_out")
    if (option := first_given((*files, "samples", "no_advice"))) is not None:
        raise InputError(f"--check only checks; leave {option} out, or use --plan to follow a plan.")
    if (option := first_given(SEARCH)) is not None:
        raise InputError(f"--check only checks, and nothing is searched; leave {option} out.")


def _refuse_unheard(options: Mapping[str, Any], *, here: bool) -> None:
    """Options that say something about another one that is not there, or that the other one leaves nothing to say."""
    if here:
        raise InputError("--on-this-machine is about the plan that --check checks; add --check FILE, or leave it out.")
    if options["samples"] < 1:
        raise InputError(f"A simulation takes 1 sample or more, not {options['samples']}.")
    if first_given(["samples"]) and options["trace"] is None and options["svg"] is None:
        raise InputError("--samples says how many samples --trace and --svg show; add one of them, or leave it out.")
    unheard = set(SEARCH) - {"objective", "offload"}  # a device map is measured by the one, and needs the other
    if options["device_map"] is not None and (option := first_given(unheard)) is not None:
        raise InputError(f"--device-map says where it runs, and nothing is searched; leave {option} out, or the map.")


def _place(request: Request, options: Mapping[str, Any]) -> None:
    files = _Files(options["out"], options["trace"], options["svg"], options["page"], options["device_map_out"])
    files.refuse_unwritable()
    topology = request.topology(needed=request.plan_file is None and options["device_map"] is None)
    pins = _pins(options["pins"])

    from fxpasses.cli.model_source import find_model  # takes seconds, so a wrong word is told before
    from fxpasses.lowering.planning import place
    from fxpasses.plan import Plan
    from fxpasses.report.tables import print_placement

    plan = request.plan()
    other = Plan.load(options["diff_file"]) if options["diff_file"] is not None else None
    device_map = _read_map(options["device_map"]) if options["device_map"] is not None else None
    console = request.console()
    with show_progress(console) as progress:
        progress("read the model")
        planned = place(
            devices=topology,
            plan=plan,
            contiguity=options["contiguity"],
            device_map=device_map,
            pinned=pins,
            time_budget=options["time_budget"],
            seed=options["seed"],
            progress=progress,
            **request.arguments(find_model(request.model)),
        )
        if not options["no_advice"]:
            progress("try what would help")
        summary = planned.report(advice=not options["no_advice"])
        written = _write(files, planned, summary, options["samples"])
    difference = other.diff(planned.plan, planned.prepared.graph_module) if other is not None else None
    if request.as_json:
        facts = {**summary.to_json(), "plan": planned.plan.to_json(), "files": [str(file) for file in written]}
        click.echo(
            json.dumps({**facts, **({"diff": difference.to_json()} if difference is not None else {})}, indent=2)
        )
        return
    console.print(f"[bold]{summary.model}[/bold]", highlight=False)
    print_placement(summary, console)
    if difference is not None:
        console.print(f"\n[bold]Changed since {options['diff_file'].name}[/bold]", highlight=False)
        console.print(str(difference), highlight=False, markup=False, soft_wrap=True)
    for file in written:
        console.print(f"wrote {file}", highlight=False, soft_wrap=True)


def _pins(texts: tuple[str, ...]) -> dict[Any, str]:
    pins: dict[Any, str] = {}
    for text in texts:
        module, equals, device = text.rpartition("=")
        if not equals or not device:
            raise InputError(f"--pin {text!r} does not read MODULE=DEVICE; write it like model.layers.0=left.")
        if module in pins:
            raise InputError(f"--pin says twice where {module!r} runs, on {pins[module]} and {device}; take one out.")
        pins[module] = device
    return pins


def _read_map(path: Path) -> dict[str, Any]:
    from fxpasses.plan.json_files import read_json

    data = read_json(path, "device map")
    if not isinstance(data, dict):
        raise InputError(
            f'{str(path)!r} is no device map; write an object like {{"model.layers.0": "left", "": "right"}}.'
        )
    return data


def _write(files: _Files, planned: Planned, summary: Any, samples: int) -> list[Path]:
    texts: dict[Path, str] = {}
    if files.out is not None:
        texts[files.out] = json.dumps(planned.plan.to_json(), indent=2) + "\n"
    if files.device_map_out is not None:
        texts[files.device_map_out] = json.dumps(_map_of(planned), indent=2) + "\n"
    if files.trace is not None or files.svg is not None:
        from fxpasses.simulation import counted_overlap

        overlap = counted_overlap(planned.plan.objective) if samples == 1 else "devices"
        timeline = planned.simulate(samples=samples, overlap=overlap).timeline
        if files.trace is not None:
            detailed = planned.simulate(samples=samples, overlap=overlap, detail="ops").timeline
            texts[files.trace] = detailed.trace_text()
        if files.svg is not None:
            texts[files.svg] = timeline.svg(title=summary.model)
    if files.page is not None:
        from fxpasses.report.page import render_page

        texts[files.page] = render_page(summary)
    for path, text in texts.items():
        write_text(path, text)
    return list(texts)


def _map_of(planned: Planned) -> dict[str, str]:
    """The plan as a device map; what no map can say is said on the standard error."""
    try:
        return planned.plan.device_map(planned.prepared.graph_module)
    except PlanError as error:
        click.echo(f"note: {error.message.partition(';')[0]}; the map says where most of it is.", err=True)
        return planned.plan.device_map(strict=False)


def _check(request: Request, check_file: Path, *, here: bool) -> None:
    from fxpasses.cli.model_source import find_model
    from fxpasses.lowering.preparing import Clock, pipeline_of, prepare
    from fxpasses.plan import Plan

    plan = Plan.load(check_file)
    plan = attrs.evolve(plan, training=request.training_of(plan))
    topology = request.topology(needed=False)
    pipeline = pipeline_of(plan) if request.pipeline is None else request.pipeline
    console = request.console()
    with show_progress(console) as progress:
        progress("read the model")
        source = find_model(request.model)
        prepared = prepare(
            source.model,
            source.args,
            source.kwargs,
            pipeline=pipeline,
            clock=Clock(progress),
        )
        progress("check")
        found = plan.check(prepared.graph_module, devices=topology, on_this_machine=here)
    if request.as_json:
        facts = {"ok": not found, "model": plan.model, "violations": [violation.to_json() for violation in found]}
        click.echo(json.dumps(facts, indent=2))
    else:
        _say(plan, check_file, found, console)
    sys.exit(1 if found else 0)


def _say(plan: Plan, check_file: Path, found: list[Violation], console: Console) -> None:
    if not found:
        used = dict.fromkeys(part.device for part in plan.parts)
        kept = "every budget kept" + (f" in a training step, {plan.training}" if plan.training is not None else "")
        where = f" on {', '.join(used)}" if used else ""
        text = f"{check_file.name} fits: {counted(len(plan.parts), 'part')}{where}, {kept}."
        console.print(text, highlight=False, style="green")
        return
    console.print(f"{check_file.name} does not fit:", highlight=False, style="bold red")
    for violation in found:
        console.print(f"  {violation.kind}: {violation}", highlight=False, markup=False, soft_wrap=True)
