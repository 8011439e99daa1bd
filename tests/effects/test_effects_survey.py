"""What the effect analysis says of torch's own operators, held against what they really do on torch's own samples."""

from __future__ import annotations

import gc
import importlib
import sys
import types
import unittest
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from fxpasses.effects import analyze_effects

SAMPLES = 2
UNKNOWN = {"max_pool2d_with_indices_backward"}  # a helper of the database itself, no operator


def load_operators() -> list[Any]:
    """The operator database of torch's tests; it imports ``expecttest`` for a base class that it does not use here."""
    missing = "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None
    if missing:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]  # a module is made of attributes
        sys.modules["expecttest"] = stand_in
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return list(importlib.import_module("torch.testing._internal.common_methods_invocations").op_db)
    finally:
        if missing:
            del sys.modules["expecttest"]


class Call:
    """One call, as a node and for real."""

    def __init__(self, op: str, target: Any, arguments: Any) -> None:
        leaves, structure = pytree.tree_flatten(arguments)
        self.leaves = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.before = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        graph = Graph()
        nodes = [graph.placeholder("x") if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(nodes, structure)
        self.node = graph.create_node(op, target, tuple(args), kwargs)
        self.operands: list[tuple[Node, int]] = [
            (node, index) for index, node in enumerate(nodes) if isinstance(node, Node)
        ]
        state = torch.get_rng_state()
        args, kwargs = pytree.tree_unflatten(self.leaves, structure)
        run = target if op == "call_function" else lambda first, *rest, **named: getattr(first, target)(*rest, **named)
        result = run(*args, **kwargs)
        self.drew = not torch.equal(state, torch.get_rng_state())
        self.results = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.effects = analyze_effects(graph)

    @property
    def is_comparable(self) -> bool:
        tensors = [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]
        return all(tensor.layout == torch.strided and not tensor.is_nested for tensor in tensors)

    def untruths(self) -> Iterator[str]:
        said = self.effects.of(self.node)
        if self.drew and not said.random:
            yield "draws random numbers"
        for node, index in self.operands:
            now, before = self.leaves[index], self.before[index]
            changed = now.shape != before.shape or not torch.equal(now.nan_to_num(), before.nan_to_num())
            if changed and set(self.effects.storages(node)).isdisjoint(said.writes):
                yield f"writes argument {index}"
            if any(_share(now, result) for result in self.results) and not self.effects.may_alias(self.node, node):
                yield f"hands back argument {index}"


def _share(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.layout != torch.strided or right.layout != torch.strided or not left.numel():
        return False
    return left.untyped_storage()._cdata == right.untyped_storage()._cdata


def forms(operator: Any) -> list[tuple[str, Any]]:
    """The ways to call an operator: as a function, as a packet, as a method, in place."""
    found: list[tuple[str, Any]] = [("call_function", operator.op)]
    packet = getattr(torch.ops.aten, operator.aten_name or "", None)
    if isinstance(packet, torch._ops.OpOverloadPacket):
        found.append(("call_function", packet))
    if operator.method_variant is not None:
        found.append(("call_method", operator.name.rpartition(".")[2]))
    if operator.inplace_variant is not None:
        found.append(("call_method", getattr(operator.inplace_variant, "__name__", operator.name + "_")))
    return [(op, target) for op, target in found if "lambda" not in str(target) and "wrapper" not in str(target)]


def calls() -> Iterator[tuple[str, Call]]:
    for operator in load_operators():
        if torch.float32 not in operator.dtypes:
            continue
        try:
            samples = list(islice(operator.sample_inputs("cpu", torch.float32, requires_grad=False), SAMPLES))
        except RuntimeError:  # needs a library that is not there
            continue
        for sample in samples:
            for op, target in forms(operator):
                try:
                    call = Call(op, target, ([sample.input, *sample.args], sample.kwargs))
                except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, AssertionError):
                    continue  # this form does not take these arguments
                if call.is_comparable:
                    yield f"{op} {operator.name}", call


@pytest.fixture
def collected() -> Iterator[None]:
    """Close torch's generators of samples, which wait under ``no_grad``: later, it would be traced by an export."""
    yield
    gc.collect()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's samples warn about themselves
@pytest.mark.usefixtures("collected")
def test_no_operator_of_torch_does_what_the_analysis_denies() -> None:
    untruths: dict[str, list[str]] = {}
    unknown: dict[str, None] = {}
    count = 0
    for name, call in calls():
        count += 1
        if "nobody knows" in call.effects.of(call.node).reason:
            unknown[name.rpartition(" ")[2]] = None
        elif found := list(call.untruths()):
            untruths.setdefault(name, found)

    assert not untruths
    assert set(unknown) <= UNKNOWN
    assert count > 1500
