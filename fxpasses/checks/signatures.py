"""Checks of how a program is called: its signature fits its graph, and is the one the user knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from fxpasses.checks.sessions import InputCheck
from fxpasses.errors import GraphError, also_as
from fxpasses.metadata import value_of

__all__ = ["same_signature", "signature_is_valid"]


@attrs.frozen(repr=False)
class _SignatureIsValid:
    wants_program = True

    @property
    def pass_name(self) -> str:
        return "signature_is_valid"

    def __repr__(self) -> str:
        return self.pass_name

    def __call__(self, subject: ExportedProgram | GraphModule) -> None:
        if isinstance(subject, GraphModule):
            return
        if not isinstance(subject, ExportedProgram):
            raise also_as(GraphError, TypeError())(
                f"signature_is_valid looks at an ExportedProgram, not at {type(subject).__name__}; export the model "
                "first"
            )
        _specs_fit(subject)
        try:
            subject.validate()  # type: ignore[no-untyped-call]  # torch has not annotated it
        except Exception as error:  # torch's verifier raises a class of its own, and what its parts raise
            raise GraphError(f"the program does not validate: {error}") from error


signature_is_valid = _SignatureIsValid()
"""Refuse an ExportedProgram whose signature does not fit its graph; a bare GraphModule has none and passes."""


def _specs_fit(program: ExportedProgram) -> None:
    placeholders = program.graph.find_nodes(op="placeholder")
    specs = program.graph_signature.input_specs
    advice = "use the edits in fxpasses.programs, or with_graph_module(), which bring the signature along"
    if len(placeholders) != len(specs):
        raise GraphError(f"the graph has {len(placeholders)} inputs, its signature {len(specs)}; {advice}")
    for node, spec in zip(placeholders, specs, strict=True):
        if node.name != spec.arg.name:
            raise GraphError(f"input {node.name!r} is called {spec.arg.name!r} in the signature; {advice}", node=node)
        if spec.target is not None and spec.target not in program.state_dict and spec.target not in program.constants:
            raise GraphError(
                f"input {node.name!r} stands for {spec.target!r}, which the program has not; {advice}", node=node
            )
    output = program.graph.output_node()
    given = pytree.tree_leaves(output.args[0])
    wanted = program.graph_signature.output_specs
    if len(given) != len(wanted):
        raise GraphError(f"the graph has {len(given)} outputs, its signature {len(wanted)}; {advice}", node=output)
    for value, spec in zip(given, wanted, strict=True):
        if not isinstance(spec.arg, ConstantArgument) and getattr(value, "name", None) != spec.arg.name:
            raise GraphError(f"output {value} is called {spec.arg.name!r} in the signature; {advice}", node=output)


@attrs.frozen
class _Signature:
    inputs: tuple[str, ...]
    input_values: tuple[str, ...]
    outputs: str
    output_values: tuple[str, ...]
    trees: tuple[str, ...]


@attrs.frozen(repr=False)
class _SameSignature(InputCheck):
    """See :data:`same_signature`."""

    wants_program = True

    @property
    def pass_name(self) -> str:
        return "same_signature"

    def __repr__(self) -> str:
        return self.pass_name

    def __call__(self, before: Any, after: Any = None) -> None:
        """Compare two programs, or modules; with one, there is nothing to compare it with."""
        if after is not None:
            self.begin(before)(after)

    def begin(self, subject: GraphModule | ExportedProgram) -> Callable[[Any], None]:
        before = _signature(subject)

        def check(after: GraphModule | ExportedProgram) -> None:
            now = _signature(after)
            for what, mine, theirs in (
                ("inputs", before.inputs, now.inputs),
                ("the shapes and dtypes of the inputs", before.input_values, now.input_values),
                ("the outputs", before.outputs, now.outputs),
                ("the shapes and dtypes of the outputs", before.output_values, now.output_values),
                ("the trees of inputs and outputs", before.trees, now.trees),
            ):
                if mine != theirs:
                    raise GraphError(
                        f"the signature changed: {what} were {_shown(mine)} and are {_shown(theirs)}; callers rely on "
                        "it, so change it on purpose and drop this check, or put it back"
                    )

        return check


same_signature = _SameSignature()
"""Refuse a graph that is called in another way than the input of the run: names, order, shapes, dtypes, trees."""


def _signature(subject: GraphModule | ExportedProgram) -> _Signature:
    if isinstance(subject, ExportedProgram):
        user = set(subject.graph_signature.user_inputs)
        inputs = [node for node in subject.graph.find_nodes(op="placeholder") if node.name in user]
        specs = subject.call_spec
        trees: tuple[str, ...] = (str(specs.in_spec), str(specs.out_spec))
        names = {str(name) for name in subject.graph_signature.user_outputs}
    else:
        inputs, names = subject.graph.find_nodes(op="placeholder"), None
        info = getattr(subject.graph._codegen, "pytree_info", None)
        trees = () if info is None else (str(info.in_spec), str(info.out_spec))
    results = [node.args[0] for node in subject.graph.find_nodes(op="output")]
    leaves, tree = pytree.tree_flatten(results)
    kept = [leaf for leaf in leaves if names is None or str(getattr(leaf, "name", leaf)) in names]
    shape = str(tree) if names is None else f"{len(kept)} outputs"
    return _Signature(
        tuple(str(node.target) for node in inputs),
        tuple(_told(value_of(node)) for node in inputs),
        shape,
        tuple(_told(value_of(leaf)) if hasattr(leaf, "meta") else repr(leaf) for leaf in kept),
        trees,
    )


def _told(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{[str(size) for size in value.shape]}"
    return "?" if value is None else type(value).__name__


def _shown(entries: Any) -> str:
    return ", ".join(entries) if isinstance(entries, tuple) else str(entries)
