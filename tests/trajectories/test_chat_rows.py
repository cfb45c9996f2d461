"""A row's own system prompt and messages: what is taken, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.workloads.trajectories.dataset.chat_rows import BadChat, read_chat
from manyhands.workloads.trajectories.dataset.rows import BadRow, Row, iterate_items, read_rows

USER = {"role": "user", "content": "Hi."}
ANSWER = {"role": "assistant", "content": "Hello."}
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "found"}
SYSTEM = {"role": "system", "content": "Be brief."}


def rows(tmp_path: Any, *values: Any) -> list[Row | BadRow]:
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return list(read_rows(path))


def row(tmp_path: Any, **value: Any) -> Row:
    (found,) = rows(tmp_path, value)
    assert isinstance(found, Row), found
    return found


def problem(tmp_path: Any, **value: Any) -> str:
    (found,) = rows(tmp_path, value)
    assert isinstance(found, BadRow)
    return str(found)


def test_a_system_prompt_is_no_source_field(tmp_path: Any) -> None:
    found = row(tmp_path, prompt="p", system="Be brief.", label=1)
    assert (found.prompt, found.system, found.messages, found.source) == ("p", "Be brief.", (), {"label": 1})
    for absent in (None, "", "  \n"):
        assert row(tmp_path, prompt="p", system=absent).system is None


def test_the_last_user_message_is_the_prompt(tmp_path: Any) -> None:
    found = row(tmp_path, messages=[SYSTEM, USER, ANSWER, {"role": "user", "content": "And now?"}])
    assert (found.prompt, found.system) == ("And now?", "Be brief.")
    assert found.messages == (USER, ANSWER, {"role": "user", "content": "And now?"})
    assert row(tmp_path, messages=[USER]).messages == ()
    assert row(tmp_path, messages=[SYSTEM, USER]) == row(tmp_path, prompt="Hi.", system="Be brief.")


def test_a_prompt_stands_behind_the_messages_and_is_not_said_twice(tmp_path: Any) -> None:
    after = row(tmp_path, prompt="And now?", messages=[USER, ANSWER])
    assert after.messages == (USER, ANSWER, {"role": "user", "content": "And now?"})
    assert row(tmp_path, prompt=" Hi. ", messages=[SYSTEM, USER]).prompt == "Hi."
    assert row(tmp_path, prompt="Hi.", messages=[ANSWER, USER]).messages == (ANSWER, USER)
    assert row(tmp_path, prompt="p", messages=[SYSTEM]).messages == ()
    assert row(tmp_path, prompt="p", messages=[]).messages == ()


def test_a_conversation_may_go_on_from_a_result(tmp_path: Any) -> None:
    found = row(tmp_path, messages=[USER, CALLS, RESULT])
    assert found.prompt == "Hi."
    assert found.messages[1:] == (CALLS, {**RESULT, "name": "find"})


def test_results_are_put_in_the_order_of_their_calls(tmp_path: Any) -> None:
    calls = {**CALLS, "tool_calls": [{**CALL, "id": name} for name in "abc"]}
    results = [{**RESULT, "tool_call_id": name, "content": name} for name in "cab"]
    found = row(tmp_path, messages=[USER, CALLS, RESULT, calls, *results])
    assert [message["content"] for message in found.messages[3:]] == [None, "a", "b", "c"]
    assert found.messages[2] == {**RESULT, "name": "find"}


def test_the_usual_variations_are_read(tmp_path: Any) -> None:
    odd_call = {"id": "c1", "function": {"name": "find", "arguments": {"q": 1}, "extra": None}}
    odd = {"role": "assistant", "reasoning_content": "Hm.", "tool_calls": [odd_call], "weight": 1, "name": None}
    parts = [{"type": "text", "text": "Look.", "image_url": None}]
    found = row(
        tmp_path,
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "A"}]},
            SYSTEM,
            {"role": "user", "content": parts},
            odd,
            RESULT,
        ],
    )
    assert found.system == "A\n\nBe brief."
    user, answer, _ = found.messages
    assert user["content"] == [{"type": "text", "text": "Look."}]
    assert answer == {**CALLS, "reasoning": "Hm."}
    text = json.dumps([USER, ANSWER, USER])
    assert row(tmp_path, messages=text).messages == (USER, ANSWER, USER)


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ("Hi.", '"messages" is text that is not JSON'),
        (5, '"messages" is a number, expected a list of messages'),
        ({"role": "user"}, '"messages" is an object, expected a list'),
        (["Hi."], 'message 1 of "messages" is text, expected an object'),
        ([{"content": "x"}], 'message 1 of "messages" has no "role" out of system, user, assistant, tool'),
        ([USER, {"role": "robot", "content": "x"}], 'message 2 of "messages" has no "role" out of'),
        ([{"role": "user"}], 'message 1 of "messages" has "content" that is null, expected text'),
        ([{"role": "user", "content": 7}], 'has "content" that is a number'),
        ([{"role": "user", "content": ""}], 'has "content" that is empty'),
        (
            [{"role": "user", "content": ["x"]}],
            'message 1 of "messages": part 1 of "content" is not an object with a "type"',
        ),
        ([{"role": "system", "content": None}, USER], 'message 1 of "messages" has "content" that is null'),
        ([USER, ANSWER, SYSTEM, USER], 'message 3 of "messages" is a system message behind others'),
        ([USER, {"role": "assistant", "content": ""}, USER], 'message 2 of "messages" has "content" that is empty'),
        ([USER, ANSWER], '"messages" ends with an assistant message'),
        ([ANSWER], '"messages" has no user message'),
        ([SYSTEM], 'no "prompt" field'),
        ([USER, CALLS], "\"messages\" ends before the result of the tool call 'c1'"),
        ([USER, CALLS, USER], "message 3 of \"messages\" comes before the result of the tool call 'c1'"),
        ([USER, RESULT], 'message 2 of "messages" has no "tool_call_id" of a call that waits'),
        ([USER, CALLS, RESULT, RESULT], 'message 4 of "messages" has no "tool_call_id"'),
        ([USER, {**CALLS, "tool_calls": {}}, USER], "is empty"),
        ([USER, {**CALLS, "tool_calls": "x"}], '"tool_calls" that are text, expected a list'),
        ([USER, {**CALLS, "tool_calls": ["x"]}], 'message 2 of "messages" has no "id" in tool call 1'),
        ([USER, {**CALLS, "tool_calls": [{"id": "a", "function": {}}]}], 'has no "function.name" in tool call 1'),
        ([USER, {**CALLS, "tool_calls": [CALL, CALL]}], 'has two "tool_calls" with the same "id"'),
        (
            [USER, {**CALLS, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "[1]"}}]}],
            'has "function.arguments" in tool call 1 that are no JSON object',
        ),
    ],
)
def test_messages_that_no_endpoint_would_take_are_refused_by_name(tmp_path: Any, messages: Any, said: str) -> None:
    found = problem(tmp_path, messages=messages)
    assert found.startswith("line 1: ")
    assert said in found


def test_a_row_that_contradicts_itself_is_refused(tmp_path: Any) -> None:
    assert '"system" is a number, expected text' in problem(tmp_path, prompt="p", system=3)
    assert '"system" and the system message of "messages" differ' in problem(
        tmp_path, system="Be long.", messages=[SYSTEM, USER]
    )
    assert row(tmp_path, system="Be brief.", messages=[SYSTEM, USER]).system == "Be brief."
    # As in data sets with whole conversations, whose answer is not ours to give.
    assert "is answered there already" in problem(tmp_path, prompt="Hi.", messages=[USER, ANSWER])


def test_rows_that_differ_only_in_what_they_bring_are_different_items(tmp_path: Any) -> None:
    path = tmp_path / "d.jsonl"
    values = [
        {"prompt": "p"},
        {"prompt": "p", "system": "A"},
        {"prompt": "p", "system": "B"},
        {"prompt": "p", "messages": [USER, ANSWER]},
        {"prompt": "p", "system": "A"},
        {"prompt": "p", "system": "", "messages": []},
    ]
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    keys = [item.key for item in iterate_items(path)]
    assert len({key.partition("#")[0] for key in keys}) == 4
    assert [key.partition("#")[2] for key in keys] == ["0", "0", "0", "0", "1", "1"]
    path.write_text('{"prompt": "p"}\n')
    assert next(iterate_items(path)).key == keys[0]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("ab"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "tool_calls", "id", "function", "name", "arguments", "tool_call_id"]),
            inner | st.sampled_from(["user", "assistant", "tool", "system"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(ANYTHING, ANYTHING, ANYTHING)
def test_anything_is_either_used_or_refused(system: Any, messages: Any, prompt: Any) -> None:
    try:
        chat = read_chat({"system": system, "messages": messages})
        opening = chat.opening(prompt) if chat.messages else ()
    except BadChat:
        return
    assert all(message["role"] in ("user", "assistant", "tool") for message in opening)
