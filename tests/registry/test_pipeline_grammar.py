"""The grammar of pipeline text, and how values of each type are written."""

from __future__ import annotations

import enum
import pathlib
from typing import Any, Literal

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fxpasses.errors import InputError, PipelineError, PipelineSyntaxError
from fxpasses.registry import parse_pipeline
from fxpasses.registry.pipeline_grammar import (
    Group,
    OptionText,
    PassText,
    Word,
    kebab_case,
    option_name,
    parse_pipeline_text,
    read_value,
    write_value,
)


@pytest.mark.parametrize("given", [3, None, []])
def test_a_pipeline_is_a_text(given):
    """Passes themselves are sent to the PassManager."""
    message = f"the text of a pipeline is a str, not {type(given).__name__}; passes themselves go into a PassManager"
    with pytest.raises(PipelineError) as caught:
        parse_pipeline(given)

    assert message == str(caught.value)
    assert isinstance(caught.value, TypeError)


class Mode(enum.Enum):
    VERY_FAST = 1
    SLOW = 2


def test_names_options_and_nesting_are_taken_apart():
    (first, second) = parse_pipeline_text("a{x=1, y-z='b c'} , repeat(b,c()){n=[1,2]}")

    assert first == PassText(
        "a", 0, None, (OptionText("x", Word("1", 4), 2), OptionText("y-z", Word("b c", 11, quoted=True), 7))
    )
    assert [("b", None), ("c", ())] == [(each.name, each.inner) for each in second.inner]
    assert second.options[0].value == Group((Word("1", 37), Word("2", 39)), 36)


def test_nothing_is_an_empty_pipeline():
    assert parse_pipeline_text("  \n ") == ()


def test_nesting_is_not_bounded_by_the_stack():
    deep = "a(" * 5000 + "b" + ")" * 5000

    assert len(parse_pipeline_text(deep)) == 1


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("a b", 2, "unexpected 'b'; expected ',' or the end"),
        ("a,", 2, "expected the name of a pass, found the end of the text"),
        ("a,,b", 2, "expected the name of a pass, found ','"),
        ("a)", 1, "unexpected ')'; expected ',' or the end"),
        ("a(b", 3, "expected ')' to close the '(' at column 2, found the end of the text"),
        ("a{x=1", 5, "expected '}' to close the '{' at column 2, found the end of the text"),
        ("a{x}", 3, "expected '=', found '}'"),
        ("a{=1}", 2, "expected the name of an option, found '='"),
        ("a{x=}", 4, "expected a value, found '}'"),
        ("a{x=1,x=2}", 6, "option 'x' is given twice"),
        ("a{x='b}", 4, "this ' is never closed"),
        ("a{x=[1}", 6, "expected ']' to close the '[' at column 5, found '}'"),
        ("a{x=[[1]]}", 5, "lists in lists cannot be written as text"),
        ("7up", 0, "expected the name of a pass, found '7'"),
    ],
)
def test_what_does_not_parse_is_pointed_at(text, column, reason):
    with pytest.raises(PipelineSyntaxError) as caught:
        parse_pipeline_text(text)

    assert (column, reason, text) == (caught.value.column, caught.value.reason, caught.value.text)
    assert str(caught.value) == f"{reason}\n  {text}\n  {' ' * column}^"


def test_only_the_line_at_fault_is_shown():
    with pytest.raises(PipelineSyntaxError) as caught:
        parse_pipeline_text("first,\n\tsecond third,\nfourth")

    assert str(caught.value).endswith("\n  \tsecond third,\n  \t       ^")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("FuseConvBN", "fuse-conv-bn"), ("CSEPass", "cse"), ("fold_constants", "fold-constants"), ("Pass", "pass"),
     ("ReLU6", "re-lu6"), ("RemoveNoOps", "remove-no-ops")],
)  # fmt: skip
def test_class_names_become_kebab_case(name, expected):
    assert expected == kebab_case(name)


def test_option_names_have_no_underscores():
    assert option_name("_max_bytes") == "max-bytes"


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("3", int, 3), ("-3", int, -3), ("0x10", int, 16), ("1_000", int, 1000), ("1MiB", int, 1 << 20),
        ("2kB", int, 2000), ("1.5KiB", int, 1536),
        ("true", bool, True), ("False", bool, False), ("0.5", float, 0.5), ("1e-3", float, 1e-3), ("2k", float, 2000.0),
        ("word", str, "word"), ("'two words'", str, "two words"), (r'"a\"b\\\n"', str, 'a"b\\\n'),
        ("very-fast", Mode, Mode.VERY_FAST), ("VERY_FAST", Mode, Mode.VERY_FAST), ("b", Literal["a", "b"], "b"),
        ("none", int | None, None), ("4", int | None, 4), ("'none'", str | None, "none"),
        ("[1,2]", tuple[int, ...], (1, 2)), ("1", tuple[int, ...], (1,)), ("[]", list[str], []),
        ("[1,x]", tuple[int, str], (1, "x")), ("[b,a]", frozenset[str], frozenset({"a", "b"})),
        ("float16", torch.dtype, torch.float16), ("torch.int8", torch.dtype, torch.int8),
        ("cpu", torch.device, torch.device("cpu")), ("cuda:1", torch.device, torch.device("cuda", 1)),
        ("a/b.txt", pathlib.Path, pathlib.Path("a/b.txt")),
        ("7", Any, 7), ("x", Any, "x"), ("true", Any, True), ("'7'", Any, "7"), ("none", Any, None), ("1.5", Any, 1.5),
    ],
)  # fmt: skip
def test_values_are_read_by_type(text, kind, value):
    (parsed,) = parse_pipeline_text(f"a{{x={text}}}")
    read = read_value(parsed.options[0].value, kind)

    assert (type(value), value) == (type(read), read)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("x", int, "'x' is not a whole number, such as 4, or a size, such as 1MiB"),
        ("1.5", int, "'1.5' is not a whole number, such as 4, or a size, such as 1MiB"),
        ("yes", bool, "'yes' is not true or false"),
        ("x", float, "'x' is not a number, such as 0.5 or 1e-3"),
        ("medium", Mode, "'medium' is not one of very-fast, slow"),
        ("c", Literal["a", "b"], "'c' is not one of a, b"),
        ("x", int | None, "'x' is not a whole number, such as 4, or a size, such as 1MiB or none"),
        ("float17", torch.dtype, "'float17' is not a dtype, such as float32"),
        ("gpu", torch.device, "'gpu' is not a device, such as cpu or cuda:0"),
        ("[1]", tuple[int, int], "['1'] is not 2 values in brackets"),
        ("[1]", int, "['1'] is not one value of type int"),
        ("x", dict, "'x' is not something that text can say: build a pass with dict options in Python"),
    ],
)
def test_values_of_another_type_are_refused(text, kind, message):
    (parsed,) = parse_pipeline_text(f"a{{x={text}}}")
    with pytest.raises(InputError) as caught:
        read_value(parsed.options[0].value, kind)

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "text"),
    [(1 << 20, "1048576"), (True, "true"), (None, "none"), (Mode.VERY_FAST, "very-fast"), ("none", '"none"'),
     ("7", '"7"'), ("a,b", '"a,b"'), (torch.float16, "float16"), ((1, "x"), "[1,x]"), (frozenset({2, 1}), "[1,2]")],
)  # fmt: skip
def test_values_are_written_so_that_they_can_be_read(value, text):
    assert text == write_value(value)


def test_sizes_are_written_with_units():
    assert ["1MiB", "3KiB", "1000", "2GiB", "0"] == [
        write_value(size, is_size=True) for size in (1 << 20, 3 << 10, 1000, 2 << 30, 0)
    ]


def test_what_text_cannot_say_is_an_error():
    with pytest.raises(PipelineError, match=r"\{\} \(dict\) cannot be written as pipeline text"):
        write_value({})


VALUES = {
    int: st.integers(-(10**9), 10**12),
    bool: st.booleans(),
    str: st.text(max_size=8),
    float: st.floats(allow_nan=False),
    Mode: st.sampled_from(Mode),
    int | None: st.none() | st.integers(),
    tuple[str, ...]: st.lists(st.text(max_size=3)).map(tuple),
    frozenset[int]: st.frozensets(st.integers(0, 99)),
    torch.dtype: st.sampled_from([torch.int8, torch.bfloat16]),
}


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.data(), st.sampled_from(list(VALUES)))
def test_any_value_round_trips(data, kind):
    value = data.draw(VALUES[kind])
    (parsed,) = parse_pipeline_text(f"a{{x={write_value(value)}}}")

    assert value == read_value(parsed.options[0].value, kind)


@given(st.text(alphabet="ab,(){}[]='\" \\1", max_size=24))
def test_any_text_parses_or_is_refused_at_a_character(text):
    error = None
    try:
        parse_pipeline_text(text)
    except PipelineSyntaxError as caught:
        error = caught

    assert error is None or 0 <= error.column <= len(text)


@pytest.mark.parametrize("value", [1, "1", True, "true", 0.5, "0.5", "none", None, "a"])
@pytest.mark.parametrize("kind", [bool | int | float | str | None, str | bool | int | float | None])
def test_an_option_that_may_be_text_or_a_number_is_read_as_it_was_written(value, kind):
    (parsed,) = parse_pipeline_text(f"a{{x={write_value(value)}}}")

    read = read_value(parsed.options[0].value, kind)

    assert (type(value), value) == (type(read), read)
