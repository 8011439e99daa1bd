"""The program that a caller gives is left as it is; what lowering changes is a copy."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lowering_models import Conditional, KeyValueCache, Mlp, Tied
from torch import Tensor, nn

from fxpasses import CaptureError, Device, InputError, load, lower, place, save
from fxpasses.lowering.program_copies import copied_program, with_true_users
from fxpasses.programs import capture


def texts(program: torch.export.ExportedProgram) -> list[str]:
    graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    return [str(program.graph_signature), *map(str, graphs)]


def test_a_program_that_is_given_stays_as_it_is() -> None:
    """Clean-up passes worked on the caller's own graph."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Identity(), nn.Linear(4, 4)).eval()
    program = torch.export.export(model, (torch.randn(2, 4),))
    before = texts(program)
    lowered = lower(program, devices=[Device("only")], check=True)
    place(program, devices=[Device("only")])

    assert before == texts(program)
    assert len(lowered.program.graph.nodes) < len(program.graph.nodes)
    assert lowered.report.check is not None
    assert lowered.report.check.exact


def test_a_copy_has_the_same_names_and_tensors() -> None:
    """Graphs, bodies and signature are its own; parameters, buffers and constants are shared."""
    cache = KeyValueCache(), (torch.randn(1, 1, 16), torch.tensor([2]))
    for model, args in ((Mlp(width=8), (torch.randn(2, 8),)), (Tied(), (torch.tensor([[1, 2]]),)), cache):
        program = capture(model, args)
        copied = copied_program(program)

        assert texts(program) == texts(copied)
        assert program.graph is not copied.graph
        assert [*program.state_dict] == [*copied.state_dict]
        assert all(program.state_dict[name] is copied.state_dict[name] for name in program.state_dict)
        assert model(*args).shape == copied.module()(*args).shape


def test_bodies_are_copied() -> None:
    """A branch of the copy is changed without the original."""
    program = capture(Conditional(), (torch.randn(2, 16),))
    copied = copied_program(program)
    before = texts(program)
    for module in copied.graph_module.children():
        if isinstance(module, torch.fx.GraphModule):
            with module.graph.inserting_before(module.graph.output_node()):
                module.graph.call_function(torch.rand, (2,))

    assert before == texts(program)
    assert before != texts(copied)


def test_users_that_torch_has_lost_are_found_again() -> None:
    """torch 2.13 exports a write to a slice before a region with nodes that do not know their users."""

    class Written(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * 1.5
            y[:, ::2].add_(1)
            with torch.no_grad():
                z = y.softmax(-1)
            return y * z

    x = torch.randn(2, 4)
    program = torch.export.export(Written(), (x,))
    devices = [Device("left"), Device("right")]
    for user in program.graph.nodes:
        for used in user.all_input_nodes:
            used.users.pop(user, None)  # so that the test does not depend on what torch loses

    with_true_users(program)

    assert all(user in used.users for user in program.graph.nodes for used in user.all_input_nodes)
    program.graph.lint()
    assert torch.equal(Written()(x), lower(Written(), (x,), devices=devices)(x))


class Noise(nn.Module):
    """Arguments called ``from``, once left at their defaults and once given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + torch.empty(2, 4).uniform_() + torch.empty(2, 4).uniform_(0.5)


def test_arguments_called_as_words_of_python_are_saved(tmp_path: Path) -> None:
    """Torch 2.13 wrote x.uniform_() and did not read it again."""
    x = torch.randn(2, 4)
    lowered = lower(Noise(), (x,), devices=[Device("only")])
    save(lowered, tmp_path)
    torch.manual_seed(0)
    expected = lowered(x)

    for again in (load(tmp_path), pickle.loads(pickle.dumps(lowered))):
        torch.manual_seed(0)

        assert torch.equal(expected, again(x))


def test_a_saved_program_that_torch_cannot_read_is_called_one(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(Noise(), (torch.randn(2, 4),)), tmp_path / "noise.pt2")

    with pytest.raises(InputError, match=r"noise\.pt2' is a saved program that torch\.export\.load cannot read \("):
        lower(tmp_path / "noise.pt2", devices=[Device("only")])


UNKNOWN = """
import torch
from torch.utils import _pytree


class Answer:
    def __init__(self, value):
        self.value = value


_pytree.register_pytree_node(
    Answer, lambda own: ([own.value], None), lambda values, _: Answer(*values), serialized_type_name="somewhere.Answer"
)


class Model(torch.nn.Module):
    def forward(self, x):
        return Answer(x + 1)


torch.export.save(torch.export.export(Model(), (torch.ones(2),)), "unknown.pt2")
"""


def test_a_class_that_is_not_registered_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Torch says to look at the warnings above, where there are none; a Hugging Face model gives such a class."""
    subprocess.run([sys.executable, "-c", UNKNOWN], cwd=tmp_path, check=True)

    with pytest.raises(InputError) as caught:
        lower(tmp_path / "unknown.pt2", devices=[Device("only")])

    assert (
        f"{str(tmp_path / 'unknown.pt2')!r} is a saved program that torch.export.load cannot read "
        "(NotImplementedError: Deserializing somewhere.Answer in pytree is not registered). The class has to be "
        "registered with torch.utils._pytree before: import what does that, or give the model itself, in a shell as "
        "file.py:function."
    ) == str(caught.value)
    assert "" == caplog.text


class Halfway(nn.Module):
    """Layers under autocast, with a conversion or without."""

    def __init__(self, *, converts: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.converts = converts

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.second(torch.relu(self.first(x)))
        return x.float().softmax(-1) if self.converts else x.softmax(-1)


@pytest.mark.parametrize("is_given", [False, True], ids=["model", "program"])
def test_types_under_autocast_are_known_though_torch_forgets_them_by_bytecode(is_given: bool) -> None:
    model, x = Halfway(converts=False), torch.randn(4, 8)
    given = torch.export.export(model, (x,), strict=True) if is_given else model
    lowered = lower(given, None if is_given else (x,), devices=[Device("only")], strict=True)

    (made,) = lowered.program.graph.output_node().args[0]
    assert torch.bfloat16 == made.meta["val"].dtype
    assert torch.equal(model(x), lowered(x))


@pytest.mark.parametrize("is_given", [False, True], ids=["model", "program"])
def test_a_conversion_that_torch_forgets_by_bytecode_is_refused(is_given: bool) -> None:
    """It was taken out as one that does nothing, and so was the assertion that tells: bfloat16 came out."""
    model, x = Halfway(converts=True), torch.randn(4, 8)
    assert torch.equal(model(x), lower(model, (x,), devices=[Device("only")])(x))
    given = torch.export.export(model, (x,), strict=True) if is_given else model

    with pytest.raises(CaptureError, match=r"as if there were no autocast.*x\.float\(\).*strict=False"):
        lower(given, None if is_given else (x,), devices=[Device("only")], strict=True)
