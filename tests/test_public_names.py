"""Every name of the tools this package replaces is where the documentation says."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fxpasses

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


FACES = [
    ".".join(stub.parent.relative_to(Path(fxpasses.__file__).parents[1]).parts)
    for stub in sorted(Path(fxpasses.__file__).parent.rglob("__init__.pyi"))
]


@pytest.mark.parametrize("name", FACES)
def test_a_package_gives_the_names_that_its_stub_lists(name: str) -> None:
    """What the stub of a package lists is there when it is asked for."""
    package = importlib.import_module(name)

    assert [] == [each for each in package.__all__ if not hasattr(package, each)]


def test_importing_a_file_of_a_family_imports_no_other() -> None:
    """A file of a package is loaded alone: its siblings come when they are asked for."""
    code = "import sys, fxpasses.effects.aliasing; print(sorted(name for name in sys.modules if 'fxpasses' in name))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "['fxpasses', 'fxpasses.effects', 'fxpasses.effects.aliasing']" == done.stdout.strip()


def test_importing_a_pass_does_not_import_what_captures() -> None:
    """Torch's dynamo takes as long to import as half of torch, and passes over graphs need none of it."""
    code = "import sys; from fxpasses.passes import EliminateDeadCode; print('torch._dynamo' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "False" == done.stdout.strip()
