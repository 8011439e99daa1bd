"""What the submodule of a part is called."""

from __future__ import annotations

import pytest

from fxpasses.outlining.part_names import is_taken, wished_names


def test_a_part_gets_the_name_that_somebody_wishes_or_a_number() -> None:
    """Names that become the same identifier are told apart."""
    assert {0: "a_b", 1: "a_b_1", 2: "submod_2", 3: "_7"} == wished_names(range(4), {0: "a b", 1: "a.b", 3: "7"})


@pytest.mark.parametrize("name", ["class", "None", "self", "training", "cpu", "meta", "_modules", "graph", "forward"])
def test_a_name_that_python_or_every_module_uses_gets_another_letter(name: str) -> None:
    """As the attribute of a module it would be a syntax error, or take the place of something else."""
    assert is_taken(name)
    assert {"part": f"{name}_"} == wished_names(["part"], {"part": name})


def test_other_names_are_free() -> None:
    """Builtins and names of torch are none of a module's attributes."""
    assert not any(map(is_taken, ("left", "gpu0", "print", "torch", "on_cpu")))
