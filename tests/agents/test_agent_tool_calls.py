"""Reading what models write as tool calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.agents.reading import parse_arguments, read_calls
from manyhands.agents.toolbox import NO_TOOLS, Toolbox, repair_name
from manyhands.testing.agent_doubles import FakeTool

KNOWN = ["read_file", "write_file", "terminal", "GetIssue"]
BOX = Toolbox([FakeTool(name) for name in KNOWN])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("read_file", "read_file"),
        ("READ_FILE", "read_file"),
        ("Read-File", "read_file"),
        ("read file", "read_file"),
        (" read_file ", "read_file"),
        ("read_files", "read_file"),
        ("getissue", "GetIssue"),
        ("get_issue", "GetIssue"),
        ("quantum_teleport", None),
        ("", None),
        ("read_file" * 1000, None),
    ],
)
def test_repair_name(written: str, meant: str | None) -> None:
    assert repair_name(written, KNOWN) == meant


@pytest.mark.parametrize(
    ("text", "arguments"),
    [("", {}), (" \n", {}), ("null", {}), ('{"a": 1}', {"a": 1}), ('"{\\"a\\": 1}"', {"a": 1})],
)
def test_arguments(text: str, arguments: dict[str, Any]) -> None:
    assert parse_arguments(text) == arguments


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[1]", "array, not an object"),
        ("3", "number"),
        ('{"a": }', "line 1 column 7"),
        ('{"a": NaN}', "NaN"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 50_000, "nested too deeply"),
    ],
)
def test_bad_arguments(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_arguments(text)


def test_objects_are_serialised_again() -> None:
    read = read_calls([{"id": "a", "function": {"name": "terminal", "arguments": {"command": "ls"}}}], BOX, 1, set())
    assert read.calls[0]["function"]["arguments"] == '{"command":"ls"}'
    assert read.runnable


def test_opaque_extras_are_kept() -> None:
    read = read_calls(
        [{"id": "a", "function": {"name": "terminal", "arguments": "{}"}, "extra_content": {"s": 1}}], BOX, 1, set()
    )
    assert read.calls[0]["extra_content"] == {"s": 1}


def test_without_tools_the_answer_says_so() -> None:
    read = read_calls([{"id": "a", "function": {"name": "terminal", "arguments": "{}"}}], NO_TOOLS, 1, set())
    assert "no tools are on offer" in read.refused[0]


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "id": st.none() | st.sampled_from(["a", "b", ""]) | st.integers(),
                "function": st.none()
                | st.fixed_dictionaries(
                    {}, optional={"name": st.none() | st.sampled_from(KNOWN) | st.text(), "arguments": JSON | st.text()}
                ),
            },
        )
        | JSON
    )
    | JSON,
    st.sets(st.sampled_from(["a", "call_1_0"])),
)
def test_whatever_a_model_writes_the_history_is_well_formed(written: Any, used: set[str]) -> None:
    read = read_calls(written, BOX, 1, used)
    ids = [call["id"] for call in read.calls]
    assert len(set(ids)) == len(ids)
    assert not set(ids) & used
    for index, call in enumerate(read.calls):
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
        assert (index in read.refused) or call["function"]["name"] in BOX.tools
    assert read.runnable == any(index not in read.refused for index in range(len(read.calls)))


def test_equal_tools_have_equal_digests_and_the_same_objects_one_box() -> None:
    tools = [FakeTool("b"), FakeTool("a")]
    assert Toolbox.of(tools) is Toolbox.of(list(tools))
    assert Toolbox(tools).digest == Toolbox([FakeTool("a"), FakeTool("b")]).digest
    assert Toolbox(tools).digest != Toolbox([FakeTool("a")]).digest
    assert Toolbox(tools).names == ("a", "b")
    with pytest.raises(ValueError, match="same name"):
        Toolbox([FakeTool("a"), FakeTool("a")])
