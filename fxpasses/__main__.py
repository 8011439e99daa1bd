"""``python -m fxpasses``: the same as ``fxpasses``."""

from fxpasses.cli import main

main(prog_name="fxpasses")
