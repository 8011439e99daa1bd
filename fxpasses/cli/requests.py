"""What ``lower`` and ``place`` are asked alike: a model, devices, how to place it, how to print."""

from __future__ import annotations

import functools
from collections.abc import Callable
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
    objective_option,
    pipeline_option,
    replicate_option,
    topology_of,
    training_option,
)
from fxpasses.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from fxpasses.cli.model_source import ModelSource
    from fxpasses.devices import Topology
    from fxpasses.partitioners import Training
    from fxpasses.plan import Plan

__all__ = ["FILE", "SEARCH", "Request", "takes_request"]

FILE = click.Path(path_type=Path, dir_okay=False)

SEARCH = ("objective", "contiguity", "pins", "time_budget", "seed", "replicate", "offload")
"""What says how to search a placement."""

_MODEL = """

    MODEL is a saved .pt2 file, or package.module:function or file.py:function that returns (model, args) or
    (model, args, kwargs). Without MODEL it is the demo's: a small Llama decoder with random weights.
    """

_OPTIONS: tuple[Callable[..., Any], ...] = (
    click.argument("model", required=False),
    devices_option,
    links_option,
    objective_option,
    click.option("--plan", "plan_file", type=FILE, help="Follow this plan instead of searching."),
    pipeline_option,
    replicate_option,
    training_option,
    click.option(
        "--offload", type=click.Choice(["cpu"]), help="Where parameters may stay if the devices are too small."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print as JSON."),
    no_color_option,
)


@attrs.frozen
class Request:
    """The options that both commands take; see the help texts."""

    model: str | None
    devices: tuple[str, ...]
    links: tuple[str, ...]
    routed: bool
    objective: Any
    plan_file: Path | None
    pipeline: str | None
    replicate: Any
    training: str | None
    offload: str | None
    as_json: bool
    no_color: bool

    def console(self) -> Console:
        """Where the command prints."""
        return make_console(as_json=self.as_json, no_color=self.no_color)

    def plan(self) -> Plan | None:
        """The plan to follow, read from its file.

        Raises:
            InputError: the command line says how to search, too.
            PlanError: there is no such file, or it is no plan.
        """
        from fxpasses.plan import Plan

        if self.plan_file is None:
            return None
        if (option := first_given(SEARCH)) is not None:
            raise InputError(f"--plan follows a plan, and nothing is searched; leave {option} out, or --plan.")
        return Plan.load(self.plan_file)

    def topology(self, *, needed: bool) -> Topology | None:
        """The devices and links; None where none are named and a plan or a map has them.

        Raises:
            InputError: there is no device, a text does not parse, or links are to join devices that are not named.
        """
        if needed or self.devices:
            return topology_of(self.devices, self.links, self.model, routed=self.routed)
        if option := joining_option(self.links, routed=self.routed):
            raise InputError(f"{option} joins two devices; name them with --device, or leave it out.")
        return None

    def training_of(self, plan: Plan | None = None) -> Training | None:
        """The training that is asked for, else that of a plan."""
        from fxpasses.cli.training_option import parse_training

        if self.training is not None:
            return parse_training(self.training)
        return None if plan is None else plan.training

    def arguments(self, source: ModelSource) -> dict[str, Any]:
        """What :func:`fxpasses.lower` and :func:`fxpasses.place` take alike."""
        return {
            "model": source.model,
            "args": source.args,
            "kwargs": source.kwargs,
            "name": source.name,
            "objective": self.objective,
            "pipeline": self.pipeline,
            "replicate": self.replicate,
            "training": self.training_of(),
            "offload": self.offload,
        }


def takes_request(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command these options, as one ``request``, and the text about MODEL to its help."""

    @functools.wraps(command)
    def gathered(**given: Any) -> None:
        request = Request(**{field.name: given.pop(field.name) for field in attrs.fields(Request)})
        command(request, **given)

    gathered.__doc__ = (command.__doc__ or "").rstrip() + _MODEL
    for option in reversed(_OPTIONS):
        gathered = option(gathered)
    return gathered
