"""Pairs of samples with known scores: exactly those that are expected, of one run and of several."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from manyhands.testing.scripted_server import Handler, RecordedRequest, Reply, chat_response
from tests.support.batches import BatchFolder, Ran, ServerThread, prompt_of, read_lines, run_command

ANSWERS: Mapping[str, Sequence[str]] = {
    "differ": ("0.5 a", "0.25 b", "1 c", "0.25 d"),
    "alike": ("0.5 a", "0.5 b", "0.5 c", "0.5 d"),
    "close": ("0.5 a", "0.625 b", "0.5 a", "0.625 b"),
    "tools": ("1 a", "0 b", "0 b", "1 a"),
    "same": ("as ever", "as ever", "as ever", "as ever"),
}
"""What the samples of each prompt answer, beginning with their score; of the last prompt all say the same and are scored differently."""
CHECK = """
import json, pathlib, sys
answer = json.load(sys.stdin)["answer"]
if answer == "as ever":
    with pathlib.Path("asked").open("a+") as file:
        file.write(".")
        file.seek(0)
        print(json.dumps({"score": len(file.read()) % 3 / 2}))
else:
    print(json.dumps({"score": float(answer.split()[0])}))
"""
CALL = {"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "echo hello"}'}}
Pair = tuple[str, str, str]
"""Prompt, better and worse answer."""
WIDEST: Sequence[Pair] = [
    ("differ", "1 c", "0.25 b"),
    ("close", "0.625 b", "0.5 a"),
    ("tools", "1 a", "0 b"),
]


def numbered(first: int = 0) -> Handler:
    """The k-th conversation about a prompt gets its k-th answer, from ``first`` on."""
    begun: dict[str, itertools.count[int]] = {}

    def reply(request: RecordedRequest) -> Reply:
        prompt = prompt_of(request)
        if prompt == "tools" and request.body["messages"][-1]["role"] == "user":
            return chat_response("I look.", reasoning="Let me see.", tool_calls=[CALL])
        number = next(begun.setdefault(prompt, itertools.count(first)))
        return chat_response(ANSWERS[prompt][number], reasoning="Hm.")

    return reply


def graded(
    path: Path,
    samples: int = 4,
    first: int = 0,
    name: str = "r",
    *,
    prompts: Iterable[str] = ANSWERS,
    handler: Handler | None = None,
) -> BatchFolder:
    folder = BatchFolder(path, prompts)
    (path / "check.py").write_text(CHECK)
    (path / "checks.yaml").write_text(f"- {{name: own, type: code_judge, script: [{sys.executable}, check.py]}}\n")
    with ServerThread(handler or numbered(first)) as server:
        words = (f"--base_url={server.base_url}", "--grade=checks.yaml", f"--samples={samples}", "--num_workers=1")
        ran = folder.batch(*words, f"--run_name={name}")
    assert ran.code == 0, ran
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> BatchFolder:
    return graded(tmp_path_factory.mktemp("graded"))


def exported(folder: BatchFolder, *words: str, runs: Sequence[str] = ("r",)) -> Ran:
    ran = run_command(folder.path, "export", *runs, "--output=o.jsonl", "--overwrite", *words)
    assert ran.code == (1 if ": 0 rows" in ran.out else 0), ran
    return ran


def paired(folder: BatchFolder, *words: str, runs: Sequence[str] = ("r",)) -> list[Pair]:
    exported(folder, "--to=preference", *words, runs=runs)
    rows = read_lines(folder.path / "o.jsonl")
    for row in rows:
        assert row["score_chosen"] == float(answer(row["chosen"]).split()[0])
        assert row["score_rejected"] == float(answer(row["rejected"]).split()[0])
        assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    return [(row["prompt"][-1]["content"], answer(row["chosen"]), answer(row["rejected"])) for row in rows]


def answer(messages: list[dict[str, Any]]) -> str:
    text: str = messages[-1]["content"]
    return text


def test_the_best_is_paired_with_the_worst(folder: BatchFolder) -> None:
    assert paired(folder) == WIDEST


def test_every_two_that_differ(folder: BatchFolder) -> None:
    assert paired(folder, "--pairs=all") == [
        ("differ", "1 c", "0.5 a"),
        ("differ", "1 c", "0.25 b"),
        ("differ", "1 c", "0.25 d"),
        ("differ", "0.5 a", "0.25 b"),
        ("differ", "0.5 a", "0.25 d"),
        *[("close", "0.625 b", "0.5 a")] * 4,
        *[("tools", "1 a", "0 b")] * 4,
    ]


@pytest.mark.parametrize(
    ("gap", "expected"),
    [("0.125", WIDEST), ("0.13", [WIDEST[0], WIDEST[2]]), ("0.75", [WIDEST[0], WIDEST[2]]), ("0.8", [WIDEST[2]])],
)
def test_the_gap_has_a_minimum(folder: BatchFolder, gap: str, expected: list[Pair]) -> None:
    assert paired(folder, f"--min_gap={gap}") == expected


def test_neither_equal_scores_nor_equal_words_make_a_pair(folder: BatchFolder) -> None:
    scores = {line["metadata"]["score"] for line in folder.lines() if line["prompt_index"] == 4}
    assert len(scores) > 1
    assert not {prompt for prompt, _, _ in paired(folder, "--pairs=all")} & {"alike", "same"}


def test_samples_that_call_something_else_are_not_equal(tmp_path: Path) -> None:
    begun = itertools.count()

    def reply(request: RecordedRequest) -> Reply:
        if request.body["messages"][-1]["role"] == "tool":
            return chat_response("as ever", reasoning="Hm.")
        function = {"name": "terminal", "arguments": json.dumps({"command": f"echo {next(begun)}"})}
        return chat_response("I look.", reasoning="Hm.", tool_calls=[{**CALL, "function": function}])

    folder = graded(tmp_path, 2, prompts=["anything"], handler=reply)
    exported(folder, "--to=preference")
    assert len(read_lines(tmp_path / "o.jsonl")) == 1


def test_repetitions_make_no_further_pairs(folder: BatchFolder) -> None:
    found = paired(folder, "--pairs=all", "--dedup=exact")
    assert found.count(("close", "0.625 b", "0.5 a")) == 1


def test_what_is_in_no_pair_is_counted(folder: BatchFolder) -> None:
    ran = exported(folder, "--to=preference")
    assert "Exported 3 pairs from 6 of 20 items as preference: 3 rows" in ran.out
    assert "Left out, conversations: 14 in no pair" in ran.out


def test_pairs_of_answers_alone_fit_openai(folder: BatchFolder) -> None:
    ran = exported(folder, "--to=openai-dpo")
    rows = read_lines(folder.path / "o.jsonl")
    assert [
        (row["input"]["messages"][-1]["content"], answer(row["preferred_output"]), answer(row["non_preferred_output"]))
        for row in rows
    ] == WIDEST[:2]
    assert all([tool["function"]["name"] for tool in row["input"]["tools"]] for row in rows)
    assert "from 4 of 20 items" in ran.out
    assert "Left out, conversations: 16 in no pair\nLeft out, pairs: 1 that differ by more than one message" in ran.out
    assert "OpenAI takes no fewer than 10 rows" in ran.out


def test_what_led_to_an_answer_is_on_both_sides(folder: BatchFolder) -> None:
    exported(folder, "--to=preference", "--tools=struct")
    *_, row = read_lines(folder.path / "o.jsonl")
    for name in ("chosen", "rejected"):
        assert [message["role"] for message in row[name]] == ["assistant", "tool", "assistant"]
        assert row[name][0]["tool_calls"][0]["function"]["arguments"] == {"command": "echo hello"}
        assert row[name][0]["reasoning_content"] == "Let me see."
    assert {tool["function"]["name"] for tool in row["tools"]} >= {"terminal"}


def test_samples_of_several_runs_make_pairs(tmp_path: Path) -> None:
    folder = graded(tmp_path, 1, 0, "one")
    graded(tmp_path, 1, 2, "two")
    assert paired(folder, runs=["one", "two"]) == [("differ", "1 c", "0.5 a"), ("tools", "1 a", "0 b")]
    assert paired(folder, runs=["two", "one"]) == [("differ", "1 c", "0.5 a"), ("tools", "1 a", "0 b")]
    assert paired(folder, runs=["one"]) == []


def test_labels_go_by_the_threshold(folder: BatchFolder) -> None:
    exported(folder, "--to=kto", "--threshold=0.6")
    rows = read_lines(folder.path / "o.jsonl")
    labels = [(answer(row["completion"]), row["label"]) for row in rows if answer(row["completion"]) != "as ever"]
    assert labels == [
        (text, float(text.split()[0]) >= 0.6) for prompt, texts in ANSWERS.items() if prompt != "same" for text in texts
    ]


def test_ungraded_runs_have_no_pairs(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, ["tools"])
    with ServerThread(numbered()) as server:
        assert folder.batch(f"--base_url={server.base_url}").code == 0
    for name in ("preference", "openai-dpo", "kto"):
        assert "Left out, conversations: 1 without a score" in exported(folder, f"--to={name}").out
    assert json.loads((tmp_path / ".o.jsonl.export_summary.json").read_text())["rows"] == 0
