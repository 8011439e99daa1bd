"""Names, options and digests of passes of every kind."""

import functools
import subprocess
import sys

import attrs
import pytest
import torch

from fxpasses import PassBase, PassManager
from fxpasses.pass_base.naming import digest_of, options_of, pass_name, same_name, spelled


def fold(graph_module, size=1): ...


class Plain:
    def __init__(self, size, mode="a"):
        self.size = size
        self.mode = mode

    def __call__(self, graph_module): ...


@attrs.frozen
class Fields(PassBase):
    ops: frozenset = frozenset()
    _private: int = 0

    def call(self, graph_module):
        return graph_module


@pytest.mark.parametrize(
    ("pass_", "name", "options", "text"),
    [
        (fold, "fold", {}, "fold"),
        (functools.partial(fold, size=3), "fold", {"size": 3}, "partial(size=3)"),
        (Plain(2), "Plain", {"size": 2, "mode": "a"}, "Plain(size=2, mode='a')"),
        (Fields(private=4), "Fields", {"ops": frozenset(), "private": 4}, "Fields(ops=frozenset(), private=4)"),
        (Plain, "Plain", {}, "Plain"),
        (PassManager(name="late"), "late", None, None),
    ],
)
def test_every_kind_of_pass_has_a_name_and_options(pass_, name, options, text):
    assert name == pass_name(pass_)
    if options is not None:
        assert options == options_of(pass_)
        assert text == spelled(pass_)


def test_names_are_compared_as_users_write_them():
    assert same_name("remove-detach", "RemoveDetach")
    assert same_name("remove_detach", "RemoveDetach")
    assert not same_name("remove", "RemoveDetach")


def test_digests_depend_on_content_alone():
    def same(size):
        return Fields(frozenset({f"op{i}" for i in range(size)}))

    assert digest_of(same(20)) == digest_of(same(20))
    assert digest_of(Plain(1)) != digest_of(Plain(2))
    assert digest_of(functools.partial(fold, size=1)) != digest_of(functools.partial(fold, size=2))
    assert digest_of(torch.ones(2)) == digest_of(torch.ones(2))
    assert digest_of(torch.ones(2)) != digest_of(torch.zeros(2))
    assert digest_of(torch.ops.aten.add.Tensor) != digest_of(torch.ops.aten.mul.Tensor)
    assert digest_of({1: "a", 2: torch.float32}) == digest_of({2: torch.float32, 1: "a"})
    assert digest_of(torch.ones(2, device="meta")) == digest_of(torch.zeros(2, device="meta"))


def test_complaint_39_digests_are_the_same_in_every_process():
    """Complaint 39: a config hash per pass that can key a cache."""
    code = (
        "import torch; from fxpasses.pass_base.naming import digest_of; "
        "print(digest_of([{'a', 'b', 'c'}, torch.ops.aten.add, torch.nn.Linear, len, torch.arange(3)]))"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
        for env in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"})
    ]

    assert runs[0].stdout == runs[1].stdout
    assert 65 == len(runs[0].stdout)
