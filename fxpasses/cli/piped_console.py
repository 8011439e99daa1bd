"""A console that says nothing of its own where nobody reads on."""

from __future__ import annotations

from rich.console import Console

__all__ = ["PipedConsole"]


class PipedConsole(Console):
    """Rich ends the process with 1 then, which here says that a check failed."""

    def on_broken_pipe(self) -> None:
        """Leave it to the command, which ends as shells tell of it.

        Raises:
            BrokenPipeError: always.
        """
        raise BrokenPipeError
