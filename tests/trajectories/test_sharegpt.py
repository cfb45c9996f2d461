"""Conversations as ShareGPT turns."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.core.messages import Message
from manyhands.export.sharegpt import (
    EMPTY_THINK,
    SystemTurns,
    Turn,
    as_trained,
    check_template,
    to_sharegpt,
)
from manyhands.testing.agent_doubles import FakeTool, assistant, tool_call

LEFT_BY_ORIGINAL = Path(__file__).parents[1] / "data/trajectories/left_by_original/r1"
USER: Message = {"role": "user", "content": "Do it."}


def values(messages: list[Message], **how: Any) -> list[str]:
    return [f"{turn['from']}: {turn['value']}" for turn in to_sharegpt([USER, *messages], "system", **how)[2:]]


def result(call_id: str, content: str, name: str = "") -> Message:
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": content}


def test_a_plain_answer() -> None:
    assert to_sharegpt([USER, assistant("Four. ", reasoning="2 + 2")], "S") == [
        {"from": "system", "value": "S"},
        {"from": "human", "value": "Do it."},
        {"from": "gpt", "value": "<think>\n2 + 2\n</think>\nFour."},
    ]


def test_a_tool_turn() -> None:
    calls = assistant(" Looking.", tool_call("read", {"path": "ä"}, "a"), tool_call("find", "", "b"), reasoning="hm\n")
    assert values([calls, result("a", ' {"n": 1.0}'), result("b", "[oops")]) == [
        "gpt: <think>\nhm\n\n</think>\n Looking.\n"
        '<tool_call>\n{"name": "read", "arguments": {"path": "ä"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "find", "arguments": {}}\n</tool_call>',
        'tool: <tool_response>\n{"tool_call_id": "a", "name": "read", "content": {"n": 1.0}}\n</tool_response>\n'
        '<tool_response>\n{"tool_call_id": "b", "name": "find", "content": "[oops"}\n</tool_response>',
    ]


@pytest.mark.parametrize(
    ("message", "value"),
    [
        (assistant("Four."), "<think>\n</think>\nFour."),
        (assistant("", reasoning="why"), "<think>\nwhy\n</think>"),
        (assistant("<REASONING_SCRATCHPAD>c</REASONING_SCRATCHPAD>Four."), "<think>c</think>Four."),
        (
            assistant("<REASONING_SCRATCHPAD>c</REASONING_SCRATCHPAD>Four.", reasoning="r"),
            "<think>\nr\n</think>\n<think>c</think>Four.",
        ),
        (assistant("<think>plan</think>Four.", reasoning="plan"), "<think>\nplan\n</think>\nFour."),
        (
            assistant("<think>other</think>Four.", reasoning="plan"),
            "<think>\nplan\n</think>\n<\\think>other<\\/think>Four.",
        ),
        (assistant("a</REASONING_SCRATCHPAD>b", reasoning="r"), "<think>\nr\n</think>\na</REASONING_SCRATCHPAD>b"),
        (assistant("", reasoning="  "), EMPTY_THINK),
        (
            assistant(None, tool_call("find", {"q": "<think>"})),
            '<think>\n</think>\n<tool_call>\n{"name": "find", "arguments": {"q": "\\u003cthink>"}}\n</tool_call>',
        ),
    ],
)
def test_think_blocks(message: Message, value: str) -> None:
    assert values([message]) == [f"gpt: {value}"]


def test_results_take_the_name_of_their_own_call() -> None:
    calls = assistant(None, tool_call("read", {}, "a"), tool_call("find", {}, "b"))
    names = re.findall(
        r'"name": "(\w+)", "content"', values([calls, result("b", ""), result("a", ""), result("c", "")])[1]
    )
    assert names == ["find", "read", "unknown"]


def test_stray_results_and_system_messages_are_dropped() -> None:
    assert values([result("a", "x"), {"role": "system", "content": "y"}, assistant("Four.")]) == [
        "gpt: <think>\n</think>\nFour."
    ]


@pytest.mark.parametrize("content", ['{"n": NaN}', "[Infinity]", "[1e999]", "[" * 100_000, '{"a": 1} x'])
def test_what_is_not_json_stays_text(content: str) -> None:
    block = values([assistant(None, tool_call("read", {}, "a")), result("a", content)])[1]
    assert json.loads(block.split("\n")[1])["content"] == content


def test_long_numbers_survive() -> None:
    digits = "123456789012345678901234567890"
    block = values([assistant(None, tool_call("read", f'{{"n": {digits}}}', "a")), result("a", f"[{digits}]")])
    assert all(digits in part for part in block)


CUT: list[Message] = [
    assistant("One, ", reasoning="count"),
    {"role": "user", "content": "go on", "_synthetic": "continue"},
    assistant("two, ", reasoning="I am to go on"),
    {"role": "user", "content": "go on", "_synthetic": "continue"},
    assistant("three."),
]


def test_pieces_of_a_cut_off_answer_become_one_turn() -> None:
    assert values(CUT) == ["gpt: <think>\ncount\n</think>\nOne, two, three."]
    assert values([*CUT[:-1], assistant("now:", tool_call("read", {}, "a")), result("a", "x")])[0] == (
        'gpt: <think>\ncount\n</think>\nOne, two, now:\n<tool_call>\n{"name": "read", "arguments": {}}\n</tool_call>'
    )
    assert values(CUT[:4]) == ["gpt: <think>\ncount\n</think>\nOne, two,"]


def test_reasoning_of_a_later_piece_is_kept_where_the_first_has_none() -> None:
    assert values([assistant("One, "), CUT[1], assistant("two.", reasoning="r")]) == [
        "gpt: <think>\nr\n</think>\nOne, two."
    ]


def test_summaries_are_left_out() -> None:
    asked: Message = {"role": "user", "content": "sum up", "_synthetic": "summary_request"}
    summary: Message = {"role": "assistant", "content": "All done.", "_synthetic": "summary"}
    calls = [assistant(None, tool_call("read", {}, "a")), result("a", "x")]
    assert [value.partition(":")[0] for value in values([*calls, asked, summary])] == ["gpt", "tool"]
    assert values([*calls, asked, summary], keep_synthetic=True)[2:] == [
        "human: sum up",
        "gpt: <think>\n</think>\nAll done.",
    ]


def test_synthetic_turns_can_be_kept() -> None:
    assert [value.partition(":")[0] for value in values(CUT, keep_synthetic=True)] == [
        "gpt",
        "human",
        "gpt",
        "human",
        "gpt",
    ]


def test_prompts_in_parts_become_text() -> None:
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": "data:,x"}}]
    turns = to_sharegpt([{"role": "user", "content": parts}], "S")
    assert turns[1]["value"] == "What is it?\n<image>"


def test_the_system_turn_has_the_layout_of_the_original() -> None:
    tools = [FakeTool("write", description="Schreibt „ä“."), FakeTool("read")]
    lines = SystemTurns().text(tools).split("\n")
    assert lines[1] == "<tools>"
    assert lines[3] == "</tools>"
    assert lines[5] == (
        "{'title': 'FunctionCall', 'type': 'object', 'properties': {'name': {'title': 'Name', 'type': 'string'}, "
        "'arguments': {'title': 'Arguments', 'type': 'object'}}, 'required': ['name', 'arguments']}"
    )
    assert lines[7] == "Example:"
    assert (lines[8], lines[10], len(lines)) == ("<tool_call>", "</tool_call>", 11)
    assert "ä" in lines[2]
    entries = json.loads(lines[2])
    assert [entry["name"] for entry in entries] == ["read", "write"]
    assert list(entries[0]) == ["name", "description", "parameters", "required"]
    assert entries[0]["required"] is None
    assert "<tools>\n[]\n</tools>" in SystemTurns().text([])


def test_a_template_replaces_the_wording_and_nothing_else_in_it() -> None:
    tool = FakeTool("read", description="{tools} {x}")
    text = SystemTurns("{a} {{tools}} {0}").text([tool])
    assert (
        text
        == "{a} {"
        + json.dumps(
            [
                {
                    "name": "read",
                    "description": "{tools} {x}",
                    "parameters": {"type": "object", "properties": {}},
                    "required": None,
                }
            ]
        )
        + "} {0}"
    )
    with pytest.raises(UserError, match=r"prose\.txt: .*\{tools\}"):
        check_template("no place", "prose.txt")


MESSAGES = st.lists(
    st.one_of(
        st.builds(
            lambda text, synthetic: {
                "role": "user",
                "content": text,
                **({"_synthetic": synthetic} if synthetic else {}),
            },
            st.text(),
            st.sampled_from([None, "continue", "summary_request"]),
        ),
        st.builds(
            lambda content, reasoning, calls, synthetic: {
                "role": "assistant",
                "content": content,
                "reasoning": reasoning,
                "tool_calls": calls,
                **({"_synthetic": "summary"} if synthetic else {}),
            },
            st.none() | st.text() | st.sampled_from(["<think>a</think>b", "<REASONING_SCRATCHPAD>"]),
            st.text() | st.just("a"),
            st.lists(st.builds(tool_call, st.sampled_from(["read", "find"]), st.text(), st.sampled_from("abc"))),
            st.booleans(),
        ),
        st.builds(result, st.sampled_from("abcd"), st.text() | st.sampled_from(['{"a": 1}', "[1, 2"])),
    )
)


@given(MESSAGES, st.booleans())
def test_whatever_the_conversation_the_turns_are_well_formed(messages: list[Any], keep: bool) -> None:
    turns = to_sharegpt([USER, *messages], "S", keep_synthetic=keep)
    assert [turn["from"] for turn in turns[:2]] == ["system", "human"]
    kept = [USER, *messages] if keep else as_trained([USER, *messages])
    for before, turn in pairwise(turns):
        if turn["from"] == "tool":
            assert before["from"] == "gpt"
            for block in re.findall(r"<tool_response>\n(.*)\n</tool_response>", turn["value"]):
                assert list(json.loads(block)) == ["tool_call_id", "name", "content"]
        if turn["from"] == "gpt":
            assert "<think>" in turn["value"]
    assert sum(turn["from"] == "gpt" for turn in turns) == sum(message["role"] == "assistant" for message in kept)
    if not keep:
        assert not any("_synthetic" in message for message in kept)
    json.dumps(turns)


# --- Against lines of the original program


def messages_of(turns: list[Turn]) -> list[Message]:
    """Chat messages from ShareGPT turns: the conversion backwards, for layouts that it is certain of."""
    messages: list[Message] = []
    for turn in turns:
        if turn["from"] == "human":
            messages.append({"role": "user", "content": turn["value"]})
        elif turn["from"] == "gpt":
            messages.append(_answer(turn["value"], _ids(turns, turn)))
        elif turn["from"] == "tool":
            messages.extend(_tool_messages(turn["value"]))
    return messages


def _ids(turns: list[Turn], turn: Turn) -> list[str]:
    following = turns[turns.index(turn) + 1 :][:1]
    return re.findall(r'"tool_call_id": "([^"]+)"', following[0]["value"]) if following else []


def _answer(value: str, ids: list[str]) -> Message:
    calls = [json.loads(text) for text in re.findall(r"<tool_call>\n(.*)\n</tool_call>", value)]
    text = value.partition("<tool_call>\n")[0]
    native = re.match(r"<think>\n(.*?)\n?</think>\n?", text, re.DOTALL)
    content = text[native.end() :] if native else text
    content = content.replace("<think>", "<REASONING_SCRATCHPAD>").replace("</think>", "</REASONING_SCRATCHPAD>")
    content = content.removesuffix("\n") if calls else content
    made = [tool_call(call["name"], json.dumps(call["arguments"]), ids[n]) for n, call in enumerate(calls)]
    return assistant(content, *made, reasoning=native[1] if native else None)


def _tool_messages(value: str) -> list[Message]:
    results = [json.loads(text) for text in re.findall(r"<tool_response>\n(.*)\n</tool_response>", value)]
    return [
        result(
            each["tool_call_id"],
            each["content"] if isinstance(each["content"], str) else json.dumps(each["content"], ensure_ascii=False),
            each["name"],
        )
        for each in results
    ]


def original_entries() -> list[dict[str, Any]]:
    entries = []
    for path in sorted(LEFT_BY_ORIGINAL.glob("batch_*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                entries.append(json.loads(line))
            except ValueError:
                continue  # the torn last line
    return entries


def test_lines_of_the_original_are_written_again_to_the_byte() -> None:
    entries = original_entries()
    assert len(entries) >= 14
    for entry in entries:
        turns = entry["conversations"]
        assert to_sharegpt(messages_of(turns[1:]), turns[0]["value"]) == turns, entry["prompt_index"]


def test_the_original_s_system_turn_comes_out_of_its_own_wording() -> None:
    for entry in original_entries():
        text = entry["conversations"][0]["value"]
        tools = re.search(r"<tools>\n(.*)\n</tools>", text)
        assert tools is not None
        made = [
            FakeTool(each["name"], description=each["description"], parameters=each["parameters"])
            for each in json.loads(tools[1])
        ]
        assert SystemTurns(text.replace(tools[1], "{tools}")).text(made[::-1]) == text


def test_reasoning_that_the_original_doubled_is_written_once() -> None:
    doubled = next(entry for entry in original_entries() if entry["prompt_index"] == 3)["conversations"]
    assert doubled[2]["value"].count("plan") == 2
    inline = assistant("<think>\nplan\n</think>\nI will read", tool_call("read_file", {}, "a"), reasoning="plan")
    (turn,) = values([inline])
    assert turn.startswith("gpt: <think>\nplan\n</think>\nI will read\n<tool_call>")
