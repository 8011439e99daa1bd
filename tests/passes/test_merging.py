"""``merge`` takes a split back: the same text, the same names, and edits of parts are kept."""

from __future__ import annotations

import random

import pytest
import torch
from fuzz import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import observe, random_program, same
from shapes import SHAPES, assert_same_behaviour, behaviour, behaviour_of_source, compute_nodes
from torch import nn
from torch.fx import symbolic_trace

from fxpasses.errors import CycleError, SplitError
from fxpasses.passes import merge, split, split_module

EXAMPLES = examples(100)


def chunks(graph_module, count):
    nodes = compute_nodes(graph_module)
    return {node: place * count // len(nodes) for place, node in enumerate(nodes)}


@pytest.mark.parametrize("name", SHAPES)
def test_merging_a_split_gives_the_source_back(name):
    """Text and behaviour, for every shape of graph and as many parts as nodes."""
    shape = SHAPES[name]
    source = shape.capture()
    number = len(compute_nodes(source))
    merged = merge(split(source, chunks(source, number)))
    merged.graph.lint()

    assert source.code == merged.code
    assert list(source.state_dict()) == list(merged.state_dict()) or set(source.state_dict()) == set(
        merged.state_dict()
    )
    assert_same_behaviour(behaviour_of_source(shape.name), behaviour(merged, shape), exact=shape.exact)


@pytest.mark.parametrize("name", SHAPES)
def test_a_split_module_can_be_merged_without_its_split(name):
    """The module remembers its parts and the original names."""
    shape = SHAPES[name]
    source = shape.capture()
    merged = merge(split_module(source, None, chunks(source, 3).__getitem__))
    merged.graph.lint()

    assert set(source.state_dict()) == set(merged.state_dict())
    assert_same_behaviour(behaviour_of_source(shape.name), behaviour(merged, shape), exact=shape.exact)


def alike(graph_module):
    """The text; ``tied`` and ``weight`` are one tensor, whose owner reads it under one name."""
    return graph_module.code.replace("self.tied", "self.weight")


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6))
def test_random_splits_of_random_programs_round_trip(seed):
    """Interleaved and partial assignments, cut regions, every policy that keeps one tensor."""
    rng = random.Random(seed)
    program = random_program(rng, size=rng.randint(3, 14))
    source = program.graph_module
    labels = {node: rng.randrange(4) for node in compute_nodes(source) if rng.random() < 0.9}
    try:
        done = split(source, labels, constants=rng.choice(["share", "own", "pass_in"]))
    except CycleError:
        done = split(source, chunks(source, 3))
    merged = merge(done)

    assert alike(source) == alike(merged)
    assert same(observe(source, program.inputs), observe(merged, program.inputs))


@pytest.mark.parametrize("policy", ["share", "own", "pass_in"])
def test_names_of_state_come_back_under_every_policy(policy):
    """Qualified names and aliases are those of the source."""
    source = SHAPES["ExportedParameters"].capture()
    merged = merge(split(source, chunks(source, 4), constants=policy))

    assert dict(source.named_parameters()).keys() == dict(merged.named_parameters()).keys()
    assert all(parameter is merged.get_parameter(name) for name, parameter in source.named_parameters())


def test_edits_of_parts_are_kept():
    """What a pass did to one part is in the merged graph."""
    source = SHAPES["chain"].capture()
    done = split(source, chunks(source, 2))
    part = done.parts[1]
    tanh = next(node for node in part.graph.nodes if node.target is torch.tanh)
    with part.graph.inserting_after(tanh):
        sine = part.graph.call_function(torch.sin, (tanh,))
    tanh.replace_all_uses_with(sine, delete_user_cb=lambda user: user is not sine)
    part.recompile()
    merged = merge(done)
    x = torch.rand(3)

    torch.testing.assert_close(merged(x), torch.sin(torch.tanh(torch.relu(x + 1) * 2)) - 3)
    assert ["add", "relu", "mul", "tanh", "sin", "sub"] == [node.name for node in compute_nodes(merged)]


def test_a_left_over_index_into_the_one_result_of_a_part_is_kept():
    """Only what takes several results apart goes away."""
    source = symbolic_trace(lambda x: (x + 1)[1:] * 2)
    add, _, mul = compute_nodes(source)
    done = split(source, {add: 0, mul: 1})

    assert source.code == merge(done).code
    assert source.code == merge(split(source, {add: 0, mul: 1}, always_return_tuple=True)).code


def test_duplicated_constants_that_went_apart_get_names_of_their_own():
    """Two copies with one name cannot become one attribute."""
    source = SHAPES["ConstantInTwoPlaces"].capture()
    done = split(source, chunks(source, 3), constants="duplicate")
    merged = merge(done)
    x = torch.rand(4, 4)

    assert {"table", "table_1", "scratch"} == {name for name, _ in merged.named_buffers()}
    torch.testing.assert_close(merged(x), source(x))


def test_what_was_never_split_is_refused():
    """The message says what merge takes."""
    with pytest.raises(SplitError, match=r"merge\(\) takes a Split, or a module that split\(\), split_module\(\) or"):
        merge(symbolic_trace(lambda x: x + 1))


def test_a_part_that_is_no_graph_any_more_is_refused():
    """A part that was replaced by a compiled module cannot be merged."""
    source = SHAPES["chain"].capture()
    done = split(source, chunks(source, 2))
    done.graph_module.add_module("submod_1", nn.Identity())
    with pytest.raises(SplitError, match="part 'submod_1' is a Identity, which has no graph to merge"):
        merge(done)
