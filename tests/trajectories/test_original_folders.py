"""Adopting a folder left by the original batch runner."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import StorageError, UserError
from manyhands.workloads.trajectories.dataset.rows import iterate_items
from manyhands.workloads.trajectories.original import (
    OriginalEntry,
    OriginalMatches,
    OriginalProblem,
    is_left_by_original,
    normalise_entry,
    read_original,
    set_aside,
)

REAL = Path(__file__).parents[1] / "data/trajectories/left_by_original"


def entry(index: int, prompt: Any, **more: Any) -> dict[str, Any]:
    turns = [
        {"from": "system", "value": "s"},
        {"from": "human", "value": prompt},
        {"from": "gpt", "value": f"answer {index}"},
    ]
    return {"prompt_index": index, "conversations": turns, "metadata": {"batch_num": 0, "model": "m"}, **more}


def tombstone(index: int, prompt: str) -> dict[str, Any]:
    return {"prompt_index": index, "discarded": "no_reasoning", "prompt": prompt}


def write(folder: Path, number: int | str, *lines: Any, torn: str = "") -> None:
    folder.mkdir(exist_ok=True)
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines) + torn
    (folder / f"batch_{number}.jsonl").write_text(text, encoding="utf-8")


def entries(folder: Path) -> list[OriginalEntry]:
    return [found for found in read_original(folder) if isinstance(found, OriginalEntry)]


def problems(folder: Path) -> list[str]:
    return [str(found) for found in read_original(folder) if isinstance(found, OriginalProblem)]


# --- Reading


def test_files_are_read_in_numeric_order(tmp_path: Path) -> None:
    for number in (10, "x", 2, 0):
        write(tmp_path, number, entry(0, f"from {number}"))
    assert [found.prompt for found in entries(tmp_path)] == ["from 0", "from 2", "from 10", "from x"]


def test_the_prompt_is_the_first_human_turn(tmp_path: Path) -> None:
    line = entry(3, "  do it \n")
    line["conversations"].append({"from": "human", "value": "go on"})
    write(tmp_path, 0, line)
    (found,) = entries(tmp_path)
    assert (found.prompt, found.entry, found.file, found.line, found.discarded) == (
        "do it",
        line,
        "batch_0.jsonl",
        1,
        None,
    )


def test_tombstones(tmp_path: Path) -> None:
    write(tmp_path, 0, tombstone(1, " p "))
    (found,) = entries(tmp_path)
    assert (found.prompt, found.entry, found.discarded) == ("p", None, "no_reasoning")


def test_damage_is_named_and_costs_nothing_else(tmp_path: Path) -> None:
    write(
        tmp_path, 0, "{oops", "[1]", "", {"prompt_index": 1}, {**entry(2, "x"), "failed": True},
        {"conversations": [{"from": "gpt", "value": "x"}]}, {"conversations": "x"}, {"conversations": [1]}, entry(3, ""),
        entry(4, "good"), torn='{"prompt_index": 5, "conv',
    )  # fmt: skip
    assert [found.prompt for found in entries(tmp_path)] == ["good"]
    assert problems(tmp_path) == [
        "batch_0.jsonl, line 1: not a line of JSON",
        "batch_0.jsonl, line 2: not an object",
        "batch_0.jsonl, line 4: neither a conversation nor a discarded prompt",
        "batch_0.jsonl, line 5: a failed prompt, to be run again",
        "batch_0.jsonl, line 6: no human turn",
        'batch_0.jsonl, line 7: "conversations" is not a list of turns',
        'batch_0.jsonl, line 8: "conversations" is not a list of turns',
        "batch_0.jsonl, line 9: no human turn",
        "batch_0.jsonl, line 11: torn, the program was stopped while it wrote",
    ]


def test_a_good_line_glued_to_a_torn_one_is_rescued(tmp_path: Path) -> None:
    quoted = 'says {"prompt_index": 1} in its text'
    for cut in range(1, len(json.dumps(entry(1, "torn")))):
        write(tmp_path, 0, json.dumps(entry(1, "torn"))[:cut] + json.dumps(entry(2, quoted)), entry(3, "next"))
        assert [found.prompt for found in entries(tmp_path)] == [quoted, "next"]
        assert problems(tmp_path) == ["batch_0.jsonl, line 1: not a line of JSON"]
        with closing(OriginalMatches(tmp_path)) as matches:
            found = matches.find(quoted, 0)
            assert found is not None
            assert found.entry == entry(2, quoted)


def test_a_whole_last_line_without_newline_counts(tmp_path: Path) -> None:
    write(tmp_path, 0, torn=json.dumps(entry(1, "whole")))
    assert [found.prompt for found in entries(tmp_path)] == ["whole"]


def test_bytes_that_are_not_utf8_are_damage(tmp_path: Path) -> None:
    write(tmp_path, 0, entry(0, "a"))
    with (tmp_path / "batch_0.jsonl").open("ab") as stream:
        stream.write(b'{"x": "\xff"}\n')
    assert problems(tmp_path) == ["batch_0.jsonl, line 2: not a line of JSON"]


def test_cut_off_conversations_are_told_apart(tmp_path: Path) -> None:
    cut = entry(0, "cut")
    cut["conversations"].append({"from": "tool", "value": "…"})
    write(tmp_path, 0, cut, entry(1, "whole"), tombstone(2, "none"))
    assert [found.cut_off for found in entries(tmp_path)] == [True, False, False]


# --- Matching


def test_the_kth_copy_gets_the_kth_line(tmp_path: Path) -> None:
    write(tmp_path, 10, entry(30, "p"))
    write(tmp_path, 2, entry(10, "q"), entry(20, " p"), tombstone(5, "p"))
    with closing(OriginalMatches(tmp_path)) as matches:
        assert matches.problem_count == 0
        found = [matches.find("p ", copy) for copy in range(4)]
        assert [one and one.entry and one.entry["prompt_index"] for one in found] == [20, 30, None, None]
        assert found[2] is not None
        assert found[2].discarded == "no_reasoning"
        assert found[3] is None
        assert matches.find("other", 0) is None
        assert [one.prompt for one in matches.unused()] == ["q"]


def test_a_trajectory_is_preferred_to_an_earlier_tombstone(tmp_path: Path) -> None:
    write(tmp_path, 0, tombstone(0, "p"), entry(0, "p"))
    with closing(OriginalMatches(tmp_path)) as matches:
        found = matches.find("p", 0)
        assert found is not None
        assert found.entry is not None


def test_content_parts_match(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "look"}]
    write(tmp_path, 0, entry(0, parts))
    with closing(OriginalMatches(tmp_path)) as matches:
        assert matches.find([{"text": "look", "type": "text"}], 0) is not None


def test_files_that_change_underneath_are_noticed(tmp_path: Path) -> None:
    write(tmp_path, 0, entry(0, "p"))
    with closing(OriginalMatches(tmp_path)) as matches:
        write(tmp_path, 0, "changed")
        with pytest.raises(UserError, match=r"batch_0.jsonl, line 1 changed"):
            matches.find("p", 0)


def test_only_the_first_problems_are_kept(tmp_path: Path) -> None:
    write(tmp_path, 0, *["oops"] * 30)
    with closing(OriginalMatches(tmp_path, problem_limit=10)) as matches:
        assert (len(matches.problems), matches.problem_count) == (10, 30)


# --- Entries


def test_statistics_get_the_stable_tools_and_the_rest_is_kept() -> None:
    stats = {"b": {"count": 2, "success": 1, "failure": 1}, "old": {"count": 0, "success": 0, "failure": 0}}
    line = entry(
        7,
        "p",
        completed=False,
        toolsets_used=["file"],
        tool_stats=stats,
        tool_error_counts={"b": 1, "old": 0},
        extra=[1],
    )
    normal, unknown = normalise_entry(line, ["a", "b"], 3, 4)
    zero = {"count": 0, "success": 0, "failure": 0}
    assert unknown == ()
    assert list(normal["tool_stats"].items()) == [("a", zero), ("b", stats["b"])]
    assert normal["tool_error_counts"] == {"a": 0, "b": 1}
    assert normal["prompt_index"] == 3
    assert normal["metadata"] == {"batch_num": 4, "model": "m"}
    assert {key: normal[key] for key in ("conversations", "completed", "toolsets_used", "extra")} == {
        key: line[key] for key in ("conversations", "completed", "toolsets_used", "extra")
    }
    assert list(normal) == list(line)


def test_called_tools_that_are_not_known_are_named() -> None:
    counts = {"count": 1, "success": 1, "failure": 0}
    normal, unknown = normalise_entry(entry(0, "p", tool_stats={"quantum_teleport": counts}), ["a"], 0, 0)
    assert unknown == ("quantum_teleport",)
    assert list(normal["tool_stats"]) == ["a", "quantum_teleport"]


@pytest.mark.parametrize(
    "stats", [None, [], "x", {"a": None}, {"a": {"count": "many", "failure": -1, "success": True}}]
)
def test_nonsense_statistics_count_as_zero(stats: Any) -> None:
    normal, unknown = normalise_entry({"conversations": [], "tool_stats": stats, "metadata": None}, ["a"], 0, 1)
    assert normal["tool_stats"] == {"a": {"count": 0, "success": 0, "failure": 0}}
    assert (normal["tool_error_counts"], normal["metadata"], unknown) == ({"a": 0}, {"batch_num": 1}, ())


# --- Setting aside


def leave(folder: Path) -> dict[str, str]:
    write(folder, 0, entry(0, "a"))
    write(folder, 1, entry(1, "b"))
    for name in ("trajectories.jsonl", "statistics.json", "checkpoint.json"):
        (folder / name).write_text(name)
    (folder / "notes.txt").write_text("mine")
    return {path.name: path.read_text() for path in folder.iterdir() if path.name != "notes.txt"}


def test_everything_of_the_original_is_moved_and_nothing_else(tmp_path: Path) -> None:
    run = tmp_path / "run"
    before = leave(run)
    assert is_left_by_original(run)
    kept = set_aside(run)
    assert {name: (kept / name).read_text() for name in before} == before
    assert {path.name for path in run.iterdir()} == {"original", "notes.txt"}
    assert is_left_by_original(run)


def test_setting_aside_goes_on_after_a_crash_at_any_file(tmp_path: Path) -> None:
    for moved in range(6):
        run = tmp_path / f"run{moved}"
        before = leave(run)
        (run / "original").mkdir()
        for name in sorted(before)[:moved]:
            (run / name).rename(run / "original" / name)
        assert is_left_by_original(run)
        kept = set_aside(run)
        assert {name: (kept / name).read_text() for name in before} == before


def test_files_of_this_program_are_never_taken_for_the_originals(tmp_path: Path) -> None:
    run = tmp_path / "run"
    leave(run)
    set_aside(run)
    (run / "run.db").touch()
    write(run, 0, entry(0, "ours"))
    assert not is_left_by_original(run)
    assert set_aside(run) == run / "original"
    assert entries(run)[0].prompt == "ours"


def test_batch_files_beside_a_finished_set_are_not_guessed_about(tmp_path: Path) -> None:
    run = tmp_path / "run"
    leave(run)
    set_aside(run)
    write(run, 0, entry(0, "whose?"))
    with pytest.raises(UserError, match=r"restore run\.db"):
        set_aside(run)
    assert entries(run)[0].prompt == "whose?"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    run = tmp_path / "run"
    leave(run)
    write(run / "original", 1, entry(9, "older"))
    with pytest.raises(UserError, match="exists already"):
        set_aside(run)
    assert entries(run / "original")[-1].prompt == "older"
    assert (run / "batch_1.jsonl").exists()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    run = tmp_path / "run"
    leave(run)
    (run / "original").write_text("a file in the way")
    with pytest.raises(StorageError, match="set the original program's files aside"):
        set_aside(run)


def test_folders_without_batch_files_are_not_adopted(tmp_path: Path) -> None:
    assert not is_left_by_original(tmp_path)
    assert not is_left_by_original(tmp_path / "none")


# --- The real thing


def test_a_real_folder_is_adopted(tmp_path: Path) -> None:
    known = ["read_file", "search_files"]
    with closing(OriginalMatches(REAL / "r1")) as matches:
        assert matches.problem_count == 1
        assert str(matches.problems[0]) == "batch_7.jsonl, line 2: torn, the program was stopped while it wrote"
        found = {
            item.prompt_index: matches.find(item.row.prompt, item.sample)
            for item in iterate_items(REAL / "dataset.jsonl")
        }
        assert list(matches.unused()) == []
    adopted = {index: one.entry for index, one in found.items() if one is not None and one.entry is not None}
    assert sorted(set(range(20)) - set(adopted)) == [1, 7, 10, 14, 19]
    assert all(line["prompt_index"] == index for index, line in adopted.items())
    unknown = {index: normalise_entry(line, known, index, 0)[1] for index, line in adopted.items()}
    assert {index for index, names in unknown.items() if names} == {11, 12}
