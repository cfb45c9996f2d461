"""Reading conversations from files: what rows of each format become, and that no file does anything but that."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.core.jsonio import dumps, loads
from manyhands.export.conversations import Conversation
from manyhands.export.format import Losses, Unfit, formats, load_format
from manyhands.export.readers.atif import AtifReader
from manyhands.export.readers.chat import prompt_key
from manyhands.export.readers.fields import BadRow, Field
from manyhands.export.readers.reader import READERS, Imported, load_reader
from manyhands.export.readers.records import from_kept, kept_record
from manyhands.export.settings import ExportSettings
from tests.support.conversations import conversations, nested

USER = {"role": "user", "content": "How many?"}
ANSWER = {"role": "assistant", "content": "Three."}
TOOL = {"type": "function", "function": {"name": "count", "description": "Counts.", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "count", "arguments": '{"what": "eggs"}'}}


def read(format: str, path: Path, **how: Any) -> list[Imported]:
    return list(load_reader(format)(**how).read(path))


def written(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def one(format: str, row: Any, path: Path = Path("rows.jsonl"), **how: Any) -> Conversation:
    """The conversation of a row. Raises BadRow."""
    return load_reader(format)(**how).conversation(Field(row), path)


def said(conversation: Conversation) -> list[dict[str, Any]]:
    return [dict(message) for message in conversation.messages]


def problem(format: str, row: Any) -> str:
    with pytest.raises(BadRow) as refused:
        one(format, row)
    return str(refused.value)


# --- Whatever stands in a row


WORDS = (
    *(
        "messages",
        "prompt",
        "completion",
        "tools",
        "role",
        "content",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "id",
    ),
    *(
        "conversations",
        "from",
        "value",
        "metadata",
        "system",
        "item",
        "usage",
        "score",
        "scores",
        "source",
        "timestamp",
    ),
    *(
        "schema_version",
        "agent",
        "steps",
        "message",
        "observation",
        "results",
        "metrics",
        "extra",
        "manyhands",
        "turns",
    ),
    *(
        "type",
        "text",
        "call",
        "others",
        "weight",
        "reasoning_content",
        "reasoning",
        "final_metrics",
        "tool_definitions",
    ),
    *(
        "subagent_trajectories",
        "source_call_id",
        "function_name",
        "tool_call_id",
        "stop_reason",
        "at",
        "train",
        "given",
    ),
)
VALUES: tuple[Any, ...] = (
    *(
        "user",
        "assistant",
        "system",
        "tool",
        "human",
        "gpt",
        "function_call",
        "observation",
        "agent",
        "ATIF-v1.7",
        "text",
    ),
    *(
        "<tool_call>{}</tool_call>",
        '<tool_call>{"name": "f"}</tool_call>',
        "<tool_response>[1]</tool_response>",
        "[",
        "{}",
    ),
    *("<think>", "2026-11-27T00:00:00Z", "answered", "<tools>[]</tools>", "\ud800", "\0", 10**400, 1e308, -1, [], {}),
)
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(VALUES)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from(WORDS), st.text(max_size=4)), inner, max_size=6),
    ),
    max_leaves=40,
)


def mutated(valid: Any, at: list[int], new: Any) -> Any:
    """A value with one of its parts replaced: the one that the numbers lead to."""
    if not at or not isinstance(valid, (dict, list)) or not valid:
        return new
    keys = list(valid) if isinstance(valid, dict) else list(range(len(valid)))
    key = keys[at[0] % len(keys)]
    copy = dict(valid) if isinstance(valid, dict) else list(valid)
    copy[key] = mutated(valid[key], at[1:], new)
    return copy


ATIF: dict[str, Any] = {
    "schema_version": "ATIF-v1.7",
    "session_id": "s-1",
    "agent": {"name": "harness", "version": "1", "model_name": "vendor/m", "tool_definitions": [TOOL]},
    "steps": [
        {"step_id": 1, "source": "system", "message": "Be brief."},
        {"step_id": 2, "source": "user", "message": "How many?", "timestamp": "2026-11-27T07:00:00Z"},
        {
            "step_id": 3,
            "source": "agent",
            "message": "",
            "timestamp": "2026-11-27T07:00:02Z",
            "reasoning_content": "I count.",
            "tool_calls": [{"tool_call_id": "c1", "function_name": "count", "arguments": {"what": "eggs"}}],
            "observation": {"results": [{"source_call_id": "c1", "content": "3"}]},
            "metrics": {"prompt_tokens": 10, "completion_tokens": 3, "cost_usd": 0.5},
        },
        {
            "step_id": 4,
            "source": "agent",
            "message": "Three.",
            "metrics": {"prompt_tokens": 20, "completion_tokens": 1},
        },
    ],
}
VALID: dict[str, Any] = {
    "messages": {
        "id": "a",
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "3"},
            ANSWER,
        ],
        "tools": [TOOL],
    },
    "sharegpt": {
        "conversations": [
            {"from": "human", "value": "How many?"},
            {
                "from": "gpt",
                "value": '<think>\nI count.\n</think>\n<tool_call>\n{"name": "count", "arguments": {}}\n</tool_call>',
            },
            {
                "from": "tool",
                "value": '<tool_response>\n{"tool_call_id": "c1", "name": "count", "content": 3}\n</tool_response>',
            },
        ],
        "metadata": {
            "item": "k",
            "sample": 0,
            "usage": {"calls": 1},
            "timestamp": "2026-11-27T00:00:00",
            "source": "{}",
        },
    },
    "atif": ATIF,
    "jsonl": {
        "key": "k",
        "turns": [{"message": USER, "at": 1.0, "train": False, "call": None}],
        "usage": {"calls": 1},
        "others": [{"turns": []}],
    },
}


def check_message(error: BadRow) -> None:
    """It is one line that is not too long."""
    assert "\n" not in str(error)
    assert len(str(error)) < 500


def check_kept(conversation: Conversation) -> None:
    """It can be kept, exported, and read back."""
    record = loads(dumps(kept_record(conversation)))
    assert loads(dumps(from_kept(record).to_json())) == loads(dumps(conversation.to_json()))
    assert len(prompt_key(conversation.turns)) == 32
    with_export(conversation)


def with_export(conversation: Conversation) -> None:
    """It becomes rows of every format, or is left out for a reason."""
    for name in formats():
        format = load_format(name)
        if format.takes == "conversations":
            with suppress(Unfit):
                for row in format(ExportSettings(to=name), Losses()).rows(conversation):
                    dumps(row)


@pytest.mark.parametrize("format", READERS)
@settings(max_examples=2 * settings().max_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(row=anything)
def test_whatever_stands_in_a_row_it_is_a_conversation_or_refused(format: str, row: Any) -> None:
    try:
        found = one(format, row)
    except BadRow as error:
        check_message(error)
    else:
        check_kept(found)


@pytest.mark.parametrize("format", READERS)
@settings(max_examples=2 * settings().max_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(at=st.lists(st.integers(0, 9), max_size=8), new=anything)
def test_a_row_with_one_wrong_field_is_a_conversation_or_refused(format: str, at: list[int], new: Any) -> None:
    check_kept(one(format, VALID[format]))
    try:
        found = one(format, mutated(VALID[format], at, new))
    except BadRow as error:
        check_message(error)
    else:
        check_kept(found)


# --- Messages


def test_messages_of_fine_tuning() -> None:
    row = {
        "id": 7,
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "How many?", "image_url": None}], "tool_calls": None},
            {"role": "assistant", "content": None, "tool_calls": [CALL], "weight": 0},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "3"}]},
            {"role": "assistant", "content": "Three.", "weight": 1},
        ],
        "tools": json.dumps([TOOL]),
        "parallel_tool_calls": False,
        "language": "en",
        "nothing": None,
    }
    found = one("messages", row)
    assert said(found) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "How many?"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "assistant", "content": "Three."},
    ]
    assert [turn.train for turn in found.turns] == [False, False, False, False, True]
    assert (found.key, found.tools, found.parallel_tool_calls) == ("7", [TOOL], False)
    assert (found.source, found.stop_reason, found.usage.calls) == ({"language": "en"}, "answered", 0)


def test_prompt_and_completion_of_trl() -> None:
    plain = one("messages", {"prompt": "How many?", "completion": "Three.", "score": 0.5, "model": "m"})
    assert said(plain) == [USER, ANSWER]
    assert (plain.score, plain.model, plain.source) == (0.5, "m", {})
    row = {"prompt": [USER, ANSWER, USER], "completion": [ANSWER], "score": 7}
    chat = one("messages", row)
    assert [turn.train for turn in chat.turns] == [False, False, False, True]
    assert chat.source == {"score": 7}


@pytest.mark.parametrize(
    ("message", "reasoning", "content"),
    [
        ({"content": "Three.", "reasoning_content": " I count. "}, " I count. ", "Three."),
        ({"content": "Three.", "reasoning": "I count."}, "I count.", "Three."),
        ({"content": "Three.", "thinking": "I count.", "reasoning": "I count."}, "I count.", "Three."),
        ({"content": "<think>\nI count.\n</think>\n\nThree."}, "I count.", "Three."),
        ({"content": "<think>I count.</think>  Three."}, "I count.", "Three."),
        (
            {"content": [{"type": "thinking", "thinking": "I count."}, {"type": "text", "text": "Three."}]},
            "I count.",
            "Three.",
        ),
        ({"content": "<think></think>Three."}, None, "<think></think>Three."),
        ({"content": "Say <think>."}, None, "Say <think>."),
        ({"content": None, "refusal": "No."}, None, "No."),
        ({"content": None}, None, ""),
    ],
)
def test_reasoning_is_taken_from_wherever_it_stands(message: Any, reasoning: str | None, content: str) -> None:
    found = one("messages", {"messages": [USER, {"role": "assistant", **message}]})
    assert said(found)[-1] == {
        "role": "assistant",
        "content": content,
        **({"reasoning": reasoning} if reasoning else {}),
    }


def test_calls_without_ids_get_some_and_results_find_theirs() -> None:
    calls = [{"function": {"name": name, "arguments": {"n": 1}}} for name in ("one", "two")]
    row = {
        "messages": [
            USER,
            {"role": "assistant", "tool_calls": calls},
            {"role": "tool", "name": "two", "content": {"found": 2}},
            {"role": "tool", "content": "1"},
            {"role": "assistant", "function_call": {"name": "old", "arguments": "{}"}},
            {"role": "function", "name": "old", "content": None},
        ]
    }
    found = said(one("messages", row))
    assert [call["id"] for call in found[1]["tool_calls"]] == ["call_1", "call_2"]
    assert found[1]["tool_calls"][0]["function"] == {"name": "one", "arguments": '{"n": 1}'}
    assert [message["tool_call_id"] for message in found if message["role"] == "tool"] == ["call_2", "call_1", "call_3"]
    assert [message["content"] for message in found if message["role"] == "tool"] == ['{"found": 2}', "1", ""]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ([], "must be an object, not a list"),
        ({"id": 1}, 'has no "messages", and no "prompt" with a "completion"'),
        ({"messages": []}, "messages: has no messages"),
        ({"messages": "hello"}, "messages: is text that is not JSON"),
        ({"messages": [{"role": "human"}]}, "messages[0].role: must be system, developer, user, "),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "messages[0].content: must be text or a list of content parts, not a number",
        ),
        (
            {"messages": [{**ANSWER, "tool_calls": [{"function": {}}]}]},
            "messages[0].tool_calls[0].function.name: must be text, not null",
        ),
        ({"messages": [{**ANSWER, "weight": 2}]}, "messages[0].weight: must be true or false, not a number"),
        (
            {"messages": [USER], "tools": [{"function": {"name": 1}}]},
            "tools[0].function.name: must be text, not a number",
        ),
    ],
)
def test_what_is_wrong_with_messages_is_named(row: Any, said: str) -> None:
    assert problem("messages", row).startswith(said)


def test_an_id_may_be_in_a_field_of_its_own() -> None:
    row = {"id": "a", "uuid": 17, "messages": [USER, ANSWER]}
    found = one("messages", row, id_field="uuid")
    assert (found.key, found.source) == ("17", {"id": "a"})
    with pytest.raises(BadRow, match="other: is missing, and was to hold the id"):
        one("messages", row, id_field="other")
    assert one("messages", {"id": {"no": "id"}, "messages": [USER]}).key == ""


# --- ShareGPT


def test_plain_sharegpt_and_the_layout_of_llama_factory() -> None:
    row = {
        "conversations": [
            {"from": "human", "value": "How many?"},
            {
                "from": "function_call",
                "value": '<think>\nI count.\n</think>\n\n[{"name": "a", "arguments": {"n": 1}}, {"name": "b", "arguments": {}}]',
            },
            {"from": "observation", "value": "1\n</tool_response>\n<tool_response>\n2"},
            {"from": "gpt", "value": "Three."},
        ],
        "system": "Be brief.",
        "tools": json.dumps([TOOL["function"]]),
        "source": "eggs",
        "score": 1,
    }
    found = one("sharegpt", row)
    assert [message["role"] for message in said(found)] == ["system", "user", "assistant", "tool", "tool", "assistant"]
    call = said(found)[2]
    assert (call["content"], call["reasoning"]) == ("", "I count.")
    assert [each["function"]["name"] for each in call["tool_calls"]] == ["a", "b"]
    assert [(each["tool_call_id"], each["content"]) for each in said(found)[3:5]] == [("call_1", "1"), ("call_2", "2")]
    assert (found.tools, found.source, found.score) == ([TOOL], {"source": "eggs"}, 1.0)


def test_hermes_turns() -> None:
    tools = json.dumps([TOOL])
    row = {
        "id": "h",
        "conversations": [
            {
                "from": "system",
                "value": "You are a function calling AI model. You are provided with signatures within <tools> </tools> XML tags. "
                f"Here they are:\n<tools>\n{tools}\n</tools>\nFor each call:\n<tool_call>\n{{...}}\n</tool_call>",
            },
            {"from": "human", "value": "How many?"},
            {
                "from": "gpt",
                "value": 'I look.\n<tool_call>\n{"name": "count", "arguments": {"what": "eggs"}}\n</tool_call>',
            },
            {"from": "tool", "value": '<tool_response>\n{"name": "count", "content": {"n": 3}}\n</tool_response>'},
            {"from": "gpt", "value": "<tool_call>no call</tool_call>"},
        ],
    }
    found = one("sharegpt", row)
    assert found.tools == [TOOL]
    assert said(found)[0] == USER
    assert said(found)[1]["content"] == "I look."
    assert said(found)[2] == {"role": "tool", "tool_call_id": "call_1", "content": '{"n": 3}', "name": "count"}
    assert said(found)[3] == {"role": "assistant", "content": "<tool_call>no call</tool_call>"}


def test_calls_and_tools_as_python_prints_them() -> None:
    row = {
        "conversations": [
            {
                "from": "system",
                "value": f"You are a function calling AI model.\n<tools>\n{[TOOL]}\n</tools>\nSo:\n<tool_call>\n{{...}}\n</tool_call>",
            },
            {"from": "human", "value": "How many?"},
            {
                "from": "gpt",
                "value": "<tool_call>\n{'arguments': {'what': \"hen's\", 'all': True, 'of': None}, 'name': 'count'}\n</tool_call>",
            },
            {"from": "tool", "value": "<tool_response>\n3\n</tool_response>"},
            {"from": "gpt", "value": "<tool_call>\n{'name': {1, 2}}\n</tool_call>"},
        ],
    }
    found = one("sharegpt", row)
    assert found.tools == [TOOL]
    (call,) = said(found)[1]["tool_calls"]
    assert call["function"]["name"] == "count"
    assert json.loads(call["function"]["arguments"]) == {"what": "hen's", "all": True, "of": None}
    assert said(found)[2] == {"role": "tool", "tool_call_id": "call_1", "content": "3"}
    assert said(found)[3] == {"role": "assistant", "content": "<tool_call>\n{'name': {1, 2}}\n</tool_call>"}


def test_functions_are_tools() -> None:
    found = one("messages", {"messages": [USER, ANSWER], "functions": [TOOL["function"]]})
    assert (found.tools, found.source) == ([TOOL], {})


def test_a_system_turn_in_another_wording_stays_as_it_is() -> None:
    text = 'Use <tools>[{"name": "f"}]</tools> well.'
    row = {
        "conversations": [
            {"from": "system", "value": text},
            {"from": "human", "value": "x"},
            {"from": "gpt", "value": "y"},
        ]
    }
    assert said(one("sharegpt", row))[0] == {"role": "system", "content": text}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, 'has no "conversations"'),
        ({"conversations": []}, "conversations: has no turns"),
        (
            {
                "conversations": [{"from": "human", "value": "x"}],
                "chosen": {"from": "gpt", "value": "y"},
                "rejected": {"from": "gpt", "value": "z"},
            },
            'has a "chosen" and a "rejected" answer: pairs can\'t be imported',
        ),
        ({"conversations": [{"from": "alien", "value": ""}]}, "conversations[0].from: must be system, user"),
        ({"conversations": [{"from": "gpt"}]}, "conversations[0].value: must be text, not null"),
        (
            {"conversations": [{"from": "function_call", "value": "hm"}]},
            "conversations[0].value: must be a tool call in JSON",
        ),
        (
            {"conversations": [{"from": "gpt", "value": "<tool_call>[]</tool_call>"}], "metadata": {"item": "k"}},
            "conversations: are no turns",
        ),
        (
            {**VALID["sharegpt"], "metadata": {"item": "k", "usage": {"calls": -1}}},
            "metadata.usage.calls: must be from 0 to",
        ),
    ],
)
def test_what_is_wrong_with_turns_is_named(row: Any, said: str) -> None:
    assert problem("sharegpt", row).startswith(said)


# --- ATIF


def test_a_trajectory_of_another_program() -> None:
    found = one("atif", {**ATIF, "trajectory_id": "t-1", "notes": "mine"})
    assert [message["role"] for message in said(found)] == ["system", "user", "assistant", "tool", "assistant"]
    call = said(found)[2]
    assert (call["content"], call["reasoning"]) == (None, "I count.")
    assert call["tool_calls"] == [CALL]
    assert said(found)[3] == {"role": "tool", "tool_call_id": "c1", "content": "3", "name": "count"}
    assert (found.key, found.agent, found.model, found.tools) == ("t-1", "harness", "vendor/m", [TOOL])
    assert found.source == {"session_id": "s-1", "notes": "mine"}
    usage = found.usage
    assert (usage.calls, usage.input_tokens, usage.output_tokens, usage.cost, usage.unpriced_calls) == (
        2,
        30,
        4,
        0.5,
        1,
    )
    assert found.turns[2].call is not None
    assert (found.turns[2].call.model, found.turns[2].call.finished_at) == ("vendor/m", found.finished_at)


def test_totals_of_a_trajectory_count_before_its_steps() -> None:
    found = one("atif", {**ATIF, "final_metrics": {"total_prompt_tokens": 99, "total_cost_usd": 1.5}})
    assert (found.usage.input_tokens, found.usage.output_tokens, found.usage.cost, found.usage.unpriced_calls) == (
        99,
        0,
        1.5,
        0,
    )


def test_copied_context_subagents_and_observations_without_calls() -> None:
    inner = {**ATIF, "trajectory_id": "sub"}
    steps = [
        {"step_id": 1, "source": "user", "message": "Go on.", "is_copied_context": True},
        {"step_id": 2, "source": "agent", "message": "Earlier.", "is_copied_context": True},
        {"step_id": 3, "source": "agent", "message": "By rule.", "llm_call_count": 0},
        {
            "step_id": 4,
            "source": "agent",
            "message": [
                {"type": "text", "text": "Look:"},
                {"type": "image", "source": {"media_type": "image/png", "path": "a.png"}},
            ],
            "observation": {"results": [{"content": "$ ls"}, {"subagent_trajectory_ref": [{"trajectory_id": "sub"}]}]},
        },
    ]
    found = one("atif", {**ATIF, "steps": steps, "subagent_trajectories": [inner]})
    assert [message.get("_given") for message in said(found)] == [True, True, None, None, None]
    assert [turn.train for turn in found.turns] == [False, False, False, True, False]
    assert said(found)[3]["content"][1] == {"type": "image_url", "image_url": {"url": "a.png"}}
    assert said(found)[4] == {"role": "user", "content": "$ ls"}
    assert found.stop_reason is None
    (other,) = found.others
    assert (other.name, len(other.turns), other.usage.calls) == ("sub", 5, 0)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"steps": []}, "schema_version: must be text, not null"),
        ({**ATIF, "schema_version": "ATIF-v2.0"}, "schema_version: must be ATIF-v1.0 to ATIF-v1.8, not 'ATIF-v2.0'"),
        ({**ATIF, "steps": []}, "steps: has no steps"),
        (
            {**ATIF, "steps": [{"source": "robot", "message": ""}]},
            "steps[0].source: must be system, user or agent, not 'robot'",
        ),
        (
            {**ATIF, "steps": [{"source": "user", "message": "", "timestamp": "soon"}]},
            "steps[0].timestamp: must be a time in ISO 8601",
        ),
        ({**ATIF, "steps": [{"source": "user", "message": None}]}, "steps[0].message: must be text, not null"),
    ],
)
def test_what_is_wrong_with_a_trajectory_is_named(row: Any, said: str) -> None:
    assert problem("atif", row).startswith(said)


def test_a_job_folder_of_harbor_is_read_by_its_tasks(tmp_path: Path) -> None:
    for number, (task, reward) in enumerate([("eggs", 1), ("hens", 0.0), ("eggs", 0.5)]):
        trial = tmp_path / "job" / f"{task}__{number}"
        (trial / "agent").mkdir(parents=True)
        (trial / "agent/trajectory.json").write_text(json.dumps(ATIF, indent=1))
        (trial / "agent/trajectory.cont-1.json").write_text("{}")
        result = {"task_name": task, "trial_name": trial.name, "verifier_result": {"rewards": {"reward": reward}}}
        (trial / "result.json").write_text(json.dumps(result))
    (tmp_path / "job/result.json").write_text("{}")
    found = [each.conversation for each in read("atif", tmp_path / "job")]
    assert [(each.key, each.score) for each in found if each is not None] == [
        ("eggs", 1.0),
        ("eggs", 0.5),
        ("hens", 0.0),
    ]
    assert found[0] is not None
    assert found[0].source["trial_name"] == "eggs__0"
    (tmp_path / "job/eggs__0/result.json").write_text("{")
    assert (
        read("atif", tmp_path / "job")[0].problem
        == "result.json: not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    )


def test_a_folder_of_trajectories(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(json.dumps(ATIF))
    (tmp_path / "a.json").write_text(json.dumps([ATIF, ATIF]))
    (tmp_path / "export_summary.json").write_text("{}")
    assert [each.place for each in read("atif", tmp_path)] == [
        f"{tmp_path}/a.json, row 1",
        f"{tmp_path}/a.json, row 2",
        f"{tmp_path}/b.json, line 1",
    ]
    written(tmp_path / "t.jsonl", ATIF, ATIF)
    assert [each.place for each in AtifReader().read(tmp_path / "t.jsonl")][1] == f"{tmp_path}/t.jsonl, line 2"


# --- The canonical record


@settings(max_examples=settings().max_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(conversation=conversations(), extra=nested)
def test_the_canonical_record_comes_back_whole(conversation: Conversation, extra: Any) -> None:
    conversation.others = [Conversation(run="r", run_id="i", workload="w", item=1, key="k", name="judge")]
    record = loads(dumps({**conversation.to_json(), "of a later version": extra}))
    assert one("jsonl", record).to_json() == conversation.to_json()
    assert from_kept(loads(dumps(kept_record(conversation)))).to_json() == conversation.to_json()


# --- Files


def rows_of(count: int) -> list[dict[str, Any]]:
    return [{"id": f"r{number}", "messages": [USER, ANSWER]} for number in range(count)]


def as_json_lines(path: Path, rows: list[Any]) -> Path:
    return written(path.with_suffix(".jsonl"), *rows)


def as_gzip(path: Path, rows: list[Any]) -> Path:
    target = path.with_suffix(".jsonl.gz")
    target.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    return target


def as_list(path: Path, rows: list[Any]) -> Path:
    path.with_suffix(".json").write_text(json.dumps(rows, indent=1))
    return path.with_suffix(".json")


def as_data(path: Path, rows: list[Any]) -> Path:
    path.with_suffix(".json").write_text(json.dumps({"version": 1, "data": rows}))
    return path.with_suffix(".json")


def as_parquet(path: Path, rows: list[Any]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def as_saved_dataset(path: Path, rows: list[Any]) -> Path:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(rows).save_to_disk(str(path))
    return path


def as_folder(path: Path, rows: list[Any]) -> Path:
    (path / "data").mkdir(parents=True)
    as_json_lines(path / "data/train-00000", rows[:2])
    as_parquet(path / "data/train-00001", rows[2:])
    (path / "README.md").write_text("About.")
    (path / "dataset_info.json").write_text("{}")
    return path


@pytest.mark.parametrize("write", [as_json_lines, as_gzip, as_list, as_data, as_parquet, as_saved_dataset, as_folder])
def test_rows_are_read_from_files_of_all_kinds(write: Callable[[Path, list[Any]], Path], tmp_path: Path) -> None:
    found = read("messages", write(tmp_path / "rows", rows_of(3)))
    assert [each.problem for each in found] == [None] * 3
    assert [each.conversation.key for each in found if each.conversation] == ["r0", "r1", "r2"]


def test_a_json_file_may_be_one_object(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_text(json.dumps(rows_of(1)[0], indent=2))
    (found,) = read("messages", path)
    assert found.place == str(path)
    path.write_text("\n".join(map(json.dumps, rows_of(2))))
    assert len(read("messages", path)) == 2


def test_a_bad_line_is_named_and_reading_goes_on(tmp_path: Path) -> None:
    deep = '{"messages": ' + "[" * 100_000 + "]" * 100_000 + "}"
    path = written(
        tmp_path / "m.jsonl", rows_of(1)[0], "{", deep, '{"messages": [NaN]}', '{"messages": "\\ud800"}', rows_of(1)[0]
    )
    problems = [each.problem or "" for each in read("messages", path)]
    assert problems[0] == problems[-1] == ""
    assert [problem.partition(" at")[0] for problem in problems[1:-1]] == [
        "invalid JSON",
        "invalid JSON: nested too deeply",
        "invalid JSON: NaN is not JSON",
        "messages: is text that is not JSON",
    ]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.jsonl", None, "no such file or folder: "),
        ("empty.jsonl", b"", "the dataset file is empty: "),
        ("list.json", b"[1, ", "line 1, column 5: the file ends early"),
        ("other.json", b'{"a": [', "line 1, column 8: Expecting value"),
        ("no.parquet", b"PAR1", "not a readable Parquet file"),
    ],
)
def test_what_can_not_be_read_at_all_is_one_line(name: str, content: bytes | None, said: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as refused:
        read("messages", tmp_path / name)
    assert said in str(refused.value)
    assert name in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_folder_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UserError, match="has no files with rows"):
        read("messages", tmp_path)


def test_formats_by_name() -> None:
    assert [load_reader(name).name for name in READERS] == list(READERS)
    with pytest.raises(UserError, match="--from: there is no format 'mesages'; did you mean messages"):
        load_reader("mesages")


def test_lines_of_the_original_batch_runner(tmp_path: Path) -> None:
    folder = Path(__file__).parents[1] / "data/trajectories/left_by_original/r1"
    found = read("sharegpt", folder)
    assert len([each for each in found if each.conversation is not None]) > 10
    assert all(each.conversation is not None or "invalid JSON" in (each.problem or "") for each in found)
    first = next(each.conversation for each in found if each.conversation is not None)
    assert first.tools
    assert first.turns[0].role == "user"
