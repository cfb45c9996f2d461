"""The formats for training: what rows hold, of conversations of all kinds, and which conversations each leaves out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, cast

import pytest
from hypothesis import given, settings
from ruamel.yaml import YAML

from manyhands.core.jsonio import compact_line
from manyhands.core.messages import Message, text_of
from manyhands.export.conversations import Conversation, Turn
from manyhands.export.format import Format, Losses, Unfit, load_format
from manyhands.export.settings import ExportSettings
from manyhands.export.sharegpt_reading import messages_of
from manyhands.testing.scripted_server import RecordedRequest, Reply, chat_response
from tests.support.batches import BatchFolder, Ran, ServerThread, read_lines, run_command
from tests.support.conversations import TOOLS, conversations, pairs
from tests.support.picture_files import data_address, picture

thorough = settings(max_examples=2 * settings().max_examples)
SINGLE = ("openai", "messages", "kto", "axolotl", "llamafactory", "sharegpt")
"""The formats that make rows of single conversations."""
PAIRED = ("openai-dpo", "preference")
IMAGE = {"type": "image_url", "image_url": {"url": data_address(picture())}}


def format_of(name: str, **values: Any) -> Format:
    return load_format(name)(ExportSettings(to=name, **values), Losses())


def row_of(conversation: Conversation, name: str, **values: Any) -> dict[str, Any]:
    """The one row of a conversation, as it is read from a file."""
    (row,) = format_of(name, **values).rows(conversation)
    found: dict[str, Any] = json.loads(compact_line(row))
    return found


def lost(conversation: Conversation, name: str, **values: Any) -> Counter[str]:
    format = format_of(name, **values)
    assert list(format.rows(conversation))
    return format.losses.counts


def calls_in(messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for message in messages:
        yield from message.get("tool_calls", ())


def arguments_in(conversation: Conversation) -> list[tuple[str, Any]]:
    calls = calls_in(cast(list[dict[str, Any]], conversation.messages))
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


# --- Conversations of all kinds


@thorough
@given(conversations())
def test_openais_rows(conversation: Conversation) -> None:
    row = row_of(conversation, "openai")
    messages = row["messages"]
    assert [message["role"] for message in messages] == [turn.role for turn in conversation.turns]
    assert messages[-1]["role"] == "assistant"
    assert [message["weight"] for message in messages if "weight" in message] == [
        int(turn.train) for turn in conversation.turns if turn.role == "assistant"
    ]
    assert ("tools" in row) == bool(conversation.tools)
    assert "parallel_tool_calls" not in row
    found = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls_in(messages)]
    assert found == arguments_in(conversation)
    for message, turn in zip(messages, conversation.turns, strict=True):
        assert set(message) <= {"role", "content", "tool_calls", "tool_call_id", "weight"}
        assert text_of(message["content"]) == text_of(turn.message.get("content"))


@thorough
@given(conversations())
def test_trls_rows(conversation: Conversation) -> None:
    conversation.score = 0.5 if conversation.score is None else conversation.score
    row, struct = row_of(conversation, "messages"), row_of(conversation, "messages", tools="struct")
    assert list(row) == list(struct) == ["messages", "tools"]
    assert json.loads(row["tools"]) == struct["tools"] == list(conversation.tools)
    messages = row["messages"]
    assert all(isinstance(message["content"], str) for message in messages)
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in calls_in(messages)] == arguments_in(
        conversation
    )
    assert [message.get("reasoning_content") for message in messages] == [
        turn.message.get("reasoning") for turn in conversation.turns
    ]
    parts = row_of(conversation, "messages", layout="prompt_completion")
    assert parts["prompt"] + parts["completion"] == messages
    assert [message["role"] for message in parts["completion"]] == ["assistant"]
    judged = row_of(conversation, "kto", threshold=0.25)
    assert judged["prompt"] + judged["completion"] == messages
    assert {message["role"] for message in judged["prompt"]} <= {"system", "user"}
    assert judged["label"] is (conversation.score >= 0.25)


@thorough
@given(conversations())
def test_axolotls_rows(conversation: Conversation) -> None:
    conversation.turns[-1].train = False
    other = any(turn.train for turn in conversation.turns)
    conversation.turns[-1].train = not other
    row = row_of(conversation, "axolotl")
    assert json.loads(row["tools"]) == list(conversation.tools)
    assert [message.get("train") for message in row["messages"]] == [
        turn.train if turn.role == "assistant" else None for turn in conversation.turns
    ]
    found = [
        (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls_in(row["messages"])
    ]
    assert found == arguments_in(conversation)


@thorough
@given(conversations())
def test_llamafactorys_rows(conversation: Conversation) -> None:
    row = row_of(conversation, "llamafactory")
    turns = row["conversations"]
    assert len(turns) % 2 == 0
    assert {turn["from"] for turn in turns[::2]} <= {"human", "observation"}
    assert {turn["from"] for turn in turns[1::2]} <= {"gpt", "function_call"}
    assert all(isinstance(turn["value"], str) and list(turn) == ["from", "value"] for turn in turns)
    assert (json.loads(row["tools"]) if row["tools"] else []) == list(conversation.tools)
    called: list[tuple[str, Any]] = []
    for turn in turns:
        if turn["from"] == "function_call":
            assert turn["value"].count("<tool_call>") in (0, 1)
            _, tag, inside = turn["value"].rpartition("<tool_call>")
            calls = json.loads(inside.removesuffix("</tool_call>") if tag else turn["value"])
            called += [(call["name"], call["arguments"]) for call in calls]
    assert called == arguments_in(conversation)
    observed = sum(turn["from"] == "observation" for turn in turns)
    assert observed == sum(bool(message.get("tool_calls")) for message in conversation.messages)


@thorough
@given(conversations())
def test_sharegpts_rows_are_read_back(conversation: Conversation) -> None:
    row = row_of(conversation, "sharegpt")
    first = conversation.turns[0].message
    own = f"{first['content']}\n\n" if first["role"] == "system" else ""
    system, *found = messages_of(row)
    assert system["content"].startswith(own)
    wanted = [turn.message for turn in conversation.turns if turn.role != "system"]
    assert [plain(message) for message in found] == [plain(message) for message in wanted]
    assert [message.get("tool_call_id") for message in found] == [message.get("tool_call_id") for message in wanted]
    metadata = row["metadata"]
    assert (metadata["item"], metadata["model"]) == (conversation.key, "vendor/model-1")
    assert metadata["score"] == (-1.0 if conversation.score is None else conversation.score)


def plain(message: Message) -> dict[str, Any]:
    """What turns of ShareGPT can hold: tags enclose texts, so what is around them is not kept; results that are JSON are its values."""
    content: Any = text_of(message.get("content"))
    if message["role"] == "tool":
        try:
            content = json.loads(content) if content.lstrip()[:1] in ("{", "[") else content
        except ValueError:
            pass
    elif message["role"] == "assistant":
        content = content.strip()
    calls = [
        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]
    return {
        "role": message["role"],
        "content": content,
        "reasoning": (message.get("reasoning") or "").strip(),
        "calls": calls,
        "name": message.get("name"),
    }


@thorough
@given(conversations(), pairs())
def test_rows_are_the_same_twice_and_leave_conversations_as_they_are(
    conversation: Conversation, pair: tuple[Conversation, Conversation]
) -> None:
    conversation.score = 1.0
    before, both = deepcopy(conversation.to_json()), [deepcopy(each.to_json()) for each in pair]
    for name in SINGLE:
        for reasoning in ("keep", "drop", "field"):
            rows = [[*map(compact_line, format_of(name, reasoning=reasoning).rows(conversation))] for _ in range(2)]
            assert rows[0] == rows[1]
    format_of("preference").pair(*pair)
    assert conversation.to_json() == before
    assert [each.to_json() for each in pair] == both


@thorough
@given(pairs())
def test_pairs_have_one_prompt_and_two_ends(pair: tuple[Conversation, Conversation]) -> None:
    better, worse = pair
    row = json.loads(compact_line(format_of("preference").pair(better, worse)))
    assert list(row) == ["prompt", "chosen", "rejected", "score_chosen", "score_rejected", "tools"]
    assert row["prompt"][-1]["role"] == "user"
    assert row["prompt"] + row["chosen"] == row_of(better, "messages")["messages"]
    assert row["prompt"] + row["rejected"] == row_of(worse, "messages")["messages"]
    assert (row["score_chosen"], row["score_rejected"]) == (1.0, worse.score)
    if max(sum(turn.train for turn in each.turns) for each in pair) > 1:
        with pytest.raises(Unfit, match="differ by more than one message"):
            format_of("openai-dpo").pair(better, worse)
        return
    for_openai = json.loads(compact_line(format_of("openai-dpo").pair(better, worse)))
    assert list(for_openai) == ["input", "preferred_output", "non_preferred_output"]
    assert [[each["role"] for each in for_openai[name]] for name in list(for_openai)[1:]] == [["assistant"]] * 2
    assert ("tools" in for_openai["input"]) == bool(better.tools)


@thorough
@given(conversations())
def test_reasoning_is_where_it_is_wanted(conversation: Conversation) -> None:
    conversation.score = 1.0
    thought = sum("reasoning" in turn.message for turn in conversation.turns)
    for turn in conversation.turns:
        if "reasoning" in turn.message:
            turn.message["reasoning"] = "I wonder."
    for name in SINGLE:
        texts = {
            reasoning: json.dumps(row_of(conversation, name, reasoning=reasoning))
            for reasoning in ("keep", "drop", "field")
        }
        assert [texts[mode].count("I wonder.") for mode in texts] == [thought, 0, thought]
        assert texts["keep"].count("<think>\\nI wonder.") == thought
        assert texts["field"].count("<think>\\nI wonder.") == 0
        assert lost(conversation, name, reasoning="drop")["messages' reasoning"] == thought


# --- What a format can't hold


def talk(*messages: dict[str, Any], tools: Any = (), **fields: Any) -> Conversation:
    """A conversation of these messages, in which all that an assistant said was said in the run."""
    turns = [
        Turn(cast(Message, message), train=message["role"] == "assistant" and "_given" not in message)
        for message in deepcopy(messages)
    ]
    known = {"run": "r", "run_id": "0", "workload": "trajectories", "item": 1, "key": "k", "stop_reason": "answered"}
    return Conversation(**{**known, "score": 1.0, "turns": turns, "tools": tools, **fields})


def call(name: str = "terminal", arguments: str = "{}", id: str = "c1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


def result(id: str = "c1", content: Any = "done") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "name": "terminal", "content": content}


SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}
ANSWER, EMPTY = {"role": "assistant", "content": "Hello."}, {"role": "assistant", "content": " "}
EARLIER = {**ANSWER, "_given": True}
SEEN = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, IMAGE]}
HEARD = {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}
TRL = ("messages", "kto")
ALL = SINGLE
TEXTS = ("messages", "kto", "axolotl", "llamafactory")
TRAINING = tuple(name for name in SINGLE if name != "sharegpt")
UNFIT: dict[str, tuple[Conversation, tuple[str, ...]]] = {
    "without a conversation": (talk(), ALL),
    "without an answer": (talk(USER), ALL),
    "without an answer to train on": (talk(USER, EARLIER), TRAINING),
    "with an empty answer": (talk(USER, ANSWER, USER, EMPTY), TRAINING),
    "with tool calls that have no result": (talk(USER, calling(call()), USER, ANSWER), ALL),
    "with tool results that answer no call": (talk(USER, calling(call()), result(), result(), ANSWER), ALL),
    "with several tool calls of one id": (talk(USER, calling(call(), call()), result(), result(), ANSWER), ALL),
    "with tool calls whose arguments are no JSON object": (
        talk(USER, calling(call(arguments="[1]")), result(), ANSWER),
        TRAINING,
    ),
    "with tool calls whose arguments have numbers beyond 64 bits": (
        talk(USER, calling(call(arguments='{"a": 36893488147419103232}')), result(), ANSWER),
        TRL,
    ),
    "with images": (talk(SEEN, ANSWER), TEXTS),
    "with content that is neither text nor an image": (talk(HEARD, ANSWER), ("openai",)),
    "with more than 10 images": (talk(*[SEEN] * 11, ANSWER), ("openai",)),
    "with more than 128 tools": (talk(USER, ANSWER, tools=TOOLS * 33), ("openai",)),
    "with tool names that OpenAI does not take": (
        talk(USER, calling(call("my.tool")), result(), ANSWER),
        ("openai",),
    ),
    "with a system message behind the first": (talk(USER, ANSWER, SYSTEM, USER, ANSWER), ("llamafactory", "sharegpt")),
    "in which requests and answers do not alternate": (talk(USER, USER, ANSWER), ("llamafactory",)),
    "whose prompt does not end with a request": (talk(SYSTEM, ANSWER), ("kto",)),
}


ALSO = {
    "with content that is neither text nor an image": dict.fromkeys(TEXTS, "with images"),
    "with more than 10 images": dict.fromkeys(TEXTS, "with images"),
    "whose prompt does not end with a request": {"llamafactory": "in which requests and answers do not alternate"},
}
"""Why other formats refuse the same."""


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("reason", UNFIT)
def test_what_does_not_fit_is_left_out_by_its_reason(reason: str, name: str) -> None:
    conversation, names = UNFIT[reason]
    expected = reason if name in names else ALSO.get(reason, {}).get(name)
    if expected is None:
        assert row_of(conversation, name)
        return
    with pytest.raises(Unfit) as unfit:
        list(format_of(name).rows(conversation))
    assert str(unfit.value) == expected


def test_all_reasons_are_of_the_words_that_are_printed_with_a_number() -> None:
    """As in "3 with images"."""
    assert all(reason.split()[0] in ("with", "without", "whose", "in") for reason in UNFIT)


UNPAIRED = {
    "with different prompts": talk({**USER, "content": "Ho."}, ANSWER),
    "with different tools": talk(USER, ANSWER, tools=TOOLS),
    "without an answer": talk(USER),
    "whose prompt does not end with a request": talk(SYSTEM, ANSWER),
}


@pytest.mark.parametrize("name", PAIRED)
@pytest.mark.parametrize("reason", UNPAIRED)
def test_what_makes_no_pair(reason: str, name: str) -> None:
    for pair in ((talk(USER, ANSWER), UNPAIRED[reason]), (UNPAIRED[reason], talk(USER, ANSWER))):
        with pytest.raises(Unfit) as unfit:
            format_of(name).pair(*pair)
        assert str(unfit.value) == reason


def test_what_was_given_is_in_the_prompt_of_a_pair() -> None:
    better, worse = (talk(SYSTEM, USER, EARLIER, USER, {**ANSWER, "content": text}) for text in ("Yes.", "No."))
    row: Any = format_of("preference").pair(better, worse)
    assert [message["role"] for message in row["prompt"]] == ["system", "user", "assistant", "user"]
    assert [row[name][0]["content"] for name in ("chosen", "rejected")] == ["Yes.", "No."]
    for_openai: Any = format_of("openai-dpo").pair(better, worse)
    assert for_openai["input"] == {"messages": row["prompt"]}
    with pytest.raises(Unfit, match="with images"):
        format_of("openai-dpo").pair(talk(SEEN, ANSWER), talk(SEEN, {**ANSWER, "content": "No."}))


def test_images_stay_where_there_is_a_place_for_them() -> None:
    seen = talk(SEEN, calling(call()), result(content=[IMAGE, {"type": "text", "text": "done"}]), ANSWER)
    messages = row_of(seen, "openai")["messages"]
    assert messages[0]["content"] == SEEN["content"]
    assert messages[2]["content"] == "<image>\ndone"
    assert lost(seen, "openai") == {"images": 1}
    assert lost(seen, "sharegpt") == {"images": 2}
    blind = talk(USER, *(turn.message for turn in seen.turns[1:]))  # type: ignore[arg-type]
    for name in TEXTS:
        assert lost(blind, name) == {"images": 1}


def test_what_is_not_to_be_trained_on_is_marked_or_counted() -> None:
    mixed = talk(USER, EARLIER, USER, ANSWER, USER, {**ANSWER, "content": "Bye."})
    mixed.turns[-1].train = False
    assert [each.get("weight") for each in row_of(mixed, "openai")["messages"]] == [None, 0, None, 1, None, 0]
    trained = [each.get("train") for each in row_of(mixed, "axolotl")["messages"]]
    assert trained == [None, False, None, True, None, False]
    for name, number in (
        ("openai", 0),
        ("axolotl", 0),
        ("messages", 2),
        ("llamafactory", 2),
        ("sharegpt", 2),
        ("kto", 1),
    ):
        assert lost(mixed, name)["train flags"] == number
    with pytest.raises(Unfit, match="whose last answer is not to be trained on"):
        list(format_of("messages", layout="prompt_completion").rows(mixed))


def test_what_follows_the_last_answer_is_left_out() -> None:
    cut = talk(USER, ANSWER, USER, calling(call(), content="I look."), result(), stop_reason="max_turns")
    assert row_of(cut, "openai")["messages"][-1]["tool_calls"] == [call()]
    assert row_of(cut, "llamafactory")["conversations"][-1]["from"] == "function_call"
    assert row_of(cut, "sharegpt")["conversations"][-1]["from"] == "tool"


def test_half_a_character_is_replaced() -> None:
    """Lone surrogates, which models write in JSON: readers refuse a whole file for one."""
    half = talk(USER, calling(call(arguments='{"a": "x\\ud800"}')), result(content="\ud800"), ANSWER)
    for name in ALL:
        text = compact_line(next(format_of(name).rows(half))).decode()
        assert "\\ud800" not in text
        assert "\ufffd" in text


def test_results_are_told_apart_by_their_order_where_there_are_no_ids() -> None:
    mixed = talk(
        USER,
        calling(call(id="a"), call("other", id="b")),
        result("b", "of b"),
        result("a", "of a"),
        ANSWER,
        tools=TOOLS,
    )
    assert row_of(mixed, "llamafactory")["conversations"][2]["value"].startswith("of a\n</tool_response>")
    found = messages_of(row_of(mixed, "sharegpt"))
    assert [(each["tool_call_id"], each["content"]) for each in found if each["role"] == "tool"] == [
        ("a", "of a"),
        ("b", "of b"),
    ]
    assert [each["id"] for each in found[2]["tool_calls"]] == ["a", "b"]


def test_tags_beside_calls_are_not_taken_for_llamafactorys() -> None:
    said = talk(
        USER,
        calling(call(arguments='{"a": "<tool_call>"}'), content="In <tool_call> x", reasoning="a </think> b"),
        result(),
        ANSWER,
    )
    turn = row_of(said, "llamafactory")["conversations"][1]
    assert turn["value"] == (
        "<think>\na <\\/think> b\n</think>\n\nIn <\\tool_call> x"
        '<tool_call>[{"name": "terminal", "arguments": {"a": "\\u003ctool_call>"}}]</tool_call>'
    )
    assert lost(said, "llamafactory") == {"tags in texts, which got a backslash": 2}
    alone = row_of(said, "llamafactory", reasoning="field")["conversations"]
    assert [turn["reasoning"] for turn in alone] == ["", "a </think> b", "", ""]


def test_whether_calls_may_be_parallel_is_said_where_it_is_known() -> None:
    said = talk(USER, ANSWER, tools=TOOLS, parallel_tool_calls=False)
    assert row_of(said, "openai")["parallel_tool_calls"] is False
    assert "parallel_tool_calls" not in row_of(talk(USER, ANSWER, parallel_tool_calls=False), "openai")


def test_unreadable_arguments_are_counted_by_sharegpt() -> None:
    wrong = talk(USER, calling(call(arguments="{oops")), result(), ANSWER)
    assert lost(wrong, "sharegpt") == {"calls' unreadable arguments": 1}


# --- Files beside the rows

TWO = {"train": ["train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl"], "valid": ["valid.jsonl"]}


@pytest.mark.parametrize(
    ("name", "values", "columns"),
    [
        ("messages", {}, {"messages": "json", "tools": "string"}),
        ("messages", {"tools": "struct"}, {"messages": "json", "tools": "json"}),
        ("messages", {"layout": "prompt_completion"}, {"prompt": "json", "completion": "json", "tools": "string"}),
        ("kto", {}, {"prompt": "json", "completion": "json", "label": "bool", "tools": "string"}),
        ("axolotl", {}, {"messages": "json", "tools": "string"}),
    ],
)
def test_a_card_says_the_files_and_types(name: str, values: dict[str, Any], columns: dict[str, str]) -> None:
    text = format_of(name, **values).extra_files(TWO)["README.md"]
    _, head, _ = text.split("---\n")
    card = YAML(typ="safe").load(head)
    assert card["configs"][0]["data_files"] == [{"split": split, "path": names} for split, names in TWO.items()]
    types = {each["name"]: each.get("list") or each["dtype"] for each in card["dataset_info"]["features"]}
    assert types == columns


def test_llamafactorys_index_has_every_file() -> None:
    found = json.loads(format_of("llamafactory").extra_files(TWO)["dataset_info.json"])
    assert {name: each["file_name"] for name, each in found.items()} == {
        "manyhands_train_00000": TWO["train"][0],
        "manyhands_train_00001": TWO["train"][1],
        "manyhands_valid": "valid.jsonl",
    }
    assert {each["formatting"] for each in found.values()} == {"sharegpt"}
    assert list(json.loads(format_of("llamafactory").extra_files({"": ["train.jsonl"]})["dataset_info.json"])) == [
        "manyhands"
    ]


def test_axolotls_lines_name_the_fields_and_splits() -> None:
    lines = YAML(typ="safe").load(format_of("axolotl", output="out/here").extra_files(TWO)["axolotl.yaml"])
    (train,), (valid,) = lines["datasets"], lines["test_datasets"]
    assert (train["path"], train["split"], valid["split"]) == ("out/here", "train", "valid")
    assert train["message_field_training"] == "train"
    assert valid["type"] == "chat_template"


# --- From a run

CALL = call(arguments='{"command": "echo hello"}')
GIVEN = [USER, calling({**CALL, "id": "c0"}), result("c0"), {"role": "assistant", "content": "Done."}, {**USER}]


def answering(request: RecordedRequest) -> Reply:
    messages = request.body["messages"]
    if messages[-1]["role"] == "user" and "call" in str(messages[-1]["content"]):
        return chat_response("I look.", reasoning="Let me see.", tool_calls=[CALL])
    return chat_response("All is well.", reasoning="I think so.")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> BatchFolder:
    """A conversation with a tool, one that goes on with what a row brings, and one about an image."""
    rows: list[dict[str, Any]] = [{"prompt": "call it"}, {"messages": GIVEN}, {"prompt": SEEN["content"]}]
    folder = BatchFolder(tmp_path_factory.mktemp("run"), rows)
    with ServerThread(answering) as server:
        ran = folder.batch(f"--base_url={server.base_url}", "--max_turns=3")
    assert ran.code == 0, ran
    return folder


def exported(folder: BatchFolder, name: str, *words: str, code: int = 0) -> Ran:
    ran = run_command(folder.path, "export", "r", f"--to={name}", f"--output=o-{name}", "--overwrite", *words)
    assert ran.code == code, ran
    return ran


def test_what_a_row_gave_is_not_trained_on(run: BatchFolder) -> None:
    ran = exported(run, "openai")
    assert "OpenAI takes no fewer than 10 rows to train on" in ran.out
    rows = read_lines(run.path / "o-openai")
    assert [[each["weight"] for each in row["messages"] if "weight" in each] for row in rows] == [
        [1, 1],
        [0, 0, 1],
        [1],
    ]
    assert rows[2]["messages"][1]["content"] == SEEN["content"]
    summary = json.loads((run.path / ".o-openai.export_summary.json").read_text())
    assert summary["notes"] == ["OpenAI takes no fewer than 10 rows to train on"]


def test_the_last_answer_alone_can_be_trained_on(run: BatchFolder) -> None:
    exported(run, "axolotl", "--train_on=last")
    rows = read_lines(run.path / "o-axolotl/train.jsonl")
    assert [[each["train"] for each in row["messages"] if "train" in each] for row in rows] == [
        [False, True],
        [False, False, True],
    ]
    ran = exported(run, "messages", "--train_on=last")
    assert "Not held by the format: 3 train flags" in ran.out


def test_what_is_lost_of_a_conversation_that_is_left_out_is_not_counted(run: BatchFolder) -> None:
    ran = exported(run, "llamafactory", "--reasoning=drop")
    assert "Left out, conversations: 1 with images" in ran.out
    assert "3 messages' reasoning" in ran.out  # of four
    assert "2 train flags" in ran.out


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("axolotl", {"README.md", "axolotl.yaml"}),
        ("llamafactory", {"dataset_info.json"}),
        ("messages", {"README.md"}),
        ("openai", set()),
    ],
)
def test_a_folder_has_what_its_readers_need(run: BatchFolder, name: str, extra: set[str]) -> None:
    words = ("--split=train=0.5,valid=0.5", f"--output=split-{name}")
    exported(run, name, *words)
    found = {path.name for path in (run.path / f"split-{name}").iterdir()}
    assert found == {"train.jsonl", "valid.jsonl", "export_summary.json", *extra}


def test_a_file_is_one_file(run: BatchFolder) -> None:
    exported(run, "messages")
    assert (run.path / "o-messages").is_file()
    assert "is not one file of lines here" in exported(run, "axolotl", "--output=-", code=2).err


def test_turns_are_those_of_trajectories(run: BatchFolder) -> None:
    exported(run, "sharegpt")
    found = [row["conversations"] for row in read_lines(run.path / "o-sharegpt")]
    assert found == [line["conversations"] for line in run.lines()]
