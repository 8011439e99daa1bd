"""Every name of the tools this package replaces is where the documentation says."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "coming_from_torch.md").read_text(encoding="utf-8")


def promised() -> list[tuple[str, str]]:
    found = []
    for row in re.findall(r"^\| (`.*?) \| `(\S+)` \|$", PAGE, re.MULTILINE):
        names = [name for chunk in row[0].split(";") for name in re.findall(r"`(\w+)`", chunk.partition(":")[2])]
        found += [(row[1], name) for name in names]
    return found


@pytest.mark.parametrize(("module", "name"), promised())
def test_a_name_is_found_by_changing_the_import_line(module: str, name: str) -> None:
    assert name in importlib.import_module(module).__all__
    assert hasattr(importlib.import_module(module), name)


def test_the_table_is_read() -> None:
    assert len(promised()) > 35


def test_importing_the_package_imports_none_of_its_rooms() -> None:
    code = "import sys, fxpasses; print(sorted(name for name in sys.modules if name.startswith('fxpasses')))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "['fxpasses']" == done.stdout.strip()
