"""Traces for analysis: ATIF trajectories, episodes of verifiers, sessions for the Hugging Face Hub."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest
from hypothesis import given, settings

from manyhands.core.messages import Message, text_of
from manyhands.core.usage import ZERO, Usage
from manyhands.export.conversations import Conversation, ModelCall, Turn
from manyhands.export.exporting import export
from manyhands.export.files import OneFileEach, file_name
from manyhands.export.format import Losses, load_format
from manyhands.export.settings import ExportSettings
from manyhands.runs.folders import open_reader
from manyhands.testing.scripted_server import RecordedRequest, Reply, chat_response
from tests.support.batches import BatchFolder, ServerThread, run_command
from tests.support.conversations import BEGAN, TOOLS, conversations

many = settings(max_examples=2 * settings().max_examples, deadline=None)
FIRST = Usage(calls=1, input_tokens=100, output_tokens=10, cached_tokens=40, reasoning_tokens=3, cost=0.5)
SECOND = Usage(calls=2, input_tokens=7, output_tokens=2, cost=0.25)


def made(name: str, conversation: Conversation, losses: Losses | None = None, **values: Any) -> Any:
    """The one row of a conversation."""
    format = load_format(name)(ExportSettings(to=name, **values), losses or Losses())
    (row,) = format.rows(conversation)
    return json.loads(json.dumps(row))


def answer(content: Any, usage: Usage = ZERO, **message: Any) -> Turn:
    """What a model wrote in the run."""
    call = ModelCall("/1", "vendor/model-1", usage, BEGAN + 1, BEGAN + 2, "stop")
    return Turn(cast(Message, {"role": "assistant", "content": content, **message}), BEGAN + 2, call, train=True)


def called(*calls: tuple[str, str, str]) -> list[dict[str, Any]]:
    """Tool calls: id, name, arguments."""
    return [{"id": id, "type": "function", "function": {"name": name, "arguments": text}} for id, name, text in calls]


def conversation_of(*turns: Turn, **fields: Any) -> Conversation:
    values: dict[str, Any] = {"workload": "trajectories", "item": 1, "key": "k", "usage": Usage(), **fields}
    return Conversation(run="r", run_id="0123", turns=list(turns), **values)


def asked(content: Any = "Hi", **message: Any) -> Turn:
    return Turn(cast(Message, {"role": "user", "content": content, **message}), BEGAN)


def seen(conversation: Conversation) -> list[dict[str, Any]]:
    """What every format must hold of the messages: arguments as values, no empty content apart from none."""
    found = []
    for turn in conversation.turns:
        message = turn.message
        calls = [
            (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        ]
        thought = message.get("reasoning") or ""
        found.append(
            {
                "role": message["role"],
                "content": text_of(message.get("content")),
                "reasoning": thought if thought.strip() else "",
                "calls": calls,
                "answers": message.get("tool_call_id"),
            }
        )
    return found


def shown(role: str, content: str, reasoning: str = "", calls: Any = (), answers: str | None = None) -> dict[str, Any]:
    return {"role": role, "content": content, "reasoning": reasoning, "calls": list(calls), "answers": answers}


# --- ATIF

STEP_KEYS = {"step_id", "timestamp", "source", "message", "observation", "is_copied_context", "extra"}
AGENT_KEYS = {"model_name", "reasoning_content", "tool_calls", "metrics", "llm_call_count"}
ROOT_KEYS = {"schema_version", "session_id", "trajectory_id", "agent", "steps", "notes", "final_metrics", "extra"}
METRICS = {"prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd", "extra"}
FIGURES = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens", "cached_tokens": "cached_tokens"}
ROLES = {"system": "system", "user": "user", "agent": "assistant"}


def from_atif(trajectory: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a trajectory, as ``seen`` has them."""
    found = []
    for step in trajectory["steps"]:
        calls = [
            (call["tool_call_id"], call["function_name"], call["arguments"]) for call in step.get("tool_calls") or ()
        ]
        found.append(shown(ROLES[step["source"]], step["message"], step.get("reasoning_content", ""), calls))
        results = step.get("observation", {"results": []})["results"]
        found += [shown("tool", each["content"], answers=each["source_call_id"]) for each in results]
    return found


@many
@given(conversations())
def test_atif_holds_every_message_and_nothing_that_is_forbidden(conversation: Conversation) -> None:
    row = made("atif", conversation)
    assert from_atif(row) == seen(conversation)
    assert set(row) <= ROOT_KEYS
    assert row["schema_version"] == "ATIF-v1.7"
    assert [step["step_id"] for step in row["steps"]] == list(range(1, len(row["steps"]) + 1))
    for step in row["steps"]:
        assert set(step) <= (STEP_KEYS | AGENT_KEYS if step["source"] == "agent" else STEP_KEYS)
        assert set(step.get("metrics", ())) <= METRICS
        ids = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        assert {each["source_call_id"] for each in step.get("observation", {"results": ()})["results"]} <= ids
        if "timestamp" in step:
            assert datetime.fromisoformat(step["timestamp"]).utcoffset().total_seconds() == 0  # type: ignore[union-attr]
    failed = [bool(turn.message.get("_failed")) for turn in conversation.turns if turn.role == "tool"]
    results = [each for step in row["steps"] for each in step.get("observation", {"results": ()})["results"]]
    assert [each.get("extra", {}).get("manyhands", {}).get("failed", False) for each in results] == failed


@many
@given(conversations())
def test_atif_totals_are_what_the_steps_used(conversation: Conversation) -> None:
    row = made("atif", conversation)
    metrics = [step["metrics"] for step in row["steps"] if "metrics" in step]
    final = row["final_metrics"]
    for name, ours in FIGURES.items():
        assert sum(each[name] for each in metrics) == final[f"total_{name}"] == getattr(conversation.usage, ours)
    assert final["total_cost_usd"] == pytest.approx(conversation.usage.cost)
    assert final["total_steps"] == len(row["steps"])
    assert "notes" not in row


@many
@given(conversations())
def test_both_versions_of_atif_differ_in_their_number_alone(conversation: Conversation) -> None:
    newer = made("atif", conversation, atif_version="1.8")
    assert newer.pop("schema_version") == "ATIF-v1.8"
    older = made("atif", conversation)
    assert older | newer == older


def judged() -> Conversation:
    """One whose item used more than its steps: a judge's call, and an abandoned attempt."""
    spent = FIRST + SECOND + Usage(calls=1, input_tokens=1, output_tokens=1, cost=0.125)
    judge = conversation_of(asked("Is it good?"), answer("Yes.", SECOND), name="judge a/b", model="judge/model")
    twin = replace(judge, turns=[asked("Really?"), answer("Yes.")])
    return conversation_of(asked(), answer("Hello.", FIRST), usage=spent, others=[judge, twin], score=0.0, seed=0)


def test_judges_are_subagents_that_the_last_step_refers_to() -> None:
    row = made("atif", judged())
    inner = row["subagent_trajectories"]
    refs = [ref for each in row["steps"][-1]["observation"]["results"] for ref in each["subagent_trajectory_ref"]]
    assert [ref["trajectory_id"] for ref in refs] == [each["trajectory_id"] for each in inner]
    assert len({row["trajectory_id"], *(each["trajectory_id"] for each in inner)}) == 3
    assert {each["session_id"] for each in (row, *inner)} == {"0123/1"}
    assert [each["agent"]["name"] for each in inner] == ["judge a/b"] * 2
    assert row["extra"]["manyhands"]["score"] == 0.0
    assert row["extra"]["manyhands"]["seed"] == 0


def test_totals_have_everything_that_the_item_used_and_say_what_is_not_the_steps_own() -> None:
    row = made("atif", judged())
    final = row["final_metrics"]
    assert (final["total_prompt_tokens"], final["total_completion_tokens"]) == (108, 13)
    assert final["total_cost_usd"] == 0.875
    split = final["extra"]["manyhands"]
    assert Usage.from_json(split["steps"]) == FIRST
    assert Usage.from_json(split["judges"]) == SECOND
    assert split["other"]["cost"] == 0.125
    assert "final_metrics" in row["notes"]
    assert row["subagent_trajectories"][0]["final_metrics"]["total_prompt_tokens"] == 7


def test_a_further_conversation_of_an_item_has_no_totals() -> None:
    row = made("atif", conversation_of(asked(), answer("Hello.", FIRST), name="stage check"))
    assert row["final_metrics"] == {"extra": {"manyhands": {"steps": FIRST.to_json()}}, "total_steps": 2}
    assert "first conversation" in row["notes"]


def test_judges_that_are_exported_by_themselves_are_in_no_other_trajectory() -> None:
    assert "subagent_trajectories" not in made("atif", judged(), judges=True)
    assert len(made("verifiers", judged(), judges=True)["traces"]) == 1


@pytest.mark.parametrize("text", ["[1]", "not JSON", '{"a": NaN}', '{"a": 1e999}', '"text"', "", "[" * 5000])
def test_arguments_that_are_no_object_are_kept_as_text(text: str) -> None:
    row = made("atif", conversation_of(asked(), answer(None, tool_calls=called(("c", "f", text)))))
    (call,) = row["steps"][1]["tool_calls"]
    assert call["arguments"] == {}
    assert call["extra"]["manyhands"]["arguments"] == text


@pytest.mark.parametrize("text", ["{}", '{"a": null}', f'{{"a": {"9" * 40}}}', '{"a": "\\ud800"}'])
def test_arguments_that_are_an_object_are_one(text: str) -> None:
    row = made("atif", conversation_of(asked(), answer(None, tool_calls=called(("c", "f", text)))))
    assert row["steps"][1]["tool_calls"][0] == {
        "tool_call_id": "c",
        "function_name": "f",
        "arguments": json.loads(text),
    }


def test_given_messages_are_copied_context() -> None:
    given_turns = [asked("Before", _given=True), Turn({"role": "assistant", "content": "Then", "_given": True})]
    row = made("atif", conversation_of(*given_turns, asked(), answer("Now")))
    assert [step.get("is_copied_context") for step in row["steps"]] == [True, True, None, None]
    assert "metrics" not in row["steps"][1]


def test_what_is_not_to_be_trained_on_says_so() -> None:
    steps = made("atif", conversation_of(asked(), replace(answer("One"), train=False), asked("On"), answer("Two")))[
        "steps"
    ]
    assert steps[1]["extra"]["manyhands"]["train"] is False
    assert "train" not in steps[3]["extra"]["manyhands"]


def test_empty_content_beside_calls_differs_from_none() -> None:
    calls = called(("c", "f", "{}"))
    for content, extra in (("", {"content": ""}), (None, {})):
        turn = replace(answer(content, tool_calls=calls), call=None)
        step = made("atif", conversation_of(asked(), turn))["steps"][1]
        assert step["message"] == ""
        assert step.get("extra", {"manyhands": {}})["manyhands"] == extra


def test_images_are_content_parts_with_their_type() -> None:
    parts = [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": "data:image/gif;base64,R0lG"}},
        {"type": "image_url", "image_url": {"url": "https://x.example/a.JPEG?size=1"}},
        {"type": "image_url", "image_url": {"url": "data:image/tiff;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}},
    ]
    losses = Losses()
    message = made("atif", conversation_of(asked(parts), answer("Nice.")), losses)["steps"][0]["message"]
    assert message == [
        {"type": "text", "text": "Look:"},
        {"type": "image", "source": {"media_type": "image/gif", "path": "data:image/gif;base64,R0lG"}},
        {"type": "image", "source": {"media_type": "image/jpeg", "path": "https://x.example/a.JPEG?size=1"}},
        {"type": "text", "text": "<image>"},
        {"type": "text", "text": "<audio>"},
    ]
    assert losses.counts == {"content parts of the type image_url": 1, "content parts of the type input_audio": 1}
    newer = made("atif", conversation_of(asked(parts), answer("Nice.")), atif_version="1.8")["steps"][0]["message"]
    assert newer[-1]["source"] == {"media_type": "audio/wav", "path": "data:audio/wav;base64,UklG"}


def test_a_result_without_a_call_stands_in_the_step_before_it() -> None:
    result = Turn({"role": "tool", "tool_call_id": "gone", "name": "f", "content": "42"}, BEGAN)
    steps = made("atif", conversation_of(result, asked(), result, answer("Done.")))["steps"]
    assert [step["source"] for step in steps] == ["system", "user", "agent"]
    for step in steps[:2]:
        (found,) = step["observation"]["results"]
        assert "source_call_id" not in found
        assert found["extra"]["manyhands"]["tool_call_id"] == "gone"


@pytest.mark.parametrize(
    ("mode", "message", "reasoning"),
    [("keep", "<think>\nHm.\n</think>\n\nHi", None), ("drop", "Hi", None), ("field", "Hi", "Hm.")],
)
def test_reasoning_stands_where_it_is_wanted(mode: str, message: str, reasoning: str | None) -> None:
    losses = Losses()
    conversation = conversation_of(asked(), answer("Hi", reasoning="Hm."))
    step = made("atif", conversation, losses, reasoning=mode)["steps"][1]
    assert (step["message"], step.get("reasoning_content")) == (message, reasoning)
    assert losses.counts["messages' reasoning"] == (mode == "drop")


# --- verifiers


@many
@given(conversations())
def test_an_episode_of_verifiers_is_a_chain_of_all_messages(conversation: Conversation) -> None:
    row = made("verifiers", conversation)
    (trace,) = row["traces"]
    assert [node.get("parent") for node in trace["nodes"]] == [None, *range(len(trace["nodes"]) - 1)]
    assert [node["sampled"] for node in trace["nodes"]] == [turn.train for turn in conversation.turns]
    messages = [node["message"] for node in trace["nodes"]]
    assert [
        shown(
            message["role"],
            message["content"] or "",
            message.get("reasoning_content", ""),
            [(call["id"], call["name"], json.loads(call["arguments"])) for call in message.get("tool_calls", ())],
            message.get("tool_call_id"),
        )
        for message in messages
    ] == seen(conversation)
    assert [call["node"] for call in trace["calls"]] == [at for at, turn in enumerate(conversation.turns) if turn.call]
    assert [tool["name"] for tool in trace["tools"]] == [tool["function"]["name"] for tool in conversation.tools]
    assert trace["rewards"] == (
        {} if conversation.score is None else {"score": {"score": conversation.score, "weight": 1.0}}
    )
    assert "extra_usage" not in trace


def test_an_episode_has_its_judges_and_what_else_the_item_used() -> None:
    row = made("verifiers", judged())
    assert [trace["agent"]["trainable"] for trace in row["traces"]] == [True, False, False]
    used = [call["usage"] for trace in row["traces"] for call in trace["calls"]] + row["traces"][0]["extra_usage"]
    assert sum(each["prompt_tokens"] + each["cached_input_tokens"] for each in used) == judged().usage.input_tokens
    assert sum(each["completion_tokens"] for each in used) == judged().usage.output_tokens
    assert sum(each["cost"] for each in used) == judged().usage.cost


@many
@given(conversations())
def test_a_rollout_of_version_0_is_the_prompt_and_what_followed(conversation: Conversation) -> None:
    row = made("verifiers", conversation, verifiers_version="v0")
    assert [message["role"] for message in row["prompt"]][-1:] == ["user"]
    assert row["completion"][0]["role"] == "assistant"
    assert [message["content"] for message in (*row["prompt"], *row["completion"])] == [
        text_of(turn.message.get("content")) for turn in conversation.turns
    ]
    assert row["reward"] == (conversation.score or 0.0)
    for message in row["completion"]:
        assert all(isinstance(json.loads(call)["arguments"], str) for call in message.get("tool_calls", ()))


# --- Sessions for the Hub

HEADER = {
    "type": "object",
    "required": ["type", "harness", "id"],
    "properties": {
        "type": {"const": "session"},
        "harness": {"type": "string", "minLength": 1},
        "id": {"type": "string", "minLength": 1},
        "name": {"type": "string"},
    },
}
CALL = {
    "type": "object",
    "required": ["id", "function"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string"},
        "function": {
            "type": "object",
            "required": ["name", "arguments"],
            "additionalProperties": False,
            "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}},
        },
    },
}
LINE = {
    "type": "object",
    "required": ["type", "message"],
    "additionalProperties": False,
    "properties": {
        "type": {"const": "message"},
        "message": {
            "type": "object",
            "required": ["role", "content"],
            "additionalProperties": False,
            "properties": {
                "role": {"enum": ["user", "assistant", "system", "tool"]},
                "content": {"type": "string"},
                "reasoningContent": {"type": "string"},
                "toolCalls": {"type": "array", "minItems": 1, "items": CALL},
                "toolCallId": {"type": "string"},
                "timestamp": {"type": "integer"},
                "model": {"type": "string"},
            },
        },
    },
}
"""As the Hub's page about its Session Trace Simple Format describes it."""
line_check, header_check = jsonschema.Draft202012Validator(LINE), jsonschema.Draft202012Validator(HEADER)


@many
@given(conversations())
def test_a_session_has_a_header_and_a_line_for_each_message(conversation: Conversation) -> None:
    header, *lines = made("hf-traces", conversation)["lines"]
    header_check.validate(header)
    for line in lines:
        line_check.validate(line)
    assert [
        shown(
            message["role"],
            message["content"],
            message.get("reasoningContent", ""),
            [
                (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
                for call in message.get("toolCalls", ())
            ],
            message.get("toolCallId"),
        )
        for message in (line["message"] for line in lines)
    ] == seen(conversation)


@many
@given(conversations())
def test_a_session_of_pi_is_a_chain_of_entries(conversation: Conversation) -> None:
    header, *lines = made("hf-traces", conversation, hf_layout="pi")["lines"]
    assert (header["type"], header["version"]) == ("session", 3)
    ids = [line["id"] for line in lines]
    assert [line["parentId"] for line in lines] == [None, *ids[:-1]]
    assert len(set(ids)) == len(ids)
    assert [_of_pi(line["message"]) for line in lines] == seen(conversation)
    used = [line["message"]["usage"] for line in lines if "usage" in line["message"]]
    assert sum(each["totalTokens"] for each in used) == conversation.usage.total_tokens


def _of_pi(message: Mapping[str, Any]) -> dict[str, Any]:
    role, content = message["role"], message["content"]
    if isinstance(content, str):
        return shown(role, content)
    texts = "".join(part["text"] for part in content if part["type"] == "text")
    thoughts = "".join(part["thinking"] for part in content if part["type"] == "thinking")
    calls = [(part["id"], part["name"], part["arguments"]) for part in content if part["type"] == "toolCall"]
    return shown("tool" if role == "toolResult" else role, texts, thoughts, calls, message.get("toolCallId"))


# --- Files


def test_names_of_files_are_safe_and_distinct(tmp_path: Path) -> None:
    sink = OneFileEach(tmp_path / "out", ".json", lambda row: file_name(7, row["key"], row["name"]))
    rows = [
        ("../../etc/passwd", ""),
        ("a\nb", "judge x/y"),
        ("k" * 5000, ""),
        ("\ud800\0", ""),
        ("same", ""),
        ("same", ""),
    ]
    for key, name in rows:
        sink.write({"key": key, "name": name})
    sink.close()
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert len(names) == len(rows)
    assert {"000007-same.json", "000007-same-2.json", "000007-a-b-judge x-y.json"} <= set(names)
    assert all(path.parent == tmp_path / "out" for path in tmp_path.rglob("*.json"))


VERDICT = {"checks": {"rubric-1": {"satisfied": True, "reasoning": "It is."}}}


def _scripted(request: RecordedRequest) -> Reply:
    """An agent that calls a tool before it answers, and its judge; all calls have a price."""
    if request.body["model"] == "judge/model":
        reply = chat_response(json.dumps(VERDICT))
    elif any(message["role"] == "tool" for message in request.body["messages"]):
        reply = chat_response("It says hello.", reasoning="Read.")
    else:
        calls = called(("c1", "terminal", '{"command": "echo hello"}'))
        reply = chat_response("I look.", reasoning="Let me see.", tool_calls=calls)
    reply["usage"] |= {"cost": 0.0125, "prompt_tokens_details": {"cached_tokens": 4}}
    return reply


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a batch with judges that are models."""
    folder = BatchFolder(tmp_path_factory.mktemp("batch"), ["one", "two", "three"])
    (folder.path / "checks.yaml").write_text("judge: {model: judge/model}\nassert: [The answer is short.]\n")
    with ServerThread(_scripted) as server:
        ran = folder.batch(f"--base_url={server.base_url}", "--grade=checks.yaml")
    assert ran.code == 0, ran
    return folder.run()


def ledger(run: Path) -> Usage:
    reader = open_reader(run)
    try:
        return reader.usage()
    finally:
        reader.close()


def written(run: Path, to: str, output: Path, **values: Any) -> dict[str, bytes]:
    """The files of an export, by their paths in it."""
    export([run], ExportSettings(to=to, **values), output)
    return {str(path.relative_to(output)): path.read_bytes() for path in sorted(output.rglob("*")) if path.is_file()}


def test_atif_files_of_a_run_add_up_to_its_ledger(run: Path, tmp_path: Path) -> None:
    files = written(run, "atif", tmp_path / "out")
    rows = [json.loads(text) for name, text in files.items() if name != "export_summary.json"]
    assert len(rows) == 3
    assert all(len(row["subagent_trajectories"]) == 1 for row in rows)
    used, finals = ledger(run), [row["final_metrics"] for row in rows]
    assert used.cost > 0.1
    for name, ours in FIGURES.items():
        assert sum(final[f"total_{name}"] for final in finals) == getattr(used, ours)
    assert sum(final["total_cost_usd"] for final in finals) == pytest.approx(used.cost, abs=1e-9)
    assert all(row["extra"]["manyhands"]["score"] == 1.0 for row in rows)
    split = [final["extra"]["manyhands"] for final in finals]
    assert all(Usage.from_json(each["judges"]).calls == 1 for each in split)
    assert all("other" not in each for each in split)


def test_episodes_of_a_run_add_up_to_its_ledger(run: Path, tmp_path: Path) -> None:
    lines = written(run, "verifiers", tmp_path / "out")["traces.jsonl"].splitlines()
    traces = [trace for line in lines for trace in json.loads(line)["traces"]]
    used = [call["usage"] for trace in traces for call in trace["calls"]]
    used += [each for trace in traces for each in trace.get("extra_usage", ())]
    total = ledger(run)
    assert sum(each["prompt_tokens"] + each["cached_input_tokens"] for each in used) == total.input_tokens
    assert sum(each["completion_tokens"] for each in used) == total.output_tokens
    assert sum(each["cost"] for each in used) == pytest.approx(total.cost, abs=1e-9)


def test_a_folder_for_version_0_has_its_metadata(run: Path, tmp_path: Path) -> None:
    files = written(run, "verifiers", tmp_path / "out", verifiers_version="v0")
    metadata = json.loads(files["metadata.json"])
    assert (metadata["num_examples"], metadata["rollouts_per_example"], metadata["avg_reward"]) == (3, 1, 1.0)
    assert len(files["results.jsonl"].splitlines()) == 3


@pytest.mark.parametrize(
    ("to", "more"),
    [("atif", {}), ("verifiers", {}), ("verifiers", {"verifiers_version": "v0"}), ("hf-traces", {}), ("hf-traces", {"hf_layout": "pi"})],
)  # fmt: skip
def test_the_same_run_gives_the_same_bytes(run: Path, tmp_path: Path, to: str, more: Mapping[str, Any]) -> None:
    once = written(run, to, tmp_path / "a", **more)
    again = written(run, to, tmp_path / "b", **more)
    assert once == again
    assert len(once) >= 2


def test_splits_and_shards_are_folders(run: Path, tmp_path: Path) -> None:
    split = written(run, "hf-traces", tmp_path / "split", split="train=0.5,valid=0.5")
    folders = {name.partition("/")[0] for name in split if "/" in name}
    assert folders <= {"train", "valid"}
    assert '"train/*.jsonl"' in split["README.md"].decode()
    shards = written(run, "atif", tmp_path / "shards", shard_rows=2)
    assert sorted(name.partition("/")[0] for name in shards if "/" in name) == [
        *(["train-00000-of-00002"] * 2),
        "train-00001-of-00002",
    ]


def test_atif_as_lines_has_the_rows_of_the_files(run: Path, tmp_path: Path) -> None:
    files = written(run, "atif", tmp_path / "out")
    ran = run_command(tmp_path, "export", str(run), "--to", "atif", "-o", "rows.jsonl")
    assert ran.code == 0, ran
    texts = [text for name, text in sorted(files.items()) if name != "export_summary.json"]
    assert (tmp_path / "rows.jsonl").read_bytes() == b"".join(texts)


def test_sessions_are_not_one_file(run: Path, tmp_path: Path) -> None:
    ran = run_command(tmp_path, "export", str(run), "--to", "hf-traces", "-o", "x.jsonl")
    assert ran.code == 2
    assert "name a folder" in ran.err
    assert [*tmp_path.iterdir()] == []


def test_nothing_is_left_of_an_export_that_stops_at_a_secret(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, ["one", "The token is hf_" + "a" * 34])
    with ServerThread() as server:
        assert folder.batch(f"--base_url={server.base_url}", "--batch_size=1").code == 0
    ran = run_command(tmp_path, "export", str(folder.run()), "--to", "atif", "-o", "out")
    assert ran.code == 2, ran
    assert "item" in ran.err
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]


def test_an_earlier_export_is_replaced_as_a_whole(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = written(run, "atif", out)
    written(run, "atif", out, select=["item=1"])
    assert len([path for path in out.iterdir() if path.name != "export_summary.json"]) == 1
    assert written(run, "atif", out) == first


def tool_names(tools: Iterable[Mapping[str, Any]]) -> list[str]:
    return [tool["function"]["name"] for tool in tools]


def test_tools_stand_where_each_format_has_them() -> None:
    conversation = conversation_of(asked(), answer("Hi"), tools=TOOLS)
    assert tool_names(made("atif", conversation)["agent"]["tool_definitions"]) == tool_names(TOOLS)
    assert tool_names(made("hf-traces", conversation)["lines"][0]["manyhands"]["tools"]) == tool_names(TOOLS)
    trace = made("verifiers", conversation)["traces"][0]
    assert trace["tools"] == trace["nodes"][0]["tools"]
