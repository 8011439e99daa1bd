"""``fxpasses warm-up``: compile what the searches for placements run, once after an installation."""

from __future__ import annotations

import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor

import click

from fxpasses.cli.options import make_console, no_color_option, show_progress

__all__ = ["warm_up_command"]


@click.command("warm-up")
@no_color_option
def warm_up_command(no_color: bool) -> None:
    """Compile the searches for placements, so that no placement has to.

    Once after an installation, such as in the image of a CI. What is compiled is kept beside the sources, in
    NUMBA_CACHE_DIR if that is set, or else in a folder of the user.
    """
    from fxpasses.partitioners.solvers.compiled_ahead import HALVES

    console, begun = make_console(no_color=no_color), time.perf_counter()
    with show_progress(console) as progress:
        progress("compile the searches")
        with ProcessPoolExecutor(len(HALVES), multiprocessing.get_context("spawn")) as processes:
            folders = list(processes.map(_compile, HALVES))
    seconds = time.perf_counter() - begun
    console.print(
        f"compiled in {seconds:.0f} s, kept in {os.path.commonpath(folders)}", highlight=False, soft_wrap=True
    )


def _compile(half: str) -> str:
    """In a process of its own."""
    from fxpasses.partitioners.solvers.compiled_ahead import HALVES

    return HALVES[half]()
