"""What hooks are handed: values with their node, and metadata that is copied only when it is touched."""

from __future__ import annotations

import pytest
import torch
from torch.fx import Graph, Proxy

from fxpasses.errors import PassError
from fxpasses.export_pass import PROTECTED_KEYS, ExportPassBaseError, NodeMetadata, ProxyValue


@pytest.fixture
def node():
    return Graph().placeholder("x")


def symbolic(kind):
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    env = ShapeEnv()
    return env.create_unbacked_symint() if kind is int else env.create_unbacked_symfloat()


def test_a_value_knows_its_node_and_gives_a_proxy_of_it(node):
    value = ProxyValue(torch.ones(2), node)

    assert value.node is node
    assert isinstance(value.proxy, Proxy)
    assert value.proxy.node is node
    assert ProxyValue(1, value.proxy).node is node


def test_a_tensor_is_told_from_other_values(node):
    assert ProxyValue(torch.ones(2), node).is_tensor()
    assert not ProxyValue(3, node).is_tensor()
    assert (2,) == ProxyValue(torch.ones(2), node).to_tensor().shape


def test_asking_a_number_for_its_tensor_names_the_node(node):
    with pytest.raises(ExportPassBaseError, match="the value of node 'x' is no tensor but int") as caught:
        ProxyValue(3, node).to_tensor()

    assert caught.value.node is node


def test_constants_convert_as_themselves(node):
    assert int(ProxyValue(3, node)) == 3
    assert float(ProxyValue(0.5, node)) == 0.5
    assert [10, 11][ProxyValue(1, node)] == 11
    assert not ProxyValue(0, node)
    assert [1, 2] == list(ProxyValue((1, 2), node))


@pytest.mark.parametrize(("convert", "use"), [(int, "converted to int"), (bool, "used in boolean context")])
def test_a_symbolic_number_refuses_to_become_a_plain_one(node, convert, use):
    with pytest.raises(ExportPassBaseError, match=f"of node 'x' cannot be {use}: it is known only when the graph runs"):
        convert(ProxyValue(symbolic(int), node))


def test_a_symbolic_index_and_a_symbolic_float_are_refused_too(node):
    with pytest.raises(ExportPassBaseError, match="used in index context"):
        [1, 2][ProxyValue(symbolic(int), node)]
    with pytest.raises(ExportPassBaseError, match="converted to float"):
        float(ProxyValue(symbolic(float), node))


def test_kinds_of_symbols_are_told_apart(node):
    assert ProxyValue(symbolic(int), node).is_symint()
    assert ProxyValue(symbolic(float), node).is_symfloat()
    assert not ProxyValue(symbolic(int), node).is_symbool()


def test_metadata_is_a_copy_so_the_source_is_never_changed():
    source = {"val": 1, "mine": 2}
    meta = NodeMetadata(source)
    meta["mine"] = 3
    meta.data["other"] = 4

    assert {"val": 1, "mine": 2} == source
    assert (3, 4) == (meta["mine"], meta["other"])
    assert "other" in meta
    assert meta.get("absent", 5) == 5


def test_metadata_can_be_replaced_as_a_whole_and_copied():
    meta = NodeMetadata({"mine": 1})
    copied = meta.copy()
    meta.data = {"new": 2}

    assert {"new": 2} == meta.data
    assert {"mine": 1} == copied.data


@pytest.mark.parametrize("key", sorted(PROTECTED_KEYS))
def test_what_the_framework_keeps_cannot_be_set_by_hand(key):
    with pytest.raises(ExportPassBaseError, match=f"the metadata entry '{key}' is kept by the framework"):
        NodeMetadata({})[key] = 1


def test_errors_of_hooks_are_pass_errors():
    assert issubclass(ExportPassBaseError, PassError)
    assert issubclass(ExportPassBaseError, RuntimeError)
