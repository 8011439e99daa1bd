"""The ``fxpasses`` command."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from fxpasses.cli.lower import lower_command
from fxpasses.cli.place import place_command
from fxpasses.cli.stages import stages_command
from fxpasses.cli.warm_up import warm_up_command
from fxpasses.errors import FxPassesError

__all__ = ["main"]


_NOBODY_READS = 128 + 13
"""The exit code of what a shell ends as nobody reads what it writes."""


@contextlib.contextmanager
def _one_sentence(context: click.Context) -> Iterator[None]:
    """What is refused, or cannot be written, is one sentence and exit code 2; the help goes its own way."""
    try:
        yield
    except FxPassesError as error:
        click.echo(f"error: {error}", err=True)
        context.exit(2)
    except BrokenPipeError:  # nobody reads on; the code that shells give, as 1 says that a check failed
        _write_no_more()
        context.exit(_NOBODY_READS)
    except OSError as error:
        click.echo(f"error: {error}.", err=True)
        _write_no_more()
        context.exit(2)
    except click.UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # click 8.2 and later: the command alone
            raise
        text, path = error.format_message(), (error.ctx or context).command_path
        click.echo(
            f"error: {text}" if text.endswith("?") else f"error: {text.rstrip('.')}; see {path} --help.", err=True
        )
        context.exit(2)


def _write_no_more() -> None:
    """What could not be written is let go: Python would try once more in the end, and has an exit code for that."""
    with contextlib.suppress(io.UnsupportedOperation):  # in tests there is no file behind
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Group(click.Group):
    """Bad input is one sentence and exit code 2, never a traceback."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _one_sentence(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with _one_sentence(ctx):
            return super().invoke(ctx)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fxpasses")
def main() -> None:
    """Graph-transformation passes over torch.fx, from a model to GraphModules that run on their devices."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of models and devices may be in any letters
        sys.stdout.reconfigure(errors="backslashreplace")


main.add_command(lower_command)
main.add_command(place_command)
main.add_command(stages_command)
main.add_command(warm_up_command)
