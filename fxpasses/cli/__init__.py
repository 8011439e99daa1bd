"""The ``fxpasses`` command."""

from __future__ import annotations

from typing import Any

import click

from fxpasses.cli.lower import lower_command
from fxpasses.cli.place import place_command
from fxpasses.cli.stages import stages_command
from fxpasses.errors import FxPassesError

__all__ = ["main"]


class _Group(click.Group):
    """Errors of this package, and options that click refuses, are one sentence and exit code 2, never a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FxPassesError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(2)
        except click.UsageError as error:
            path = (error.ctx or ctx).command_path
            click.echo(f"error: {error.format_message().removesuffix('.')}; see {path} --help.", err=True)
            ctx.exit(2)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fxpasses")
def main() -> None:
    """Graph-transformation passes over torch.fx, from a model to GraphModules that run on their devices."""


main.add_command(lower_command)
main.add_command(place_command)
main.add_command(stages_command)
