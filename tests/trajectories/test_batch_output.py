"""The files of a run: names, schema, order, and what other programs make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow.json
import pytest

from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedResponse, chat_response
from manyhands.tools.standard import standard_registry
from manyhands.tools.toolsets import known_tools
from tests.support.batches import REASONED, BatchFolder, ServerThread, prompt_of, read_lines, without_times

ENTRY_KEYS = [
    "prompt_index",
    "conversations",
    "metadata",
    "completed",
    "partial",
    "api_calls",
    "toolsets_used",
    "tool_stats",
    "tool_error_counts",
]
STATISTICS_KEYS = [
    "run_name",
    "distribution",
    "total_prompts",
    "total_batches",
    "batch_size",
    "model",
    "completed_at",
    "duration_seconds",
    "tool_statistics",
    "reasoning_statistics",
]
ROWS: list[str | dict[str, Any]] = [
    {"prompt": "plain", "level": 1},
    {"prompt": "tools", "level": 2.5, "tags": ["a"]},
    {"prompt": "unreasoned", "tags": []},
    {"prompt": "refused", "extra": {"deep": None}},
    "last",
]


def call(number: int, name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def reply(request: RecordedRequest) -> Reply:
    """Each prompt has its own fate."""
    prompt = prompt_of(request)
    turn = sum(message["role"] == "assistant" for message in request.body["messages"])
    if prompt == "unreasoned":
        return chat_response("Quick.")
    if prompt == "refused":
        return ScriptedResponse({"error": {"message": "no such thing"}}, status=400)
    if prompt == "tools" and turn == 0:
        calls = [call(1, "write_file", path="ä.txt", content="ünï"), call(2, "read_file", path="nowhere.txt")]
        return chat_response("I begin.", reasoning="Two at once.", tool_calls=calls)
    if prompt == "tools" and turn == 1:
        return chat_response(None, tool_calls=[call(3, "terminal", command="echo hi; exit 3")])
    return REASONED


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> BatchFolder:
    """A finished run with every kind of ending."""
    made = BatchFolder(tmp_path_factory.mktemp("batch"), ROWS)
    with ServerThread(reply) as server:
        ran = made.batch(f"--base_url={server.base_url}", "--model=some/model")
    assert ran.code == 1, ran
    return made


def test_the_folder_has_the_files_of_the_original(folder: BatchFolder) -> None:
    names = {path.name for path in folder.run().iterdir() if path.is_file()}
    assert {name for name in names if name.startswith("batch_")} == {
        "batch_0.jsonl",
        "batch_2.jsonl",  # nothing of batch 1 became a trajectory
    }
    assert names >= {"trajectories.jsonl", "checkpoint.json", "statistics.json"}


def test_entries_have_the_keys_of_the_original_in_its_order(folder: BatchFolder) -> None:
    for entry in folder.lines():
        assert list(entry) == ENTRY_KEYS
        assert list(entry["metadata"])[:3] == ["batch_num", "timestamp", "model"]
        assert [list(turn) for turn in entry["conversations"]] == [["from", "value"]] * len(entry["conversations"])
    assert [entry["prompt_index"] for entry in folder.lines()] == [0, 1, 4]
    assert [entry["metadata"]["batch_num"] for entry in folder.lines()] == [0, 0, 2]


def test_tool_statistics_are_zero_filled_from_one_sorted_list(folder: BatchFolder) -> None:
    known = list(known_tools(standard_registry().names))
    assert known == sorted(known)
    assert {"terminal", "web_search", "browser_navigate"} < set(known)
    for entry in folder.lines():
        assert list(entry["tool_stats"]) == list(entry["tool_error_counts"]) == known
    used = {name: counts for name, counts in folder.lines()[1]["tool_stats"].items() if counts["count"]}
    assert used == {
        "read_file": {"count": 1, "success": 0, "failure": 1},
        "terminal": {"count": 1, "success": 1, "failure": 0},
        "write_file": {"count": 1, "success": 1, "failure": 0},
    }
    assert folder.lines()[1]["tool_error_counts"]["read_file"] == 1


def test_turns_have_the_layout_of_the_original_to_the_byte(folder: BatchFolder) -> None:
    system, human, first, results, second, result, answer = folder.lines()[1]["conversations"]
    assert [turn["from"] for turn in (system, human, first, results, second, result, answer)] == [
        "system", "human", "gpt", "tool", "gpt", "tool", "gpt",
    ]  # fmt: skip
    tools = json.loads(system["value"].partition("\n<tools>\n")[2].partition("\n</tools>\n")[0])
    assert [list(tool) for tool in tools] == [["name", "description", "parameters", "required"]] * len(tools)
    assert {tool["required"] for tool in tools} == {None}
    assert [tool["name"] for tool in tools] == sorted(tool["name"] for tool in tools)
    assert human["value"] == "tools"
    assert first["value"] == (
        "<think>\nTwo at once.\n</think>\nI begin.\n"
        '<tool_call>\n{"name": "write_file", "arguments": {"path": "ä.txt", "content": "ünï"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "nowhere.txt"}}\n</tool_call>'
    )
    blocks = results["value"].split("\n</tool_response>\n")
    assert [
        json.loads(block.removeprefix("<tool_response>\n").removesuffix("\n</tool_response>"))["name"]
        for block in blocks
    ] == [
        "write_file",
        "read_file",
    ]
    assert second["value"].startswith("<think>\n</think>\n<tool_call>\n")
    content = json.loads(result["value"].removeprefix("<tool_response>\n").removesuffix("\n</tool_response>"))
    assert list(content) == ["tool_call_id", "name", "content"]
    assert (content["tool_call_id"], content["content"]["exit_code"]) == ("c3", 3)
    assert answer["value"] == "<think>\nI think so.\n</think>\nDone."


def test_every_prompt_without_a_trajectory_is_in_the_failures(folder: BatchFolder) -> None:
    unreasoned, refused = folder.lines("failures.jsonl")
    assert (unreasoned["prompt"], unreasoned["state"], unreasoned["cause"]) == (
        "unreasoned",
        "discarded",
        "no_reasoning",
    )
    assert (refused["prompt"], refused["state"], refused["cause"]) == ("refused", "failed", "model_refused")
    assert "no such thing" in refused["message"]
    assert refused["source"] == {"extra": {"deep": None}}


def test_statistics_begin_with_the_keys_of_the_original_and_add_up(folder: BatchFolder) -> None:
    statistics = folder.json("statistics.json")
    assert list(statistics)[:10] == STATISTICS_KEYS
    assert (statistics["total_prompts"], statistics["total_batches"], statistics["batch_size"]) == (5, 3, 2)
    assert statistics["items"] == {"pending": 0, "completed": 3, "discarded": 1, "failed": 1, "cancelled": 0}
    assert list(statistics["tool_statistics"]) == ["read_file", "terminal", "write_file"]
    assert statistics["tool_statistics"]["read_file"] == {
        "count": 1,
        "success": 0,
        "failure": 1,
        "success_rate": 0.0,
        "failure_rate": 100.0,
    }
    assert statistics["reasoning_statistics"] == {
        "total_assistant_turns": 5,
        "turns_with_reasoning": 4,
        "turns_without_reasoning": 1,
    }
    assert (statistics["usage"]["calls"], statistics["usage"]["input_tokens"]) == (6, 60)
    ledger = folder.json("summary.json")["ledger"]
    assert ledger["items"] == 5 == sum(ledger[state] for state in statistics["items"])
    assert ledger["by_cause"] == {"discarded": {"no_reasoning": 1}, "failed": {"model_refused": 1}}


def test_the_checkpoint_is_the_originals(folder: BatchFolder) -> None:
    checkpoint = folder.json("checkpoint.json")
    assert list(checkpoint) == ["run_name", "completed_prompts", "batch_stats", "last_updated"]
    assert (checkpoint["run_name"], checkpoint["completed_prompts"]) == ("r", [0, 1, 2, 4])
    assert checkpoint["batch_stats"] == {
        "0": {"processed": 2, "skipped": 0, "discarded_no_reasoning": 0},
        "1": {"processed": 1, "skipped": 0, "discarded_no_reasoning": 1},
        "2": {"processed": 1, "skipped": 0, "discarded_no_reasoning": 0},
    }


def test_the_combined_file_holds_the_lines_of_the_batch_files(folder: BatchFolder) -> None:
    parts = [entry for number in (0, 2) for entry in folder.lines(f"batch_{number}.jsonl")]
    assert sorted(parts, key=lambda entry: entry["prompt_index"]) == folder.lines()


# --- Other programs


def read_with_datasets(path: Path) -> list[dict[str, Any]]:
    loaded = datasets.load_dataset(
        "json", data_files=str(path), split="train", cache_dir=str(path.parent.parent / "cache")
    )
    return [dict(row) for row in loaded]


def test_datasets_and_arrow_read_every_line_with_one_schema(folder: BatchFolder) -> None:
    path = folder.run() / "trajectories.jsonl"
    rows = read_with_datasets(path)
    assert [row["prompt_index"] for row in rows] == [0, 1, 4]
    assert rows[1]["conversations"] == folder.lines()[1]["conversations"]
    assert rows[1]["tool_stats"]["terminal"]["count"] == 1
    # A block of a few hundred bytes a line at a time: the schema of each must fit that of the first.
    longest = max(len(line) for line in path.read_bytes().splitlines())
    table = pyarrow.json.read_json(
        path, read_options=pyarrow.json.ReadOptions(block_size=longest + 10, use_threads=False)
    )
    assert table.num_rows == 3
    assert table.column("metadata").to_pylist()[2]["source"] == folder.lines()[2]["metadata"]["source"]


@pytest.mark.parametrize("order", [["tools", "plain", "last"], ["last", "plain", "tools"]])
def test_one_schema_whichever_line_comes_first(tmp_path: Path, order: list[str]) -> None:
    rows = {row["prompt"]: row for row in ROWS if isinstance(row, dict)}
    folder = BatchFolder(tmp_path, [rows.get(name, name) for name in order])
    with ServerThread(reply) as server:
        words = (f"--base_url={server.base_url}", "--distribution=balanced", "--keep_unreasoned")
        assert folder.batch(*words).code == 0
        assert folder.batch(*words, "--run_name=terminal", "--distribution=terminal_only").code == 0
    first, second = (folder.run(name) / "trajectories.jsonl" for name in ("r", "terminal"))
    both = tmp_path / "both.jsonl"
    both.write_bytes(first.read_bytes() + second.read_bytes())
    longest = max(len(line) for line in both.read_bytes().splitlines())
    options = pyarrow.json.ReadOptions(block_size=longest + 10, use_threads=False)
    assert pyarrow.json.read_json(both, read_options=options).num_rows == 6
    assert len(read_with_datasets(both)) == 6


def test_the_original_s_example_of_loading_works(folder: BatchFolder) -> None:
    trajectories = []
    with open(folder.run() / "trajectories.jsonl") as f:
        for line in f:
            trajectories.append(json.loads(line))  # noqa: PERF401 - as the document has it
    assert len(trajectories) == 3
    assert len(trajectories[0]["conversations"]) == 3
    assert trajectories[0]["completed"] is True


# --- The same run twice


def simulated(folder: BatchFolder, name: str, *words: str) -> list[dict[str, Any]]:
    ran = folder.batch("--model=simulated", f"--run_name={name}", "--seed=11", "--distribution=balanced", *words)
    assert ran.code in (0, 1), ran
    return [without_times(entry) for entry in read_lines(folder.run(name) / "trajectories.jsonl")]


def test_the_same_settings_give_the_same_trajectories_however_they_are_performed(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, [f"Make file number {number}" for number in range(12)])
    first = simulated(folder, "first", "--num_workers=1")
    assert len(first) >= 10
    assert any(entry["api_calls"] > 2 for entry in first)
    assert {entry["metadata"]["simulated"] for entry in first} == {True}
    assert simulated(folder, "wide", "--num_workers=8") == first
    assert simulated(folder, "processes", "--executor=processes", "--num_workers=2", "--concurrency=2") == first
    assert simulated(folder, "seed", "--seed=12") != first
