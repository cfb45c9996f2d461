"""A folder that the original program left is gone on with: what it finished is not paid for again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import datasets
import pyarrow.json
import pytest

from manyhands.tools.toolsets import KNOWN_TOOLS
from tests.support.batches import BatchFolder, ServerThread, prompt_of, read_lines, run_command

REAL = Path(__file__).parents[1] / "data/trajectories/left_by_original"
ADDED = {"item", "sample", "attempt", "seed", "stop_reason", "usage", "cost", "unknown_tools", "source", "simulated"}


def left(
    index: int, prompt: str, *, tool: str = "read_file", calls: int = 1, model: str = "old/model"
) -> dict[str, Any]:
    """A line as the original writes it (its set of tools has names that we do not know, and no terminal)."""
    names = dict.fromkeys(["web_search", tool, "read_file", "browser_console", "skill_view"])
    counts = {name: {"count": 0, "success": 0, "failure": 0} for name in names}
    counts[tool] = {"count": calls, "success": calls, "failure": 0}
    return {
        "prompt_index": index,
        "conversations": [
            {"from": "system", "value": "You are a function calling AI model. …"},
            {"from": "human", "value": prompt},
            {"from": "gpt", "value": "<think>\nHm.\n</think>\nAn old answer."},
        ],
        "metadata": {"batch_num": 0, "timestamp": "2026-01-02T03:04:05.678901", "model": model},
        "completed": True,
        "partial": False,
        "api_calls": 2,
        "toolsets_used": ["file", "web"],
        "tool_stats": counts,
        "tool_error_counts": dict.fromkeys(counts, 0),
    }


def tombstone(index: int, prompt: str) -> dict[str, Any]:
    return {"prompt_index": index, "discarded": "no_reasoning", "prompt": prompt}


def leave(folder: BatchFolder, **files: Iterable[dict[str, Any] | str]) -> None:
    folder.run().mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        texts = (text if isinstance(text, str) else json.dumps(text, ensure_ascii=False) + "\n" for text in lines)
        (folder.run() / f"{name}.jsonl").write_text("".join(texts), encoding="utf-8")
    (folder.run() / "checkpoint.json").write_text('{"run_name": "r", "completed_prompts": [0, 1, 1]}')


@pytest.fixture
def folder(tmp_path: Path) -> BatchFolder:
    """Copies, a tombstone, a torn line, an invented tool, a row that the dataset has no more, another order."""
    made = BatchFolder(
        tmp_path,
        [
            "new in front",
            "twice",
            {"prompt": "labelled", "label": 7},
            "twice",
            "discarded",
            "invented",
            "torn",
            "twice",
        ],
    )
    leave(
        made,
        batch_0=[left(0, "twice"), left(1, "labelled", calls=3), left(2, "invented", tool="quantum_teleport")],
        batch_1=[tombstone(3, "discarded"), left(4, "gone from the dataset")],
        batch_10=[left(5, " twice \n"), json.dumps(left(6, "torn"))[:150]],
    )
    return made


def adopted(folder: BatchFolder, *words: str) -> list[str]:
    """The prompts that were asked after all."""
    with ServerThread() as server:
        ran = folder.batch("--resume", f"--base_url={server.base_url}", *words)
        assert ran.code == 0, ran
        return sorted(map(prompt_of, server.requests))


def test_what_was_finished_is_not_asked_again(folder: BatchFolder) -> None:
    assert adopted(folder) == ["new in front", "torn", "twice"]
    lines = folder.lines()
    assert [(line["prompt_index"], line["conversations"][1]["value"].strip()) for line in lines] == [
        (0, "new in front"), (1, "twice"), (2, "labelled"), (3, "twice"), (6, "torn"), (7, "twice"),
    ]  # fmt: skip
    assert [line["metadata"]["model"] == "old/model" for line in lines] == [False, True, True, True, False, False]
    assert [line["metadata"]["batch_num"] for line in lines] == [0, 0, 1, 1, 3, 3]
    assert {(line["prompt"], line["cause"]) for line in folder.lines("failures.jsonl")} == {
        ("discarded", "no_reasoning"),
        ("invented", "unknown_tool"),
    }
    assert run_command(folder.path, "resume", "r", "--quiet").code == 0
    assert folder.lines() == lines


def test_what_was_taken_over_and_what_was_not_is_said(folder: BatchFolder) -> None:
    half = left(9, "twice")
    half["conversations"].append({"from": "tool", "value": "<tool_response>\n{}\n</tool_response>"})
    leave(folder, batch_3=[half])
    with ServerThread() as server:
        ran = folder.batch("--resume", f"--base_url={server.base_url}")
    assert "adopted from the original program: 4 finished and 2 discarded prompts" in ran.err
    assert "1 adopted conversation without an answer" in ran.err
    assert "batch_10.jsonl, line 2: torn, the program was stopped while it wrote; it is not taken over" in ran.err
    assert "1 finished lines belong to no row of the dataset and are left out: batch_1.jsonl line 2" in ran.err


def test_adopted_lines_keep_what_they_said_in_our_schema(folder: BatchFolder) -> None:
    adopted(folder)
    old, new = folder.lines()[2], folder.lines()[0]
    assert list(old) == list(new)
    assert list(old["metadata"]) == list(new["metadata"])
    assert set(old["metadata"]) >= ADDED
    assert list(old["tool_stats"]) == list(old["tool_error_counts"]) == list(KNOWN_TOOLS)
    was = left(1, "labelled", calls=3)
    for name in ("conversations", "completed", "partial", "api_calls", "toolsets_used"):
        assert old[name] == was[name]
    assert old["metadata"]["timestamp"] == was["metadata"]["timestamp"]
    assert old["tool_stats"]["read_file"] == {"count": 3, "success": 3, "failure": 0}
    assert (json.loads(old["metadata"]["source"]), old["metadata"]["stop_reason"]) == ({"label": 7}, "adopted")


def test_mixed_lines_are_read_with_one_schema(folder: BatchFolder, tmp_path: Path) -> None:
    adopted(folder)
    path = folder.run() / "trajectories.jsonl"
    loaded = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded["prompt_index"][:] == [0, 1, 2, 3, 6, 7]
    longest = max(map(len, path.read_bytes().splitlines()))
    for lines in (path.read_bytes().splitlines(), path.read_bytes().splitlines()[::-1]):
        path.write_bytes(b"\n".join(lines) + b"\n")
        options = pyarrow.json.ReadOptions(block_size=longest + 10, use_threads=False)
        assert pyarrow.json.read_json(path, read_options=options).num_rows == 6


def test_statistics_count_the_adopted_lines_too(folder: BatchFolder) -> None:
    adopted(folder)
    statistics = folder.json("statistics.json")
    assert statistics["total_prompts"] == 8
    assert statistics["items"] == {"pending": 0, "completed": 6, "discarded": 2, "failed": 0, "cancelled": 0}
    assert statistics["tool_statistics"]["read_file"]["count"] == 5
    assert statistics["reasoning_statistics"]["total_assistant_turns"] == 6
    assert statistics["usage"]["calls"] == 3


def test_lines_and_statistics_say_who_made_them(folder: BatchFolder) -> None:
    with ServerThread() as server:
        ran = folder.batch("--resume", f"--base_url={server.base_url}", "--system_template=hermes")
    assert "Adopted: 3 trajectories of the original program (old/model 3); 3 made by this run" in ran.out
    assert "adopted lines are marked (metadata.adopted)" in ran.err
    assert "another wording" not in ran.err
    marks = [(line["metadata"]["adopted"], line["metadata"]["model"] == "old/model") for line in folder.lines()]
    assert sorted(marks) == [(False, False)] * 3 + [(True, True)] * 3
    statistics = folder.json("statistics.json")
    assert statistics["adopted"] == 3
    by_program = {maker["program"]: maker for maker in statistics["made_by"]}
    assert by_program["original"]["trajectories"] == 3
    assert (by_program["original"]["model"], by_program["original"]["system_prompt"]) == ("old/model", None)
    own = by_program["manyhands"]
    assert own["system_prompt"].startswith("Complete the task")
    assert {line["metadata"]["system_prompt"] for line in folder.lines()} == {"", own["system_prompt_digest"]}


def test_a_tool_that_only_the_original_has_keeps_its_counts(folder: BatchFolder) -> None:
    adopted(folder, "--keep_unknown_tools")
    kept = next(line for line in folder.lines() if line["prompt_index"] == 5)
    counts = {"count": 1, "success": 1, "failure": 0}
    assert json.loads(kept["metadata"]["other_tool_stats"]) == {"quantum_teleport": counts}


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("2026-01-02T03:04:05", "2026-01-02T03:04:05.000000"),
        ("2026-01-02T03:04:05+00:00", "2026-01-02T03:04:05.000000+00:00"),
        ("2026-01-02", "2026-01-02T00:00:00.000000"),
        ("2026-01-02T03:04:05.678901", "2026-01-02T03:04:05.678901"),
        ("yesterday", "yesterday"),
        (None, ""),
        (1767323045, "1767323045"),
    ],
)
def test_times_of_adopted_lines_are_text_to_every_reader(tmp_path: Path, written: Any, kept: str) -> None:
    folder = BatchFolder(tmp_path, ["a"])
    entry = left(0, "a")
    entry["metadata"]["timestamp"] = written
    leave(folder, batch_0=[entry])
    assert adopted(folder) == []
    assert folder.lines()[0]["metadata"]["timestamp"] == kept
    table = pyarrow.json.read_json(folder.run() / "trajectories.jsonl")
    assert str(table.schema.field("metadata").type.field("timestamp").type) == "string"


ODD = [None, "3", 1.5, True, [], [None], {}, {"read_file": None}, {"read_file": {"count": "2"}}, 1 << 80, -1]


@pytest.mark.parametrize(
    "field", ["api_calls", "completed", "toolsets_used", "tool_stats", "tool_error_counts", "metadata"]
)
def test_values_of_other_kinds_break_neither_lines_nor_statistics(tmp_path: Path, field: str) -> None:
    prompts = [f"{field} {place}" for place in range(len(ODD))]
    folder = BatchFolder(tmp_path, prompts)
    leave(folder, batch_0=[{**left(0, prompt), field: odd} for prompt, odd in zip(prompts, ODD, strict=True)])
    ran = folder.batch("--model=simulated", "--resume")
    assert (ran.code, len(folder.lines())) == (0, len(ODD)), ran
    assert pyarrow.json.read_json(folder.run() / "trajectories.jsonl").num_rows == len(ODD)
    assert folder.json("statistics.json")["adopted"] == len(ODD)


def test_the_originals_files_are_kept_as_they_were(folder: BatchFolder) -> None:
    before = {path.name: path.read_bytes() for path in folder.run().iterdir()}
    adopted(folder)
    kept = folder.run() / "original"
    assert {path.name: path.read_bytes() for path in kept.iterdir() if path.suffix in (".json", ".jsonl")} == before


def test_without_resume_nothing_is_touched(folder: BatchFolder) -> None:
    before = {path.name: path.read_bytes() for path in folder.run().iterdir()}
    ran = folder.batch("--base_url=http://127.0.0.1:9/v1")
    assert ran.code == 2
    assert "the original batch runner" in ran.err
    assert "--resume" in ran.err
    assert {path.name: path.read_bytes() for path in folder.run().iterdir()} == before


def test_a_wrong_setting_leaves_the_folder_as_it_was(folder: BatchFolder) -> None:
    before = {path.name: path.read_bytes() for path in folder.run().iterdir()}
    for wrong in ("--distribution=nonsense", "--sandbox=nonsense", "--dataset_file=nowhere.jsonl", "--prices=nowhere"):
        assert folder.batch("--base_url=http://127.0.0.1:9/v1", "--resume", wrong).code == 2
        assert {path.name: path.read_bytes() for path in folder.run().iterdir()} == before


def test_samples_take_the_copies_in_order(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, ["a", "b"])
    leave(folder, batch_0=[left(0, "a", calls=1), left(0, "a", calls=2), left(1, "b")])
    assert adopted(folder, "--samples=3") == ["a", "b", "b"]
    lines = [(line["prompt_index"], line["metadata"]["sample"], line["metadata"]["model"]) for line in folder.lines()]
    assert [entry[:2] for entry in lines] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert [entry[2] == "old/model" for entry in lines] == [True, True, False, True, False, False]


def test_an_adopted_run_is_a_run_like_any_other(folder: BatchFolder) -> None:
    adopted(folder)
    assert "finished" in run_command(folder.path, "status", "r").out
    ran = run_command(folder.path, "check", "r")
    assert ran.code == 0
    assert "5 have no recorded steps" in ran.out
    assert "no recorded steps" in run_command(folder.path, "show", "r", "3").out
    for name in ("batch_0.jsonl", "trajectories.jsonl"):
        (folder.run() / name).unlink()
    before = [(folder.run() / "batch_1.jsonl").read_bytes()]
    assert run_command(folder.path, "resume", "r", "--quiet").code == 0
    assert [(folder.run() / "batch_1.jsonl").read_bytes()] == before
    assert len(folder.lines()) == 6


def test_invented_tools_can_be_kept_after_all(folder: BatchFolder) -> None:
    adopted(folder)
    words = ("--keep_unknown_tools", "--override=keep_unknown_tools", "--quiet")
    assert run_command(folder.path, "resume", "r", *words).code == 0  # the server is gone
    kept = next(line for line in folder.lines() if line["prompt_index"] == 5)
    assert (kept["metadata"]["unknown_tools"], kept["metadata"]["model"]) == ("quantum_teleport", "old/model")
    assert "quantum_teleport" not in kept["tool_stats"]
    assert len(folder.lines()) == 7


def test_a_folder_that_the_original_really_left(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path)
    shutil.copy(REAL / "dataset.jsonl", tmp_path / "d.jsonl")
    shutil.copytree(REAL / "r1", folder.run())
    left_over = ["S:badjson o", "S:badjsoninf t", "S:e401 k", "S:e429 h", "S:noreason b"]
    assert adopted(folder) == left_over
    rows = [row["prompt"] for row in read_lines(tmp_path / "d.jsonl")]
    lines = folder.lines()
    assert [line["conversations"][1]["value"] for line in lines] == [
        prompt for prompt in rows if prompt not in ("S:badtool l", "S:badtool3 m")
    ]
    assert [rows[line["prompt_index"]] for line in lines] == [line["conversations"][1]["value"] for line in lines]
    assert {line["cause"] for line in folder.lines("failures.jsonl")} == {"unknown_tool"}
    ledger = folder.json("summary.json")["ledger"]
    assert (ledger["items"], ledger["completed"], ledger["discarded"]) == (20, 18, 2)
    assert len(datasets.load_dataset("json", data_files=str(folder.run() / "trajectories.jsonl"), split="train",
                                     cache_dir=str(tmp_path / "cache"))) == 18  # fmt: skip


def test_lines_with_odd_fields_and_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "zq-0f3b7c9d2e8a4b6c"
    monkeypatch.setenv("SOME_API_KEY", secret)
    odd: list[dict[str, Any]] = [
        {"tool_stats": 5, "tool_error_counts": 7},
        {"tool_stats": {"read_file": 5, "patch": {"count": -5, "success": 10**30, "failure": "x"}}},
        {"metadata": 5},
        {"metadata": {"model": secret, "escaped_tags": 10**40, "timestamp": []}},
        {"api_calls": "x", "toolsets_used": [1, {}], "completed": "yes"},
    ]
    made = BatchFolder(tmp_path, [f"p{place}" for place in range(len(odd))])
    leave(made, batch_0=[{**left(place, f"p{place}"), **fields} for place, fields in enumerate(odd)])
    assert made.batch("--resume", "--model=simulated").code == 0
    assert [line["prompt_index"] for line in read_lines(made.run() / "trajectories.jsonl")] == [*range(len(odd))]
    for path in made.run().glob("*.json*"):
        assert secret not in path.read_text(encoding="utf-8")
