"""What a server sends is what is recorded and saved: reasoning and tags in answers, in batches from end to end."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from manyhands.engine.journal.reader import JournalReader
from manyhands.export.sharegpt_reading import messages_of
from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedResponse, chat_response
from tests.support.batches import BatchFolder, ServerThread, prompt_of, run_command

CALL = {
    "id": "c",
    "type": "function",
    "function": {"name": "terminal", "arguments": '{"command": "echo \'</tool_response>\'"}'},
}
ANSWERS: dict[str, Reply] = {
    "own reasoning": chat_response("Write </think> to end it.\n ", reasoning_content="R"),
    "own reasoning, block in front": chat_response("<think>\nexample\n</think>\nis how.", reasoning="R"),
    "mention": chat_response("In HTML, <think> and </think> mean nothing."),
    "opening block": chat_response("<think>\nplan </thought>\n</think>\n\nYes, </think>."),
    "lone closing": chat_response("plan\n</think>\n\nYes."),
    "cut off": chat_response("<think>\nplan"),
}


def reply(request: RecordedRequest) -> Reply:
    prompt = prompt_of(request)
    if prompt.startswith("tools"):
        if request.body["messages"][-1]["role"] == "tool":
            return chat_response("Done <|im_end|>", reasoning="I </think> so")
        return chat_response("<think>\nrun it\n</think>\nI <tool_call> it", tool_calls=[CALL])
    if prompt == "late":
        return ScriptedResponse({"error": {"message": "the credit is used up"}}, status=402)
    return ANSWERS.get(prompt) or chat_response("Done.", reasoning="I think so.")


@pytest.fixture(scope="module")
def server() -> Iterable[ServerThread]:
    with ServerThread(reply) as made:
        yield made


class Place:
    """A folder with batches at a server."""

    def __init__(self, path: Path, server: ServerThread) -> None:
        self.folder = BatchFolder(path)
        self.server = server

    def batch(self, rows: Iterable[str], *words: str, code: int = 0) -> str:
        self.folder.write_rows(rows)
        ran = self.folder.batch(f"--base_url={self.server.base_url}", "--model=m", *words)
        assert ran.code == code, ran
        return ran.out + ran.err

    def outputs(self, item: int = 0, name: str = "r") -> list[dict[str, Any]]:
        """What the model steps of an item hold."""
        with closing(JournalReader(self.folder.run(name))) as reader:
            row = list(reader.items())[item]
            return [step.output for step in reader.steps(row.number, row.attempt) if step.kind == "model"]

    def checked(self) -> None:
        assert run_command(self.folder.path, "check", "r").code == 0


@pytest.fixture
def place(tmp_path: Path, server: ServerThread) -> Place:
    return Place(tmp_path, server)


# --- Reasoning in answers


@pytest.mark.parametrize(
    ("prompt", "reasoning", "content", "raw", "saved"),
    [
        (
            "own reasoning", "R", "Write </think> to end it.\n ", None,
            "<think>\nR\n</think>\nWrite <\\/think> to end it.",
        ),
        (
            "own reasoning, block in front", "R", "<think>\nexample\n</think>\nis how.", None,
            "<think>\nR\n</think>\n<\\think>\nexample\n<\\/think>\nis how.",
        ),
        (
            "mention", None, "In HTML, <think> and </think> mean nothing.", None,
            "<think>\n</think>\nIn HTML, <\\think> and <\\/think> mean nothing.",
        ),
        (
            "opening block", "plan </thought>", "Yes, </think>.", "<think>\nplan </thought>\n</think>\n\nYes, </think>.",
            "<think>\nplan </thought>\n</think>\nYes, <\\/think>.",
        ),
        ("lone closing", None, "plan\n</think>\n\nYes.", None, "<think>\n</think>\nplan\n<\\/think>\n\nYes."),
    ],
)  # fmt: skip
def test_answers_are_recorded_and_saved_as_they_were_sent(
    place: Place, prompt: str, reasoning: str | None, content: str, raw: str | None, saved: str
) -> None:
    place.batch([prompt], "--keep_unreasoned")
    (output,) = place.outputs()
    assert (output["message"].get("reasoning"), output["message"]["content"]) == (reasoning, content)
    assert output["extra"].get("raw") == (None if raw is None else {"content": raw})
    (line,) = place.folder.lines()
    assert line["conversations"][-1]["value"] == saved
    read = messages_of(line)[-1]
    assert (read.get("reasoning"), read["content"]) == (reasoning, content.strip())
    place.checked()


def test_a_lone_closing_tag_ends_reasoning_where_the_template_opens_it(place: Place) -> None:
    said = place.batch(["lone closing", "own reasoning", "opening block"], "--implied_think", "--num_workers=1")
    assert "--implied_think" not in said
    assert [line["conversations"][-1]["value"] for line in place.folder.lines()] == [
        "<think>\nplan\n</think>\nYes.",
        "<think>\nR\n</think>\nWrite <\\/think> to end it.",
        "<think>\nplan </thought>\n</think>\nYes, <\\/think>.",
    ]
    (output,) = place.outputs()
    assert output["extra"]["raw"] == {"content": "plan\n</think>\n\nYes."}
    assert "as sent:\n  plan\n  </think>" in run_command(place.folder.path, "show", "r", "1").out
    place.checked()


def test_reasoning_that_is_cut_off_before_its_end_is_no_beginning_of_an_answer(tmp_path: Path) -> None:
    cut_off = chat_response("Let me thi")
    cut_off["choices"][0]["finish_reason"] = "length"
    with ServerThread([cut_off, chat_response("So.</think>Yes.")]) as server:
        place = Place(tmp_path, server)
        place.batch(["p"], "--implied_think")
        assert [len(body["messages"]) for body in server.bodies] == [2, 2]
    (line,) = place.folder.lines()
    assert [turn["value"] for turn in line["conversations"][1:]] == ["p", "<think>\nSo.\n</think>\nYes."]
    assert place.outputs()[0]["extra"]["raw"] == {"content": "Let me thi"}
    place.checked()


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_answers_that_look_so_bring_up_the_option_once(place: Place, executor: str) -> None:
    rows = ["lone closing", "lone closing", "own reasoning", "lone closing"]
    said = place.batch(rows, "--keep_unreasoned", f"--executor={executor}", "--num_workers=2")
    assert said.count("--implied_think") == 1
    assert "answers of m end reasoning with </think> that they do not begin" in said


def test_other_answers_do_not(place: Place) -> None:
    said = place.batch(["own reasoning", "mention", "opening block", "cut off"], "--keep_unreasoned")
    assert "implied_think" not in said


def test_a_run_says_whether_the_option_may_change(place: Place) -> None:
    place.batch(["lone closing", "late"], "--keep_unreasoned", code=1)
    again = ("--resume", "--keep_unreasoned", "--implied_think")
    assert "implied_think was" in place.batch(["lone closing", "late"], *again, code=2)
    place.batch(["lone closing", "late"], *again, "--override=implied_think", code=1)
    assert place.outputs()[0]["message"]["content"] == "plan\n</think>\n\nYes."  # what was read is not read again


def test_reasoning_that_was_cut_off_is_reasoning(place: Place) -> None:
    place.batch(["cut off"], "--max_turns=5")
    outputs = place.outputs()
    assert len(outputs) == 3
    assert [output["message"]["reasoning"] for output in outputs] == ["plan"] * 3
    assert [output["message"]["content"] for output in outputs] == [""] * 3
    assert [output["extra"]["raw"] for output in outputs] == [{"content": "<think>\nplan"}] * 3
    assert outputs[0]["flaw"] == "empty"


def test_an_answer_that_is_only_a_tag_is_an_answer_beside_reasoning(place: Place, server: ServerThread) -> None:
    ANSWERS["only tags"] = chat_response("<think>x</think>", reasoning="R")
    ANSWERS["an opening tag"] = chat_response("<think> opens it.", reasoning="R")
    place.batch(["only tags", "an opening tag"])
    assert [len(place.outputs(item)) for item in (0, 1)] == [1, 1]
    assert [messages_of(line)[-1]["content"] for line in place.folder.lines()] == [
        "<think>x</think>",
        "<think> opens it.",
    ]


def test_what_goes_back_to_the_model(place: Place, server: ServerThread) -> None:
    seen = len(server.requests)
    place.batch(["tools"])
    first, second = server.bodies[seen:]
    assert second["messages"][: len(first["messages"])] == first["messages"]
    answer = second["messages"][len(first["messages"])]
    assert (answer["content"], answer["reasoning_content"]) == ("I <tool_call> it", "run it")
    assert "raw" not in json.dumps(answer)


# --- Tags in values


def values(line: dict[str, Any]) -> list[str]:
    return [turn["value"] for turn in line["conversations"][1:]]


TOLD = "tools for <|im_start|>"


def test_tags_are_escaped_and_counted(place: Place) -> None:
    said = place.batch([TOLD, "plain"])
    tagged, plain = place.folder.lines()
    human, first, result, last = values(tagged)
    assert human == "tools for <\\|im_start|>"
    assert first.startswith("<think>\nrun it\n</think>\nI <\\tool_call> it\n<tool_call>\n")
    assert first.endswith("echo '\\u003c/tool_response>'\"}}\n</tool_call>")
    assert result.count("</tool_response>") == 1
    assert json.loads(result.split("\n")[1])["content"]["output"].strip() == "</tool_response>"
    assert last == "<think>\nI <\\/think> so\n</think>\nDone <\\|im_end|>"
    assert (tagged["metadata"]["escaped_tags"], plain["metadata"]["escaped_tags"]) == (6, 0)
    assert place.folder.json("statistics.json")["escaped_tags"] == {"trajectories": 1, "tags": 6}
    assert "Tags in texts, escaped: 6 (trajectories with such: 1;" in said
    read = messages_of(tagged)
    assert [read[1]["content"], read[2]["content"], read[4]["content"]] == [TOLD, "I <tool_call> it", "Done <|im_end|>"]
    assert read[2]["tool_calls"][0]["id"] == read[3]["tool_call_id"]
    place.checked()


def test_such_lines_may_be_discarded_by_name(place: Place) -> None:
    rows = [TOLD, "plain"]
    said = place.batch(rows, "--tags_in_values=discard")
    assert [values(line)[0] for line in place.folder.lines()] == ["plain"]
    (failure,) = place.folder.lines("failures.jsonl")
    assert (failure["state"], failure["cause"]) == ("discarded", "tags_in_values")
    assert failure["message"] == "tags in its texts: 6"
    assert place.folder.json("statistics.json")["discarded"] == {"tags_in_values": 1}
    assert "Samples discarded (tags in texts): 1" in said
    asked = len(place.server.requests)
    place.batch(rows, "--resume", "--tags_in_values=escape", "--override=tags_in_values")
    assert len(place.server.requests) == asked
    assert [line["metadata"]["escaped_tags"] for line in place.folder.lines()] == [6, 0]


def test_tags_in_a_row_s_own_system_prompt(place: Place) -> None:
    own = "Never write <tool_call> or <\\think>."
    place.folder.write_rows([{"prompt": "plain", "system": own}])
    assert place.folder.batch(f"--base_url={place.server.base_url}", "--model=m").code == 0
    (line,) = place.folder.lines()
    assert line["conversations"][0]["value"].startswith("Never write <\\tool_call> or <\\\\think>.\n\n")
    assert line["metadata"]["escaped_tags"] == 2
    assert messages_of(line)[0]["content"].startswith(own + "\n\n")
    assert place.server.requests[-1].body["messages"][0]["content"] == own


def test_the_original_s_bytes_may_be_kept(place: Place) -> None:
    place.batch([TOLD], "--tags_in_values=keep")
    (line,) = place.folder.lines()
    assert values(line)[0] == TOLD
    assert values(line)[-1] == "<think>\nI </think> so\n</think>\nDone <|im_end|>"
    assert line["metadata"]["escaped_tags"] == 0
    place.batch([TOLD], "--resume", "--tags_in_values=escape", "--override=tags_in_values")
    (line,) = place.folder.lines()
    assert (line["metadata"]["escaped_tags"], values(line)[0]) == (6, "tools for <\\|im_start|>")
    assert place.folder.json("statistics.json")["escaped_tags"] == {"trajectories": 1, "tags": 6}


def aged(run: Path) -> None:
    """Make a run one of the version before tags were escaped."""
    with closing(sqlite3.connect(run / "run.db")) as journal:
        (text,) = journal.execute("SELECT value FROM meta WHERE name = 'spec'").fetchone()
        spec = json.loads(text)
        del spec["options"]["tags_in_values"], spec["options"]["implied_think"]
        for name in ("counts_tags", "layout", "built_in", "own_systems", "own_messages"):
            del spec[name]
        journal.execute("UPDATE meta SET value = ? WHERE name = 'spec'", (json.dumps(spec),))
        journal.commit()
    for path in run.glob("batch_*.jsonl"):
        path.unlink()
    (run / "run.lock").unlink()  # it says what the journal must hold


@pytest.mark.parametrize("words", [(), ("--tags_in_values=keep",)])
def test_a_run_of_an_older_version_goes_on_as_it_began(place: Place, words: tuple[str, ...]) -> None:
    place.batch([TOLD, "late"], "--tags_in_values=keep", code=1)
    aged(place.folder.run())
    place.batch([TOLD, "late"], "--resume", *words, code=1)
    place.batch([TOLD, "other"], "--resume", code=0)
    lines = place.folder.lines()
    assert [values(line)[0] for line in lines] == [TOLD, "other"]
    assert not any("escaped_tags" in line["metadata"] for line in lines)
    assert place.folder.json("statistics.json")["escaped_tags"] == {"trajectories": 0, "tags": 0}
    place.batch([TOLD, "other"], "--resume", "--tags_in_values=escape", "--override=tags_in_values")
    assert [line["metadata"]["escaped_tags"] for line in place.folder.lines()] == [6, 0]
    assert place.folder.json("statistics.json")["escaped_tags"] == {"trajectories": 1, "tags": 6}


def test_lines_of_this_program_without_their_journal_are_adopted(place: Place) -> None:
    place.batch([TOLD, "plain"])
    before = place.folder.lines()
    for path in place.folder.run().iterdir():
        if path.is_file() and not path.name.startswith("batch_"):
            path.unlink()
    asked = len(place.server.requests)
    place.batch([TOLD, "plain"], "--resume")
    assert len(place.server.requests) == asked
    after = place.folder.lines()
    assert [line["conversations"] for line in after] == [line["conversations"] for line in before]
    assert [line["metadata"]["escaped_tags"] for line in after] == [6, 0]
    assert place.folder.json("statistics.json")["escaped_tags"] == {"trajectories": 1, "tags": 6}
