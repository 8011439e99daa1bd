"""What several commands take: the model, devices and links, the clean-up passes; a console, and progress on it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from fxpasses.cli.training_option import OPTIMIZERS
from fxpasses.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from fxpasses.devices import Topology

__all__ = [
    "devices_option",
    "first_given",
    "joining_option",
    "links_option",
    "make_console",
    "no_color_option",
    "objective_option",
    "pipeline_option",
    "refuse_one_file_for_two",
    "replicate_option",
    "show_progress",
    "topology_of",
    "training_option",
]

WIDTH = 110
"""Columns of a table where there is no terminal to ask, and ``COLUMNS`` does not say."""


Command = TypeVar("Command", bound=Callable[..., Any])


def devices_option(command: Command) -> Command:
    """``--device``, as ``devices``."""
    text = "A device; repeat."
    return click.option("--device", "devices", multiple=True, metavar="NAME=TORCH_DEVICE[,memory=40MiB]", help=text)(
        command
    )


def links_option(command: Command) -> Command:
    """``--link``, as ``links``, and ``--routed``."""
    text = "A connection between two devices; a second one may lead back at another rate."
    link = click.option("--link", "links", multiple=True, metavar="A:B=16GiB/s,5us", help=text)
    text = "Other pairs are joined by the fastest route over these links, not by the default link."
    return link(click.option("--routed", is_flag=True, help=text)(command))


def objective_option(command: Command) -> Command:
    """``--objective``."""
    return click.option(
        "--objective",
        type=click.Choice(["latency", "throughput", "memory", "devices"]),
        default="latency",
        show_default=True,
        help="What to make small: one sample's time, the busiest device, the fullest one, or how many there are.",
    )(command)


def pipeline_option(command: Command) -> Command:
    """``--pipeline``."""
    text = "The clean-up passes, such as 'remove-no-ops,eliminate-dead-code,snapshot-state'."
    return click.option("--pipeline", metavar="TEXT", help=text)(command)


def no_color_option(command: Command) -> Command:
    """``--no-color``."""
    return click.option("--no-color", is_flag=True, help="Print without colours.")(command)


def replicate_option(command: Command) -> Command:
    """``--replicate``."""
    text = "Whether a device computes cheap values (masks, rotary tables) again instead of having them sent."
    choice = click.Choice(["cheaper", "always", "never"])
    return click.option("--replicate", type=choice, default="cheaper", show_default=True, help=text)(command)


def training_option(command: Command) -> Command:
    """``--training``."""
    text = f"Keep the budgets in training steps: {', '.join(OPTIMIZERS)}, or optimizer_slots=2."
    return click.option("--training", metavar="OPTIMIZER[,step_slots=1]", help=text)(command)


def first_given(names: Collection[str]) -> str | None:
    """The first of some parameters that the command line gives, as it is written there; defaults are not given."""
    context = click.get_current_context()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
            return parameter.opts[0]
    return None


def refuse_one_file_for_two(files: Mapping[str, Path | None]) -> None:
    """Say before any work that an option would write over what another one wrote.

    Raises:
        InputError: two options name one file.
    """
    taken: dict[Path, str] = {}
    for option, path in files.items():
        if path is not None and (other := taken.setdefault(path.resolve(), option)) != option:
            raise InputError(f"{other} and {option} both write to {str(path)!r}; give each a file of its own.")


def topology_of(devices: Sequence[str], links: Sequence[str], model: str | None, *, routed: bool) -> Topology:
    """The devices and links asked for; the demo alone has two devices of its own.

    Raises:
        InputError: a text that does not parse, no device, two of one name, or a link to one that is not there; no route
            joins two of the devices where other pairs are routed.
    """
    from fxpasses.devices import Device, Topology, parse_device, parse_link
    from fxpasses.units import MiB

    given = [parse_device(text) for text in devices]
    if not given and model is None:
        given = [Device("left", 20 * MiB), Device("right", 20 * MiB)]
    if not given:
        raise InputError("There is no device to place the model on; give at least one, such as --device left=cpu.")
    join = Topology.routed if routed else Topology.of
    return join(given, [parse_link(text) for text in links])


def joining_option(links: Sequence[str], *, routed: bool) -> str:
    """The option that joins devices, which means nothing without any; "" where none is given."""
    return "--link" if links else "--routed" if routed else ""


def make_console(*, as_json: bool = False, no_color: bool = False) -> Console:
    """Where a command prints; beside JSON, which has the standard output to itself, that is the standard error."""
    from fxpasses.cli.piped_console import PipedConsole

    console = PipedConsole(stderr=as_json, no_color=no_color or None)
    if console.width < 1 or (not console.is_terminal and "COLUMNS" not in os.environ):  # some terminals say 0
        console.width = WIDTH
    return console


@contextlib.contextmanager
def show_progress(console: Console) -> Iterator[Callable[[str], None]]:
    """Name the step that is running: a spinner in a terminal, a plain line elsewhere; prints are no results."""
    has_results = sys.stdout is not None and (console.stderr or not console.is_terminal)  # None: it was closed
    aside = _prints_aside() if has_results else contextlib.nullcontext()
    with aside, _spinner(console) if console.is_terminal else contextlib.nullcontext(_say) as progress:
        yield progress


def _say(step: str) -> None:
    click.echo(f"... {step}", err=True)


@contextlib.contextmanager
def _prints_aside() -> Iterator[None]:
    """What the model's code and the libraries print meanwhile, those in C too, goes to the standard error."""
    sys.stdout.flush()
    results = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if os.name == "posix":
            ctypes.CDLL(None).fflush(None)  # C keeps what it prints to a pipe
        os.dup2(results, 1)
        os.close(results)


@contextlib.contextmanager
def _spinner(console: Console) -> Iterator[Callable[[str], None]]:
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True
    ) as progress:
        task = progress.add_task("start", total=None)
        yield lambda step: progress.update(task, description=step)
