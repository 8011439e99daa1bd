"""``fxpasses stages``: a model cut into pipeline stages, how even they are, and a schedule on them, simulated."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from fxpasses.cli.options import (
    devices_option,
    first_given,
    joining_option,
    links_option,
    make_console,
    no_color_option,
    refuse_one_file_for_two,
    show_progress,
    topology_of,
)
from fxpasses.errors import InputError
from fxpasses.files import write_text

if TYPE_CHECKING:
    from fxpasses.cli.model_source import ModelSource
    from fxpasses.devices import Topology
    from fxpasses.pipelining import Pipe, Recommendation, SchedulePreview

__all__ = ["stages_command"]

FILE = click.Path(path_type=Path, dir_okay=False)
RECOMMEND = "recommend"
A_RANK = 4
"""Micro-batches for each rank where none are asked for."""


@attrs.frozen
class Wish:
    """What was asked for."""

    stages: int | None
    ranks: int | None
    cuts: tuple[str, ...]
    schedule: str
    microbatches: int | None
    memory: str | None
    optimizer: str
    backward: float
    measure: bool


@click.command("stages")
@click.argument("model", required=False)
@click.option("--stages", type=click.IntRange(min=1), help="How many stages; as many as ranks by default.")
@click.option("--at", "cuts", multiple=True, metavar="MODULE", help="Begin a stage at a module instead; repeat.")
@click.option(
    "--schedule", default="1f1b", show_default=True, help="A schedule's name, or 'recommend' for all of them."
)
@click.option("--microbatches", type=click.IntRange(min=1), help="Micro-batches a step.  [default: 4 a rank]")
@click.option("--ranks", type=click.IntRange(min=1), help="How many processes; one a device by default.")
@devices_option
@links_option
@click.option("--memory", metavar="SIZE", help="What each rank may hold, such as 40GiB.")
@click.option(
    "--optimizer",
    type=click.Choice(["adam", "momentum", "sgd"]),
    default="adam",
    show_default=True,
    help="Its state counts.",
)
@click.option("--backward", type=float, default=2.0, show_default=True, help="Seconds of a backward, in forwards.")
@click.option("--measure", is_flag=True, help="Time the stages here instead of asking the cost model.")
@click.option("--trace", type=FILE, help="Write a timeline that Perfetto and chrome://tracing load.")
@click.option("--svg", type=FILE, help="Write the timeline as a picture.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@no_color_option
def stages_command(
    model: str | None,
    devices: tuple[str, ...],
    links: tuple[str, ...],
    routed: bool,
    trace: Path | None,
    svg: Path | None,
    as_json: bool,
    no_color: bool,
    **options: Any,
) -> None:
    """Cut MODEL into pipeline stages and preview a schedule; nothing is started.

    MODEL is a saved .pt2 file, or package.module:function or file.py:function that returns (model, args) or
    (model, args, kwargs): the inputs of one micro-batch. Without MODEL it is the demo's: a small Llama decoder.
    """
    from fxpasses.cli.model_source import find_model
    from fxpasses.pipelining.scheduling.schedules import find_schedule

    wish = Wish(**options)
    if wish.schedule != RECOMMEND:
        find_schedule(wish.schedule)  # a wrong name is told before the model is read
    if wish.measure and first_given(["backward"]):
        raise InputError("--measure times the backward, too; leave --backward out, or --measure.")
    refuse_one_file_for_two({"--trace": trace, "--svg": svg})
    console = make_console(as_json=as_json, no_color=no_color)
    topology = _topology(devices, links, routed=routed)
    with show_progress(console) as progress:
        progress("read the model")
        source = find_model(model)
        progress("cut")
        pipes = _cut(source, wish, topology)
        progress("preview")
        found = _previewed(pipes, source, wish, topology)
    if trace is not None:
        write_text(trace, found.preview.timeline().trace_text())
    if svg is not None:
        write_text(svg, found.preview.svg())
    if as_json:
        click.echo(json.dumps(_to_json(source.name, found), indent=2))
        return
    from fxpasses.cli.stage_tables import print_stages

    console.print(f"[bold]{source.name}[/bold]", highlight=False)
    print_stages(found.pipe, found.preview, found.recommendation, console)
    for file in (trace, svg):
        if file is not None:
            console.print(f"wrote {file}", highlight=False, soft_wrap=True)


@attrs.frozen
class _Found:
    """A cut with a schedule on it, and how that compares with others."""

    pipe: Pipe
    preview: SchedulePreview
    recommendation: Recommendation | None


def _topology(devices: Sequence[str], links: Sequence[str], *, routed: bool) -> Topology | None:
    if devices:
        return topology_of(devices, links, None, routed=routed)
    if option := joining_option(links, routed=routed):
        raise InputError(f"{option} joins two devices; name them with --device.")
    return None


def _cut(source: ModelSource, wish: Wish, topology: Topology | None) -> list[Pipe]:
    """The model in stages; for a recommendation without a number of stages, with one and with two a rank."""
    from fxpasses.pipelining import SplitPoint, find_schedule, pipeline

    ranks = _ranks(wish, topology)
    if wish.cuts:
        if wish.stages not in (None, len(wish.cuts) + 1):
            raise InputError(f"{len(wish.cuts)} times --at makes {len(wish.cuts) + 1} stages, not {wish.stages}.")
        spec = dict.fromkeys(wish.cuts, SplitPoint.BEGINNING)
        return [pipeline(source.model, source.args, _kwargs(source), spec)]
    if wish.stages is not None:
        counts = [wish.stages]
    elif wish.schedule == RECOMMEND:
        counts = [ranks or 2, 2 * (ranks or 2)]
    else:
        counts = [(find_schedule(wish.schedule).per_rank or 1) * (ranks or 2)]
    return list(_cut_evenly(source, counts, topology))


def _cut_evenly(source: ModelSource, counts: Sequence[int], topology: Topology | None) -> Iterator[Pipe]:
    from fxpasses.pipelining import pipeline

    for count in counts:
        one_each = topology is not None and count == len(topology.devices)
        yield pipeline(
            source.model,
            source.args,
            _kwargs(source),
            "auto",
            num_stages=None if one_each else count,
            devices=topology.devices if one_each and topology is not None else None,
            links=topology.links if one_each and topology is not None else (),
        )


def _kwargs(source: ModelSource) -> dict[str, Any] | None:
    return None if source.kwargs is None else dict(source.kwargs)


def _ranks(wish: Wish, topology: Topology | None) -> int | None:
    count = None if topology is None else len(topology.devices)
    if count is not None and wish.ranks not in (None, count):
        raise InputError(f"--ranks {wish.ranks} does not fit {count} devices; name one device for each rank.")
    return count or wish.ranks


def _previewed(pipes: Sequence[Pipe], source: ModelSource, wish: Wish, topology: Topology | None) -> _Found:
    from fxpasses.pipelining import find_schedule, preview, recommend_schedule
    from fxpasses.pipelining.stage_costs import measure_stage_costs, stage_figures

    if wish.measure and source.args is None:
        raise InputError("--measure needs inputs to run the model on; a .pt2 file has none, name a function instead.")
    costs: list[Any] = [
        measure_stage_costs(pipe, source.args or (), source.kwargs) if wish.measure else stage_figures(pipe)
        for pipe in pipes
    ]
    ranks = _ranks(wish, topology)
    if ranks is None:
        fewest = min(pipe.num_stages for pipe in pipes)
        one = wish.schedule == RECOMMEND
        ranks = fewest if one else max(1, fewest // (find_schedule(wish.schedule).per_rank or 1))
    options: dict[str, Any] = {
        "num_microbatches": wish.microbatches or A_RANK * ranks,
        "ranks": ranks,
        "devices": _in_order(topology, pipes),
        "memory": wish.memory,
        "backward": wish.backward,
        "optimizer": wish.optimizer,
    }
    if wish.schedule != RECOMMEND:
        return _Found(pipes[0], preview(costs[0], wish.schedule, **options), None)
    recommendation = recommend_schedule(costs, **options)
    best = recommendation.candidates[0]
    if best.preview is None:
        raise InputError(f"No schedule takes these numbers; {best.schedule.torch_name}: {best.reason}.")
    pipe = next(pipe for pipe in pipes if pipe.num_stages == best.num_stages)
    return _Found(pipe, best.preview, recommendation)


def _in_order(topology: Topology | None, pipes: Sequence[Pipe]) -> Topology | None:
    """The devices in the order of the stages, where the cut chose it."""
    if topology is None:
        return None
    for pipe in pipes:
        if pipe.balance is not None and sorted(pipe.balance.devices) == sorted(d.name for d in topology.devices):
            return attrs.evolve(topology, devices=tuple(topology[name] for name in pipe.balance.devices))
    return topology


def _to_json(name: str, found: _Found) -> dict[str, Any]:
    from fxpasses.pipelining.contents import stage_contents

    balance = found.pipe.balance
    contents = stage_contents(found.pipe)
    return {
        "model": name,
        "stages": [
            {"modules": list(each.modules), "operators": each.operators, **attrs.asdict(cost)}
            for each, cost in zip(contents, found.preview.costs, strict=True)
        ],
        "travels": [
            {"from": hop.sender, "to": hop.sender + 1, "bytes": hop.bytes, "values": dict(hop.values)}
            for hop in found.pipe.traffic.hops
        ],
        "balance": None
        if balance is None
        else {"loads": list(balance.loads), "bound": balance.bound, "gap": balance.gap},
        "preview": found.preview.to_json(),
        "recommendation": None if found.recommendation is None else found.recommendation.to_json(),
    }
