"""Test a pass in three lines: helpers, and a pytest plug-in with golden files.

.. code-block:: python

    # conftest.py
    pytest_plugins = ["fxpasses.testing"]

    # test_use_relu.py
    def test_in_place_relu_becomes_relu(golden):
        assert_pass(UseRelu(), Model(), (torch.randn(2, 3),), golden=golden)

``assert_pass`` runs the pass on the exported model and holds it to four promises: it changed the graph, the numbers are
the same, the metadata is complete, and a second run changes nothing. ``golden`` compares the text of the resulting
graph with a file next to the test; ``pytest --update-golden`` writes the file. The idea of a transformation test that
is three lines long is LibCST's (``codemod/_testing.py``).
"""

from __future__ import annotations

import copy
import difflib
import pathlib
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import pytest
import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node, map_arg
from torch.utils import _pytree as pytree

from fxpasses.arguments import target_name
from fxpasses.checks import lint, metadata_is_complete
from fxpasses.metadata import value_of
from fxpasses.pass_base import PassResult, naming
from fxpasses.values import has_value

__all__ = ["Golden", "assert_pass", "assert_same_values", "golden", "graph_text", "run_pass"]

_DTYPES = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "b8",
    torch.complex64: "c64", torch.complex128: "c128",
}  # fmt: skip


# --- text -----------------------------------------------------------------------------------------------------------


def graph_text(subject: GraphModule | ExportedProgram) -> str:
    """A graph as text that is the same in every process: one line a node, with its type and shape; nested graphs below.

    >>> from torch.fx import symbolic_trace
    >>> print(graph_text(symbolic_trace(lambda x: torch.relu(x) + 1)))
    graph:
      x = placeholder
      relu = relu(x)
      add = add(relu, 1)
      return add
    """
    module = subject.graph_module if isinstance(subject, ExportedProgram) else subject
    parts = []
    for name, inner in module.named_modules():
        if isinstance(inner, GraphModule):
            parts.append("\n".join([f"graph {name}:" if name else "graph:", *map(_line, inner.graph.nodes)]))
    return "\n".join(parts)


def _line(node: Node) -> str:
    if node.op == "output":
        return f"  return {_shown(node.args[0])}"
    kind = _kind(value_of(node)) if has_value(node) else ""
    left = f"  {node.name}: {kind}" if kind else f"  {node.name}"
    if node.op == "placeholder":
        return f"{left} = placeholder"
    if node.op == "get_attr":
        return f"{left} = self.{node.target}"
    arguments = [_shown(arg) for arg in node.args] + [f"{name}={_shown(arg)}" for name, arg in node.kwargs.items()]
    callee = f"self.{node.target}" if node.op == "call_module" else target_name(node)
    return f"{left} = {callee}({', '.join(arguments)})"


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        dtype = _DTYPES.get(value.dtype, str(value.dtype).removeprefix("torch."))
        return f"{dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_kind, value))})"
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return f"{type(value).__name__}[{value}]"
    return "" if value is None else type(value).__name__


class _Name:
    """Prints as the bare name of a node."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def _shown(argument: Any) -> str:
    plain = map_arg(argument, lambda node: _Name(node.name))  # type: ignore[arg-type, return-value]  # printed only
    return re.sub(r" at 0x[0-9a-f]+", "", repr(plain))


# --- golden files ---------------------------------------------------------------------------------------------------


@attrs.define
class Golden:
    """The golden files of one test.

    Args:
        folder: Where they are.
        name: What the files of this test are called.
        update: Write them instead of comparing.
    """

    folder: pathlib.Path
    name: str
    update: bool = False

    def path(self, suffix: str = "") -> pathlib.Path:
        """The file for this test; several texts of one test have suffixes."""
        return self.folder / f"{self.name}{'.' + suffix if suffix else ''}.txt"

    def check(self, subject: str | GraphModule | ExportedProgram, suffix: str = "") -> None:
        """Compare a text, or the text of a graph, with its file.

        Raises:
            AssertionError: They differ (the diff is shown), or there is no file yet.
        """
        text = subject if isinstance(subject, str) else graph_text(subject)
        text = text.rstrip("\n") + "\n"
        path = self.path(suffix)
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            raise AssertionError(f"there is no golden file {path}; write it with: pytest --update-golden")
        expected = path.read_text(encoding="utf-8")
        if expected != text:
            diff = difflib.unified_diff(expected.splitlines(), text.splitlines(), str(path), "now", lineterm="")
            raise AssertionError("\n".join([*diff, "if this is right, write it with: pytest --update-golden"]))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--update-golden``."""
    group = parser.getgroup("fxpasses")
    group.addoption("--update-golden", action="store_true", help="write the golden files of the tests that run")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """The golden files of the test: in the nearest folder ``golden`` above it, named after file, class and test."""
    here = request.path.parent
    above = [folder for folder in (here, *here.parents) if folder.is_relative_to(request.config.rootpath)]
    folder = next((each / "golden" for each in above if (each / "golden").is_dir()), here / "golden")
    owner = f"{request.cls.__qualname__}." if request.cls is not None else ""
    name = re.sub(r"[^A-Za-z0-9_.\-]+", "_", owner + request.node.name).strip("_")
    return Golden(folder / request.path.stem, name, update=bool(request.config.getoption("--update-golden")))


# --- the promises of a pass -----------------------------------------------------------------------------------------


def assert_pass(
    pass_: Callable[..., Any],
    model: torch.nn.Module | ExportedProgram,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    golden: Golden | None = None,
    modified: bool = True,
    same_values: bool = True,
    gradients: bool = False,
    metadata: bool = True,
    settles: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    dynamic_shapes: Any = None,
) -> PassResult:
    """Hold a pass to its promises on one model.

    Args:
        pass_: The pass, or a whole pipeline.
        model: A module, which is exported first; or a GraphModule or ExportedProgram, which is used as it is.
        args: Example inputs.
        kwargs: Example inputs by name.
        golden: Compare the resulting graph with its golden file.
        modified: Whether the pass is expected to change the graph.
        same_values: The outputs are the same as before, and so is what a run leaves in inputs and buffers; False for a
            pass that changes them on purpose. Buffers that the pass takes away are not looked for.
        gradients: The gradients of the inputs are the same, too.
        metadata: Every call has its value, unless some had none before.
        settles: A second run changes nothing.
        rtol: Relative tolerance, as for ``torch.testing.assert_close``; both or none.
        atol: Absolute tolerance.
        dynamic_shapes: As for ``torch.export.export``.

    Returns:
        The result of the first run.

    Raises:
        AssertionError: A promise is broken; the message says which.
    """
    if isinstance(model, ExportedProgram | GraphModule):
        subject: GraphModule | ExportedProgram = model
    else:
        subject = torch.export.export(model, tuple(args), dict(kwargs or {}), dynamic_shapes=dynamic_shapes)
    before = _runnable(subject)
    expected = _outcome(before, args, kwargs, gradients) if same_values else None
    complete = metadata and _is_complete(subject)
    name = naming.pass_name(pass_)
    result = run_pass(pass_, subject)
    if result.modified != modified:
        raise AssertionError(f"{name}: expected modified={modified}, but the pass says modified={result.modified}")
    after = getattr(result, "exported_program", None) or result.graph_module
    lint(after)
    if complete:
        metadata_is_complete(after)
    if expected is not None:
        found = _outcome(_runnable(after), args, kwargs, gradients)
        assert_same_values(found.values, expected.values, what=name, rtol=rtol, atol=atol)
        both = found.buffers.keys() & expected.buffers.keys()
        mine, theirs = ({key: each.buffers[key] for key in sorted(both)} for each in (found, expected))
        assert_same_values(mine, theirs, what=f"{name}, buffers after a run", rtol=rtol, atol=atol)
    if settles:
        _assert_settled(pass_, after, name)
    if golden is not None:
        golden.check(after)
    return result


def run_pass(pass_: Callable[..., Any], subject: Any) -> PassResult:
    """Run a pass of any kind: an object, a class that needs no options, a function that works in place."""
    from fxpasses.pass_manager import PassManager

    made = pass_() if isinstance(pass_, type) else pass_
    return PassManager([made])(subject)


def _assert_settled(pass_: Callable[..., Any], subject: Any, name: str) -> None:
    text = graph_text(subject)
    again = run_pass(pass_, subject)
    now = graph_text(again.graph_module)
    if again.modified or now != text:
        diff = "\n".join(difflib.unified_diff(text.splitlines(), now.splitlines(), "first", "second", lineterm=""))
        raise AssertionError(f"{name}: a second run changed the graph again\n{diff}")


def _is_complete(subject: GraphModule | ExportedProgram) -> bool:
    try:
        metadata_is_complete(subject)
    except (ValueError, RuntimeError):
        return False
    return True


def _runnable(subject: GraphModule | ExportedProgram) -> torch.nn.Module:
    """A copy that runs: what a run leaves in buffers stays there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 warns about its own copying of tree specs
        return copy.deepcopy(subject.module() if isinstance(subject, ExportedProgram) else subject)


@attrs.frozen(eq=False)
class _Outcome:
    """What a run gave: outputs, what the inputs are afterwards, and their gradients; and the buffers afterwards."""

    values: tuple[Any, list[Any], list[Any]]
    buffers: dict[str, torch.Tensor]


def _outcome(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None, gradients: bool
) -> _Outcome:
    inputs, spec = pytree.tree_flatten((tuple(args), dict(kwargs or {})))
    inputs = [_own(each, gradients) for each in inputs]
    torch.manual_seed(0)
    call_args, call_kwargs = pytree.tree_unflatten(inputs, spec)
    outputs = model(*call_args, **call_kwargs)
    leaves = [each for each in inputs if isinstance(each, torch.Tensor) and each.requires_grad]
    found = _gradients(outputs, leaves) if gradients else []
    left = [each.detach() if isinstance(each, torch.Tensor) else each for each in inputs]
    return _Outcome((outputs, left, found), {name: buffer.detach() for name, buffer in model.named_buffers()})


def _own(value: Any, gradients: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    mine = value.detach().clone()
    return mine.requires_grad_() if gradients and mine.is_floating_point() else mine


def _gradients(outputs: Any, leaves: list[torch.Tensor]) -> list[torch.Tensor | None]:
    parts = [each for each in pytree.tree_leaves(outputs) if isinstance(each, torch.Tensor) and each.requires_grad]
    if not parts or not leaves:
        return []
    total = sum((each.double().sum() for each in parts[1:]), parts[0].double().sum())
    return list(torch.autograd.grad(total, leaves, allow_unused=True))


def assert_same_values(
    actual: Any, expected: Any, *, what: str = "", rtol: float | None = None, atol: float | None = None
) -> None:
    """Two structures of tensors and numbers hold the same values; NaN equals NaN.

    Raises:
        AssertionError: They do not; the message says where.
    """
    found, spec = pytree.tree_flatten_with_path(actual)
    wanted, wanted_spec = pytree.tree_flatten(expected)
    if spec != wanted_spec:
        raise AssertionError(f"{what}: the structure of the outputs changed from {wanted_spec} to {spec}")
    for (path, one), other in zip(found, wanted, strict=True):
        try:
            torch.testing.assert_close(one, other, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            raise AssertionError(f"{what}: values differ at {pytree.keystr(path) or 'the result'}: {error}") from None


def pytest_assertrepr_compare(config: pytest.Config, op: str, left: object, right: object) -> list[str] | None:
    """Show two graphs that should be equal as a diff."""
    if op != "==" or not (isinstance(left, GraphModule) and isinstance(right, GraphModule)):
        return None
    return ["graphs differ:", *_diff(left, right)]


def _diff(left: GraphModule, right: GraphModule) -> Iterator[str]:
    texts = graph_text(left).splitlines(), graph_text(right).splitlines()
    return difflib.unified_diff(*texts, "left", "right", lineterm="")
