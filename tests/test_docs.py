"""The Python blocks of the documentation and the README run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "docs/index.md",
    "docs/lowering.md",
    "docs/partitioning.md",
    "docs/pipelining.md",
    "docs/placement.md",
    "docs/solvers.md",
    "docs/first_pass.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    blocks = [block for block in blocks if not block.startswith("def forward(self, input_ids)")]
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "a_page"}

    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), namespace)
